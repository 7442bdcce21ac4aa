package lockregistry_test

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

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// plainLayouts runs a test in the worlds with either format, with tokens and without.
func plainLayouts(t *testing.T, test func(w *world, opts ...lockregistry.Option)) {
	t.Helper()
	inPlainLayouts(t, worlds, test)
}

// fakePlainLayouts is plainLayouts for a test that needs fake time.
func fakePlainLayouts(t *testing.T, test func(w *world, opts ...lockregistry.Option)) {
	t.Helper()
	inPlainLayouts(t, fakeWorld, test)
}

func inPlainLayouts(
	t *testing.T, where func(t *testing.T, test func(w *world)), test func(w *world, opts ...lockregistry.Option),
) {
	t.Helper()
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"spring":          nil,
		"spring fenced":   {lockregistry.WithFencing()},
		"redisson":        {lockregistry.WithLayout(lockregistry.LayoutRedisson)},
		"redisson fenced": {lockregistry.WithLayout(lockregistry.LayoutRedisson), lockregistry.WithFencing()},
	} {
		t.Run(name, func(t *testing.T) { where(t, func(w *world) { test(w, opts...) }) })
	}
}

func (w *world) taken(paths ...string) {
	w.Helper()
	for _, path := range paths {
		require.Equal(w, "1", w.do("EXISTS", "orders:"+path), path)
	}
}

func (w *world) allFree(paths ...string) {
	w.Helper()
	for _, path := range paths {
		require.True(w, w.free("orders:"+path), path)
	}
}

func TestAcquireAll(t *testing.T) {
	plainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		f := w.flaky()
		r, other := f.registry(opts...), w.registry(opts...)
		w.known(r)
		tries := f.count("obtain")
		h, err := r.AcquireAll(w.Context(), []string{"c", "a", "c", "b", "a"}, lockregistry.Lease(time.Minute))
		require.NoError(w, err)
		require.LessOrEqual(w, f.count("obtain"), tries+2, "one command, but for the source of a script that the server does not know")
		require.Equal(w, []string{"c", "a", "b"}, h.Paths())
		require.Equal(w, "c", h.Path())
		require.Equal(w, "orders:c", h.Key())
		require.Equal(w, h.Token(), h.TokenOf("c"))
		for _, path := range h.Paths() {
			require.Equal(w, len(opts) > 0 && h.Token() > 0, h.TokenOf(path) > 0)
			_, err := other.Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken)
			_, err = r.Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken)
		}
		require.Zero(w, h.TokenOf("d"))
		w.taken("a", "b", "c")

		ctx := h.Context(w.Context())
		require.Equal(w, h.Token(), w.tokenIn(ctx))
		require.Same(w, ctx, h.Context(w.Context()))
		require.Same(w, ctx, h.Context(ctx))
		before := w.acquired(r.Obtain("0"))
		for _, path := range h.Paths() {
			_, err := r.AcquireAll(ctx, []string{"0", path}, lockregistry.Wait(time.Second))
			w.fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
			_, err = r.Acquire(ctx, path)
			w.fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
			_, err = r.AcquireAll(ctx, []string{"d", path})
			w.fails(err, lockregistry.ErrDeadlock, "acquire", "orders:"+path)
		}
		w.released(before)
		require.Greater(w, h.Remaining(), 50*time.Second)
		require.NoError(w, h.Renew(w.Context(), time.Hour))
		require.Greater(w, h.Remaining(), 50*time.Minute)
		for _, path := range h.Paths() {
			require.Greater(w, w.pttl("orders:"+path), 59*time.Minute)
		}
		w.released(h)
		require.ErrorIs(w, context.Cause(ctx), context.Canceled)
		require.Zero(w, h.Remaining())
		w.allFree("a", "b", "c")
		w.fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", "orders:c")
		require.ErrorIs(w, h.Renew(w.Context(), time.Hour), lockregistry.ErrNotOwner)

		single, err := r.AcquireAll(w.Context(), []string{"a"})
		require.NoError(w, err)
		require.Equal(w, []string{"a"}, single.Paths())
		w.released(single)
	})
}

