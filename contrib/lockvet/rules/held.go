package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// span is a piece of the text.
type span struct{ from, to token.Pos }

func (s span) has(at token.Pos) bool { return s.from <= at && at < s.to }

// acquired is a hold, and the call that returns it.
type acquired struct {
	f         function
	assign    *ast.AssignStmt // of what the call returns
	hold, err *types.Var      // err is nil if the error is in no variable
}

// arrival is a block of statements, and what is known where it begins.
type arrival struct {
	block *cfg.Block
	fresh bool // err has the call's error still
}

// whileHeld returns what may run after the call has succeeded and before the hold is released.
func (a acquired) whileHeld() (all []span) {
	seen := map[arrival]bool{}
	var follow func(from arrival, nodes []ast.Node)
	follow = func(from arrival, nodes []ast.Node) {
		fresh := from.fresh
		for _, n := range nodes {
			end := a.releaseIn(n)
			all = append(all, span{n.Pos(), end})
			if end < n.End() || a.assigns(n, a.hold) {
				return
			}
			fresh = fresh && !a.assigns(n, a.err)
		}
		for _, next := range a.succeeding(from.block, fresh) {
			if to := (arrival{next, fresh}); !seen[to] {
				seen[to] = true
				follow(to, next.Nodes)
			}
		}
	}
	for _, block := range cfg.New(a.f.body, mayReturn).Blocks {
		if i := slices.Index(block.Nodes, ast.Node(a.assign)); i >= 0 {
			follow(arrival{block, true}, block.Nodes[i+1:])
		}
	}
	return all
}

func mayReturn(call *ast.CallExpr) bool {
	name, is := call.Fun.(*ast.Ident)
	return !is || name.Name != "panic"
}

// succeeding returns the blocks that may come next if the call has succeeded.
func (a acquired) succeeding(block *cfg.Block, fresh bool) []*cfg.Block {
	if len(block.Succs) != 2 || len(block.Nodes) == 0 {
		return block.Succs
	}
	cond, is := block.Nodes[len(block.Nodes)-1].(ast.Expr)
	if !is {
		return block.Succs
	}
	switch ifTrue, ifFalse := a.failed(cond, fresh); {
	case ifTrue:
		return block.Succs[1:]
	case ifFalse:
		return block.Succs[:1]
	default:
		return block.Succs
	}
}

// failed reports whether the call must have failed if a condition is true, and if it is false.
func (a acquired) failed(cond ast.Expr, fresh bool) (ifTrue, ifFalse bool) {
	switch e := ast.Unparen(cond).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			ifFalse, ifTrue = a.failed(e.X, fresh)
		}
	case *ast.BinaryExpr:
		switch e.Op {
		case token.EQL:
			return a.compares(e, a.hold), fresh && a.compares(e, a.err)
		case token.NEQ:
			return fresh && a.compares(e, a.err), a.compares(e, a.hold)
		case token.LAND, token.LOR:
			leftTrue, leftFalse := a.failed(e.X, fresh)
			rightTrue, rightFalse := a.failed(e.Y, fresh)
			if e.Op == token.LAND {
				return leftTrue || rightTrue, leftFalse && rightFalse
			}
			return leftTrue && rightTrue, leftFalse || rightFalse
		default:
		}
	case *ast.CallExpr: // errors.Is, errors.As, and functions of the program like them
		ifTrue = fresh && slices.ContainsFunc(e.Args, func(e ast.Expr) bool { return a.is(e, a.err) })
	}
	return ifTrue, ifFalse
}

// compares reports whether an expression compares a variable with nil.
func (a acquired) compares(e *ast.BinaryExpr, v *types.Var) bool {
	null := func(e ast.Expr) bool { return a.f.pass.TypesInfo.Types[ast.Unparen(e)].IsNil() }
	return a.is(e.X, v) && null(e.Y) || a.is(e.Y, v) && null(e.X)
}

func (a acquired) is(e ast.Expr, v *types.Var) bool { return v != nil && identified(a.f.pass, e) == v }

// assigns reports whether a statement gives a variable another value.
func (a acquired) assigns(n ast.Node, v *types.Var) bool {
	assign, is := n.(*ast.AssignStmt)
	return is && slices.ContainsFunc(assign.Lhs, func(e ast.Expr) bool { return a.is(e, v) })
}

// releaseIn is where a statement releases the hold. It is the statement's end if it does not, or only when the function ends.
func (a acquired) releaseIn(n ast.Node) token.Pos {
	released := n.End()
	if _, deferred := n.(*ast.DeferStmt); deferred {
		return released
	}
	ast.Inspect(n, func(n ast.Node) bool {
		call, receiver, c, is := method(a.f.pass, n)
		if is && c.is("Hold", "Release") && a.is(receiver, a.hold) {
			released = min(released, call.Pos())
		}
		_, literal := n.(*ast.FuncLit) // it runs at another time
		return !literal
	})
	return released
}
