package lockregistry

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// embedded returns a registry on an embedded server, closed at the end of the test.
func embedded(t *testing.T, opts ...Option) *Registry {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := New(client, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// waitingCall is a call that waits in the queue, and has looked just now.
func waitingCall(t *testing.T, l *Lock, as owner.ID) *acquisition {
	t.Helper()
	how, _ := l.local.Enter(as, l.reg.lease.Length, false, nil)
	require.Equal(t, local.Entered, how)
	a := &acquisition{attempt: attempt{lock: l, hold: l.newHold(&request{lease: l.reg.lease}), ctx: context.Background()}}
	a.ticket.woken, a.course.waits, a.began = true, true, l.reg.clock.Now()
	a.box.came = make(chan struct{}, 1)
	a.box.open(a.hold.Number())
	l.active.Store(&a.activeWait)
	return a
}

// The message of a grant may come at any moment while the call finds the same grant by looking, and while that hold is given
// back. Whenever it does, it is neither taken for another server's grant nor for one of nobody's: a hold that is removed
// because it seems to be nobody's is somebody's. A second grant is another server's also when it comes while the call ends.
func TestGrantIsFoundWhileItsMessageComes(t *testing.T) {
	finds := func(a *acquisition) {
		_, err := a.found(time.Second)
		require.NoError(t, err)
		a.end()
	}
	lock := func(a *acquisition) { a.box.mu.Lock() }
	comes := func() { // the message gets as far as it can
		for range 100 {
			runtime.Gosched()
		}
	}
	ends := func(a *acquisition, found clock.Instant) {
		now := a.lock.reg.clock.Now()
		a.hold.AwaitMessage(found)
		require.True(t, a.hold.GrantShort(now, time.Second))
		a.win(now)
		comes()
		a.lock.active.Store(nil)
		a.box.closed = true
		a.box.mu.Unlock()
	}
	for name, c := range map[string]struct {
		rounds int
		before func(a *acquisition) // the message comes
		after  func(a *acquisition)
		second bool
	}{
		"any moment":         {20_000, func(*acquisition) {}, finds, false},
		"before the look":    {1000, lock, func(a *acquisition) { comes(); a.box.mu.Unlock(); finds(a) }, false},
		"after the look":     {1000, lock, func(a *acquisition) { comes(); ends(a, clock.Never) }, false},
		"after the last one": {1000, lock, func(a *acquisition) { comes(); ends(a, 0) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			reg := embedded(t, WithWakeup(WakeupPoll))
			l, me := reg.Obtain("42"), owner.NewHold()
			for range c.rounds {
				a := waitingCall(t, l, me)
				var told sync.WaitGroup
				c.before(a)
				told.Go(func() { reg.told("g " + a.hold.Number() + " 1000 " + l.place.Key) })
				c.after(a)
				if c.second {
					told.Wait()
				}
				sound := a.hold.Live()
				require.Equal(t, local.Last, departs(l.exit(me)))
				l.keep(a.hold)
				l.hold.Store(nil)
				sound = a.hold.End(reg.clock.Now()) && sound
				told.Wait()

				require.Equal(t, !c.second, sound, "whether the hold went on until its end")
				require.Zero(t, reg.background.cleaner.Len(), "the hold was taken for nobody's")
				l.local.Free()
			}
		})
	}
}

// A message makes a shard healthy, as an answer does, so that who is granted the lock after a silence releases it at once.
func TestMessageOnAnIdleShard(t *testing.T) {
	reg := embedded(t, WithWakeup(WakeupPoll))
	lock := reg.Obtain("42")
	for range 20 { // so that all connections have surely been made
		require.NoError(t, lock.Lock(t.Context()))
		require.NoError(t, lock.Unlock(t.Context()))
	}
	way := reg.transport.Shard(lock.place.Key)
	quiet := func() bool { return !way.IsHealthy(reg.clock.Now()) }
	require.Eventually(t, quiet, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { // else the test was not scheduled for as long as a shard is healthy
		reg.told("n 1 1000 " + lock.place.Key + " 1") // nothing is sent because of it
		return !quiet()
	}, 20*time.Second, time.Millisecond)
}

// What a script tells may be longer than 49 days, and so long that Lua writes it with an exponent.
func TestMessagesOfLongLeases(t *testing.T) {
	for ms, want := range map[string]time.Duration{
		"0": 0, "1000": time.Second, "4294967296": 1 << 32 * time.Millisecond, "9223372036854775": clock.Longest,
		"1e+18": clock.Longest,
	} {
		m, ok := parseMessage("n 7 " + ms + " orders:4 2")
		require.True(t, ok, ms)
		require.Equal(t, message{tellsNext, "7", want, "", "orders:4 2"}, m, ms)
	}
	for _, ms := range []string{"", "-1", "nan", "x"} {
		_, ok := parseMessage("n 7 " + ms + " orders:42")
		require.False(t, ok, ms)
	}
}
