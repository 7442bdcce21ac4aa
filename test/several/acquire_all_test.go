package several_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// plainLayouts runs a test in all worlds, with either format, with tokens and without.
func plainLayouts(t *testing.T, test func(w *kit.World, opts ...lockregistry.Option)) {
	t.Helper()
	inPlainLayouts(t, kit.InOrder(allPlainLayouts), kit.Worlds, test)
}

// fakePlainLayouts is for tests of the order of commands, which need fake time. They do not depend on the scripts, so two
// formats are enough; the other two are covered by the tests with plainLayouts.
func fakePlainLayouts(t *testing.T, test func(w *kit.World, opts ...lockregistry.Option)) {
	t.Helper()
	inPlainLayouts(t, []string{"spring", "redisson fenced"}, kit.FakeWorld, test)
}

var allPlainLayouts = map[string][]lockregistry.Option{
	"spring":          nil,
	"spring fenced":   {lockregistry.WithFencing()},
	"redisson":        {lockregistry.WithRedissonLayout()},
	"redisson fenced": {lockregistry.WithRedissonLayout(), lockregistry.WithFencing()},
}

func inPlainLayouts(
	t *testing.T, names []string, where func(t *testing.T, test func(w *kit.World)),
	test func(w *kit.World, opts ...lockregistry.Option),
) {
	t.Helper()
	t.Parallel()
	for _, name := range names {
		t.Run(name, func(t *testing.T) { where(t, func(w *kit.World) { test(w, allPlainLayouts[name]...) }) })
	}
}

func taken(w *kit.World, paths ...string) {
	w.Helper()
	for _, path := range paths {
		require.Equal(w, "1", w.Do("EXISTS", "orders:"+path), path)
	}
}

func allFree(w *kit.World, paths ...string) {
	w.Helper()
	for _, path := range paths {
		w.IsFree("orders:" + path)
	}
}

func TestAcquireAll(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f := w.Flaky()
		r, other := f.Registry(opts...), w.Registry(opts...)
		w.Known(r)
		tries := f.Count("obtain")
		h := w.AcquiresAll(r, []string{"c", "a", "c", "b", "a"}, lockregistry.Lease(time.Minute))
		if w.Fake { // otherwise it may ask again after a late reply
			require.LessOrEqual(w, f.Count("obtain"), tries+2, "one command, but for the source of a script that the server does not know")
		}
		require.Equal(w, []string{"c", "a", "b"}, h.Paths())
		require.Equal(w, "Hold(orders:c, held)", h.String())
		require.Equal(w, h.Token(), h.TokenOf("c"))
		for _, path := range h.Paths() {
			require.Equal(w, len(opts) > 0 && h.Token() > 0, h.TokenOf(path) > 0)
			_, err := other.Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken)
			_, err = r.Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken)
		}
		require.Zero(w, h.TokenOf("d"))
		taken(w, "a", "b", "c")

		ctx := h.Context(w.Context())
		require.Equal(w, h.Token(), w.TokenIn(ctx))
		require.Same(w, ctx, h.Context(w.Context()))
		require.Same(w, ctx, h.Context(ctx))
		before := w.Acquires(r.Obtain("0"))
		for _, path := range h.Paths() {
			_, err := r.AcquireAll(ctx, []string{"0", path}, lockregistry.Wait(time.Second))
			w.Fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
			_, err = r.Acquire(ctx, path)
			w.Fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
			_, err = r.AcquireAll(ctx, []string{"d", path})
			w.Fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
		}
		w.Release(before)
		require.Greater(w, h.Remaining(), 50*time.Second)
		require.NoError(w, h.Renew(w.Context(), time.Hour))
		require.Greater(w, h.Remaining(), 50*time.Minute)
		for _, path := range h.Paths() {
			require.Greater(w, w.Pttl("orders:"+path), 59*time.Minute)
		}
		w.Release(h)
		require.ErrorIs(w, context.Cause(ctx), context.Canceled)
		require.Zero(w, h.Remaining())
		allFree(w, "a", "b", "c")
		w.Fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", "orders:c")
		require.ErrorIs(w, h.Renew(w.Context(), time.Hour), lockregistry.ErrNotOwner)

		single := w.AcquiresAll(r, []string{"a"})
		require.Equal(w, []string{"a"}, single.Paths())
		w.Release(single)
	})
}

