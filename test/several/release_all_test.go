package several_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Paths that nobody waits for are released by one script, and published as if each were released separately.
func TestReleaseAll_ByOneScript(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r := f.Registry(opts...)
		w.Known(r)
		for round := range 2 {
			h := w.AcquiresAll(r, paths)
			before := f.Count("release")
			w.Released(h.Release(w.Context()))
			allFree(w, paths...)
			if round > 0 { // the server knows the script
				require.Equal(w, before+1, f.Count("release"))
			}
			require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrNotOwner)
		}
	})
}

// A path that others wait for is released separately, so that the release grants it to the first waiter.
func TestReleaseAll_OthersWaitForOne(t *testing.T) {
	inPlainLayouts(t, kit.InOrder(allPlainLayouts), kit.RealWorlds, func(w *kit.World, opts ...lockregistry.Option) {
		opts = append(opts, lockregistry.WithPollInterval(kit.NoPoll))
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r, other := f.Registry(opts...), w.Registry(opts...)
		for range 3 {
			h := w.AcquiresAll(r, paths)
			got, _ := w.AllOf(w.Context(), other, []string{"b"})
			w.Await("it waits in the queue", func() bool { return other.Stats().Tickets == 1 })
			w.Released(h.Release(w.Context()))
			b := <-got
			allFree(w, "a", "c")
			w.Release(b)
			allFree(w, paths...)
		}
		require.Positive(w, other.Stats().Wakeups.Messages, "a call that looks just then may find a grant before its message comes")
		require.Positive(w, f.Count("release_all"))
	})
}

// A path that no longer belongs to the hold is lost, and stays as it is. The other paths are released.
func TestReleaseAll_SomeAreLost(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		r, other := w.Registry(opts...), w.Registry(opts...)
		h := w.AcquiresAll(r, []string{"a", "b", "c", "d"})
		w.Do("DEL", "orders:b", "orders:c")
		b := w.Acquires(other.Obtain("b"))
		err := h.Release(w.Context())
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
		require.ErrorContains(w, err, "orders:b")
		require.ErrorContains(w, err, "orders:c")
		require.NotContains(w, err.Error(), "orders:a")
		require.NotContains(w, err.Error(), "orders:d")
		taken(w, "b")
		allFree(w, "a", "c", "d")
		w.Release(b)
		allFree(w, "b")
	})
}

// When the reply is lost nobody knows whether the paths were released: none counts as lost, and the removals are sent again.
func TestReleaseAll_WithALostReply(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r := f.Registry(opts...)
		w.Known(r)
		for _, fate := range []kit.Fate{kit.Delivered, kit.CutAfter, kit.Cut} { // after the first one the server knows the script
			h := w.AcquiresAll(r, paths)
			f.Fates("release_all", fate)
			require.NotErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
			w.Await("all are free", func() bool { return w.Free("orders:a") && w.Free("orders:b") && w.Free("orders:c") })
		}
	})
}

// A reply that the script was refused means that no path was released.
func TestReleaseAll_Refused(t *testing.T) {
	plainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r := f.Registry(opts...)
		w.Known(r)
		for _, text := range []string{
			"NOPERM this user has no permissions to access one of the keys used as arguments",
			"TRYAGAIN Multiple keys request during rehashing of slot", kit.Loading,
		} {
			h := w.AcquiresAll(r, paths)
			f.Fates("release_all", kit.Refused(text))
			require.NoError(w, h.Release(w.Context()), text)
			allFree(w, paths...)
		}
	})
}

