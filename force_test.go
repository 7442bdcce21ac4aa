package lockregistry_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

var layouts = map[string]lockregistry.Layout{"spring": lockregistry.LayoutSpring, "redisson": lockregistry.LayoutRedisson}

// The holders that Java would be: Spring's value, and Redisson's field.
const (
	springID   = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"
	redissonID = "019d03de-74d3-4af5-a601-f027dbe1a757:77"
)

// javaHolds locks a path as a Java service would.
func (w *world) javaHolds(layout lockregistry.Layout, key string) (holder string) {
	w.Helper()
	if layout == lockregistry.LayoutSpring {
		require.Equal(w, "OK", w.do("SET", key, springID, "NX", "PX", "60000"))
		return springID
	}
	require.Equal(w, "1", w.do("HSET", key, redissonID, "2"))
	require.Equal(w, "1", w.do("PEXPIRE", key, "60000"))
	return redissonID
}

// javaReads adds a reader that has locked twice, as Redisson would.
func (w *world) javaReads(key string, lease time.Duration) {
	w.Helper()
	w.do("HSET", key, "mode", "read", redissonID, "2")
	for _, n := range []string{"1", "2"} {
		w.do("SET", "{"+key+"}:"+redissonID+":rwlock_timeout:"+n, "1", "PX", "10000")
	}
	w.do("PEXPIRE", "{"+key+"}:"+redissonID+":rwlock_timeout:2", strconv.FormatInt(lease.Milliseconds(), 10))
	w.do("PEXPIRE", key, "60000")
}

func TestForceUnlock_OfAPlainLock(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				opts := []lockregistry.Option{lockregistry.WithLayout(layout), lockregistry.WithPollInterval(noPoll)}
				here, there, forces := w.registry(opts...), w.registry(opts...), w.registry(opts...)
				require.NoError(w, forces.ForceUnlock(w.Context(), "42"), "it is free")
				l := here.Obtain("42")
				w.lock(l)
				ctx := l.Context(w.Context())
				waits := w.goroutine().starts(there.Obtain("42"))
				w.await("it is waited for", func() bool { return w.waiting("42") })
				start := time.Now()
				require.NoError(w, forces.ForceUnlock(w.Context(), "42"))
				w.takes(start, waits)

				// A holder elsewhere learns of it when it unlocks.
				require.NoError(w, ctx.Err())
				w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
				require.True(w, there.Obtain("42").IsHeld())

				// That of the registry itself at once.
				require.NoError(w, there.ForceUnlock(w.Context(), "42"))
				require.False(w, there.Obtain("42").IsHeld())
				require.True(w, w.free("orders:42"))
			})
		})
	}
}

// The first ticket's process is told, as it may not watch the key yet: a young ticket is not told that it has become the first.
func TestForceUnlock_TellsTheFirstTicket(t *testing.T) {
	realWorlds(t, func(w *world) {
		here := w.heard(func(c rueidis.Client) rueidis.Completed { return c.B().Subscribe().Channel("orders-channel@b").Build() },
			"orders-channel@b", "1")
		for _, c := range []struct {
			layout lockregistry.Layout
			reader bool
			holder string
		}{
			{lockregistry.LayoutSpring, false, ""},
			{lockregistry.LayoutSpring, false, "a:2+"},
			{lockregistry.LayoutRedisson, false, "a:2"},
			{lockregistry.LayoutRedisson, true, "a:2"},
			{lockregistry.LayoutRedisson, true, ""},
		} {
			w.do("DEL", theKey, theQueue)
			w.do("EVAL", `local time = redis.call('TIME')
				local now = time[1] * 1000 + math.floor(time[2] / 1000)
				redis.call('ZADD', KEYS[1], -now, 'open', -now, 'wide', now * 1000 + 1, 'b:3|60000', now * 1000 + 2, 'a:4|60000')`,
				"1", theQueue)
			if c.layout == lockregistry.LayoutRedisson {
				w.do("HSET", theKey, "a:2", "1")
			} else {
				w.do("SET", theKey, "a:2+")
			}
			if c.reader { // with another one
				w.do("HSET", theKey, "mode", "read", "b:7", "1")
				w.do("SET", "{"+theKey+"}:b:7:rwlock_timeout:1", "1", "PX", "60000")
			}
			r := w.registry(lockregistry.WithLayout(c.layout))
			if c.holder == "" {
				require.NoError(w, r.ForceUnlock(w.Context(), "42"))
			} else {
				require.NoError(w, r.ForceUnlockHolder(w.Context(), "42", c.holder))
			}
			w.hears(here, "orders-channel@b n 3 0 "+theKey)
		}
	})
}

