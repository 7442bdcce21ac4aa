// Package arch keeps the packages of this module as docs/architecture.md describes them, and files, functions and structs
// short.
package arch

import (
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var lower = flag.Bool("lower", false, "write the sizes of today into long.txt, where they are lower")

const (
	page = "docs/architecture.md"
	list = "internal/arch/long.txt"
)

func TestPackages_ImportWhatThePageSays(t *testing.T) {
	m := parse(t, "../..")
	text, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	for _, p := range m.arrows(rooms(string(text))) {
		t.Error(p)
	}
}

// TestPackages_AServiceLinksNothingOfOperators expects that a service that does not import package inspect links nothing that
// only operators need.
func TestPackages_AServiceLinksNothingOfOperators(t *testing.T) {
	m := parse(t, "../..")
	all := m.linked("", "leader", "lockhttp")
	require.Contains(t, all, "detector")
	for _, of := range []string{"inspect", "keyspace", "scan", "protocol/operator"} {
		require.Contains(t, m.imports, of)
		require.NotContains(t, all, of)
	}
	require.Subset(t, slices.Collect(maps.Keys(m.linked("inspect"))), []string{"inspect", "keyspace", "scan", "protocol/operator"})
}

func TestPackages_NewArrowsFail(t *testing.T) {
	const (
		table = "| package | purpose | may import |\n| --- | --- | --- |\n| root | the API | `hold` `rueidis` |\n" +
			"| `hold` | a hold | `clock` |\n| `clock` | instants | |\n| `redistest` | servers | |\n\nText.\n"
		hold, clock, servers = path + "/internal/hold", path + "/internal/clock", path + "/internal/redistest"
		rueidis, testify     = "github.com/redis/rueidis", "github.com/stretchr/testify/require"
	)
	sound := func() module {
		return module{
			imports: map[string][]string{"": {hold, rueidis, "context"}, "hold": {clock}, "clock": {"time"}, "redistest": nil},
			inTests: map[string][]string{"hold": {servers, testify}},
		}
	}
	require.Empty(t, sound().arrows(rooms(table)))
	for name, c := range map[string]struct {
		make func(m module)
		want string
	}{
		"an arrow upward":       {func(m module) { m.imports["clock"] = []string{hold} }, "clock imports hold"},
		"one past a room":       {func(m module) { m.imports[""] = append(m.imports[""], clock) }, "root imports clock"},
		"the root":              {func(m module) { m.imports["clock"] = []string{path} }, "clock imports root"},
		"the root, in a test":   {func(m module) { m.inTests["clock"] = []string{path} }, "the tests of clock import root"},
		"a room, in a test":     {func(m module) { m.inTests["clock"] = []string{hold} }, "the tests of clock import hold"},
		"test servers":          {func(m module) { m.imports["hold"] = append(m.imports["hold"], servers) }, "hold imports redistest"},
		"a library":             {func(m module) { m.imports["clock"] = []string{rueidis} }, "clock imports rueidis"},
		"a package not listed":  {func(m module) { m.imports["far"] = nil }, "far is not in the table"},
		"a package that is not": {func(m module) { delete(m.imports, "redistest") }, "redistest is in the table, but does not exist"},
		"an arrow that is gone": {func(m module) { m.imports["hold"] = nil }, "hold does not import clock any more"},
	} {
		t.Run(name, func(t *testing.T) {
			m := sound()
			c.make(m)
			got := m.arrows(rooms(table))
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestSizes_OnlyShrink(t *testing.T) {
	m := parse(t, "../..")
	text, err := os.ReadFile("../../" + list)
	require.NoError(t, err)
	known := sizes(string(text))
	if *lower {
		for what, n := range known {
			known[what] = min(n, m.long[what]) // 0: no longer too long
		}
		require.NoError(t, os.WriteFile("../../"+list, written(string(text), known), 0o600))
		maps.DeleteFunc(known, func(_ string, n int) bool { return n == 0 })
	}
	for _, p := range grown(m.long, known) {
		t.Error(p)
	}
}

func TestSizes_GrowthFails(t *testing.T) {
	known := sizes("# a comment\nfile a.go 600\nfunc lockregistry.Lock.enter 91\n")
	for name, c := range map[string]struct {
		now  map[string]int
		want string
	}{
		"as it was": {map[string]int{"file a.go": 600, "func lockregistry.Lock.enter": 91}, ""},
		"shorter":   {map[string]int{"file a.go": 501, "func lockregistry.Lock.enter": 91}, ""},
		"longer":    {map[string]int{"file a.go": 601, "func lockregistry.Lock.enter": 91}, "file a.go has 601, and had 600"},
		"no longer": {map[string]int{"file a.go": 600}, "func lockregistry.Lock.enter is not long any more"},
		"new":       {map[string]int{"file a.go": 600, "func lockregistry.Lock.enter": 91, "struct x.y": 16}, "struct x.y has 16"},
	} {
		t.Run(name, func(t *testing.T) {
			got := grown(c.now, known)
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestSizes_OfMadeUpCode(t *testing.T) {
	lines := strings.Repeat("\tx()\n", maxFunc)
	src := "package p\n\nfunc (l *Lock[T]) enter() {\n" + lines + "}\n\nfunc short() {}\n\ntype wide struct {\n" +
		"\ta, b, c, d, e, f, g, h, i, j, k, l, m, n, o int\n\tembedded\n}\n" + strings.Repeat("\n", maxFile)
	m := module{long: map[string]int{}, structs: map[string]map[string]*ast.StructType{}}
	require.NoError(t, m.measure("a.go", src))
	require.NoError(t, m.measure("b.go", "package p\n\ntype embedded struct{ p, q, r int; s *wide }\n\ntype both struct {\n\twide\n"+
		"\tx, y embedded\n\tz []embedded\n}\n\ntype few struct { x, y embedded }\n"))
	m.flatten()
	require.Equal(t, map[string]int{
		"file a.go": strings.Count(src, "\n"), "func p.Lock.enter": maxFunc + 2, "struct p.wide": 16, "flat p.both": 19 + 8 + 1,
	}, m.long)
}

// written returns the list with the new sizes, and without those that are 0.
func written(text string, known map[string]int) []byte {
	var out strings.Builder
	for line := range strings.Lines(text) {
		what, _, isSize := sizeOf(line)
		switch {
		case !isSize:
			out.WriteString(line)
		case known[what] > 0:
			fmt.Fprintf(&out, "%s %d\n", what, known[what])
		}
	}
	return []byte(out.String())
}

func grown(now, known map[string]int) (problems []string) {
	for what, n := range now {
		switch was, ok := known[what]; {
		case !ok:
			problems = append(problems, fmt.Sprintf(
				"%s has %d: a file may have %d lines, a function %d, a struct %d fields, %d with those of its parts. Split it.",
				what, n, maxFile, maxFunc, maxStruct, maxFlat))
		case n > was:
			problems = append(problems, fmt.Sprintf("%s has %d, and had %d: it may only shrink. Split it.", what, n, was))
		}
	}
	for what := range known {
		if now[what] == 0 {
			problems = append(problems, what+" is not long any more, or has gone: go test ./internal/arch -lower takes it off "+list)
		}
	}
	slices.Sort(problems)
	return problems
}
