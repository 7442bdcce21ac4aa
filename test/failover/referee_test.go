package failover

import (
	"fmt"
	"sync"
	"time"
)

// referee knows who is inside, without asking Redis. A goroutine is inside from the moment its Lock returns until it begins to
// unlock, or its context tells it that the lock is lost.
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
	counter int // what sections that were not told of a loss have written
	counted int // how many of them there were
}

// visit is one stay inside.
type visit struct {
	path    string
	process int
	entered time.Time
	read    int       // the counter, on entering
	left    time.Time // zero while inside
	told    time.Time // when the context said that the lock is lost; zero if it did not
	refused time.Time // when Unlock said that the lock is lost
}

// double says that two were inside at once.
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

// leave ends a visit that has done its work: it writes one more than it has read.
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

// told ends a visit whose context has said that the lock is lost, and which stops its work.
func (r *referee) told(v *visit) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	v.left, v.told = now, now
	delete(r.paths[v.path].inside, v)
	r.losers = append(r.losers, v)
}

// refused records that Unlock said that the lock is lost.
func (r *referee) refused(v *visit) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.told.IsZero() {
		r.losers = append(r.losers, v)
	}
	v.refused = now
}

// lostUpdates returns how many sections counted in vain.
func (r *referee) lostUpdates() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.paths {
		n += p.counted - p.counter
	}
	return n
}

// gap returns the longest time, within a period, in which nobody entered a path.
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

// next returns when a path was first entered after a given time; false if it was not.
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
