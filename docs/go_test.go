package docs

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages are those that Go blocks use without importing them.
var packages = []string{
	"context", "database/sql", "errors", "fmt", "hash/fnv", "log/slog", "net", "net/http", "os", "os/signal", "sync", "syscall",
	"testing", "testing/synctest", "time",
	"github.com/redis/rueidis",
	"github.com/lockregistry/lockregistry",
	"github.com/lockregistry/lockregistry/inspect",
	"github.com/lockregistry/lockregistry/leader",
	"github.com/lockregistry/lockregistry/locktest",
	"github.com/lockregistry/lockregistry/observe",
}

// around declares what blocks take for granted.
const around = `
var (
	ctx       context.Context
	address   string
	addresses []string
	option    rueidis.ClientOption
	client    rueidis.Client
	locks     *lockregistry.Registry
	lock      *lockregistry.Lock
	order     string
)

func ship(context.Context, ...string) error { return nil }
func later(string) error                    { return nil }
func report(context.Context) error          { return nil }
func lead(context.Context) error            { return nil }
func compensate(string)                     {}
`

// mustRun are the pages whose blocks stand in examples and programs, which are not only compiled but run.
var mustRun = map[string]bool{"README.md": true, "docs/recipes.md": true, "docs/testing.md": true}

// TestGo: each block of Go stands in a program or test of this repository as it is in the page, or compiles on its own.
func TestGo(t *testing.T) {
	var compiled, run strings.Builder
	walk(t, ".go", func(name, text string) {
		compiled.WriteString(plain(text))
		if strings.HasPrefix(path.Base(name), "example") || strings.HasPrefix(name, "examples/") {
			run.WriteString(plain(text))
		}
	})
	check := newChecker(t)
	for _, b := range blocks(t, "go") {
		where := fmt.Sprintf("%s:%d", b.page.path, b.line)
		switch {
		case strings.Contains(run.String(), plain(b.text)):
		case mustRun[b.page.path]:
			t.Errorf("%s stands in no example", where)
		case strings.Contains(compiled.String(), plain(b.text)):
		default:
			for _, err := range check(b.text) {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
}

// plain is code without indentation and empty lines.
func plain(code string) string {
	var lines strings.Builder
	lines.WriteString("\n")
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			lines.WriteString(line + "\n")
		}
	}
	return lines.String()
}

// newChecker returns what type-checks a block, as declarations or as the body of a function. That a variable or an import is not
// used is fine in a page.
func newChecker(t *testing.T) func(code string) []error {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go",
		append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, packages...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[name] = file
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })

	header := "package p\nimport (\"" + strings.Join(packages, "\"; \"") + "\")\n"
	return func(code string) (found []error) {
		file, err := parser.ParseFile(files, "block.go", header+code, parser.SkipObjectResolution)
		if err != nil {
			body := header + "func _() (err error) {\n" + code + "\nreturn nil\n}\n"
			if file, err = parser.ParseFile(files, "block.go", body, parser.SkipObjectResolution); err != nil {
				return []error{err}
			}
		}
		given, err := parser.ParseFile(files, "around.go", header+around, parser.SkipObjectResolution)
		require.NoError(t, err)
		config := types.Config{Importer: imports, Error: func(err error) {
			if e, is := err.(types.Error); !is || !e.Soft { //nolint:errorlint // never wrapped
				found = append(found, err)
			}
		}}
		_, _ = config.Check("p", files, []*ast.File{file, given}, nil)
		return found
	}
}
