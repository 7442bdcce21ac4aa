package operator_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Holders as Java writes them: Spring's value, and Redisson's field.
const (
	springID   = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"
	redissonID = "019d03de-74d3-4af5-a601-f027dbe1a757:77"
)

// javaHolds locks a path as a Java service would.
func javaHolds(w *kit.World, layout observe.Layout, key string) (holder string) {
	w.Helper()
	if layout == observe.LayoutSpring {
		require.Equal(w, "OK", w.Do("SET", key, springID, "NX", "PX", "60000"))
		return springID
	}
	require.Equal(w, "1", w.Do("HSET", key, redissonID, "2"))
	require.Equal(w, "1", w.Do("PEXPIRE", key, "60000"))
	return redissonID
}

// javaReads adds a reader that has locked twice, as Redisson would.
func javaReads(w *kit.World, key string, lease time.Duration) {
	w.Helper()
	w.Do("HSET", key, "mode", "read", redissonID, "2")
	for _, n := range []string{"1", "2"} {
		w.Do("SET", "{"+key+"}:"+redissonID+":rwlock_timeout:"+n, "1", "PX", "10000")
	}
	w.Do("PEXPIRE", "{"+key+"}:"+redissonID+":rwlock_timeout:2", strconv.FormatInt(lease.Milliseconds(), 10))
	w.Do("PEXPIRE", key, "60000")
}

func TestForceUnlock_OfAPlainLock(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				opts := []lockregistry.Option{kit.WithLayout(layout), lockregistry.WithPollInterval(kit.NoPoll)}
				here, there, forces := w.Registry(opts...), w.Registry(opts...), w.Registry(opts...)
				w.Released(inspect.Of(forces).ForceUnlock(w.Context(), "42")) // the path is free
				l := here.Obtain("42")
				w.Lock(l)
				ctx := l.Context(w.Context())
				waits := w.Goroutine().Starts(there.Obtain("42"))
				w.Await("it is waited for", func() bool { return w.Waiting("42") })
				start := time.Now()
				w.Released(inspect.Of(forces).ForceUnlock(w.Context(), "42"))
				w.Takes(start, waits)

				// A holder in another process learns of it when it unlocks.
				require.NoError(w, ctx.Err())
				w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
				require.True(w, there.Obtain("42").IsHeld())

				// A hold of the registry itself ends at once.
				w.Released(inspect.Of(there).ForceUnlock(w.Context(), "42"))
				require.False(w, there.Obtain("42").IsHeld())
				w.IsFree("orders:42")
			})
		})
	}
}

// The process of the first ticket is told, since it may not be watching the key yet: a young ticket is not told that it has
// become the first.
func TestForceUnlock_TellsTheFirstTicket(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		here := w.Heard(func(c rueidis.Client) rueidis.Completed { return c.B().Subscribe().Channel("orders-channel@b").Build() },
			"orders-channel@b", "1")
		for _, c := range []struct {
			layout observe.Layout
			reader bool
			holder string
		}{
			{observe.LayoutSpring, false, ""},
			{observe.LayoutSpring, false, "a:2+"},
			{observe.LayoutRedisson, false, "a:2"},
			{observe.LayoutRedisson, true, "a:2"},
			{observe.LayoutRedisson, true, ""},
		} {
			w.Do("DEL", kit.TheKey, kit.TheQueue)
			w.Do("EVAL", `local time = redis.call('TIME')
				local now = time[1] * 1000 + math.floor(time[2] / 1000)
				redis.call('ZADD', KEYS[1], -now, 'open', -now, 'wide', now * 1000 + 1, 'b:3|60000', now * 1000 + 2, 'a:4|60000')`,
				"1", kit.TheQueue)
			if c.layout == observe.LayoutRedisson {
				w.Do("HSET", kit.TheKey, "a:2", "1")
			} else {
				w.Do("SET", kit.TheKey, "a:2+")
			}
			if c.reader { // with another reader
				w.Do("HSET", kit.TheKey, "mode", "read", "b:7", "1")
				w.Do("SET", "{"+kit.TheKey+"}:b:7:rwlock_timeout:1", "1", "PX", "60000")
			}
			r := w.Registry(kit.WithLayout(c.layout))
			if c.holder == "" {
				w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
			} else {
				require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", c.holder))
			}
			w.Hears(here, "orders-channel@b n 3 0 "+kit.TheKey)
		}
	})
}

func TestForceUnlock_TellsTheHolder(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				for _, kind := range []string{"plain", "writer", "reader"} {
					r := w.Registry(kit.WithLayout(layout))
					l, waiter := r.Obtain(kind), r.Obtain(kind)
					if kind != "plain" {
						l, waiter = r.ReadWrite(kind).Writer(), r.ReadWrite(kind).Writer()
					}
					if kind == "reader" {
						l = r.ReadWrite(kind).Reader()
					}
					w.Lock(l)
					ctx := l.Context(w.Context())
					g := w.Goroutine()
					waits := g.Starts(waiter)
					w.Released(inspect.Of(r).ForceUnlock(w.Context(), kind))
					require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
					w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.Key(l))
					require.NoError(w, <-waits, "who waits in the process has it next")
					require.NoError(w, g.Unlock(waiter))
				}
			})
		})
	}
}

