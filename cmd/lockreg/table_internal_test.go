package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

func TestTable(t *testing.T) {
	draw := func(width int, copied bool) string {
		var out bytes.Buffer
		table := (&app{out: &out, width: width}).table("PATH", "", "NOTE", "IN REDIS")
		table.copied = copied
		table.row(strings.Repeat("ü", 60), "reads", "", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11")
		table.row("b\t", "", "", "1")
		require.NoError(t, table.Flush())
		return out.String()
	}
	require.Equal(t, "PATH"+strings.Repeat(" ", 65)+"IN REDIS\n"+
		strings.Repeat("ü", 60)+"  reads  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\n"+
		`b\t`+strings.Repeat(" ", 66)+"1\n", draw(0, false), "nothing is cut where there is no terminal, and no column is empty")
	for line := range strings.Lines(draw(40, false)) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 41)
	}
	require.Equal(t, draw(0, false), draw(200, true), "it fits")
	require.Regexp(t, `^PATH\n  IN REDIS\nü{52}…  reads\n  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\nb`, draw(60, true))
	require.Contains(t, draw(10, true), "ü…  reads\n  5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11\n", "it is as narrow as can be")
}

// On a terminal of the usual width everything about a holder can be read, and copied.
func TestShowAtEightyColumns(t *testing.T) {
	var out bytes.Buffer
	const value = "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11:1795278371204117"
	label := observe.Label{Registry: value[:36], Host: "web-1", PID: 4711, Name: "billing"}
	holder := inspect.Holder{
		Holder: value, Label: label, Since: time.Now().Add(-time.Hour), Granted: time.Now(),
		Lease: 57 * time.Second, Renewed: time.Minute,
	}
	info := inspect.Lock{Path: "a", Key: "p:a", Kind: observe.KindLock, Holders: []inspect.Holder{holder}, HolderCount: 1}
	require.NoError(t, (&app{out: &out, width: 80}).printLock(info))
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}
	require.Regexp(t, `\nbilling on web-1, process 4711  .*\n  `+value+`\n`, out.String())
	require.Regexp(t, `\nbilling on web-1, process 4711: granted or .*\n  .*this shows within 24s\n`, out.String())
}
