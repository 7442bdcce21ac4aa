package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// When a master does not answer any more, or is gone, and has a successor, commands go there at once, although the client
// notices only much later.
func TestFailover_CommandsGoToTheSuccessor(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	for name, end := range map[string]func(*redistest.Server){
		"frozen": (*redistest.Server).Freeze, "killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			d := redistest.StartReplicatedCluster(t, 3, 1)
			client, err := newClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			r, err := lockregistry.New(client, "orders", lockregistry.WithCommandTimeout(limit))
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			l := r.Obtain("42")
			for range 50 { // so that the path's shard is healthy
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

// While a shard is suspect, renewals follow a slot of it that moves, too, although its neighbours stay.
func TestFailover_RenewalsFollowASlot(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	d := redistest.StartReplicatedCluster(t, 2, 1)
	client, err := newClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders", lockregistry.WithRenewal(), lockregistry.WithLease(lease))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	l := r.Obtain("42")
	require.NoError(t, l.Lock(t.Context()))
	alive := l.Context(t.Context())
	from, to := d.Servers[0], d.Servers[1]
	if d.Master(theKey, nil) == to {
		from, to = to, from
	}
	from.Freeze() // for so long that an answer is late
	require.Error(t, l.Renew(shortly(t), lease))
	from.Thaw()
	d.Move(to, d.Slot(theKey))
	begun := time.Now()
	require.Never(t, func() bool { return alive.Err() != nil }, 2*lease, 10*time.Millisecond)
	require.Greater(t, time.Since(begun), lease, "and it was renewed meanwhile")
	require.NoError(t, l.Unlock(t.Context()))
}

func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