// A hold of Java is removed as well, but only from the named holder, if there is one.
func TestForceUnlock_OfJava(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				r := w.Registry(kit.WithLayout(layout))
				holder := javaHolds(w, layout, "orders:42")
				for _, other := range []string{"somebody", holder[1:], holder + ":1"} {
					w.Fails(inspect.Of(r).ForceUnlockHolder(w.Context(), "42", other), lockregistry.ErrNotOwner, "forceunlock", "orders:42")
				}
				require.False(w, w.Free("orders:42"))
				require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", holder))
				require.True(w, w.Free("orders:42"))
				w.Fails(inspect.Of(r).ForceUnlockHolder(w.Context(), "42", holder), lockregistry.ErrNotOwner, "forceunlock", "orders:42")
				javaHolds(w, layout, "orders:42")
				w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
				require.Equal(w, "0", w.Keys())
			})
		})
	}
}

func TestForceUnlock_OfReaders(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				opts := []lockregistry.Option{kit.WithLayout(layout), lockregistry.WithPollInterval(kit.NoPoll)}
				a, b, c := w.Registry(opts...), w.Registry(opts...), w.Registry(opts...)
				path, key := "42", "orders:42"
				reads := func(r *lockregistry.Registry, ttl time.Duration) (*lockregistry.Lock, string) {
					l := r.ReadWrite(path).Reader()
					before := w.Do("HKEYS", key)
					w.Lock(l, lockregistry.Lease(ttl))
					for field := range strings.FieldsSeq(strings.Trim(w.Do("HKEYS", key), "[]")) {
						if field != "mode" && !strings.Contains(before, field) {
							return l, field
						}
					}
					w.Fatal("it has no field")
					return nil, ""
				}
				short, shortly := reads(a, 20*time.Second)
				long, longer := reads(b, 50*time.Second)
				javaReads(w, key, 30*time.Second)
				w.Fails(inspect.Of(c).ForceUnlockHolder(w.Context(), path, longer+":write"), lockregistry.ErrNotOwner, "forceunlock", key)
				w.Fails(inspect.Of(c).ForceUnlockHolder(w.Context(), path, "mode"), lockregistry.ErrNotOwner, "forceunlock", key)
				require.Equal(w, "5", w.Keys())

				// The lock lives as long as the longest lease of the readers that stay.
				const slow = float64(8 * time.Second) // for a slow machine; the leases differ by more
				require.NoError(w, inspect.Of(b).ForceUnlockHolder(w.Context(), path, longer))
				require.False(w, long.IsHeld())
				require.InDelta(w, 30*time.Second, w.Pttl(key), slow)
				require.True(w, short.IsHeld())
				w.Fails(long.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", key)
				require.NoError(w, inspect.Of(c).ForceUnlockHolder(w.Context(), path, redissonID))
				require.InDelta(w, 20*time.Second, w.Pttl(key), slow)
				require.Equal(w, "2", w.Keys())

				// When the last reader is removed the lock is free, and a writer gets it.
				writes := w.Goroutine().Starts(c.ReadWrite(path).Writer())
				w.Await("it is waited for", func() bool { return w.Waiting(path) })
				start := time.Now()
				require.NoError(w, inspect.Of(a).ForceUnlockHolder(w.Context(), path, shortly))
				w.Takes(start, writes)
				w.Fails(short.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", key)
				w.Released(inspect.Of(a).ForceUnlock(w.Context(), path))

				// All at once.
				reads(a, 20*time.Second)
				reads(b, 20*time.Second)
				javaReads(w, key, 30*time.Second)
				w.Released(inspect.Of(c).ForceUnlock(w.Context(), path))
				w.LeftNothing()
			})
		})
	}
}

// A writer that also reads loses only the named hold.
func TestForceUnlock_OfAWriterThatReads(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r, other := w.Registry(lockregistry.WithPollInterval(kit.NoPoll)), w.Registry(lockregistry.WithPollInterval(kit.NoPoll))
		rw := r.ReadWrite("42")
		w.Lock(rw.Writer())
		writer := ""
		for field := range strings.FieldsSeq(strings.Trim(w.Do("HKEYS", "orders:42"), "[]")) {
			if strings.HasSuffix(field, ":write") {
				writer = field
			}
		}
		w.Lock(rw.Reader(), lockregistry.Lease(20*time.Second))
		reads := w.Goroutine().Starts(other.ReadWrite("42").Reader())
		w.Await("it is waited for", func() bool { return w.Waiting("42") })
		start := time.Now()
		require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", writer))
		w.Takes(start, reads)
		require.False(w, rw.Writer().IsHeld())
		require.True(w, rw.Reader().IsHeld())
		w.Fails(rw.Writer().Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.Unlock(rw.Reader())
	})
}

