// Package rules has the analyzers of lockvet, one for each kind of mistake. They look at one function at a time, and report what
// is wrong in it whatever the rest of the program does. They leave alone a lock that the function passes to other functions.
package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// library is the path of the package that the rules are about.
const library = "github.com/lockregistry/lockregistry"

// ours are the packages of the library that take options or locks.
var ours = map[string]bool{library: true, library + "/leader": true, library + "/lockhttp": true, library + "/locktest": true}

// All returns the analyzers.
func All() []*analysis.Analyzer {
	return []*analysis.Analyzer{unlock, hold, outerContext, result, duration, onlyTaken, otherGoroutine}
}

// rule makes an analyzer that looks at each function, and at each function literal by itself. It leaves out tests, which do wrong
// on purpose, and the library, whose own code sees other things than its users.
func rule(name, doc string, look func(p *analysis.Pass, f function)) *analysis.Analyzer {
	return &analysis.Analyzer{Name: name, Doc: doc, Run: func(p *analysis.Pass) (any, error) {
		if ours[p.Pkg.Path()] {
			return nil, nil
		}
		for _, file := range p.Files {
			if strings.HasSuffix(p.Fset.Position(file.FileStart).Filename, "_test.go") {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Body != nil {
						look(p, function{p, n.Body})
					}
				case *ast.FuncLit:
					look(p, function{p, n.Body})
				}
				return true
			})
		}
		return nil, nil
	}}
}

// function is what a rule looks at.
type function struct {
	pass *analysis.Pass
	body *ast.BlockStmt
}

// callee is what a call calls in the library: a function, or a method of a type.
type callee struct {
	fn   *types.Func
	recv string // the name of the receiver's type; empty of a function
}

// calleeOf returns what a call calls, and false if that is not in the library.
func calleeOf(p *analysis.Pass, call *ast.CallExpr) (callee, bool) {
	fn, is := typeutil.Callee(p.TypesInfo, call).(*types.Func)
	if !is || fn.Pkg() == nil {
		return callee{}, false
	}
	if !ours[fn.Pkg().Path()] {
		return callee{}, false
	}
	c := callee{fn: fn}
	if signature, is := fn.Type().(*types.Signature); is && signature.Recv() != nil {
		c.recv = typeName(signature.Recv().Type())
	}
	return c, true
}

// is reports whether it is a method of a type with one of some names.
func (c callee) is(recv string, names ...string) bool {
	if c.recv != recv {
		return false
	}
	for _, name := range names {
		if c.fn.Name() == name {
			return true
		}
	}
	return false
}

func typeName(t types.Type) string {
	if pointer, is := t.(*types.Pointer); is {
		t = pointer.Elem()
	}
	if named, is := t.(*types.Named); is {
		return named.Obj().Name()
	}
	return ""
}

// method returns the receiver of a call of a method of the library, and the method.
func method(p *analysis.Pass, n ast.Node) (call *ast.CallExpr, receiver ast.Expr, c callee, is bool) {
	call, is = n.(*ast.CallExpr)
	if !is {
		return nil, nil, callee{}, false
	}
	c, is = calleeOf(p, call)
	selector, selects := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !is || !selects || c.recv == "" {
		return nil, nil, callee{}, false
	}
	return call, selector.X, c, true
}

// inspect visits the nodes of a function but for those of the literals in it, which run at another time. Those that are deferred
// are visited.
func (f function) inspect(visit func(n ast.Node, deferred bool)) {
	var walk func(n ast.Node, deferred bool)
	walk = func(root ast.Node, deferred bool) {
		ast.Inspect(root, func(n ast.Node) bool {
			switch n := n.(type) {
			case nil:
				return false
			case *ast.FuncLit:
				return false
			case *ast.DeferStmt:
				visit(n, true)
				visit(n.Call, true)
				if literal, is := n.Call.Fun.(*ast.FuncLit); is {
					walk(literal.Body, true)
				}
				for _, argument := range n.Call.Args {
					walk(argument, deferred)
				}
				return false
			}
			visit(n, deferred)
			return true
		})
	}
	walk(f.body, false)
}

// everywhere visits all nodes of a function, those of its literals too.
func (f function) everywhere(visit func(n ast.Node)) {
	ast.Inspect(f.body, func(n ast.Node) bool {
		if n != nil {
			visit(n)
		}
		return true
	})
}

// local returns the variable that an expression is, if it is one that the function itself declares.
func (f function) local(e ast.Expr) *types.Var {
	identifier, is := ast.Unparen(e).(*ast.Ident)
	if !is {
		return nil
	}
	v, is := f.pass.TypesInfo.ObjectOf(identifier).(*types.Var)
	if !is || v.IsField() || v.Pos() < f.body.Pos() || v.Pos() > f.body.End() {
		return nil
	}
	return v
}

// kept reports whether a function does more with a variable than to call its methods and to compare it: then something else may
// look after it.
func (f function) kept(v *types.Var) bool {
	harmless := map[*ast.Ident]bool{}
	f.everywhere(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if identifier, is := ast.Unparen(n.X).(*ast.Ident); is {
				harmless[identifier] = true
			}
		case *ast.BinaryExpr:
			for _, side := range []ast.Expr{n.X, n.Y} {
				if identifier, is := ast.Unparen(side).(*ast.Ident); is && (n.Op == token.EQL || n.Op == token.NEQ) {
					harmless[identifier] = true
				}
			}
		case *ast.AssignStmt:
			for _, side := range n.Lhs {
				if identifier, is := ast.Unparen(side).(*ast.Ident); is {
					harmless[identifier] = true
				}
			}
		}
	})
	kept := false
	f.everywhere(func(n ast.Node) {
		if identifier, is := n.(*ast.Ident); is && f.pass.TypesInfo.ObjectOf(identifier) == v {
			kept = kept || !harmless[identifier]
		}
	})
	// A method value, such as l.Unlock without a call, is handed on like the variable.
	called := map[*ast.SelectorExpr]bool{}
	f.everywhere(func(n ast.Node) {
		if call, is := n.(*ast.CallExpr); is {
			if selector, is := ast.Unparen(call.Fun).(*ast.SelectorExpr); is {
				called[selector] = true
			}
		}
	})
	f.everywhere(func(n ast.Node) {
		if selector, is := n.(*ast.SelectorExpr); is && !called[selector] {
			if identifier, is := ast.Unparen(selector.X).(*ast.Ident); is && f.pass.TypesInfo.ObjectOf(identifier) == v {
				kept = true
			}
		}
	})
	return kept
}

// isError reports whether an expression is a variable of the library, such as ErrTaken.
func isError(p *analysis.Pass, e ast.Expr, name string) bool {
	var identifier *ast.Ident
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		identifier = e
	case *ast.SelectorExpr:
		identifier = e.Sel
	default:
		return false
	}
	v, is := p.TypesInfo.ObjectOf(identifier).(*types.Var)
	return is && v.Pkg() != nil && v.Pkg().Path() == library && v.Name() == name
}

// isContext reports whether a type is context.Context.
func isContext(t types.Type) bool {
	named, is := t.(*types.Named)
	return is && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "context" && named.Obj().Name() == "Context"
}
