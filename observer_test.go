package lockregistry_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// What an observer is told.

// witness is an observer that remembers.
type witness struct {
	w        *world
	acquired chan observe.Acquired
	released chan observe.Released
	lost     chan observe.Lost
	renewing chan observe.Renewing
}

func (w *world) witness() *witness {
	const many = 1000
	return &witness{
		w, make(chan observe.Acquired, many), make(chan observe.Released, many),
		make(chan observe.Lost, many), make(chan observe.Renewing, many),
	}
}

func (o *witness) option() lockregistry.Option {
	return lockregistry.WithObserver(observe.Observer{
		Acquired: func(_ context.Context, a observe.Acquired) { o.acquired <- a },
		Released: func(_ context.Context, r observe.Released) { o.released <- r },
		Lost:     func(l observe.Lost) { o.lost <- l },
		Renewing: func(r observe.Renewing) { o.renewing <- r },
	})
}

func (o *witness) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	return o.w.registry(append(opts, o.option())...)
}

// got checks the next event about a call that got the lock of 42.
func (o *witness) got(op string, how observe.How) observe.Acquired {
	o.w.Helper()
	a := <-o.acquired
	require.Equal(o.w, how, a.How, a)
	require.Equal(o.w, op, a.Op)
	require.NoError(o.w, a.Err)
	require.Equal(o.w, observe.Subject{Path: "42", Key: theKey, Kind: "lock"}, a.Subject)
	return a
}

func (o *witness) ended(how observe.End) observe.Released {
	o.w.Helper()
	r := <-o.released
	require.Equal(o.w, how, r.How, r)
	require.Equal(o.w, observe.Subject{Path: "42", Key: theKey, Kind: "lock"}, r.Subject)
	return r
}

// none checks that there is nothing that was not looked at.
func (o *witness) none() {
	o.w.Helper()
	require.Empty(o.w, o.acquired)
	require.Empty(o.w, o.released)
	require.Empty(o.w, o.lost)
	require.Empty(o.w, o.renewing)
}

// Each call says who it is, and how it got the lock.
func TestObserver_Calls(t *testing.T) {
	worlds(t, func(w *world) {
		o := w.witness()
		r := o.registry()
		l := r.Obtain("42")
		w.lock(l)
		require.False(w, o.got("lock", observe.HowFree).Waited())
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.True(w, ok)
		o.got("trylock", observe.HowAgain)
		require.NoError(w, r.Do(l.Context(w.Context()), "42", nothing))
		o.got("do", observe.HowAgain)
		held := l.Context(w.Context())
		require.NoError(w, elsewhere(func() error { return r.Do(held, "42", nothing) }))
		o.got("do", observe.HowAgain)
		w.unlock(l)
		w.unlock(l)
		require.NoError(w, o.ended(observe.EndReleased).Err)

		_, err = lockregistry.DoValue(w.Context(), r, "42", func(context.Context) (int, error) { return 0, nil })
		require.NoError(w, err)
		o.got("do", observe.HowFree)
		o.ended(observe.EndReleased)
		w.releases(w.acquires(l))
		o.got("acquire", observe.HowFree)
		o.ended(observe.EndReleased)
		require.True(w, w.once(r, time.Hour))
		o.got("once", observe.HowFree)
		o.ended(observe.EndKept)
		require.False(w, w.once(r, time.Hour))
		refused := <-o.acquired
		require.Equal(w, "once", refused.Op)
		require.Equal(w, observe.HowNone, refused.How)
		require.NoError(w, refused.Err)

		for op, call := range locking {
			err := call(w.Context(), r, lockregistry.NoWait())
			told := <-o.acquired
			require.Equal(w, op, told.Op)
			require.Equal(w, observe.HowNone, told.How)
			if op == "trylock" {
				require.NoError(w, told.Err)
				continue
			}
			require.Equal(w, err, told.Err)
			require.ErrorIs(w, told.Err, lockregistry.ErrTaken)
		}
		var none context.Context
		require.Error(w, r.Obtain("").Lock(none))
		require.ErrorContains(w, (<-o.acquired).Err, "the context is nil")
		o.none()
	})
}

