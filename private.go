package lockregistry

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

// private is a connection of a lane for commands that come one at a time. Rueidis leaves a connection that all share to two
// goroutines of its own, which is best for many commands at once; a single one costs more wake-ups of goroutines and threads
// than everything else. Here the caller of a command writes and reads by itself.
//
// To give a command up, its limit closes the connection, which ends the caller's read at once. Rueidis marks a connection as
// broken before it closes it, and from then on neither sends anything on it nor keeps it in its pool. So nobody can take the
// reply to a command that was given up for that to his own. The server may still execute that command, before or after what
// follows on other connections: as when a reply is lost, the caller knows nothing.
//
// Nobody reads an idle connection. So that it was closed shows with the next command only, which fails then. Therefore it is
// used for as long after its own last answer as a lane is calm; later the shared ones are, until it has answered a question.
// When the lane becomes wary, or any of its connections breaks, it is dropped. So what is said of deposed masters holds for it
// as it does for the shared ones. And every second a command goes over those: were they closed, or do they break because
// another server is there now, it is noticed; and one of them is asked for its age, see compare.
//
// It is for clients of one address, as rueidis makes them. One of Sentinel does not close such a connection when it changes to
// another master, and a wrapper may want to see each command.
type private struct {
	rueidis.DedicatedClient
	made  clock.Instant // not before it
	since clock.Instant // it was there then
	busy  atomic.Bool   // somebody uses it, or it is closed
	unfit atomic.Bool   // whoever uses it closes it
	heard clock.Instant // when the newest answer came; guarded by busy
}

// privacy is what a lane has for its private connection.
type privacy struct {
	possible  bool // the client is one for which there may be one
	way       atomic.Pointer[private]
	preparing atomic.Bool   // a goroutine makes it, or asks it something
	owed      atomic.Bool   // the next command that obtains a lock is not for it, see tend
	again     clock.Instant // not before is another one made; guarded by preparing
	tended    bool          // a timer runs that looks after it; guarded by the lane's mutex
}

const (
	privateRun   = 4                      // so many commands must have come one at a time, without a pause, for it to be used
	privateMake  = 24                     // and for it to be made
	privateFor   = 120 * time.Millisecond // after its own last answer it is used, while the lane is calm
	privateTend  = time.Second            // how often it is looked after
	privateIdle  = 10 * time.Second       // without an answer for so long it is closed
	privateLife  = 30 * time.Second       // rueidis renews no credentials on it, and the address may lead elsewhere meanwhile
	privatePause = 10 * time.Minute       // after none was to be had
	privateLimit = 10 * time.Second       // longer waits are for the shared ones, which rueidis gives up when silent for as long
	privateNear  = 10 * time.Millisecond  // where a round trip takes as long, microseconds are not worth a connection
	mostPooled   = 8                      // connections of the client's pool that are looked at to get a new one
)

// plain tells whether a client is one for which there may be a private connection.
func plain(client rueidis.Client) bool {
	return reflect.TypeOf(client).String() == "*rueidis.singleClient"
}

// privately returns the lane's private connection, if there is one, for a command that is the only one under way. The caller
// must leave it.
func (l *lane) privately(p *patience, c *protocol.Call, now clock.Instant, of *limit) *private {
	if !l.private.possible || p.limit > privateLimit || l.trip().base >= privateNear {
		return nil
	}
	if !l.alone(of) {
		if l.run.Load() != 0 {
			l.run.Store(0)
		}
		return nil
	}
	n := l.run.Add(1)
	if n < privateRun || c.DropIfAbandoned && l.private.owed.Load() && l.private.owed.Swap(false) {
		return nil
	}
	enough := int32(privateRun)
	switch w := l.private.way.Load(); {
	case w == nil:
		enough = privateMake
	case w.take():
		if now < w.heard.Add(privateFor) {
			return w
		}
		w.leave()
	}
	if n == enough {
		l.prepare(now)
	} else if n > enough && !l.private.preparing.Load() {
		l.run.Store(0)
	}
	return nil
}

// take tells whether nobody else uses the connection.
func (w *private) take() bool {
	if !w.busy.CompareAndSwap(false, true) {
		return false
	}
	if w.unfit.Load() {
		w.leave()
		return false
	}
	return true
}

// leave is for whoever has taken the connection. Drop marks it as unfit before it tries to take it, so one of the two closes it.
func (w *private) leave() {
	w.busy.Store(false)
	if w.unfit.Load() {
		w.discard()
	}
}

// discard closes the connection, unless somebody uses it: who does closes it then.
func (w *private) discard() {
	w.unfit.Store(true)
	if w.busy.CompareAndSwap(false, true) {
		go w.Close()
	}
}

// drop gives the private connection up.
func (l *lane) drop() {
	if w := l.private.way.Swap(nil); w != nil {
		w.discard()
	}
}

