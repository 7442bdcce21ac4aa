package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// What docs/recipes.md says about sections that release in a goroutine, because Redis is far away.

// behind releases a hold in a goroutine, and returns the result.
func behind(w *kit.World, h *lockregistry.Hold) <-chan error {
	released := make(chan error, 1)
	go func() { released <- h.Release(context.WithoutCancel(w.Context())) }()
	return released
}

// A section costs its caller one round trip instead of two.
func TestFar_ASectionTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.FlakyFar(kit.RoundTrip).Registry(kit.WithLayout(layout))
				w.Known(r)
				took := func(release func(*lockregistry.Hold)) (trips float64) {
					begun := time.Now()
					for i := range 10 {
						release(w.Acquires(r.Obtain(strconv.Itoa(i))))
					}
					return float64(time.Since(begun)) / float64(10*kit.RoundTrip)
				}
				var results []<-chan error
				require.InDelta(w, 2, took(func(h *lockregistry.Hold) { w.Release(h) }), 0.1)
				require.InDelta(w, 1, took(func(h *lockregistry.Hold) { results = append(results, behind(w, h)) }), 0.1)
				for _, released := range results {
					require.NoError(w, <-released)
				}
				w.LeftNothing()
			})
		})
	}
}

// The path is taken until the key is removed: a call that does not wait is refused, one that waits then gets the lock.
func TestFar_ACallStraightBehind(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]bool{"before the release has begun": false, "while the key is removed": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.FlakyFar(kit.RoundTrip).Registry()
				w.Known(r)
				l := r.Obtain("42")
				h := w.Acquires(l)
				var released <-chan error
				if begun {
					released = behind(w, h)
					synctest.Wait() // the release is under way
				}
				w.Fails(l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken, "lock", kit.TheKey)
				got, err := l.TryLock(w.Context())
				require.NoError(w, err)
				require.False(w, got)
				if !begun {
					released = behind(w, h)
				}
				w.Lock(l)
				require.NoError(w, <-released)
				w.Unlock(l)
				w.LeftNothing()
			})
		})
	}
}

// Only the releasing goroutine and an observer learn that the hold was lost: the registry logs nothing.
func TestFar_WhereTheErrorGoes(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct {
		lose []string
		err  error
		end  observe.End
	}{
		"released":           {nil, nil, observe.EndReleased},
		"the key is gone":    {[]string{"DEL", kit.TheKey}, lockregistry.ErrLockLost, observe.EndLost},
		"another's has come": {[]string{"SET", kit.TheKey, "java"}, lockregistry.ErrLockLost, observe.EndLost},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen, log := w.Witness(), &kit.Journal{}
				r := w.FlakyFar(kit.RoundTrip).Registry(seen.Option(), log.Option())
				w.Known(r)
				h := w.Acquires(r.Obtain("42"))
				for len(seen.Released) > 0 {
					<-seen.Released
				}
				if how.lose != nil {
					w.Do(how.lose...)
				}
				released := behind(w, h)
				synctest.Wait()
				require.NoError(w, context.Cause(w.Context()), "the caller goes on")
				require.ErrorIs(w, <-released, how.err)
				told := <-seen.Released
				require.Equal(w, how.end, told.How)
				require.ErrorIs(w, told.Err, how.err)
				w.Pass(time.Second)
				require.Len(w, seen.Lost, len(how.lose)/2, "once")
				require.Empty(w, log.Lines(kit.TheKey))
			})
		})
	}
}

// Shutdown waits for releases, including those that have not begun: otherwise a process that ends would leave keys to their
// leases. It does so even if the first command of a release is lost.
func TestFar_ShutdownWaits(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]kit.Fate{"answered": nil, "lost": {kit.Cut}, "its answer lost": {kit.CutAfter}} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.FlakyFar(kit.RoundTrip)
				r := f.Registry()
				w.Known(r)
				holds := make([]*lockregistry.Hold, 5)
				for i := range holds {
					holds[i] = w.Acquires(r.Obtain(strconv.Itoa(i)))
				}
				for _, h := range holds[1:] {
					_ = behind(w, h)
				}
				synctest.Wait()
				until := make(chan struct{})
				last := kit.HeldUp(until)
				if fates != nil {
					f.Fates("release", fates...)
				}
				f.Fates("release", last)
				_ = behind(w, holds[0])
				done, _ := kit.Shutdown(w, r)
				w.Pass(4 * kit.RoundTrip)
				w.Pending(done)
				close(until)
				require.NoError(w, <-done)
				w.LeftNothing()
			})
		})
	}
}
