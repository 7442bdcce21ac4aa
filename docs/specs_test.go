package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// declared returns what the sources of this module declare, as comments name it: package.Name, Type.method, Type.field.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	walk(t, ".go", func(name, text string) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				of := file.Name.Name
				if n.Recv != nil {
					of = receiver(n.Recv.List[0].Type)
				}
				all[of+"."+n.Name.Name] = true
				return false
			case *ast.TypeSpec:
				all[file.Name.Name+"."+n.Name.Name] = true
				if s, is := n.Type.(*ast.StructType); is {
					for _, f := range s.Fields.List {
						for _, field := range f.Names {
							all[n.Name.Name+"."+field.Name] = true
						}
					}
				}
			}
			return true
		})
	})
	return all
}

// receiver is the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}

var (
	remark    = regexp.MustCompile(`(?m)\\\*.*$`)
	ofTheCode = regexp.MustCompile(`\b(?:[A-Za-z]+\.)?([A-Za-z]{2,}\.[A-Za-z]+)\b`) // single letters: records of the specification
	ofAFile   = regexp.MustCompile(`\.(go|lua|tla|cfg|md|txt)$`)
)

// TestSpecs_NameTheCode: the comments of the specifications name types, methods, fields and functions of the code that are there.
func TestSpecs_NameTheCode(t *testing.T) {
	all, names := declared(t), 0
	walk(t, ".tla", func(name, text string) {
		for _, line := range remark.FindAllString(text, -1) {
			for _, match := range ofTheCode.FindAllStringSubmatch(line, -1) {
				if !ofAFile.MatchString(match[0]) {
					names++
					require.True(t, all[match[1]], "%s: nothing in the code is called %s", name, match[0])
				}
			}
		}
	})
	require.Greater(t, names, 20, "the names are found")
}

var aState = regexp.MustCompile(`(?m)^\tstate([A-Z]\w*)`)

// TestSpecs_HaveTheStates: each state of a waiting call is in PROTOCOL.md's table, by the same name.
func TestSpecs_HaveTheStates(t *testing.T) {
	page := read(t, "test/specs/PROTOCOL.md")
	_, table, _ := strings.Cut(page, "\n## A waiter\n")
	table, _, _ = strings.Cut(table, "\n### ")
	states := aState.FindAllStringSubmatch(read(t, "internal/queue/acquisition.go"), -1)
	require.Greater(t, len(states), 8)
	for _, match := range states {
		var name strings.Builder
		for i, r := range match[1] {
			if unicode.IsUpper(r) && i > 0 {
				name.WriteByte(' ')
			}
			name.WriteRune(unicode.ToLower(r))
		}
		require.Regexp(t, `(?m)^\| (\w+, )?`+name.String()+`(, \w+)? \|`, table)
	}
}
