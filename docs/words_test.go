package docs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// most are the words that a page may have, as wc counts them. A page that needs more has something that another one says already.
var most = map[string]int{
	"CHANGELOG.md":                  500,
	"CONTRIBUTING.md":               500,
	"README.md":                     900,
	"SECURITY.md":                   200,
	"bench/README.md":               1000,
	"bench/RESULTS.md":              500,
	"cmd/lockreg/README.md":         850,
	"cmd/lockreg/doctor/README.md":  510,
	"cmd/lockreg/page/README.md":    440,
	"docs/README.md":                100,
	"docs/fencing.md":               500,
	"docs/managed-services.md":      500,
	"docs/permissions.md":           700,
	"docs/architecture.md":          2000,
	"docs/clusters.md":              1200,
	"docs/migration/mixed-fleet.md": 920,
	"docs/migration/redisson.md":    800,
	"docs/migration/spring.md":      2200,
	"docs/operations.md":            1800,
	"docs/performance.md":           600,
	"docs/recipes.md":               1500,
	"docs/semantics.md":             2000,
	"docs/testing.md":               900,
	"docs/wire-format.md":           1300,
	"test/failover/README.md":            200,
	"test/interop/README.md":             500,
	"test/specs/PROTOCOL.md":             2885,
	"test/specs/README.md":               1615,
	"test/README.md":                200,
	"test/torture/README.md":             462,
}

// inAll is the most that all pages may have together.
const inAll = 29_000

// TestWords: each page is as short as it has been, and may only become shorter.
func TestWords(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range pages(t) {
		seen[p.path] = true
		switch limit, is := most[p.path]; {
		case !is:
			t.Errorf("%s has no limit of words in words_test.go", p.path)
		case len(strings.Fields(p.text)) > limit:
			t.Errorf("%s has %d words, %d are the most", p.path, len(strings.Fields(p.text)), limit)
		}
	}
	sum := 0
	for path, limit := range most {
		require.True(t, seen[path], "no page %s", path)
		sum += limit
	}
	require.LessOrEqual(t, sum, inAll)
}
