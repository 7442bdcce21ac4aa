package docs

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goTest is what a page, the Makefile or a script has of tests: the folder that is changed to before, if any, and the command.
var goTest = regexp.MustCompile(`(?:cd (\S+) && )?(?:GOWORK=off )?go test ([^\n;|&#` + "`" + `]*)`)

// TestNamedTests: go test succeeds when its pattern matches nothing. So each pattern of a command that stands in a page, the
// Makefile, a script or a workflow must match a test or a benchmark of the packages that the command names.
func TestNamedTests(t *testing.T) {
	texts := map[string]string{"Makefile": read(t, "Makefile"), ".ci/run": read(t, ".ci/run")}
	for _, ending := range []string{".md", ".sh"} {
		walk(t, ending, func(name, text string) { texts[name] = text })
	}
	workflows, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	require.NoError(t, err)
	for _, file := range workflows {
		name, err := filepath.Rel(root, file)
		require.NoError(t, err)
		texts[name] = read(t, name)
	}
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for _, match := range goTest.FindAllStringSubmatch(texts[name], -1) {
			named, err := checkNames(folderOf(name, match[1]), match[2])
			if err != nil {
				t.Errorf("%s: go test %s: %v", name, match[2], err)
			}
			checked += named
		}
	}
	require.Greater(t, checked, 10, "the commands are found")
}

// TestNamedTests_Wrong: what names no test is found.
func TestNamedTests_Wrong(t *testing.T) {
	for _, wrong := range []string{
		"-run TestNobodyWroteThis .", "-run=TestNobodyWroteThis .", "-run 'TestNamedTests$|TestNobody' -bench Nothing .",
		"-run TestNamedTests ./test/lock", "-run TestNamedTests ./folder", "-bench Nothing ./...",
	} {
		_, err := checkNames("docs", wrong)
		require.Error(t, err, wrong)
	}
	for _, right := range []string{"-run TestNamedTests .", "-run '^$' -v .", "-run 'NamedTests/x' .", `-run "$tests" .`, "."} {
		_, err := checkNames("docs", right)
		require.NoError(t, err, right)
	}
}

// folderOf is where a command of a file runs: where it changes to, else in the module whose page it is, else at the root.
func folderOf(name, changed string) string {
	switch {
	case changed != "":
		return changed
	case strings.HasPrefix(name, "test/") && path.Base(name) == "README.md":
		if _, err := os.Stat(filepath.Join(root, path.Dir(name), "go.mod")); err == nil {
			return path.Dir(name)
		}
	}
	return "."
}

// checkNames looks for what the arguments of go test name, in a folder of the repository. It returns how many patterns it has
// looked for: X stands for any name, ^$ for none, and those that a script computes are not known here.
func checkNames(folder, arguments string) (named int, err error) {
	patterns, packages := map[string]string{}, []string(nil)
	words := strings.Fields(strings.NewReplacer("'", "", `"`, "", "$$", "$").Replace(arguments))
	for i, word := range words {
		flag, value, given := strings.Cut(word, "=")
		switch {
		case flag == "-run" || flag == "-bench":
			if !given && i+1 < len(words) {
				value = words[i+1]
			}
			patterns[flag] = value
		case strings.HasPrefix(word, "./") || word == "." && words[max(i-1, 0)] != "-bench":
			packages = append(packages, word)
		}
	}
	for flag, pattern := range patterns {
		if pattern == "^$" || pattern == "X" || strings.Contains(strings.TrimSuffix(pattern, "$"), "$") {
			continue
		}
		named++
		for alternative := range strings.SplitSeq(strings.Trim(pattern, "()"), "|") {
			if err := find(map[string]string{"-run": "Test", "-bench": "Benchmark"}[flag], alternative, folder, packages); err != nil {
				return named, err
			}
		}
	}
	return named, nil
}

// find looks for functions whose names begin with kind and match the pattern's part for them.
func find(kind, pattern, folder string, packages []string) error {
	pattern, _, _ = strings.Cut(pattern, "/")
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	function := regexp.MustCompile(`(?m)^func (` + kind + `\w*)\(`)
	for _, p := range append(packages, ".")[:max(len(packages), 1)] {
		below, all := strings.CutSuffix(p, "/...")
		files, err := testFiles(filepath.Join(root, folder, below), all)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, f := range function.FindAllSubmatch(text, -1) {
				if matches.Match(f[1]) {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("no %s function in %s %v matches %q", kind, folder, packages, pattern)
}

// testFiles are those of a folder, or of all folders below it, too.
func testFiles(folder string, below bool) (files []string, err error) {
	if !below {
		return filepath.Glob(filepath.Join(folder, "*_test.go"))
	}
	err = filepath.WalkDir(folder, func(file string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(file, "_test.go") {
			files = append(files, file)
		}
		return err
	})
	return files, err
}