func TestAcquireAll_OfBadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		for want, call := range map[string]func() error{
			"the list of paths is empty": func() error { _, err := r.AcquireAll(w.Context(), nil); return err },
			"the path is empty":          func() error { _, err := r.AcquireAll(w.Context(), []string{"a", ""}); return err },
			"reserved":                   func() error { _, err := r.AcquireAll(w.Context(), []string{"a", "{b}:waiters"}); return err },
			"the context is nil": func() error {
				_, err := r.AcquireAll(nil, []string{"a"}) //nolint:staticcheck // bad input
				return err
			},
			"20001 paths": func() error {
				paths := kit.NumberedPaths(20_001)
				_, err := r.AcquireAll(w.Context(), append(paths, paths...))
				return err
			},
			"must be positive": func() error { _, err := r.AcquireAll(w.Context(), []string{"a"}, lockregistry.Lease(0)); return err },
			"NoWait and Wait": func() error {
				_, err := r.AcquireAll(w.Context(), []string{"a"}, lockregistry.Wait(time.Second), lockregistry.NoWait())
				return err
			},
		} {
			err := call()
			require.ErrorContains(w, err, want)
			require.NotContains(w, err.Error(), "::")
			var failed *lockregistry.LockError
			require.ErrorAs(w, err, &failed)
			require.Equal(w, "acquire", failed.Op)
		}
		cancelled, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := r.AcquireAll(cancelled, []string{"a", "b"})
		require.ErrorIs(w, err, context.Canceled)
		w.Do("SADD", "orders:b", "x")
		for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			_, err = w.Registry(kit.WithLayout(layout)).AcquireAll(w.Context(), []string{"a", "b"})
			w.Fails(err, lockregistry.ErrWrongType, "acquire", "orders:b")
			allFree(w, "a")
		}
		w.Do("DEL", "orders:b")

		small := kit.Capped(w.Registry(), 2)
		_, err = small.AcquireAll(w.Context(), []string{"a", "b", "c"})
		require.ErrorIs(w, err, lockregistry.ErrCapacity)
		_, err = small.AcquireAll(w.Context(), kit.NumberedPaths(20_000))
		require.ErrorIs(w, err, lockregistry.ErrCapacity, "they are not too many for a call")
		w.LeftNothing()
		h, err := small.AcquireAll(w.Context(), []string{"a", "b"})
		require.NoError(w, err)
		w.Release(h)
		require.NoError(w, r.Close())
		_, err = r.AcquireAll(w.Context(), []string{"a", "b"})
		require.ErrorIs(w, err, lockregistry.ErrClosed)
	})
}

// The call gets all paths or none, at once or by the end of the wait.
func TestAcquireAll_WhenOneIsTaken(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		r, other := w.Registry(opts...), w.Registry(opts...)
		for name, holder := range map[string]*lockregistry.Registry{"here": r, "elsewhere": other} {
			for _, path := range []string{"a", "b", "c"} {
				held := w.Acquires(holder.Obtain(path))
				for _, opt := range []lockregistry.AcquireOption{lockregistry.NoWait(), lockregistry.Wait(300 * time.Millisecond)} {
					err := w.Answer(func() error {
						_, err := r.AcquireAll(w.Context(), []string{"c", "b", "a"}, opt)
						return err
					})
					require.ErrorIs(w, err, lockregistry.ErrTaken)
					require.NotErrorIs(w, err, lockregistry.ErrUnavailable, name)
					w.Fails(err, lockregistry.ErrTaken, "acquire", "orders:"+path)
					for _, p := range []string{"a", "b", "c"} {
						if p != path {
							w.AwaitGone("orders:" + p)
						}
					}
				}
				w.Release(held)
			}
		}
		w.Release(w.AcquiresAll(r, []string{"c", "b", "a"}, lockregistry.NoWait()))
	})
}

