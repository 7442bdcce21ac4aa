package locktest_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/locktest"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inBoth runs a test in fake and in real time.
func inBoth(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("fake time", func(t *testing.T) { synctest.Test(t, test) })
	t.Run("real time", test)
}

// inLayouts runs a test in both, with each layout.
func inLayouts(t *testing.T, test func(t *testing.T, opts ...lockregistry.Option)) {
	t.Helper()
	for name, layout := range map[string][]lockregistry.Option{
		"Spring": nil, "Redisson": {lockregistry.WithRedissonLayout()},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T) { test(t, layout...) })
		})
	}
}

// try tells whether another owner gets the lock of 42, and unlocks it if so.
func try(t *testing.T, r *locktest.Registry, opts ...lockregistry.LockOption) bool {
	t.Helper()
	ctx := lockregistry.ContextWithOwner(t.Context())
	ok, err := r.Obtain("42").TryLock(ctx, opts...)
	require.NoError(t, err)
	if ok {
		require.NoError(t, r.Obtain("42").Unlock(ctx))
	}
	return ok
}

// later locks and unlocks 42 on another goroutine.
func later(t *testing.T, r *locktest.Registry) <-chan error {
	t.Helper()
	ctx := t.Context()
	result := make(chan error, 1)
	go func() {
		result <- r.Do(ctx, "42", func(context.Context) error { return nil }, lockregistry.Wait(20*time.Second))
	}()
	return result
}

func TestServer_LeasesPass(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		lock := locks.Obtain("42")
		require.NoError(t, lock.Lock(t.Context(), lockregistry.Lease(2*time.Second)))
		ctx := lock.Context(t.Context())
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), lockregistry.ErrLockLost)
		require.True(t, try(t, locks.Peer(), lockregistry.Wait(20*time.Second)), "the key has expired")
	})
}

func TestPeer(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		peer := locks.Peer()
		layout := func(r *locktest.Registry) observe.Layout {
			info, err := inspect.Of(r.Registry).Inspect(t.Context(), "free")
			require.NoError(t, err)
			return info.Layout
		}
		require.Equal(t, layout(locks), layout(peer), "it has the options of the first")
		require.NotEqual(t, locks.String(), peer.String(), "another client id")
		first := locks.Peer(lockregistry.WithClientID("first"))
		require.Contains(t, first.Peer().String(), "client id first)")
		require.Contains(t, first.Peer(lockregistry.WithClientID("second")).String(), "client id second)", "the last one counts")

		require.NoError(t, locks.Do(t.Context(), "42", func(context.Context) error {
			require.False(t, try(t, peer))
			return nil
		}))
		require.True(t, try(t, peer))

		require.NoError(t, locks.Obtain("42").Lock(t.Context()))
		waiting := later(t, peer)
		require.NoError(t, locks.Obtain("42").Unlock(t.Context()))
		require.NoError(t, <-waiting)
	})
}

func TestLose(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		err := locks.Do(t.Context(), "42", func(ctx context.Context) error {
			locks.Lose("42")
			require.ErrorIs(t, context.Cause(ctx), lockregistry.ErrLockLost, "at once")
			require.True(t, try(t, locks.Peer()))
			return nil
		})
		require.ErrorIs(t, err, lockregistry.ErrLockLost)

		hold, err := locks.Acquire(t.Context(), "44")
		require.NoError(t, err)
		locks.Lose("44")
		require.Zero(t, hold.Remaining())
		require.ErrorIs(t, hold.Release(t.Context()), lockregistry.ErrLockLost)

		pair := locks.ReadWrite("43")
		for _, lock := range []*lockregistry.Lock{pair.Reader(), pair.Writer()} {
			require.NoError(t, lock.Lock(t.Context()))
			locks.Lose("43")
			require.ErrorIs(t, lock.Unlock(t.Context()), lockregistry.ErrLockLost)
		}

		readers := []*lockregistry.Lock{pair.Reader(), locks.Peer().ReadWrite("43").Reader()}
		for _, reader := range readers {
			require.NoError(t, reader.Lock(t.Context()))
		}
		locks.Lose("43")
		require.True(t, readers[1].IsHeld(), "it has not noticed yet")
		for _, reader := range readers {
			require.ErrorIs(t, reader.Unlock(t.Context()), lockregistry.ErrLockLost)
		}
	})
}

// The holds of a semaphore are lost by force, all of them or one.
func TestForceUnlock_OfASemaphore(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		seats := locks.Semaphore("seat", 2)
		acquire := func() (*lockregistry.Hold, context.Context) {
			h, err := seats.Acquire(t.Context())
			require.NoError(t, err)
			return h, h.Context(t.Context())
		}
		one, first := acquire()
		_, second := acquire()
		require.NoError(t, inspect.Of(locks.Registry).ForceUnlockHolder(t.Context(), "seat", one.Holder()))
		require.ErrorIs(t, context.Cause(first), lockregistry.ErrLockLost, "at once")
		require.NoError(t, second.Err())
		_, third := acquire()
		require.NoError(t, inspect.Of(locks.Registry).ForceUnlock(t.Context(), "seat"))
		require.ErrorIs(t, context.Cause(second), lockregistry.ErrLockLost)
		require.ErrorIs(t, context.Cause(third), lockregistry.ErrLockLost)
		require.ErrorIs(t, one.Release(t.Context()), lockregistry.ErrLockLost)
		all, err := locks.Peer().Semaphore("seat", 2).Acquire(t.Context(), lockregistry.Permits(2))
		require.NoError(t, err)
		require.NoError(t, all.Release(t.Context()))
	})
}

