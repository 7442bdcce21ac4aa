package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each line for programs in docs/permissions.md is enough for lockreg run with that kind of lock, with what the page says of
// tokens.
func TestRun_DocumentedPermissions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "permissions.md"))
	require.NoError(t, err)
	kinds := map[string]struct{ flags, tokens []string }{
		"Spring's format":   {nil, nil},
		"Redisson's format": {[]string{"--layout=redisson"}, nil},
		"Redisson's format, with tokens": {
			[]string{"--layout=redisson", "--fencing"}, []string{"+get", "+time", "~redisson_lock_token:{orders:*", "+incrby", "+persist"},
		},
		"Read-write locks": {[]string{"--exclusive"}, []string{"+get"}},
	}
	require.Contains(t, string(text), "| `run` | those of a [program](#programs), and those for `WithFencing`")
	require.Contains(t, string(text), "**`WithFencing`**: `+get +set +time`")
	for kind, c := range kinds {
		title, _, _ := strings.Cut(kind, ", with")
		_, block, found := strings.Cut(string(text), "\n"+title)
		require.True(t, found, kind)
		_, block, _ = strings.Cut(block, "```text\n")
		block, _, _ = strings.Cut(block, "```")
		_, first, found := strings.Cut(block, "ACL SETUSER app on >secret ")
		require.True(t, found, kind)
		rights, rest, _ := strings.Cut(first, "\n")
		all := append(strings.Fields(rights), c.tokens...)
		modes := map[string][]string{"WithPolling": nil}
		for line := range strings.Lines(rest) {
			if mode, more, is := strings.Cut(strings.TrimSpace(line), ": and "); is {
				modes[strings.TrimPrefix(mode, "# ")] = strings.Fields(more)
			} else if full, is := strings.CutPrefix(line, "ACL SETUSER app on >secret "); is {
				modes["the default"] = strings.Fields(full)
			}
		}
		require.Len(t, modes, 3, kind)
		for mode, more := range modes {
			t.Run(kind+", "+mode, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				s.Command(t, append(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, all...), more...)...)
				url := strings.Replace(s.url, "redis://", "redis://app:secret@", 1)
				args := append(append([]string{"run"}, c.flags...), "orders", "a", "--", "echo", "ran")
				code, out, message := lockreg(t, url, args...)
				assert.Zero(t, code, message)
				assert.Equal(t, "ran\n", out)
				assert.Equal(t, "0", s.Command(t, "EXISTS", "orders:a"), "it is released")
			})
		}
	}
}