// How long a call waited for goroutines of its process, and how long for all else; how long a hold was held.
func TestObserver_Times(t *testing.T) {
	fakeWorld(t, func(w *world) {
		o := w.witness()
		r := o.registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.do("SET", theKey, "java", "PX", "3000")
		waiting := w.goroutine()
		got := waiting.starts(l)
		w.settle()
		next := w.acquiring(l)
		w.pass(5 * time.Second)
		require.NoError(w, <-got)
		first := o.got("lock", observe.HowFoundExpired)
		require.Zero(w, first.Here)
		require.Equal(w, 3*time.Second, first.Redis)
		require.Positive(w, first.Wakeups.Polls)
		require.True(w, first.Waited())

		require.NoError(w, waiting.unlock(l))
		require.Equal(w, 2*time.Second, o.ended(observe.EndHandedOver).Held)
		h := w.got(next)
		second := o.got("acquire", observe.HowHandedOver)
		require.Equal(w, 5*time.Second, second.Here)
		require.Zero(w, second.Redis)
		require.True(w, second.Waited())
		w.pass(time.Second)
		w.releases(h)
		require.Equal(w, time.Second, o.ended(observe.EndReleased).Held, "its own, not that of the key")

		w.do("SET", theKey, "java", "PX", "3000")
		require.ErrorIs(w, l.Lock(w.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrTaken)
		refused := <-o.acquired
		require.Equal(w, time.Second, refused.Redis)
		require.ErrorIs(w, refused.Err, lockregistry.ErrTaken)
		o.none()
	})
}

// What ended the waiting for another process.
func TestObserver_WaitingForOthers(t *testing.T) {
	realWorlds(t, func(w *world) {
		o := w.witness()
		l, other := o.registry().Obtain("42"), w.registry().Obtain("42")
		queued := func() { w.await("a ticket", func() bool { return w.tickets() == 1 }) }

		held := w.acquires(other)
		waiting := w.acquiring(l)
		queued()
		w.releases(held)
		w.releases(w.got(waiting))
		granted := o.got("acquire", observe.HowGranted)
		require.Positive(w, granted.Wakeups.Messages)
		require.Positive(w, granted.Redis)
		require.Zero(w, granted.Here)
		o.ended(observe.EndReleased)

		w.do("SET", theKey, "java", "PX", "60000")
		waiting = w.acquiring(l)
		queued()
		w.await("tracking", func() bool { return w.tracked() > 0 })
		w.do("DEL", theKey)
		w.releases(w.got(waiting))
		require.Positive(w, o.got("acquire", observe.HowFoundFree).Wakeups.Changes)
		o.ended(observe.EndReleased)

		w.do("SET", theKey, "java", "PX", "2000")
		w.releases(w.acquires(l))
		o.got("acquire", observe.HowFoundExpired)
		o.ended(observe.EndReleased)

		held = w.acquires(other, lockregistry.AtMost(2*time.Second)) // and never released
		w.releases(w.acquires(l))
		o.got("acquire", observe.HowFoundExpired)
		o.ended(observe.EndReleased)
		require.ErrorIs(w, held.Release(w.Context()), lockregistry.ErrLockLost)
		o.none()
	})
}

// Readers share a hold: the first one gets it, the last one gives it back.
func TestObserver_Readers(t *testing.T) {
	fakeWorld(t, func(w *world) {
		o := w.witness()
		rw := o.registry().ReadWrite("42")
		w.lock(rw.Reader())
		w.pass(time.Second)
		joined := w.acquires(rw.Reader())
		w.unlock(rw.Reader())
		w.pass(time.Second)
		w.releases(joined)
		w.lock(rw.Writer())
		w.unlock(rw.Writer())
		for _, want := range []struct {
			how  observe.How
			kind observe.Kind
		}{{observe.HowFree, "reader"}, {observe.HowShared, "reader"}, {observe.HowFree, "writer"}} {
			a := <-o.acquired
			require.Equal(w, want.how, a.How)
			require.Equal(w, want.kind, a.Kind)
		}
		first, second := <-o.released, <-o.released
		require.Equal(w, observe.KindReader, first.Kind)
		require.Equal(w, 2*time.Second, first.Held)
		require.Equal(w, observe.KindWriter, second.Kind)
		o.none()
	})
}

// A loss is told once, with its reason, when it is noticed.
func TestObserver_Losses(t *testing.T) {
	fakeWorld(t, func(w *world) {
		o := w.witness()
		r := o.registry()
		l := r.Obtain("42")
		lost := func(why observe.Loss, held time.Duration) {
			w.Helper()
			told := <-o.lost
			require.Equal(w, observe.Lost{
				Subject: observe.Subject{Path: "42", Key: theKey, Kind: "lock"}, Held: held, Why: why,
			}, told)
			<-o.acquired
		}
		for _, unlock := range []bool{true, false} {
			h := w.acquires(l, lockregistry.AtMost(time.Second))
			ctx := h.Context(w.Context())
			<-ctx.Done()
			lost(observe.LossLeaseOver, 989*time.Millisecond)
			if unlock {
				require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
				require.ErrorIs(w, o.ended(observe.EndLost).Err, lockregistry.ErrLockLost)
			} else {
				w.releases(w.acquires(l, lockregistry.Wait(time.Minute))) // who waits has it evicted
				o.got("acquire", observe.HowFree)
				o.ended(observe.EndReleased)
			}
		}

		w.lock(l)
		w.do("DEL", theKey)
		require.ErrorIs(w, l.Renew(w.Context(), time.Second), lockregistry.ErrLockLost)
		lost(observe.LossKeyGone, 0)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		o.ended(observe.EndLost)

		w.lock(l)
		require.NoError(w, r.ForceUnlock(w.Context(), "42"))
		lost(observe.LossForced, 0)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		o.ended(observe.EndLost)
		w.settle()
		<-time.After(time.Second)
		o.none()
	})
}

// Renewals that begin to fail, and that succeed again; and a release of unknown outcome.
func TestObserver_AnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		o := w.witness()
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal(), o.option())
		w.known(r)
		for range 2 {
			<-o.acquired
			<-o.released
		}
		w.lock(r.Obtain("42"))
		o.got("lock", observe.HowFree)
		f.all("renew", cut)
		failing := <-o.renewing
		require.ErrorIs(w, failing.Err, lockregistry.ErrUnavailable)
		require.Equal(w, 1, failing.Commands)
		f.Forget()
		require.NoError(w, (<-o.renewing).Err)
		f.all("release", cut)
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrUnavailable)
		require.ErrorIs(w, o.ended(observe.EndUnknown).Err, lockregistry.ErrUnavailable)
		f.Forget()
		w.pass(time.Minute)
		for range len(o.renewing) {
			<-o.renewing
		}
		o.none()
	})
}

