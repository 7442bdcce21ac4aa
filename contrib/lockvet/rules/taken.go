package rules

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var onlyTaken = rule("locktaken", `report an error of which only ErrTaken is handled

Any other error means that the lock is not held either: Redis does not answer, or the registry is closed. Without a branch for
those the work goes on without the lock.`, func(p *analysis.Pass, f function) {
	f.inspect(func(n ast.Node, _ bool) {
		assign, is := n.(*ast.AssignStmt)
		if !is || len(assign.Rhs) != 1 {
			return
		}
		call, is := assign.Rhs[0].(*ast.CallExpr)
		if !is {
			return
		}
		if _, is := calleeOf(p, call); !is {
			return
		}
		err := f.local(assign.Lhs[len(assign.Lhs)-1])
		if err == nil {
			return
		}
		if only := f.onlyAsked(err); only != nil {
			p.Reportf(only.Pos(), "only ErrTaken is handled: after any other error the lock is not held either")
		}
	})
})

// onlyAsked returns the test of an error for ErrTaken if that is all that the function does with it, and there is no other
// branch.
func (f function) onlyAsked(err *types.Var) (only *ast.CallExpr) {
	uses, branches := 0, false
	f.everywhere(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Ident:
			if f.pass.TypesInfo.Uses[n] == err {
				uses++
			}
		case *ast.IfStmt:
			if call := f.asksTaken(n.Cond, err); call != nil {
				only, branches = call, branches || n.Else != nil
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if call := f.asksTaken(e, err); call != nil {
					only = call
				}
			}
			branches = branches || n.List == nil
		}
	})
	if uses != 1 || branches {
		return nil
	}
	return only
}

// asksTaken returns the call if an expression is errors.Is(err, ErrTaken).
func (f function) asksTaken(e ast.Expr, err *types.Var) *ast.CallExpr {
	call, is := ast.Unparen(e).(*ast.CallExpr)
	if !is || len(call.Args) != 2 || types.ExprString(call.Fun) != "errors.Is" {
		return nil
	}
	if identified(f.pass, call.Args[0]) != err || !isError(f.pass, call.Args[1], "ErrTaken") {
		return nil
	}
	return call
}
