package transport

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ownConn is a connection of a shard for commands that come one at a time. Rueidis serves a shared connection with two
// goroutines, which is best for many commands at once; for a single one the wake-ups of goroutines and threads cost more than
// everything else. Here the caller of a command writes and reads itself.
//
// To give a command up, its bound closes the connection, which ends the caller's read at once. Rueidis marks a connection as
// broken before it closes it, and from then on neither sends on it nor keeps it in its pool. So no command can get the reply to
// one that was given up. The server may still execute that command, before or after later commands on other connections: as
// with a lost reply, the outcome is not known.
//
// No goroutine reads an idle connection, so only the next command notices that it was closed. Therefore it is used only for
// ownFor after its last reply; after that it must first answer a question. It is dropped when the shard becomes suspect, or any
// of its connections breaks, since it may lead to a deposed master. Once a second a command goes over the shared connections,
// to notice when they break because of another server; and one of them is asked for its age, see compare.
//
// It is only for plain rueidis clients of one address. A client of Sentinel does not close such a connection when it changes to
// another master, and a wrapper may want to see each command.
type ownConn struct {
	rueidis.DedicatedClient
	made  clock.Instant // when making it began
	since clock.Instant // when it was installed
	busy  atomic.Bool   // in use, or closed
	unfit atomic.Bool   // its user must close it
	heard clock.Instant // when the newest reply came; guarded by busy
}

type ownConns struct {
	shard     *Shard
	possible  bool // the client is suitable, see isSingle
	conn      atomic.Pointer[ownConn]
	preparing atomic.Bool   // a goroutine makes or checks it
	owed      atomic.Bool   // the next obtaining command goes over a shared connection, see tend
	again     clock.Instant // not made again before this; guarded by preparing
	tended    atomic.Bool   // the timer of tend runs

	_      cacheLine
	inARow atomic.Int32 // how many commands came one at a time, without a pause
	_      cacheLine
}

const (
	ownRun     = 4                                 // after this many commands one at a time, without a pause, it is used
	ownMake    = 24                                // after this many it is made
	ownFor     = belief.Tick + 2*belief.HealthyFor // after its last reply it is used without a check, while the shard is healthy
	ownTend    = belief.Connect                    // how often tend runs
	ownIdle    = belief.Old / 3                    // it is closed after this time without a reply
	ownLife    = belief.Old                        // rueidis renews no credentials on it, and the address may lead elsewhere by then
	ownPause   = 10 * belief.Again                 // after none could be made
	ownLimit   = belief.Old / 3                    // longer waits use the shared ones, which rueidis closes when so long silent
	ownNear    = belief.Tick / 10                  // with longer round trips it gains too little
	mostPooled = 8                                 // pooled connections that are tried to get a new one
)

// isSingle reports whether a client can have an own connection.
func isSingle(client rueidis.Client) bool {
	return reflect.TypeOf(client).String() == "*rueidis.singleClient"
}

// take returns the shard's own connection, if there is one, for a command that is the only one under way. The caller must call
// leave.
func (o *ownConns) take(p *Wait, c *protocol.Call, now clock.Instant, of *bound) *ownConn {
	if !o.possible || p.Limit > ownLimit || o.shard.RoundTrip().Base >= ownNear {
		return nil
	}
	if of.nth > 1 {
		if o.inARow.Load() != 0 { // a command that counts meanwhile is not counted: the run begins later
			o.inARow.Store(0)
		}
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
		o.inARow.Store(0)
	}
	return nil
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

// leave undoes take. Drop marks the connection as unfit before it tries to take it, so one of the two closes it.
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

// doOwn is Do over the own connection. It passes no context that can end: with one rueidis would start goroutines for the
// connection. The command counts as blocking, so that rueidis closes the connection without waiting for it.
func (s *Shard) doOwn(w *ownConn, p *Wait, c *protocol.Call, end *bound, a *Reply) {
	t := s.client
	end.begin(p, a.Sent, w)
	a.RedisResult = c.Repair(end, t.redis, c.SendOnce(context.Background(), w, true))
	a.ReadBack = c.ReadBack()
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	over := end.stop() // from here on the bound closes nothing
	err := a.Error()
	if over || !fault.Answered(err) {
		s.own.drop() // it is closed or broken
	}
	if over && !fault.Answered(err) {
		a.RedisResult = rueidis.NewErrorResult(fault.NoAnswer)
	}
	s.takeIn(p, excused, a)
	w.heard = a.Came
	w.leave()
}

// prepare makes an own connection, or checks the existing one, in the background. That may hang when the client has no free
// connection, but no command waits for it.
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
			if w = o.procure(now); w == nil {
				o.again = o.shard.client.Clock.Now().Add(ownPause)
				return
			}
			o.install(w)
		case w.take():
			if _, err := o.describe(w); err != nil {
				o.drop()
			}
			w.leave()
		}
	}()
}

