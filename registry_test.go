package lockregistry_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What a user of Spring's RedisLockRegistry relies on.

// polling is for tests that count polls or measure when they happen.
var polling = lockregistry.WithPolling()

// brief is a lease that a test waits to end: long enough to be granted on a busy machine.
const brief = 500 * time.Millisecond

func TestLock_LockAndUnlock(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		w.lock(l)
		require.True(w, l.IsHeld())
		require.Regexp(w, "^"+r.ClientID()+":[0-9]+$", w.do("GET", "orders:42"))
		require.False(w, w.tryElsewhere(l))
		w.unlock(l)
		require.False(w, l.IsHeld())
		require.True(w, w.free("orders:42"))
		require.True(w, w.tryElsewhere(l))
	})
}

func TestRegistry_Names(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("a:b c")
		require.Equal(w, "orders:a:b c", l.Key())
		require.Equal(w, "a:b c", l.Path())
		w.lock(l)
		require.False(w, w.free("orders:a:b c"))
	})
}

// A Spring registry expects a string with an expiry, and compares its value with nothing but its own id, a UUID.
func TestLock_KeyAsSpringExpectsIt(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithLease(30 * time.Second))
		_, err := uuid.Parse(r.ClientID())
		require.NoError(w, err)
		w.lock(r.Obtain("42"))
		require.Equal(w, "string", w.do("TYPE", "orders:42"))
		require.True(w, strings.HasPrefix(w.do("GET", "orders:42"), r.ClientID()))
		left := w.pttl("orders:42")
		require.LessOrEqual(w, left, 30*time.Second)
		require.Greater(w, left, 10*time.Second)
		require.Equal(w, "1", w.keys(), "nothing but the key")
	})
}

func TestLock_Leases(t *testing.T) {
	worlds(t, func(w *world) {
		const limit = 10 * time.Second // for the machine to be slow in
		leased := func(path string, lease time.Duration) {
			w.Helper()
			left := w.pttl("orders:" + path)
			require.LessOrEqual(w, left, lease)
			require.Greater(w, left, lease-limit)
		}
		standard, custom := w.registry(), w.registry(lockregistry.WithLease(time.Hour))

		w.lock(standard.Obtain("default"))
		leased("default", time.Minute)
		w.lock(custom.Obtain("registry's"))
		leased("registry's", time.Hour)
		w.lock(custom.Obtain("lock's"), lockregistry.Lease(20*time.Second))
		leased("lock's", 20*time.Second)
		ok, err := custom.Obtain("trylock's").TryLock(w.Context(), lockregistry.Wait(time.Minute), lockregistry.Lease(30*time.Second))
		require.NoError(w, err)
		require.True(w, ok)
		leased("trylock's", 30*time.Second)
		require.NoError(w, custom.Do(w.Context(), "do's", func(context.Context) error {
			leased("do's", 40*time.Second)
			return nil
		}, lockregistry.Lease(40*time.Second)))
	})
}

func TestUnlock_AfterExpiry(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(brief))
		w.awaitGone("orders:42")
		require.False(w, l.IsHeld())
		w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, w.tryElsewhere(l), "the local half is free")
	})
}

func TestUnlock_AfterExpiryAndTakeover(t *testing.T) {
	worlds(t, func(w *world) {
		mine, theirs := w.registry().Obtain("42"), w.registry().Obtain("42")
		w.lock(mine, lockregistry.Lease(brief))
		w.lock(theirs) // waits for the lease to end
		value := w.do("GET", "orders:42")
		w.fails(mine.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.Equal(w, value, w.do("GET", "orders:42"))
		require.True(w, theirs.IsHeld())
		require.False(w, w.tryElsewhere(mine))
		w.unlock(theirs)
		require.True(w, w.tryElsewhere(mine))
	})
}

// The key is gone before the lease is over, as after FLUSHALL or a failover.
func TestUnlock_AfterRemovalByHand(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		w.do("DEL", "orders:42")
		w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.True(w, w.tryElsewhere(l))
	})
}

func TestReentry(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		value := w.do("GET", "orders:42")
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.True(w, ok)
		w.lock(l)
		require.Equal(w, value, w.do("GET", "orders:42"), "still the same hold")
		for range 2 {
			w.unlock(l)
			require.True(w, l.IsHeld())
			require.False(w, w.free("orders:42"))
			require.False(w, w.tryElsewhere(l))
		}
		w.unlock(l)
		require.False(w, l.IsHeld())
		require.True(w, w.free("orders:42"))
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, w.tryElsewhere(l))
	})
}