// Who waits has the lock as soon as it is lost.
func TestLose_WithAWaiter(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		locks := locktest.New(t)
		require.NoError(t, locks.Obtain("42").Lock(t.Context()))
		waiting := later(t, locks.Peer())
		locks.Lose("42")
		require.NoError(t, <-waiting)
		require.ErrorIs(t, locks.Obtain("42").Unlock(t.Context()), lockregistry.ErrLockLost)
	})
}

func TestDisconnect(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		locks := locktest.New(t)
		peer := locks.Peer()
		ctx := lockregistry.ContextWithOwner(t.Context())
		require.NoError(t, locks.Obtain("42").Lock(ctx))
		short := locks.Obtain("43")
		require.NoError(t, short.Lock(ctx, lockregistry.Lease(2*time.Second)))

		locks.Disconnect()
		for range 3 {
			_, err := locks.Obtain("44").TryLock(t.Context())
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		}
		require.False(t, try(t, peer), "the peer is connected, and the lock is held")
		held := short.Context(ctx)
		<-held.Done()
		require.ErrorIs(t, context.Cause(held), lockregistry.ErrLockLost)
		require.NoError(t, peer.Obtain("43").Lock(t.Context(), lockregistry.Wait(20*time.Second)))

		locks.Reconnect()
		require.ErrorIs(t, short.Unlock(ctx), lockregistry.ErrLockLost)
		require.NoError(t, locks.Obtain("42").Unlock(ctx))
		require.True(t, try(t, locks))
	})
}

// Reconnect is over when the registry can be used: no call fails after it.
func TestReconnect(t *testing.T) {
	for name, end := range map[string]func(*locktest.Registry){
		"after Disconnect": (*locktest.Registry).Disconnect,
		"after Hang":       (*locktest.Registry).Hang,
		"of what is connected": func(*locktest.Registry) {
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T) {
				locks := locktest.New(t)
				for i := range 20 {
					end(locks)
					locks.Reconnect()
					ok, err := locks.Obtain(strconv.Itoa(i)).TryLock(t.Context())
					require.NoError(t, err)
					require.True(t, ok)
				}
			})
		})
	}
}

func TestHang(t *testing.T) {
	const limit = 20 * time.Millisecond
	inBoth(t, func(t *testing.T) {
		locks := locktest.New(t, lockregistry.WithCommandTimeout(limit))
		peer := locks.Peer(lockregistry.WithCommandTimeout(10 * time.Second))
		locks.Hang()
		for range 3 {
			began := time.Now()
			_, err := locks.Obtain("42").TryLock(t.Context())
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
			require.GreaterOrEqual(t, time.Since(began), limit)
		}
		require.True(t, try(t, peer), "the peer is connected")
		locks.Reconnect()
		require.True(t, try(t, locks, lockregistry.Wait(20*time.Second)))
	})
}

func TestServer_TheTestEndsWhileRedisFails(t *testing.T) {
	for name, end := range map[string]func(*locktest.Registry){
		"Disconnect": (*locktest.Registry).Disconnect,
		"Hang":       (*locktest.Registry).Hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ended time.Time
				t.Cleanup(func() { require.Less(t, time.Since(ended), 500*time.Millisecond, "nothing is waited for") })
				locks := locktest.New(t)
				require.NoError(t, locks.Obtain("42").Lock(t.Context()))
				end(locks)
				_, err := locks.Obtain("43").TryLock(t.Context()) // its command is under way when the test ends
				require.ErrorIs(t, err, lockregistry.ErrUnavailable)
				ended = time.Now()
			})
		})
	}
}

func TestHoldElsewhere(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		for _, path := range []string{"42", "{42}"} {
			release := locks.HoldElsewhere(path, time.Minute)
			lock := locks.Obtain(path)
			ok, err := lock.TryLock(t.Context())
			require.NoError(t, err)
			require.False(t, ok)
			require.ErrorIs(t, lock.Lock(t.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrTaken)

			release()
			require.NoError(t, lock.Lock(t.Context()))
			release()
			require.NoError(t, lock.Unlock(t.Context()), "a further release does nothing")
		}
	})
}

// A waiter is told of the release: it does not have to poll.
func TestHoldElsewhere_TellsOfTheRelease(t *testing.T) {
	for _, layout := range [][]lockregistry.Option{nil, {lockregistry.WithRedissonLayout()}} {
		for _, path := range []string{"42", "{42}"} {
			synctest.Test(t, func(t *testing.T) {
				locks := locktest.New(t, append(slices.Clone(layout), lockregistry.WithPollInterval(time.Hour))...)
				release := locks.HoldElsewhere(path, time.Hour)
				result := make(chan error, 1)
				go func() { result <- locks.Obtain(path).Lock(t.Context()) }()
				<-time.After(2 * time.Second) // by then it listens
				require.Empty(t, result)
				released := time.Now()
				release()
				require.NoError(t, <-result)
				require.Less(t, time.Since(released), time.Second)
			})
		}
	}
}

