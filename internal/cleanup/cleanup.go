// Package cleanup removes what calls have left in Redis: keys that are not held, tickets, and grants that may still arrive. It
// identifies them by value, and repeats each removal until it is confirmed, and for longer while a late grant may come.
//
// What comes in: a [Removal], by [Cleaner.Remove], and the outcome of each [Try]. What goes out: tries, to the function that
// sends them, and [Path.Removed] when a removal was confirmed.
package cleanup

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
)

// Removal says what to remove: all that a hold, and older holds, may have left.
type Removal struct {
	Path    Path
	Format  *protocol.Format
	Key     string
	Value   string        // of the hold, which is over or lost
	Number  uint64        // of the hold, as in Value: older holds have smaller numbers
	Leaving []string      // the tickets to remove from the queue, oldest first
	Lease   time.Duration // the longest lease of the hold

	Expired   clock.Instant // by then the key has expired, even without a removal, unless MayArrive
	Keep      clock.Instant // AtLeast keeps the path until then, if the key has Value; 0: it does not
	MayArrive bool          // a grant of the hold may still arrive, so one removal is not enough
	Watch     time.Duration // how long to go on removing a late grant, once Redis answers
}

// Path is told what was removed.
type Path interface {
	// Removed is called when the removal of a value was confirmed.
	Removed(value string, at clock.Instant)
}

// Call returns the command that removes it.
func (r Removal) Call(now clock.Instant) protocol.Call {
	return r.Format.Release(protocol.Release{
		Key: r.Key, Value: r.Value, Queued: true, Leaving: r.Leaving, Keep: r.Keep.After(now),
	})
}

// target identifies removals, the newest of which covers all. The readers and the writer of a path have different formats, so
// they have two targets: a reader's hold may be newer than a valid hold of the writer.
type target struct {
	format *protocol.Format
	key    string
	value  string // set if a removal does not remove older holds
}

func (r Removal) target() target {
	t := target{format: r.Format, key: r.Key}
	if !r.Format.RemovesOlder() {
		t.value = r.Value
	}
	return t
}

// Cleaner carries out removals. It is a source of a scheduler, and has its own workers that send.
//
// It may be called with a hold's mutex held. It calls other code without its own mutex.
type Cleaner struct {
	clock   clock.Clock
	soon    func(due clock.Instant)
	workers *scheduler.Senders[Try]

	mu     sync.Mutex
	all    map[target]*pending
	due    scheduler.Heap[*pending] // all that are not being removed at this moment
	recess clock.Instant            // no further worker starts before then
	closed bool
}

// Try is a removal that is being sent.
type Try struct {
	Removal
	cleaner *Cleaner
	of      *pending
	last    bool // the registry is closed: abandoned commands have arrived by now, or are not waited for
}

// New makes a cleaner. Soon must bring about a call of Turn, at due or before. Send sends removals, calls Answered of each, then
// returns.
func New(c clock.Clock, soon func(due clock.Instant), send func([]Try)) *Cleaner {
	cleaner := &Cleaner{clock: c, soon: soon, all: map[target]*pending{}}
	cleaner.workers = scheduler.NewSenders(cleaner.take, send)
	return cleaner
}

// Unconfirmed returns the number of targets whose removal Redis has not confirmed. Confirmed removals do not count: they are
// repeated only because a grant may arrive late, and a healthy server may get thousands of them.
func (c *Cleaner) Unconfirmed() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.all {
		if p.since == 0 { // mutant: confirmed removals count
			n++
		}
	}
	return n
}

// Remove begins a removal at once. Freed, unless it is nil, is called once: when Redis has confirmed the removal, or the key
// has expired, or nothing more is sent. Gone: the key is known to be gone. After Close, Remove does nothing and reports false.
func (c *Cleaner) Remove(r Removal, freed func(gone bool)) bool {
	p := &pending{Removal: r, freed: freed} // mutant: free too soon
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	if older := c.all[r.target()]; older != nil {
		older.merge(r, freed)
		p = older
	}
	c.recess = 0 // a blocked worker must not delay this removal
	c.unlockPut(p)
	return true
}

// Expedite begins at once a removal for which no caller waits. After Close it does nothing. If a removal of the same target is
// pending:
//
//   - A newer one covers this one, and is made due.
//   - An older one is extended to cover this one, too, is made due, and keeps its freed.
func (c *Cleaner) Expedite(r Removal) {
	c.mu.Lock()
	known := c.all[r.target()]
	switch {
	case c.closed:
		c.mu.Unlock()
	case known == nil:
		c.recess = 0 // see Remove
		c.unlockPut(&pending{Removal: r})
	case known.Number < r.Number:
		known.merge(r, known.freed)
		c.recess = 0 // see Remove
		c.unlockPut(known)
	case known.heap == 0: // its removal is under way: it has just been executed, or another one follows
		c.mu.Unlock()
	default:
		c.unlockPut(known)
	}
}

