package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ownConn is a connection of a node for commands that come one at a time. Rueidis serves a shared connection with two
// goroutines, which is best for many commands at once; for a single one the wake-ups of goroutines and threads cost more than
// everything else. Here the caller of a command writes and reads itself.
//
// To give a command up, its bound closes the connection, which ends the caller's read at once. Rueidis marks a connection as
// broken before it closes it, and from then on neither sends on it nor keeps it in its pool. So no command can get the reply to
// one that was given up. The server may still execute that command, before or after later commands on other connections: as
// with a lost reply, the outcome is not known.
//
// No goroutine reads an idle connection, so only the next command notices that it was closed. Therefore it is used only for
// ownFor after its last reply; after that it must first answer a question. It is dropped when the node becomes suspect, or any
// of the node's connections breaks, since it may lead to a deposed master. To notice such a break, one command a second goes
// over the shared connections; and one of these is asked for its age, see hasYounger.
//
// It is only for plain rueidis clients of one address. A client of Sentinel does not close such a connection when it changes to
// another master, and a wrapper may want to see each command.
type ownConn struct {
	*dedicated
	busy  atomic.Bool   // in use, or closed
	unfit atomic.Bool   // its user must close it
	heard clock.Instant // when the newest reply came; guarded by busy
}

type ownConns struct {
	possible bool // the client is a plain one, of one address
	judge    *judge
	dial     func() *dedicated             // a new connection; nil: there is none
	describe func() (info string, _ error) // asks for CLIENT INFO of a shared connection

	conn      atomic.Pointer[ownConn]
	preparing atomic.Bool   // a goroutine makes or checks it
	owed      atomic.Bool   // the next obtaining command goes over a shared connection, see tend
	failed    int           // attempts to make one, in a row; guarded by preparing, as is again
	again     clock.Instant // none is made before this

	_      cacheLine
	inARow atomic.Int32 // how many commands came one at a time, without a pause
	_      cacheLine
}

const (
	// Half of these: connections are made for programs that lock now and then. Twice: busy programs get theirs later.
	ownRun  = 4  // after this many commands one at a time, without a pause, it is used
	ownMake = 24 // after this many it is made

	// ownFor is how long after its last reply the connection is used without a check, while the node is healthy.
	// Half of it: it is checked between two commands of a program that pauses for as long as timers of a busy machine are late.
	// Twice: the first command after a pause may find it closed, and fails.
	ownFor = belief.Tick + 2*belief.HealthyFor

	// ownTend is how often tend runs: each time one command, and a question, go over the shared connections.
	// Twice: it is noticed a second later that these broke or were closed.
	ownTend = belief.Connect

	// ownRest is how long the connection may have no reply: then it is closed, and calls that may wait longer do not use it.
	// Rueidis closes a shared connection that is silent for longer than that, 10 s by default.
	ownRest = belief.Old / 3

	// ownNear: where a round trip takes longer, the connection gains too little.
	ownNear = belief.Tick / 10
)

// take returns the node's own connection, if there is one, and if the command is the only one under way. Used is how many
// bounds are in use. The caller must call leave.
func (o *ownConns) take(p *Wait, c *protocol.Call, now clock.Instant, used int) *ownConn {
	if !o.possible || p.Limit > ownRest || o.judge.RoundTrip().Base >= ownNear {
		return nil
	}
	if used > 1 {
		o.interrupt()
		return nil
	}
	n := o.inARow.Add(1)
	if n < ownRun || c.DropIfAbandoned && o.owed.Load() && o.owed.Swap(false) {
		return nil
	}
	enough := int32(ownRun)
	switch w := o.conn.Load(); {
	case w == nil:
		enough = ownMake
	case w.take():
		if now < w.heard.Add(ownFor) {
			return w
		}
		w.leave()
	}
	if n == enough {
		o.prepare(now)
	} else if n > enough && !o.preparing.Load() {
		o.interrupt()
	}
	return nil
}

// interrupt restarts the count of commands that come one at a time. A command that is counted at the same moment may be lost
// from the count, which only delays the run. Mostly the count is zero already, and nothing is written.
func (o *ownConns) interrupt() {
	if o.inARow.Load() != 0 {
		o.inARow.Store(0)
	}
}

// take takes the connection, if it is not in use.
func (w *ownConn) take() bool {
	if !w.busy.CompareAndSwap(false, true) {
		return false
	}
	if w.unfit.Load() {
		w.leave()
		return false
	}
	return true
}

