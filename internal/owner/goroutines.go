package owner

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// GoroutineScan lists the living goroutines of a process, one list at a time. The runtime prints their stacks with their numbers,
// and uses no number twice. A list stops the program for 8 to 20 ms per thousand goroutines, with stacks of up to a dozen calls.
// So scans take a thousandth of the time at most.
type GoroutineScan struct {
	mu     sync.Mutex
	next   time.Time // no list is made before this
	counts int
	each   int // bytes per stack that were enough last time: with fewer the program would be stopped twice
}

// A pause is this many times as long as a list took, but mostRest at most: the process may have stood still meanwhile.
const (
	pauses   = 1000
	mostRest = 10 * time.Minute
)

// restAfter returns the pause after a list that took this long.
func restAfter(took time.Duration) time.Duration { return pauses * min(took, mostRest/pauses) }

// Look returns the living goroutines, and for how long not to call it again. If it is too early, looked is false. Goroutines is
// nil if there are more than limit, or the runtime prints stacks in an unknown form.
func (c *GoroutineScan) Look(limit int) (goroutines map[ID]bool, rest time.Duration, looked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if rest = c.next.Sub(began); rest > 0 {
		return nil, rest, false
	}
	if runtime.NumGoroutine() <= limit {
		c.counts++
		goroutines = c.living()
	}
	now := time.Now()
	rest = restAfter(now.Sub(began))
	c.next = now.Add(rest)
	return goroutines, rest, true
}

// Counts returns how often the program was stopped.
func (c *GoroutineScan) Counts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// living returns all goroutines of the process, also those outside of the bubble of a test with testing/synctest; nil if the
// runtime prints stacks in an unknown form.
func (c *GoroutineScan) living() map[ID]bool {
	n := runtime.NumGoroutine()
	const usual, most = 1 << 10, 1 << 13
	for each := max(c.each, usual); each <= most; each *= 2 {
		c.each = each
		buf := make([]byte, 1<<16+n*each)
		if printed := runtime.Stack(buf, true); printed < len(buf) { // otherwise some may be missing
			return goroutinesOf(buf[:printed])
		}
	}
	return nil
}

// goroutinesOf reads the numbers from stacks, each of which begins with a line like "goroutine 42 [running]:".
func goroutinesOf(stacks []byte) map[ID]bool {
	all := map[ID]bool{}
	for line := range bytes.Lines(stacks) {
		rest, ok := bytes.CutPrefix(line, []byte("goroutine "))
		if !ok {
			continue
		}
		number, _, _ := bytes.Cut(rest, []byte(" "))
		if id, err := strconv.ParseUint(string(number), 10, 64); err == nil {
			all[ID(id)] = true
		}
	}
	if !all[Calling()] {
		return nil
	}
	return all
}
