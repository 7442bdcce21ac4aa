package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// howLong is a duration in words or digits.
var howLong = regexp.MustCompile(`(?i)\b(\d+|an?|two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|thirty) ` +
	`(seconds?|minutes?|hours?)\b`)

// topOf are the lines of a page in which a newcomer looks for the first commands.
const topOf = 45

// TestTopOfReadme: near the top stand the two commands of a newcomer, the one that shows it at once first, each with how long
// it takes.
func TestTopOfReadme(t *testing.T) {
	lines := strings.SplitN(read(t, "README.md"), "\n", topOf+1)[:topOf]
	require.NoError(t, firstCommands(lines))
	for _, wrong := range [][]string{
		{},
		{"make demo    # ten seconds"},
		{"make test    # seven minutes", "make demo    # ten seconds"},
		{"make demo    # shows it", "make test    # seven minutes"},
		{"make demo    # ten seconds", "make test    # all tests"},
		{"make demo    # ten seconds", "make test-servers    # 7 minutes"},
	} {
		require.Error(t, firstCommands(wrong), "%q", wrong)
	}
	require.NoError(t, firstCommands([]string{"make demo    # 10 seconds", "make test    # 7 minutes"}))
}

// firstCommands checks the first lines that name one of the two commands.
func firstCommands(lines []string) error {
	before := -1
	for _, command := range []string{"make demo", "make test"} {
		names := regexp.MustCompile(`\b` + command + `( |$)`)
		at := slices.IndexFunc(lines, names.MatchString)
		switch {
		case at < 0:
			return fmt.Errorf("%s is not named", command)
		case at <= before:
			return fmt.Errorf("%s stands too early, in line %d", command, at+1)
		case !howLong.MatchString(lines[at]):
			return fmt.Errorf("%q does not say how long it takes", lines[at])
		}
		before = at
	}
	return nil
}