func TestReentry_RefreshesTheLease(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(40*time.Second))
		shorten := func() { require.Equal(w, "1", w.do("PEXPIRE", "orders:42", "5000")) }

		shorten()
		w.lock(l)
		require.Greater(w, w.pttl("orders:42"), 30*time.Second, "the lease that it had, not the registry's")
		require.LessOrEqual(w, w.pttl("orders:42"), 40*time.Second)

		shorten()
		ok, err := l.TryLock(w.Context(), lockregistry.Lease(2*time.Minute))
		require.NoError(w, err)
		require.True(w, ok)
		require.Greater(w, w.pttl("orders:42"), time.Minute, "the lease that was asked for")
	})
}

// The refreshed lease counts in this process too.
func TestReentry_ProlongsTheHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry(lockregistry.WithLease(10 * time.Second)).Obtain("42")
		w.lock(l)
		ctx := l.Context(w.Context())
		w.pass(9 * time.Second)
		w.lock(l)
		w.pass(9 * time.Second)
		require.True(w, l.IsHeld())
		require.NoError(w, ctx.Err())
		w.unlock(l)
		w.unlock(l)
	})
}

func TestLock_TwoLocksAtOnce(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		a, b := r.Obtain("a"), r.Obtain("b")
		require.NotSame(w, a, b)
		require.Same(w, a, r.Obtain("a"))
		w.lock(a)
		w.lock(b)
		w.unlock(a)
		require.True(w, b.IsHeld())
		require.False(w, w.tryElsewhere(b))
		w.unlock(b)
	})
}

func TestLock_TwoGoroutinesInTurn(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		other := w.goroutine()
		for range 3 {
			w.lock(l)
			ok, err := other.try(l)
			require.NoError(w, err)
			require.False(w, ok)
			locked := other.starts(l)
			w.pending(locked)
			w.unlock(l)
			require.NoError(w, <-locked)

			ok, err = l.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
			require.NoError(w, other.unlock(l))
		}
		require.True(w, w.free("orders:42"))
	})
}

func TestLock_TwoRegistriesInTurn(t *testing.T) {
	worlds(t, func(w *world) {
		mine, theirs := w.registry().Obtain("42"), w.registry().Obtain("42")
		other := w.goroutine()
		for range 3 {
			w.lock(mine)
			ok, err := other.try(theirs)
			require.NoError(w, err)
			require.False(w, ok)
			locked := other.starts(theirs)
			w.pending(locked)
			w.unlock(mine)
			require.NoError(w, <-locked)

			ok, err = mine.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
			require.NoError(w, other.unlock(theirs))
		}
		require.True(w, w.free("orders:42"))
	})
}

// The same goroutine is no owner of what it locked through another registry.
func TestRegistry_RegistriesDoNotShareHolds(t *testing.T) {
	worlds(t, func(w *world) {
		client := w.client()
		for _, id := range []string{"", "billing"} {
			var opts []lockregistry.Option
			if id != "" {
				opts = append(opts, lockregistry.WithClientID(id))
			}
			a, b := w.registryOn(client, opts...).Obtain("42"), w.registryOn(client, opts...).Obtain("42")
			w.lock(a)
			ok, err := b.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
			require.False(w, b.IsHeld())
			w.fails(b.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
			w.unlock(a)
		}
	})
}

func TestRegistry_PrefixesDoNotShareLocks(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		other, err := lockregistry.New(w.client(), "invoices")
		require.NoError(w, err)
		w.lock(r.Obtain("42"))
		w.lock(other.Obtain("42"))
		require.Equal(w, "2", w.keys())
		require.NoError(w, other.Close())
	})
}

func TestLock_WrongGoroutineUnlocks(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		other := w.goroutine()
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")

		require.NoError(w, other.lock(l, lockregistry.Lease(time.Hour)))
		value := w.do("GET", "orders:42")
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, l.IsHeld())
		require.Equal(w, value, w.do("GET", "orders:42"))
		require.Greater(w, w.pttl("orders:42"), 50*time.Minute)
		require.False(w, w.tryElsewhere(l))
		require.NoError(w, other.unlock(l))
		require.True(w, w.free("orders:42"))
	})
}

