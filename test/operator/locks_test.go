package operator_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

const aUUID = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"

func TestLocks_AreThoseThatAreHeldOrWaitedFor(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithFencing())
		require.Empty(w, kit.PathsOf(w.T, r))

		w.Lock(r.Obtain("plain"))
		w.Lock(r.Obtain("{tag}plain"))
		w.Lock(r.ReadWrite("read").Reader())
		w.Lock(r.ReadWrite("{tag}read").Reader()) // its lease's name contains the prefix
		w.Lock(w.Registry(lockregistry.WithRedissonLayout()).Obtain("redisson"))
		w.Lock(w.Registry(lockregistry.WithClientID("billing")).Obtain("named"))
		w.Do("SET", "orders:java", aUUID)
		// Paths that are only waited for:
		w.Do("ZADD", "orders:{orders:queue}:waiters", "-5", "open", "-1", "wide", "1795278376064288", aUUID+":5|60000")
		w.Do("ZADD", "orders:{tag}queue:waiters", "1795278376064288", aUUID+":5|60000w")
		w.Do("ZADD", "orders:{orders:gone}:waiters", "-5", "open", "-1", "wide")
		// Not locks:
		w.Do("SET", "orders:text", "text")
		w.Do("SET", "orders:user", "user:17")
		w.Do("SET", "orders:long", strings.Repeat("x", 10_000))
		w.Do("RPUSH", "orders:list", "a")
		w.Do("HSET", "orders:hash", "a", "1")
		w.Do("HSET", "orders:days", "2026:11", "1")
		w.Do("SET", "orders:{"+aUUID+"}:registry", "{}")
		w.Do("SET", "invoices:1", aUUID)
		w.Do("SET", "orders", aUUID)
		w.Do("SET", "orders:", aUUID)
		w.Do("ZADD", "orders:eu:{orders:eu:7}:waiters", "1795278376064288", aUUID+":5|60000") // for the prefix orders:eu
		require.Equal(w, []string{"java", "named", "plain", "queue", "read", "redisson", "{tag}plain", "{tag}queue", "{tag}read"},
			kit.PathsOf(w.T, r))

		w.Await("the records of three registries, and another one", func() bool {
			return w.Do("EVAL", "return #redis.call('KEYS', '*}:registry')", "0") == "5" // together with their list
		})
		for info, err := range inspect.Of(r).Locks(w.Context()) {
			require.NoError(w, err)
			same, err := inspect.Of(r).Inspect(w.Context(), info.Path)
			require.NoError(w, err)
			for i := range info.Holders {
				require.InDelta(w, info.Holders[i].Lease, same.Holders[i].Lease, float64(30*time.Second))
				info.Holders[i].Lease, same.Holders[i].Lease = 0, 0
			}
			require.Equal(w, same, info)
		}
	})
}

