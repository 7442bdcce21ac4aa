package operator_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// gotNone checks that no event is left.
func gotNone(o *kit.Witness) {
	o.W.Helper()
	require.Empty(o.W, o.Acquired)
	require.Empty(o.W, o.Released)
	require.Empty(o.W, o.Lost)
	require.Empty(o.W, o.Renewing)
}

// Each call is reported with its name, and with how it got the lock.
func TestObserver_Calls(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		o := w.Witness()
		r := o.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		require.False(w, o.Got("lock", observe.HowFree).Waited())
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.True(w, ok)
		o.Got("trylock", observe.HowAgain)
		require.NoError(w, r.Do(l.Context(w.Context()), "42", kit.DoNothing))
		o.Got("do", observe.HowAgain)
		held := l.Context(w.Context())
		require.NoError(w, kit.Elsewhere(func() error { return r.Do(held, "42", kit.DoNothing) }))
		o.Got("do", observe.HowAgain)
		w.Unlock(l)
		w.Unlock(l)
		require.NoError(w, ended(o, observe.EndReleased).Err)

		_, err = lockregistry.DoValue(w.Context(), r.Obtain("42"), func(context.Context) (int, error) { return 0, nil })
		require.NoError(w, err)
		o.Got("do", observe.HowFree)
		ended(o, observe.EndReleased)
		w.Release(w.Acquires(l))
		o.Got("acquire", observe.HowFree)
		ended(o, observe.EndReleased)
		require.True(w, w.Once(r, time.Hour))
		o.Got("once", observe.HowFree)
		ended(o, observe.EndKept)
		require.False(w, w.Once(r, time.Hour))
		refused := <-o.Acquired
		require.Equal(w, "once", refused.Op)
		require.Equal(w, observe.HowNone, refused.How)
		require.NoError(w, refused.Err)

		for op, call := range kit.LockingCalls {
			err := call(w.Context(), r, lockregistry.NoWait())
			told := <-o.Acquired
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
		require.ErrorContains(w, (<-o.Acquired).Err, "the context is nil")
		gotNone(o)
	})
}

// Reported times: how long a call waited for goroutines of its process, how long for everything else, and how long a hold was
// held.
func TestObserver_Times(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		o := w.Witness()
		r := o.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.Do("SET", kit.TheKey, "java", "PX", "3000")
		waiting := w.Goroutine()
		got := waiting.Starts(l)
		w.Settle()
		next := w.Acquiring(l)
		w.Pass(5 * time.Second)
		require.NoError(w, <-got)
		first := o.Got("lock", observe.HowFoundExpired)
		require.Zero(w, first.Here)
		require.Equal(w, 3*time.Second, first.Redis)
		require.Positive(w, first.Wakeups.Polls)
		require.True(w, first.Waited())

		require.NoError(w, waiting.Unlock(l))
		require.Equal(w, 2*time.Second, ended(o, observe.EndHandedOver).Held)
		h := w.Got(next)
		second := o.Got("acquire", observe.HowHandedOver)
		require.Equal(w, 5*time.Second, second.Here)
		require.Zero(w, second.Redis)
		require.True(w, second.Waited())
		w.Pass(time.Second)
		w.Release(h)
		require.Equal(w, time.Second, ended(o, observe.EndReleased).Held, "its own, not that of the key")

		w.Do("SET", kit.TheKey, "java", "PX", "3000")
		require.ErrorIs(w, l.Lock(w.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrTaken)
		refused := <-o.Acquired
		require.Equal(w, time.Second, refused.Redis)
		require.ErrorIs(w, refused.Err, lockregistry.ErrTaken)
		gotNone(o)
	})
}

