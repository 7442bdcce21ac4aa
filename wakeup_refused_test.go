package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What can go wrong between a try that fails, listening, and sleep.

// A waiter whose channel is refused, while those of others are not, polls, and no more often than that.
func TestWakeup_OneRefusedChannelOfSeveral(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const poll = 100 * time.Millisecond
		f := w.flaky()
		r := f.registry(lockregistry.WithWakeup(lockregistry.WakeupPubSub), lockregistry.WithPollInterval(poll))
		w.do("SET", "orders:a", "somebody")
		w.do("SET", "orders:b", "somebody")
		ctx, cancel := context.WithCancel(w.Context())
		a := lockElsewhere(r.Obtain("a"), ctx)
		w.settle()
		require.Equal(w, 1, w.subscribers("orders-channel:orders:a"))
		f.all("SUBSCRIBE", fate{Lost: true, Reply: "-NOPERM this user has no permissions to access one of the channels\r\n"})
		b := lockElsewhere(r.Obtain("b"), ctx)
		w.settle()
		tries := f.count("obtain")
		w.pass(10 * poll)
		require.LessOrEqual(w, f.count("obtain")-tries, 2*10+2, "two waiters, ten poll intervals")
		require.Equal(w, 1, w.subscribers("orders-channel:orders:a"), "it has lost nothing by that")
		cancel()
		require.ErrorIs(w, <-a, context.Canceled)
		require.ErrorIs(w, <-b, context.Canceled)
	})
}

// A key that is there is not in the way of a reader when it is that of other readers.
func TestWakeup_ReaderSeesADowngradeWhileItListens(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		waits := f.registry(lockregistry.WithPollInterval(noPoll))
		holds := w.registry().ReadWrite("42")
		g := w.goroutine()
		require.NoError(w, g.lock(holds.Writer(), lockregistry.Lease(10*time.Minute)))
		result := lockElsewhere(waits.ReadWrite("42").Reader(), w.Context())
		w.await("it is tracked", func() bool { return w.tracked() == 1 })
		w.await("it sleeps", func() bool { return f.count("read") >= 2 })
		until := make(chan struct{})
		looks := f.count("PTTL")
		f.next("PTTL", heldUp(until))
		w.do("PEXPIRE", theKey, "500000") // as a renewal does
		w.await("it has tried, and is about to look", func() bool { return f.count("PTTL") > looks })
		require.NoError(w, g.lock(holds.Reader(), lockregistry.Lease(10*time.Minute)))
		require.NoError(w, g.unlock(holds.Writer()))
		w.pending(result)
		start := time.Now()
		close(until)
		w.takes(start, result)
	})
}

// In its last millisecond a key has 0 left, which is not the same as no end.
func TestWakeup_LastMillisecond(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		waits := f.registry(lockregistry.WithPollInterval(noPoll))
		w.do("SET", theKey, "somebody", "PX", "600000")
		result := lockElsewhere(waits.Obtain("42"), w.Context())
		w.await("it is tracked", func() bool { return w.tracked() == 1 })
		w.await("it sleeps", func() bool { return f.count("obtain") >= 2 })
		looks := f.count("PTTL")
		until := make(chan struct{})
		last := heldUp(until)
		last.Lost, last.Reply = true, ":0\r\n"
		f.next("PTTL", last)
		w.do("PERSIST", theKey)
		w.await("it looks", func() bool { return f.count("PTTL") > looks })
		tries, start := f.count("obtain"), time.Now()
		close(until)
		w.await("it tries when that is over", func() bool { return f.count("obtain") > tries })
		require.Less(w, time.Since(start), atOnce)
		w.pending(result)
		w.do("FLUSHALL")
		require.NoError(w, <-result)
	})
}

// A key that has become another kind of lock is found out also when its changes wake the waiter more often than it polls.
func TestWakeup_WrongTypeThatChangesOften(t *testing.T) {
	realWorlds(t, func(w *world) {
		waits := w.registry(lockregistry.WithPollInterval(50 * time.Millisecond))
		w.do("SET", theKey, "somebody", "PX", "600000")
		result := lockElsewhere(waits.Obtain("42"), w.Context())
		w.await("it is tracked", func() bool { return w.tracked() == 1 })
		w.do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'mode', 'read', 'a', '1')", "1", theKey)
		w.await("it is told of the wrong type", func() bool {
			w.do("HINCRBY", theKey, "x", "1")
			select {
			case err := <-result:
				require.ErrorIs(w, err, lockregistry.ErrWrongType)
				return true
			default:
				return false
			}
		})
	})
}

// A call that is about to listen when the registry is closed tries no more.
func TestWakeup_NoTryAfterClose(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		r, err := lockregistry.New(f.client(), "orders", lockregistry.WithPollInterval(noPoll))
		require.NoError(w, err)
		w.do("SET", theKey, "somebody", "PX", "600000")
		result := lockElsewhere(r.Obtain("42"), w.Context())
		w.await("it is tracked", func() bool { return w.tracked() == 1 })
		w.await("it sleeps", func() bool { return f.count("obtain") >= 2 })
		looks := f.count("PTTL")
		until := make(chan struct{})
		defer close(until)
		f.next("PTTL", heldUp(until))
		w.do("PERSIST", theKey)
		w.await("it looks", func() bool { return f.count("PTTL") > looks })
		w.do("DEL", theKey)
		tries := f.count("obtain")
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-result, lockregistry.ErrClosed)
		require.Equal(w, tries, f.count("obtain"))
	})
}