// A waiting call holds only the paths that sort before the one that it waits for. It renews them, but only while it waits.
func TestAcquireAll_InOrder(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		const lease = 3 * time.Second
		r, other := w.Registry(opts...), w.Registry(opts...)
		b := w.Acquires(other.Obtain("b"), lockregistry.Lease(time.Hour))
		got, _ := w.AllOf(w.Context(), r, []string{"c", "b", "a"}, lockregistry.AtMost(lease))
		for range 7 { // more than two leases
			w.Pass(time.Second)
			w.Settle()
			taken(w, "a")
			require.Greater(w, w.Pttl("orders:a"), time.Second)
			allFree(w, "c")
		}
		w.Pass(900 * time.Millisecond) // the next renewal is due soon
		w.Release(b)
		h := <-got
		require.Greater(w, h.Remaining(), lease-lease/4)
		for _, path := range h.Paths() {
			require.Greater(w, w.Pttl("orders:"+path), lease-lease/4, path)
		}
		ctx := h.Context(w.Context())
		<-ctx.Done()
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, "at the end of its time")
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
		w.Pass(lease)
		allFree(w, "a", "b", "c")
	})
}

// If one path is lost while the call waits for another, the call releases all of them, and begins again.
func TestAcquireAll_LosesOneWhileItWaits(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		opts = append(slices.Clone(opts), lockregistry.WithLease(3*time.Second))
		r, other := w.Registry(opts...), w.Registry(opts...)
		c := w.Acquires(other.Obtain("c"), lockregistry.Lease(time.Hour))
		got, _ := w.AllOf(w.Context(), r, []string{"a", "b", "c"})
		timed, failed := w.AllOf(w.Context(), w.Registry(opts...), []string{"bd", "c"}, lockregistry.Wait(8*time.Second))
		w.Pass(1200 * time.Millisecond) // not when a renewal is due
		taken(w, "a", "b", "bd")
		require.NoError(w, inspect.Of(other).ForceUnlock(w.Context(), "b"))
		b := w.Acquires(other.Obtain("b"), lockregistry.Lease(time.Hour))
		require.NoError(w, inspect.Of(other).ForceUnlock(w.Context(), "bd"))
		d := w.Acquires(other.Obtain("bd"), lockregistry.Lease(time.Hour))
		w.Pass(1500 * time.Millisecond) // the next renewal notices
		w.Settle()
		taken(w, "a")
		w.Release(b)
		w.Pass(time.Second)
		w.Settle()
		taken(w, "a", "b")
		require.Empty(w, got, "c is taken")
		w.Release(c)
		w.Release(<-got)
		w.Fails(<-failed, lockregistry.ErrTaken, "acquire", "orders:bd")
		require.Empty(w, timed)
		w.Release(d)
		noLocks(w)
	})
}

// noLocks checks that no lock is taken.
func noLocks(w *kit.World) {
	w.Helper()
	for _, path := range []string{"a", "b", "bd", "c"} {
		w.IsFree("orders:" + path)
	}
}

// A hold on several paths is lost when one of them is. The others stay protected until they are released.
func TestAcquireAll_AndOneIsLost(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		r, other := w.Registry(opts...), w.Registry(opts...)
		for _, lost := range []string{"a", "b", "c"} {
			h := w.AcquiresAll(r, []string{"b", "a", "c"})
			ctx := h.Context(w.Context())
			require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), lost))
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.Zero(w, h.Remaining())
			require.ErrorIs(w, h.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
			for _, path := range []string{"a", "b", "c"} {
				free, err := other.Obtain(path).TryLock(w.Context())
				require.NoError(w, err)
				require.Equal(w, path == lost, free)
			}
			w.Unlock(other.Obtain(lost))
			w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", "orders:"+lost)
			allFree(w, "a", "b", "c")
		}
	})
}

