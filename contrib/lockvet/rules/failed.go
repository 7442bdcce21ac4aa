package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// failure is what a function does where a call has failed.
type failure struct {
	f        function
	err      *types.Var // the call's error
	from, to token.Pos  // where the variable has it
}

// failureOf is about a call whose results are assigned; false: its error is in no variable.
func (f function) failureOf(assign *ast.AssignStmt) (failure, bool) {
	err := identified(f.pass, assign.Lhs[len(assign.Lhs)-1])
	if err == nil {
		return failure{}, false
	}
	to := f.body.End()
	f.everywhere(func(n ast.Node) {
		other, is := n.(*ast.AssignStmt)
		if is && other.Pos() > assign.End() && slices.ContainsFunc(other.Lhs, func(e ast.Expr) bool {
			return identified(f.pass, e) == err
		}) {
			to = min(to, other.End())
		}
	})
	return failure{f, err, assign.End(), to}, true
}

// branches returns the branches that run only when the call has failed.
func (x failure) branches() (all []ast.Node) {
	x.f.everywhere(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.IfStmt:
			failed, succeeded := x.asks(n.Cond)
			switch {
			case failed:
				all = append(all, n.Body)
			case succeeded && n.Else != nil:
				all = append(all, n.Else)
			}
		case *ast.SwitchStmt:
			all = append(all, x.cases(n)...)
		}
	})
	return all
}

// cases returns those clauses of a switch.
func (x failure) cases(n *ast.SwitchStmt) (all []ast.Node) {
	apart := false // there is a clause for success
	var rest []ast.Node
	for _, statement := range n.Body.List {
		clause, is := statement.(*ast.CaseClause)
		if !is || n.Tag != nil {
			return nil
		}
		fails := false
		for _, e := range clause.List {
			failed, succeeded := x.asks(e)
			fails, apart = fails || failed, apart || succeeded
		}
		switch {
		case fails:
			all = append(all, clause)
		case clause.List == nil:
			rest = append(rest, clause)
		}
	}
	if apart {
		all = append(all, rest...)
	}
	return all
}

// asks reports whether a condition holds only when the call has failed, or only when it has succeeded: it compares the error
// with nil, or asks what it is.
func (x failure) asks(cond ast.Expr) (failed, succeeded bool) {
	if cond.Pos() < x.from || cond.Pos() > x.to {
		return false, false
	}
	switch e := ast.Unparen(cond).(type) {
	case *ast.BinaryExpr:
		left, right := ast.Unparen(e.X), ast.Unparen(e.Y)
		switch e.Op {
		case token.EQL, token.NEQ:
			compared := x.is(left) && x.null(right) || x.is(right) && x.null(left)
			return compared && e.Op == token.NEQ, compared && e.Op == token.EQL
		case token.LAND: // one is enough
			failed, succeeded = x.asks(left)
			more, others := x.asks(right)
			return failed || more, succeeded && others
		default:
			return false, false
		}
	case *ast.CallExpr: // errors.Is, errors.As, and functions of the program like them
		return slices.ContainsFunc(e.Args, x.is), false
	default:
		return false, false
	}
}

func (x failure) is(e ast.Expr) bool { return identified(x.f.pass, e) == x.err }

func (x failure) null(e ast.Expr) bool { return x.f.pass.TypesInfo.Types[e].IsNil() }
