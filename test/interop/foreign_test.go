package interop

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// The library takes a server that knows none of the scripts in protocol.Foreign to have no waiting process of these libraries.
// So each library's script must be in that list. The test has the server to itself.
func TestForeignScripts(t *testing.T) { //nolint:paralleltest // it empties the server's cache of scripts
	for _, lib := range javas() {
		s := open(t, lib, opening{prefix: uniquePrefix()})
		kinds := map[string]*side{lib.name: s}
		if lib.unlockChannel == redissonChannel {
			for _, kind := range append([]string{"read", "write", "fenced"}, otherKinds(lib)...) {
				kinds[kind] = s.of(kind)
			}
		}
		for name, kind := range kinds {
			server.Command(t, "SCRIPT", "FLUSH")
			kind.lock(t, name)
			known := server.Command(t, append([]string{"SCRIPT", "EXISTS"}, protocol.Foreign()...)...)
			require.Contains(t, strings.Fields(strings.Trim(known, "[]")), "1", "%s, %s", lib.name, name)
			kind.unlock(t, name)
		}
	}
}