// Functions about a call run in its goroutine, with its context, when all is settled: they may use the registry, and the very
// lock.
func TestObserver_ObserversMayUseTheRegistry(t *testing.T) {
	fakeWorld(t, func(w *world) {
		type key struct{}
		var r *lockregistry.Registry
		var held, released int
		r = w.registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(ctx context.Context, a observe.Acquired) {
				require.Equal(w, "value", ctx.Value(key{}))
				if a.Op == "lock" {
					held++
					require.True(w, r.Obtain("42").IsHeld())
					ok, err := r.Obtain("42").TryLock(ctx) // it is the owner
					require.NoError(w, err)
					require.True(w, ok)
					require.NoError(w, r.Obtain("42").Unlock(ctx))
				}
			},
			Released: func(ctx context.Context, _ observe.Released) {
				require.Equal(w, "value", ctx.Value(key{}))
				if released++; released == 1 {
					require.True(w, w.free(theKey))
					h, err := r.Obtain("42").Acquire(ctx, lockregistry.NoWait())
					require.NoError(w, err)
					require.NoError(w, h.Release(ctx))
				}
			},
		}))
		ctx := context.WithValue(w.Context(), key{}, "value")
		require.NoError(w, r.Obtain("42").Lock(ctx))
		require.NoError(w, r.Obtain("42").Unlock(ctx))
		require.Equal(w, 1, held)
		require.Equal(w, 2, released)
	})
}

