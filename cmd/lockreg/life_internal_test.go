package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// What is known of a holder is said, and no more: nothing is called dead, or alive, of which that is not known.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
		label := observe.Label{Registry: id, Host: "web-1", PID: 7}
		before := func(d time.Duration) time.Time { return time.Now().Add(-d) }
		for name, c := range map[string]struct {
			of          inspect.Holder
			life, lease string
		}{
			"renewed": {
				inspect.Holder{Label: label, Since: before(time.Hour), Renewed: time.Minute, Lease: 57 * time.Second},
				"granted or renewed 3s ago: its process was alive then; if it has died since, this shows within 24s", "57s",
			},
			"overdue": {
				inspect.Holder{Label: label, Since: before(time.Hour), Renewed: time.Minute, Lease: 33 * time.Second},
				"not renewed for 27s: it is probably dead or frozen", "33s, renewal overdue by 7s, probably dead or frozen",
			},
			"not listed, of a process that is silent": {
				inspect.Holder{Label: label, Since: before(time.Hour), Silent: 27 * time.Second, Lease: 33 * time.Second},
				"its process has shown no sign of life for 27s, and should have: it is probably dead or frozen",
				"33s, process probably dead or frozen",
			},
			"never told": {
				inspect.Holder{Since: before(10 * time.Minute), Lease: 10 * time.Minute},
				"no record of its process: it is dead or frozen, or may not write one; its lease is 20m00s if it was never " +
					"renewed, else shorter", "10m00s, no record: probably dead",
			},
			"never told, without an end": {
				inspect.Holder{Since: before(10 * time.Minute), Lease: -1},
				"no record of its process: it is dead or frozen, or may not write one",
				"no end, no record: probably dead",
			},
			"new": {
				inspect.Holder{Since: before(time.Second), Lease: time.Minute},
				"it is too new for a record of its process; one shows within 5s", "1m00s",
			},
			"not renewed": {
				inspect.Holder{Label: label, Since: before(time.Hour), Lease: time.Minute},
				"its process was alive in the last minute; if it has died since, this shows within a minute; " +
					"whether it renews its lease is not known", "1m00s",
			},
			"Java": {
				inspect.Holder{Holder: id, Lease: time.Minute},
				"whether it is alive is not known; if it is dead, its lease ends in 1m00s", "1m00s",
			},
			"Java, without an end": {inspect.Holder{Holder: id, Lease: -1}, "whether it is alive is not known", "no end"},
			"kept": {
				inspect.Holder{Since: before(time.Hour), Kept: true, Lease: time.Minute}, "no process works under it", "1m00s",
			},
		} {
			require.Equal(t, c.life, life(c.of), name)
			requireSaidOnThePage(t, c.life)
			require.Equal(t, c.lease, leaseOf(c.of), name)
		}
	})
}

// requireSaidOnThePage fails the test if the page, which follows a life as time goes by, has other words for it.
func requireSaidOnThePage(t *testing.T, life string) {
	t.Helper()
	script, err := os.ReadFile("page/assets/life.js")
	require.NoError(t, err)
	for _, part := range regexp.MustCompile(`\b\d[\dms.]*\b`).Split(life, -1) {
		for words := range strings.SplitSeq(part, "; ") { // it joins some
			require.Contains(t, string(script), strings.TrimSpace(words))
		}
	}
}

// How long a lock is held is not said by what may be its holder's wait.
func TestHeldFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := func(d time.Duration) time.Time { return time.Now().Add(-d) }
		for _, c := range []struct {
			of          inspect.Holder
			held, after string
		}{
			{inspect.Holder{Since: before(3 * time.Minute), Granted: before(2 * time.Second)}, "2s", " for 2s"},
			{inspect.Holder{Since: before(3 * time.Minute)}, "asked 3m00s ago", ", which asked for it 3m00s ago"},
			{inspect.Holder{Since: before(2 * time.Second)}, "≤ 2s", " for ≤ 2s"},
			{inspect.Holder{}, "unknown", ""},
		} {
			require.Equal(t, c.held, heldFor(c.of))
			require.Equal(t, c.after, held(c.of))
		}
	})
}

// That nobody waits is said only where the waiters within processes are known.
func TestNobodyWaits(t *testing.T) {
	known := inspect.Holder{Label: observe.Label{Registry: "1", PID: 1}}
	behind := known
	behind.Behind = 3
	for _, c := range []struct {
		want    string
		holders []inspect.Holder
	}{
		{"nobody waits", []inspect.Holder{known, known}}, {"nobody waits in Redis", []inspect.Holder{known, {}}},
		{"nobody waits in Redis", nil}, {"nobody waits in Redis", []inspect.Holder{behind}},
	} {
		require.Equal(t, c.want, nobodyWaits(inspect.Lock{Holders: c.holders}))
	}
}

// A holder is overdue as soon as it is said to be, and no sooner.
func TestUntilOverdue(t *testing.T) {
	for _, renewed := range []time.Duration{3 * time.Second, 10 * time.Second, time.Minute, time.Hour} {
		h := inspect.Holder{Renewed: renewed, Lease: renewed * 9 / 10}
		h.Lease -= untilOverdue(h)
		require.Positive(t, h.Overdue())
		h.Lease++
		require.Zero(t, h.Overdue())
	}
}

