package lockregistry_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// When a master does not answer any more, or is gone, and has a successor, commands go there at once, although the client
// notices only much later.
func TestCommandsGoToTheSuccessor(t *testing.T) {
	const limit = 500 * time.Millisecond
	for name, end := range map[string]func(*redistest.Server){
		"frozen": (*redistest.Server).Freeze, "killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			d := redistest.StartReplicatedCluster(t, 3, 1)
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			r, err := lockregistry.New(client, "orders", lockregistry.WithCommandTimeout(limit))
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			l := r.Obtain("42")
			for range 50 { // so that the path's lane is calm
				require.NoError(t, l.Lock(t.Context()))
				require.NoError(t, l.Unlock(t.Context()))
			}
			master := d.Master(theKey, nil)
			heir := d.Replicas(master)[0]
			d.Settle(master, limit)
			end(master)
			require.ErrorIs(t, l.Lock(t.Context()), lockregistry.ErrUnavailable)

			// Until there is one, tries end at once: nothing is sent to a silent node.
			require.Eventually(t, func() bool {
				start := time.Now()
				require.ErrorIs(t, l.Lock(t.Context()), lockregistry.ErrUnavailable)
				return time.Since(start) < limit/2
			}, 10*time.Second, time.Millisecond)
			patient := make(chan error, 1)
			go func() { patient <- l.Lock(t.Context(), lockregistry.Wait(time.Minute)) }()
			heir.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
			promoted := time.Now()
			require.NoError(t, <-patient)
			require.Less(t, time.Since(promoted), time.Second)
			require.Equal(t, "1", heir.Command(t, "EXISTS", theKey))
		})
	}
}
