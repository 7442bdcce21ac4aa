package lockregistry

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

func TestShared_IsMadeOnceForAClient(t *testing.T) {
	client, other := &counting{}, &counting{}
	first := sharedOf(client)
	require.Same(t, first, sharedOf(client))
	require.NotSame(t, first, sharedOf(other))
	require.Equal(t, 1, client.modes, "a transport is made with the first registry only")

	first.dismiss(client)
	require.Same(t, first, sharedOf(client), "a registry of two is open")
	first.dismiss(client)
	first.dismiss(client)
	require.Nil(t, shares[client])
	renewed := sharedOf(client)
	require.NotSame(t, first, renewed)
	renewed.dismiss(client)
	shares[other].dismiss(other)

	alone := sharedOf(byValue{})
	require.NotSame(t, alone, sharedOf(byValue{}))
	alone.dismiss(byValue{})
}
