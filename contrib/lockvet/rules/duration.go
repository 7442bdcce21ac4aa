package rules

import (
	"go/ast"
	"go/constant"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var duration = rule("lockduration", `report a duration without a unit

Lease(30) is thirty nanoseconds: write Lease(30*time.Second).`, func(p *analysis.Pass, f function) {
	f.inspect(func(n ast.Node, _ bool) {
		call, is := n.(*ast.CallExpr)
		if !is {
			return
		}
		c, is := calleeOf(p, call)
		if !is {
			return
		}
		for _, argument := range call.Args {
			value := p.TypesInfo.Types[argument].Value
			if value == nil || !isDuration(p.TypesInfo.TypeOf(argument)) || !bare(argument) || constant.Sign(value) == 0 {
				continue
			}
			text := types.ExprString(argument)
			p.Reportf(argument.Pos(), "%s(%s) is %s ns: write %s*time.Second or another unit", c.fn.Name(), text, text, text)
		}
	})
})

func isDuration(t types.Type) bool {
	named, is := t.(*types.Named)
	return is && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "time" && named.Obj().Name() == "Duration"
}

// bare reports whether an expression is made of literals only.
func bare(e ast.Expr) bool {
	named := false
	ast.Inspect(e, func(n ast.Node) bool {
		_, is := n.(*ast.Ident)
		named = named || is
		return true
	})
	return !named
}
