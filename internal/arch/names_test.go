package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostNames is how many names the root package may export. Names stay after a release: who adds one takes one away.
const mostNames = 100

func TestNames_AreFew(t *testing.T) {
	files, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	var all []string
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			src, err := os.ReadFile(file)
			require.NoError(t, err)
			all = append(all, exported(t, string(src))...)
		}
	}
	require.Contains(t, all, "Lock.Unlock")
	require.LessOrEqual(t, len(all), mostNames, "a name more at the root needs another one to go: %v", all)
}

func TestNames_OfMadeUpCode(t *testing.T) {
	got := exported(t, `package p

import "fmt"

const A, b = 1, 2

var (
	C   = fmt.Sprint()
	_   = b
	d   int
)

type (
	E struct{ Field int }
	f struct{ E }
	G = E
	H[T any] struct{}
	I interface{ Method() }
)

func J() { const Inner = 1 }
func k() {}
func (e E) L()     {}
func (e *E) M()    {}
func (e E) n()     {}
func (f *f) O()    {}
func (h *H[T]) P() {}
`)
	require.Equal(t, []string{"A", "C", "E", "G", "H", "I", "J", "E.L", "E.M", "H.P"}, got)
}

// exported are the functions, types, constants, variables and methods that a file of a package shows to its users. Fields and the
// methods of interfaces belong to their types.
func exported(t *testing.T, src string) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	require.NoError(t, err)
	add := func(of string, id *ast.Ident) {
		if id.IsExported() && (of == "" || ast.IsExported(of)) {
			names = append(names, of+id.Name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(receiver(d), d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add("", s.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						add("", id)
					}
				}
			}
		}
	}
	return names
}