func TestLock_ExpiryBetweenTwoRegistries(t *testing.T) {
	worlds(t, func(w *world) {
		r1, r2 := w.registry(lockregistry.WithLease(brief)), w.registry()
		l1, l2 := r1.Obtain("42"), r2.Obtain("42")
		w.lock(l1)
		ok, err := l2.TryLock(w.Context(), lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		require.True(w, ok)
		require.False(w, l1.IsHeld())
		require.True(w, l2.IsHeld())
		w.unlock(l2)
		w.fails(l1.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.True(w, w.tryElsewhere(l1))
	})
}

func TestRenew(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithLease(30 * time.Second))
		l := r.Obtain("42")
		w.lock(l)
		value := w.do("GET", "orders:42")

		require.NoError(w, l.Renew(w.Context(), 10*time.Minute))
		require.Greater(w, w.pttl("orders:42"), 9*time.Minute)
		require.NoError(w, w.goroutine().do(func() error { return r.Renew(w.Context(), "42", time.Hour) }), "by anybody")
		require.Greater(w, w.pttl("orders:42"), 50*time.Minute)
		require.NoError(w, l.Renew(w.Context(), 20*time.Second), "a lease may become shorter")
		require.LessOrEqual(w, w.pttl("orders:42"), 20*time.Second)

		require.Equal(w, value, w.do("GET", "orders:42"))
		require.True(w, l.IsHeld())
		w.unlock(l)
		require.True(w, w.free("orders:42"))
	})
}

func TestRenew_WhatIsNotHeld(t *testing.T) {
	worlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		l := r.Obtain("42")
		w.fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.fails(r.Renew(w.Context(), "42", time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.fails(r.Renew(w.Context(), "unknown", time.Minute), lockregistry.ErrNotOwner, "renew", "orders:unknown")
		require.True(w, w.free("orders:42"))

		w.lock(other.Obtain("42"), lockregistry.Lease(20*time.Second))
		w.fails(r.Renew(w.Context(), "42", time.Hour), lockregistry.ErrNotOwner, "renew", "orders:42")
		require.LessOrEqual(w, w.pttl("orders:42"), 20*time.Second)
		w.unlock(other.Obtain("42"))

		w.lock(l)
		w.fails(w.goroutine().do(func() error { return l.Renew(w.Context(), time.Hour) }),
			lockregistry.ErrNotOwner, "renew", "orders:42")
		require.LessOrEqual(w, w.pttl("orders:42"), time.Minute)
		w.unlock(l)
		w.fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		require.True(w, w.free("orders:42"))
	})
}

func TestRenew_WhatIsLost(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		renewals := map[string]func() error{
			"lock":     func() error { return l.Renew(w.Context(), time.Hour) },
			"registry": func() error { return r.Renew(w.Context(), "42", time.Hour) },
		}
		for name, renew := range renewals {
			w.lock(l, lockregistry.Lease(brief))
			w.awaitGone("orders:42")
			w.fails(renew(), lockregistry.ErrLockLost, "renew", "orders:42")
			require.True(w, w.free("orders:42"), name)
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")

			w.lock(l)
			w.do("SET", "orders:42", uuid.NewString(), "PX", "20000")
			w.fails(renew(), lockregistry.ErrLockLost, "renew", "orders:42")
			require.LessOrEqual(w, w.pttl("orders:42"), 20*time.Second, name)
			require.False(w, l.IsHeld())
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
			w.do("DEL", "orders:42")
		}
	})
}

func TestRenew_RenewalKeepsLocks(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*brief)).Obtain("42")
		w.lock(l)
		value := w.do("GET", "orders:42")
		w.await("more renewals than one lease has", func() bool { return f.count("renew") >= 4 })
		require.True(w, l.IsHeld())
		require.Equal(w, value, w.do("GET", "orders:42"))
		require.False(w, w.tryElsewhere(l))
		w.unlock(l)
		require.True(w, w.free("orders:42"))
	})
}