// leave undoes take. Exactly one of leave and discard closes an unfit connection:
//
//	leave: busy = false                          | discard: unfit = true, takes it, closes it
//	discard: unfit = true, finds it busy         | leave: busy = false, finds it unfit, closes it
func (w *ownConn) leave() {
	w.busy.Store(false)
	if w.unfit.Load() {
		w.discard()
	}
}

// discard closes the connection, or leaves that to its user.
func (w *ownConn) discard() {
	w.unfit.Store(true)
	if w.busy.CompareAndSwap(false, true) {
		go w.Close()
	}
}

func (o *ownConns) drop() {
	if w := o.conn.Swap(nil); w != nil {
		w.discard()
	}
}

// doOwn is Do over the own connection. It passes no context that can end, and the command counts as blocking: see dedicated.ask.
func (s *Node) doOwn(w *ownConn, p *Wait, c *protocol.Call, end *bound, a *Reply) {
	t, stopped := s.client, false
	defer s.bounds.free(end)
	defer func() {
		if !stopped { // a method of the caller's context has panicked
			s.own.drop()
		}
		w.leave()
	}()
	s.bounds.begin(end, p, a.Sent, w.dedicated)
	a.RedisResult = c.Repair(end, t.redis, c.SendOnce(context.Background(), w, true))
	a.ReadBack = c.ReadBack()
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	over := end.stop() // from here on the bound closes nothing
	stopped = true
	err := a.Error()
	if over || !fault.Answered(err) {
		s.own.drop() // it is closed or broken
	}
	if over && !fault.Answered(err) {
		a.RedisResult = rueidis.NewErrorResult(fault.NoAnswer)
	}
	s.takeIn(p, excused, a)
	w.heard = a.Came
}

// prepare makes an own connection, or checks the existing one, in the background.
func (o *ownConns) prepare(now clock.Instant) {
	if !o.preparing.CompareAndSwap(false, true) {
		return
	}
	w := o.conn.Load()
	if w == nil && now < o.again {
		o.preparing.Store(false)
		return
	}
	go func() {
		defer o.preparing.Store(false)
		switch {
		case w == nil:
			o.make()
		case w.take():
			if w.ask(o.judge.RoundTrip().Plus(belief.Silence), "CLIENT", "INFO").Error() != nil {
				o.drop()
			}
			w.heard = o.judge.clock.Now()
			w.leave()
		}
	}()
}

func (o *ownConns) make() {
	made := o.dial()
	now := o.judge.clock.Now()
	if made == nil || !made.told {
		o.failed++
		// Up to 17 min, since the pool may have only old ones; short at first, since the machine may only have been busy.
		o.again = now.Add(ownTend << min(o.failed, 10))
		made.end()
		return
	}
	o.failed = 0
	w := &ownConn{dedicated: made, heard: now}
	o.conn.Store(w)
	if o.judge.belief.Closed() || o.judge.IsSuspect(now) || !o.judge.belief.Warm() { // drop may have come before it was stored
		o.drop()
	}
	time.AfterFunc(ownTend, func() { o.tend(w) })
}

// tend closes the own connection when it is idle or old, or a shared one is younger. It also makes the next obtaining command go
// over a shared connection; not a release, since others may wait for that. If no obtaining command has come since the last time,
// the next few commands of any kind go over the shared ones.
func (o *ownConns) tend(w *ownConn) {
	if o.conn.Load() != w {
		return
	}
	now := o.judge.clock.Now()
	old, used := w.made.Until(now) >= belief.Old, true // rueidis renews no credentials on it
	if !old && w.take() {
		idle := w.heard.Until(now)
		old, used = idle >= ownRest, idle < ownTend
		w.leave()
	}
	if o.owed.Swap(true) {
		o.interrupt()
	}
	if old || used && o.hasYounger(w) {
		if o.conn.CompareAndSwap(w, nil) {
			w.discard()
		}
		return
	}
	time.AfterFunc(ownTend, func() { o.tend(w) })
}

// hasYounger reports whether a shared connection is younger than the own one, and so may lead to another server: rueidis
// silently replaces a connection that is closed while nothing is under way.
func (o *ownConns) hasYounger(w *ownConn) bool {
	info, err := o.describe()
	age, err2 := ageOf(info)
	return err == nil && err2 == nil && age+time.Second < w.made.Until(o.judge.clock.Now()) // ages are in whole seconds
}