func TestAcquireAll_OfBadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		for want, call := range map[string]func() error{
			"the list of paths is empty": func() error { _, err := r.AcquireAll(w.Context(), nil); return err },
			"the path is empty":          func() error { _, err := r.AcquireAll(w.Context(), []string{"a", ""}); return err },
			"reserved":                   func() error { _, err := r.AcquireAll(w.Context(), []string{"a", "{b}:waiters"}); return err },
			"the context is nil": func() error {
				_, err := r.AcquireAll(nil, []string{"a"}) //nolint:staticcheck // bad input
				return err
			},
			"20001 paths": func() error {
				paths := numbered(20_001)
				_, err := r.AcquireAll(w.Context(), append(paths, paths...))
				return err
			},
			"AtLeast": func() error {
				_, err := r.AcquireAll(w.Context(), []string{"a"}, lockregistry.AtLeast(time.Second))
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
		w.do("SADD", "orders:b", "x")
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			_, err = w.registry(lockregistry.WithLayout(layout)).AcquireAll(w.Context(), []string{"a", "b"})
			w.fails(err, lockregistry.ErrWrongType, "acquire", "orders:b")
			w.allFree("a")
		}
		w.do("DEL", "orders:b")

		small := w.registry(lockregistry.WithCapacity(2))
		_, err = small.AcquireAll(w.Context(), []string{"a", "b", "c"})
		require.ErrorIs(w, err, lockregistry.ErrCapacity)
		_, err = small.AcquireAll(w.Context(), numbered(20_000))
		require.ErrorIs(w, err, lockregistry.ErrCapacity, "they are not too many for a call")
		w.leftNothing()
		h, err := small.AcquireAll(w.Context(), []string{"a", "b"})
		require.NoError(w, err)
		w.released(h)
		require.NoError(w, r.Close())
		_, err = r.AcquireAll(w.Context(), []string{"a", "b"})
		require.ErrorIs(w, err, lockregistry.ErrClosed)
	})
}

// All or none, at once or until the wait is over.
func TestAcquireAll_WhenOneIsTaken(t *testing.T) {
	plainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		r, other := w.registry(opts...), w.registry(opts...)
		for name, holder := range map[string]*lockregistry.Registry{"here": r, "elsewhere": other} {
			for _, path := range []string{"a", "b", "c"} {
				held := w.acquired(holder.Obtain(path))
				for _, opt := range []lockregistry.LockOption{lockregistry.NoWait(), lockregistry.Wait(300 * time.Millisecond)} {
					_, err := r.AcquireAll(w.Context(), []string{"c", "b", "a"}, opt)
					w.fails(err, lockregistry.ErrTaken, "acquire", "orders:"+path)
					require.NotErrorIs(w, err, lockregistry.ErrUnavailable, name)
					for _, p := range []string{"a", "b", "c"} {
						if p != path {
							w.allFree(p)
						}
					}
				}
				w.released(held)
			}
		}
		h, err := r.AcquireAll(w.Context(), []string{"c", "b", "a"}, lockregistry.NoWait())
		require.NoError(w, err)
		w.released(h)
	})
}

// allOf acquires several paths in a goroutine.
func (w *world) allOf(
	ctx context.Context, r *lockregistry.Registry, paths []string, opts ...lockregistry.LockOption,
) (got <-chan *lockregistry.Hold, failed <-chan error) {
	holds, errs := make(chan *lockregistry.Hold, 1), make(chan error, 1)
	go func() {
		h, err := r.AcquireAll(ctx, paths, opts...)
		if err != nil {
			errs <- err
			return
		}
		holds <- h
	}()
	return holds, errs
}

// A call that waits has nothing but what sorts before what it waits for, and that is renewed meanwhile, and only then.
func TestAcquireAll_InOrder(t *testing.T) {
	fakePlainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		const lease = 3 * time.Second
		r, other := w.registry(opts...), w.registry(opts...)
		b := w.acquired(other.Obtain("b"), lockregistry.Lease(time.Hour))
		got, _ := w.allOf(w.Context(), r, []string{"c", "b", "a"}, lockregistry.AtMost(lease))
		for range 7 { // more than two leases
			w.pass(time.Second)
			w.settle()
			w.taken("a")
			require.Greater(w, w.pttl("orders:a"), time.Second)
			w.allFree("c")
		}
		w.pass(900 * time.Millisecond) // the next renewal is due soon
		w.released(b)
		h := <-got
		require.Greater(w, h.Remaining(), lease-lease/4)
		for _, path := range h.Paths() {
			require.Greater(w, w.pttl("orders:"+path), lease-lease/4, path)
		}
		ctx := h.Context(w.Context())
		<-ctx.Done()
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, "at the end of its time")
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
		w.pass(lease)
		w.allFree("a", "b", "c")
	})
}

