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

// PathsOf returns the paths that Locks finds, sorted.
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

// Proofs returns how many removals of no key a server executes for a registry that checks whether it may release: a server
// before version 7 says so only by executing them, and is asked twice.
func (w *World) Proofs() int {
	w.Helper()
	if HasShardedChannels(w.T, w.Server) {
		return 0
	}
	return 2
}

// DocumentedUser is an ACL user as docs/permissions.md describes it.
type DocumentedUser struct {
	Kind, Mode string
	Rights     []string
}

// DocumentedUsers reads the page. It has one block for each kind of lock, and in it for each mode a line that begins with "#".
// The line either says what rights the mode adds to the first user's, or is followed by the command that makes the user.
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

// DocumentedDefaults returns the users with the default wake-ups, one for each kind of lock.
func DocumentedDefaults(t *testing.T) []DocumentedUser {
	t.Helper()
	users := slices.DeleteFunc(DocumentedUsers(t), func(u DocumentedUser) bool { return u.Mode != "the default" })
	require.Len(t, users, 3, "three kinds of locks")
	return users
}
