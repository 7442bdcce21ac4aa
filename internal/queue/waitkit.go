package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// waitKit has what a call needs while it waits, for reuse by later calls: without it two registries that take turns need 38
// allocations for a lock of each, with it 28, see BenchmarkTakingTurns. Only the mailbox is for other goroutines, too. One of
// them may still know it from an earlier call: a message for that names another number, and a wake-up costs the later call one
// look, which finds no mail.
type waitKit struct {
	timer  *time.Timer // stopped
	box    mailbox
	ticket ticket
	course course
}

// waitKit returns a kit, reused if possible.
func (all *Shared) waitKit() *waitKit {
	if s, ok := all.kits.Get().(*waitKit); ok {
		return s
	}
	s := &waitKit{timer: time.NewTimer(time.Hour), box: mailbox{came: make(chan struct{}, 1)}}
	s.timer.Stop()
	return s
}

func (all *Shared) putBack(s *waitKit) {
	s.timer.Stop()
	s.box.empty()
	s.ticket, s.course = ticket{}, course{}
	all.kits.Put(s)
}

// course records how a call went, for its result.
type course struct {
	waits   bool          // the local half knows that this call waits
	served  bool          // another process granted the hold
	slept   bool          // the call has waited for another owner's hold
	lapses  clock.Instant // when that hold's lease ends, as last seen; 0: not known
	wakeups Woken
}

// how returns how a call got the lock, by a try that was sent at sent.
func (c *course) how(sent clock.Instant) Outcome {
	switch {
	case c.served:
		return Granted
	case c.lapses != 0 && c.lapses <= sent:
		return FoundExpired
	case c.slept:
		return FoundFree
	default:
		return Free
	}
}

// sleeps notes that the call waits for another hold. Left is the rest of its lease at seen; 0: no end.
func (c *course) sleeps(seen clock.Instant, left time.Duration) {
	c.slept, c.lapses = true, 0
	if left > 0 {
		c.lapses = seen.Add(left)
	}
}

// woke counts what ended a wait for another owner's hold. Messages are counted when they are read: one may come before the call
// sleeps.
func (c *course) woke(why reason) {
	switch why {
	case byMail:
	case byWakeup:
		c.wakeups.Changes++
	case byTime:
		c.wakeups.Polls++
	}
}