// The outcome of the script is unknown: what it may have granted is released.
func TestAcquireAll_WithALostReply(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f := w.Flaky()
		r := f.Registry(opts...)
		w.Known(r)
		paths := []string{"a", "b", "c"}
		for _, opt := range [][]lockregistry.AcquireOption{nil, {lockregistry.NoWait()}} {
			f.Fates("obtain", kit.CutAfter)
			_, err := r.AcquireAll(w.Context(), paths, opt...)
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			w.Await("all are free", func() bool { return w.Free("orders:a") && w.Free("orders:b") && w.Free("orders:c") })
		}
		f.Fates("obtain", kit.CutAfter)
		h, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(20*time.Second))
		require.NoError(w, err)
		taken(w, paths...)
		w.Release(h)
		w.Await("all are free", func() bool { return w.Free("orders:a") && w.Free("orders:b") && w.Free("orders:c") })
	})
}

// A call that ends before the reply leaves nothing behind.
func TestAcquireAll_WithALateReply(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		stop, cancel := context.WithCancel(w.Context())
		f.Fates("obtain", kit.SlowReply(10*time.Second))
		_, failed := w.AllOf(stop, r, []string{"a", "b"})
		w.Pass(time.Second)
		start := time.Now()
		cancel()
		require.ErrorIs(w, <-failed, context.Canceled)
		require.Less(w, time.Since(start), 500*time.Millisecond)
		w.Await("both are free", func() bool { return w.Free("orders:a") && w.Free("orders:b") })
	})
}

// Close ends a call with many paths as soon as one with a single path, even if the server is silent.
func TestAcquireAll_ClosedWhileRedisIsSilent(t *testing.T) {
	for name, taken := range map[string]bool{"at once": false, "in order": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f, paths := w.Flaky(), kit.NumberedPaths(100)
				r := f.Registry()
				w.Known(r)
				if taken {
					w.Lock(w.Registry().Obtain(paths[len(paths)-1]))
				} else {
					f.Fate("obtain", kit.Silence)
				}
				stop, cancel := context.WithCancel(w.Context())
				defer cancel()
				_, failed := w.AllOf(stop, r, paths)
				w.Settle()
				w.Pending(failed)
				for _, command := range []string{"obtain", "renew", "release"} {
					f.Fate(command, kit.Silence)
				}
				start := time.Now()
				go func() { _ = r.Close() }()
				w.Pass(10 * time.Millisecond)
				cancel()
				require.Error(w, <-failed)
				require.Less(w, time.Since(start), 500*time.Millisecond)
			})
		})
	}
}

// A call that has some of its paths, and asks for the next one, returns only that the registry is closed: its own context has
// not ended.
func TestAcquireAll_ClosedWithSomeOfThem(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(kit.Polling)
		w.Known(r)
		w.Acquires(w.Registry().Obtain("b"))
		_, failed := w.AllOf(w.Context(), r, []string{"a", "b"})
		w.Settle()
		w.Pending(failed)
		f.Stall()
		w.Pass(200 * time.Millisecond) // it asks for b
		require.NoError(w, r.Close())
		w.Fails(<-failed, lockregistry.ErrClosed, "acquire", "orders:b")
	})
}

// Releasing paths at the end of the wait does not make the call outlast it.
func TestAcquireAll_InTime(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		b := w.Acquires(w.Registry().Obtain("b"))
		f.Fate("release", kit.SlowReply(10*time.Second))
		start := time.Now()
		_, err := r.AcquireAll(w.Context(), []string{"a", "b", "c"}, lockregistry.Wait(2*time.Second))
		w.Fails(err, lockregistry.ErrTaken, "acquire", "orders:b")
		require.LessOrEqual(w, time.Since(start), 2500*time.Millisecond)
		w.AwaitGone("orders:a")
		w.Release(b)
	})
}

