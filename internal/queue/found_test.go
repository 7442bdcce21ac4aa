package queue

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// lock is the local half of a path, and what is above its holds.
type lock struct {
	client  rueidis.Client
	server  *miniredis.Miniredis
	path    Path
	numbers uint64
	current atomic.Pointer[hold.Hold]
}

// newLock is a lock of a client that is connected to an embedded server.
func newLock(t *testing.T) *lock {
	t.Helper()
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"redis:6379"}, ForceSingleClient: true, DisableCache: true,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return m.Dial() },
		// It does not ask each second whether the server is there: tests let hours pass.
		Dialer: net.Dialer{KeepAlive: 24 * time.Hour}, ConnWriteTimeout: 10 * time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	way := transport.New(client)
	t.Cleanup(way.Close)
	schedule := hold.NewSchedule(func(clock.Instant) {}, func([]hold.Task) {})
	t.Cleanup(func() {
		schedule.Close()
		schedule.Wait()
	})
	cleaner := cleanup.New(way.Clock, func(clock.Instant) {}, func([]cleanup.Try) {})
	t.Cleanup(func() {
		cleaner.Close()
		cleaner.Wait()
	})
	l := &lock{client: client, server: m}
	env := &hold.Env{
		Clock: way.Clock, Server: way, Schedule: schedule, NumberAt: len("me:"),
		Demand: func(*protocol.Call) {}, Log: func(slog.Level, string, ...slog.Attr) {}, Unreachable: func(func()) {},
	}
	format := protocol.NewSpring(protocol.Config{Prefix: "orders", Remove: func() string { return "UNLINK" }})
	all := &Shared{
		Transport: way, Closed: t.Context().Done(), Prefix: "orders", Values: "me:",
		Cleaner: cleaner,
	}
	all.Poll = time.Second
	l.path.Init(all.Kind(hold.Kind{Format: format, Env: env}, ""), "orders:42", l, l, &l.path)
	return l
}

func (l *lock) NewHold(t hold.Terms) *hold.Hold {
	l.numbers++
	return hold.New(&l.path.Path, "me:"+strconv.FormatUint(l.numbers, 10), t)
}

func (l *lock) Hold() *hold.Hold                             { return l.current.Load() }
func (l *lock) Won(h *hold.Hold, _ clock.Instant)            { l.current.Store(h) }
func (*lock) Free()                                          {}
func (*lock) Taken()                                         {}
func (*lock) Contended() bool                                { return false }
func (*lock) Under() string                                  { return "" }
func (*lock) Block(context.Context, *deadlock.Call, Waiting) {}
func (*lock) EndWait(*deadlock.Call)                         {}
func (*lock) Lost(fault.Loss, hold.Held, bool)               {}
func (*lock) Clear(hold.Remains)                             {}
func (l *lock) Has(value string, _ owner.ID) bool {
	return l.current.Load() != nil && l.current.Load().Value() == value
}
func (*lock) Count() int64            { return 1 }
func (*lock) Owners() []owner.ID      { return nil }
func (*lock) Delegated(owner.ID) bool { return false }

// waitingCall is a call that waits in the queue, and has looked just now.
func (l *lock) waitingCall() *acquisition {
	h := l.NewHold(hold.Terms{Lease: lease.NewTerm(time.Minute)})
	a := &acquisition{attempt: attempt{path: &l.path, hold: h, ctx: context.Background()}, waitKit: l.path.all.waitKit()}
	a.ticket.woken, a.course.waits, a.sentAt = true, true, l.path.Clock.Now()
	a.mail = &a.box
	a.box.open(a.hold.Number())
	l.path.active.Store(&a.activeWait)
	return a
}

// The message of a grant may come at any moment: while the call finds that grant by a look, and while the hold is released. It is
// never taken for another server's grant, nor for a grant that no call waits for: that would remove a hold which an owner has. A
// second message is about another server's grant, even if it comes while the call ends.
func TestFound_WhileItsMessageComes(t *testing.T) {
	// The lease is long: on a busy machine half of a short one may pass between the look and the grant, which is renewed then.
	finds := func(t *testing.T, a *acquisition) {
		t.Helper()
		require.Equal(t, stateHold, a.found(time.Minute))
		a.end(&Request{})
	}
	lock := func(a *acquisition) { a.box.mu.Lock() }
	comes := func() { // the message gets as far as it can
		for range 100 {
			runtime.Gosched()
		}
	}
	ends := func(t *testing.T, a *acquisition, found clock.Instant) {
		t.Helper()
		now := a.path.Clock.Now()
		a.hold.AwaitMessage(found)
		require.True(t, a.hold.GrantShort(now, time.Minute))
		a.win(now)
		comes()
		a.path.active.Store(nil)
		a.box.number = "" // as open does
		a.box.mu.Unlock()
	}
	for name, c := range map[string]struct {
		rounds int
		before func(a *acquisition) // the message comes
		after  func(t *testing.T, a *acquisition)
		second bool
	}{
		"any moment": {20_000, func(*acquisition) {}, finds, false},
		"before the look": {1000, lock, func(t *testing.T, a *acquisition) {
			t.Helper()
			comes()
			a.box.mu.Unlock()
			finds(t, a)
		}, false},
		"after the look":     {1000, lock, func(t *testing.T, a *acquisition) { t.Helper(); comes(); ends(t, a, clock.Never) }, false},
		"after the last one": {1000, lock, func(t *testing.T, a *acquisition) { t.Helper(); comes(); ends(t, a, 0) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLock(t)
			for range c.rounds {
				a := l.waitingCall()
				var told sync.WaitGroup
				c.before(a)
				nobodys := false
				told.Go(func() {
					m, ok := ParseMessage("g " + a.hold.Number() + " 1000 " + l.path.Key)
					nobodys = !ok || !l.path.Deliver(m)
				})
				c.after(t, a)
				if c.second {
					told.Wait()
				}
				sound := a.hold.Live()
				l.path.NoteKept(a.hold)
				l.current.Store(nil)
				ended, _ := a.hold.End(l.path.Clock.Now())
				sound = ended && sound
				told.Wait()

				require.Equal(t, !c.second, sound, "whether the hold went on until its end")
				require.False(t, nobodys, "the hold was taken for nobody's")
			}
		})
	}
}