// A slow function delays its own caller only, and in the background neither the announcement of a loss nor renewals.
func TestObserver_ObserversDelayNobodyElse(t *testing.T) {
	fakeWorld(t, func(w *world) {
		block := make(chan struct{})
		r := w.registry(lockregistry.WithRenewal(), lockregistry.WithObserver(observe.Observer{
			Released: func(ctx context.Context, _ observe.Released) {
				if ctx.Value(block) != nil {
					<-block
				}
			},
			Lost: func(observe.Lost) { <-block },
		}))
		slow := w.goroutine()
		ctx := context.WithValue(w.Context(), block, true)
		unlocking := slow.start(func() error { return r.Do(ctx, "42", nothing) })
		w.settle()
		w.pending(unlocking)
		w.lock(r.Obtain("42"))
		w.unlock(r.Obtain("42"))

		for _, path := range []string{"a", "b", "c"} {
			w.lock(r.Obtain(path), lockregistry.Lease(3*time.Second))
		}
		for _, path := range []string{"a", "b"} {
			ended := r.Obtain(path).Context(w.Context())
			w.do("DEL", "orders:"+path)
			<-ended.Done()
			require.ErrorIs(w, context.Cause(ended), lockregistry.ErrLockLost)
		}
		w.pass(time.Minute)
		require.True(w, r.Obtain("c").IsHeld())
		w.unlock(r.Obtain("c"))
		close(block)
		require.NoError(w, <-unlocking)
	})
}

// A panic is logged, and the call goes on.
func TestObserver_ObserversThatPanic(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var mu sync.Mutex
		var log strings.Builder
		r := w.registry(
			lockregistry.WithLogger(slog.New(slog.NewTextHandler(writerFunc(func(p []byte) {
				mu.Lock()
				defer mu.Unlock()
				log.Write(p)
			}), nil))),
			lockregistry.WithObserver(observe.Observer{
				Acquired: func(context.Context, observe.Acquired) { panic("one") },
				Released: func(context.Context, observe.Released) { panic(errors.New("two")) },
				Lost:     func(observe.Lost) { panic("three") },
			}))
		ok, err := r.Obtain("42").TryLock(w.Context())
		require.NoError(w, err)
		require.True(w, ok)
		w.unlock(r.Obtain("42"))
		w.lock(r.Obtain("42"), lockregistry.Lease(time.Second))
		<-r.Obtain("42").Context(w.Context()).Done()
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost)
		w.settle()
		mu.Lock()
		defer mu.Unlock()
		for _, line := range []string{"function=Acquired panic=one", "function=Released panic=two", "function=Lost panic=three"} {
			require.Contains(w, log.String(), `level=ERROR msg="a function of the observer has panicked" `+line)
		}
	})
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// An observer costs no allocation.
func TestObserver_AllocationsOfAnObserver(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		client := w.client() // of both: much depends on whether it has a connection of its own for single commands
		ctx := context.Background()
		allocs := func(l *lockregistry.Lock) float64 {
			const sections = 25
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range sections {
				if err := errors.Join(l.Lock(ctx), l.Unlock(ctx)); err != nil {
					w.Error(err)
				}
			}
			runtime.ReadMemStats(&after)
			return float64(after.Mallocs-before.Mallocs) / sections
		}
		var events int
		bare := w.registryOn(client).Obtain("42")
		observed := w.registryOn(client, lockregistry.WithObserver(observe.Observer{
			Acquired: func(context.Context, observe.Acquired) { events++ },
			Released: func(context.Context, observe.Released) { events++ },
			Lost:     func(observe.Lost) {},
			Renewing: func(observe.Renewing) {},
		})).Obtain("42")
		// The client and other goroutines allocate now and then: so what is usual is compared, and an allocation more would show.
		const rounds = 21
		more := math.Inf(1)
		for try := 0; try < 5 && more >= 0.5; try++ {
			var without, with []float64
			for range rounds {
				without, with = append(without, allocs(bare)), append(with, allocs(observed))
			}
			slices.Sort(without)
			slices.Sort(with)
			more = with[rounds/2] - without[rounds/2]
			w.Logf("%v without, %v with", without[rounds/2], with[rounds/2])
		}
		require.Less(w, more, 0.5)
		require.GreaterOrEqual(w, events, 500)
	})
}

func TestObserver_WithObserverThatMakesNoSense(t *testing.T) {
	_, err := lockregistry.New(nil, "orders", lockregistry.WithObserver(observe.Observer{}))
	complains(t, err, "WithObserver: none of the functions is set")
}

func TestObserver_NamesOfEvents(t *testing.T) {
	require.Equal(t, "found_expired", observe.HowFoundExpired.String())
	require.Equal(t, "none", observe.HowNone.String())
	require.Equal(t, "unknown", observe.EndUnknown.String())
	require.Equal(t, "8", observe.How(8).String())
	require.Equal(t, "5", observe.End(5).String())
}
