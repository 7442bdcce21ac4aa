package view_test

import (
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

var (
	since = time.Date(2026, 9, 21, 14, 30, 5, 123456789, time.FixedZone("CEST", 7200))
	label = observe.Label{Registry: "r1", Host: "web-1", PID: 4711, Name: "billing"}
)

func requireJSON(t *testing.T, expected string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	require.JSONEq(t, expected, string(text))
}

func TestLock(t *testing.T) {
	t.Parallel()
	requireJSON(t, `{
		"path": "a", "id": "a", "key": "locks:a", "kind": "readwrite", "layout": "redisson", "permits": 0,
		"holders": [
			{"holder": "r1:17", "id": "r1%3A17", "label": {"registry": "r1", "host": "web-1", "pid": 4711, "name": "billing"},
				"who": "billing on web-1, process 4711", "granted": "2026-09-21T12:30:05.123456Z", "behind": 3,
				"behindSince": "2026-09-21T12:30:05.123456Z", "renewedMs": 30000, "overdueMs": 18500, "silentMs": 19000, "permits": 2,
				"shared": true, "since": "2026-09-21T12:30:05.123456Z", "leaseMs": 1500, "token": 42, "kept": false},
			{"holder": "x:1", "id": "x%3A1", "label": null, "shared": false, "since": null, "leaseMs": null, "token": 0, "kept": true,
				"who": "nobody: kept for a while after its release", "granted": null, "behind": 0,
				"behindSince": null, "renewedMs": 0, "overdueMs": 0, "silentMs": 0, "permits": 0}
		],
		"holderCount": 2,
		"waiters": [
			{"registry": "r1", "label": {"registry": "r1", "host": "web-1", "pid": 4711, "name": "billing"},
				"who": "billing on web-1, process 4711", "gone": false, "standby": true, "behind": 2,
				"behindSince": "2026-09-21T12:30:05.123456Z",
				"shared": true, "permits": 3, "since": "2026-09-21T12:30:05.123456Z"},
			{"registry": "r2", "label": null, "who": "a Go process, not known", "gone": true, "standby": false, "behind": 0,
				"behindSince": null,
				"shared": false, "permits": 0, "since": null}
		],
		"waiterCount": 300, "waiting": 305, "tooLong": ["token"]
	}`, view.OfLock(inspect.Lock{
		Path: "a", Key: "locks:a", Kind: "readwrite", Layout: observe.LayoutRedisson,
		Holders: []inspect.Holder{
			{
				Holder: "r1:17", Label: label, Shared: true, Since: since, Lease: 1500 * time.Millisecond, Token: 42,
				Granted: since, Behind: 3, BehindSince: since, Renewed: 30 * time.Second, Silent: 19 * time.Second, Permits: 2,
			},
			{Holder: "x:1", Lease: -1, Kept: true},
		},
		HolderCount: 2,
		Waiters: []inspect.Waiter{
			{Registry: "r1", Label: label, Shared: true, Since: since, Standby: true, Behind: 2, BehindSince: since, Permits: 3},
			{Registry: "r2", Gone: true},
		},
		WaiterCount: 300, TooLong: []string{"token"},
	}))
}

// What is Go's is not called Java's, and what is nobody's known form is called nothing.
func TestWho(t *testing.T) {
	t.Parallel()
	const id = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"
	for holder, want := range map[string]string{
		id: "Java (Spring)", id + ":83": "Java (Redisson), thread 83", id + ":83:write": "Java (Redisson), thread 83",
		"somebody": "unknown", "user:17": "unknown",
	} {
		require.Equal(t, want, view.Who(inspect.Holder{Holder: holder}))
		require.Equal(t, "a Go process, not known", view.Who(inspect.Holder{Holder: holder, Since: since}))
		require.Equal(t, label.String(), view.Who(inspect.Holder{Holder: holder, Label: label}))
	}
}

// A holder without a record is told of, unless it is Java's, too young for one, or nobody.
func TestUnrecorded(t *testing.T) {
	t.Parallel()
	old := inspect.Holder{Holder: "x:1", Since: time.Now().Add(-10 * time.Minute), Lease: 10 * time.Minute}
	require.True(t, view.Unrecorded(old))
	require.Equal(t, 20*time.Minute, view.FirstLease(old))
	for what, change := range map[string]func(h *inspect.Holder){
		"labelled": func(h *inspect.Holder) { h.Label = label },
		"young":    func(h *inspect.Holder) { h.Since = time.Now().Add(-2 * time.Second) },
		"Java's":   func(h *inspect.Holder) { h.Since = time.Time{} },
		"kept":     func(h *inspect.Holder) { h.Kept = true },
	} {
		h := old
		change(&h)
		require.False(t, view.Unrecorded(h), what)
	}
	old.Lease = -1
	require.True(t, view.Unrecorded(old))
	require.Zero(t, view.FirstLease(old), "it has no end")
	require.Zero(t, view.FirstLease(inspect.Holder{Lease: time.Minute}), "not known since when")
}

func TestFreeLockHasEmptyLists(t *testing.T) {
	t.Parallel()
	requireJSON(t, `{"path": "a", "id": "a", "key": "locks:a", "kind": "", "layout": "spring", "permits": 0, "holders": [],
		"holderCount": 0, "waiters": [], "waiterCount": 0, "waiting": 0, "tooLong": []}`,
		view.OfLock(inspect.Lock{Path: "a", Key: "locks:a", Layout: observe.LayoutSpring}))
}

func TestLeaseThatHasNotEndedIsNotZero(t *testing.T) {
	t.Parallel()
	lock := view.OfLock(inspect.Lock{Holders: []inspect.Holder{{Lease: 1}, {Lease: 0}}})
	require.EqualValues(t, 1, *lock.Holders[0].LeaseMS)
	require.EqualValues(t, 0, *lock.Holders[1].LeaseMS)
}

func TestDeadlocks(t *testing.T) {
	t.Parallel()
	requireJSON(t, `[]`, view.OfDeadlocks(nil))
	requireJSON(t, `[{"waits": [
		{"path": "b", "id": "b", "kind": "lock", "owner": "goroutine 17", "holds": ["a"], "holdIds": ["a"],
			"since": "2026-09-21T12:30:05.123456Z",
			"label": {"registry": "r1", "host": "web-1", "pid": 4711, "name": "billing"}, "who": "billing on web-1, process 4711"},
		{"path": "a", "id": "a", "kind": "lock", "owner": "", "holds": [], "holdIds": [], "since": null, "label": null,
			"who": "a Go process, not known"}
	]}]`, view.OfDeadlocks([]observe.Deadlock{{Waits: []observe.DeadlockWait{
		{Path: "b", Kind: "lock", Owner: "goroutine 17", Holds: []string{"a"}, Label: label, Since: since},
		{Path: "a", Kind: "lock"},
	}}}))
}

// What JSON cannot have is told apart all the same.
func TestTextsThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, path := range []string{"a\xff", "a\xfe", "a\ufffd", "a%ff", "a b", "a+b", "ä&=?#/;", "", "\x00"} {
		text, err := json.Marshal(view.OfLock(inspect.Lock{Path: path, Holders: []inspect.Holder{{Holder: path}}}))
		require.NoError(t, err)
		var back view.Lock
		require.NoError(t, json.Unmarshal(text, &back))
		require.False(t, seen[back.ID], path)
		seen[back.ID] = true
		found, err := view.OfID(back.ID)
		require.NoError(t, err)
		require.Equal(t, path, found)
		require.Equal(t, back.ID, back.Holders[0].ID)
		values, err := url.ParseQuery("path=" + back.ID)
		require.NoError(t, err)
		require.Equal(t, path, values.Get("path"), "it can stand in a query")
	}
	require.Equal(t, `a\xff`, view.OfLock(inspect.Lock{Path: "a\xff"}).Path)
}