func TestTryLock_ForeignTryLockDoesNotRefresh(t *testing.T) {
	worlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		w.lock(r.Obtain("42"))
		w.do("PEXPIRE", "orders:42", "20000")
		require.False(w, w.tryElsewhere(r.Obtain("42")))
		require.False(w, w.tryElsewhere(other.Obtain("42")))
		ok, err := other.Obtain("42").TryLock(w.Context(), lockregistry.Wait(150*time.Millisecond), lockregistry.Lease(time.Hour))
		require.NoError(w, err)
		require.False(w, ok)
		require.LessOrEqual(w, w.pttl("orders:42"), 20*time.Second)
	})
}

// A holder without this library: what a Spring registry writes, by hand.
func TestLock_ForeignHolder(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		foreign := uuid.NewString()
		w.do("SET", "orders:42", foreign, "NX", "PX", "60000")
		require.False(w, w.tryElsewhere(l))
		require.Equal(w, foreign, w.do("GET", "orders:42"))
		w.do("DEL", "orders:42")
		require.True(w, w.tryElsewhere(l))

		w.do("SET", "orders:42", foreign, "NX", "PX", "500")
		require.False(w, w.tryElsewhere(l))
		w.lock(l) // waits for the expiry
		require.NotEqual(w, foreign, w.do("GET", "orders:42"))
		w.unlock(l)

		w.do("SET", "orders:42", foreign, "NX", "PX", "60000")
		locked := w.goroutine().starts(l)
		w.pending(locked)
		w.do("DEL", "orders:42")
		require.NoError(w, <-locked)
	})
}

func TestLock_KeyWithoutExpiry(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.do("SET", "orders:42", "for ever")
		require.False(w, w.tryElsewhere(l))
		w.fails(l.Lock(w.Context(), lockregistry.Wait(50*time.Millisecond)), lockregistry.ErrTaken, "lock", "orders:42")
		require.Equal(w, time.Duration(-1), w.pttl("orders:42"))
		require.Equal(w, "for ever", w.do("GET", "orders:42"))
		locked := w.goroutine().starts(l)
		w.pending(locked)
		w.do("DEL", "orders:42")
		require.NoError(w, <-locked)
		require.Greater(w, w.pttl("orders:42"), time.Duration(0))
	})
}

func TestLock_KeyOfAnotherType(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.do("RPUSH", "orders:42", "one", "two")
		unharmed := func() {
			w.Helper()
			require.Equal(w, "list", w.do("TYPE", "orders:42"))
			require.Equal(w, "2", w.do("LLEN", "orders:42"))
			require.Equal(w, time.Duration(-1), w.pttl("orders:42"))
		}
		ok, err := l.TryLock(w.Context())
		require.False(w, ok)
		require.ErrorIs(w, err, lockregistry.ErrWrongType)
		require.ErrorContains(w, err, "orders:42")
		require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrWrongType, "Lock does not wait for it to go away")
		unharmed()
		w.do("DEL", "orders:42")
		require.True(w, w.tryElsewhere(l), "the local half is free")

		w.lock(l)
		w.do("DEL", "orders:42")
		w.do("RPUSH", "orders:42", "one", "two")
		w.fails(l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost, "renew", "orders:42")
		w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		unharmed()
	})
}

// Waiting, without wake-ups: at every poll interval, and when the holder's lease ends.

func TestPollInterval_PollingTakesAReleasedLock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		poll := []lockregistry.Option{polling, lockregistry.WithPollInterval(time.Second)}
		mine, theirs := w.registry(poll...).Obtain("42"), w.registry(poll...).Obtain("42")
		w.lock(mine)
		locked := w.goroutine().starts(theirs)
		w.settle()
		w.pass(2300 * time.Millisecond)
		w.pending(locked)
		w.unlock(mine)
		start := time.Now()
		require.NoError(w, <-locked)
		require.Equal(w, 700*time.Millisecond, time.Since(start), "at the next poll")
	})
}

func TestPollInterval_AReleasedLockIsTakenWithinAPollInterval(t *testing.T) {
	worlds(t, func(w *world) {
		mine, theirs := w.registry().Obtain("42"), w.registry().Obtain("42")
		w.lock(mine)
		locked := w.goroutine().starts(theirs)
		w.pending(locked)
		w.unlock(mine)
		start := time.Now()
		require.NoError(w, <-locked)
		if w.fake {
			require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
		}
	})
}

