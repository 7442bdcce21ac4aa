package lockregistry

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// What a process asks while its calls sleep falls on ticks, whenever they went to sleep.
func TestPulsesFallOnTicks(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		for _, asleep := range []time.Duration{time.Millisecond, tick / 3, tick - time.Millisecond} {
			var way *transport
			asked := make(chan instant, 100)
			way = open(func(context.Context) rueidis.RedisResult {
				asked <- way.clock.now()
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
				require.Equal(t, at.ticked(), at, asleep)
			}
		}
	})
}

// The lease of a grant is lengthened at a tick, unless that would be too late for it.
func TestGrantsAreLengthenedOnTicks(t *testing.T) {
	for _, certain := range []time.Duration{time.Second, time.Second / 2} {
		onTicks := 0
		for now := 10 * instant(tick); now < 11*instant(tick); now += instant(time.Millisecond) {
			at := lengthening(now, now.add(certain), trip{certain / 4, true})
			require.GreaterOrEqual(t, now.until(at), certain/lengthenPart, now)
			require.LessOrEqual(t, now.until(at), certain/2, now)
			if now.until(at) < certain/2 {
				require.Equal(t, at.ticked(), at, now)
				onTicks++
			}
		}
		require.Greater(t, onTicks, 190, certain)
		now := instant(tick)
		require.Equal(t, now, lengthening(now, now.add(certain), trip{certain/3 + 1, true}), "from far away at once")
	}
}
