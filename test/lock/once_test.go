package lock_test

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
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The caller learns of a failed run. It counts like any other run, except with RetryOnError.
func TestOnce_ThatFails(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		const every = time.Minute
		enough := errors.New("enough")
		fails := func(context.Context) error { return enough }
		ran, err := r.Once(w.Context(), "42", every, fails)
		require.Equal(w, enough, err)
		require.True(w, ran)
		require.False(w, w.Once(other, every))
		w.Pass(every)

		ran, err = r.Once(w.Context(), "42", every, fails, lockregistry.RetryOnError())
		require.Equal(w, enough, err)
		require.True(w, ran)
		w.LeftNothing()
		require.True(w, w.Once(other, every, lockregistry.RetryOnError()))
		require.False(w, w.Once(r, every, lockregistry.RetryOnError()))
		w.Pass(every)

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
				require.Equal(w, opts != nil, w.Free(kit.TheKey))
				w.Pass(every)
			}
		}
		w.LeftNothing()
	})
}

// Other calls of the same process return false, even one within the job's own context. Any other call for the path within the
// job would wait for itself, and is refused.
func TestOnce_WithinOnce(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		_, err := r.Once(w.Context(), "42", time.Minute, func(ctx context.Context) error {
			for _, within := range []context.Context{ctx, w.Context(), lockregistry.ContextWithOwner(ctx)} {
				ran, err := r.Once(within, "42", time.Minute, kit.DoNothing)
				require.NoError(w, err)
				require.False(w, ran)
			}
			deeper, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			require.False(w, kit.Elsewhere(func() bool {
				ran, err := r.Once(deeper, "42", time.Minute, kit.DoNothing)
				return ran || err != nil
			}))
			w.Fails(l.Lock(ctx), lockregistry.ErrDeadlock, "lock", kit.TheKey)
			_, err := l.Acquire(ctx)
			w.Fails(err, lockregistry.ErrDeadlock, "acquire", kit.TheKey)
			w.Fails(r.Do(ctx, "42", kit.DoNothing), lockregistry.ErrDeadlock, "do", kit.TheKey)
			require.False(w, w.TryElsewhere(l))
			require.True(w, l.IsHeld())
			ran, err := r.Once(ctx, "43", time.Minute, kit.DoNothing) // another job
			require.True(w, ran)
			return err
		})
		require.NoError(w, err)
	})
}

// The clocks of three nodes differ by up to 3 % of the period. Each tick has one run, and none is skipped.
func TestOnce_EachTick(t *testing.T) {
	t.Parallel()
	const (
		every = time.Minute
		ticks = 30
	)
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				var runs [ticks]atomic.Int32
				begun := time.Now()
				var nodes sync.WaitGroup
				for node := range 3 {
					r := w.Registry(kit.WithLayout(layout))
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

// For everybody, the mark lives nine tenths of the period from when it was obtained, or until fn returns, if that is later.
func TestOnce_TheMarkOfOnce(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		const every = 10 * time.Second
		ran, err := r.Once(w.Context(), "42", every, func(context.Context) error {
			w.Pass(time.Second)
			return nil
		})
		require.NoError(w, err)
		require.True(w, ran)
		require.Equal(w, 8*time.Second, w.Pttl(kit.TheKey))
		w.RefusedBy(r, other)
		require.False(w, w.Once(r, every))
		w.Pass(8*time.Second - 2*time.Millisecond)
		require.False(w, w.Once(other, every))
		w.Pass(4 * time.Millisecond)
		require.True(w, w.Once(other, every))
		w.Pass(every)

		ran, err = r.Once(w.Context(), "42", every, func(context.Context) error {
			w.Pass(every)
			return nil
		})
		require.NoError(w, err)
		require.True(w, ran)
		require.True(w, w.Free(kit.TheKey))
	})
}

func TestOnce_OnRealServers(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.RealWorlds, func(w *kit.World, r, other *lockregistry.Registry) {
		const every = 5 * time.Second // within which all of them have asked
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
		w.AwaitGone(kit.TheKey)
		require.Greater(w, time.Since(began), every*9/10-10*time.Millisecond)
		require.True(w, w.Once(other, every))
	})
}

// The mark is renewed while fn runs, even if the registry renews nothing, and however short its lease is.
func TestOnce_IsRenewed(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		ran, err := r.Once(w.Context(), "42", time.Hour, func(ctx context.Context) error {
			for range 100 {
				w.Pass(time.Second)
				require.False(w, w.Once(other, time.Hour))
			}
			return ctx.Err()
		}, lockregistry.Lease(3*time.Second))
		require.NoError(w, err)
		require.True(w, ran)
		require.Equal(w, 54*time.Minute-100*time.Second, w.Pttl(kit.TheKey))
	})
}

