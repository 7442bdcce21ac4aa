package kit

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
)

// PathsOf are the paths that Locks gives, sorted.
func PathsOf(t *testing.T, r *lockregistry.Registry) (paths []string) {
	t.Helper()
	for info, err := range inspect.Of(r).Locks(t.Context()) {
		require.NoError(t, err)
		require.NotEmpty(t, info.Kind)
		paths = append(paths, info.Path)
	}
	slices.Sort(paths)
	return paths
}

// Proofs is how many removals of no key a server executes for a registry that proves that it may release: a server before version
// 7 says only so what it permits, and is asked twice.
func (w *World) Proofs() int {
	w.Helper()
	if HasShardedChannels(w.T, w.Server) {
		return 0
	}
	return 2
}

// DocumentedUser is an ACL user as docs/permissions.md has it.
type DocumentedUser struct {
	Kind, Mode string
	Rights     []string
}

// DocumentedUsers reads the page: one block for each kind of lock, and in it for each mode a line that begins with "#",
// which either says what comes on top of the first user's rights or is followed by the command that makes the user.
func DocumentedUsers(t *testing.T) (users []DocumentedUser) {
	t.Helper()
	page, err := os.Open("../../docs/permissions.md")
	require.NoError(t, err)
	defer func() { require.NoError(t, page.Close()) }()
	kinds := []string{"spring", "redisson", "read-write"}
	block, mode, within := -1, "", false
	var base []string
	for lines := bufio.NewScanner(page); lines.Scan(); {
		line := lines.Text()
		title, isMode := strings.CutPrefix(line, "# ")
		rights, isCommand := strings.CutPrefix(line, "ACL SETUSER app on >secret ")
		switch {
		case strings.HasPrefix(line, "```"):
			within = !within && line == "```text"
			if within {
				block++
			}
		case !within || block >= len(kinds):
		case isMode:
			name, more, additive := strings.Cut(title, ": and ")
			if mode = name; additive {
				users = append(users, DocumentedUser{kinds[block], mode, slices.Concat(base, strings.Fields(more))})
			}
		case isCommand:
			if mode == "WithPolling" {
				base = strings.Fields(rights)
			}
			users = append(users, DocumentedUser{kinds[block], mode, strings.Fields(rights)})
		}
	}
	return users
}

// DocumentedDefaults are those of the users that have the default's wake-ups, one for each kind of lock.
func DocumentedDefaults(t *testing.T) []DocumentedUser {
	t.Helper()
	users := slices.DeleteFunc(DocumentedUsers(t), func(u DocumentedUser) bool { return u.Mode != "the default" })
	require.Len(t, users, 3, "three kinds of locks")
	return users
}