// It is reported what ended a wait for another process.
func TestObserver_WaitingForOthers(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		o := w.Witness()
		l, other := o.Registry().Obtain("42"), w.Registry().Obtain("42")
		queued := func() { w.Await("a ticket", func() bool { return w.Tickets() == 1 }) }

		held := w.Acquires(other)
		waiting := w.Acquiring(l)
		queued()
		w.Release(held)
		w.Release(w.Got(waiting))
		granted := o.Got("acquire", observe.HowGranted)
		require.Positive(w, granted.Wakeups.Messages+granted.Wakeups.Changes) // the change of the key may arrive first
		require.Positive(w, granted.Redis)
		require.Zero(w, granted.Here)
		ended(o, observe.EndReleased)

		w.Do("SET", kit.TheKey, "java", "PX", "60000")
		waiting = w.Acquiring(l)
		queued()
		w.Await("tracking", func() bool { return w.Tracked() > 0 })
		w.Do("DEL", kit.TheKey)
		w.Release(w.Got(waiting))
		require.Positive(w, o.Got("acquire", observe.HowFoundFree).Wakeups.Changes)
		ended(o, observe.EndReleased)

		w.Do("SET", kit.TheKey, "java", "PX", "5000")
		w.Release(w.Acquires(l))
		o.Got("acquire", observe.HowFoundExpired)
		ended(o, observe.EndReleased)

		held = w.Acquires(other, lockregistry.AtMost(5*time.Second)) // and never released
		w.Release(w.Acquires(l))
		o.Got("acquire", observe.HowFoundExpired)
		ended(o, observe.EndReleased)
		require.ErrorIs(w, held.Release(w.Context()), lockregistry.ErrLockLost)
		gotNone(o)
	})
}

// In fake time the message about the grant always comes.
func TestObserver_WokenByAMessage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		o := w.Witness()
		l, held := o.Registry().Obtain("42"), w.Acquires(w.Registry().Obtain("42"))
		waiting := w.Acquiring(l)
		w.Settle()
		w.Release(held)
		w.Release(w.Got(waiting))
		require.EqualValues(w, 1, o.Got("acquire", observe.HowGranted).Wakeups.Messages)
	})
}

// Readers share a hold: the first one gets it, the last one releases it.
func TestObserver_Readers(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		o := w.Witness()
		rw := o.Registry().ReadWrite("42")
		w.Lock(rw.Reader())
		w.Pass(time.Second)
		joined := w.Acquires(rw.Reader())
		w.Unlock(rw.Reader())
		w.Pass(time.Second)
		w.Release(joined)
		w.Lock(rw.Writer())
		w.Unlock(rw.Writer())
		for _, want := range []struct {
			how  observe.How
			kind observe.Kind
		}{{observe.HowFree, "reader"}, {observe.HowShared, "reader"}, {observe.HowFree, "writer"}} {
			a := <-o.Acquired
			require.Equal(w, want.how, a.How)
			require.Equal(w, want.kind, a.Kind)
		}
		first, second := <-o.Released, <-o.Released
		require.Equal(w, observe.KindReader, first.Kind)
		require.Equal(w, 2*time.Second, first.Held)
		require.Equal(w, observe.KindWriter, second.Kind)
		gotNone(o)
	})
}

// Candidates and leaders have a kind of their own: their waits and terms take days. When a leader hands its hold to another owner
// of its process, the hold has the kind of that owner.
func TestObserver_Leaders(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		o := w.Witness()
		r := o.Registry(lockregistry.WithHandoff(time.Hour))
		subject := observe.Subject{Path: "42", Key: kit.TheKey, Kind: observe.KindLeader}
		acquired := func(how observe.How, err error) {
			w.Helper()
			a := <-o.Acquired
			require.Equal(w, subject, a.Subject)
			require.Equal(w, how, a.How)
			require.ErrorIs(w, a.Err, err)
		}
		campaign := func(r *lockregistry.Registry) (c *leader.Candidate, stop func()) {
			w.Helper()
			c, err := leader.New(r, "42", func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
			require.NoError(w, err)
			ctx, cancel := context.WithCancel(w.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			w.Settle()
			return c, func() {
				w.Helper()
				cancel()
				require.ErrorIs(w, <-ended, context.Canceled)
			}
		}
		leads, stopLeader := campaign(r)
		require.True(w, leads.IsLeader())
		acquired(observe.HowFree, nil)
		_, stopStandby := campaign(o.Registry())
		w.Pass(10 * time.Second)
		stopStandby()
		acquired(observe.HowNone, context.Canceled)

		next := w.Acquiring(r.Obtain("42"))
		w.Settle()
		stopLeader()
		require.Equal(w, observe.Released{Subject: subject, Held: 10 * time.Second, How: observe.EndHandedOver}, <-o.Released)
		w.Release(w.Got(next))
		o.Got("acquire", observe.HowHandedOver)
		ended(o, observe.EndReleased)

		lead, stopLeader := campaign(r)
		acquired(observe.HowFree, nil)
		w.Do("DEL", kit.TheKey)
		w.Await("a loss", func() bool { return len(o.Lost) > 0 })
		require.Equal(w, subject, (<-o.Lost).Subject)
		require.Equal(w, observe.EndLost, (<-o.Released).How)
		w.Await("it leads again", lead.IsLeader)
		acquired(observe.HowFree, nil)
		stopLeader()
		require.Equal(w, subject, (<-o.Released).Subject)
		gotNone(o)
	})
}

