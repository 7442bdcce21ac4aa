package lockregistry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Jobs that every node starts, and that one of them runs.

// once runs a job that does nothing, and tells whether it did.
func (w *world) once(r *lockregistry.Registry, every time.Duration, opts ...lockregistry.OnceOption) bool {
	w.Helper()
	ran, err := r.Once(w.Context(), "42", every, nothing, opts...)
	require.NoError(w, err)
	return ran
}

// The clocks of three nodes differ by up to 3 % of the period. Each tick has one run, and none is skipped.
func TestOnce_EachTick(t *testing.T) {
	t.Parallel()
	const (
		every = time.Minute
		ticks = 30
	)
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				var runs [ticks]atomic.Int32
				begun := time.Now()
				var nodes sync.WaitGroup
				for node := range 3 {
					r := w.registry(lockregistry.WithLayout(layout))
					drawn := rand.New(rand.NewPCG(uint64(node), 42))
					nodes.Go(func() {
						for tick := range ticks {
							at := begun.Add(time.Duration(tick+1)*every + time.Duration(drawn.Int64N(int64(every*3/100))))
							<-time.After(time.Until(at))
							_, err := r.Once(w.Context(), "42", every, func(context.Context) error {
								runs[tick].Add(1)
								<-time.After(time.Duration(drawn.Int64N(int64(time.Second))))
								return nil
							})
							if err != nil {
								w.Error(err)
							}
						}
					})
				}
				nodes.Wait()
				for tick := range runs {
					require.EqualValues(w, 1, runs[tick].Load(), "runs of tick %d", tick)
				}
			})
		})
	}
}

// The mark lives for nine tenths of the period, from when it was obtained, for everybody; or until fn returns, if that is later.
func TestOnce_TheMarkOfOnce(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		const every = 10 * time.Second
		ran, err := r.Once(w.Context(), "42", every, func(context.Context) error {
			w.pass(time.Second)
			return nil
		})
		require.NoError(w, err)
		require.True(w, ran)
		require.Equal(w, 8*time.Second, w.pttl(theKey))
		w.refusedBy(r, other)
		require.False(w, w.once(r, every))
		w.pass(8*time.Second - 2*time.Millisecond)
		require.False(w, w.once(other, every))
		w.pass(4 * time.Millisecond)
		require.True(w, w.once(other, every))
		w.pass(every)

		ran, err = r.Once(w.Context(), "42", every, func(context.Context) error {
			w.pass(every)
			return nil
		})
		require.NoError(w, err)
		require.True(w, ran)
		require.True(w, w.free(theKey))
	})
}

func TestOnce_OnRealServers(t *testing.T) {
	t.Parallel()
	bothLayouts(t, realWorlds, func(w *world, r, other *lockregistry.Registry) {
		const every = time.Second
		var runs atomic.Int32
		job := func(context.Context) error {
			runs.Add(1)
			return nil
		}
		began := time.Now()
		var nodes sync.WaitGroup
		for _, node := range []*lockregistry.Registry{r, r, other, other} {
			nodes.Go(func() {
				if _, err := node.Once(w.Context(), "42", every, job); err != nil {
					w.Error(err)
				}
			})
		}
		nodes.Wait()
		require.EqualValues(w, 1, runs.Load())
		w.awaitGone(theKey)
		require.Greater(w, time.Since(began), every*9/10-10*time.Millisecond)
		require.True(w, w.once(other, every))
	})
}

// It is renewed while fn runs, though the registry renews nothing, and however short its lease is.
func TestOnce_IsRenewed(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		ran, err := r.Once(w.Context(), "42", time.Hour, func(ctx context.Context) error {
			for range 100 {
				w.pass(time.Second)
				require.False(w, w.once(other, time.Hour))
			}
			return ctx.Err()
		}, lockregistry.OnceLease(3*time.Second))
		require.NoError(w, err)
		require.True(w, ran)
		require.Equal(w, 54*time.Minute-100*time.Second, w.pttl(theKey))
	})
}

// A failed run is told to its caller. It counts like any other one, but with RetryOnError.
func TestOnce_ThatFails(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		const every = time.Minute
		enough := errors.New("enough")
		fails := func(context.Context) error { return enough }
		ran, err := r.Once(w.Context(), "42", every, fails)
		require.Equal(w, enough, err)
		require.True(w, ran)
		require.False(w, w.once(other, every))
		w.pass(every)

		ran, err = r.Once(w.Context(), "42", every, fails, lockregistry.RetryOnError())
		require.Equal(w, enough, err)
		require.True(w, ran)
		w.leftNothing()
		require.True(w, w.once(other, every, lockregistry.RetryOnError()))
		require.False(w, w.once(r, every, lockregistry.RetryOnError()))
		w.pass(every)

		for _, panics := range []func(){func() { panic("fn") }, runtime.Goexit} {
			for _, opts := range [][]lockregistry.OnceOption{nil, {lockregistry.RetryOnError()}} {
				ended := make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					_, _ = r.Once(w.Context(), "42", every, func(context.Context) error {
						panics()
						return nil
					}, opts...)
				}()
				<-ended
				require.Equal(w, opts != nil, w.free(theKey))
				w.pass(every)
			}
		}
		w.leftNothing()
	})
}

