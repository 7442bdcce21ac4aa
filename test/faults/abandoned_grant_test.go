package faults_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A call that is tried again for as long as an outage lasts leaves one record of what to remove, which stands for all grants
// that may arrive late.
func TestCleanup_ManyAbandonedGrantsOfOnePath(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const calls = 100
		f := w.Flaky()
		l := w.RegistryOn(kit.Apart(f.Client(kit.Unasked)), kit.Polling).Obtain("42")
		w.Lock(l)
		w.Unlock(l) // the server knows the script from here on
		f.Fate("obtain", kit.Cut)
		f.Fate("release", kit.Cut)
		for range calls {
			require.Error(w, l.Lock(w.Context()))
			w.Pass(100 * time.Millisecond)
		}
		require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		late := f.Sent("obtain")[1:]
		require.Equal(w, calls+1, len(late)) //nolint:testifylint // not to print them all
		require.LessOrEqual(w, f.Count("release"), 2*calls+calls/20, "hardly more than are due at a failure and at the poll interval")

		// One of the grants was executed by the time the network is back.
		require.Equal(w, "OK", w.Arrives(late[calls/2]))
		f.Forget()
		start := time.Now()
		w.AwaitGone("orders:42")
		require.LessOrEqual(w, time.Since(start), 101*time.Millisecond)
		removals := f.Count("release")
		w.Pass(5 * time.Second)
		require.LessOrEqual(w, f.Count("release")-removals, 51, "one each poll interval")

		// Any of the grants may arrive now.
		for _, i := range []int{0, 1, calls / 3, calls - 1, calls} {
			require.Equal(w, "OK", w.Arrives(late[i]))
			start := time.Now()
			w.AwaitGone("orders:42")
			require.LessOrEqual(w, time.Since(start), 101*time.Millisecond)
		}

		// None of that affects a later hold, of this process or another.
		for _, next := range []*lockregistry.Lock{l, w.Registry().Obtain("42")} {
			w.Lock(next)
			value := w.Do("GET", "orders:42")
			removals := f.Sent("release")
			for _, c := range []kit.Command{removals[1], removals[len(removals)-1], late[0], late[calls]} {
				w.Arrives(c)
			}
			w.Pass(5 * time.Second)
			require.Equal(w, value, w.Do("GET", "orders:42"))
			w.Unlock(next)
		}

		// After the next call that fails, its grant is looked for often again.
		w.Pass(30 * time.Second)
		f.Fates("obtain", kit.Cut)
		require.Error(w, l.Lock(w.Context()))
		w.Pass(time.Second)
		obtained := f.Sent("obtain")
		require.Equal(w, "OK", w.Arrives(obtained[len(obtained)-1]))
		w.Pass(100 * time.Millisecond)
		w.Settle()
		require.True(w, w.Free("orders:42"))

		// The search ends when the longest lease is over.
		w.Pass(50 * time.Minute)
		require.Equal(w, "OK", w.Arrives(late[calls]))
		awaitRemoval(w, "orders:42", 10*time.Minute)
		w.Pass(20 * time.Minute)
		removals = f.Count("release")
		w.Pass(time.Hour)
		require.Equal(w, removals, f.Count("release"))
	})
}

// awaitRemoval waits until a key is gone, in steps of a second.
func awaitRemoval(w *kit.World, key string, within time.Duration) {
	w.Helper()
	for start := time.Now(); !w.Free(key); w.Pass(time.Second) {
		require.LessOrEqual(w, time.Since(start), within)
	}
}

// While the reply to the removal of an older grant is under way, a newer one is abandoned, or released with a context that is
// done. That does not wait for the reply, which says nothing about the newer one.
func TestCleanup_SomethingIsLeftDuringARemoval(t *testing.T) {
	t.Parallel()
	during := func(w *kit.World, test func(f *kit.Flaky, l *lockregistry.Lock)) {
		f := w.Flaky()
		l := w.RegistryOn(kit.Apart(f.Client()), kit.Polling).Obtain("42")
		w.Lock(l)
		w.Unlock(l) // the server knows the script from here on
		f.Fates("obtain", kit.CutAfter)
		f.Fates("release", kit.SlowReply(300*time.Millisecond))
		require.Error(w, l.Lock(w.Context()))
		w.Settle()
		require.True(w, w.Free("orders:42"), "removed, but that is not answered yet")
		test(f, l)
	}
	t.Run("abandoned", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			during(w, func(f *kit.Flaky, l *lockregistry.Lock) {
				f.Fates("obtain", kit.CutAfter)
				f.Fates("release", kit.Refused(kit.Loading))
				require.Error(w, l.Lock(w.Context()))
				w.Settle()
				require.False(w, w.Free("orders:42"))
				w.Pass(100 * time.Millisecond)
				w.Settle()
				require.True(w, w.Free("orders:42"))
				w.Pass(250 * time.Millisecond)
				obtained := f.Sent("obtain")
				w.Arrives(obtained[len(obtained)-1])
				require.False(w, w.Free("orders:42"))
				w.Pass(100 * time.Millisecond)
				w.Settle()
				require.True(w, w.Free("orders:42"))
			})
		})
	})
	t.Run("released", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			during(w, func(f *kit.Flaky, l *lockregistry.Lock) {
				owner := lockregistry.ContextWithOwner(w.Context())
				require.NoError(w, l.Lock(owner))
				f.Fates("release", kit.SlowReply(600*time.Millisecond))
				unlocked := w.Goroutine().Start(func() error { return l.Unlock(owner) })
				w.Settle()
				require.True(w, w.Free("orders:42"), "removed, but that is not answered yet")
				locked := w.Goroutine().Starts(l)
				w.Pass(590 * time.Millisecond)
				w.Pending(locked)
				w.Pass(10 * time.Millisecond)
				require.NoError(w, <-unlocked)
				require.NoError(w, <-locked)
			})
		})
	})
}

