package page_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

// No clock can show in a test whether a comparison takes as long for every token: so the code itself is looked at. Tokens are
// compared by one function, and by nothing else. The cookie of a session is found by its hash.
func TestSecretsAreComparedInConstantTime(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "access.go", nil, 0)
	require.NoError(t, err)
	secrets := map[string]string{"look": "ConstantTimeCompare", "release": "ConstantTimeCompare"}
	compared := map[string]int{}
	for _, declared := range file.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if !ok || f.Name.Name != "check" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && secrets[s.Sel.Name] == name.Sel.Name {
						compared[s.Sel.Name]++
					}
					return true
				})
			}
			return true
		})
		ast.Inspect(f, func(n ast.Node) bool {
			b, ok := n.(*ast.BinaryExpr)
			if !ok || b.Op != token.EQL && b.Op != token.NEQ {
				return true
			}
			for _, side := range []ast.Expr{b.X, b.Y} {
				if s, ok := side.(*ast.Ident); ok {
					require.NotContains(t, []string{"token", "sum", "value"}, s.Name, "compared by its bytes")
				}
			}
			return true
		})
	}
	require.Equal(t, map[string]int{"look": 1, "release": 1}, compared)
}