// Calls of the same process get false, one within the job's own context too. Whatever else asks for the path there would wait
// for itself.
func TestOnce_WithinOnce(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		_, err := r.Once(w.Context(), "42", time.Minute, func(ctx context.Context) error {
			for _, within := range []context.Context{ctx, w.Context(), lockregistry.NewOwner(ctx)} {
				ran, err := r.Once(within, "42", time.Minute, nothing)
				require.NoError(w, err)
				require.False(w, ran)
			}
			deeper, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			require.False(w, elsewhere(func() bool {
				ran, err := r.Once(deeper, "42", time.Minute, nothing)
				return ran || err != nil
			}))
			w.fails(l.Lock(ctx), lockregistry.ErrDeadlock, "lock", theKey)
			_, err := l.Acquire(ctx)
			w.fails(err, lockregistry.ErrDeadlock, "acquire", theKey)
			w.fails(r.Do(ctx, "42", nothing), lockregistry.ErrDeadlock, "do", theKey)
			require.False(w, w.tryElsewhere(l))
			require.True(w, l.IsHeld())
			ran, err := r.Once(ctx, "43", time.Minute, nothing) // another job
			require.True(w, ran)
			return err
		})
		require.NoError(w, err)
	})
}

// A context of another hold on the path is a mistake.
func TestOnce_WithinAHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		refused := func(ctx context.Context) error {
			ran, err := r.Once(ctx, "42", time.Minute, nothing)
			require.False(w, ran)
			w.fails(err, lockregistry.ErrDeadlock, "once", theKey)
			return nil
		}
		require.NoError(w, r.Do(w.Context(), "42", refused))
		w.lock(l)
		require.NoError(w, refused(l.Context(w.Context())))
		require.False(w, w.once(r, time.Minute)) // it does not nest either
		w.unlock(l)
		h := w.acquires(l)
		require.NoError(w, refused(h.Context(w.Context())))
		require.False(w, w.once(r, time.Minute))
		w.releases(h)
		w.leftNothing()
	})
}

// The job is told that it may not be the only one any more, and its caller too.
func TestOnce_ThatIsLost(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r, other := w.registry(), w.registry()
		ran, err := r.Once(w.Context(), "42", time.Minute, func(ctx context.Context) error {
			w.do("DEL", theKey)
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.True(w, w.once(other, time.Minute))
			return nil
		})
		require.True(w, ran)
		w.fails(err, lockregistry.ErrLockLost, "release", theKey)
		require.False(w, w.once(r, time.Minute), "the other one's mark")
	})
}

// The mark stays although the program is being stopped.
func TestOnce_WhoseContextEnds(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		ctx, cancel := context.WithCancel(w.Context())
		ran, err := r.Once(ctx, "42", time.Minute, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		require.True(w, ran)
		require.Equal(w, context.Canceled, err)
		require.Equal(w, 54*time.Second, w.pttl(theKey))
		ran, err = r.Once(ctx, "43", time.Minute, nothing)
		require.False(w, ran)
		w.fails(err, context.Canceled, "once", "orders:43")

		ran, err = r.Once(w.Context(), "44", time.Minute, func(ctx context.Context) error {
			require.NoError(w, r.Close())
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrClosed)
			return nil
		})
		require.True(w, ran)
		require.NoError(w, err)
		require.Equal(w, 54*time.Second, w.pttl("orders:44"))
		ran, err = r.Once(w.Context(), "45", time.Minute, nothing)
		require.False(w, ran)
		w.fails(err, lockregistry.ErrClosed, "once", "orders:45")
	})
}

// When Redis cannot be asked, nobody knows whether the job runs. When the release is not answered the caller is told, and the
// registry goes on until the mark is there.
func TestOnce_DuringAnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		f.all("obtain", cut)
		ran, err := r.Once(w.Context(), "42", time.Minute, nothing)
		require.False(w, ran)
		w.unavailable(err, "once")
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		f.Forget()
		w.pass(time.Minute)

		ctx, cancel := context.WithCancel(w.Context())
		f.all("release", slow(300*time.Millisecond))
		ran, err = r.Once(ctx, "43", time.Hour, func(context.Context) error {
			cancel()
			return nil
		})
		require.True(w, ran)
		require.NoError(w, err, "it waits for the answer although its context has ended")

		f.all("release", silence)
		ran, err = r.Once(w.Context(), "42", time.Hour, nothing)
		require.True(w, ran)
		w.unavailable(err, "release")
		f.Forget()
		w.pass(10 * time.Second)
		require.Greater(w, w.pttl(theKey), 53*time.Minute)
	})
}

func TestOnce_WithBadInput(t *testing.T) {
	r := unusedRegistry(t)
	for _, c := range []struct {
		every time.Duration
		fn    func(context.Context) error
		opt   lockregistry.OnceOption
		says  string
	}{
		{time.Minute, nil, lockregistry.OnceLease(time.Second), "the function is nil"},
		{0, nothing, lockregistry.OnceLease(time.Second), "every(0s): the period must be at least 10ms"},
		{-time.Hour, nothing, lockregistry.OnceLease(time.Second), "every(-1h0m0s): the period must"},
		{10*time.Millisecond - 1, nothing, lockregistry.OnceLease(time.Second), "every(9.999999ms)"},
		{time.Minute, nothing, lockregistry.OnceLease(1), "OnceLease(1ns): a lease must be at least 2ms"},
		{time.Minute, nothing, lockregistry.OnceOption{}, "an OnceOption that no function of this package made"},
	} {
		ran, err := r.Once(t.Context(), "42", c.every, c.fn, c.opt, lockregistry.RetryOnError())
		require.False(t, ran)
		refuses(t, err, "once", "orders:42", c.says)
	}
	_, err := r.Once(t.Context(), "", time.Minute, nothing)
	refuses(t, err, "once", "orders:", "the path is empty")
	var none context.Context
	_, err = r.Once(none, "42", time.Minute, nothing)
	refuses(t, err, "once", "orders:42", "the context is nil")
}
