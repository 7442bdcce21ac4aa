package rules_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"

	_ "github.com/lockregistry/lockregistry" // which the packages in testdata use
	"github.com/lockregistry/lockregistry/contrib/lockvet/rules"
)

var wanted = regexp.MustCompile(`// want "(.*)"`)

// load type-checks packages with the library itself, so that the rules keep up with it.
func load(t *testing.T, patterns ...string) []*packages.Package {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Dir: "testdata", Tests: true}, patterns...)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(loaded), len(patterns))
	for _, p := range loaded {
		require.Empty(t, p.Errors, p.PkgPath)
	}
	return loaded
}

// findings are what the rules report, by file and line.
func findings(t *testing.T, of []*packages.Package) map[string][]string {
	t.Helper()
	graph, err := checker.Analyze(rules.All(), of, nil)
	require.NoError(t, err)
	found := map[string][]string{}
	for _, action := range graph.Roots {
		require.NoError(t, action.Err)
		for _, d := range action.Diagnostics {
			where := at(action.Package.Fset, d.Pos)
			found[where] = append(found[where], action.Analyzer.Name+": "+d.Message)
		}
	}
	return found
}

func at(files *token.FileSet, pos token.Pos) string {
	p := files.Position(pos)
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

// Each line that ends with a want comment has a finding, and no other line has one: no line of right code. All that the two
// packages use is type-checked, which takes long: once for both.
func TestRules(t *testing.T) {
	t.Parallel()
	of := load(t, "./wrong", "./right")
	found := findings(t, of)
	seen := map[string]bool{}
	for _, p := range of {
		for _, file := range p.Syntax {
			for _, comment := range slices.Concat(comments(file)...) {
				match := wanted.FindStringSubmatch(comment.Text)
				if match == nil {
					continue
				}
				where := at(p.Fset, comment.Pos())
				if assert.Len(t, found[where], 1, "%s: %s", where, match[1]) {
					assert.Regexp(t, match[1], found[where][0], where)
				}
				seen[regexp.MustCompile(`^\w+`).FindString(match[1])] = true
				delete(found, where)
			}
		}
	}
	assert.Empty(t, found, "nobody wants these")
	for _, rule := range rules.All() {
		assert.True(t, seen[rule.Name], "no example of %s", rule.Name)
	}
}

func comments(file *ast.File) (all [][]*ast.Comment) {
	for _, group := range file.Comments {
		all = append(all, group.List)
	}
	return all
}