// waiting tells whether somebody listens for a path.
func (w *world) waiting(path string) bool {
	w.Helper()
	if w.fake {
		w.settle()
		return true
	}
	return w.tracked() > 0 || strings.Contains(w.do("PUBSUB", "CHANNELS", "*"), path)
}

func TestForceUnlock_TellsTheHolder(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				for _, kind := range []string{"plain", "writer", "reader"} {
					r := w.registry(lockregistry.WithLayout(layout))
					l, waiter := r.Obtain(kind), r.Obtain(kind)
					if kind != "plain" {
						l, waiter = r.ReadWrite(kind).Writer(), r.ReadWrite(kind).Writer()
					}
					if kind == "reader" {
						l = r.ReadWrite(kind).Reader()
					}
					w.lock(l)
					ctx := l.Context(w.Context())
					g := w.goroutine()
					waits := g.starts(waiter)
					require.NoError(w, r.ForceUnlock(w.Context(), kind))
					require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
					w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", l.Key())
					require.NoError(w, <-waits, "who waits in the process has it next")
					require.NoError(w, g.unlock(waiter))
				}
			})
		})
	}
}

// What Java holds goes as well, and only from the holder that is named, if one is.
func TestForceUnlock_OfJava(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				r := w.registry(lockregistry.WithLayout(layout))
				holder := w.javaHolds(layout, "orders:42")
				for _, other := range []string{"somebody", holder[1:], holder + ":1"} {
					w.fails(r.ForceUnlockHolder(w.Context(), "42", other), lockregistry.ErrNotOwner, "forceunlock", "orders:42")
				}
				require.False(w, w.free("orders:42"))
				require.NoError(w, r.ForceUnlockHolder(w.Context(), "42", holder))
				require.True(w, w.free("orders:42"))
				w.fails(r.ForceUnlockHolder(w.Context(), "42", holder), lockregistry.ErrNotOwner, "forceunlock", "orders:42")
				w.javaHolds(layout, "orders:42")
				require.NoError(w, r.ForceUnlock(w.Context(), "42"))
				require.Equal(w, "0", w.keys())
			})
		})
	}
}

func TestForceUnlock_OfReaders(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				opts := []lockregistry.Option{lockregistry.WithLayout(layout), lockregistry.WithPollInterval(noPoll)}
				a, b, c := w.registry(opts...), w.registry(opts...), w.registry(opts...)
				path, key := "42", "orders:42"
				reads := func(r *lockregistry.Registry, ttl time.Duration) (*lockregistry.Lock, string) {
					l := r.ReadWrite(path).Reader()
					before := w.do("HKEYS", key)
					w.lock(l, lockregistry.Lease(ttl))
					for field := range strings.FieldsSeq(strings.Trim(w.do("HKEYS", key), "[]")) {
						if field != "mode" && !strings.Contains(before, field) {
							return l, field
						}
					}
					w.Fatal("it has no field")
					return nil, ""
				}
				short, shortly := reads(a, 20*time.Second)
				long, longer := reads(b, 50*time.Second)
				w.javaReads(key, 30*time.Second)
				w.fails(c.ForceUnlockHolder(w.Context(), path, longer+":write"), lockregistry.ErrNotOwner, "forceunlock", key)
				w.fails(c.ForceUnlockHolder(w.Context(), path, "mode"), lockregistry.ErrNotOwner, "forceunlock", key)
				require.Equal(w, "5", w.keys())

				// The lock lives as long as the longest lease of those who stay.
				require.NoError(w, b.ForceUnlockHolder(w.Context(), path, longer))
				require.False(w, long.IsHeld())
				require.InDelta(w, 30*time.Second, w.pttl(key), float64(2*time.Second))
				require.True(w, short.IsHeld())
				w.fails(long.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", key)
				require.NoError(w, c.ForceUnlockHolder(w.Context(), path, redissonID))
				require.InDelta(w, 20*time.Second, w.pttl(key), float64(2*time.Second))
				require.Equal(w, "2", w.keys())

				// With the last one the lock is free, and a writer has it.
				writes := w.goroutine().starts(c.ReadWrite(path).Writer())
				w.await("it is waited for", func() bool { return w.waiting(path) })
				start := time.Now()
				require.NoError(w, a.ForceUnlockHolder(w.Context(), path, shortly))
				w.takes(start, writes)
				w.fails(short.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", key)
				require.NoError(w, a.ForceUnlock(w.Context(), path))

				// All at once.
				reads(a, 20*time.Second)
				reads(b, 20*time.Second)
				w.javaReads(key, 30*time.Second)
				require.NoError(w, c.ForceUnlock(w.Context(), path))
				w.leftNothing()
			})
		})
	}
}

