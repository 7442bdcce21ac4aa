package rules

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var otherGoroutine = rule("lockgoroutine", `report a goroutine that unlocks what another one has locked

A lock belongs to the goroutine that has locked it, so Unlock of another one returns ErrNotOwner and changes nothing. Use Acquire,
whose Hold any goroutine may release, or give both calls a context with an owner.`, func(p *analysis.Pass, f function) {
	f.inspect(func(n ast.Node, _ bool) {
		start, is := n.(*ast.GoStmt)
		if !is {
			return
		}
		literal, is := start.Call.Fun.(*ast.FuncLit)
		if !is {
			return
		}
		inner := function{p, literal.Body}
		inner.everywhere(func(n ast.Node) {
			call, receiver, c, is := method(p, n)
			if !is || !c.is("Lock", "Unlock") || inner.locks(receiver) || !f.locks(receiver) || f.sharesOwner() {
				return
			}
			p.Reportf(call.Pos(), "another goroutine has locked %s: this Unlock returns ErrNotOwner; use Acquire",
				types.ExprString(receiver))
		})
	})
})

// locks reports whether a function itself locks a lock, not in a goroutine that it starts.
func (f function) locks(lock ast.Expr) (does bool) {
	f.inspect(func(n ast.Node, _ bool) {
		if _, receiver, c, is := method(f.pass, n); is && c.is("Lock", "Lock", "TryLock") {
			does = does || types.ExprString(receiver) == types.ExprString(lock)
		}
	})
	return does
}

// sharesOwner reports whether a function makes a context by which goroutines are one owner.
func (f function) sharesOwner() (does bool) {
	f.everywhere(func(n ast.Node) {
		call, is := n.(*ast.CallExpr)
		if !is {
			return
		}
		c, is := calleeOf(f.pass, call)
		does = does || is && (c.is("Lock", "Context") || c.is("", "ContextWithOwner"))
	})
	return does
}
