package lease_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Nobody misses the value of a hold that was handed over: it is collected, and not reported.
func TestAcquire_TheValueOfAHoldThatWasHandedOverIsCollected(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const lease = 6 * time.Second // so that renewals are in time on a busy machine
		var log kit.Journal
		r := w.Registry(log.Option(), lockregistry.WithHandoff(time.Hour), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		l := r.Obtain("42")
		waits := kit.KeepOnly(w, l, func(h *lockregistry.Hold) *kit.Acquiring {
			waits := w.Acquiring(l)
			w.Await("it waits", func() bool { return w.Queued(l) })
			w.Release(h)
			return waits
		})
		next := w.Got(waits)
		for range 2 {
			runtime.GC()
			w.AwaitRenewal(kit.TheKey, lease)
		}
		require.Positive(w, next.Remaining())
		require.Empty(w, log.Lines(kit.Forgotten))
		w.Release(next)
	})
}

func doneOf(w *kit.World) func(h *lockregistry.Hold) <-chan struct{} {
	return func(h *lockregistry.Hold) <-chan struct{} { return h.Context(w.Context()).Done() }
}

// nothing is what a program keeps of a hold that it drops.
func nothing(*lockregistry.Hold) any { return nil }

// An unreachable hold is logged and no longer renewed, and its key is left to its lease. Until then nobody gets in, here or
// elsewhere, and then somebody does at once.
func TestAcquire_AHoldThatNobodyCanReach(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	for name, of := range kit.LockKinds {
		worlds := kit.FakeWorld
		if name == "plain" {
			worlds = kit.Worlds
		}
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *kit.World) {
				var log kit.Journal
				f := w.Flaky()
				opts := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
				r, other := f.Registry(append(opts, log.Option())...), w.Registry(opts...)
				kit.KeepOnly(w, of(r), nothing)
				w.Await("it is noticed", func() bool { return w.Noticed(&log) })
				require.Len(w, log.Lines(kit.Forgotten, "stays until its lease ends"), 1)
				renewed := f.Count("renew")
				here, there := r.Obtain("42"), other.Obtain("42")
				if name != "plain" {
					here, there = r.ReadWrite("42").Writer(), other.ReadWrite("42").Writer()
				}
				require.True(w, here.IsHeld() || name == "reader")
				began := time.Now() // before the lease is read, which may end that much later
				left := w.Pttl(kit.TheKey)
				require.Positive(w, left)
				for _, l := range []*lockregistry.Lock{here, there} {
					_, err := l.Acquire(w.Context(), lockregistry.NoWait())
					w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
				}
				h := w.Acquires(here, lockregistry.Wait(2*lease))
				// This process counts the lease from before the last renewal was sent, which may have been under way for a while.
				require.GreaterOrEqual(w, time.Since(began), left-lease/4)
				require.Less(w, time.Since(began), left+kit.AtOnce)
				if w.Fake {
					require.Equal(w, renewed, f.Count("renew"))
				} else { // a command with a late reply is sent again
					require.LessOrEqual(w, f.Count("renew"), renewed+1)
				}
				w.Release(h)
				w.Release(w.Acquires(there))
				require.Len(w, log.Lines(kit.Forgotten), 1)
			})
		})
	}
}

// If nobody can reach a hold, but a goroutine may wait for one of its contexts to end, the hold is logged, and continues until
// the parent of that context has ended.
func TestAcquire_AHoldThatNobodyCanReachButWhoseContextIsWaitedFor(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	for name, of := range kit.LockKinds {
		for _, other := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", another context: ", other), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					var log kit.Journal
					r := w.Registry(log.Option(), lockregistry.WithLease(lease))
					parent, end := context.WithCancel(w.Context())
					done := kit.KeepOnly(w, of(r), func(h *lockregistry.Hold) <-chan struct{} {
						if other {
							h.Context(w.Context())
						}
						return h.Context(parent).Done()
					})
					w.Await("it is noticed", func() bool { return w.Noticed(&log) })
					require.Len(w, log.Lines(kit.Forgotten, "it is still renewed"), 1)
					w.Pass(3 * lease)
					require.True(w, of(r).IsHeld())
					end()
					<-done
					w.Pass(3 * lease)
					require.Equal(w, other, of(r).IsHeld())
					require.Equal(w, !other, len(log.Lines(kit.Forgotten, "stays until its lease ends")) == 1)
					require.Equal(w, !other, w.Free(kit.TheKey))
				})
			})
		}
	}
}

