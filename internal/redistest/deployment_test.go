package redistest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func put(t *testing.T, d *Deployment, key, value string) {
	t.Helper()
	d.Master(key, nil).Command(t, "SET", key, value)
}

// TestCluster_Replicated freezes a master of a cluster; the next test kills one of Sentinels. test/failover does the rest to
// both.
func TestCluster_Replicated(t *testing.T) {
	t.Parallel()
	d := StartReplicatedCluster(t, 3, 1)
	const key = "key"
	put(t, d, key, "value")

	old := d.Master(key, nil)
	require.Len(t, d.Replicas(old), 1)
	replica := d.Replicas(old)[0]
	d.Settle(old, 5*time.Second)
	old.Freeze()
	promoted, _ := d.AwaitPromotion(key, old)
	require.Equal(t, replica, promoted)
	require.Equal(t, "value", promoted.Command(t, "GET", key), "it was replicated before")
	old.Thaw()
	d.AwaitHealthy()
	require.Equal(t, []*Server{old}, d.Replicas(promoted))

	promoted, _ = d.Failover(key)
	require.Equal(t, old, promoted)
	d.AwaitHealthy()
	require.Equal(t, old, d.Master(key, nil))

	// A new node takes over the slot, gives it back, and leaves.
	added := d.Add()
	slot := d.Slot(key)
	d.Move(added, slot)
	require.Equal(t, added, d.Master(key, nil))
	require.Equal(t, "value", added.Command(t, "GET", key))
	require.Equal(t, []int{slot}, d.Slots(added))
	d.Move(promoted, slot)
	d.Remove(added, true)
	d.AwaitHealthy()
	require.False(t, slices.Contains(d.Addresses(), added.Addr()))
}

func TestSentinels(t *testing.T) {
	t.Parallel()
	d := StartSentinels(t, 2, 3)
	const key = "key"
	put(t, d, key, "value")
	old := d.Master(key, nil)
	require.Len(t, d.Replicas(old), 2)
	d.Settle(old, time.Second)
	old.Kill()
	promoted, _ := d.AwaitPromotion(key, old)
	require.Equal(t, "value", promoted.Command(t, "GET", key))
	old.Revive(t)
	d.AwaitHealthy()
}

// TestSharedCluster_ThatATestHasChanged expects the tests that share a cluster to learn that one of them has changed it.
func TestSharedCluster_ThatATestHasChanged(t *testing.T) {
	var c SharedCluster
	require.NoError(t, c.Stop(), "no test has used it")
	nodes := c.Nodes(t)
	require.Equal(t, nodes, c.Nodes(t), "it starts once")
	id := nodes[1].Command(t, "CLUSTER", "MYID")
	for name, change := range map[string]struct{ do, undo []string }{
		"a slot moves": {[]string{"CLUSTER", "SETSLOT", "0", "MIGRATING", id}, []string{"CLUSTER", "SETSLOT", "0", "STABLE"}},
		"a slot":       {[]string{"CLUSTER", "DELSLOTS", "0"}, []string{"CLUSTER", "ADDSLOTS", "0"}},
		"a setting":    {[]string{"CONFIG", "SET", "timeout", "50"}, []string{"CONFIG", "SET", "timeout", "0"}},
		"a user":       {[]string{"ACL", "SETUSER", "app", "on"}, []string{"ACL", "DELUSER", "app"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.changed())
			nodes[0].Command(t, change.do...)
			require.Error(t, c.changed())
			nodes[0].Command(t, change.undo...)
			require.NoError(t, c.changed())
		})
	}
	nodes[0].Command(t, "CLUSTER", "FORGET", id)
	require.ErrorContains(t, c.changed(), "forgotten")
	nodes[1].Kill()
	require.ErrorContains(t, c.Stop(), "stopped")
	require.False(t, nodes[0].Running())
	require.NoError(t, c.Stop())
}
