package lockregistry

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// permits are the calls and holds of the semaphores of a registry. Each has a [Lock] of its own, and a ticket if it waits: so
// those of one process wait in Redis in the order in which they came, beside those of others.
type permits struct {
	reg *Registry

	mu      sync.Mutex
	calls   map[*Lock]string      // with the number of the newest attempt of a call, or of its hold
	numbers map[string]*Lock      // the same the other way round
	groups  map[string]*semaphore // by key; some are of no call any more
	freed   []freed               // the newest ones, within the last seconds, in order
	unused  int                   // with so many groups, those of no call are dropped
}

// semaphore is what all calls of one have in common.
type semaphore struct {
	anchor Lock // nobody's: what others want is kept at its path
	number int  // of permits, that was found in Redis and logged
}

// freed is a hold whose removal was confirmed.
type freed struct {
	of     *Lock // the anchor
	number string
	at     clock.Instant
}

const (
	mostFreed   = 1000 // releases may be lost by a failover, the last ones
	leastUnused = 1000 // fewer groups stay: what they know is of use to the next call
)

// begin is called before all else.
func (p *permits) begin(r *Registry) {
	*p = permits{
		reg: r, calls: map[*Lock]string{}, numbers: map[string]*Lock{}, groups: map[string]*semaphore{},
		unused: leastUnused,
	}
}

// of is what the calls of a key have in common.
func (p *permits) of(key string) *semaphore {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locked(key)
}

// locked is of, for a caller that holds the mutex.
func (p *permits) locked(key string) *semaphore {
	s := p.groups[key]
	if s == nil {
		if len(p.groups) >= p.unused {
			p.dropUnused()
		}
		s = &semaphore{}
		s.anchor.begin(p.reg, p.reg.permit, key, &s.anchor)
		p.groups[key] = s
	}
	return s
}

func (p *permits) dropUnused() {
	used := map[string]bool{}
	for l := range p.calls {
		used[l.redis.Key] = true
	}
	maps.DeleteFunc(p.groups, func(key string, _ *semaphore) bool { return !used[key] })
	p.unused = max(leastUnused, 2*len(p.groups))
}

// join makes the lock of a call.
func (p *permits) join(k *kind, key string) *Lock {
	l := &Lock{}
	l.entry.Park() // so that its last unpin is told of
	p.mu.Lock()
	defer p.mu.Unlock()
	l.begin(p.reg, k, key, &p.locked(key).anchor)
	p.calls[l] = ""
	return l
}

// asks notes the number of a hold that is about to be asked for: a message may name it.
func (p *permits) asks(l *Lock, number string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, ok := p.calls[l]; ok {
		delete(p.numbers, before)
		p.calls[l], p.numbers[number] = number, l
	}
}

// leave is for a call that has got nothing, and for a hold that is released or lost; a second time it does nothing.
func (p *permits) leave(l *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := p.calls[l]; ok {
		delete(p.numbers, number)
		delete(p.calls, l)
	}
}

// told passes a message on to the call or the hold that it is for, if there is one.
func (p *permits) told(m queue.Message) bool {
	p.mu.Lock()
	l := p.numbers[m.Number]
	p.mu.Unlock()
	return l != nil && l.redis.Key == m.Key && l.redis.Told(m)
}

// nobodys has permits removed that were granted to nobody: see Registry.told.
func (p *permits) nobodys(m queue.Message) {
	p.mu.Lock()
	s := p.groups[m.Key]
	p.mu.Unlock()
	if s != nil {
		p.reg.background.cleaner.Expedite(s.anchor.unclaimed(m.Number))
	}
}

// removed notes that a hold's permits were given back.
func (p *permits) removed(l *Lock, value string, at clock.Instant) {
	number := strings.TrimPrefix(value, p.reg.values)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.freed) >= mostFreed || len(p.freed) > 0 && p.freed[0].at.Until(at) >= queue.RecallFor {
		p.freed = p.freed[1:]
	}
	p.freed = append(p.freed, freed{&p.locked(l.redis.Key).anchor, number, at})
}

// recent are the holds whose permits were given back just now.
func (p *permits) recent(now clock.Instant) (all []freed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.freed {
		if f.at.Until(now) < queue.RecallFor {
			all = append(all, f)
		}
	}
	return all
}

// all is the calls and holds of all semaphores.
func (p *permits) all() []*Lock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.calls))
}

// news reports whether the number of permits of a semaphore is another one than was found before.
func (p *permits) news(key string, number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.locked(key)
	before := s.number
	s.number = number
	return before != number
}

// locksOf goes through the locks of a path, and then through the calls and holds of its semaphore.
func (r *Registry) locksOf(path string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for l := range r.cache.of(path) {
			if !yield(l) {
				return
			}
		}
		for _, l := range r.permits.all() {
			if l.path() == path && !yield(l) {
				return
			}
		}
	}
}

// everyLock goes through the locks that are kept, and then through the calls and holds of semaphores.
func (r *Registry) everyLock() iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for l := range r.cache.all() {
			if !yield(l) {
				return
			}
		}
		for _, l := range r.permits.all() {
			if !yield(l) {
				return
			}
		}
	}
}
