package failover

import (
	"fmt"
	"sync"
	"time"
)

// referee knows who is inside, without a word of Redis. A goroutine is inside from the moment at which its Lock returns until
// it begins to unlock, or its context tells it that the lock is lost.
type referee struct {
	mu      sync.Mutex
	paths   map[string]*place
	doubles []*double
	losers  []*visit
}

// place is what a lock protects: a counter.
type place struct {
	inside  map[*visit]bool
	entries []time.Time
	counter int // what sections that were not told have written
	counted int // how many have
}

// visit is one time that somebody was inside.
type visit struct {
	path    string
	process int
	entered time.Time
	read    int       // the counter, on entering
	left    time.Time // zero while inside
	told    time.Time // by the context that the lock is lost; zero when it was not
	refused time.Time // Unlock said that the lock was lost
}

// double is that two were inside at once.
type double struct {
	first, second *visit
}

func newReferee() *referee { return &referee{paths: map[string]*place{}} }

func (r *referee) enter(path string, process int) *visit {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.paths[path]
	if p == nil {
		p = &place{inside: map[*visit]bool{}}
		r.paths[path] = p
	}
	v := &visit{path: path, process: process, entered: now, read: p.counter}
	for other := range p.inside {
		r.doubles = append(r.doubles, &double{other, v})
	}
	p.inside[v] = true
	p.entries = append(p.entries, now)
	return v
}

// leave is for one that has done its work: it writes what it has read, and one more.
func (r *referee) leave(v *visit) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.paths[v.path]
	v.left = now
	delete(p.inside, v)
	p.counter = v.read + 1
	p.counted++
}

// told is for one that was told of the loss by its context, and stops its work.
func (r *referee) told(v *visit) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	v.left, v.told = now, now
	delete(r.paths[v.path].inside, v)
	r.losers = append(r.losers, v)
}

// refused is for one that was told by Unlock.
func (r *referee) refused(v *visit) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.told.IsZero() {
		r.losers = append(r.losers, v)
	}
	v.refused = now
}

// lostUpdates is how many sections counted whose count is lost.
func (r *referee) lostUpdates() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.paths {
		n += p.counted - p.counter
	}
	return n
}

// gap is the longest time from a moment on in which nobody entered a path, and when it ended.
func (r *referee) gap(path string, from, until time.Time) (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := from
	if p := r.paths[path]; p != nil {
		for _, at := range p.entries {
			if at.Before(from) || at.After(until) {
				continue
			}
			longest = max(longest, at.Sub(last))
			last = at
		}
	}
	return max(longest, until.Sub(last))
}

// next is when a path was entered first after a moment; false when it was not.
func (r *referee) next(path string, from time.Time) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.paths[path]; p != nil {
		for _, at := range p.entries {
			if at.After(from) {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

func (d *double) text(event time.Time) string {
	since := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Sub(event).Round(time.Millisecond).String()
	}
	side := func(v *visit) string {
		return fmt.Sprintf("process %d entered at %s, left at %s, told at %s, refused at %s",
			v.process, since(v.entered), since(v.left), since(v.told), since(v.refused))
	}
	return fmt.Sprintf("path %s: %s; %s", d.first.path, side(d.first), side(d.second))
}
