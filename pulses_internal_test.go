package lockregistry

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A process whose calls sleep asks something twice a second, and nothing once they are awake.
func TestPulsesWhileCallsSleep(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		asked := make(chan struct{}, 100)
		way := open(func(context.Context) rueidis.RedisResult {
			asked <- struct{}{}
			return rueidis.RedisResult{}
		})
		way.first.sleep(&Lock{key: "orders:42", kind: &kind{layout: protocol.NewSpring(protocol.Config{})}})
		<-time.After(3*time.Second + time.Millisecond)
		way.first.wake()
		<-time.After(time.Second)
		require.Len(t, asked, 6)
	})
}

func TestWhenGrantsAreLengthened(t *testing.T) {
	now := clock.Instant(time.Minute)
	for _, certain := range []time.Duration{time.Second, time.Second / 2} {
		require.Equal(t, now.Add(certain/3), lengthening(now, now.Add(certain), trip{certain / 4, true}))
		require.Equal(t, now, lengthening(now, now.Add(certain), trip{certain/3 + 1, true}), "from far away at once")
	}
}
