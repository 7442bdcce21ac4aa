package protocol_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A replica refuses a write by an error. A script that goes on after that error replies why there is no queue.
func TestRefusedByReplica(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	defer client.Close()
	const text = "READONLY You can't write against a read only replica."
	for script, refused := range map[string]bool{
		"return {err = ARGV[1]}":                                       true,
		"return {err = 'ERR Error running script: 1: -' .. ARGV[1]}":   true,
		"return {'error', ARGV[1]}":                                    true,
		"return {'error', '@user_script: 7: -' .. ARGV[1]}":            true,
		"return ARGV[1]":                                               true,
		"return {'error', 'NOPERM No permissions to access a key'}":    false,
		"return {'queued', '0', '0'}":                                  false,
		"return {'granted', 7}":                                        false,
		"return '0 17'":                                                false,
		"return 1":                                                     false,
		"return false":                                                 false,
		"return {err = 'LOADING Redis is loading the dataset in RAM'}": false,
	} {
		reply := client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Arg(text).Build())
		require.Equal(t, refused, protocol.RefusedByReplica(reply), script)
	}
}