func TestPollInterval_PollingWakesAtTheEndOfTheLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry(polling, lockregistry.WithPollInterval(time.Minute)).Obtain("42")
		w.do("SET", "orders:42", uuid.NewString(), "PX", "3000")
		start := time.Now()
		w.lock(l)
		require.GreaterOrEqual(w, time.Since(start), 3*time.Second)
		require.LessOrEqual(w, time.Since(start), 3*time.Second+10*time.Millisecond)
	})
}

// When the lease ends the waiter must not trust what it read once: the holder may have renewed.
func TestPollInterval_PollingAfterARenewal(t *testing.T) {
	fakeWorld(t, func(w *world) {
		opts := []lockregistry.Option{polling, lockregistry.WithPollInterval(time.Minute)}
		mine, theirs := w.registry(opts...).Obtain("42"), w.registry(opts...).Obtain("42")
		w.lock(mine, lockregistry.Lease(3*time.Second))
		start := time.Now()
		locked := w.goroutine().starts(theirs)
		w.settle()
		w.pass(2 * time.Second)
		require.NoError(w, mine.Renew(w.Context(), 10*time.Second))
		require.NoError(w, <-locked)
		require.GreaterOrEqual(w, time.Since(start), 12*time.Second)
		require.LessOrEqual(w, time.Since(start), 12*time.Second+10*time.Millisecond)
	})
}

func TestPollInterval(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(polling, lockregistry.WithPollInterval(250*time.Millisecond)).Obtain("42")
		w.do("SET", "orders:42", "for ever")
		start := time.Now()
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Second-time.Millisecond))
		require.NoError(w, err)
		require.False(w, ok)
		sent := f.sent("obtain")
		after := make([]time.Duration, 0, len(sent))
		for _, c := range sent {
			after = append(after, c.Sent.Sub(start))
		}
		// An attempt may need more than one command. The last one is made when the wait ends.
		require.Equal(w, []time.Duration{
			0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond, 999 * time.Millisecond,
		}, slices.Compact(after))
	})
}

func TestRegistry_ManyRegistriesOnOneKey(t *testing.T) {
	worlds(t, func(w *world) {
		const registries, rounds = 8, 5
		var all sync.WaitGroup
		inside := make(chan int, 1)
		for i := range registries {
			l := w.registry(lockregistry.WithPollInterval(5 * time.Millisecond)).Obtain("42")
			all.Go(func() {
				for range rounds {
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					select {
					case inside <- i:
						<-inside
					default:
						w.Error("two at once")
					}
					if err := l.Unlock(w.Context()); err != nil {
						w.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.True(w, w.free("orders:42"))
	})
}

// The cache of locks.

func TestLock_OrderOfEviction(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(3))
		a, b, c := r.Obtain("a"), r.Obtain("b"), r.Obtain("c")
		require.Same(w, a, r.Obtain("a"))
		d := r.Obtain("d") // b is the least recently obtained
		require.Equal(w, 3, r.Len())
		require.Same(w, c, r.Obtain("c"))
		require.Same(w, a, r.Obtain("a"))
		require.Same(w, d, r.Obtain("d"))
		require.NotSame(w, b, r.Obtain("b")) // c goes
		require.Same(w, a, r.Obtain("a"))
		require.Same(w, d, r.Obtain("d"))
		require.Equal(w, 3, r.Len())
	})
}

func TestCache_LocksInUseStay(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(2))
		held := r.Obtain("held")
		w.lock(held)
		for i := range 10 {
			r.Obtain(fmt.Sprint("idle ", i))
		}
		require.Equal(w, 2, r.Len())
		require.Same(w, held, r.Obtain("held"))

		second := r.Obtain("second")
		w.lock(second)
		third := r.Obtain("third")
		require.NotNil(w, third)
		w.fails(third.Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:third")
		_, err := third.TryLock(w.Context())
		w.fails(err, lockregistry.ErrCapacity, "trylock", "orders:third")
		w.fails(r.Do(w.Context(), "third", nothing), lockregistry.ErrCapacity, "do", "orders:third")
		require.True(w, w.free("orders:third"))
		require.Equal(w, 2, r.Len())
		require.Same(w, held, r.Obtain("held"))
		require.Same(w, second, r.Obtain("second"))

		w.lock(held) // what is in use can be locked again
		w.unlock(held)
		w.unlock(second)
		w.lock(third)
		require.Same(w, third, r.Obtain("third"))
		w.unlock(third)
		w.unlock(held)
	})
}

