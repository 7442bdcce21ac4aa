package transport

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// counting counts how often it is asked for its mode.
type counting struct {
	rueidis.Client
	modes int
}

func (c *counting) Mode() rueidis.ClientMode {
	c.modes++
	return rueidis.ClientModeStandalone
}

// byValue is a wrapper that no map can have for a key.
type byValue struct {
	rueidis.Client
	_ []int
}

func (byValue) Mode() rueidis.ClientMode { return rueidis.ClientModeStandalone }

func TestShares_IsMadeOnceForAClient(t *testing.T) {
	var shares Shares[int]
	client, other := &counting{}, &counting{}
	first := shares.Join(client)
	require.Same(t, first, shares.Join(client))
	require.NotSame(t, first, shares.Join(other))
	require.Equal(t, 1, client.modes, "a Client is made with the first user only")

	first.Leave()
	require.Same(t, first, shares.Join(client), "one user of two is there")
	first.Leave()
	first.Leave()
	require.Nil(t, shares.of[client])
	renewed := shares.Join(client)
	require.NotSame(t, first, renewed)
	renewed.Leave()
	shares.of[other].Leave()
	require.Empty(t, shares.of)

	alone := shares.Join(byValue{})
	require.NotSame(t, alone, shares.Join(byValue{}))
	alone.Leave()
}
