package wake

import (
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// dialing is a dialer that has waited for the only connection that its client's pool can have, and got it.
func (b *bench) dialing() *dialer {
	b.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, ClientName: "waits", BlockingPoolSize: 1,
	})
	require.NoError(b, err)
	b.Cleanup(client.Close)
	var s shared
	b.Cleanup(s.tasks.Wait)
	d := newRunner(b.Context(), &s, newNode(new(sync.Mutex), "", nil), func() rueidis.Client { return client }).dialer
	d.pending = make(chan *connection)
	go d.dedicate(client, 1, d.pending)
	b.await("a connection", func() bool { return b.named("waits") == 2 }) // one is for commands
	return &d
}

func TestDial_TheLastConnectionOfThePool(t *testing.T) {
	b := newBench(t)
	c, err := b.dialing().dial()
	require.NoError(t, err)
	require.NoError(t, ping(t.Context(), c.client))
	c.end()
}

// A connection that comes after its dial has ended may be broken when the next dial takes it. Then it makes room for another one.
func TestDial_AConnectionThatIsBroken(t *testing.T) {
	b := newBench(t)
	d := b.dialing()
	b.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	_, err := d.dial()
	require.Error(t, err)
	d.tasks.Wait() // until it is closed
	c, err := d.dial()
	require.NoError(t, err)
	require.NoError(t, ping(t.Context(), c.client))
	c.end()
}