// Calling Once with a context of another hold on the path is a mistake.
func TestOnce_WithinAHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		refused := func(ctx context.Context) error {
			ran, err := r.Once(ctx, "42", time.Minute, kit.DoNothing)
			require.False(w, ran)
			w.Fails(err, lockregistry.ErrDeadlock, "once", kit.TheKey)
			return nil
		}
		require.NoError(w, r.Do(w.Context(), "42", refused))
		w.Lock(l)
		require.NoError(w, refused(l.Context(w.Context())))
		require.False(w, w.Once(r, time.Minute)) // nor does it nest
		w.Unlock(l)
		h := w.Acquires(l)
		require.NoError(w, refused(h.Context(w.Context())))
		require.False(w, w.Once(r, time.Minute))
		w.Release(h)
		w.LeftNothing()
	})
}

// The job and its caller learn that it may no longer be the only one.
func TestOnce_ThatIsLost(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		ran, err := r.Once(w.Context(), "42", time.Minute, func(ctx context.Context) error {
			w.Do("DEL", kit.TheKey)
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.True(w, w.Once(other, time.Minute))
			return nil
		})
		require.True(w, ran)
		w.Fails(err, lockregistry.ErrLockLost, "release", kit.TheKey)
		require.False(w, w.Once(r, time.Minute), "the other one's mark")
	})
}

// The mark stays even if the program is being stopped.
func TestOnce_WhoseContextEnds(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		ctx, cancel := context.WithCancel(w.Context())
		ran, err := r.Once(ctx, "42", time.Minute, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		require.True(w, ran)
		require.Equal(w, context.Canceled, err)
		require.Equal(w, 54*time.Second, w.Pttl(kit.TheKey))
		ran, err = r.Once(ctx, "43", time.Minute, kit.DoNothing)
		require.False(w, ran)
		w.Fails(err, context.Canceled, "once", "orders:43")

		ran, err = r.Once(w.Context(), "44", time.Minute, func(ctx context.Context) error {
			require.NoError(w, r.Close())
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrClosed)
			return nil
		})
		require.True(w, ran)
		require.NoError(w, err)
		require.Equal(w, 54*time.Second, w.Pttl("orders:44"))
		ran, err = r.Once(w.Context(), "45", time.Minute, kit.DoNothing)
		require.False(w, ran)
		w.Fails(err, lockregistry.ErrClosed, "once", "orders:45")
	})
}

// When Redis cannot be reached, nobody knows whether the job runs. If the release gets no reply the caller learns that, and the
// registry keeps trying until the mark is there.
func TestOnce_DuringAnOutage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		f.Fate("obtain", kit.Cut)
		ran, err := r.Once(w.Context(), "42", time.Minute, kit.DoNothing)
		require.False(w, ran)
		w.Unavailable(err, "once")
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		f.Forget()
		w.Pass(time.Minute)

		ctx, cancel := context.WithCancel(w.Context())
		f.Fate("release", kit.SlowReply(300*time.Millisecond))
		ran, err = r.Once(ctx, "43", time.Hour, func(context.Context) error {
			cancel()
			return nil
		})
		require.True(w, ran)
		require.NoError(w, err, "it waits for the answer although its context has ended")

		f.Fate("release", kit.Silence)
		ran, err = r.Once(w.Context(), "42", time.Hour, kit.DoNothing)
		require.True(w, ran)
		w.Unavailable(err, "release")
		f.Forget()
		w.Pass(10 * time.Second)
		require.Greater(w, w.Pttl(kit.TheKey), 53*time.Minute)
	})
}

func TestOnce_WithBadInput(t *testing.T) {
	r := kit.UnusedRegistry(t)
	for _, c := range []struct {
		every time.Duration
		fn    func(context.Context) error
		opt   lockregistry.OnceOption
		says  string
	}{
		{time.Minute, nil, lockregistry.Lease(time.Second), "the function is nil"},
		{0, kit.DoNothing, lockregistry.Lease(time.Second), "every(0s): the period must be at least 10ms"},
		{-time.Hour, kit.DoNothing, lockregistry.Lease(time.Second), "every(-1h0m0s): the period must"},
		{10*time.Millisecond - 1, kit.DoNothing, lockregistry.Lease(time.Second), "every(9.999999ms)"},
		{time.Minute, kit.DoNothing, lockregistry.Lease(1), "Lease(1ns): a lease must be at least 2ms"},
		{time.Minute, kit.DoNothing, nil, "an option is nil, or was not made by a function of this package"},
	} {
		ran, err := r.Once(t.Context(), "42", c.every, c.fn, c.opt, lockregistry.RetryOnError())
		require.False(t, ran)
		kit.Refuses(t, err, "once", "orders:42", c.says)
	}
	_, err := r.Once(t.Context(), "", time.Minute, kit.DoNothing)
	kit.Refuses(t, err, "once", "orders:", "the path is empty")
	var none context.Context
	_, err = r.Once(none, "42", time.Minute, kit.DoNothing)
	kit.Refuses(t, err, "once", "orders:42", "the context is nil")
}
