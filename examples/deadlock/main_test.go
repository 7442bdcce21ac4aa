package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test's program be the processes of the second part, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestExample(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, both(t.Context(), &out, ""))
	t.Log(out.String())
	first, second, found := strings.Cut(out.String(), "Two processes:\n")
	require.True(t, found)
	require.Len(t, regexp.MustCompile(`(?m)refused: .* deadlock: goroutine \d+ holds "\w+" and waits for "\w+"; `+
		`goroutine \d+ holds "\w+" and waits for "\w+"$`).FindAllString(first, -1), 1)
	require.Equal(t, 1, strings.Count(first, ": done"))
	// Whichever sees it first gives up, and perhaps the other one goes on before it has seen it twice.
	require.Regexp(t, `(?m)^  \w+ to \w+: deadlock: goroutine \d+ \(.*process \d+\) holds "\w+" and waits for "\w+"; `, second)
	require.Contains(t, second, ": given up")
}
