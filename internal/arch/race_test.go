package arch

import (
	"go/build/constraint"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTests_WithoutTheRaceDetectorAreRun expects `make test` to run, in a pass of its own, every package that is built only
// without the race detector. Otherwise nobody would notice that it does not run: the other pass finds no test in it, and
// succeeds.
func TestTests_WithoutTheRaceDetectorAreRun(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	servers, err := os.ReadFile("../../scripts/test-servers.sh")
	require.NoError(t, err)
	var without []string
	require.NoError(t, filepath.WalkDir("../..", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		if err == nil && !builtWithRace(string(text)) {
			folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../")
			without = append(without, "./"+folder)
		}
		return err
	}))
	require.NotEmpty(t, without)
	for _, folder := range without {
		require.True(t, runWithoutRace(string(makefile), folder), "make test runs %s with the race detector only", folder)
		require.Contains(t, string(servers), "go test -c -o \"$work/tests\" "+folder+" ", "scripts/test-servers.sh")
	}
}

func TestTests_APassThatIsMissingIsFound(t *testing.T) {
	const made = "test: ## run\n\tscripts/go-test.sh -race $$(go list ./... | grep -v /test/alone)\n"
	require.False(t, runWithoutRace(made, "./test/alone"))
	require.False(t, runWithoutRace(made+"\tscripts/go-test.sh -race ./test/alone\n", "./test/alone"))
	require.False(t, runWithoutRace(made+"\nother:\n\tscripts/go-test.sh ./test/alone\n", "./test/alone"))
	require.True(t, runWithoutRace(made+"\tscripts/go-test.sh -timeout=1m ./test/alone\n", "./test/alone"))
	for text, with := range map[string]bool{
		"package p\n": true, "//go:build !race\n\npackage p\n": false, "//go:build unix\n\npackage p\n": true,
		"package p\n\n//go:build !race\n": true,
	} {
		require.Equal(t, with, builtWithRace(text), text)
	}
}

// builtWithRace reports whether some system builds a file with the race detector.
func builtWithRace(text string) bool {
	head, _, _ := strings.Cut("\n"+text, "\npackage ")
	for line := range strings.Lines(head) {
		if c, err := constraint.Parse(strings.TrimSpace(line)); err == nil && constraint.IsGoBuild(strings.TrimSpace(line)) {
			return c.Eval(func(tag string) bool { return tag != "windows" })
		}
	}
	return true
}

// runWithoutRace reports whether the target test of a Makefile runs the tests of a folder without the race detector.
func runWithoutRace(makefile, folder string) bool {
	_, recipe, _ := strings.Cut("\n"+makefile, "\ntest:")
	_, recipe, _ = strings.Cut(recipe, "\n")
	for line := range strings.Lines(recipe) {
		if !strings.HasPrefix(line, "\t") {
			return false
		}
		if words := strings.Fields(line); words[0] == "scripts/go-test.sh" && !strings.Contains(line, " -race ") &&
			words[len(words)-1] == folder {
			return true
		}
	}
	return false
}
