//go:build !race

package alone_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A process that joins the queue has its turn after the others.
func TestQueue_NewProcessHasItsTurn(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		const processes = 4
		w.Contend(processes, 0)
		var all []time.Duration
		for range 5 {
			l := w.Registry().Obtain("42")
			start := time.Now()
			w.Lock(l)
			all = append(all, time.Since(start))
			w.Unlock(l)
		}
		w.Log(all)
		slices.Sort(all)
		most := (processes+1)*100*time.Millisecond + 30*w.Bystander()
		require.LessOrEqual(w, all[len(all)/2], most, "each in front has the lock for a handoff limit")
		require.Less(w, slices.Max(all), kit.AtOnce)
	})
}

// When the first in the queue is dead, the second one notices the release of a Java holder, and serves the queue without
// skipping anybody.
func TestQueue_DeadProcessBehindAJavaHolder(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		var all []time.Duration
		for range 3 {
			w.Do("SET", kit.TheKey, "ad5f8a4e-6c0f-4ab2-8a55-9d0f6a1a7c11", "PX", "60000")
			ctx, cancel := context.WithCancel(w.Context())
			dead, channel := w.JoinsOn(ctx, lockregistry.WithPollInterval(kit.NoPoll))
			w.Watched()
			alive := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
			last := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
			w.Await("both are told of changes", func() bool { return w.Info("stats", "tracking_total_items") == 2 })
			dead.Net.Down()
			w.Await("the server has noticed", func() bool { return !slices.Contains(w.Channels(), channel) })
			start := time.Now()
			w.Do("DEL", kit.TheKey)
			all = append(all, w.Takes(start, alive.Result))
			w.Pending(last.Result)
			require.NoError(w, alive.Unlock(alive.Lock))
			require.NoError(w, <-last.Result)
			require.NoError(w, last.Unlock(last.Lock))
			cancel()
			require.ErrorIs(w, <-dead.Result, context.Canceled)
			dead.Net.Forget()
		}
		w.Within(50*time.Millisecond, all)
	})
}
