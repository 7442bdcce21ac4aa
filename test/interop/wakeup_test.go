package interop

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// soon is far more than a wake-up takes, and far less than the pause of a side that was told to poll without hurry.
const soon = 4500 * time.Millisecond

// oddNames are prefixes and paths that might break a format.
var oddNames = []struct{ prefix, path string }{
	{"{tag}", "path"},
	{"prefix", "{tag}:path"},
	{"pre{fi}x", "a {second} tag"},
	{"a prefix with spaces", " path with  spaces "},
	{"préfixe-锁", "путь/🔒"}, //nolint:gosmopolitan // text beyond Latin is the point
	{"a:b", "c:d:"},
	{"100%", "+&=\"'\\\t"},
}

func TestWaiterWakesAtOnce(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(wakeupPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			watch := monitor.Start(t, server.Addr())
			for _, name := range oddNames {
				prefix := name.prefix + strconv.FormatInt(opened.Add(1), 10)
				holder := open(t, r.holder, opening{prefix: prefix})
				waiter := open(t, r.waiter, opening{prefix: prefix, unhurried: true})

				for range 3 {
					got, released := handoff(t, watch, holder, waiter, name.path)
					require.Less(t, got.Sub(released), soon, "the waiter for %q did not learn of the release", holder.key(name.path))
				}
				requireKey(t, holder.key(name.path), false)
			}
		})
	}
}

// handoff has the waiter wait until the holder releases, and returns when it got the lock and when the release began.
func handoff(t *testing.T, watch *monitor.Monitor, holder, waiter *side, path string) (got, released time.Time) {
	t.Helper()
	holder.lock(t, path)
	waiting := waiter.startWaiting(t, watch, path)
	release := holder.unlock(t, path)
	acquired := ended(t, waiting)
	require.False(t, acquired.End.Before(release.Begin), "locked at %v, unlocked only at %v", acquired.End, release.Begin)
	waiter.unlock(t, path)
	return acquired.End, release.Begin
}