// leftBehind returns a registry whose calls for that many paths got the locks without a reply, while nothing can be removed.
func leftBehind(w *kit.World, paths int) (*kit.Flaky, *lockregistry.Registry) {
	w.Helper()
	f := w.Flaky()
	r := w.RegistryOn(f.Client(kit.Pipelining), kit.Polling)
	w.Lock(r.Obtain("42"))
	w.Unlock(r.Obtain("42")) // the server knows the script from here on
	f.Fate("release", kit.Cut)
	f.Fate("obtain", kit.CutAfter)
	for i := range paths {
		require.Error(w, r.Obtain(strconv.Itoa(i)).Lock(w.Context()))
	}
	return f, r
}

// After an outage, paths do not wait for each other's removal.
func TestCleanup_AbandonedGrantsOfManyPaths(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f, r := leftBehind(w, 520) // more than two pipelines
		require.NotEqual(w, "0", w.Keys())
		before := f.Count("release")
		w.Pass(3 * time.Second)
		require.Less(w, f.Count("release")-before, 3*10*(256+100), "while it fails, a pipeline each poll interval")
		f.Forget()
		start := time.Now()
		w.Await("all are removed", func() bool { return w.Keys() == "0" })
		require.LessOrEqual(w, time.Since(start), 250*time.Millisecond, "a poll interval, and a last attempt that fails")

		before = f.Count("release")
		w.Pass(time.Second)
		require.Less(w, f.Count("release")-before, 10*(256+100), "to look for more, a pipeline each poll interval")
		require.NoError(w, r.Close())
	})
}

// Close tries one last time to remove what was left behind.
func TestCleanup_AbandonedGrantsAtClose(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f, r := leftBehind(w, 300) // more than a pipeline
		w.Pass(2 * time.Second)
		f.Forget()
		require.NotEqual(w, "0", w.Keys())
		require.NoError(w, r.Close())
		require.Equal(w, "0", w.Keys())
	})
}

// The last removal does not overtake a command that was given up earlier. The call may give up before Close, its removal may be
// under way when Close begins, or it may give up after Close.
func TestCleanup_CloseWaitsForWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "before that, and is being removed", "after"} {
		t.Run(when, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := w.RegistryOn(kit.Apart(f.Client()))
				w.Lock(r.Obtain("43"))
				w.Unlock(r.Obtain("43")) // the server knows the script from here on
				released := f.Count("release")
				delivery := make(chan struct{})
				f.Fate("obtain", kit.HeldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				locked := w.Goroutine().Start(func() error { return r.Obtain("42").Lock(ctx) })
				w.Settle()
				var waits <-chan error
				if when == "after" {
					require.NoError(w, r.Close())
					cancel()
					waits = locked
				} else {
					if when != "before" {
						f.Fates("release", kit.SlowReply(50*time.Millisecond))
					}
					cancel()
					require.ErrorIs(w, <-locked, context.Canceled)
					w.Settle()
					require.Equal(w, released+1, f.Count("release"))
					waits = w.Goroutine().Start(r.Close)
				}
				w.Settle()
				w.Pending(waits)
				close(delivery)
				if err := <-waits; when == "after" {
					require.ErrorIs(w, err, context.Canceled)
				} else {
					require.NoError(w, err)
				}
				require.True(w, w.Free("orders:42"))
			})
		})
	}
}

// A hold's own removal also removes an older hold's late grant, and says that the hold was lost.
func TestCleanup_TheRemovalFindsALateGrant(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(kit.Polling).Obtain("42")
		f.Fates("obtain", kit.Refused(kit.Loading))
		require.Error(w, l.Lock(w.Context()))
		w.Lock(l)
		w.Do("DEL", "orders:42")
		require.Equal(w, "OK", w.Arrives(f.Sent("obtain")[0]))
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		require.True(w, w.Free("orders:42"))

		// But it does not remove a newer grant, one of another registry, or anything else at the key.
		w.Lock(l)
		w.Unlock(l)
		released := f.Sent("release")
		older := released[0]
		newer := f.Sent("obtain")[2].Args[2]
		for _, value := range []string{"x:1", newer, "text", "", "12"} {
			w.Do("SET", "orders:42", value)
			require.Equal(w, "-1", w.Arrives(older))
			require.Equal(w, value, w.Do("GET", "orders:42"))
		}
	})
}

// While nobody knows whether the key of the last hold is gone, an error that somebody else has the lock would be a guess.
func TestCleanup_TryLockWhileARemovalIsNotAnswered(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		rw := f.Registry(kit.Polling).ReadWrite("rw")
		for _, l := range []*lockregistry.Lock{f.Registry(kit.Polling).Obtain("42"), rw.Reader(), rw.Writer()} {
			w.Lock(l)
			f.Down()
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrUnavailable)
			ok, err := l.TryLock(w.Context())
			require.False(w, ok)
			w.Fails(err, lockregistry.ErrUnavailable, "trylock", kit.Key(l))
			err = l.Lock(w.Context(), lockregistry.Wait(200*time.Millisecond))
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)

			f.Forget()
			w.Lock(l)
			require.False(w, kit.Elsewhere(func() bool { // a call that is refused now learns that somebody has the lock
				ok, err := rw.Writer().TryLock(w.Context())
				if kit.Key(l) == "orders:42" {
					ok, err = l.TryLock(w.Context())
				}
				return ok || err != nil
			}))
			w.Unlock(l)
		}
	})
}
