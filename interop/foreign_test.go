package interop

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A server that knows none of the scripts in protocol.Foreign has no waiting process of these libraries: so each must be
// there. The test has the server to itself.
func TestForeignScripts(t *testing.T) { //nolint:paralleltest // it empties the server's cache of scripts
	for _, lib := range javas() {
		s := open(t, lib, opening{prefix: uniquePrefix()})
		server.Command(t, "SCRIPT", "FLUSH")
		s.lock(t, "path")
		known := server.Command(t, append([]string{"SCRIPT", "EXISTS"}, protocol.Foreign()[:protocol.ForeignLocks()]...)...)
		require.Contains(t, strings.Fields(strings.Trim(known, "[]")), "1", lib.name)
		s.unlock(t, "path")
		if lib.unlockChannel != redissonChannel {
			continue
		}
		server.Command(t, "SCRIPT", "FLUSH")
		ended(t, s.send("enter", with("seat", "wait", "0")))
		known = server.Command(t, append([]string{"SCRIPT", "EXISTS"}, protocol.Foreign()[protocol.ForeignLocks():]...)...)
		require.Contains(t, strings.Fields(strings.Trim(known, "[]")), "1", lib.name)
	}
}
