//go:build linux

package main_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A signal that asks a stopped command to end reaches it.
func TestRunSignalWhileStopped(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		p := prepare(s.url, "run", "shop", "a", "--", "sh", "-c",
			"trap 'exit 3' TERM HUP INT QUIT; echo pid $$; kill -STOP $$; while :; do sleep 0.05; done").begin(t)
		eventually(t, "it has stopped", func() bool {
			pids := lines(p.out.String(), "pid")
			if len(pids) == 0 {
				return false
			}
			stat, err := os.ReadFile("/proc/" + pids[0] + "/stat")
			require.NoError(t, err)
			return strings.Contains(string(stat), ") T ")
		})
		require.NoError(t, p.Process.Signal(sig))
		assert.Equal(t, 3, p.code(t), sig)
	}
}