// What a call in order has already does not slow down what it does next: the contexts of its paths are no chain.
func TestAcquireAll_OfManyPaths(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		const paths = 3000 // more than one script has
		var lookups []time.Duration
		r, other := w.registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(ctx context.Context, _ observe.Acquired) {
				start := time.Now()
				require.Nil(w, ctx.Value(w))
				lookups = append(lookups, time.Since(start))
			},
		})), w.registry().Obtain("0000")
		w.lock(other)
		all := make([]string, paths)
		for i := range all {
			all[i] = fmt.Sprintf("%04d", i)
		}
		g := w.goroutine()
		var h *lockregistry.Hold
		got := g.start(func() (err error) {
			h, err = r.AcquireAll(w.Context(), all)
			return err
		})
		w.await("it waits for the first path", func() bool { return r.Stats().Tickets == 1 })
		w.unlock(other)
		require.NoError(w, <-got)
		require.GreaterOrEqual(w, len(lookups), paths)
		first, last := slices.Min(lookups), slices.Min(lookups[len(lookups)-100:])
		require.Less(w, last, 20*first)
		require.Len(w, h.Paths(), paths)
		w.released(h)

		h, err := r.AcquireAll(w.Context(), all, lockregistry.NoWait())
		require.NoError(w, err)
		w.released(h)
		require.Empty(w, w.left())
	})
}

// One that is lost while the call waits for another gives all back, and the call begins anew.
func TestAcquireAll_LosesOneWhileItWaits(t *testing.T) {
	fakePlainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		opts = append(slices.Clone(opts), lockregistry.WithLease(3*time.Second))
		r, other := w.registry(opts...), w.registry(opts...)
		c := w.acquired(other.Obtain("c"), lockregistry.Lease(time.Hour))
		got, _ := w.allOf(w.Context(), r, []string{"a", "b", "c"})
		timed, failed := w.allOf(w.Context(), w.registry(opts...), []string{"bd", "c"}, lockregistry.Wait(8*time.Second))
		w.pass(1200 * time.Millisecond) // not just when a renewal is due
		w.taken("a", "b", "bd")
		require.NoError(w, other.ForceUnlock(w.Context(), "b"))
		b := w.acquired(other.Obtain("b"), lockregistry.Lease(time.Hour))
		require.NoError(w, other.ForceUnlock(w.Context(), "bd"))
		d := w.acquired(other.Obtain("bd"), lockregistry.Lease(time.Hour))
		w.pass(1500 * time.Millisecond) // the next renewal finds it out
		w.settle()
		w.taken("a")
		w.released(b)
		w.pass(time.Second)
		w.settle()
		w.taken("a", "b")
		require.Empty(w, got, "c is taken")
		w.released(c)
		w.released(<-got)
		w.fails(<-failed, lockregistry.ErrTaken, "acquire", "orders:bd")
		require.Empty(w, timed)
		w.released(d)
		w.noLocks()
	})
}

// noLocks checks that no lock is taken.
func (w *world) noLocks() {
	w.Helper()
	for _, path := range []string{"a", "b", "bd", "c"} {
		require.True(w, w.free("orders:"+path), path)
	}
}

// A hold on several paths is lost when one of them is; the others are protected until they are released.
func TestAcquireAll_AndOneIsLost(t *testing.T) {
	plainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		r, other := w.registry(opts...), w.registry(opts...)
		for _, lost := range []string{"a", "b", "c"} {
			h, err := r.AcquireAll(w.Context(), []string{"b", "a", "c"})
			require.NoError(w, err)
			ctx := h.Context(w.Context())
			require.NoError(w, r.ForceUnlock(w.Context(), lost))
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.Zero(w, h.Remaining())
			require.ErrorIs(w, h.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
			for _, path := range []string{"a", "b", "c"} {
				free, err := other.Obtain(path).TryLock(w.Context())
				require.NoError(w, err)
				require.Equal(w, path == lost, free)
			}
			w.unlock(other.Obtain(lost))
			w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", "orders:"+lost)
			w.allFree("a", "b", "c")
		}
	})
}

