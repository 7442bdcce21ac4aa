package lockregistry

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// What a process asks while its calls sleep falls on ticks, whenever they went to sleep.
func TestPulsesFallOnTicks(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		for _, asleep := range []time.Duration{time.Millisecond, clock.Tick / 3, clock.Tick - time.Millisecond} {
			var way *transport
			asked := make(chan clock.Instant, 100)
			way = open(func(context.Context) rueidis.RedisResult {
				asked <- way.clock.Now()
				return rueidis.RedisResult{}
			})
			<-time.After(asleep)
			l := &Lock{key: "orders:42", kind: &kind{layout: newSpringLayout(config{})}}
			way.first.sleep(l)
			<-time.After(3 * time.Second)
			way.first.wake()
			<-time.After(time.Second)
			require.Len(t, asked, 6, asleep)
			for range 6 {
				at := <-asked
				require.Equal(t, at.Ticked(), at, asleep)
			}
		}
	})
}

// The lease of a grant is lengthened at a tick, unless that would be too late for it.
func TestGrantsAreLengthenedOnTicks(t *testing.T) {
	for _, certain := range []time.Duration{time.Second, time.Second / 2} {
		onTicks := 0
		for now := 10 * clock.Instant(clock.Tick); now < 11*clock.Instant(clock.Tick); now += clock.Instant(time.Millisecond) {
			at := lengthening(now, now.Add(certain), trip{certain / 4, true})
			require.GreaterOrEqual(t, now.Until(at), certain/lengthenPart, now)
			require.LessOrEqual(t, now.Until(at), certain/2, now)
			if now.Until(at) < certain/2 {
				require.Equal(t, at.Ticked(), at, now)
				onTicks++
			}
		}
		require.Greater(t, onTicks, 190, certain)
		now := clock.Instant(clock.Tick)
		require.Equal(t, now, lengthening(now, now.Add(certain), trip{certain/3 + 1, true}), "from far away at once")
	}
}
