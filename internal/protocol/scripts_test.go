package protocol

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that replicates scripts whole refuses what they write once they have asked for what may differ elsewhere; and a lease
// that is set by a script begins anew wherever it is replayed. So a script that asks for the time, or for who is subscribed, or
// makes a hold the owner, has its effects replicated before; see lua/effects.lua.
func TestScripts_ReplicateTheirEffects(t *testing.T) {
	differs := regexp.MustCompile(`'(TIME|PUBSUB|PX)'`)
	asking := 0
	for name, script := range Scripts() {
		asks := differs.FindStringIndex(script.Source)
		if asks == nil {
			continue
		}
		asking++
		first := strings.Index(script.Source, "redis.replicate_commands()")
		require.GreaterOrEqual(t, first, 0, name)
		require.Less(t, first, asks[0], name)
	}
	require.Greater(t, asking, 10)
}