// The outcome of the script is not known: what it may have granted is given back.
func TestAcquireAll_WithALostReply(t *testing.T) {
	plainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		f := w.flaky()
		r := f.registry(opts...)
		w.known(r)
		paths := []string{"a", "b", "c"}
		for _, opt := range [][]lockregistry.LockOption{nil, {lockregistry.NoWait()}} {
			f.next("obtain", cutAfter)
			_, err := r.AcquireAll(w.Context(), paths, opt...)
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			w.await("all are free", func() bool { return w.free("orders:a") && w.free("orders:b") && w.free("orders:c") })
		}
		f.next("obtain", cutAfter)
		h, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(20*time.Second))
		require.NoError(w, err)
		w.taken(paths...)
		w.released(h)
		w.await("all are free", func() bool { return w.free("orders:a") && w.free("orders:b") && w.free("orders:c") })
	})
}

// A call that ends before the answer leaves nothing behind.
func TestAcquireAll_WithALateReply(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		stop, cancel := context.WithCancel(w.Context())
		f.next("obtain", slow(10*time.Second))
		_, failed := w.allOf(stop, r, []string{"a", "b"})
		w.pass(time.Second)
		start := time.Now()
		cancel()
		require.ErrorIs(w, <-failed, context.Canceled)
		require.Less(w, time.Since(start), 500*time.Millisecond)
		w.await("both are free", func() bool { return w.free("orders:a") && w.free("orders:b") })
	})
}

// What is given back when the wait is over does not make the call outlast it.
func TestAcquireAll_InTime(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		b := w.acquired(w.registry().Obtain("b"))
		f.all("release", slow(10*time.Second))
		start := time.Now()
		_, err := r.AcquireAll(w.Context(), []string{"a", "b", "c"}, lockregistry.Wait(2*time.Second))
		w.fails(err, lockregistry.ErrTaken, "acquire", "orders:b")
		require.LessOrEqual(w, time.Since(start), 2500*time.Millisecond)
		w.awaitGone("orders:a")
		w.released(b)
	})
}

// When the wait is over and Redis has not answered, nobody is known to have the paths.
func TestAcquireAll_WhileRedisIsSilent(t *testing.T) {
	fakeWorld(t, func(w *world) {
		for _, what := range map[string]fate{"silent": silence, "cut": cut, "late": slow(5 * time.Second)} {
			f := w.flaky()
			r := f.registry()
			f.all("obtain", what)
			start := time.Now()
			_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.Wait(time.Second))
			w.fails(err, lockregistry.ErrUnavailable, "acquire", "orders:a")
			require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
			f.Forget()
		}
	})
}

// Too few replicas have what the script has written.
func TestAcquireAll_WithoutReplicas(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry(lockregistry.WithReplicas(1, 20*time.Millisecond))
		for _, opt := range []lockregistry.LockOption{lockregistry.NoWait(), lockregistry.Wait(300 * time.Millisecond)} {
			_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, opt)
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			w.awaitGone("orders:a")
			w.awaitGone("orders:b")
		}
	})
}

// A call whose context ends while it waits for replicas says so.
func TestAcquireAll_StopsWaitingForReplicas(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry(lockregistry.WithReplicas(1, 20*time.Second))
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := r.AcquireAll(ctx, []string{"a", "b"})
		w.fails(err, context.DeadlineExceeded, "acquire", "orders:a", lockregistry.ErrUnavailable)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		w.awaitGone("orders:a")
		w.awaitGone("orders:b")
	})
}

// With replicas the holds count once these have what the script has written; else all are given back.
func TestAcquireAll_WithReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.replicated(lockregistry.WithFencing())
		paths := []string{"a", "b"}
		h, err := r.AcquireAll(w.Context(), paths, lockregistry.NoWait())
		require.NoError(w, err)
		for _, key := range []string{"orders:a", "orders:b", "orders:{orders:a}:fencing"} {
			require.Equal(w, "1", w.replica.Command(w.T, "EXISTS", key))
		}
		w.released(h)
		w.replica.Freeze()
		_, err = r.AcquireAll(w.Context(), paths, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.ErrorContains(w, err, "too few replicas have it: 0 of 1")
		w.awaitGone("orders:a")
		w.awaitGone("orders:b")
		_, err = r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Second))
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		w.awaitGone("orders:a")
		w.awaitGone("orders:b")
		w.replica.Thaw()
		h, err = r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		w.released(h)
	})
}

