package waiting_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// In its last millisecond a key has 0 ms left, which is not the same as having no end.
func TestWakeup_LastMillisecond(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		waits := f.Registry(lockregistry.WithPollInterval(kit.NoPoll))
		w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
		result := kit.LockElsewhere(waits.Obtain("42"), w.Context())
		w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
		w.Await("it sleeps", func() bool { return f.Count("obtain") >= 2 })
		looks := f.Count("PTTL")
		until := make(chan struct{})
		last := kit.HeldUp(until)
		last.Lost, last.Reply = true, ":0\r\n"
		f.Fates("PTTL", last)
		w.Do("PERSIST", kit.TheKey)
		w.Await("it looks", func() bool { return f.Count("PTTL") > looks })
		tries, start := f.Count("obtain"), time.Now()
		close(until)
		w.Await("it tries when that is over", func() bool { return f.Count("obtain") > tries })
		require.Less(w, time.Since(start), kit.AtOnce)
		w.Pending(result)
		w.Do("FLUSHALL")
		require.NoError(w, <-result)
	})
}

// A waiter finds that a key has become another kind of lock, even if its changes wake it more often than it polls.
func TestWakeup_WrongTypeThatChangesOften(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		waits := w.Registry(lockregistry.WithPollInterval(50 * time.Millisecond))
		w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
		result := kit.LockElsewhere(waits.Obtain("42"), w.Context())
		w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
		w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'mode', 'read', 'a', '1')", "1", kit.TheKey)
		w.Await("it is told of the wrong type", func() bool {
			w.Do("HINCRBY", kit.TheKey, "x", "1")
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

// What can go wrong between a failed try, listening, and sleep.

// A waiter whose channel is refused, while those of others are not, polls at its poll interval.
func TestWakeup_OneRefusedChannelOfSeveral(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const poll = 100 * time.Millisecond
		f := w.Flaky()
		r := f.Registry(kit.WithWakeup(kit.WakeupPubSub), lockregistry.WithPollInterval(poll))
		w.Do("SET", "orders:a", "somebody")
		w.Do("SET", "orders:b", "somebody")
		ctx, cancel := context.WithCancel(w.Context())
		a := kit.LockElsewhere(r.Obtain("a"), ctx)
		w.Settle()
		require.Equal(w, 1, w.Subscribers("orders-channel:orders:a"))
		f.Fate("SUBSCRIBE", kit.Fate{Lost: true, Reply: "-NOPERM this user has no permissions to access one of the channels\r\n"})
		b := kit.LockElsewhere(r.Obtain("b"), ctx)
		w.Settle()
		tries := f.Count("obtain")
		w.Pass(10 * poll)
		require.LessOrEqual(w, f.Count("obtain")-tries, 2*10+2, "two waiters, ten poll intervals")
		require.Equal(w, 1, w.Subscribers("orders-channel:orders:a"), "it has lost nothing by that")
		cancel()
		require.ErrorIs(w, <-a, context.Canceled)
		require.ErrorIs(w, <-b, context.Canceled)
	})
}

// A key that belongs to other readers does not stop a reader.
func TestWakeup_ReaderSeesADowngradeWhileItListens(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		waits := f.Registry(lockregistry.WithPollInterval(kit.NoPoll))
		holds := w.Registry().ReadWrite("42")
		g := w.Goroutine()
		require.NoError(w, g.Lock(holds.Writer(), lockregistry.Lease(10*time.Minute)))
		result := kit.LockElsewhere(waits.ReadWrite("42").Reader(), w.Context())
		w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
		w.Await("it sleeps", func() bool { return f.Count("read") >= 2 })
		until := make(chan struct{})
		looks := f.Count("PTTL")
		f.Fates("PTTL", kit.HeldUp(until))
		w.Do("PEXPIRE", kit.TheKey, "500000") // as a renewal does
		w.Await("it has tried, and is about to look", func() bool { return f.Count("PTTL") > looks })
		require.NoError(w, g.Lock(holds.Reader(), lockregistry.Lease(10*time.Minute)))
		require.NoError(w, g.Unlock(holds.Writer()))
		w.Pending(result)
		start := time.Now()
		close(until)
		w.Takes(start, result)
	})
}

// A call that is about to listen when the registry is closed does not try again.
func TestWakeup_NoTryAfterClose(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		r, err := lockregistry.New(f.Client(), "orders", lockregistry.WithPollInterval(kit.NoPoll))
		require.NoError(w, err)
		w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
		result := kit.LockElsewhere(r.Obtain("42"), w.Context())
		w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
		w.Await("it sleeps", func() bool { return f.Count("obtain") >= 2 })
		looks := f.Count("PTTL")
		until := make(chan struct{})
		defer close(until)
		f.Fates("PTTL", kit.HeldUp(until))
		w.Do("PERSIST", kit.TheKey)
		w.Await("it looks", func() bool { return f.Count("PTTL") > looks })
		w.Do("DEL", kit.TheKey)
		tries := f.Count("obtain")
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-result, lockregistry.ErrClosed)
		require.Equal(w, tries, f.Count("obtain"))
	})
}

// Two registries on one client share one connection for messages, and the rights for their prefixes may differ. Here the user
// may subscribe to the channels of both, but publish only on those of one: a release of the other could not tell a waiting call
// that it has the lock. So what one registry has verified for its channel does not count for the other's channel.
func TestWakeup_TwoPrefixesOfDifferentRights(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", "&orders-channel*")
		if w.ChecksRights() { // since version 7.0 a user may have different channels for different commands; before, none of the other
			w.Do("ACL", "SETUSER", "app", "(+subscribe +unsubscribe &*)")
		}
		client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
		var log kit.Journal
		made := func(client rueidis.Client, prefix string, opts ...lockregistry.Option) *lockregistry.Lock {
			r, err := lockregistry.New(client, prefix, append(opts, lockregistry.WithPollInterval(kit.NoPoll))...)
			require.NoError(w, err)
			w.Cleanup(func() { require.NoError(w, r.Close()) })
			return r.Obtain("42")
		}
		tickets := func(prefix string) string { return w.Do("ZCOUNT", prefix+":{"+prefix+":42}:waiters", "0", "+inf") }
		waits := map[string]<-chan error{}
		holders := map[string]*lockregistry.Lock{"orders": made(w.Client(), "orders"), "stock": made(w.Client(), "stock")}
		for _, l := range holders {
			w.Lock(l)
		}
		waits["orders"] = kit.LockElsewhere(made(client, "orders", log.Option()), w.Context())
		w.Await("it has a ticket", func() bool { return tickets("orders") == "1" })
		require.Empty(w, log.Lines("way=queueing"))
		waits["stock"] = kit.LockElsewhere(made(client, "stock", log.Option()), w.Context())
		w.Await("it is told that there is no queue", func() bool { return len(log.Lines("way=queueing")) == 1 })
		w.Await("it waits for a change of the key", func() bool { return w.Tracked() == 2 })
		require.Equal(w, "0", tickets("stock"))
		require.Equal(w, "1", tickets("orders"), "one keeps its place though the other has none")
		for prefix, l := range holders {
			start := time.Now()
			w.Unlock(l)
			w.Takes(start, waits[prefix])
		}
		require.Len(w, log.Lines("way=queueing"), 1)
	})
}