// A writer that reads too loses what is named.
func TestForceUnlock_OfAWriterThatReads(t *testing.T) {
	worlds(t, func(w *world) {
		r, other := w.registry(lockregistry.WithPollInterval(noPoll)), w.registry(lockregistry.WithPollInterval(noPoll))
		rw := r.ReadWrite("42")
		w.lock(rw.Writer())
		writer := ""
		for field := range strings.FieldsSeq(strings.Trim(w.do("HKEYS", "orders:42"), "[]")) {
			if strings.HasSuffix(field, ":write") {
				writer = field
			}
		}
		w.lock(rw.Reader(), lockregistry.Lease(20*time.Second))
		reads := w.goroutine().starts(other.ReadWrite("42").Reader())
		w.await("it is waited for", func() bool { return w.waiting("42") })
		start := time.Now()
		require.NoError(w, r.ForceUnlockHolder(w.Context(), "42", writer))
		w.takes(start, reads)
		require.False(w, rw.Writer().IsHeld())
		require.True(w, rw.Reader().IsHeld())
		w.fails(rw.Writer().Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.unlock(rw.Reader())
	})
}

func TestForceUnlock_WithBadInput(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.do("RPUSH", "orders:list", "a")
		w.fails(r.ForceUnlock(w.Context(), "list"), lockregistry.ErrWrongType, "forceunlock", "orders:list")
		w.do("HSET", "orders:hash", "a", "1")
		w.fails(r.ForceUnlock(w.Context(), "hash"), lockregistry.ErrWrongType, "forceunlock", "orders:hash")
		w.fails(r.ForceUnlockHolder(w.Context(), "hash", "a"), lockregistry.ErrWrongType, "forceunlock", "orders:hash")
		of := w.registry(lockregistry.WithLayout(lockregistry.LayoutRedisson))
		w.do("SET", "orders:string", "a")
		w.fails(of.ForceUnlock(w.Context(), "string"), lockregistry.ErrWrongType, "forceunlock", "orders:string")
		require.Equal(w, "3", w.keys(), "nothing was changed")

		refuses(w.T, r.ForceUnlock(w.Context(), ""), "forceunlock", "orders:", "the path is empty")
		refuses(w.T, r.ForceUnlockHolder(w.Context(), "42", ""), "forceunlock", "orders:42", "the holder is empty")
		var none context.Context
		refuses(w.T, r.ForceUnlock(none, "42"), "forceunlock", "orders:42", "the context is nil")
		done, cancel := context.WithCancel(w.Context())
		cancel()
		w.fails(r.ForceUnlock(done, "42"), context.Canceled, "forceunlock", "orders:42")
	})
}

// When nobody knows whether the lock was removed, the holder of this registry can rely on it no more.
func TestForceUnlock_WithoutAnAnswer(t *testing.T) {
	fakeWorld(t, func(w *world) {
		net := w.flaky()
		r := net.registry()
		l := r.Obtain("42")
		w.lock(l)
		require.NoError(w, r.ForceUnlock(w.Context(), "43")) // so that the server knows the script
		net.next("unlock", cutAfter)
		require.Error(w, r.ForceUnlock(w.Context(), "42"))
		require.False(w, l.IsHeld())
		w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
	})
}