// Each holder is said to be alive or dead once, in a line of its own.
func TestShowOfTheDead(t *testing.T) {
	var out bytes.Buffer
	alive := inspect.Holder{Holder: "a", Renewed: time.Minute, Lease: 50 * time.Second}
	dead := inspect.Holder{Holder: "b", Renewed: time.Minute, Lease: 33 * time.Second}
	info := inspect.Lock{Kind: observe.KindSemaphore, Holders: []inspect.Holder{alive, dead}, HolderCount: 2}
	require.NoError(t, (&app{out: &out}).printLock(info))
	other := inspect.Holder{Holder: "c", Silent: time.Second}
	require.Equal(t, "3 holders, 2 probably dead",
		several(inspect.Lock{Holders: []inspect.Holder{alive, dead, other}, HolderCount: 3}))
	require.Contains(t, out.String(), "  33s, renewal overdue by 7s  -")
	require.Contains(t, out.String(), "\nunknown: granted or renewed 10s ago: its process was alive then; if")
	require.Contains(t, out.String(), "\nunknown: not renewed for 27s: it is probably dead or frozen\n")
	require.Equal(t, 1, strings.Count(out.String(), "dead or frozen"))
}

// The command to copy frees the holder that is most overdue, and a shell reads it as it is meant.
func TestCommandToCopy(t *testing.T) {
	r := &releaser{prefix: "my shop", path: "it's"}
	alive := inspect.Holder{Holder: "a:1", Renewed: time.Minute, Lease: 50 * time.Second}
	late := inspect.Holder{Holder: "b:2", Renewed: time.Minute, Lease: 30 * time.Second}
	later := inspect.Holder{Holder: "c:3$(x)", Renewed: time.Minute, Lease: 20 * time.Second}
	require.Equal(t, `lockreg release 'my shop' 'it'\''s' --holder 'c:3$(x)'`,
		r.command(inspect.Lock{Holders: []inspect.Holder{alive, late, later}}))
	require.Equal(t, `lockreg release 'my shop' 'it'\''s' --holder b:2`,
		r.command(inspect.Lock{Holders: []inspect.Holder{late, alive}}))
	late.Renewed, late.Silent = 0, 20*time.Second
	require.Contains(t, r.command(inspect.Lock{Holders: []inspect.Holder{alive, late}}), "b:2")
	for word, want := range map[string]string{
		"": "''", "a b": "'a b'", "orders:42": "orders:42", "a;b": "'a;b'", "~x": "'~x'", "é": "'é'", "x*y": "'x*y'",
	} {
		require.Equal(t, want, quoted(word))
	}
}

// One number for all that wait, wherever they do, and what is known of some.
func TestWaiting(t *testing.T) {
	info := inspect.Lock{
		Holders: []inspect.Holder{
			{Label: observe.Label{Registry: "1", Host: "web-1", PID: 7}, Behind: 1}, {Label: observe.Label{Registry: "2", PID: 1}},
		},
		Waiters:     []inspect.Waiter{{}, {Gone: true}, {Label: observe.Label{Registry: "3", PID: 1, Name: "mailer"}, Behind: 2}},
		WaiterCount: 3,
	}
	require.Equal(t, 6, view.Waiting(info))
	require.Equal(t, "6, of them 1 gone, 1 in web-1/7, 2 in mailer", waiting(info))
	require.Equal(t, "0", waiting(inspect.Lock{}))
}

// Waiters that are gone are among those that wait.
func TestWaitingOfTheGone(t *testing.T) {
	gone, there := inspect.Waiter{Registry: "1", Gone: true}, inspect.Waiter{Registry: "2"}
	for want, waiters := range map[string][]inspect.Waiter{
		"1": {there}, "1, which is gone": {gone}, "3, of them 1 gone": {there, gone, there}, "2, of them 2 gone": {gone, gone},
	} {
		require.Equal(t, want, waiting(inspect.Lock{Waiters: waiters, WaiterCount: len(waiters)}))
	}
}

// The next one is there: the dead are passed over.
func TestNext(t *testing.T) {
	waiters := []inspect.Waiter{
		{Registry: "1", Gone: true},
		{Registry: "2", Label: observe.Label{Registry: "2", Host: "vm", PID: 28513, Name: "lockreg run sleep"}},
		{Registry: "3", Label: observe.Label{Registry: "3", Host: "vm", PID: 1}},
	}
	holder := inspect.Holder{Label: observe.Label{Registry: "4", Host: "vm", PID: 2, Name: "shop"}}
	require.Equal(t, "lockreg run sleep on vm, process 28513", next(inspect.Lock{Waiters: waiters}, holder))
	require.Empty(t, next(inspect.Lock{Waiters: waiters[:1]}, holder))
	require.Empty(t, next(inspect.Lock{}, holder))
	holder.Behind = 28
	require.Equal(t, "one of 28 waiting in shop, once that process notices at its next renewal or unlock",
		next(inspect.Lock{Waiters: waiters[:1]}, holder))
	require.Equal(t, "lockreg run sleep on vm, process 28513", next(inspect.Lock{Waiters: waiters}, holder))
}