// Nor does renewing a path that the call has had for a while.
func TestAcquireAll_InTimeWithARenewal(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		b := w.Acquires(w.Registry().Obtain("b"))
		time.AfterFunc(9500*time.Millisecond, func() {
			f.Fate("renew", kit.Silence)
			_ = b.Release(w.Context())
		})
		start := time.Now()
		all, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.Wait(10*time.Second))
		require.NoError(w, err)
		require.NotZero(w, f.Count("renew"))
		require.LessOrEqual(w, time.Since(start), 10500*time.Millisecond)
		f.ReconnectNow()
		_ = all.Release(w.Context())
		w.AwaitGone("orders:a")
	})
}

// A call whose time ended before it could ask for all paths says that one is taken only if it has seen that, and names it.
func TestAcquireAll_WithTooLittleTime(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		const trip = 200 * time.Millisecond
		var watch func(observe.Acquired)
		observed := lockregistry.WithObserver(observe.Observer{Acquired: func(_ context.Context, a observe.Acquired) { watch(a) }})
		watch = func(observe.Acquired) {}
		r := w.FlakyFar(trip).Registry(append(opts, observed)...)
		w.KnownWell(r)
		other := w.Registry(opts...)
		paths := []string{"a", "b", "c"}

		c := w.Acquires(other.Obtain("c"), lockregistry.Lease(time.Hour))
		_, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(trip/2))
		w.Fails(err, lockregistry.ErrTaken, "acquire", "orders:c")
		require.ErrorContains(w, err, "it is taken in Redis")
		_, err = r.AcquireAll(w.Context(), paths, lockregistry.Wait(trip+trip/2))
		w.Fails(err, lockregistry.ErrTaken, "acquire", "orders:c")

		ctx, cancel := context.WithCancel(w.Context())
		watch = func(observe.Acquired) { cancel() } // when the call has a
		_, err = r.AcquireAll(ctx, paths)
		w.Fails(err, context.Canceled, "acquire", "orders:c")
		require.ErrorContains(w, err, "it is taken in Redis")
		watch = func(observe.Acquired) {}

		for what, late := range map[error]func() (context.Context, lockregistry.AcquireOption){
			lockregistry.ErrUnavailable: func() (context.Context, lockregistry.AcquireOption) {
				return w.Context(), lockregistry.Wait(2*trip + trip/2) // it ends while b is asked for
			},
			context.Canceled: func() (context.Context, lockregistry.AcquireOption) {
				ctx, cancel := context.WithCancel(w.Context())
				watch = func(a observe.Acquired) {
					if a.Path == "b" {
						cancel()
					}
				}
				return ctx, lockregistry.Lease(time.Minute)
			},
		} {
			b := w.Acquires(other.Obtain("b"), lockregistry.Lease(time.Hour))
			ctx, opt := late()
			_, failed := w.AllOf(ctx, r, paths, opt)
			w.Pass(trip + trip/4)
			w.Release(b)
			w.Release(c)
			err := <-failed
			w.Fails(err, what, "acquire", "orders:c", lockregistry.ErrUnavailable)
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			require.ErrorContains(w, err, "there was no time to ask Redis for all paths")
			c = w.Acquires(other.Obtain("c"), lockregistry.Lease(time.Hour))
		}
		w.Release(c)
	})
}

// When the wait is over without a reply of Redis, nobody is known to have the paths.
func TestAcquireAll_WhileRedisIsSilent(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		for _, what := range map[string]kit.Fate{"silent": kit.Silence, "cut": kit.Cut, "late": kit.SlowReply(5 * time.Second)} {
			f := w.Flaky()
			r := f.Registry()
			f.Fate("obtain", what)
			start := time.Now()
			_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.Wait(time.Second))
			w.Fails(err, lockregistry.ErrUnavailable, "acquire", "orders:a")
			require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
			f.Forget()
		}
	})
}

