package waiting_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A call whose reply is lost leaves the queue, and its process repeats that for a while, since the command may arrive late. Its
// cost on the server must not grow with the queue: the slower a server, the more replies are late, and the more calls leave.
func TestQueue_LeavingCostsTheSameHoweverManyWait(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(time.Hour))
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		f.Fate("obtain_queued", kit.CutAfter)
		ctx, cancel := context.WithCancel(w.Context())
		result := w.Goroutine().Start(func() error { return l.Lock(ctx) })
		w.Await("a second attempt", func() bool { return f.Count("obtain_queued") >= 2 })
		cancel()
		require.ErrorIs(w, <-result, context.Canceled)
		w.Await("it leaves", func() bool { return f.Count("release") > 0 })
		w.Await("all its tickets are gone", func() bool { return w.Tickets() == 0 })
		removals := f.Sent("release")
		leaves := removals[len(removals)-1]

		cost := func(waiting string) (micros int) {
			w.Do("EVAL", `for i = redis.call('ZCARD', KEYS[1]), ARGV[1] + 1 do
				redis.call('ZADD', KEYS[1], 1e15 + i, 'somebody:' .. 1000 + i .. '|60000')
			end`, "1", kit.TheQueue, waiting)
			micros = math.MaxInt
			for range 20 { // on a busy machine a script may be interrupted
				before := w.CommandStat("eval", "usec")
				w.Arrives(leaves)
				micros = min(micros, w.CommandStat("eval", "usec")-before)
			}
			return micros
		}
		few, many := cost("30"), cost("3000")
		w.Logf("%d µs among 30, %d among 3000", few, many)
		require.LessOrEqual(w, many, 3*few)
	})
}
