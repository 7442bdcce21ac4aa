package transport

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Whoever asks for a fresh connection while all that make one hang is told that there is none to be had, and does not ask again
// at once.
func TestFreshConns_AllThatMakeOneHang(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		f := open(nil).First.fresh
		f.dials.hanging = []clock.Instant{f.now().Add(-poolWait)}
		asked := 0
		conn, none := f.get(func() bool { asked++; return asked > 1 })
		require.Nil(t, conn)
		require.True(t, none)
	})
}

// That the attempts of others hang says nothing about those of a suspect node: it makes its own before it gives up.
func TestFreshConns_OthersHang(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		node := open(nil).First
		now := node.client.Clock.Now()
		node.dials.hanging = []clock.Instant{now.Add(-poolWait)}
		node.belief.FoundSilent(now, now)
		asked := 0
		_, none := node.fresh.get(func() bool { asked++; return asked > 1 })
		require.False(t, none)
	})
}

// dedicating notes when it was asked for a connection.
type dedicating struct {
	distantClient
	mu    sync.Mutex
	times []time.Time
}

func (c *dedicating) Dedicate() (rueidis.DedicatedClient, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Now())
	return c.distantClient.Dedicate()
}

// While a server is silent one connection to it is made at a time, whoever wants one, and there is a pause, which grows to a
// second, before the next.
func TestFreshConns_PauseAfterOneThatHasFailed(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		c := &dedicating{distantClient: distantClient{client, &distant{}}}
		defer c.d.freeze()()
		way := New(c)
		way.First.belief.FoundSilent(0, way.Clock.Now())
		end := way.Clock.Now().Add(lasts)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				conn, none := way.First.fresh.get(func() bool { return way.Clock.Now() >= end })
				if conn != nil || none {
					t.Error("there is one, or never will be")
				}
			})
		}
		all.Wait()
		synctest.Wait()
		c.mu.Lock() // one may be asked for by now
		times := slices.Clone(c.times)
		c.mu.Unlock()
		pauses := 0
		for i, at := range times[1:] {
			if at.Sub(times[i]) > belief.Connect/2 {
				pauses++
			}
		}
		require.GreaterOrEqual(t, pauses, 2, times)
		require.LessOrEqual(t, len(times), int(lasts/askLimit), "each is asked for its age")
		<-time.After(time.Minute)
	})
}