// A lock that is not held but waited for is in use too.
func TestCache_LocksThatAreWaitedForStay(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(1))
		w.do("SET", "orders:42", "for ever")
		l := r.Obtain("42")
		locked := w.goroutine().starts(l)
		w.settle()
		other := r.Obtain("other")
		w.fails(other.Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:other")
		require.Same(w, l, r.Obtain("42"))
		w.do("DEL", "orders:42")
		require.NoError(w, <-locked)
		require.Same(w, l, r.Obtain("42"))
	})
}

func TestCache_LocksKeptAcrossEviction(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(1))
		old := r.Obtain("42")
		r.Obtain("other")
		now := r.Obtain("42")
		require.NotSame(w, old, now)

		// Both are the same lock.
		w.lock(old)
		require.True(w, now.IsHeld())
		require.True(w, old.IsHeld())
		require.False(w, w.tryElsewhere(now))
		require.False(w, w.tryElsewhere(old))
		w.lock(now)
		require.NoError(w, old.Renew(w.Context(), time.Hour))
		require.NoError(w, r.Renew(w.Context(), "42", time.Hour))
		ctx := now.Context(w.Context())
		w.unlock(old)
		require.NoError(w, ctx.Err())
		require.False(w, w.tryElsewhere(old))
		w.unlock(now)
		require.Error(w, ctx.Err())
		require.True(w, w.free("orders:42"))

		// A lock that has no successor comes back.
		r.Obtain("other")
		w.lock(old)
		require.Same(w, old, r.Obtain("42"))
		require.False(w, w.tryElsewhere(now))
		w.unlock(now)
		require.True(w, w.tryElsewhere(old))
	})
}

// Goroutines lock one path through whatever object they have, while it is dropped from the cache all the time.
func TestCache_EvictionNeverAllowsTwoHolders(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(2))
		var all sync.WaitGroup
		inside := make(chan int, 1)
		for i := range 8 {
			kept := r.Obtain("42")
			all.Go(func() {
				for round := range 20 {
					l := kept
					if round%2 == 0 {
						l = r.Obtain("42")
					}
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					select {
					case inside <- i:
						r.Obtain(fmt.Sprint(i, round))
						<-inside
					default:
						w.Error("two at once")
					}
					if err := kept.Unlock(w.Context()); err != nil {
						w.Error(err)
					}
					r.Obtain(fmt.Sprint(i, round, "more"))
					r.ExpireUnusedOlderThan(0)
				}
			})
		}
		all.Wait()
	})
}

func TestLock_SetCapacity(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		locks := map[string]*lockregistry.Lock{}
		for _, path := range []string{"a", "b", "c", "d"} {
			locks[path] = r.Obtain(path)
		}
		w.lock(locks["a"])
		require.NoError(w, r.SetCapacity(2))
		require.Equal(w, 2, r.Len())
		require.Same(w, locks["a"], r.Obtain("a"), "in use")
		require.Same(w, locks["d"], r.Obtain("d"), "the most recently obtained")
		require.NoError(w, r.SetCapacity(3))
		b := r.Obtain("b")
		require.NotSame(w, locks["b"], b)
		require.Same(w, locks["d"], r.Obtain("d"))

		w.lock(b)
		require.NoError(w, r.SetCapacity(1))
		require.Equal(w, 2, r.Len(), "locks in use stay")
		w.fails(r.Obtain("c").Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:c")
		for _, n := range []int{0, -1} {
			require.ErrorContains(w, r.SetCapacity(n), "capacity")
		}
	})
}

func TestCache_ExpireUnusedOlderThan(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		held, idle, never := r.Obtain("held"), r.Obtain("idle"), r.Obtain("never locked")
		w.lock(held)
		w.lock(idle)
		w.unlock(idle)
		require.Equal(w, 0, r.ExpireUnusedOlderThan(10*time.Second))
		w.pass(6 * time.Second)
		w.lock(idle)
		w.unlock(idle)
		w.pass(6 * time.Second)
		young := r.Obtain("young")
		require.Equal(w, 1, r.ExpireUnusedOlderThan(10*time.Second), "the one that was never locked")
		require.Equal(w, 3, r.Len())
		require.NotSame(w, never, r.Obtain("never locked"))
		require.Same(w, idle, r.Obtain("idle"))
		require.Same(w, held, r.Obtain("held"))
		require.Same(w, young, r.Obtain("young"))

		w.pass(20 * time.Second)
		require.Equal(w, 3, r.ExpireUnusedOlderThan(10*time.Second))
		require.Same(w, held, r.Obtain("held"))
		require.False(w, w.tryElsewhere(r.Obtain("held")))
		require.NotSame(w, idle, r.Obtain("idle"))
		w.unlock(held)
		require.True(w, w.tryElsewhere(idle), "a dropped lock keeps working")
	})
}

