package lock_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestLock_LockAndUnlock(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		require.True(w, l.IsHeld())
		require.Regexp(w, "^"+kit.ClientID(r)+":[0-9]+$", w.Do("GET", "orders:42"))
		require.False(w, w.TryElsewhere(l))
		w.Unlock(l)
		require.False(w, l.IsHeld())
		w.IsFree("orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}

// A Spring registry expects a string with an expiry, and compares its value only with its own id, a UUID.
func TestLock_KeyAsSpringExpectsIt(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithLease(30 * time.Second))
		_, err := uuid.Parse(kit.ClientID(r))
		require.NoError(w, err)
		w.Lock(r.Obtain("42"))
		require.Equal(w, "string", w.Do("TYPE", "orders:42"))
		require.True(w, strings.HasPrefix(w.Do("GET", "orders:42"), kit.ClientID(r)))
		left := w.Pttl("orders:42")
		require.LessOrEqual(w, left, 30*time.Second)
		require.Greater(w, left, 10*time.Second)
		require.Equal(w, "1", w.Keys(), "nothing but the key")
	})
}

func TestLock_Leases(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const limit = 10 * time.Second // for a slow machine
		leased := func(path string, lease time.Duration) {
			w.Helper()
			left := w.Pttl("orders:" + path)
			require.LessOrEqual(w, left, lease)
			require.Greater(w, left, lease-limit)
		}
		standard, custom := w.Registry(), w.Registry(lockregistry.WithLease(time.Hour))

		w.Lock(standard.Obtain("default"))
		leased("default", time.Minute)
		w.Lock(custom.Obtain("registry's"))
		leased("registry's", time.Hour)
		w.Lock(custom.Obtain("lock's"), lockregistry.Lease(20*time.Second))
		leased("lock's", 20*time.Second)
		ok, err := custom.Obtain("trylock's").TryLock(w.Context(), lockregistry.Wait(time.Minute), lockregistry.Lease(30*time.Second))
		require.NoError(w, err)
		require.True(w, ok)
		leased("trylock's", 30*time.Second)
		require.NoError(w, w.Answer(func() error {
			return custom.Do(w.Context(), "do's", func(context.Context) error {
				leased("do's", 40*time.Second)
				return nil
			}, lockregistry.Lease(40*time.Second))
		}))
	})
}

func TestLock_TwoLocksAtOnce(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		a, b := r.Obtain("a"), r.Obtain("b")
		require.NotSame(w, a, b)
		require.Same(w, a, r.Obtain("a"))
		w.Lock(a)
		w.Lock(b)
		w.Unlock(a)
		require.True(w, b.IsHeld())
		require.False(w, w.TryElsewhere(b))
		w.Unlock(b)
	})
}

func TestLock_TwoGoroutinesInTurn(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		inTurn(w, l, l)
	})
}

func TestLock_TwoRegistriesInTurn(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) { inTurn(w, w.Registry().Obtain("42"), w.Registry().Obtain("42")) })
}

// inTurn has this goroutine lock mine and another one lock theirs, which exclude each other, one after the other.
func inTurn(w *kit.World, mine, theirs *lockregistry.Lock) {
	w.Helper()
	other := w.Goroutine()
	for range 3 {
		w.Lock(mine)
		ok, err := other.Try(theirs)
		require.NoError(w, err)
		require.False(w, ok)
		locked := other.Starts(theirs)
		w.Pending(locked)
		w.Unlock(mine)
		require.NoError(w, <-locked)

		ok, err = mine.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
		require.NoError(w, other.Unlock(theirs))
	}
	w.IsFree("orders:42")
}

func TestLock_WrongGoroutineUnlocks(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		other := w.Goroutine()
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")

		require.NoError(w, other.Lock(l, lockregistry.Lease(time.Hour)))
		value := w.Do("GET", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, l.IsHeld())
		require.Equal(w, value, w.Do("GET", "orders:42"))
		require.Greater(w, w.Pttl("orders:42"), 50*time.Minute)
		require.False(w, w.TryElsewhere(l))
		require.NoError(w, other.Unlock(l))
		w.IsFree("orders:42")
	})
}

func TestLock_ExpiryBetweenTwoRegistries(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r1, r2 := w.Registry(lockregistry.WithLease(kit.ShortLease)), w.Registry()
		l1, l2 := r1.Obtain("42"), r2.Obtain("42")
		w.Lock(l1)
		w.Lock(l2, lockregistry.Wait(time.Minute))
		require.False(w, l1.IsHeld())
		require.True(w, l2.IsHeld())
		w.Unlock(l2)
		w.Fails(l1.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.True(w, w.TryElsewhere(l1))
	})
}

