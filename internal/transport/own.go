package transport

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ownConn is a connection of a shard for commands that come one at a time. Rueidis leaves a connection that all share to two
// goroutines of its own, which is best for many commands at once; a single one costs more wake-ups of goroutines and threads
// than everything else. Here the caller of a command writes and reads by itself.
//
// To give a command up, its bound closes the connection, which ends the caller's read at once. Rueidis marks a connection as
// broken before it closes it, and from then on neither sends anything on it nor keeps it in its pool. So nobody can take the
// reply to a command that was given up for that to his own. The server may still execute that command, before or after what
// follows on other connections: as when a reply is lost, the caller knows nothing.
//
// Nobody reads an idle connection, so that it was closed shows with the next command only. Therefore it is used for ownFor after
// its own last reply, and then once it has answered a question. When the shard becomes suspect, or any of its connections breaks,
// it is dropped: what is said of deposed masters holds for it, too. And every second a command goes over the shared ones, so that
// it is noticed when they break because another server is there; and one of them is asked for its age, see compare.
//
// It is for clients of one address, as rueidis makes them. One of Sentinel does not close such a connection when it changes to
// another master, and a wrapper may want to see each command.
type ownConn struct {
	rueidis.DedicatedClient
	made  clock.Instant // not before it
	since clock.Instant // it was there then
	busy  atomic.Bool   // somebody uses it, or it is closed
	unfit atomic.Bool   // whoever uses it closes it
	heard clock.Instant // when the newest reply came; guarded by busy
}

type ownConns struct {
	shard     *Shard
	possible  bool // the client is one for which there may be one
	conn      atomic.Pointer[ownConn]
	preparing atomic.Bool   // a goroutine makes it, or asks it something
	owed      atomic.Bool   // the next command that obtains a lock is not for it, see tend
	again     clock.Instant // not before is another one made; guarded by preparing
	tended    atomic.Bool   // a timer runs that looks after it

	_      cacheLine
	inARow atomic.Int32 // how many commands their callers have sent one at a time, without a pause
	_      cacheLine
}

const (
	ownRun     = 4                      // so many commands must have come one at a time, without a pause, for it to be used
	ownMake    = 24                     // and for it to be made
	ownFor     = 120 * time.Millisecond // after its own last reply it is used, while the shard is healthy
	ownTend    = time.Second            // how often it is looked after
	ownIdle    = 10 * time.Second       // without a reply for so long it is closed
	ownLife    = 30 * time.Second       // rueidis renews no credentials on it, and the address may lead elsewhere meanwhile
	ownPause   = 10 * time.Minute       // after none was to be had
	ownLimit   = 10 * time.Second       // longer waits are for the shared ones, which rueidis gives up when silent for as long
	ownNear    = 10 * time.Millisecond  // where a round trip takes as long, microseconds are not worth a connection
	mostPooled = 8                      // connections of the client's pool that are looked at to get a new one
)

// isSingle tells whether a client is one for which there may be an own connection.
func isSingle(client rueidis.Client) bool {
	return reflect.TypeOf(client).String() == "*rueidis.singleClient"
}

// take returns the shard's own connection, if there is one, for a command that is the only one under way. The caller
// must leave it.
func (o *ownConns) take(p *Wait, c *protocol.Call, now clock.Instant, of *bound) *ownConn {
	if !o.possible || p.Limit > ownLimit || o.shard.RoundTrip().Base >= ownNear {
		return nil
	}
	if of.nth > 1 {
		if o.inARow.Load() != 0 {
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

// take tells whether nobody else uses the connection.
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

// leave is for whoever has taken the connection. Drop marks it as unfit before it tries to take it, so one of the two closes
// it.
func (w *ownConn) leave() {
	w.busy.Store(false)
	if w.unfit.Load() {
		w.discard()
	}
}

// discard closes the connection, unless somebody uses it: who does closes it then.
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

// doOwn is do over the own connection. No context goes with the command: with one that can end rueidis would have
// goroutines of its own on the connection. That it counts as blocking has rueidis close the connection without waiting for it.
func (s *Shard) doOwn(w *ownConn, p *Wait, c *protocol.Call, end *bound, a *Reply) {
	t := s.client
	end.begin(p, a.Sent, w)
	a.RedisResult = w.Do(context.Background(), c.Command(w.B(), true))
	if protocol.NoScript(a.Error()) {
		a.RedisResult = c.Send(end, t.redis)
	}
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	alone := s.alone(end.nth)
	over := end.stop() // from here on the bound closes nothing
	err := a.Error()
	if over || !fault.Answered(err) {
		s.own.drop() // it is closed, or broken
	}
	if over && !fault.Answered(err) {
		a.RedisResult = rueidis.NewErrorResult(fault.NoAnswer)
	}
	s.takeIn(p, excused, alone, a)
	w.heard = a.Came
	w.leave()
}

// prepare has an own connection made, or asks the one that there is something, so that it can be used. It may hang, when the
// client has no connection to give: nobody waits for it.
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

// procure gets a connection that was made just now. Those that the client has in its pool may be in any state, and lead to
// another database; they are given back. Where these are all that the client may have, there is none to be had.
func (o *ownConns) procure(now clock.Instant) *ownConn {
	var pooled []func()
	giveBack := func() {
		for _, one := range pooled {
			one()
		}
	}
	defer giveBack() // twice is as good as once
	for len(pooled) < mostPooled {
		alarm := time.AfterFunc(lateReply, giveBack) // else it would wait for itself
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
		if age <= now.Until(w.heard)+time.Second && o.alike(info) { // the age is told in whole seconds
			w.since = w.heard
			return w
		}
		pooled = append(pooled, back)
	}
	return nil
}

// describe has the server describe an own connection. The caller has taken it.
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

// install makes a connection the shard's own one, unless it came too late for that.
func (o *ownConns) install(w *ownConn) {
	s := o.shard
	if w.made.Until(s.client.Clock.Now()) >= s.RoundTrip().Connect() {
		w.discard()
		return
	}
	o.conn.Store(w)
	if s.closed.Load() || s.IsSuspect(s.client.Clock.Now()) || !s.warm() { // what made it so has dropped the one before
		o.drop()
	}
	if o.tended.CompareAndSwap(false, true) {
		time.AfterFunc(ownTend, o.tend)
	}
}

// tend closes the own connection when it is idle or old, and has the next command that obtains a lock go over the shared
// ones: that, not a release, for which others may wait. When none has come since the last time it is the next few commands.
func (o *ownConns) tend() {
	w := o.conn.Load()
	if w == nil {
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

// compare drops the own connection when a shared one is younger, which may lead elsewhere: one that is closed while nothing
// is under way is replaced by rueidis in silence.
func (o *ownConns) compare(w *ownConn) {
	info, err := o.shard.client.describe()
	age, err2 := ageOf(info)
	if err != nil || err2 != nil || age+time.Second >= w.since.Until(o.shard.client.Clock.Now()) { // it is told in whole seconds
		return
	}
	if o.conn.CompareAndSwap(w, nil) {
		w.discard()
	}
}

// alike tells whether a connection that is described so leads to the same database as the shared ones.
func (o *ownConns) alike(info string) bool {
	shared := o.shard.client.database()
	return shared != "" && databaseIn(info) == shared
}

// database is the one to which the shared connections lead; empty when that is not known. The client's options decide, so it is
// asked for once.
func (t *Client) database() string {
	if known := t.selected.Load(); known != nil {
		return *known
	}
	info, err := t.describe()
	number := databaseIn(info)
	if err == nil || !fault.Transient(err) { // also when the server does not tell
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
