package rules

import (
	"go/ast"
	"go/token"

	"golang.org/x/tools/go/analysis"
)

var result = rule("lockresult", `report an Unlock or Release whose error is dropped without a word

The error tells that the lock was lost while the work ran, so that another owner may have worked at the same time. Return it or
log it. An assignment to _ says that it does not matter here.`, func(p *analysis.Pass, f function) {
	report := func(at token.Pos, call *ast.CallExpr) {
		if _, _, c, is := method(p, call); is && (c.is("Lock", "Unlock") || c.is("Hold", "Release")) {
			p.Reportf(at, "the error of %s is dropped: it says whether the lock was lost", c.fn.Name())
		}
	}
	ast.Inspect(f.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit: // it is looked at by itself
			return false
		case *ast.ExprStmt:
			if call, is := n.X.(*ast.CallExpr); is {
				report(n.Pos(), call)
			}
		case *ast.DeferStmt:
			report(n.Pos(), n.Call)
		case *ast.GoStmt:
			report(n.Pos(), n.Call)
		}
		return true
	})
})
