package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	draw := func(width int, whole string) string {
		var out bytes.Buffer
		table := (&app{out: &out, width: width}).table("PATH", "", "NOTE", "IN REDIS")
		table.whole = whole
		table.row(strings.Repeat("ü", 60), "reads", "", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11")
		table.row("b\t", "", "", "1")
		require.NoError(t, table.Flush())
		return out.String()
	}
	require.Equal(t, "PATH"+strings.Repeat(" ", 65)+"IN REDIS\n"+
		strings.Repeat("ü", 60)+"  reads  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\n"+
		`b\t`+strings.Repeat(" ", 66)+"1\n", draw(0, ""), "nothing is cut where there is no terminal, and no column is empty")
	for line := range strings.Lines(draw(40, "")) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 41)
	}
	require.Contains(t, draw(60, "IN REDIS"), "ü…  reads  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\n")
	require.Contains(t, draw(10, "IN REDIS"), "ü…  reads  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\n", "it is as narrow as can be")
}
