package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostNames is how many names the root package may export. A name stays once it is released: to add one, remove one.
const mostNames = 90

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

// imported are the folders of the packages that users import, and of the examples that they copy.
var imported = []string{
	".", "inspect", "leader", "lockhttp", "locktest", "observe",
	"contrib/gocronlock", "contrib/lockgoredis", "contrib/lockotel", "contrib/lockprom", "contrib/lockvet/rules",
	"cmd/lockreg/page", "cmd/lockreg/exporter", "cmd/lockreg/doctor",
	"examples/orders", "examples/service", "examples/web",
}

func TestFiles_HaveTheNameOfNoOtherPackage(t *testing.T) {
	m := module{
		imports: map[string][]string{"": nil, "hold": nil, "protocol/operator": nil, "observe": nil},
		files: map[string]bool{
			"hold.go": true, "internal/hold/hold.go": true, "observe/observe.go": true, "internal/hold/operator.go": true, "lock.go": true,
		},
	}
	require.Equal(t, []string{
		"hold.go has the name of package hold", "internal/hold/operator.go has the name of package operator",
	}, m.homonyms())
	require.Empty(t, parse(t, "../..").homonyms())
}

var fileName = regexp.MustCompile(`\b[\w-]+\.(go|lua|md|tla|txt)\b`)

// TestComments_NameNoFile: readers of a public comment, with go doc for instance, do not have the files.
func TestComments_NameNoFile(t *testing.T) {
	for _, folder := range imported {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, folder)
		for _, file := range files {
			src, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, text := range public(t, string(src)) {
				require.Empty(t, fileName.FindString(text), "%s: say in half a sentence what matters: %s", file, text)
			}
		}
	}
}

func TestComments_OfMadeUpCode(t *testing.T) {
	got := public(t, `// Package p is in p.go.
package p

// This text is in the way, see docs/a.md.

// A is in a.lua.
const A = 1 // one

// B is in b.go.
func B() {
	// c.go
}

type (
	// D is in d.txt.
	D struct {
		// E is in e.tla.
		E int
		f int // f.go
	}
	// h.go
	h int
)

// i.go
func i() {}
`)
	require.Equal(t, []string{
		"Package p is in p.go.", "A is in a.lua.", "one", "B is in b.go.", "D is in d.txt.", "E is in e.tla.",
	}, got)
	for i, text := range got {
		require.Equal(t, i != 2, fileName.MatchString(text), text)
	}
}

// link is a doc link to an exported name of this package, or of another one.
var link = regexp.MustCompile(`\[\*?(?:([a-z]\w*)\.)?([A-Z]\w*(?:\.[A-Z]\w*)?)\]`)

// TestComments_LinkToNames expects that the target of each link in a public comment exists. Links to packages outside this
// repository are not checked.
func TestComments_LinkToNames(t *testing.T) {
	comments, names := map[string][]string{}, map[string][]string{}
	for _, folder := range imported {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			src, err := os.ReadFile(file)
			require.NoError(t, err)
			name := namedBy(folder)
			comments[name] = append(comments[name], public(t, string(src))...)
			names[name] = append(names[name], exported(t, string(src))...)
			names[name] = append(names[name], members(t, string(src))...)
		}
	}
	require.Contains(t, names["observe"], "Acquired.Op")
	found := 0
	for name, texts := range comments {
		for _, text := range texts {
			for _, l := range link.FindAllStringSubmatch(text, -1) {
				of := l[1]
				if of == "" {
					of = name
				}
				in, ours := names[of]
				if !ours {
					continue
				}
				found++
				if !slices.Contains(in, l[2]) {
					t.Errorf("package %s: %s does not exist: %s", name, l[0], text)
				}
			}
		}
	}
	require.Greater(t, found, 100)
}

func namedBy(folder string) string {
	if folder == "." {
		return "lockregistry"
	}
	return filepath.Base(folder)
}

// members are the exported fields of structs and methods of interfaces in a file, as Type.Name.
func members(t *testing.T, src string) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.FileExports(f)
	ast.Inspect(f, func(n ast.Node) bool {
		s, is := n.(*ast.TypeSpec)
		if !is {
			return true
		}
		switch of := s.Type.(type) {
		case *ast.StructType:
			names = append(names, listed(s.Name.Name, of.Fields)...)
		case *ast.InterfaceType:
			names = append(names, listed(s.Name.Name, of.Methods)...)
		}
		return false
	})
	return names
}

func listed(of string, all *ast.FieldList) (names []string) {
	for _, f := range all.List {
		for _, id := range f.Names {
			names = append(names, of+"."+id.Name)
		}
	}
	return names
}

// public are the comments of a file that users see.
func public(t *testing.T, src string) (texts []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.FileExports(f)
	f.Comments = nil
	ast.Inspect(f, func(n ast.Node) bool {
		if c, is := n.(*ast.CommentGroup); is {
			texts = append(texts, strings.TrimSpace(c.Text()))
		}
		return true
	})
	return texts
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