// When the context of a call ends before Redis has replied, the error says both.
func TestAcquireAll_EndsWhileRedisIsSilent(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		f.Stall()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, err := r.AcquireAll(ctx, []string{"a", "b"})
		w.Fails(err, context.DeadlineExceeded, "acquire", "orders:a", lockregistry.ErrUnavailable)
	})
}

// Too few replicas have what the script has written: the call fails.
func TestAcquireAll_WithoutReplicas(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithReplicas(1, 20*time.Millisecond))
		for _, opt := range []lockregistry.AcquireOption{lockregistry.NoWait(), lockregistry.Wait(300 * time.Millisecond)} {
			_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, opt)
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			w.AwaitGone("orders:a")
			w.AwaitGone("orders:b")
		}
	})
}

// A call whose context ends while it waits for replicas returns that.
func TestAcquireAll_StopsWaitingForReplicas(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithReplicas(1, 20*time.Second))
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		_, err := r.AcquireAll(ctx, []string{"a", "b"})
		w.Fails(err, context.DeadlineExceeded, "acquire", "orders:a", lockregistry.ErrUnavailable)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		w.AwaitGone("orders:a")
		w.AwaitGone("orders:b")
	})
}

// With replicas the holds count once these have what the script has written; otherwise all are released.
func TestAcquireAll_WithReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated(lockregistry.WithFencing())
		paths := []string{"a", "b"}
		h, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		for _, key := range []string{"orders:a", "orders:b", "orders:{orders:a}:fencing"} {
			require.Equal(w, "1", w.Replica.Command(w.T, "EXISTS", key))
		}
		w.Release(h)
		w.Replica.Freeze()
		_, err = r.AcquireAll(w.Context(), paths, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.ErrorContains(w, err, "too few replicas have the lock: 0 of 1")
		w.AwaitGone("orders:a")
		w.AwaitGone("orders:b")
		_, err = r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Second))
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		w.AwaitGone("orders:a")
		w.AwaitGone("orders:b")
		w.Replica.Thaw()
		h, err = r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		w.Release(h)
	})
}

// In a cluster the scripts of all slots are sent at the same time, and so are those that release. A path that is alone in its
// slot is locked and released like any lock.
func TestAcquireAll_SlotsAtOnce(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		const trip = 100 * time.Millisecond
		f := w.FlakyFar(trip)
		client := f.Client(clustered)
		w.Connected(client)
		r := w.RegistryOn(client, opts...)
		w.KnownWell(r)
		var paths []string
		for _, slot := range kit.NumberedPaths(20) {
			paths = append(paths, "{"+slot+"}a", "{"+slot+"}b", "{"+slot+"1}")
		}
		for round := range 3 {
			obtained, released, start := f.Count("obtain_all"), f.Count("release_all"), time.Now()
			h, err := r.AcquireAll(w.Context(), paths)
			require.NoError(w, err)
			between := time.Now()
			w.Released(h.Release(w.Context()))
			allFree(w, paths...)
			if round == 2 { // the server knows the scripts
				require.Equal(w, []int{20, 20}, []int{f.Count("obtain_all") - obtained, f.Count("release_all") - released})
				require.Less(w, between.Sub(start), 2*trip)
				require.Less(w, time.Since(between), 2*trip)
			}
		}
	})
}

// A path that is alone in its slot is obtained even if a call of this process has left a hold behind there.
func TestAcquireAll_OneSlotHasALeftover(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f := w.Flaky()
		r := w.RegistryOn(f.Client(clustered), opts...)
		w.Known(r)
		f.Fates("obtain", kit.CutAfter)
		f.Fate("release", kit.Refused(kit.Loading))
		_, err := r.Acquire(w.Context(), "a", lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		taken(w, "a")
		h, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait())
		require.NoError(w, err)
		f.Forget()
		w.Release(h)
		w.Await("both are free", func() bool { return w.Free("orders:a") && w.Free("orders:b") })
	})
}

