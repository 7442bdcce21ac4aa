package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBounds: a bound that is documented is the one in the code. Lines of comments count as one text.
func TestBounds(t *testing.T) {
	for constant, c := range map[string]struct {
		file, documented string
		pages            []string
	}{
		"mostPaths":       {"internal/several/several.go", "%s paths", []string{"acquireall.go", "docs/semantics.md"}},
		"mostGoroutines":  {"internal/hold/orphans.go", "more than %s goroutines", []string{"docs/semantics.md"}},
		"defaultCapacity": {"options.go", "Default: %s", []string{"registry.go"}},
		"MostWaits":       {"internal/presence/identity.go", "%s at most", []string{"docs/wire-format.md"}},
		"backlog":         {"internal/dispatch/dispatch.go", "while %s wait", []string{"options.go"}},
	} {
		set := regexp.MustCompile(`\b` + constant + ` += ([\d_]+)`).FindStringSubmatch(read(t, c.file))
		require.Len(t, set, 2, "%s has no %s", c.file, constant)
		digits := strings.ReplaceAll(set[1], "_", "")
		for at := len(digits) - 3; at > 0 && len(digits) > 4; at -= 3 {
			digits = digits[:at] + " " + digits[at:]
		}
		for _, page := range c.pages {
			text := strings.Join(strings.Fields(strings.ReplaceAll(read(t, page), "\n//", "\n")), " ")
			documented := strings.ReplaceAll(c.documented, "%s", digits)
			if !strings.Contains(text, documented) {
				t.Errorf("%s does not say %q, see %s of %s", page, documented, constant, c.file)
			}
		}
	}
}