// A loss is reported once, with its reason, when it is noticed.
func TestObserver_Losses(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		o := w.Witness()
		r := o.Registry()
		l := r.Obtain("42")
		lost := func(why observe.Loss, held time.Duration) {
			w.Helper()
			told := <-o.Lost
			require.Equal(w, observe.Lost{
				Subject: observe.Subject{Path: "42", Key: kit.TheKey, Kind: "lock"}, Held: held, Why: why,
			}, told)
			<-o.Acquired
		}
		for _, unlock := range []bool{true, false} {
			h := w.Acquires(l, lockregistry.AtMost(time.Second))
			ctx := h.Context(w.Context())
			<-ctx.Done()
			lost(observe.LossLeaseOver, 989*time.Millisecond)
			if unlock {
				require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
				require.ErrorIs(w, ended(o, observe.EndLost).Err, lockregistry.ErrLockLost)
			} else {
				w.Release(w.Acquires(l, lockregistry.Wait(time.Minute))) // the waiter has it evicted
				o.Got("acquire", observe.HowFree)
				ended(o, observe.EndReleased)
			}
		}

		w.Lock(l)
		w.Do("DEL", kit.TheKey)
		require.ErrorIs(w, l.Renew(w.Context(), time.Second), lockregistry.ErrLockLost)
		lost(observe.LossKeyGone, 0)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		ended(o, observe.EndLost)

		w.Lock(l, lockregistry.Lease(time.Second)) // nobody looks at it before Unlock
		w.Pass(2 * time.Second)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		lost(observe.LossLeaseOver, 2*time.Second)
		ended(o, observe.EndLost)

		w.Lock(l)
		w.Do("DEL", kit.TheKey)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		lost(observe.LossKeyGone, 0)
		ended(o, observe.EndLost)

		w.Lock(l)
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
		lost(observe.LossForced, 0)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		ended(o, observe.EndLost)
		w.Settle()
		<-time.After(time.Second)
		gotNone(o)
	})
}

// Reported: renewals that begin to fail, and that succeed again; and a release with an unknown outcome.
func TestObserver_AnOutage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		o := w.Witness()
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal(), o.Option())
		w.Known(r)
		for range 2 {
			<-o.Acquired
			<-o.Released
		}
		w.Lock(r.Obtain("42"))
		o.Got("lock", observe.HowFree)
		f.Fate("renew", kit.Cut)
		failing := <-o.Renewing
		require.ErrorIs(w, failing.Err, lockregistry.ErrUnavailable)
		require.Equal(w, 1, failing.Commands)
		f.Forget()
		require.NoError(w, (<-o.Renewing).Err)
		f.Fate("release", kit.Cut)
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrUnavailable)
		require.ErrorIs(w, ended(o, observe.EndUnknown).Err, lockregistry.ErrUnavailable)
		f.Forget()
		w.Pass(time.Minute)
		for range len(o.Renewing) {
			<-o.Renewing
		}
		gotNone(o)
	})
}

