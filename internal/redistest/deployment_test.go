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

	old.Kill()
	promoted, _ = d.AwaitPromotion(key, old)
	require.Equal(t, replica, promoted)
	old.Revive(t)
	d.AwaitHealthy()

	// Another node takes over what one has, which leaves then.
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

	// All of them are killed, and come back with what they had.
	for _, s := range d.Servers {
		s.Kill()
	}
	for _, s := range d.Servers {
		s.Revive(t)
	}
	d.AwaitHealthy()
	require.Equal(t, "value", d.Master(key, nil).Command(t, "GET", key))
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

	next, _ := d.Failover(key)
	require.NotEqual(t, promoted, next)
	promoted = next
	require.Equal(t, "value", promoted.Command(t, "GET", key))
}