// doPrivately is do over the private connection. No context goes with the command: with one that can end rueidis would have
// goroutines of its own on the connection. That it counts as blocking has rueidis close the connection without waiting for it.
func (l *lane) doPrivately(w *private, p *patience, c *protocol.Call, end *limit, a *answer) {
	t := l.transport
	end.begin(p, a.sent, w)
	a.RedisResult = w.Do(context.Background(), c.Command(w.B(), true))
	if protocol.NoScript(a.Error()) {
		a.RedisResult = c.Send(end, t.client)
	}
	a.came = t.clock.Now()
	excused := end.excuses(a.sent, a.came)
	over := end.stop() // from here on the limit closes nothing
	err := a.Error()
	if over || !fault.Answered(err) {
		l.drop() // it is closed, or broken
	}
	if over && !fault.Answered(err) {
		a.RedisResult = rueidis.NewErrorResult(fault.NoAnswer)
	}
	l.takeIn(p, excused, a)
	w.heard = a.came
	w.leave()
}

// prepare has a private connection made, or asks the one that there is something, so that it can be used. It may hang, when the
// client has no connection to give: nobody waits for it.
func (l *lane) prepare(now clock.Instant) {
	own := &l.private
	if !own.preparing.CompareAndSwap(false, true) {
		return
	}
	w := own.way.Load()
	if w == nil && now < own.again {
		own.preparing.Store(false)
		return
	}
	go func() {
		defer own.preparing.Store(false)
		switch {
		case w == nil:
			if w = l.procure(now); w == nil {
				own.again = l.transport.clock.Now().Add(privatePause)
				return
			}
			l.install(w)
		case w.take():
			if _, err := l.describe(w); err != nil {
				l.drop()
			}
			w.leave()
		}
	}()
}

// procure gets a connection that was made just now. Those that the client has in its pool may be in any state, and lead to
// another database; they are given back. Where these are all that the client may have, there is none to be had.
func (l *lane) procure(now clock.Instant) *private {
	var pooled []func()
	giveBack := func() {
		for _, one := range pooled {
			one()
		}
	}
	defer giveBack() // twice is as good as once
	for len(pooled) < mostPooled {
		alarm := time.AfterFunc(lateAnswer, giveBack) // else it would wait for itself
		client, back := l.transport.client.Dedicate()
		if !alarm.Stop() {
			back()
			return nil
		}
		w := &private{DedicatedClient: client, made: now}
		info, err := l.describe(w)
		age, err2 := ageOf(info)
		err = fault.Join(err, err2)
		if err != nil {
			client.Close()
			return nil
		}
		if age <= now.Until(w.heard)+time.Second && l.alike(info) { // the age is told in whole seconds
			w.since = w.heard
			return w
		}
		pooled = append(pooled, back)
	}
	return nil
}

// describe has the server describe a private connection. The caller has taken it.
func (l *lane) describe(w *private) (info string, err error) {
	t := l.transport
	now := t.clock.Now()
	end := t.watch.limit(&patience{ctx: context.Background(), limit: l.trip().plus(lateAnswer)}, now, w)
	info, err = w.Do(context.Background(), w.B().Arbitrary("CLIENT", "INFO").Blocking()).ToString()
	if end.stop() {
		err = fault.NoAnswer
	}
	w.heard = t.clock.Now()
	return info, err
}

// install makes a connection the lane's private one, unless it came too late for that.
func (l *lane) install(w *private) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.transport.clock.Now()
	if l.closed || l.isWary(now) || !l.known() || w.made.Until(now) >= l.trip().connect() {
		w.discard()
		return
	}
	l.private.way.Store(w)
	if !l.known() { // one has broken meanwhile, which has dropped the one before
		l.drop()
	}
	if !l.private.tended {
		l.private.tended = true
		time.AfterFunc(privateTend, l.tend)
	}
}

// tend closes the private connection when it is idle or old, and has the next command that obtains a lock go over the shared
// ones: that, not a release, for which others may wait. When none has come since the last time it is the next few commands.
func (l *lane) tend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.private.way.Load()
	if w == nil {
		l.private.tended = false
		return
	}
	now := l.transport.clock.Now()
	old, used := w.made.Until(now) >= privateLife, true
	if !old && w.take() {
		idle := w.heard.Until(now)
		old, used = idle >= privateIdle, idle < privateTend
		w.leave()
	}
	if l.private.owed.Swap(true) {
		l.run.Store(0)
	}
	if old {
		l.drop()
	} else if used {
		go l.compare(w)
	}
	time.AfterFunc(privateTend, l.tend)
}

// compare drops the private connection when a shared one is younger, which may lead elsewhere: one that is closed while nothing
// is under way is replaced by rueidis in silence.
func (l *lane) compare(w *private) {
	info, err := l.transport.describe()
	age, err2 := ageOf(info)
	if err != nil || err2 != nil || age+time.Second >= w.since.Until(l.transport.clock.Now()) { // it is told in whole seconds
		return
	}
	if l.private.way.CompareAndSwap(w, nil) {
		w.discard()
	}
}

// alike tells whether a connection that is described so leads to the same database as the shared ones.
func (l *lane) alike(info string) bool {
	shared := l.transport.database()
	return shared != "" && databaseIn(info) == shared
}

// database is the one to which the shared connections lead; empty when that is not known. The client's options decide, so it is
// asked for once.
func (t *transport) database() string {
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

// describe has the server describe a shared connection.
func (t *transport) describe() (info string, err error) {
	return t.ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().Arbitrary("CLIENT", "INFO").Build())
	}).ToString()
}

// databaseIn is the one that a connection leads to, by its description.
func databaseIn(info string) string {
	_, after, _ := strings.Cut(info, " db=")
	number, _, _ := strings.Cut(after, " ")
	return number
}