// unlockPut makes a removal due, starts a worker, and unlocks the mutex.
func (c *Cleaner) unlockPut(p *pending) {
	now := c.clock.Now()
	c.all[p.target()] = p
	c.due.Put(p, now)
	c.soon(c.unlockWork(now))
}

// Turn starts a worker if removals are due. The scheduler calls it.
func (c *Cleaner) Turn(now clock.Instant) (again clock.Instant) {
	c.mu.Lock()
	return c.unlockWork(now)
}

// unlockWork starts a worker if something is due, and unlocks the mutex. It returns when to look again. A worker goes on until
// nothing is due. If a server that does not answer blocks the worker, the next worker starts a moment later.
func (c *Cleaner) unlockWork(now clock.Instant) (again clock.Instant) {
	if next := max(c.due.Next(), c.recess); next > now { // Never if there is none
		c.mu.Unlock()
		return next
	}
	again = now.Add(pace)
	c.recess = again
	c.mu.Unlock()
	c.workers.Hire(1) // takes its own mutex, then this one
	return again
}

// RetryNow makes all unanswered removals due, since Redis answers again.
func (c *Cleaner) RetryNow() {
	c.mu.Lock()
	now := c.clock.Now()
	c.due.Reset(func(p *pending, was clock.Instant) clock.Instant {
		if p.since == 0 {
			return min(was, now)
		}
		return was
	})
	c.mu.Unlock()
	c.soon(now)
}

// take gives a worker the removals that are due; after Close all of them.
func (c *Cleaner) take(most int) (tries []Try) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	for c.due.Len() > 0 && len(tries) < most && (c.closed || c.due.Next() <= now) {
		p := c.due.Pop()
		tries = append(tries, Try{p.Removal, c, p, c.closed})
	}
	if len(tries) == 0 {
		c.recess = 0
	}
	return tries
}

// Call returns the command to send now.
func (t Try) Call() protocol.Call { return t.Removal.Call(t.cleaner.clock.Now()) }

// Answered handles the outcome of the try. With an error it may not have been executed.
func (t Try) Answered(at clock.Instant, err error) {
	if err == nil {
		t.Path.Removed(t.Value, at)
	}
	c := t.cleaner
	c.mu.Lock()
	freed, again := c.answered(t, err)
	c.mu.Unlock()
	c.soon(again)
	if freed != nil {
		freed(err == nil)
	}
}

// answered decides when the next try follows, if any. It returns the function to call now, if any. The caller holds the mutex.
func (c *Cleaner) answered(t Try, err error) (freed func(gone bool), again clock.Instant) {
	p, now := t.of, c.clock.Now()
	again = clock.Never
	if t.Value != p.Value || c.all[p.target()] != p { // see merge
		return nil, again
	}
	var pause time.Duration
	var over bool
	if err == nil {
		pause, over = p.confirmed(now)
	} else {
		pause, over = p.unanswered(now)
	}
	over = over || c.closed && (t.last || !p.MayArrive)
	if over {
		delete(c.all, p.target())
		c.due.Remove(p)
	} else {
		// At most a batch of removals in each pause. Once Redis answers again, RetryNow makes all unanswered ones due at once.
		again = now.Add(c.paced(pause))
		c.due.Put(p, again)
	}
	if err == nil || over || now >= p.Expired {
		freed, p.freed = p.freed, nil
	}
	return freed, again
}

// paced returns the pause for one removal, which grows with the number of removals. The caller holds the mutex.
func (c *Cleaner) paced(pause time.Duration) time.Duration {
	return pause * time.Duration(max(1, len(c.all)/scheduler.Batch))
}

// LongestPause returns the longest pause before a removal that fails now is tried again.
func (c *Cleaner) LongestPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paced(clock.MostPause)
}

// Close sends all removals once more. New removals are refused from now on.
func (c *Cleaner) Close() {
	c.mu.Lock()
	c.closed = true
	left := c.due.Len()
	c.mu.Unlock()
	c.workers.Hire(left)
	c.workers.Close()
}

// Wait returns, after Close, when nothing more is sent.
func (c *Cleaner) Wait() { c.workers.Wait() }