// procure gets a new connection from the client. Connections from the client's pool may be in any state, and use another
// database; they are put back. If the pool is full, no new connection can be made.
func (o *ownConns) procure(now clock.Instant) *ownConn {
	var pooled []func()
	giveBack := func() {
		for _, one := range pooled {
			one()
		}
	}
	defer giveBack() // calling it twice is harmless
	for len(pooled) < mostPooled {
		alarm := time.AfterFunc(lateReply, giveBack) // otherwise procure might wait for what it holds
		client, back := o.shard.client.redis.Dedicate()
		if !alarm.Stop() {
			back()
			return nil
		}
		w := &ownConn{DedicatedClient: client, made: now}
		info, err := o.describe(w)
		age, err2 := ageOf(info)
		err = fault.Join(err, err2)
		if err != nil {
			client.Close()
			return nil
		}
		if age <= now.Until(w.heard)+time.Second && o.alike(info) { // CLIENT INFO has the age in whole seconds
			w.since = w.heard
			return w
		}
		pooled = append(pooled, func() {
			if o.shard.IsSuspect(o.shard.client.Clock.Now()) { // it may lead to a former master, and nobody looks at the pool again
				client.Close()
			}
			back()
		})
	}
	return nil
}

// describe asks the server for CLIENT INFO on an own connection, which the caller has taken.
func (o *ownConns) describe(w *ownConn) (info string, err error) {
	t := o.shard.client
	now := t.Clock.Now()
	end := t.bound(&Wait{Ctx: context.Background(), Limit: o.shard.RoundTrip().Plus(lateReply)}, now, w)
	info, err = w.Do(context.Background(), w.B().Arbitrary("CLIENT", "INFO").Blocking()).ToString()
	if end.stop() {
		err = fault.NoAnswer
	}
	w.heard = t.Clock.Now()
	return info, err
}

// install makes a connection the shard's own, unless it came too late.
func (o *ownConns) install(w *ownConn) {
	s := o.shard
	if w.made.Until(s.client.Clock.Now()) >= s.RoundTrip().Connect() {
		w.discard()
		return
	}
	o.conn.Store(w)
	if s.belief.Closed() || s.IsSuspect(s.client.Clock.Now()) || !s.belief.Warm() { // the same event has dropped the previous one
		o.drop()
	}
	if o.tended.CompareAndSwap(false, true) {
		time.AfterFunc(ownTend, o.tend)
	}
}

// tend closes the own connection when it is idle or old. It makes the next obtaining command go over a shared connection, not a
// release, for which others may wait; if no obtaining command has come since the last time, the next few commands do.
func (o *ownConns) tend() {
	w := o.conn.Load()
	if w == nil {
		// Install stores conn before it reads tended: so either this sees the connection, or install finds tended false.
		o.tended.Store(false)
		if w = o.conn.Load(); w == nil || !o.tended.CompareAndSwap(false, true) {
			return
		}
	}
	now := o.shard.client.Clock.Now()
	old, used := w.made.Until(now) >= ownLife, true
	if !old && w.take() {
		idle := w.heard.Until(now)
		old, used = idle >= ownIdle, idle < ownTend
		w.leave()
	}
	if o.owed.Swap(true) {
		o.inARow.Store(0)
	}
	if old {
		o.drop()
	} else if used {
		go o.compare(w)
	}
	time.AfterFunc(ownTend, o.tend)
}

// compare drops the own connection when a shared one is younger and so may lead to another server: rueidis silently replaces a
// connection that is closed while nothing is under way.
func (o *ownConns) compare(w *ownConn) {
	info, err := o.shard.client.describe()
	age, err2 := ageOf(info)
	if err != nil || err2 != nil || age+time.Second >= w.since.Until(o.shard.client.Clock.Now()) { // ages are in whole seconds
		return
	}
	if o.conn.CompareAndSwap(w, nil) {
		w.discard()
	}
}

// alike reports whether a connection with this CLIENT INFO uses the same database as the shared ones.
func (o *ownConns) alike(info string) bool {
	shared := o.shard.client.database()
	return shared != "" && databaseIn(info) == shared
}

// database returns the database of the shared connections; empty if not known. It depends only on the client's options, so it
// is asked for once.
func (t *Client) database() string {
	if known := t.selected.Load(); known != nil {
		return *known
	}
	info, err := t.describe()
	number := databaseIn(info)
	if err == nil || !fault.Transient(err) { // also if the server does not say
		t.selected.Store(&number)
	}
	return number
}

func (t *Client) describe() (info string, err error) {
	return t.Ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().Arbitrary("CLIENT", "INFO").Build())
	}).ToString()
}

func databaseIn(info string) string {
	_, after, _ := strings.Cut(info, " db=")
	number, _, _ := strings.Cut(after, " ")
	return number
}
