package operator_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// inspectors returns an inspector for each prefix, without registries.
func inspectors(w *kit.World, client rueidis.Client, prefixes ...string) (all []*inspect.Inspector) {
	w.Helper()
	for _, prefix := range prefixes {
		one, err := inspect.New(client, prefix)
		require.NoError(w, err)
		all = append(all, one)
	}
	return all
}

// locksOf returns the keys that each inspector finds, and its error.
func locksOf(w *kit.World, all []*inspect.Inspector) (keys [][]string, errs []error) {
	w.Helper()
	keys, errs = make([][]string, len(all)), make([]error, len(all))
	for found, err := range inspect.LocksOf(w.Context(), all...) {
		require.NoError(w, errs[found.Of], "an error is the last that comes")
		if errs[found.Of] = err; err == nil {
			keys[found.Of] = append(keys[found.Of], found.Lock.Key)
		}
	}
	for _, some := range keys {
		slices.Sort(some)
	}
	return keys, errs
}

// A pass for several prefixes finds what separate passes find, whatever the prefixes have in common.
func TestLocksOf_SeveralPrefixes(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		prefixes := []string{"orders", "order", "a*", "a?[b]", `a\`, "a^", "{a}", "a", "a:b", "[a-z]*", "unused", "a:b"}
		for _, prefix := range prefixes[:len(prefixes)-2] {
			w.Do("SET", prefix+":1", aUUID)
			w.Do("SET", prefix+":2", aUUID)
			w.Do("ZADD", prefix+":{"+prefix+":queue}:waiters", "1795278376064288", aUUID+":5|60000")
		}
		w.Do("EVAL", "for i = 1, 3000 do redis.call('SET', 'other:' .. i, ARGV[1]) end", "0", aUUID)
		all := inspectors(w, w.Client(), prefixes...)
		found, errs := locksOf(w, all)
		for i, one := range all {
			require.NoError(w, errs[i])
			var want []string
			for lock, err := range one.Locks(w.Context()) {
				require.NoError(w, err)
				want = append(want, lock.Key)
			}
			slices.Sort(want)
			require.Equal(w, want, found[i], prefixes[i])
			require.Equal(w, len(want) > 0, prefixes[i] != "unused")
		}
	})
}

// All prefixes of one client share one pass of SCAN, even when deadlocks are looked for.
func TestLocksOf_OnePass(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("EVAL", "for i = 1, 20000 do redis.call('SET', 'other:' .. i, 'x') end return 1", "0")
		w.Do("SET", "orders:1", aUUID)
		w.Do("SET", "stock:1", aUUID)
		w.Do("SET", "mail:1", aUUID)
		all := inspectors(w, w.Client(), "orders", "stock", "mail")
		scans := func(look func()) int {
			before := calls(w, "scan")
			look()
			return calls(w, "scan") - before
		}
		alone := scans(func() {
			for _, err := range all[0].Locks(w.Context()) {
				require.NoError(w, err)
			}
		})
		require.Greater(w, alone, 5)
		require.Equal(w, alone, scans(func() {
			keys, errs := locksOf(w, all)
			require.Equal(w, [][]string{{"orders:1"}, {"stock:1"}, {"mail:1"}}, keys)
			require.Equal(w, make([]error, 3), errs)
		}))
		require.Equal(w, alone, scans(func() {
			_, errs := inspect.DeadlocksOf(w.Context(), all...)
			require.Equal(w, make([]error, 3), errs)
		}))
	})
}

// calls returns how often the server has executed a command.
func calls(w *kit.World, command string) int {
	w.Helper()
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(w.Do("INFO", "commandstats"))
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(w, err)
	return n
}

// A prefix that may not be read has an error, and the others are shown.
func TestLocksOf_OneFails(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		for _, key := range []string{"orders:1", "stock:1", "mail:1"} {
			w.Do("SET", key, aUUID)
		}
		user := w.User("resetkeys", "~orders:*", "~{orders:*", "~redisson_lock_token:{orders:*", "~mail:*", "~{mail:*",
			"~redisson_lock_token:{mail:*")
		all := inspectors(w, user, "orders", "stock", "mail")
		keys, errs := locksOf(w, all)
		require.Equal(w, [][]string{{"orders:1"}, nil, {"mail:1"}}, keys)
		require.NoError(w, errs[0])
		kit.Refuses(w.T, errs[1], "locks", "stock:*", "NOPERM")
		require.NoError(w, errs[2])

		_, errs = locksOf(w, all[1:2])
		require.ErrorContains(w, errs[0], "NOPERM", "it ends when none is left")
	})
}

// Deadlocks of several prefixes are listed separately.
func TestDeadlocksOf(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		one, other := aUUID, "5d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"
		for _, prefix := range []string{"stock", "a", "a:b"} {
			for holder, path := range map[string]string{one: "x", other: "y"} {
				w.Do("SET", prefix+":"+path, holder+":1795310000000000")
				waits := map[string]string{"x": "y", "y": "x"}[path]
				w.Do("SET", prefix+":{"+holder+"}:registry", fmt.Sprintf(
					`{"host":"h","pid":7,"waits":[{"path":%q,"kind":"lock","owner":"goroutine 1","since":1,"holds":[%q]}]}`, waits, path))
			}
		}
		all := inspectors(w, w.Client(), "orders", "stock", "a", "a:b")
		found, errs := inspect.DeadlocksOf(w.Context(), all...)
		require.Equal(w, make([]error, 4), errs)
		require.Empty(w, found[0])
		for _, deadlocks := range found[1:] {
			require.Len(w, deadlocks, 1)
			require.Len(w, deadlocks[0].Waits, 2)
			require.Equal(w, observe.Kind("lock"), deadlocks[0].Waits[0].Kind)
		}
	})
}

// A caller that wants no more ends the pass, and so does its context. That is not an error of any single prefix.
func TestLocksOf_Ends(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		for _, key := range []string{"orders:1", "orders:2", "stock:1", "stock:2"} {
			w.Do("SET", key, aUUID)
		}
		all := inspectors(w, w.Client(), "orders", "stock")
		n := 0
		for _, err := range inspect.LocksOf(w.Context(), all...) {
			require.NoError(w, err)
			if n++; n == 2 {
				break
			}
		}
		require.Equal(w, 2, n)

		over, end := context.WithCancel(w.Context())
		end()
		n = 0
		for _, err := range inspect.LocksOf(over, all...) {
			require.ErrorIs(w, err, context.Canceled)
			n++
		}
		require.Equal(w, 2, n, "each says so")
		_, errs := inspect.DeadlocksOf(over, all...)
		require.ErrorIs(w, errs[0], context.Canceled)
		require.ErrorIs(w, errs[1], context.Canceled)

		var none context.Context
		for found, err := range inspect.LocksOf(none, all...) {
			kit.Refuses(w.T, err, "locks", []string{"orders:*", "stock:*"}[found.Of], "the context is nil")
		}
		for _, err := range inspect.LocksOf(none, all...) {
			require.Error(w, err)
			break
		}
		_, errs = inspect.DeadlocksOf(none, all[0])
		kit.Refuses(w.T, errs[0], "deadlocks", "orders:*", "the context is nil")
		for found, err := range inspect.LocksOf(w.Context()) {
			require.Fail(w, "there is none", "%v %v", found, err)
		}
		closed := w.Registry()
		require.NoError(w, closed.Close())
		for _, err := range inspect.LocksOf(w.Context(), inspect.Of(closed), all[1]) {
			if err != nil {
				require.ErrorIs(w, err, lockregistry.ErrClosed)
			}
		}
	})
}