// The lock excludes a holder without this library: here a value as a Spring registry writes it.
func TestLock_ForeignHolder(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		foreign := uuid.NewString()
		w.Do("SET", "orders:42", foreign, "NX", "PX", "60000")
		require.False(w, w.TryElsewhere(l))
		require.Equal(w, foreign, w.Do("GET", "orders:42"))
		w.Do("DEL", "orders:42")
		require.True(w, w.TryElsewhere(l))

		w.Do("SET", "orders:42", foreign, "NX", "PX", "60000")
		require.False(w, w.TryElsewhere(l))
		w.Do("PEXPIRE", "orders:42", "500")
		w.Lock(l) // waits until it expires
		require.NotEqual(w, foreign, w.Do("GET", "orders:42"))
		w.Unlock(l)

		w.Do("SET", "orders:42", foreign, "NX", "PX", "60000")
		locked := w.Goroutine().Starts(l)
		w.Pending(locked)
		w.Do("DEL", "orders:42")
		require.NoError(w, <-locked)
	})
}

func TestLock_KeyWithoutExpiry(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		require.False(w, w.TryElsewhere(l))
		w.Fails(l.Lock(w.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrTaken, "lock", "orders:42")
		require.Equal(w, time.Duration(-1), w.Pttl("orders:42"))
		require.Equal(w, "for ever", w.Do("GET", "orders:42"))
		locked := w.Goroutine().Starts(l)
		w.Pending(locked)
		w.Do("DEL", "orders:42")
		require.NoError(w, <-locked)
		require.Greater(w, w.Pttl("orders:42"), time.Duration(0))
	})
}

func TestLock_KeyOfAnotherType(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Do("RPUSH", "orders:42", "one", "two")
		unharmed := func() {
			w.Helper()
			require.Equal(w, "list", w.Do("TYPE", "orders:42"))
			require.Equal(w, "2", w.Do("LLEN", "orders:42"))
			require.Equal(w, time.Duration(-1), w.Pttl("orders:42"))
		}
		ok, err := l.TryLock(w.Context())
		require.False(w, ok)
		require.ErrorIs(w, err, lockregistry.ErrWrongType)
		require.ErrorContains(w, err, "orders:42")
		require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrWrongType, "Lock does not wait for it to go away")
		unharmed()
		w.Do("DEL", "orders:42")
		require.True(w, w.TryElsewhere(l), "the local half is free")

		w.Lock(l)
		w.Do("DEL", "orders:42")
		w.Do("RPUSH", "orders:42", "one", "two")
		w.Fails(l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost, "renew", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		unharmed()
	})
}

func TestLock_IsHeld(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l, other := w.Registry().Obtain("42"), w.Registry().Obtain("42")
		require.False(w, l.IsHeld())
		holder := w.Goroutine()
		require.NoError(w, holder.Lock(l, lockregistry.Lease(5*time.Second)))
		require.True(w, l.IsHeld(), "by any goroutine of this process")
		require.False(w, other.IsHeld(), "by another registry")
		waiter := w.Goroutine().Starts(other)
		require.False(w, other.IsHeld(), "who waits does not hold")
		require.NoError(w, <-waiter)
		require.False(w, l.IsHeld(), "the lease is over")
		require.True(w, other.IsHeld())
		require.ErrorIs(w, holder.Unlock(l), lockregistry.ErrLockLost)
		require.False(w, l.IsHeld())
	})
}

// Enough goroutines for their commands to be sent together each lock a path, and now and then a path that another one shares,
// while the server forgets its scripts and closes connections. Exclusion holds, and nothing is left behind.
func TestLock_ManyPathsAtOnce(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const goroutines, shared, rounds = 200, 20, 15
		client := w.Client()
		registries := []*lockregistry.Registry{w.RegistryOn(client), w.RegistryOn(client)}
		var inside [shared]atomic.Int32
		var all, began sync.WaitGroup
		began.Add(goroutines)
		var failed atomic.Int32
		for g := range goroutines {
			r := registries[g%len(registries)]
			own, other := r.Obtain("own"+strconv.Itoa(g)), r.Obtain("shared"+strconv.Itoa(g/2%shared))
			all.Go(func() {
				for n := range rounds {
					l, crowd := own, (*atomic.Int32)(nil)
					if n%10 == g%10 {
						l, crowd = other, &inside[g/2%shared]
					}
					err := l.Lock(w.Context())
					if err == nil {
						if crowd != nil && crowd.Add(1) != 1 {
							w.Error("two are inside")
						}
						if crowd != nil {
							crowd.Add(-1)
						}
						err = l.Unlock(w.Context())
					}
					if err != nil {
						failed.Add(1)
						if !errors.Is(err, lockregistry.ErrUnavailable) && !kit.LeaseOver(err) {
							w.Error(err)
						}
					}
					if n == 0 {
						began.Done()
					}
				}
			})
		}
		began.Wait()
		w.Do("SCRIPT", "FLUSH")
		w.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		w.Do("SCRIPT", "FLUSH")
		all.Wait()
		w.Logf("%d calls failed", failed.Load())
		require.Less(w, failed.Load(), int32(goroutines*rounds/2))
		w.Await("no lock is left", func() bool {
			return w.Do("EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "orders:[os]*") == "0"
		})
	})
}
