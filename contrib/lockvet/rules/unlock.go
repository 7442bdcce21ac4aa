package rules

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var unlock = rule("lockunlock", `report a Lock or TryLock whose Unlock is missing or not deferred

A panic or a return between Lock and Unlock leaves the lock held until its lease is over, for all processes. Defer the Unlock, or
use Do.`, func(p *analysis.Pass, f function) {
	reported := map[*ast.CallExpr]bool{}
	f.inspect(func(n ast.Node, _ bool) {
		call, receiver, c, is := method(p, n)
		if !is || !c.is("Lock", "Lock", "TryLock") {
			return
		}
		switch deferred, plain := f.unlocks(receiver); {
		case deferred:
		case plain == nil:
			if v := f.local(receiver); v != nil && !f.kept(v) {
				p.Reportf(call.Pos(), "%s is locked and not unlocked: defer its Unlock", types.ExprString(receiver))
			}
		case plain.Pos() > call.End() && !reported[plain] && f.mayLeave(call, plain, receiver):
			reported[plain] = true
			p.Reportf(plain.Pos(), "Unlock of %s is not deferred: a panic or a return before it leaves the lock held",
				types.ExprString(receiver))
		}
	})
})

// unlocks looks for the Unlock of a lock: one that runs however the function ends, or else the last plain one. One that is within
// a literal may be run by anybody, so it counts as deferred.
func (f function) unlocks(lock ast.Expr) (deferred bool, plain *ast.CallExpr) {
	inOrder := map[*ast.CallExpr]bool{}
	f.inspect(func(n ast.Node, inDefer bool) {
		if call := f.unlocking(n, lock); call != nil && !inDefer {
			inOrder[call] = true
			plain = call
		}
	})
	f.everywhere(func(n ast.Node) {
		if call := f.unlocking(n, lock); call != nil && !inOrder[call] {
			deferred = true
		}
	})
	return deferred, plain
}

// mayLeave reports whether a call or a return stands between Lock and a plain Unlock, but for those of the branch in which Lock
// has failed.
func (f function) mayLeave(lock, unlock *ast.CallExpr, receiver ast.Expr) bool {
	failed := f.outcome(lock, receiver)
	may := false
	f.inspect(func(n ast.Node, _ bool) {
		if n.Pos() <= lock.End() || n.End() >= unlock.Pos() || failed != nil && failed.Pos() <= n.Pos() && n.End() <= failed.End() {
			return
		}
		switch n := n.(type) {
		case *ast.ReturnStmt:
			may = true
		case *ast.CallExpr:
			kind := f.pass.TypesInfo.Types[n.Fun]
			may = may || !kind.IsType() && !kind.IsBuiltin()
		}
	})
	return may
}

// outcome is the branch that handles the failure of a lock: the body of the if statement that contains the call, or that comes
// next, unless the lock is unlocked there.
func (f function) outcome(lock *ast.CallExpr, receiver ast.Expr) (failed ast.Node) {
	unlocks := func(body ast.Node) (does bool) {
		ast.Inspect(body, func(n ast.Node) bool {
			does = does || f.unlocking(n, receiver) != nil
			return true
		})
		return does
	}
	within := func(n ast.Node, pos token.Pos) bool { return n != nil && n.Pos() <= pos && pos < n.End() }
	f.inspect(func(n ast.Node, _ bool) {
		switch n := n.(type) {
		case *ast.IfStmt:
			if (n.Init != nil && within(n.Init, lock.Pos()) || within(n.Cond, lock.Pos())) && !unlocks(n.Body) {
				failed = n.Body
			}
		case *ast.BlockStmt:
			for i, statement := range n.List[:max(len(n.List)-1, 0)] {
				next, is := n.List[i+1].(*ast.IfStmt)
				if _, assigns := statement.(*ast.AssignStmt); assigns && is && within(statement, lock.Pos()) && !unlocks(next.Body) {
					failed = next.Body
				}
			}
		}
	})
	return failed
}

// unlocking returns the call if a node is the Unlock of a lock.
func (f function) unlocking(n ast.Node, lock ast.Expr) *ast.CallExpr {
	call, receiver, c, is := method(f.pass, n)
	if !is || !c.is("Lock", "Unlock") || types.ExprString(receiver) != types.ExprString(lock) {
		return nil
	}
	return call
}