func TestForceUnlock_WithBadInput(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Do("RPUSH", "orders:list", "a")
		w.Fails(inspect.Of(r).ForceUnlock(w.Context(), "list"), lockregistry.ErrWrongType, "forceunlock", "orders:list")
		w.Do("HSET", "orders:hash", "a", "1")
		w.Fails(inspect.Of(r).ForceUnlock(w.Context(), "hash"), lockregistry.ErrWrongType, "forceunlock", "orders:hash")
		w.Fails(inspect.Of(r).ForceUnlockHolder(w.Context(), "hash", "a"), lockregistry.ErrWrongType, "forceunlock", "orders:hash")
		of := w.Registry(lockregistry.WithRedissonLayout())
		w.Do("SET", "orders:string", "a")
		w.Fails(inspect.Of(of).ForceUnlock(w.Context(), "string"), lockregistry.ErrWrongType, "forceunlock", "orders:string")
		require.Equal(w, "3", w.Keys(), "nothing was changed")

		kit.Refuses(w.T, inspect.Of(r).ForceUnlock(w.Context(), ""), "forceunlock", "orders:", "the path is empty")
		kit.Refuses(w.T, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", ""), "forceunlock", "orders:42", "the holder is empty")
		var none context.Context
		kit.Refuses(w.T, inspect.Of(r).ForceUnlock(none, "42"), "forceunlock", "orders:42", "the context is nil")
		done, cancel := context.WithCancel(w.Context())
		cancel()
		w.Fails(inspect.Of(r).ForceUnlock(done, "42"), context.Canceled, "forceunlock", "orders:42")
	})
}

// When nobody knows whether the lock was removed, the holder in this registry can no longer rely on it.
func TestForceUnlock_WithoutAnAnswer(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		net := w.Flaky()
		r := net.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "43")) // so that the server knows the script
		net.Fates("unlock", kit.CutAfter)
		require.Error(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
		require.False(w, l.IsHeld())
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
	})
}

// Names of other holders are not sent, however long. Each named holder is removed, and ErrNotOwner means that it was not there.
func TestForceUnlock_LongNames(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				r := w.Registry(kit.WithLayout(layout))
				require.ErrorIs(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", "x"), lockregistry.ErrNotOwner)
				w.Do("CONFIG", "RESETSTAT")
				for range 3 {
					w.Do("EVAL", `local long = string.rep('x', 1e6)
						if ARGV[1] == 'spring' then return redis.call('SET', KEYS[1], long) end
						redis.call('HSET', KEYS[1], 'f', '1', 'g' .. long, '1')`, "1", kit.TheKey, name)
					w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
					w.IsFree(kit.TheKey)
				}
				w.Do("HSET", kit.TheKey, "mode", "read", "one", "1", "two", "1")
				w.Do("SET", "{"+kit.TheKey+"}:two:rwlock_timeout:1", "1", "PX", "60000")
				require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", "one"))
				require.ErrorIs(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", "one"), lockregistry.ErrNotOwner)
				require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", "two"))
				_, sent, _ := strings.Cut(w.Do("INFO", "stats"), "total_net_output_bytes:")
				sent, _, _ = strings.Cut(sent, "\r")
				require.Less(w, len(sent), len("1000000"), sent)
			})
		})
	}
}

// The rights that the documentation names are enough.
func TestForceUnlock_Permissions(t *testing.T) {
	for _, user := range kit.DocumentedDefaults(t) {
		t.Run(user.Kind, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				w.Do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, user.Rights...)...)
				layout := observe.LayoutSpring
				if user.Kind == "redisson" {
					layout = observe.LayoutRedisson
				}
				r := w.RegistryOn(w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				}), kit.WithLayout(layout))
				locks := []*lockregistry.Lock{r.Obtain("42")}
				if user.Kind == "read-write" {
					locks = []*lockregistry.Lock{r.ReadWrite("42").Writer(), r.ReadWrite("42").Reader()}
				}
				for _, l := range locks {
					w.Lock(l)
					require.Error(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
					require.True(w, l.IsHeld(), "nothing was changed")
					w.Do("ACL", "SETUSER", "app", "+type")
					if user.Kind != "spring" {
						w.Do("ACL", "SETUSER", "app", "+hgetall")
					}
					w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
					require.False(w, l.IsHeld())
					w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
					w.Do("ACL", "SETUSER", "app", "-type")
				}
			})
		})
	}
}

// One of several readers is removed even if the user may not shorten the lock's lease, which then stays as it is.
func TestForceUnlock_AReaderWithoutPermissionForLeases(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("HSET", kit.TheKey, "mode", "read", "one", "1", "two", "1")
		w.Do("SET", "{"+kit.TheKey+"}:two:rwlock_timeout:1", "1", "PX", "60000")
		w.Do("PEXPIRE", kit.TheKey, "3600000")
		r := w.RegistryOn(w.User("-pexpire"))
		require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "42", "one"))
		require.Equal(w, "0", w.Do("HEXISTS", kit.TheKey, "one"))
		require.Equal(w, "1", w.Do("HEXISTS", kit.TheKey, "two"))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
	})
}