func TestLocks_OfOddPrefixes(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		prefixes := []string{"a*", "a?[b]", `a\`, "a^", "{a}", "a", "[a-z]*"}
		for _, prefix := range prefixes {
			r, err := lockregistry.New(w.Client(), prefix)
			require.NoError(w, err)
			defer func() { require.NoError(w, r.Close()) }()
			w.Lock(r.Obtain("1"))
			w.Lock(r.Obtain("2"))
			require.Equal(w, []string{"1", "2"}, kit.PathsOf(w.T, r), prefix)
		}
	})
}

func TestLocks_Stop(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		for i := range 5 {
			w.Lock(r.Obtain(strconv.Itoa(i)))
		}
		seen := 0
		for _, err := range inspect.Of(r).Locks(w.Context()) {
			require.NoError(w, err)
			if seen++; seen == 2 {
				break
			}
		}
		require.Equal(w, 2, seen)

		fails := func(ctx context.Context, reason error) {
			w.Helper()
			var errs []error
			for info, err := range inspect.Of(r).Locks(ctx) {
				require.Zero(w, info)
				errs = append(errs, err)
			}
			require.Len(w, errs, 1)
			w.Fails(errs[0], reason, "locks", "orders:*")
		}
		over, cancel := context.WithCancel(w.Context())
		cancel()
		fails(over, context.Canceled)
		require.NoError(w, r.Close())
		fails(w.Context(), lockregistry.ErrClosed)
	})
}

// More locks than one script reads are each found once.
func TestLocks_AreManyAndEachOnce(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("EVAL", `for i = 1, 12345 do
			redis.call('SET', 'orders:' .. i, ARGV[1] .. ':' .. i)
			redis.call('ZADD', 'orders:{orders:' .. i .. '}:waiters', 1, ARGV[1] .. ':1|60000')
		end`, "0", aUUID)
		seen := map[string]bool{}
		before := w.Executed("evalsha") + w.Executed("eval")
		for info, err := range inspect.Of(w.Registry()).Locks(w.Context()) {
			require.NoError(w, err)
			require.False(w, seen[info.Path], info.Path)
			seen[info.Path] = true
			require.Equal(w, 1, info.WaiterCount)
		}
		require.Len(w, seen, 12345)
		scripts := w.Executed("evalsha") + w.Executed("eval") - before - w.Executed("scan")
		require.Less(w, scripts, 260, "a hundred keys at once")
	})
}

// slow returns how long the scripts took that the server's log of slow commands lists.
func slow(w *kit.World) (all []time.Duration) {
	w.Helper()
	client := w.Client()
	entries, err := client.Do(w.Context(), client.B().Arbitrary("SLOWLOG", "GET", "-1").Build()).ToArray()
	require.NoError(w, err)
	for _, entry := range entries {
		fields, err := entry.ToArray()
		require.NoError(w, err)
		took, err := fields[2].AsInt64()
		require.NoError(w, err)
		command, err := fields[3].AsStrSlice()
		require.NoError(w, err)
		if strings.HasPrefix(strings.ToLower(command[0]), "eval") {
			all = append(all, time.Duration(took)*time.Microsecond)
		}
	}
	return all
}

// A call reads some hundred keys, and a long pass leaves the server most of its time, measured by the server's own figures for
// the calls. The tests of internal/scan check the exact pace, and that a short pass has no pauses.
func TestLocks_AreSoughtSparingly(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const few, unpaced, all = 100_000, 125_000, 300_000
		fill := func(from, to int) {
			const script = `for i = ARGV[1], ARGV[2] do redis.call('SET', 'other:' .. i, '1') end`
			w.Do("EVAL", script, "0", strconv.Itoa(from+1), strconv.Itoa(to))
		}
		r := w.Registry()
		w.Lock(r.Obtain("42"), lockregistry.Lease(time.Hour))
		// As long as this a call counts at most, see mostTook in internal/scan: during a longer one the server stood still.
		const counts = 50 * time.Millisecond
		w.Do("CONFIG", "SET", "slowlog-log-slower-than", strconv.FormatInt(counts.Microseconds(), 10))
		// pass returns how long the paced part of a pass takes, the server's time in it, and how often the whole pass calls SCAN.
		pass := func(keys int) (took, busy time.Duration, calls int) {
			w.Do("CONFIG", "RESETSTAT")
			start := time.Time{}
			pauses := scan.Watched(w.Context(), func(now scan.Progress) {
				if start.IsZero() && now.Keys >= unpaced {
					calls = w.Executed("scan")
					w.Do("CONFIG", "RESETSTAT")
					w.Do("SLOWLOG", "RESET")
					start = time.Now()
				}
			})
			var found []string
			for info, err := range inspect.Of(r).Locks(pauses) {
				require.NoError(w, err)
				found = append(found, info.Path)
			}
			require.Equal(w, []string{"42"}, found)
			took = time.Since(start)
			for _, command := range []string{"evalsha", "eval"} {
				busy += time.Duration(w.CommandStat(command, "usec")) * time.Microsecond
			}
			calls += w.Executed("scan")
			if !start.IsZero() {
				for _, long := range slow(w) {
					busy -= long - counts
				}
			}
			w.Logf("%d keys: %v, %v of the server, %d calls", keys, took, busy, calls)
			return took, busy, calls
		}
		fill(0, few)
		_, _, calls := pass(few)
		require.InDelta(w, few/500, calls, 30)

		fill(few, all)
		took, busy, calls := pass(all)
		require.LessOrEqual(w, calls, all/500+40)
		// With the pauses the pass takes ten times the server's time, without them twice.
		require.Greater(w, took, 3*busy)
	})
}

// Anything longer than what a lock has is not sent, wherever in Redis it is, and does not hide its neighbours.
func TestLocks_WhatIsTooLongIsNotSent(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, viewer := w.Registry(lockregistry.WithFencing()), w.Registry()
		reader := w.Registry().ReadWrite("read").Reader()
		w.Lock(r.Obtain("42"))
		w.Lock(reader)
		w.Await("the record", func() bool { return w.Do("EXISTS", recordOf(r)) == "1" }) // it would replace the long one
		w.Do("EVAL", `local long = string.rep('x', 3e6)
			redis.call('SET', 'orders:{orders:42}:fencing', long)
			redis.call('ZADD', 'orders:{orders:42}:waiters', 1795278376064288, long)
			redis.call('HSET', 'orders:read', 'f' .. long, '1', ARGV[1] .. ':7', long)
			redis.call('SET', '{orders:read}:' .. ARGV[1] .. ':7:rwlock_timeout:1', '1', 'PX', 60000)
			redis.call('SET', 'orders:{' .. ARGV[2] .. '}:registry', '{"host":"' .. long .. '","pid":1}')
			redis.call('SET', 'orders:n' .. long, ARGV[1])
			redis.call('SET', 'orders:value', long)`, "0", aUUID, kit.ClientID(r))
		before := sent(w)
		found := map[string]inspect.Lock{}
		for info, err := range inspect.Of(viewer).Locks(w.Context()) {
			require.NoError(w, err)
			found[info.Path] = info
		}
		one := look(w, viewer, "42")
		_, err := inspect.Of(viewer).Inspect(w.Context(), "value")
		require.ErrorIs(w, err, lockregistry.ErrWrongType)
		_, err = inspect.Of(viewer).Deadlocks(w.Context())
		require.NoError(w, err)
		require.Less(w, sent(w)-before, 100_000)

		require.Len(w, found, 3)
		for _, info := range []inspect.Lock{one, found["42"]} {
			require.Equal(w, []string{"token", "waiter", "record"}, info.TooLong)
			require.Zero(w, info.Holders[0].Token)
			require.Equal(w, "too long", info.Holders[0].Label.String())
			require.Equal(w, strings.Repeat("x", 100)+" (too long: 3000000 bytes)", info.Waiters[0].Registry)
			require.Equal(w, observe.KindLock, info.Kind)
		}
		read := found["read"]
		require.Equal(w, []string{"holder"}, read.TooLong)
		require.Equal(w, observe.KindReadWrite, read.Kind)
		require.GreaterOrEqual(w, read.HolderCount, 2)
		name := found["n"+strings.Repeat("x", 92)+" (too long: 3000008 bytes)"]
		require.Equal(w, observe.KindTooLong, name.Kind)
		require.Equal(w, []string{"key"}, name.TooLong)
	})
}

// sent returns how many bytes the server has sent so far.
func sent(w *kit.World) int {
	w.Helper()
	_, rest, _ := strings.Cut(w.Do("INFO", "stats"), "total_net_output_bytes:")
	number, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(number)
	require.NoError(w, err)
	return n
}

// documentedRights are the rights of a user for a purpose, as the documentation lists them.
func documentedRights(t *testing.T, purpose string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/permissions.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "\n# "+purpose)
	require.True(t, ok, purpose)
	_, rest, _ = strings.Cut(rest, "ACL SETUSER viewer on >secret ")
	rights, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(rights)
}

// The rights that the documentation names are enough to look, for users that cannot write.
func TestLocks_Permissions(t *testing.T) {
	t.Parallel()
	for _, purpose := range []string{"viewing\n", "viewing, from Redis 7 on"} {
		t.Run(strings.TrimSpace(purpose), func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				rights := append([]string{"ACL", "SETUSER", "viewer", "on", ">secret"}, documentedRights(w.T, purpose)...)
				if strings.Contains(purpose, "Redis 7") && !kit.HasShardedChannels(w.T, w.Server) {
					_, err := w.Server.Do(rights...)
					require.ErrorContains(w, err, "Syntax error", "it does not know them")
					return
				}
				require.Equal(w, "OK", w.Do(rights...))
				holder := w.Registry(lockregistry.WithFencing())
				w.Lock(holder.Obtain("42"))
				w.Lock(holder.ReadWrite("read").Reader())
				w.Lock(w.Registry(lockregistry.WithRedissonLayout()).Obtain("redisson"))
				viewer := w.RegistryOn(w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "viewer", "secret", true
				}))
				for range 2 { // the second time the server knows the scripts
					for _, path := range []string{"42", "read", "redisson", "free"} {
						look(w, viewer, path)
					}
					require.Equal(w, []string{"42", "read", "redisson"}, kit.PathsOf(w.T, viewer))
				}
				require.ErrorContains(w, viewer.Obtain("new").Lock(w.Context()), "NOPERM")
			})
		})
	}
}