// A proxy keeps paths on several servers, and the registry does not know it, since it has taken them one by one. It releases
// all of them where they are.
func TestReleaseAll_BehindAProxy(t *testing.T) {
	behindProxies(t, func(w *kit.World, relay *kit.Relay, opts ...lockregistry.Option) {
		paths := apart(relay)
		r, other := relay.Registry(opts...), relay.Registry(opts...)
		first, err := other.Acquire(w.Context(), paths[0])
		require.NoError(w, err)
		got := make(chan *lockregistry.Hold)
		go func() {
			h, err := r.AcquireAll(w.Context(), paths)
			if err != nil {
				w.Error(err)
			}
			got <- h
		}()
		w.Await("it waits", func() bool { return r.Stats().Waiters > 0 })
		w.Released(first.Release(w.Context()))
		w.Released((<-got).Release(w.Context()))
		for _, server := range relay.Servers {
			for _, path := range paths {
				require.True(w, server.Free("orders:"+path), path)
			}
		}
	})
}

// A reply that comes too late may be from a former master: the paths do not count as released, and their removals are sent
// again, to the present master.
func TestReleaseAll_WithALateReply(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r := f.Registry(opts...)
		w.Known(r)
		for round := range 2 {
			h, err := r.AcquireAll(w.Context(), paths)
			require.NoError(w, err)
			if round > 0 { // the server knows the script
				f.Fates("release_all", kit.Fate{Lost: true, Reply: "*3\r\n:1\r\n:1\r\n:1\r\n", Linger: 800 * time.Millisecond})
			}
			w.Released(h.Release(w.Context()))
			w.Settle()
			allFree(w, paths...)
		}
	})
}

// Behind a proxy that is known to keep paths on several servers each path is released separately. However many there are, each
// has the time of a release from when its turn comes.
func TestReleaseAll_EachHasItsTime(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const trip = 400 * time.Millisecond
		f, paths := w.FlakyFar(trip), kit.NumberedPaths(1300)
		r := f.Registry()
		w.KnownWell(r)
		h, err := r.AcquireAll(w.Context(), paths)
		require.NoError(w, err)
		f.Fates("GET", kit.Delivered, kit.Fate{Lost: true, Reply: "$-1\r\n"})
		other, err := r.AcquireAll(w.Context(), []string{"a", "b", "c"}) // reveals the proxy
		require.NoError(w, err)
		w.Release(other)
		start, scripts := time.Now(), f.Count("release_all")
		w.Released(h.Release(w.Context()))
		require.Equal(w, scripts, f.Count("release_all"))
		require.Greater(w, time.Since(start), 5*trip, "256 at a time: longer than a release may take")
		require.Empty(w, w.Left())
	})
}

// clustered has a client treat a fake server as the cluster of one that it says it is.
func clustered(o *rueidis.ClientOption) { o.ForceSingleClient = false }

// In a cluster each slot has a script. They are sent at the same time, but not thousands of them.
func TestReleaseAll_OfManySlots(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := w.RegistryOn(f.Client(clustered))
		var paths []string
		for _, slot := range kit.NumberedPaths(300) {
			paths = append(paths, "{"+slot+"}a", "{"+slot+"}b")
		}
		h, err := r.AcquireAll(w.Context(), paths)
		require.NoError(w, err)
		until := make(chan struct{})
		f.Fate("release_all", kit.HeldUp(until))
		done := make(chan error, 1)
		go func() { done <- h.Release(w.Context()) }()
		w.Settle()
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		// Other tests run at the same time.
		require.InDelta(w, 256, bytes.Count(stacks, []byte("queue.releaseTogether(")), 20)
		close(until)
		require.NoError(w, <-done)
		require.Empty(w, w.Left())
	})
}

// A slow observer keeps no path from others: it is told of a path that was handed over only when all are released.
func TestReleaseAll_ASlowObserver(t *testing.T) {
	fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
		told := 0
		r := w.Registry(append(opts, lockregistry.WithObserver(observe.Observer{Released: func(_ context.Context, e observe.Released) {
			if e.How == observe.EndHandedOver {
				told++
				allFree(w, "a", "c")
			}
		}}))...)
		h, err := r.AcquireAll(w.Context(), []string{"b", "a", "c"})
		require.NoError(w, err)
		got, _ := w.AllOf(w.Context(), r, []string{"b"})
		w.Settle()
		w.Release(h)
		w.Release(<-got)
		require.Equal(w, 1, told)
	})
}
