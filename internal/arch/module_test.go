package arch

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The limits for what is not listed in long.txt.
const (
	maxFile   = 500 // lines
	maxFunc   = 60  // lines
	maxStruct = 15  // fields
	maxFlat   = 25  // fields, counting those of structs of its package that it has as values, embedded or not
)

const path = "github.com/lockregistry/lockregistry"

var version = regexp.MustCompile(`/v[0-9]+$`)

// module is what the files of a module contain, for any platform. The key of a package is its directory without internal/.
type module struct {
	imports map[string][]string
	inTests map[string][]string
	long    map[string]int                        // sizes over a limit; not of tests
	structs map[string]map[string]*ast.StructType // of each package, by name; not of tests
	files   map[string]bool                       // their paths; not of tests
}

// skipped are folders without packages of the library.
var skipped = map[string]bool{"docs": true, "examples": true, "scripts": true, "test": true, "testdata": true}

func parse(t *testing.T, root string) module {
	t.Helper()
	m := module{
		map[string][]string{}, map[string][]string{}, map[string]int{}, map[string]map[string]*ast.StructType{}, map[string]bool{},
	}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, inner := os.Stat(filepath.Join(file, "go.mod"))
			if file != root && (inner == nil || d.Name()[0] == '.' || skipped[d.Name()]) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return m.take(filepath.ToSlash(name), string(src))
	})
	require.NoError(t, err)
	m.flatten()
	return m
}

func (m module) take(name, src string) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return err
	}
	pkg, into := packageOf(filepath.ToSlash(filepath.Dir(name))), m.imports
	if strings.HasSuffix(name, "_test.go") {
		into = m.inTests
	}
	if _, known := into[pkg]; !known {
		into[pkg] = nil // it is there, also without imports
	}
	for _, i := range f.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		if !slices.Contains(into[pkg], imported) {
			into[pkg] = append(into[pkg], imported)
		}
	}
	if strings.HasSuffix(name, "_test.go") {
		return nil
	}
	m.files[name] = true
	return m.measure(name, src)
}

