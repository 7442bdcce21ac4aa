package fault_test

import (
	"errors"
	"io"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// What a server does not permit or know it refuses; what it cannot do for now passes, and so may what the network does.
func TestRefusal(t *testing.T) {
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, DisableRetry: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	defer client.Close()
	for text, refused := range map[string]bool{
		"NOPERM this user has no permissions to run the 'subscribe' command": true,
		"ERR unknown command 'HELLO'":                                        true,
		"ERR unknown subcommand 'TRACKING'":                                  true,
		"ERR max number of clients reached":                                  false,
		"LOADING Redis is loading the dataset in memory":                     false,
		"NOREPLICAS Not enough good replicas to write.":                      false,
		"MOVED 7 127.0.0.1:7001":                                             false,
		"CLUSTERDOWN The cluster is down":                                    false,
	} {
		server.SetError(text)
		err := client.Do(t.Context(), client.B().Get().Key("k").Build()).Error()
		require.Error(t, err, text)
		require.Equal(t, refused, fault.Refusal(err), text)
		require.Equal(t, !refused, fault.Transient(err), text)
	}
	server.SetError("")
	missing := client.Do(t.Context(), client.B().Get().Key("k").Build()).Error()
	for _, err := range []error{nil, io.EOF, errors.New("some"), missing} {
		require.False(t, fault.Refusal(err))
	}
}