// A hold is not dropped if it was released, or is being released, or if a context or the stack of a call can reach it.
func TestAcquire_AHoldThatIsReachable(t *testing.T) {
	type key struct{}
	kit.FakeWorld(t, func(w *kit.World) {
		var log kit.Journal
		f := w.Flaky()
		const lease = 3 * time.Second
		r := f.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		w.Known(r)
		kit.KeepOnly(w, r.Obtain("released"), func(h *lockregistry.Hold) any {
			w.Release(h)
			return nil
		})
		direct := kit.KeepOnly(w, r.Obtain("direct"), func(h *lockregistry.Hold) context.Context {
			return h.Context(context.Background())
		})
		derived := kit.KeepOnly(w, r.Obtain("derived"), func(h *lockregistry.Hold) context.Context {
			return context.WithoutCancel(context.WithValue(h.Context(w.Context()), key{}, "value"))
		})
		ctx, cancel := forgets2(w, r.Obtain("child"))
		arrives, releasing := make(chan struct{}), make(chan error, 1)
		f.Fates("release", kit.HeldUp(arrives))
		kit.KeepOnly(w, r.Obtain("releasing"), func(h *lockregistry.Hold) any {
			go func() { releasing <- h.Release(w.Context()) }()
			return nil
		})
		w.Settle()
		for range 5 {
			runtime.GC()
		}
		close(arrives)
		require.NoError(w, <-releasing)
		for range 5 {
			w.AwaitRenewal("orders:child", lease)
			runtime.GC()
		}
		for _, path := range []string{"direct", "derived", "child"} {
			require.True(w, r.Obtain(path).IsHeld(), path)
		}
		require.Empty(w, log.Lines(kit.Forgotten))
		require.NoError(w, direct.Err())
		require.NoError(w, derived.Err())
		require.NoError(w, ctx.Err())
		runtime.KeepAlive(direct)
		runtime.KeepAlive(derived)
		cancel()
		w.Await("all are noticed", func() bool {
			w.Collect()
			return len(log.Lines(kit.Forgotten)) == 3
		})
	})
}

func forgets2(w *kit.World, l *lockregistry.Lock) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.Acquires(l).Context(w.Context()), time.Hour)
}

// No method of a hold keeps it reachable forever.
func TestAcquire_AHoldDoesNotKeepItselfReachable(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, keep := range map[string]func(w *kit.World, h *lockregistry.Hold){
		"several contexts": func(w *kit.World, h *lockregistry.Hold) {
			for range 3 {
				h.Context(w.Context())
				h.Context(context.Background())
			}
		},
		"a context of its own context": func(w *kit.World, h *lockregistry.Hold) { h.Context(h.Context(w.Context())) },
		"a context of its own, which never ends": func(_ *kit.World, h *lockregistry.Hold) {
			h.Context(h.Context(context.Background()))
		},
		"its own, detached": func(w *kit.World, h *lockregistry.Hold) {
			h.Context(context.WithoutCancel(h.Context(w.Context())))
		},
		"a context that the hold itself is within": func(_ *kit.World, h *lockregistry.Hold) {
			h.Context(context.WithValue(context.Background(), key{}, h))
		},
		"a child that was cancelled": func(w *kit.World, h *lockregistry.Hold) {
			ctx, cancel := context.WithCancel(h.Context(w.Context()))
			h.Context(ctx)
			cancel()
		},
		"a lock of its context": func(w *kit.World, h *lockregistry.Hold) {
			ctx := h.Context(w.Context())
			_, _ = w.Registry().Obtain("other").TryLock(ctx)
		},
		"a renewal": func(w *kit.World, h *lockregistry.Hold) { require.NoError(w, h.Renew(w.Context(), time.Minute)) },
		"a string":  func(_ *kit.World, h *lockregistry.Hold) { _ = h.String() },
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				r := w.Registry(log.Option())
				kit.KeepOnly(w, r.Obtain("42"), func(h *lockregistry.Hold) any {
					keep(w, h)
					return nil
				})
				w.Await("it is noticed", func() bool {
					runtime.GC()
					return len(log.Lines(kit.Forgotten)) == 1
				})
			})
		})
	}
}

// When readers share a hold, and one of them is dropped, the others keep it for as long as they read.
func TestAcquire_AReaderThatNobodyCanReach(t *testing.T) {
	const lease = time.Second
	kit.FakeWorld(t, func(w *kit.World) {
		var log kit.Journal
		r := w.Registry(log.Option(), lockregistry.WithLease(lease), lockregistry.WithRenewal())
		l, writer := r.ReadWrite("42").Reader(), w.Registry().ReadWrite("42").Writer()
		reader := w.Acquires(l)
		ctx := reader.Context(w.Context())
		kit.KeepOnly(w, l, nothing)
		w.Await("it is noticed", func() bool { return w.Noticed(&log) })
		w.Pass(10 * lease)
		require.NoError(w, ctx.Err(), "the other one is renewed")
		w.Release(reader)
		require.False(w, w.Free(kit.TheKey), "who is forgotten may read still")
		w.Pass(lease / 2)
		next := w.Acquires(l, lockregistry.Lease(lease/10)) // needs no renewal at once
		w.Pass(10 * lease)
		require.Positive(w, next.Remaining(), "who comes meanwhile is renewed")
		w.Release(next)
		require.False(w, w.Free(kit.TheKey))
		began := time.Now()
		w.Release(w.Acquires(writer))
		require.LessOrEqual(w, time.Since(began), lease+150*time.Millisecond)
	})
}

// After Close nothing is reported.
func TestAcquire_AHoldThatNobodyCanReachAfterClose(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		done := kit.KeepOnly(w, r.Obtain("42"), doneOf(w))
		require.NoError(w, r.Close())
		<-done
		for range 5 {
			runtime.GC()
		}
	})
}
