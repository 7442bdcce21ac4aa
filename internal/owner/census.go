package owner

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Census counts the goroutines of a process, one count at a time. The runtime prints the stacks of those that live, with their
// numbers, and no number is used twice. For that it stops the program, for 8 to 20 ms per thousand goroutines with stacks of
// up to a dozen calls: for a thousandth of the time at most.
type Census struct {
	mu     sync.Mutex
	next   time.Time // no count begins before
	counts int
	each   int // bytes of a stack that sufficed: with fewer the program would be stopped more than once
}

// A pause is so many times as long as a count took, but not longer than mostRest: the process may have stood still meanwhile.
const (
	pauses   = 1000
	mostRest = 10 * time.Minute
)

// restAfter is for how long no count follows one that took so long.
func restAfter(took time.Duration) time.Duration { return pauses * min(took, mostRest/pauses) }

// Look returns the goroutines that there are, and for how long no count is to follow; or none, when it is too early. They are nil
// when they are not known: there are more than limit, or the runtime prints them in a way that is not known here.
func (c *Census) Look(limit int) (goroutines map[ID]bool, rest time.Duration, looked bool) {
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

// Counts is how often the program was stopped.
func (c *Census) Counts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// living are all of this process, also those outside of the bubble of a test with testing/synctest. It is nil when
// that is not known: the runtime prints them in a way that is not known here.
func (c *Census) living() map[ID]bool {
	n := runtime.NumGoroutine()
	const usual, most = 1 << 10, 1 << 13
	for each := max(c.each, usual); each <= most; each *= 2 {
		c.each = each
		buf := make([]byte, 1<<16+n*each)
		if printed := runtime.Stack(buf, true); printed < len(buf) { // or else some may be missing
			return goroutinesOf(buf[:printed])
		}
	}
	return nil
}

// goroutinesOf takes the numbers from stacks, each of which begins with a line like "goroutine 42 [running]:".
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