// Bad input gets an error that says what is wrong.

func TestNew_RefusesBadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		client := w.client()
		for want, bad := range map[string]func() (*lockregistry.Registry, error){
			"client":           func() (*lockregistry.Registry, error) { return lockregistry.New(nil, "orders") },
			"prefix":           func() (*lockregistry.Registry, error) { return lockregistry.New(client, "") },
			"option is nil":    func() (*lockregistry.Registry, error) { return lockregistry.New(client, "orders", nil) },
			"WithLease(0s)":    option(client, lockregistry.WithLease(0)),
			"WithLease(-1s)":   option(client, lockregistry.WithLease(-time.Second)),
			"WithLease(1µs)":   option(client, lockregistry.WithLease(time.Microsecond)),
			"WithPollInterval": option(client, lockregistry.WithPollInterval(0)),
			"WithCapacity(0)":  option(client, lockregistry.WithCapacity(0)),
			"WithCapacity(-1)": option(client, lockregistry.WithCapacity(-1)),
			"WithLayout(99)":   option(client, lockregistry.WithLayout(99)),
			"WithClientID":     option(client, lockregistry.WithClientID("")),
			"WithLogger":       option(client, lockregistry.WithLogger(nil)),
		} {
			r, err := bad()
			require.Nil(w, r, want)
			require.ErrorContains(w, err, want)
		}
		// Everything that is wrong is said at once.
		_, err := lockregistry.New(nil, "", lockregistry.WithCapacity(0), lockregistry.WithLease(0))
		for _, want := range []string{"client", "prefix", "WithCapacity", "WithLease"} {
			require.ErrorContains(w, err, want)
		}
	})
}

func option(client rueidis.Client, o lockregistry.Option) func() (*lockregistry.Registry, error) {
	return func() (*lockregistry.Registry, error) { return lockregistry.New(client, "orders", o) }
}

func TestRegistry_LocksRefuseBadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		nameless, l := r.Obtain(""), r.Obtain("42")
		require.NotNil(w, nameless)
		var none context.Context
		_, badTry := l.TryLock(w.Context(), lockregistry.Lease(time.Microsecond))
		_, noPath := nameless.TryLock(w.Context())
		for want, errs := range map[string][]error{
			"path is empty": {
				nameless.Lock(w.Context()), noPath, nameless.Unlock(w.Context()), nameless.Renew(w.Context(), time.Minute),
				r.Do(w.Context(), "", nothing), r.Renew(w.Context(), "", time.Minute),
			},
			"context is nil": {
				l.Lock(none), l.Unlock(none), l.Renew(none, time.Minute), r.Do(none, "42", nothing), r.Renew(none, "42", time.Minute),
			},
			"function is nil": {r.Do(w.Context(), "42", nil)},
			"Lease(0s)":       {l.Lock(w.Context(), lockregistry.Lease(0))},
			"Lease(-1s)":      {r.Do(w.Context(), "42", nothing, lockregistry.Lease(-time.Second))},
			"Lease(1µs)":      {badTry},
			"Renew(1µs)":      {l.Renew(w.Context(), time.Microsecond)},
			"Renew(-1s)":      {r.Renew(w.Context(), "42", -time.Second)},
			"LockOption":      {l.Lock(w.Context(), lockregistry.LockOption{})},
		} {
			for _, err := range errs {
				require.ErrorContains(w, err, want)
				var failed *lockregistry.LockError
				require.ErrorAs(w, err, &failed, want)
			}
		}
		require.False(w, nameless.IsHeld())
		require.Equal(w, "0", w.keys())
		require.NotPanics(w, func() { require.Error(w, l.Context(none).Err()) })
	})
}

func nothing(context.Context) error { return nil }