// Goroutines of the process hand single paths over to calls for several paths, and the other way round.
func TestAcquireAll_AtHandoff(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithFencing())
		b := w.Acquires(r.Obtain("b"))
		got, _ := w.AllOf(w.Context(), r, []string{"b", "a"}, lockregistry.Lease(time.Minute))
		w.Settle()
		tries := f.Count("obtain")
		w.Release(b)
		h := <-got
		require.Equal(w, tries, f.Count("obtain"), "b was handed over")
		require.Equal(w, b.Token()+1, h.TokenOf("b"))
		next := make(chan *lockregistry.Hold)
		go func() {
			h, err := r.Acquire(w.Context(), "a")
			if err != nil {
				w.Error(err)
			}
			next <- h
		}()
		w.Settle()
		w.Release(h)
		a := <-next
		require.Equal(w, h.TokenOf("a")+1, a.Token())
		w.Release(a)
	})
}

// Many callers of several processes ask for several paths each, in any order: nobody waits forever, and exclusion holds.
func TestAcquireAll_HasNoDeadlock(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"spring":          nil,
		"redisson fenced": {lockregistry.WithRedissonLayout(), lockregistry.WithFencing()},
		"without a queue": {kit.Polling, lockregistry.WithPollInterval(2 * time.Millisecond)},
		"without handoff": {lockregistry.WithHandoff(0)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const callers, rounds = 6, 12
				var inside kit.Sections
				var all sync.WaitGroup
				for range 2 {
					r := w.Registry(opts...)
					for i := range callers {
						all.Go(func() {
							for range rounds {
								which, paths := kit.RandomPaths()
								if i == 0 { // one of them asks for only one path
									which, paths = which[:1], paths[:1]
								}
								h, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Minute))
								if err != nil {
									w.Error(err)
									return
								}
								inside.Enter(w, which, func() {})
								if err := h.Release(w.Context()); err != nil && !kit.TookLong(err) && !kit.LeaseOver(err) {
									w.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
			})
		})
	}
}

// The same on a network that fails, with contexts that end at any time: a caller that is told that it has the paths has them
// alone, and in the end nothing is left.
func TestAcquireAll_Alone(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		const registries, callers, rounds = 2, 4, 10
		var inside kit.Sections
		var acquired, failed atomic.Int32
		var all sync.WaitGroup
		flakies := make([]*kit.Flaky, 0, registries)
		for range registries {
			f := w.Flaky()
			flakies = append(flakies, f)
			r := f.Registry(opts...)
			for range callers {
				all.Go(func() {
					for range rounds {
						switch rand.IntN(8) {
						case 0:
							f.Fates("obtain", kit.CutAfter)
						case 1:
							f.Fates("obtain", kit.Cut)
						case 2:
							f.Fates("obtain", kit.SlowReply(time.Duration(rand.IntN(900))*time.Millisecond))
						case 3:
							f.Fates("release", kit.CutAfter)
						}
						ctx, cancel := context.WithTimeout(w.Context(), time.Duration(1+rand.IntN(3000))*time.Millisecond)
						which, paths := kit.RandomPaths()
						var opt []lockregistry.AcquireOption
						if rand.IntN(3) == 0 {
							opt = append(opt, lockregistry.NoWait())
						} else if rand.IntN(2) == 0 {
							opt = append(opt, lockregistry.Wait(time.Second))
						}
						start := time.Now()
						h, err := r.AcquireAll(ctx, paths, opt...)
						cancel()
						if took := time.Since(start); took > 4500*time.Millisecond {
							w.Error("it took ", took)
						}
						if err != nil {
							failed.Add(1)
							continue
						}
						acquired.Add(1)
						inside.Enter(w, which, func() { <-time.After(time.Duration(rand.IntN(30)) * time.Millisecond) })
						if err := h.Release(w.Context()); err != nil && !errors.Is(err, lockregistry.ErrUnavailable) &&
							!errors.Is(err, lockregistry.ErrLockLost) {
							w.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		for _, f := range flakies {
			f.Forget()
		}
		w.Logf("%d acquired, %d failed", acquired.Load(), failed.Load())
		require.Positive(w, acquired.Load())
		require.Positive(w, failed.Load())
		for i := range (kit.Sections{}) {
			w.AwaitGone("orders:path " + strconv.Itoa(i))
		}
	})
}

// A hold on several paths that the program has dropped is left to its leases, like any other.
func TestAcquireAll_ForgottenHoldOnSeveralPaths(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithLease(time.Second), lockregistry.WithRenewal())
		func() {
			w.AcquiresAll(r, []string{"a", "b", "c"})
		}()
		w.Await("the keys expire", func() bool {
			runtime.GC()
			return w.Free("orders:a") && w.Free("orders:b") && w.Free("orders:c")
		})
	})
}

// A slow observer keeps no path from others: it is told of what Redis has granted only after the call has left the paths that
// it did not get, and released the others.
func TestAcquireAll_ASlowObserver(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		var told []string
		var r *lockregistry.Registry
		r = w.RegistryOn(w.Flaky().Client(clustered), append(opts, lockregistry.WithObserver(observe.Observer{
			Acquired: func(_ context.Context, a observe.Acquired) {
				if a.Op != "acquire" || a.Err != nil {
					return
				}
				told = append(told, "acquired "+a.Path)
				require.True(w, w.TryElsewhere(r.Obtain("{2}b")))
				allFree(w, "{1}a", "{1}b", "{3}a")
			},
			Released: func(_ context.Context, e observe.Released) {
				if e.Path != "{2}b" {
					told = append(told, "released "+e.Path)
				}
			},
		}))...)
		w.Known(r)
		h := w.Acquires(w.Registry(opts...).Obtain("{2}a"))
		told = nil
		_, err := r.AcquireAll(w.Context(), []string{"{1}a", "{1}b", "{2}a", "{2}b", "{3}a"}, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{
			"acquired {1}a", "acquired {1}b", "acquired {3}a", "released {1}a", "released {1}b", "released {3}a",
		}, told)
		w.Release(h)
	})
}

