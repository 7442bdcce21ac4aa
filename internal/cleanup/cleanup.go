// Package cleanup removes what calls have left in Redis although nobody holds it: keys, tickets, and grants that may yet arrive.
// It knows them by value, and removes them again and again until that is confirmed.
package cleanup

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
)

// Removal says what to remove: all that one hold may have left, and older ones with it.
type Removal struct {
	Path    Path
	Format  *protocol.Format
	Key     string
	Value   string           // names the hold, which is over or lost
	Number  uint64           // of the hold, which its value has: an older one has a smaller number
	Leaving protocol.Leaving // what to remove from the queue
	Lease   time.Duration    // the longest that the hold has had

	Expired   clock.Instant // by then the key has expired, even if no command arrives, unless MayArrive
	Keep      clock.Instant // the path is to stay taken until then, if the key is that of Value; 0: it is not
	MayArrive bool          // a grant of the hold may arrive yet, so one removal is not enough
	Watch     time.Duration // for how long to look out for it, once Redis answers
}

// Path hears what was removed.
type Path interface {
	// Removed tells that the removal of a value was confirmed at some time.
	Removed(value string, at clock.Instant)
}

// Call is the command that removes it.
func (r Removal) Call(now clock.Instant) protocol.Call {
	return r.Format.Release(protocol.Release{
		Key: r.Key, Value: r.Value, Queued: true, Leaving: r.Leaving, Keep: r.Keep.After(now),
	})
}

// place is what two removals have in common when the newer one stands for both. The reading and the writing half of a path have
// two formats, so they are two: a hold of one may be younger than a valid one of the other.
type place struct {
	format *protocol.Format
	key    string
	value  string // where a removal removes nothing older
}

func (r Removal) place() place {
	p := place{format: r.Format, key: r.Key}
	if !r.Format.RemovesOlder() {
		p.value = r.Value
	}
	return p
}

// Cleaner removes what it is told to. It is a source of a scheduler, and has workers of its own that send.
//
// The mutex of a hold may be held while it is called. It calls nobody with its own.
type Cleaner struct {
	clock   clock.Clock
	soon    func(due clock.Instant)
	workers *scheduler.Senders[Try]

	mu     sync.Mutex
	all    map[place]*pending
	due    scheduler.Heap[*pending] // all but those that are being removed at this moment
	recess clock.Instant            // no further worker starts before
	closed bool
}

// Try is one removal that is being sent.
type Try struct {
	Removal
	cleaner *Cleaner
	of      *pending
	last    bool // the registry is closed: what was given up has arrived by now, or is not waited for
}

// New is a cleaner with nothing to remove. Soon has it called by a time, as a source. Send sends removals, tells each of them
// what became of it, and then returns.
func New(c clock.Clock, soon func(due clock.Instant), send func([]Try)) *Cleaner {
	cleaner := &Cleaner{clock: c, soon: soon, all: map[place]*pending{}}
	cleaner.workers = scheduler.NewSenders(cleaner.take, send)
	return cleaner
}

// Len is for how many places there is something to remove.
func (c *Cleaner) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// Remove removes at once. Freed, unless it is nil, is called once: when Redis has confirmed a removal, or the key has expired,
// or nothing more is sent; gone tells that the key is known to be gone. Remove reports false, and does nothing, after Close.
func (c *Cleaner) Remove(r Removal, freed func(gone bool)) bool {
	p := &pending{Removal: r, freed: freed} // mutant: free too soon
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	if older := c.all[r.place()]; older != nil {
		older.merge(r, freed)
		p = older
	}
	c.recess = 0 // a worker that is held up must not hold this one up
	c.unlockPut(p)
	return true
}

// Expedite removes at once what may be in a place, and is nobody's to wait for. A newer removal that is known there removes it,
// too. An older one does not: it becomes that of both, and tells of its end to the same caller. It reports false, and does
// nothing, after Close.
func (c *Cleaner) Expedite(r Removal) bool {
	c.mu.Lock()
	known := c.all[r.place()]
	switch {
	case c.closed:
		c.mu.Unlock()
		return false
	case known == nil:
		c.recess = 0 // see Remove
		c.unlockPut(&pending{Removal: r})
	case known.Number < r.Number:
		known.merge(r, known.freed)
		c.recess = 0 // see Remove
		c.unlockPut(known)
	case known.heap == 0: // its removal is under way; another one follows, or it has just been executed
		c.mu.Unlock()
	default:
		c.unlockPut(known)
	}
	return true
}

// unlockPut has a worker remove what is pending, and unlocks the mutex.
func (c *Cleaner) unlockPut(p *pending) {
	now := c.clock.Now()
	c.all[p.place()] = p
	c.due.Put(p, now)
	c.soon(c.unlockWork(now))
}

// Turn has a worker remove what is due, for the scheduler.
func (c *Cleaner) Turn(now clock.Instant) (again clock.Instant) {
	c.mu.Lock()
	return c.unlockWork(now)
}

// unlockWork has a worker start, if something is due, and unlocks the mutex. It returns when to look again. The worker goes on
// until nothing is due; when it is held up by a server that does not answer, the next one comes a moment later.
func (c *Cleaner) unlockWork(now clock.Instant) (again clock.Instant) {
	if next := max(c.due.Next(), c.recess); next > now { // never, when there is none
		c.mu.Unlock()
		return next
	}
	again = now.Add(pace)
	c.recess = again
	c.mu.Unlock()
	c.workers.Hire(1) // which takes its mutex first, and then this one
	return again
}

// Hasten makes everything due that Redis has not answered to, since it answers again.
func (c *Cleaner) Hasten() {
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

// take gives a worker what is to be removed now. After Close that is everything.
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

// Call is the command to send now.
func (t Try) Call() protocol.Call { return t.Removal.Call(t.cleaner.clock.Now()) }

// Answered takes in what became of the try. An error says that it is not known to have been executed.
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

// answered decides when the next try follows, if any. It returns what is to be called now, if anything. The caller holds the
// mutex.
func (c *Cleaner) answered(t Try, err error) (freed func(gone bool), again clock.Instant) {
	p, now := t.of, c.clock.Now()
	again = clock.Never
	if t.Value != p.Value || c.all[p.place()] != p { // see merge
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
		delete(c.all, p.place())
		c.due.Remove(p)
	} else {
		// No more than a batch of them in each pause, or, when Redis begins to answer, as fast as it does: see Hasten.
		again = now.Add(c.paced(pause))
		c.due.Put(p, again)
	}
	if err == nil || over || now >= p.Expired {
		freed, p.freed = p.freed, nil
	}
	return freed, again
}

// paced is a pause for one removal, made longer by how many there are. The caller holds the mutex.
func (c *Cleaner) paced(pause time.Duration) time.Duration {
	return pause * time.Duration(max(1, len(c.all)/scheduler.Batch))
}

// LongestPause is how long a removal that fails now is at rest, at most, before it is tried again.
func (c *Cleaner) LongestPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paced(clock.MostPause)
}

// Close has everything removed once more. Nothing is taken from now on.
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
