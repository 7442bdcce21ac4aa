package lockregistry

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/lockregistry/lockregistry/internal/queue"
)

// permits has the calls and holds of a registry's semaphores. Each has a [Lock] of its own, and a ticket if it waits: so the
// calls of a process wait in Redis in order of arrival, among the calls of other processes.
type permits struct {
	reg *Registry

	mu      sync.Mutex
	calls   map[*Lock]string      // the number of the call's newest attempt, or of its hold
	numbers map[string]*Lock      // the reverse of calls
	groups  map[string]*semaphore // by key; some have no calls any more
	unused  int                   // at this number of groups, groups without calls are dropped
}

// semaphore is what all calls of a semaphore have in common.
type semaphore struct {
	anchor *Lock // never locked: its path has what is known of other processes
	number int   // of permits, as last found in Redis and logged
}

const leastUnused = 1000 // fewer groups are kept, for the next calls

// begin is called before all else.
func (p *permits) begin(r *Registry) {
	*p = permits{
		reg: r, calls: map[*Lock]string{}, numbers: map[string]*Lock{}, groups: map[string]*semaphore{}, unused: leastUnused,
	}
}

// of returns what the calls of a key have in common.
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
		s = &semaphore{anchor: newPlain()}
		s.anchor.begin(p.reg, p.reg.permit, key, s.anchor)
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

// join makes the lock for one call.
func (p *permits) join(k *kind, key string) *Lock {
	l := newPlain()
	l.entry().Park() // so that its last unpin is reported
	p.mu.Lock()
	defer p.mu.Unlock()
	l.begin(p.reg, k, key, p.locked(key).anchor)
	p.calls[l] = ""
	return l
}

// asks notes the number of a hold before Redis is asked for it: a message may name the number.
func (p *permits) asks(l *Lock, number string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, ok := p.calls[l]; ok {
		delete(p.numbers, before)
		p.calls[l], p.numbers[number] = number, l
	}
}

// leave drops a call that got no permit, or a hold that was released or lost. A second leave does nothing.
func (p *permits) leave(l *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := p.calls[l]; ok {
		delete(p.numbers, number)
		delete(p.calls, l)
	}
}

// deliver passes a message to the call or hold that it names, if there is one.
func (p *permits) deliver(m queue.Message) bool {
	p.mu.Lock()
	l := p.numbers[m.Number]
	p.mu.Unlock()
	return l != nil && l.redis.Key == m.Key && l.redis.Deliver(m)
}

// nobodys removes permits that were granted to a call that is gone, see Registry.deliver.
func (p *permits) nobodys(m queue.Message) {
	p.mu.Lock()
	s := p.groups[m.Key]
	p.mu.Unlock()
	if s != nil {
		s.anchor.redis.RemoveUnclaimed(m.Number)
	}
}

// all returns the calls and holds of all semaphores.
func (p *permits) all() []*Lock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.calls))
}

// news reports whether the number of permits differs from the one found before.
func (p *permits) news(key string, number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.locked(key)
	before := s.number
	s.number = number
	return before != number
}

// locksOf iterates over the locks of a path, then over the calls and holds of its semaphore.
func (r *Registry) locksOf(path string) iter.Seq[*Lock] {
	return r.permits.after(r.cache.of(path), func(l *Lock) bool { return l.path() == path })
}

// everyLock iterates over the cached locks, then over the calls and holds of semaphores.
func (r *Registry) everyLock() iter.Seq[*Lock] {
	return r.permits.after(r.cache.all(), func(*Lock) bool { return true })
}

// after iterates over some locks, then over the calls and holds that are wanted.
func (p *permits) after(first iter.Seq[*Lock], wanted func(*Lock) bool) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for l := range first {
			if !yield(l) {
				return
			}
		}
		for _, l := range p.all() {
			if wanted(l) && !yield(l) {
				return
			}
		}
	}
}
