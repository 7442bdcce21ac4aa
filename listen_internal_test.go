package lockregistry

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// embedded returns a registry on an embedded server, closed at the end of the test.
func embedded(t *testing.T, opts ...Option) *Registry {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := New(client, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// A message makes a node healthy, as an answer does. So a call that is granted the lock after a silence can release it at once.
func TestQueue_MessageOnAnIdleNode(t *testing.T) {
	reg := embedded(t, withWakeup(wakeupPoll))
	lock := reg.Obtain("42")
	for range 20 { // so that all connections have surely been made
		require.NoError(t, lock.Lock(t.Context()))
		require.NoError(t, lock.Unlock(t.Context()))
	}
	way := reg.transport.Node(lock.redis.Key)
	quiet := func() bool { return !way.IsHealthy(reg.now()) }
	require.Eventually(t, quiet, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { // otherwise the test did not run for as long as a node stays healthy
		reg.deliver("n 1 1000 " + lock.redis.Key + " 1") // nothing is sent because of it
		return !quiet()
	}, 20*time.Second, time.Millisecond)
}
