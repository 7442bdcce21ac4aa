package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
)

var outerContext = rule("lockcontext", `report the use of a context that does not end when the lock is lost

The function of Do or leader.New gets a context that ends when the lock can no longer be guaranteed, and Hold.Context makes one.
What is called with the context from outside goes on when another owner has the lock.`, func(p *analysis.Pass, f function) {
	f.inspect(func(n ast.Node, _ bool) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if c, is := calleeOf(p, n); is && runs(c) {
				for _, argument := range n.Args {
					if literal, is := argument.(*ast.FuncLit); is && takesContext(p, literal) {
						inLiteral(p, literal)
					}
				}
			}
		case *ast.AssignStmt:
			besideHold(p, f, n)
		}
	})
})

// runs reports whether a call runs a function under a lock, or makes a candidate that does.
func runs(c callee) bool {
	switch c.recv {
	case "Registry", "Lock", "Semaphore":
		return c.fn.Name() == "Do" || c.fn.Name() == "Once"
	case "":
		leads := c.fn.Pkg().Path() == library+"/leader" && (c.fn.Name() == "New" || c.fn.Name() == "OnGranted")
		return leads || c.fn.Name() == "DoValue"
	default:
		return false
	}
}

func takesContext(p *analysis.Pass, literal *ast.FuncLit) bool {
	signature, is := p.TypesInfo.TypeOf(literal).(*types.Signature)
	return is && signature.Params().Len() == 1 && isContext(signature.Params().At(0).Type())
}

func inLiteral(p *analysis.Pass, literal *ast.FuncLit) {
	givenContexts(p, literal.Body, func(v *types.Var, at *ast.Ident) {
		if v.Pos() < literal.Pos() || v.Pos() > literal.End() {
			p.Reportf(at.Pos(), "%s does not end when the lock is lost: use the context that the function gets", v.Name())
		}
	})
}

// besideHold looks at what is called with the context of an Acquire, once that has returned a hold, and where its name is known.
func besideHold(p *analysis.Pass, f function, assign *ast.AssignStmt) {
	if len(assign.Rhs) != 1 {
		return
	}
	call, is := assign.Rhs[0].(*ast.CallExpr)
	if !is || !acquires(p, call) || len(call.Args) == 0 {
		return
	}
	hold, given := f.local(assign.Lhs[0]), identified(p, call.Args[0])
	if hold == nil || given == nil || f.kept(hold) || f.assigned(given, assign.End()) {
		return
	}
	held := acquired{f, assign, hold, identified(p, assign.Lhs[len(assign.Lhs)-1])}.whileHeld()
	givenContexts(p, f.body, func(v *types.Var, at *ast.Ident) {
		within := func(s span) bool { return s.has(at.Pos()) }
		if v == given && at.Pos() > assign.End() && hold.Parent().Contains(at.Pos()) && slices.ContainsFunc(held, within) {
			p.Reportf(at.Pos(), "%s does not end when the hold is lost: use %s.Context(%s)", v.Name(), hold.Name(), v.Name())
		}
	})
}

func identified(p *analysis.Pass, e ast.Expr) *types.Var {
	identifier, is := ast.Unparen(e).(*ast.Ident)
	if !is {
		return nil
	}
	v, _ := p.TypesInfo.ObjectOf(identifier).(*types.Var)
	return v
}

// assigned reports whether a variable gets another value later: it may be the hold's context then.
func (f function) assigned(v *types.Var, after token.Pos) (is bool) {
	f.everywhere(func(n ast.Node) {
		if assign, does := n.(*ast.AssignStmt); does && assign.Pos() > after {
			for _, side := range assign.Lhs {
				is = is || identified(f.pass, side) == v
			}
		}
	})
	return is
}

// givenContexts visits the variables that are contexts and arguments of calls in the order of the text. What the library itself,
// a log, or context.WithoutCancel gets does not count.
func givenContexts(p *analysis.Pass, body ast.Node, visit func(v *types.Var, at *ast.Ident)) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is || outlives(p, call) {
			return true
		}
		for _, argument := range call.Args {
			if v := identified(p, argument); v != nil && isContext(v.Type()) {
				visit(v, ast.Unparen(argument).(*ast.Ident)) //nolint:forcetypeassert // identified says so
			}
		}
		return true
	})
}

// outlives reports whether a call may well get a context that goes on.
func outlives(p *analysis.Pass, call *ast.CallExpr) bool {
	if _, is := calleeOf(p, call); is {
		return true
	}
	var name *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.SelectorExpr:
		name = fun.Sel
	case *ast.Ident:
		name = fun
	default:
		return false
	}
	fn, is := p.TypesInfo.ObjectOf(name).(*types.Func)
	if !is || fn.Pkg() == nil {
		return false
	}
	return fn.Pkg().Path() == "log/slog" || fn.Pkg().Path() == "context" && fn.Name() == "WithoutCancel"
}