// homonyms returns the files that have the name of a package but are not in it: one name for two things says neither.
func (m module) homonyms() (problems []string) {
	for pkg := range m.imports {
		title := pkg[strings.LastIndex(pkg, "/")+1:]
		for file := range m.files {
			dir, base := filepath.Split(file)
			if base == title+".go" && packageOf(strings.TrimSuffix(dir, "/")) != pkg {
				problems = append(problems, file+" has the name of package "+title)
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// packageOf returns the key of the package in a directory.
func packageOf(dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(dir, "."), "internal/")
}

// nameOf returns the table's name for an imported package: "" for one of the standard library.
func nameOf(imported string) string {
	if rest, ours := strings.CutPrefix(imported, path); ours {
		return cmp.Or(packageOf(strings.TrimPrefix(rest, "/")), "root")
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return ""
	}
	parts := strings.Split(version.ReplaceAllString(imported, ""), "/")
	return parts[len(parts)-1]
}

// rooms reads the table of the page: what each package may import.
func rooms(text string) map[string][]string {
	_, table, _ := strings.Cut(text, "| package |")
	table, _, _ = strings.Cut(table, "\n\n")
	may := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|")
		if len(cells) != 3 || strings.Contains(cells[0], "---") || strings.Contains(cells[2], "may import") {
			continue
		}
		pkg := strings.Trim(strings.TrimSpace(cells[0]), "`")
		if pkg == "root" {
			pkg = ""
		}
		may[pkg] = strings.Fields(strings.ReplaceAll(cells[2], "`", ""))
	}
	return may
}

// arrows returns the imports that the table does not list, and the rows and arrows of the table that the code does not have.
func (m module) arrows(may map[string][]string) (problems []string) {
	say := func(parts ...string) { problems = append(problems, strings.Join(parts, " ")+" (see "+page+")") }
	for _, pkg := range slices.Sorted(maps.Keys(m.imports)) {
		title := cmp.Or(pkg, "root")
		row, listed := may[pkg]
		if !listed {
			say(title, "is not in the table")
			continue
		}
		var has []string
		for _, imported := range m.imports[pkg] {
			name := nameOf(imported)
			has = append(has, name)
			if name != "" && !slices.Contains(row, name) {
				say(title, "imports", name, "and may not")
			}
		}
		for _, name := range row {
			if !slices.Contains(has, name) {
				say(title, "does not import", name, "any more: take it off the table")
			}
		}
	}
	for pkg := range may {
		if _, exists := m.imports[pkg]; !exists {
			say(pkg, "is in the table, but does not exist")
		}
	}
	return append(problems, m.arrowsOfTests(may)...)
}

// linked returns some packages and all that they import, directly or not.
func (m module) linked(from ...string) map[string]bool {
	all := map[string]bool{}
	var add func(pkg string)
	add = func(pkg string) {
		if _, ours := m.imports[pkg]; !ours || all[pkg] {
			return
		}
		all[pkg] = true
		for _, imported := range m.imports[pkg] {
			if rest, ours := strings.CutPrefix(imported, path); ours {
				add(packageOf(strings.TrimPrefix(rest, "/")))
			}
		}
	}
	for _, pkg := range from {
		add(pkg)
	}
	return all
}

// arrowsOfTests returns imports of tests that are not allowed. A test may import what its package may, test servers, and
// libraries; also package inspect, if its package may import the root.
func (m module) arrowsOfTests(may map[string][]string) (problems []string) {
	for _, pkg := range slices.Sorted(maps.Keys(m.inTests)) {
		if pkg == "" || may[pkg] == nil && m.imports[pkg] == nil {
			continue
		}
		for _, imported := range m.inTests[pkg] {
			name := nameOf(imported)
			own := name == pkg || name == "redistest" || !strings.HasPrefix(imported, path) ||
				name == "inspect" && slices.Contains(may[pkg], "root")
			if !own && !slices.Contains(may[pkg], name) {
				problems = append(problems, "the tests of "+pkg+" import "+name+" and may not (see "+page+")")
			}
		}
	}
	return problems
}

// measure records what is too long in a file.
func (m module) measure(name, src string) error {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	note := func(what string, n, limit int) {
		if n > limit {
			m.long[what] = n
		}
	}
	note("file "+name, strings.Count(src, "\n"), maxFile)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			lines := files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1
			note("func "+f.Name.Name+"."+receiver(n)+n.Name.Name, lines, maxFunc)
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				note("struct "+f.Name.Name+"."+n.Name.Name, s.Fields.NumFields(), maxStruct)
				m.note(f.Name.Name, n.Name.Name, s)
			}
		}
		return true
	})
	return nil
}

func (m module) note(pkg, name string, s *ast.StructType) {
	if m.structs[pkg] == nil {
		m.structs[pkg] = map[string]*ast.StructType{}
	}
	m.structs[pkg][name] = s
}

// flatten records which structs have too many fields in all: a reader of one meets those of its parts.
func (m module) flatten() {
	for pkg, all := range m.structs {
		for name, s := range all {
			if n := flat(all, s); n > maxFlat {
				m.long["flat "+pkg+"."+name] = n
			}
		}
	}
}

// flat returns how many fields a struct has, counting those of other structs of its package that it has as values.
func flat(all map[string]*ast.StructType, s *ast.StructType) (n int) {
	for _, field := range s.Fields.List {
		each := 1
		if name, ok := field.Type.(*ast.Ident); ok && all[name.Name] != nil {
			each = flat(all, all[name.Name])
		}
		n += each * max(1, len(field.Names))
	}
	return n
}

// receiver returns the type that a method belongs to, and a dot.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}

// sizes reads long.txt.
func sizes(text string) map[string]int {
	known := map[string]int{}
	for line := range strings.Lines(text) {
		if what, n, ok := sizeOf(line); ok {
			known[what] = n
		}
	}
	return known
}

// sizeOf reads a line such as "func lockregistry.Lock.enter 91".
func sizeOf(line string) (what string, n int, ok bool) {
	line = strings.TrimSpace(line)
	last := strings.LastIndex(line, " ")
	if last < 0 || line[0] == '#' {
		return "", 0, false
	}
	n, err := strconv.Atoi(line[last+1:])
	return line[:last], n, err == nil
}
