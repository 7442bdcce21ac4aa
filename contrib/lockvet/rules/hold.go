package rules

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var hold = rule("lockhold", `report a Hold that is dropped or never released

A Hold that nobody releases is renewed for as long as the program can reach it, and keeps its path from everybody.`,
	func(p *analysis.Pass, f function) {
		f.inspect(func(n ast.Node, _ bool) {
			switch n := n.(type) {
			case *ast.ExprStmt:
				if call, is := n.X.(*ast.CallExpr); is && acquires(p, call) {
					p.Reportf(call.Pos(), "the Hold is dropped: nobody can release it")
				}
			case *ast.AssignStmt:
				if len(n.Rhs) != 1 {
					return
				}
				call, is := n.Rhs[0].(*ast.CallExpr)
				if !is || !acquires(p, call) {
					return
				}
				name, is := n.Lhs[0].(*ast.Ident)
				if is && name.Name == "_" {
					p.Reportf(call.Pos(), "the Hold is dropped: nobody can release it")
				} else if v := f.local(n.Lhs[0]); v != nil && !f.kept(v) && !f.calls(v, "Release") {
					p.Reportf(call.Pos(), "%s is never released: defer its Release", v.Name())
				}
			}
		})
	})

// acquires reports whether a call returns a Hold of the library.
func acquires(p *analysis.Pass, call *ast.CallExpr) bool {
	c, is := calleeOf(p, call)
	if !is {
		return false
	}
	signature, is := c.fn.Type().(*types.Signature)
	return is && signature.Results().Len() > 0 && typeName(signature.Results().At(0).Type()) == "Hold"
}

// calls reports whether a method of a variable is called anywhere in the function.
func (f function) calls(v *types.Var, name string) (does bool) {
	f.everywhere(func(n ast.Node) {
		if _, receiver, c, is := method(f.pass, n); is && c.fn.Name() == name {
			identifier, is := ast.Unparen(receiver).(*ast.Ident)
			does = does || is && f.pass.TypesInfo.ObjectOf(identifier) == v
		}
	})
	return does
}