// A stranger that crashed keeps the lock for the rest of its lease.
func TestHoldElsewhere_EndsWithItsLease(t *testing.T) {
	inLayouts(t, func(t *testing.T, opts ...lockregistry.Option) {
		locks := locktest.New(t, opts...)
		const lease = 100 * time.Millisecond
		began := time.Now()
		release := locks.HoldElsewhere("42", lease)
		require.True(t, try(t, locks, lockregistry.Wait(20*time.Second)))
		require.GreaterOrEqual(t, time.Since(began), lease-time.Millisecond) // of which the server counts whole ones
		release()
	})
}

// verdict is a test that notes how it failed.
type verdict struct {
	testing.TB

	mu     sync.Mutex
	errors []string
}

func (v *verdict) Helper() {}

func (v *verdict) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errors = append(v.errors, fmt.Sprintf(format, args...))
}

func (v *verdict) Fatal(args ...any) {
	v.Errorf("fatal: %s", fmt.Sprint(args...))
	panic(v)
}

func TestServer_Misuse(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		v := &verdict{TB: t}
		said := func(words string) {
			t.Helper()
			require.Len(t, v.errors, 1)
			require.Contains(t, v.errors[0], words)
			v.errors = nil
		}
		locks := locktest.New(v)

		locks.Lose("42")
		said("does not hold it")
		peer := locks.Peer()
		require.NoError(t, peer.Obtain("42").Lock(t.Context()))
		locks.Lose("42")
		said("does not hold it")
		release := locks.HoldElsewhere("42", time.Minute)
		said("is taken")
		release()
		require.NoError(t, peer.Obtain("42").Unlock(t.Context()), "the stranger never had it")
		locks.HoldElsewhere("42", time.Microsecond)()
		said("shorter than a millisecond")
		_, err := locks.Semaphore("seat", 1).Acquire(t.Context())
		require.NoError(t, err)
		locks.Lose("seat")
		said("does not hold it")

		require.NoError(t, locks.Obtain("42").Lock(t.Context()))
		locks.Disconnect()
		locks.Lose("42")
		said("Redis did not answer: ")
		locks.Reconnect()

		require.Panics(t, func() { locktest.New(v, lockregistry.WithPollInterval(0)) })
		said("WithPollInterval(0s)")
	})
}

// The end of a test ends what it made, also where calls wait.
func TestServer_TheEnd(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		var locks *locktest.Registry
		var waiting <-chan error
		t.Cleanup(func() {
			require.ErrorIs(t, <-waiting, lockregistry.ErrClosed)
			_, err := locks.Obtain("43").TryLock(context.Background())
			require.ErrorIs(t, err, lockregistry.ErrClosed)
		})
		locks = locktest.New(t)
		locks.HoldElsewhere("42", time.Minute)
		result := make(chan error, 1)
		go func() { result <- locks.Obtain("42").Lock(context.Background()) }()
		waiting = result
	})
}

// A program that uses the library gets nothing of this package, and its tests no assertions that they did not ask for.
func TestServer_WhatIsBuilt(t *testing.T) {
	for path, without := range map[string][]string{
		"github.com/lockregistry/lockregistry":          {"alicebob/miniredis", "stretchr/testify", "testing"},
		"github.com/lockregistry/lockregistry/locktest": {"stretchr/testify", "go.uber.org/goleak"},
	} {
		listed, err := exec.Command("go", "list", "-deps", path).Output()
		require.NoError(t, err)
		for dependency := range strings.Lines(string(listed)) {
			for _, unwanted := range without {
				if unwanted == "testing" {
					require.NotEqual(t, unwanted, strings.TrimSpace(dependency), path)
				} else {
					require.NotContains(t, dependency, unwanted, path)
				}
			}
		}
	}
}

// A stranger has connections of its own, so it also locks while the registry has none, in the registry's layout.
func TestHoldElsewhere_WhileDisconnected(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*locktest.Registry){
		"disconnected": (*locktest.Registry).Disconnect, "hanging": (*locktest.Registry).Hang,
	} {
		for layout, opts := range map[string][]lockregistry.Option{
			"spring": nil, "redisson": {lockregistry.WithRedissonLayout()},
		} {
			synctest.Test(t, func(t *testing.T) {
				locks := locktest.New(t, opts...)
				cut(locks)
				began := time.Now()
				release := locks.HoldElsewhere("42", time.Minute)
				require.Zero(t, time.Since(began), name+", "+layout)
				locks.Reconnect()
				ok, err := locks.Obtain("42").TryLock(t.Context())
				require.NoError(t, err, name+", "+layout)
				require.False(t, ok, name+", "+layout)
				release()
				ok, err = locks.Obtain("42").TryLock(t.Context())
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, locks.Obtain("42").Unlock(t.Context()))
			})
		}
	}
}
