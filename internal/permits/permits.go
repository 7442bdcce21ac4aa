// Package permits keeps the calls and holds of a registry's semaphores, and finds them by the number that messages name. It does
// not know what a call is.
//
// What comes in: calls that join and leave, and the number of each hold. What goes out: the call of a number, all calls, and what
// the calls of a key have in common.
package permits

import (
	"maps"
	"slices"
	"sync"
)

// Calls has the calls and holds of all semaphores of a registry. Each is an L of its own, and has a ticket if it waits: so the
// calls of a process wait in Redis in order of arrival, among the calls of other processes.
type Calls[L comparable] struct {
	keyOf  func(L) string
	common func(key string) L

	mu      sync.Mutex
	calls   map[L]string         // the number of the call's newest attempt, or of its hold
	numbers map[string]L         // the reverse of calls
	groups  map[string]*group[L] // by key; some have no calls any more
	unused  int                  // at this number of groups, groups without calls are dropped
}

// group is what all calls of a semaphore have in common.
type group[L comparable] struct {
	common L
	number int // of permits, as last found in Redis and logged
}

const leastUnused = 1000 // fewer groups are kept, for the next calls

// New makes an empty set of calls. Common makes what all calls of a key have in common, which is not itself a call.
func New[L comparable](keyOf func(L) string, common func(key string) L) *Calls[L] {
	return &Calls[L]{
		keyOf: keyOf, common: common,
		calls: map[L]string{}, numbers: map[string]L{}, groups: map[string]*group[L]{}, unused: leastUnused,
	}
}

// Of returns what the calls of a key have in common.
func (p *Calls[L]) Of(key string) L {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group(key).common
}

// group returns the group of a key, and makes it if there is none. The caller holds the mutex.
func (p *Calls[L]) group(key string) *group[L] {
	g := p.groups[key]
	if g == nil {
		if len(p.groups) >= p.unused {
			p.dropUnused()
		}
		g = &group[L]{common: p.common(key)}
		p.groups[key] = g
	}
	return g
}

func (p *Calls[L]) dropUnused() {
	used := map[string]bool{}
	for l := range p.calls {
		used[p.keyOf(l)] = true
	}
	maps.DeleteFunc(p.groups, func(key string, _ *group[L]) bool { return !used[key] })
	p.unused = max(leastUnused, 2*len(p.groups))
}

// Join adds a call. Call makes it from what all calls of its key have in common, which is not dropped meanwhile.
func (p *Calls[L]) Join(key string, call func(common L) L) L {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := call(p.group(key).common)
	p.calls[l] = ""
	return l
}

// Asks notes the number of a hold before Redis is asked for it: a message may name the number.
func (p *Calls[L]) Asks(l L, number string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, ok := p.calls[l]; ok {
		delete(p.numbers, before)
		p.calls[l], p.numbers[number] = number, l
	}
}

// Leave drops a call that got no permit, or a hold that was released or lost. A second Leave does nothing.
func (p *Calls[L]) Leave(l L) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := p.calls[l]; ok {
		delete(p.numbers, number)
		delete(p.calls, l)
	}
}

// Named returns the call or hold of a number, if there is one.
func (p *Calls[L]) Named(number string) (l L, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok = p.numbers[number]
	return l, ok
}

// Known returns what the calls of a key have in common, if there were any lately.
func (p *Calls[L]) Known(key string) (common L, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.groups[key]
	if ok {
		common = g.common
	}
	return common, ok
}

// All returns the calls and holds of all semaphores.
func (p *Calls[L]) All() []L {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.calls))
}

// News notes the number of permits that Redis has. It reports whether that differs from the number found before.
func (p *Calls[L]) News(key string, number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.group(key)
	before := g.number
	g.number = number
	return before != number
}
