package operator_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

const listKey = "orders:{registries}:registry"

// The records of processes are read before the first SCAN, whatever else is in the database.
func TestList_LocksInRecordsComeFirst(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, waiter, viewer := w.Registry(lockregistry.WithName("billing")), w.Registry(), w.Registry()
		w.Lock(r.Obtain("held"))
		w.Lock(r.ReadWrite("read").Reader())
		done := kit.LockElsewhere(waiter.Obtain("held"), w.Context())
		w.Await("the records", func() bool { // r's record may have been written before its second lock was a second old
			return strings.Contains(w.Do("GET", recordOf(r)), `"path":"read"`) && w.Do("EXISTS", recordOf(waiter)) == "1" &&
				w.Do("ZCARD", listKey) == "2"
		})
		w.Do("SET", "orders:java", aUUID) // only SCAN finds it
		before := w.Executed("scan")
		var paths []string
		for info, err := range inspect.Of(viewer).Locks(w.Context()) {
			require.NoError(w, err)
			if info.Path == "java" {
				require.Greater(w, w.Executed("scan"), before)
			} else {
				require.Equal(w, before, w.Executed("scan"), info.Path)
				require.Equal(w, "billing", info.Holders[0].Label.Name)
			}
			paths = append(paths, info.Path)
		}
		require.ElementsMatch(w, []string{"held", "read", "java"}, paths, "each once")
		require.Equal(w, "java", paths[2])

		w.Do("SET", listKey, "somebody's", "PX", "60000")
		require.Equal(w, []string{"held", "java", "read"}, kit.PathsOf(w.T, viewer), "without the list all are found by SCAN")
		w.Unlock(r.Obtain("held"))
		require.NoError(w, <-done)
	})
}

// The list is updated now and then, not each time that a record is written. When keys are gone it is updated at once, since the
// list may be gone, too.
func TestList_IsToldNowAndThen(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal())
		w.Lock(r.Obtain("42"))
		w.Lock(r.Obtain("another"))
		told := func() (records, lists int) {
			for _, c := range f.Sent(kit.Anything) {
				if slices.Contains(c.Args, listKey) {
					lists++
				} else if slices.Contains(c.Args, recordOf(r)) {
					records++
				}
			}
			return records, lists
		}
		w.Pass(16 * time.Minute)
		records, lists := told()
		require.GreaterOrEqual(w, records, 16*3)
		require.Equal(w, 4, lists)
		f.Fates("EVALSHA", kit.Refused(kit.Loading)) // as while the server restarts
		w.Do("DEL", kit.TheKey, recordOf(r), listKey)
		w.Pass(42 * time.Second) // a renewal notices, and the record is written again
		require.Equal(w, "1", w.Do("EXISTS", listKey))
	})
}

// Processes that crash again and again do not fill Redis: beyond a limit the records of dead processes are removed, the oldest
// first.
func TestList_IsBounded(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const fill = `local now = redis.call('TIME')[1] * 1000
			for i = 1, ARGV[1] do
				redis.call('ZADD', KEYS[1], now - 420000 - i, ARGV[2] .. i)
				redis.call('SET', 'orders:{' .. ARGV[2] .. i .. '}:registry', '{}', 'PX', 3600000)
			end`
		w.Do("EVAL", fill, "1", listKey, "560", "dead:")
		w.Do("ZADD", listKey, "5", "expired")
		r := w.Registry()
		w.Lock(r.Obtain("42"))
		w.Await("500 of them", func() bool { return w.Do("ZCARD", listKey) == "501" })
		require.NotEqual(w, "nil", w.Do("ZSCORE", listKey, kit.ClientID(r)))
		w.Await("the end of the oldest records", func() bool {
			return w.Do("EVAL", "return #redis.call('KEYS', '*dead:*}:registry')", "0") == "500"
		})
		for _, i := range []int{1, 500, 501, 560} {
			record := "orders:{dead:" + strconv.Itoa(i) + "}:registry"
			require.Equal(w, map[bool]string{true: "1", false: "0"}[i <= 500], w.Do("EXISTS", record), i)
		}
		require.Greater(w, w.Pttl(listKey).Minutes(), 61.0, "it outlives the records")
	})
}

// Without permission for the list there is still a record, and the server's log has one line about it, not one a second.
func TestList_ThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"zadd", "pexpire"} {
		t.Run(command, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				r := w.RegistryOn(w.User("-"+command), log.Option(), lockregistry.WithPolling())
				w.Lock(r.Obtain("42"))
				w.Await("the record", func() bool { return w.Do("EXISTS", recordOf(r)) == "1" })
				first := w.Do("GET", recordOf(r))
				w.Lock(r.Obtain("43"))
				w.Await("another record", func() bool { return w.Do("GET", recordOf(r)) != first })
				require.Equal(w, "0", w.Do("EXISTS", listKey))
				// Before 7.0 the context is another one for a script that has already written.
				refused := regexp.MustCompile(`count\s+(\d+)\s+reason\s+command\s+context\s+(?:lua|multi)\s+object\s+` + command + `\s`)
				lines := refused.FindAllStringSubmatch(w.Do("ACL", "LOG"), -1)
				require.Len(w, lines, 1)
				require.Equal(w, "1", lines[0][1])
				require.Empty(w, log.Lines())
			})
		})
	}
}