// A call that waited has released its paths when an observer is told of the path that it did not get.
func TestAcquireAll_ASlowObserverOfAWait(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		var told []string
		var r *lockregistry.Registry
		r = w.Registry(append(opts, lockregistry.WithObserver(observe.Observer{
			Acquired: func(_ context.Context, a observe.Acquired) {
				if a.Op == "acquire" {
					told = append(told, fmt.Sprint(a.Path, " ", a.Err == nil))
				}
				if a.Err != nil {
					require.True(w, w.TryElsewhere(r.Obtain("a")))
				}
			},
		}))...)
		b := w.Acquires(w.Registry(opts...).Obtain("b"))
		_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.Wait(time.Second))
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{"a true", "b false"}, told)
		w.Release(b)
	})
}

// An observer is told of each path separately, also of each one that is released.
func TestAcquireAll_ObserverOfSeveralPaths(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var mu sync.Mutex
		var told []string
		note := func(what string, path string, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(what, " ", path, " ", err == nil))
		}
		r := w.Registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(_ context.Context, a observe.Acquired) { note(a.Op+" "+a.How.String(), a.Path, a.Err) },
			Released: func(_ context.Context, e observe.Released) { note(e.How.String(), e.Path, e.Err) },
		}))
		h, err := r.AcquireAll(w.Context(), []string{"b", "a"})
		require.NoError(w, err)
		w.Release(h)
		require.ElementsMatch(w, []string{"acquire free a true", "acquire free b true", "released a true", "released b true"}, told)
		told = nil
		b := w.Acquires(w.Registry().Obtain("b"))
		_, err = r.AcquireAll(w.Context(), []string{"b", "a"}, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{"acquire none b false"}, told)
		told = nil
		_, err = r.AcquireAll(w.Context(), []string{"b", "a"}, lockregistry.Wait(time.Second))
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{"acquire free a true", "acquire none b false", "released a true"}, told)
		w.Release(b)
	})
}
