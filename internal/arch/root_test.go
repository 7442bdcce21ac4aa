package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The root has at most this many files, so that its listing fits on a screen.
const mostSources, mostTests = 28, 20

// folders are those of the top level, except hidden ones. CONTRIBUTING.md gives the reason for each.
var folders = []string{
	"bench", "cmd", "contrib", "deploy", "docs", "examples", "inspect", "internal", "leader", "lockhttp", "locktest", "observe",
	"scripts", "test",
}

func TestRoot_FitsOnAScreen(t *testing.T) {
	all, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	tests := slices.DeleteFunc(slices.Clone(all), func(file string) bool { return !strings.HasSuffix(file, "_test.go") })
	require.NotEmpty(t, tests)
	require.LessOrEqual(t, len(tests), mostTests, "tests belong to a theme below test/")
	require.LessOrEqual(t, len(all)-len(tests), mostSources)
}

func TestRoot_EachFolderHasAReason(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	entries, err := os.ReadDir("../..")
	require.NoError(t, err)
	for _, entry := range entries {
		switch name := entry.Name(); {
		case !entry.IsDir(), strings.HasPrefix(name, "."), name == "dist":
		default:
			require.Contains(t, folders, name)
			require.Regexp(t, `(?m)^(\w+  )*`+name+`\b`, string(page), "CONTRIBUTING.md says what is there")
		}
	}
}
