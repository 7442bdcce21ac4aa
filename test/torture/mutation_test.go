package torture

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var mutate = flag.Bool("mutate", false, "break the library in copies of its files, and see that the tests notice")

// TestMutations is for changes of these tests: it takes long, and proves nothing about the library. To try one mutation: -run
// 'TestMutations/no_margin' -mutate.
func TestMutations(t *testing.T) {
	if !*mutate {
		return
	}
	places := marked(t)
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			at := places[m.name]
			source, err := m.apply(at)
			require.NoError(t, err)
			broken := filepath.Join(t.TempDir(), filepath.Base(at.file))
			require.NoError(t, os.WriteFile(broken, []byte(source), 0o600))
			file, err := filepath.Abs(at.file)
			require.NoError(t, err)
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
			require.NoError(t, err)
			list := filepath.Join(t.TempDir(), "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))
			for caught := range strings.FieldsSeq(m.caught) {
				args := []string{"test", "-race", "-count=1", "-overlay", list, "-run", caught, ".", "-full"}
				if in, name, other := strings.Cut(caught, ":"); other {
					args = []string{"test", "-race", "-count=1", "-overlay", list, "-run", name, in}
				}
				test := exec.Command("go", args...)
				output, err := test.CombinedOutput()
				var failed *exec.ExitError
				require.ErrorAs(t, err, &failed, "%s: nothing noticed that %s:\n%s", caught, m.what, output)
				require.NotContains(t, string(output), "[build failed]")
				found := strings.Count(string(output), "--- FAIL: ") + strings.Count(string(output), "panic: ")
				t.Logf("%d tests failed; the end of what they say:\n%s", found, output[max(0, len(output)-600):])
				require.Positive(t, found, "%s", output)
			}
		})
	}
}

// TestMutationsApply expects every mutation to fit the library as it is.
func TestMutationsApply(t *testing.T) {
	places := marked(t)
	for _, m := range mutations {
		at, ok := places[m.name]
		if assert.True(t, ok, "no line of the library ends with the comment \"mutant: %s\"", m.name) {
			_, err := m.apply(at)
			assert.NoError(t, err)
		}
		delete(places, m.name)
	}
	for name, at := range places {
		assert.Fail(t, "no mutation", "%s has the comment \"mutant: %s\"", at.file, name)
	}
}

// TestMutationsNameTests expects each test that is to notice a mutation to exist: go test succeeds when a pattern matches
// nothing.
func TestMutationsNameTests(t *testing.T) {
	tests := testsByFolder{}
	for _, m := range mutations {
		require.NotEmpty(t, m.caught, m.name)
		for caught := range strings.FieldsSeq(m.caught) {
			require.NoError(t, tests.look(caught), m.name)
		}
	}
	for _, wrong := range []string{"TestNobodyWroteThis", "../lock:TestMutationsNameTests", "../nowhere:Test"} {
		require.Error(t, tests.look(wrong), wrong)
	}
}

// testsByFolder holds the names of the tests in the folders that were looked into.
type testsByFolder map[string][]string

// look looks for the tests that a mutation names: a pattern, with the folder before it where that is another one.
func (all testsByFolder) look(caught string) error {
	in, pattern, other := strings.Cut(caught, ":")
	if !other {
		in, pattern = ".", caught
	}
	pattern, _, _ = strings.Cut(pattern, "/")
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	if all[in] == nil {
		if all[in], err = testsIn(in); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(all[in], matches.MatchString) {
		return fmt.Errorf("no test in %s matches %s", in, pattern)
	}
	return nil
}

// testsIn returns the names of the tests in a folder.
func testsIn(folder string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, function := range testFunction.FindAllSubmatch(text, -1) {
			names = append(names, string(function[1]))
		}
	}
	return names, nil
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// markedLine is a line of the library that ends with a mutation's name.
type markedLine struct {
	file, source string // without the mutation's comments
	begin, end   int    // of the line in it
}

// marked returns the lines of the library that have mutations, in any file and folder.
func marked(t *testing.T) map[string]markedLine {
	t.Helper()
	places := map[string]markedLine{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != "../.." && (err == nil || strings.HasPrefix(d.Name(), ".")) { // another module
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, "_test.go") || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".lua" {
			return nil
		}
		for name, at := range marks(t, path) {
			assert.NotContains(t, places, name, "%s has the comment \"mutant: %s\" once more", path, name)
			places[name] = at
		}
		return nil
	}))
	return places
}

var markComment = regexp.MustCompile(`[ \t]*(?://|--) mutant: (.+)`)

// marks returns the marked lines of a file.
func marks(t *testing.T, file string) map[string]markedLine {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	places := map[string]markedLine{}
	var source strings.Builder
	for line := range strings.Lines(string(text)) {
		found := markComment.FindStringSubmatchIndex(line)
		if found == nil {
			source.WriteString(line)
			continue
		}
		begin := source.Len()
		source.WriteString(line[:found[0]] + "\n")
		for name := range strings.SplitSeq(line[found[2]:found[3]], "; ") {
			assert.NotContains(t, places, name, "%s has the comment \"mutant: %s\" twice", file, name)
			places[name] = markedLine{file: file, begin: begin, end: source.Len()}
		}
	}
	for name, at := range places {
		at.source = source.String()
		places[name] = at
	}
	return places
}

// apply returns the source of the file with the mutation applied.
func (m mutation) apply(at markedLine) (string, error) {
	before, rest := at.source[:at.begin], at.source[at.begin:]
	begin := strings.Index(rest, m.old)
	if begin < 0 || at.begin+begin >= at.end {
		return "", fmt.Errorf("%s: the line of the mutant %q does not have %q", at.file, m.name, m.old)
	}
	if again := strings.Index(rest[begin+1:], m.old); again >= 0 && at.begin+begin+1+again < at.end {
		return "", fmt.Errorf("%s: the line of the mutant %q has %q twice", at.file, m.name, m.old)
	}
	return before + rest[:begin] + m.new + rest[begin+len(m.old):], nil
}
