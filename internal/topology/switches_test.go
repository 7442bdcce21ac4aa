package topology_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// ofSentinel is a client whose master is named by a test. It may block when it is asked.
type ofSentinel struct {
	rueidis.Client
	mode   rueidis.ClientMode
	master atomic.Value
	gate   atomic.Pointer[chan struct{}] // nil: it does not
}

func (c *ofSentinel) Mode() rueidis.ClientMode { return c.mode }

func (c *ofSentinel) Nodes() map[string]rueidis.Client {
	if gate := c.gate.Load(); gate != nil {
		<-*gate
	}
	return map[string]rueidis.Client{c.master.Load().(string): nil}
}

// A change is noticed once, even if the client blocks when it is asked. That holds nobody up.
func TestSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &ofSentinel{mode: rueidis.ClientModeSentinel}
		c.master.Store("before")
		w := topology.WatchSwitches(c)
		noticed := 0
		changed := func() bool {
			is := w.Look(0, 0, func() { noticed++ })
			synctest.Wait()
			return is
		}
		require.False(t, changed())
		require.False(t, changed())
		require.Zero(t, noticed)
		gate := make(chan struct{})
		c.gate.Store(&gate)
		require.False(t, changed())
		c.master.Store("after")
		require.False(t, changed())
		require.Zero(t, noticed)
		c.gate.Store(nil)
		close(gate)
		synctest.Wait()
		require.Equal(t, 1, noticed)
		require.True(t, changed())
		require.False(t, changed())
		require.Equal(t, 1, noticed)
	})
	single := topology.WatchSwitches(&ofSentinel{mode: rueidis.ClientModeStandalone})
	require.Equal(t, clock.Never, single.Next(clock.New()))
	require.False(t, single.Look(0, 0, nil))
}