// Functions about a call run in its goroutine, with its context, when everything is settled: they may use the registry, and
// even the same lock.
func TestObserver_ObserversMayUseTheRegistry(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		type key struct{}
		var r *lockregistry.Registry
		var held, released int
		r = w.Registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(ctx context.Context, a observe.Acquired) {
				require.Equal(w, "value", ctx.Value(key{}))
				if a.Op == "lock" {
					held++
					require.True(w, r.Obtain("42").IsHeld())
					ok, err := r.Obtain("42").TryLock(ctx) // it is the owner
					require.NoError(w, err)
					require.True(w, ok)
					w.Released(r.Obtain("42").Unlock(ctx))
				}
			},
			Released: func(ctx context.Context, _ observe.Released) {
				require.Equal(w, "value", ctx.Value(key{}))
				if released++; released == 1 {
					require.True(w, w.Free(kit.TheKey))
					h, err := r.Obtain("42").Acquire(ctx, lockregistry.NoWait())
					require.NoError(w, err)
					w.Released(h.Release(ctx))
				}
			},
		}))
		ctx := context.WithValue(w.Context(), key{}, "value")
		require.NoError(w, r.Obtain("42").Lock(ctx))
		w.Released(r.Obtain("42").Unlock(ctx))
		require.Equal(w, 1, held)
		require.Equal(w, 2, released)
	})
}

// A slow function delays only its own caller. In the background it delays neither the report of a loss nor renewals.
func TestObserver_ObserversDelayNobodyElse(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		block := make(chan struct{})
		r := w.Registry(lockregistry.WithRenewal(), lockregistry.WithObserver(observe.Observer{
			Released: func(ctx context.Context, _ observe.Released) {
				if ctx.Value(block) != nil {
					<-block
				}
			},
			Lost: func(observe.Lost) { <-block },
		}))
		slow := w.Goroutine()
		ctx := context.WithValue(w.Context(), block, true)
		unlocking := slow.Start(func() error { return r.Do(ctx, "42", kit.DoNothing) })
		w.Settle()
		w.Pending(unlocking)
		w.Lock(r.Obtain("42"))
		w.Unlock(r.Obtain("42"))

		for _, path := range []string{"a", "b", "c"} {
			w.Lock(r.Obtain(path), lockregistry.Lease(3*time.Second))
		}
		for _, path := range []string{"a", "b"} {
			ended := r.Obtain(path).Context(w.Context())
			w.Do("DEL", "orders:"+path)
			<-ended.Done()
			require.ErrorIs(w, context.Cause(ended), lockregistry.ErrLockLost)
		}
		w.Pass(time.Minute)
		require.True(w, r.Obtain("c").IsHeld())
		w.Unlock(r.Obtain("c"))
		close(block)
		require.NoError(w, <-unlocking)
	})
}

// A panic is logged, and the call goes on.
func TestObserver_ObserversThatPanic(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var mu sync.Mutex
		var log strings.Builder
		r := w.Registry(
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
		w.Unlock(r.Obtain("42"))
		w.Lock(r.Obtain("42"), lockregistry.Lease(time.Second))
		<-r.Obtain("42").Context(w.Context()).Done()
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost)
		w.Settle()
		mu.Lock()
		defer mu.Unlock()
		for _, line := range []string{"function=Acquired panic=one", "function=Released panic=two", "function=Lost panic=three"} {
			require.Contains(w, log.String(), `level=ERROR msg="a function of the observer panicked" `+line)
		}
	})
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestObserver_WithObserverThatMakesNoSense(t *testing.T) {
	_, err := lockregistry.New(nil, "orders", lockregistry.WithObserver(observe.Observer{}))
	kit.Complains(t, err, "WithObserver: none of the functions is set")
}

func TestObserver_NamesOfEvents(t *testing.T) {
	require.Equal(t, "found_expired", observe.HowFoundExpired.String())
	require.Equal(t, "none", observe.HowNone.String())
	require.Equal(t, "unknown", observe.EndUnknown.String())
	require.Equal(t, "8", observe.How(8).String())
	require.Equal(t, "5", observe.End(5).String())
}

func ended(o *kit.Witness, how observe.End) observe.Released {
	o.W.Helper()
	r := <-o.Released
	require.Equal(o.W, how, r.How, r)
	require.Equal(o.W, observe.Subject{Path: "42", Key: kit.TheKey, Kind: "lock"}, r.Subject)
	return r
}