// Goroutines of the process hand single paths on to calls that ask for several, and take them over.
func TestAcquireAll_AtHandOver(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithFencing())
		b := w.acquired(r.Obtain("b"))
		got, _ := w.allOf(w.Context(), r, []string{"b", "a"}, lockregistry.Lease(time.Minute))
		w.settle()
		tries := f.count("obtain")
		w.released(b)
		h := <-got
		require.Equal(w, tries, f.count("obtain"), "b was handed over")
		require.Equal(w, b.Token()+1, h.TokenOf("b"))
		next := make(chan *lockregistry.Hold)
		go func() {
			h, err := r.Acquire(w.Context(), "a")
			if err != nil {
				w.Error(err)
			}
			next <- h
		}()
		w.settle()
		w.released(h)
		a := <-next
		require.Equal(w, h.TokenOf("a")+1, a.Token())
		w.released(a)
	})
}

// sections are counters of who is inside.
type sections [6]atomic.Int32

// enter checks that nobody else is within some of them.
func (s *sections) enter(w testing.TB, which []int, during func()) {
	for _, i := range which {
		if s[i].Add(1) != 1 {
			w.Error("two are inside of ", i)
		}
	}
	during()
	for _, i := range which {
		s[i].Add(-1)
	}
}

// some are paths in an order by chance, with their places.
func some() (which []int, paths []string) {
	which = rand.Perm(len(sections{}))[:1+rand.IntN(4)]
	for _, i := range which {
		paths = append(paths, "path "+strconv.Itoa(i))
	}
	return which, paths
}

