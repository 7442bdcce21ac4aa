package docs

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unlocksOtherwise are the calls of examples that need no defer, or no context.WithoutCancel, with the reason. Each begins with
// the function that it stands in.
var unlocksOtherwise = map[string]string{
	"ExampleLock_Lock_again: lock.Unlock(ctx)":                             "prints what is held between the two",
	"ExampleLock_TryLock: lock.Unlock(alice)":                              "a timer unlocks while another owner waits",
	`ExampleLockError: registry.Obtain("42").Unlock(context.Background())`: "nothing is held: the refusal is shown",
	"ExampleContextWithOwner: lock.Unlock(context.Background())":           "nothing is held: the refusal is shown",
	"ExampleRegistry_Acquire: hold.Release(ctx)":                           "nothing is held: the refusal is shown",
	"ExampleRegistry_Stats: hold.Release(context.Background())":            "prints what is held after it",
}

// TestUnlocks: whoever copies a block of a page, of a doc comment, or an example, gets a lock that is released when the work
// panics and when its context ends: by defer and with context.WithoutCancel. And learns from the error if the lock was lost.
func TestUnlocks(t *testing.T) {
	found, used := 0, map[string]bool{}
	check := func(where, code string) {
		calls, err := unlocks(code)
		if err != nil && (strings.Contains(code, ".Unlock(") || strings.Contains(code, ".Release(")) {
			t.Errorf("%s: %v", where, err)
		}
		found += len(calls)
		for _, call := range calls {
			switch {
			case call.dropped:
				t.Errorf("%s: the error of %s is dropped", where, call.text)
			case call.deferred && call.withoutCancel:
			case unlocksOtherwise[call.text] != "":
				used[call.text] = true
			default:
				t.Errorf("%s: %s has no defer, or no context.WithoutCancel", where, call.text)
			}
		}
	}
	for _, b := range blocks(t, "go") {
		check(fmt.Sprintf("%s:%d", b.page.path, b.line), b.text)
	}
	walk(t, ".go", func(name, text string) {
		if strings.HasPrefix(path.Base(name), "example") || strings.HasPrefix(name, "examples/") {
			check(name, text)
		}
		for _, code := range codeInComments(t, text) {
			check("a comment in "+name, code)
		}
	})
	require.Greater(t, found, 20)
	for text := range unlocksOtherwise {
		require.True(t, used[text], "no example has %s", text)
	}
}

// unlock is a call that releases a lock.
type unlock struct {
	text                    string // the function that it stands in, and the call
	deferred, withoutCancel bool
	dropped                 bool // its error is, without a word
}

// unlocks returns the calls of Unlock and Release in a file, in declarations, or in the body of a function. Those of a sync.Mutex
// take no context, and do not count.
func unlocks(code string) (all []unlock, err error) {
	files := token.NewFileSet()
	var file *ast.File
	for _, around := range []string{"%s", "package p\n%s", "package p\nfunc _() (err error) {\n%s\nreturn nil\n}\n"} {
		if file, err = parser.ParseFile(files, "", fmt.Sprintf(around, code), parser.SkipObjectResolution); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	for _, declaration := range file.Decls {
		function, is := declaration.(*ast.FuncDecl)
		if !is {
			continue
		}
		deferred, dropped := map[ast.Node]bool{}, map[ast.Node]bool{}
		ast.Inspect(function, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.DeferStmt:
				ast.Inspect(n, func(n ast.Node) bool { deferred[n] = true; return true })
				dropped[n.Call] = true
			case *ast.GoStmt:
				dropped[n.Call] = true
			case *ast.ExprStmt:
				dropped[n.X] = true
			}
			call, is := n.(*ast.CallExpr)
			if !is || len(call.Args) != 1 {
				return true
			}
			if f, is := call.Fun.(*ast.SelectorExpr); is && (f.Sel.Name == "Unlock" || f.Sel.Name == "Release") {
				all = append(all, unlock{
					text:          function.Name.Name + ": " + source(call),
					deferred:      deferred[call],
					withoutCancel: strings.HasPrefix(source(call.Args[0]), "context.WithoutCancel("),
					dropped:       dropped[call],
				})
			}
			return true
		})
	}
	return all, nil
}

func source(n ast.Node) string {
	var text strings.Builder
	_ = format.Node(&text, token.NewFileSet(), n)
	return text.String()
}

// codeInComments returns the blocks of code in the comments of a file.
func codeInComments(t *testing.T, text string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	var comments comment.Parser
	for _, c := range file.Comments {
		for _, b := range comments.Parse(c.Text()).Content {
			if code, is := b.(*comment.Code); is {
				all = append(all, code.Text)
			}
		}
	}
	return all
}
