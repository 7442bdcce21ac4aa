package transport

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Whoever asks for a fresh connection while all that make one hang is told that there is none to be had, and does not ask again
// at once.
func TestFreshConns_AllThatMakeOneHang(t *testing.T) {
	withShard(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		f := &open(nil).First.fresh
		for range mostMaking {
			f.hanging = append(f.hanging, f.shard.client.Clock.Now())
		}
		asked := 0
		conn, none := f.get(func() bool { asked++; return asked > 1 })
		require.Nil(t, conn)
		require.True(t, none)
		f.hanging = []clock.Instant{}
	})
}