// Many callers of several processes ask for several paths each, in any order: nobody waits for ever, and nobody meets another
// one.
func TestAcquireAll_HasNoDeadlock(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"spring":           nil,
		"redisson fenced":  {lockregistry.WithLayout(lockregistry.LayoutRedisson), lockregistry.WithFencing()},
		"without a queue":  {polling, lockregistry.WithPollInterval(2 * time.Millisecond)},
		"without handover": {lockregistry.WithHandoff(0)},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				const callers, rounds = 6, 25
				var inside sections
				var all sync.WaitGroup
				for range 2 {
					r := w.registry(opts...)
					for i := range callers {
						all.Go(func() {
							for range rounds {
								which, paths := some()
								if i == 0 { // one of them asks for a single path only
									which, paths = which[:1], paths[:1]
								}
								h, err := r.AcquireAll(w.Context(), paths, lockregistry.Wait(time.Minute))
								if err != nil {
									w.Error(err)
									return
								}
								inside.enter(w, which, func() {})
								if err := h.Release(w.Context()); err != nil {
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

// The same on a network that fails, with contexts that end at any time: whoever is told that it has the paths has them alone,
// and in the end nothing is left.
func TestAcquireAll_Alone(t *testing.T) {
	fakePlainLayouts(t, func(w *world, opts ...lockregistry.Option) {
		const registries, callers, rounds = 2, 4, 10
		var inside sections
		var acquired, failed atomic.Int32
		var all sync.WaitGroup
		flakies := make([]*flaky, 0, registries)
		for range registries {
			f := w.flaky()
			flakies = append(flakies, f)
			r := f.registry(opts...)
			for range callers {
				all.Go(func() {
					for range rounds {
						switch rand.IntN(8) {
						case 0:
							f.next("obtain", cutAfter)
						case 1:
							f.next("obtain", cut)
						case 2:
							f.next("obtain", slow(time.Duration(rand.IntN(900))*time.Millisecond))
						case 3:
							f.next("release", cutAfter)
						}
						ctx, cancel := context.WithTimeout(w.Context(), time.Duration(1+rand.IntN(3000))*time.Millisecond)
						which, paths := some()
						var opt []lockregistry.LockOption
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
						inside.enter(w, which, func() { <-time.After(time.Duration(rand.IntN(30)) * time.Millisecond) })
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
		for i := range (sections{}) {
			w.awaitGone("orders:path " + strconv.Itoa(i))
		}
	})
}

// On a cluster the paths are in several slots: each is asked once, and nothing is kept when one of them is taken.
func TestAcquireAll_OnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for name, opts := range map[string][]lockregistry.Option{
		"spring":          nil,
		"spring fenced":   {lockregistry.WithFencing()},
		"redisson fenced": {lockregistry.WithLayout(lockregistry.LayoutRedisson), lockregistry.WithFencing()},
	} {
		t.Run(name, func(t *testing.T) {
			var registries []*lockregistry.Registry
			for range 2 {
				client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
				require.NoError(t, err)
				t.Cleanup(client.Close)
				r, err := lockregistry.New(client, "orders", opts...)
				require.NoError(t, err)
				t.Cleanup(func() { _ = r.Close() })
				registries = append(registries, r)
			}
			paths := []string{"a", "{tag}b", "c", "{tag}d", "e", "f"}
			for _, taken := range paths {
				held, err := registries[1].Acquire(t.Context(), taken)
				require.NoError(t, err)
				_, err = registries[0].AcquireAll(t.Context(), paths, lockregistry.NoWait())
				require.ErrorIs(t, err, lockregistry.ErrTaken)
				require.ErrorContains(t, err, "orders:"+taken+":")
				require.NoError(t, held.Release(t.Context()))
				all, err := registries[1].AcquireAll(t.Context(), paths, lockregistry.NoWait())
				require.NoError(t, err, "nothing was kept")
				require.NoError(t, all.Release(t.Context()))
			}
			var inside sections
			var group sync.WaitGroup
			for _, r := range registries {
				for range 4 {
					group.Go(func() {
						for range 20 {
							which, paths := some()
							h, err := r.AcquireAll(t.Context(), paths, lockregistry.Wait(time.Minute))
							if err != nil {
								t.Error(err)
								return
							}
							inside.enter(t, which, func() {})
							if err := h.Release(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			group.Wait()
		})
	}
}

// A hold on several paths that the program has lost is left to its leases, like any other.
func TestAcquireAll_ForgottenHoldOnSeveralPaths(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry(lockregistry.WithLease(time.Second), lockregistry.WithRenewal())
		func() {
			h, err := r.AcquireAll(w.Context(), []string{"a", "b", "c"})
			require.NoError(w, err)
			_ = h.Context(context.Background())
		}()
		w.await("the keys expire", func() bool {
			runtime.GC()
			return w.free("orders:a") && w.free("orders:b") && w.free("orders:c")
		})
	})
}

// Two accounts are locked for a transfer, whichever of them is named first.
func ExampleRegistry_AcquireAll() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	hold, err := registry.AcquireAll(ctx, []string{"bob", "alice"})
	if err != nil {
		panic(err)
	}
	fmt.Println(hold.Paths())
	_, err = registry.AcquireAll(ctx, []string{"alice", "carol"}, lockregistry.NoWait())
	fmt.Println(errors.Is(err, lockregistry.ErrTaken))
	fmt.Println(hold.Release(ctx))
	// Output:
	// [bob alice]
	// true
	// <nil>
}

// An observer is told of each path by itself, and of each one that is given back.
func TestAcquireAll_ObserverOfSeveralPaths(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var mu sync.Mutex
		var told []string
		note := func(what string, path string, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(what, " ", path, " ", err == nil))
		}
		r := w.registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(_ context.Context, a observe.Acquired) { note(a.Op+" "+a.How.String(), a.Path, a.Err) },
			Released: func(_ context.Context, e observe.Released) { note(e.How.String(), e.Path, e.Err) },
		}))
		h, err := r.AcquireAll(w.Context(), []string{"b", "a"})
		require.NoError(w, err)
		w.released(h)
		require.ElementsMatch(w, []string{"acquire free a true", "acquire free b true", "released a true", "released b true"}, told)
		told = nil
		b := w.acquired(w.registry().Obtain("b"))
		_, err = r.AcquireAll(w.Context(), []string{"b", "a"}, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{"acquire none b false"}, told)
		told = nil
		_, err = r.AcquireAll(w.Context(), []string{"b", "a"}, lockregistry.Wait(time.Second))
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		require.Equal(w, []string{"acquire free a true", "acquire none b false", "released a true"}, told)
		w.released(b)
	})
}
