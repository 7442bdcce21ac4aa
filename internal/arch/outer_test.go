//nolint:staticcheck // names are looked up within one file, without types: that is what ast.Object is for
package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTests_FailByTheirOwnT expects a function that a subtest or a world runs, and that gets a testing.T of its own, to fail
// through that one. FailNow of the outer test, which has returned by the time a parallel subtest runs, would end the whole
// program, and lose all other tests of the package.
func TestTests_FailByTheirOwnT(t *testing.T) {
	var files tests
	require.NoError(t, filepath.WalkDir("../..", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return files.add(file, string(text))
	}))
	for _, p := range files.outer() {
		t.Error(p)
	}
}

func TestTests_AnOuterTIsFound(t *testing.T) {
	const head = "package p\n\ntype world struct{ *testing.T }\n\ntype both struct{ *kit.World }\n\n" +
		"func TestX(t *testing.T) {\n"
	for body, found := range map[string]int{
		`t.Run("a", func(t *testing.T) { require.True(t, true) }); t.Log()`:                     0,
		`t.Run("a", func(w *testing.T) { w.Cleanup(func() { w.Log() }) })`:                      0,
		`worlds(t, func(w *both) { require.True(w, w.T.Failed()) })`:                            0,
		`helper := func(t *testing.T) { t.Log() }; worlds(t, func(w *both) { helper(w.T) })`:    0,
		`each(func(n int) { t.Log(n) })`:                                                        0,
		`worlds(t, func(w *both) { require.True(t, true) })`:                                    1,
		`worlds(t, func(w *kit.World) { go func() { assert.True(t, true) }() })`:                1,
		`t.Run("a", func(*testing.T) { t.Fatal() })`:                                            1,
		`t.Run("a", func(b *testing.T) { worlds(b, func(w *world) { b.Log(t) }) })`:             2,
		`w := kit.Real(t); t.Run("a", func(t *testing.T) { w.Fatal() })`:                        1,
		`t.Run("a", func(t *testing.T) { w := kit.Real(t); w.Fatal() })`:                        0,
		`fails := func() { t.Fatal() }; worlds(t, func(w *world) { fails() }); fails()`:         1,
		`var fails func(); fails = func() { t.Fatal() }; worlds(t, func(w *world) { fails() })`: 1,
	} {
		var files tests
		require.NoError(t, files.add("world.go", "package kit\n\ntype World struct{ *testing.T }\n\nfunc Real() *World {}\n"))
		require.NoError(t, files.add("x_test.go", head+body+"\n}\n"))
		require.Len(t, files.outer(), found, body)
	}
}

// tests are files with tests.
type tests struct {
	set   token.FileSet
	files []*ast.File
}

func (s *tests) add(name, text string) error {
	f, err := parser.ParseFile(&s.set, name, text, 0)
	s.files = append(s.files, f)
	return err
}

// outer returns where a function with a testing.T of its own uses one of the functions around it.
func (s *tests) outer() (problems []string) {
	bearers := s.bearers()
	makers := s.makers(bearers)
	for _, f := range s.files {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				u := users{file: f, bearers: bearers, makers: makers}
				own := u.own(d.Recv, d.Type.Params)
				if own == nil {
					own = map[*ast.Object]bool{}
				}
				u.walk(d.Body, nil, own)
				for _, id := range u.found {
					problems = append(problems, fmt.Sprintf("%s: %s belongs to the test around this one", s.set.Position(id.Pos()), id.Name))
				}
			}
		}
	}
	return problems
}

// bearers returns the types that are or embed a testing.T, as package.Type; a function that takes one has a T of its own.
func (s *tests) bearers() map[string]bool {
	all := map[string]bool{"testing.T": true, "testing.B": true, "testing.F": true, "testing.TB": true}
	for before := 0; before < len(all); {
		before = len(all)
		for _, f := range s.files {
			ast.Inspect(f, func(n ast.Node) bool {
				spec, isType := n.(*ast.TypeSpec)
				if !isType {
					return true
				}
				of, isStruct := spec.Type.(*ast.StructType)
				if !isStruct {
					return true
				}
				for _, field := range of.Fields.List {
					if len(field.Names) == 0 && all[qualified(f, field.Type)] {
						all[qualified(f, spec.Name)] = true
					}
				}
				return true
			})
		}
	}
	return all
}

// makers returns the functions that return a bearer, as package.Function.
func (s *tests) makers(bearers map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, f := range s.files {
		for _, d := range f.Decls {
			d, isFunc := d.(*ast.FuncDecl)
			if isFunc && d.Recv == nil && d.Type.Results != nil && bearers[qualified(f, d.Type.Results.List[0].Type)] {
				all[qualified(f, d.Name)] = true
			}
		}
	}
	return all
}

// qualified is the name of a type or function that a file names, with its package.
func qualified(f *ast.File, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return qualified(f, e.X)
	case *ast.SelectorExpr:
		if of, isName := e.X.(*ast.Ident); isName {
			return of.Name + "." + e.Sel.Name
		}
	case *ast.Ident:
		return strings.TrimSuffix(f.Name.Name, "_test") + "." + e.Name
	}
	return ""
}

// users looks for uses of a testing.T in a function.
type users struct {
	file    *ast.File
	bearers map[string]bool
	makers  map[string]bool
	found   []*ast.Ident
}

// own returns the parameters that are bearers of a testing.T; nil if there are none.
func (u *users) own(lists ...*ast.FieldList) map[*ast.Object]bool {
	var all map[*ast.Object]bool
	for _, l := range lists {
		if l == nil {
			continue
		}
		for _, p := range l.List {
			if !u.bearers[qualified(u.file, p.Type)] {
				continue
			}
			if all == nil {
				all = map[*ast.Object]bool{}
			}
			for _, name := range p.Names {
				all[name.Obj] = true
			}
		}
	}
	return all
}

// walk looks at the body of a function, whose own parameters bear a testing.T; outer are those of the functions around it, and
// what uses them.
func (u *users) walk(body ast.Node, outer, own map[*ast.Object]bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				name, isName := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident)
				if isName && name.Obj != nil && (u.uses(value, own) || u.makes(value)) {
					own[name.Obj] = true
				}
			}
		case *ast.FuncLit:
			mine := u.own(n.Type.Params)
			if mine == nil {
				return true // it runs as a part of the function around it
			}
			around := map[*ast.Object]bool{}
			for _, all := range []map[*ast.Object]bool{outer, own} {
				for o := range all {
					around[o] = true
				}
			}
			u.walk(n.Body, around, mine)
			return false
		case *ast.Ident:
			if n.Obj != nil && outer[n.Obj] {
				u.found = append(u.found, n)
			}
		}
		return true
	})
}

// uses reports whether a value is a function without a testing.T of its own, and uses one of these.
func (u *users) uses(value ast.Expr, own map[*ast.Object]bool) (does bool) {
	of, isFunc := value.(*ast.FuncLit)
	if !isFunc || u.own(of.Type.Params) != nil {
		return false
	}
	ast.Inspect(of.Body, func(n ast.Node) bool {
		id, isName := n.(*ast.Ident)
		does = does || isName && id.Obj != nil && own[id.Obj]
		return !does
	})
	return does
}

// makes reports whether a value is the result of a function that returns a bearer of a testing.T.
func (u *users) makes(value ast.Expr) bool {
	call, isCall := value.(*ast.CallExpr)
	return isCall && u.makers[qualified(u.file, call.Fun)]
}