func TestForceUnlock_OnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
	require.NoError(t, err)
	defer client.Close()
	for _, layout := range layouts {
		r := openOn(t, client, lockregistry.WithLayout(layout))
		for _, path := range []string{"1", "2", "3", "4", "{t}5"} {
			rw := r.ReadWrite("rw" + path)
			for _, l := range []*lockregistry.Lock{r.Obtain(path), rw.Reader(), rw.Writer()} {
				require.NoError(t, l.Lock(t.Context()))
				ctx := l.Context(t.Context())
				require.NoError(t, r.ForceUnlock(t.Context(), l.Path()))
				require.ErrorIs(t, context.Cause(ctx), lockregistry.ErrLockLost)
				require.ErrorIs(t, l.Unlock(t.Context()), lockregistry.ErrLockLost)
			}
		}
		for _, node := range nodes {
			require.Equal(t, "0", node.Command(t, "EVAL", keysButRecords, "0"))
		}
	}
}

// The names of other holders, of any length, are not sent. Each of them is removed, and ErrNotOwner means that it was not there.
func TestForceUnlock_LongNames(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				r := w.registry(lockregistry.WithLayout(layout))
				require.ErrorIs(w, r.ForceUnlockHolder(w.Context(), "42", "x"), lockregistry.ErrNotOwner)
				w.do("CONFIG", "RESETSTAT")
				for range 3 {
					w.do("EVAL", `local long = string.rep('x', 1e6)
						if ARGV[1] == 'spring' then return redis.call('SET', KEYS[1], long) end
						redis.call('HSET', KEYS[1], 'f', '1', 'g' .. long, '1')`, "1", theKey, name)
					require.NoError(w, r.ForceUnlock(w.Context(), "42"))
					require.True(w, w.free(theKey))
				}
				w.do("HSET", theKey, "mode", "read", "one", "1", "two", "1")
				w.do("SET", "{"+theKey+"}:two:rwlock_timeout:1", "1", "PX", "60000")
				require.NoError(w, r.ForceUnlockHolder(w.Context(), "42", "one"))
				require.ErrorIs(w, r.ForceUnlockHolder(w.Context(), "42", "one"), lockregistry.ErrNotOwner)
				require.NoError(w, r.ForceUnlockHolder(w.Context(), "42", "two"))
				_, sent, _ := strings.Cut(w.do("INFO", "stats"), "total_net_output_bytes:")
				sent, _, _ = strings.Cut(sent, "\r")
				require.Less(w, len(sent), len("1000000"), sent)
			})
		})
	}
}

// The rights that the documentation names are enough.
func TestForceUnlock_Permissions(t *testing.T) {
	for _, user := range documentedUsers(t) {
		if user.mode != "Auto" {
			continue
		}
		t.Run(user.kind, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				w.do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, user.rights...)...)
				layout := lockregistry.LayoutSpring
				if user.kind == "redisson" {
					layout = lockregistry.LayoutRedisson
				}
				r := w.registryOn(w.clientWith(w.dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				}), lockregistry.WithLayout(layout))
				locks := []*lockregistry.Lock{r.Obtain("42")}
				if user.kind == "read-write" {
					locks = []*lockregistry.Lock{r.ReadWrite("42").Writer(), r.ReadWrite("42").Reader()}
				}
				for _, l := range locks {
					w.lock(l)
					require.Error(w, r.ForceUnlock(w.Context(), "42"))
					require.True(w, l.IsHeld(), "nothing was changed")
					w.do("ACL", "SETUSER", "app", "+type")
					if user.kind != "spring" {
						w.do("ACL", "SETUSER", "app", "+hgetall")
					}
					require.NoError(w, r.ForceUnlock(w.Context(), "42"))
					require.False(w, l.IsHeld())
					w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
					w.do("ACL", "SETUSER", "app", "-type")
				}
			})
		})
	}
}
