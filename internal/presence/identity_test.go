package presence

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for _, none := range []string{"", "no record", `{"pid": "1"}`} {
		r, from := Parse("billing:1", none)
		require.Zero(t, r)
		require.Zero(t, from, "it is nobody's")
	}
	r, from := Parse("billing:1", `{"host": "h", "pid": 1, "name": "n", "waits": [`+strings.Repeat(`{}, `, MostWaits)+`{}]}`)
	require.Equal(t, Identity{Registry: "billing:1", Host: "h", PID: 1, Name: "n"}, from)
	require.False(t, from.Unread())
	require.Len(t, r.Waits, MostWaits)
}

// What other versions have written is read as far as this version knows it.
func TestParse_OtherVersions(t *testing.T) {
	before, from := Parse("billing:1", `{"host": "h", "pid": 1, "waits": [{"path": "b"}]}`)
	require.Equal(t, 1, from.PID)
	require.Empty(t, before.Locks)
	later, _ := Parse("billing:1", `{"pid": 1, "mood": {"x": []}, "locks": [{"path": "b", "waiting": 28, "color": [1]}]}`)
	require.Equal(t, []Lock{{Path: "b", Waiting: 28}}, later.Locks)
	many, _ := Parse("billing:1", `{"pid": 1, "locks": [`+strings.Repeat(`{}, `, MostLocks)+`{}]}`)
	require.Len(t, many.Locks, MostLocks)
}

// What a record says is cut where it is longer than this package writes it.
func TestParse_WhatIsTooLong(t *testing.T) {
	long := `{"host": "` + strings.Repeat("h", longestHost+1) + `", "pid": 1, "name": "` + strings.Repeat("n", longestName+1) + `"}`
	_, from := Parse("billing:1", long)
	require.Equal(t, Identity{Registry: "billing:1", Host: TooLong, PID: 1, Name: TooLong}, from)
	require.False(t, from.Unread())
	require.True(t, Unread("billing:1").Unread())
}

func TestOwn(t *testing.T) {
	name := "billing"
	own := Own("billing:1", &name)
	require.Equal(t, "billing:1", own.Registry)
	require.Equal(t, "billing", own.Name)
	require.NotZero(t, own.PID)
	require.Empty(t, Own("billing:1", nil).Name)
}

func TestCheckName(t *testing.T) {
	check := func(name string) error { return CheckName(&name) }
	require.NoError(t, CheckName(nil))
	require.NoError(t, check(strings.Repeat("n", longestName)))
	require.ErrorContains(t, check(""), "empty")
	require.ErrorContains(t, check(strings.Repeat("n", longestName+1)), "101 bytes")
	require.ErrorContains(t, check("\xff"), "not valid UTF-8")
}

func TestKey(t *testing.T) {
	require.Equal(t, "orders:{billing:1}:registry", Key("orders", "billing:1"))
	require.Equal(t, "billing:1", Owner("orders", Key("orders", "billing:1")))
}
