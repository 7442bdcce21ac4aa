package kit

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// WatchKeys makes all scripts of the library report keys that they touch without declaring them; the server's test then fails.
// Main calls it before any test.
func WatchKeys() {
	for _, script := range protocol.Scripts() {
		*script = *protocol.NewScript(redistest.WatchKeys + script.Source)
	}
}

// reportsKeys has a miniredis fail its test for what WatchKeys reports.
func reportsKeys(t *testing.T, m *miniredis.Miniredis) {
	t.Helper()
	conn, err := m.Dial() // this starts it
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	err = m.Server().Register(redistest.Undeclared, func(c *server.Peer, _ string, args []string) {
		t.Errorf("a script touches a key that it has not declared: %s", strings.Join(args, " "))
		c.WriteOK()
	})
	require.NoError(t, err)
}
