package shared_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// If somebody else has taken the lock, its former owner learns that, and the other one loses nothing.
func TestRedisson_UnlockAfterRedissonTookOver(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(kit.Redisson)
		rw := r.ReadWrite("42")
		for name, l := range map[string]*lockregistry.Lock{"plain": r.Obtain("42"), "reader": rw.Reader(), "writer": rw.Writer()} {
			w.Lock(l)
			w.Do("FLUSHALL")
			switch name {
			case "plain":
				w.Do("HSET", kit.TheKey, foreign, "1")
			case "reader":
				w.Do("HSET", kit.TheKey, "mode", "write", foreign+":write", "1")
			case "writer":
				w.Do("HSET", kit.TheKey, "mode", "read", foreign, "1")
			}
			w.Do("PEXPIRE", kit.TheKey, "600000")
			before := fields(w, kit.TheKey)
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
			require.Equal(w, before, fields(w, kit.TheKey), name)
			require.Greater(w, w.Pttl(kit.TheKey), 9*time.Minute)
			w.Do("FLUSHALL")
		}
	})
}

// The second message of a writer's release is only for those that received the first one.
func TestRedisson_WritersRepeatNothingToNobody(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		p := w.Pair()
		w.Lock(p.Writer)
		before := w.Executed("publish")
		w.Unlock(p.Writer)
		require.Equal(w, 1, w.Executed("publish")-before)

		heard := published(w, rwChannel)
		w.Lock(p.Writer)
		w.Lock(p.Reader)
		before = w.Executed("publish")
		w.Unlock(p.Writer)
		require.Equal(w, 2, w.Executed("publish")-before)
		w.Hears(heard, rwChannel+" 1")
		w.Hears(heard, rwChannel+" 0")
		w.Unlock(p.Reader)
	})
}

// A user that may do everything but set a lease gets no lock, and leaves nothing behind forever.
func TestRedisson_WithoutPermissionToSetALease(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, other := w.RegistryOn(w.User("-pexpire"), kit.Redisson), w.Pair()
		rw := r.ReadWrite("42")
		locks := map[string]*lockregistry.Lock{"plain": r.Obtain("42"), "reader": rw.Reader(), "writer": rw.Writer()}
		refused := func(l *lockregistry.Lock, name string) {
			w.Helper()
			const forbidden = "can't run this command|no permissions|it lacks .pexpire" // as servers of different versions put it
			require.Regexp(w, forbidden, l.Lock(w.Context()), name)
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Minute))
			require.Regexp(w, forbidden, err, name)
			require.False(w, ok)
			require.False(w, l.IsHeld())
		}
		for name, l := range locks {
			refused(l, name)
			require.Equal(w, "0", w.Keys(), name)
		}

		// Beside a reader of another process, which loses nothing.
		w.Lock(other.Reader, lockregistry.Lease(time.Minute))
		before := fields(w, kit.TheKey)
		refused(locks["reader"], "reader")
		require.Equal(w, before, fields(w, kit.TheKey))
		require.InDelta(w, time.Minute, w.Pttl(kit.TheKey), float64(20*time.Second))
		require.Equal(w, "2", w.Keys())
		w.Unlock(other.Reader)

		// The permission is taken away while the user writes.
		name := "user" + strconv.Itoa(len(strings.Fields(w.Do("ACL", "USERS")))-1)
		w.Do("ACL", "SETUSER", name, "+pexpire")
		w.Lock(locks["writer"])
		before = fields(w, kit.TheKey)
		w.Do("ACL", "SETUSER", name, "-pexpire")
		refused(locks["reader"], "reader under a writer")
		require.Equal(w, before, fields(w, kit.TheKey))
		require.Greater(w, w.Pttl(kit.TheKey), time.Second)
		require.Equal(w, "1", w.Keys())
		w.Unlock(locks["writer"])
		require.Equal(w, "0", w.Keys())
	})
}

// A registry that only polls publishes nothing.
func TestRedisson_FormatWithoutPublishing(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry(kit.Redisson, kit.Polling)
		rw := r.ReadWrite("43")
		for _, l := range []*lockregistry.Lock{r.Obtain("42"), rw.Reader(), rw.Writer()} {
			w.Lock(l)
			w.Unlock(l)
		}
		require.Zero(w, w.Executed("publish"))
	})
}

// foreign is a holder's field with a name as in Redisson.
const foreign = "5c1e7a2e-8f6b-4f0e-9d2c-1b7a6e0c4d11:73"

// read sets the fields and keys of a reader of Redisson, with one lease for each time that it has locked.
func read(w *kit.World, holder string, leases ...time.Duration) {
	w.Helper()
	w.Do("HSET", kit.TheKey, "mode", "read", holder, strconv.Itoa(len(leases)))
	longest := max(w.Pttl(kit.TheKey), 0)
	for i, lease := range leases {
		key := "{orders:42}:" + holder + ":rwlock_timeout:" + strconv.Itoa(i+1)
		w.Do("SET", key, "1", "PX", strconv.FormatInt(lease.Milliseconds(), 10))
		longest = max(longest, lease)
	}
	w.Do("PEXPIRE", kit.TheKey, strconv.FormatInt(longest.Milliseconds(), 10))
}

// published returns what is published on a channel from now on, as "channel message".
func published(w *kit.World, channel string) <-chan string {
	w.Helper()
	return w.Heard(func(c rueidis.Client) rueidis.Completed {
		return c.B().Subscribe().Channel(channel).Build()
	}, channel, "1")
}

func TestRedisson_LockOnTheWire(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(kit.Redisson)
		for path, channel := range map[string]string{
			"42":           "redisson_lock__channel:{orders:42}",
			"{eu}:42":      "redisson_lock__channel:orders:{eu}:42",
			"größe 42 \"ü": "redisson_lock__channel:{orders:größe 42 \"ü}",
		} {
			key := "orders:" + path
			heard := published(w, channel)
			l := r.Obtain(path)
			began := time.Now()
			w.Lock(l)
			w.Lock(l)
			require.Equal(w, "hash", w.Do("TYPE", key))
			fields := fields(w, key)
			require.Len(w, fields, 1)
			for field, count := range fields {
				require.Regexp(w, "^"+kit.ClientID(r)+`:\d+$`, field)
				require.Equal(w, "1", count)
			}
			hasLease(w, key, 30*time.Second, began)
			w.Unlock(l)
			w.Unlock(l)
			w.Hears(heard, channel+" 0")
			require.Equal(w, "0", w.Keys())
		}
	})
}

// hasLease checks that a key has a lease that was set after a given time. Keys expire by whole milliseconds.
func hasLease(w *kit.World, key string, lease time.Duration, since time.Time) {
	w.Helper()
	left := w.Pttl(key)
	require.LessOrEqual(w, left, lease, key)
	require.GreaterOrEqual(w, left, lease-time.Since(since)-time.Millisecond, key)
}

func TestRedisson_ReadWriteLockOnTheWire(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		for path, tag := range map[string]string{"42": "{orders:42}", "{eu}:42": "orders:{eu}:42"} {
			channel := "redisson_rwlock:" + tag
			heard := published(w, channel)
			for _, opts := range [][]lockregistry.Option{nil, {kit.Redisson}} {
				key := "orders:" + path
				r := w.Registry(opts...)
				lease := 60 * time.Second // of the writer
				if opts != nil {
					lease = 30 * time.Second
				}
				rw := r.ReadWrite(path)

				began := time.Now()
				w.Lock(rw.Reader())
				holders := holdersOf(w, key)
				require.Len(w, holders, 1)
				require.Regexp(w, "^"+kit.ClientID(r)+`:\d+$`, holders[0])
				timeout := tag + ":" + holders[0] + ":rwlock_timeout:1"
				require.Equal(w, map[string]string{"mode": "read", holders[0]: "1"}, fields(w, key))
				for _, k := range []string{key, timeout} {
					hasLease(w, k, 30*time.Second, began)
				}
				require.Equal(w, "1", w.Do("GET", timeout))
				require.Equal(w, "2", w.Keys())
				began = time.Now()
				require.NoError(w, rw.Reader().Renew(w.Context(), time.Hour))
				for _, k := range []string{key, timeout} {
					hasLease(w, k, time.Hour, began)
				}
				w.Unlock(rw.Reader())
				w.Hears(heard, channel+" 0")
				require.Equal(w, "0", w.Keys())

				began = time.Now()
				w.Lock(rw.Writer())
				holders = holdersOf(w, key)
				require.Len(w, holders, 1)
				require.Regexp(w, "^"+kit.ClientID(r)+`:\d+:write$`, holders[0])
				require.Equal(w, map[string]string{"mode": "write", holders[0]: "1"}, fields(w, key))
				hasLease(w, key, lease, began)
				require.Equal(w, "1", w.Keys())
				w.Unlock(rw.Writer())
				w.Hears(heard, channel+" 1")
				w.Hears(heard, channel+" 0") // for a thread of Redisson that is about to sleep
				require.Equal(w, "0", w.Keys())
			}
		}
	})
}

// As with Redisson's watchdog, a lock taken without a lease has one of 30 s, renewed every third of it; a lease that was given
// ends.
func TestRedisson_Watchdog(t *testing.T) {
	t.Parallel()
	locks := func(r *lockregistry.Registry) map[string]*lockregistry.Lock {
		return map[string]*lockregistry.Lock{
			"plain": r.Obtain("plain"), "reader": r.ReadWrite("reader").Reader(), "writer": r.ReadWrite("writer").Writer(),
		}
	}
	for name, c := range map[string]struct {
		opts  []lockregistry.Option
		lock  []lockregistry.LockOption
		lease time.Duration
		ends  bool
	}{
		"by default": {nil, nil, 30 * time.Second, false},
		"WithLease":  {[]lockregistry.Option{lockregistry.WithLease(6 * time.Second)}, nil, 6 * time.Second, false},
		"Lease":      {nil, []lockregistry.LockOption{lockregistry.Lease(9 * time.Second)}, 9 * time.Second, true},
		"Lease, renewal": {
			[]lockregistry.Option{lockregistry.WithRenewal()}, []lockregistry.LockOption{lockregistry.Lease(9 * time.Second)},
			9 * time.Second, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				for kind, l := range locks(w.Registry(append(c.opts, kit.Redisson)...)) {
					start := time.Now()
					w.Lock(l, c.lock...)
					require.Equal(w, c.lease, w.Pttl(kit.Key(l)), kind)
					w.Pass(c.lease/3 - time.Millisecond)
					require.Equal(w, c.lease-time.Since(start), w.Pttl(kit.Key(l)), kind)
					w.Pass(2 * time.Millisecond)
					if c.ends {
						w.Pass(c.lease - time.Since(start))
						require.False(w, l.IsHeld())
						w.AwaitGone(kit.Key(l))
						w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.Key(l))
						continue
					}
					require.Greater(w, w.Pttl(kit.Key(l)), c.lease-5*time.Millisecond, kind)
					w.Pass(3 * c.lease)
					require.True(w, l.IsHeld())
					w.Unlock(l)
					w.Pass(c.lease)
					require.Equal(w, "0", w.Keys())
				}
			})
		})
	}
}

func TestRedisson_ForeignHoldersKeepUsOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		channel, message string
		put              func(w *kit.World)
		wanted           func(r *lockregistry.Registry) *lockregistry.Lock
	}{
		"a lock": {
			"redisson_lock__channel:{orders:42}", "0",
			func(w *kit.World) { w.Do("HSET", kit.TheKey, foreign, "2"); w.Do("PEXPIRE", kit.TheKey, "600000") },
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		},
		"a reader, of whom wants to write": {
			rwChannel, "0",
			func(w *kit.World) { read(w, foreign, time.Minute, 10*time.Minute) },
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
		},
		"a writer, of whom wants to read": {
			rwChannel, "1",
			func(w *kit.World) {
				w.Do("HSET", kit.TheKey, "mode", "write", foreign+":write", "3")
				w.Do("PEXPIRE", kit.TheKey, "600000")
			},
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
		},
		"a writer, of whom wants to write": {
			rwChannel, "1",
			func(w *kit.World) {
				w.Do("HSET", kit.TheKey, "mode", "write", foreign+":write", "1")
				w.Do("PEXPIRE", kit.TheKey, "600000")
			},
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				c.put(w)
				l := c.wanted(w.Waker(kit.WakeupPubSub, kit.Redisson))
				before := fields(w, kit.TheKey)
				require.False(w, w.TryElsewhere(l))
				got := w.Goroutine().Starts(l)
				subscribed(w, c.channel, 1)
				if w.Fake {
					w.Settle()
				}
				w.Pending(got)
				require.Equal(w, before, fields(w, kit.TheKey))
				require.Greater(w, w.Pttl(kit.TheKey), 9*time.Minute)
				start := time.Now()
				w.Do("DEL", kit.TheKey)
				w.Do("PUBLISH", c.channel, c.message)
				w.Takes(start, got)
				require.True(w, l.IsHeld())
			})
		})
	}
}

// A call gets the lock when a lease of Redisson ends, even with a long poll interval.
func TestRedisson_ForeignLeasesEnd(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		read(w, foreign, 3*time.Second, 7*time.Second)
		start := time.Now()
		w.Lock(w.Waker(kit.WakeupPubSub).ReadWrite("42").Writer())
		require.InDelta(w, 7*time.Second, time.Since(start), float64(5*time.Millisecond))
	})
}

// A reader comes and leaves: the fields of others stay, and the lock then has the longest of their leases.
func TestRedisson_ForeignReadersStay(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const other = "9d9f9a52-0a3a-4a43-8c39-54d1b54a5b0f:1"
		began := time.Now()
		read(w, foreign, time.Minute, 10*time.Minute)
		read(w, other, 5*time.Minute)
		before := fields(w, kit.TheKey)
		p, asked := w.Pair(), time.Now()
		w.Lock(p.Reader, lockregistry.Lease(time.Hour))
		hasLease(w, kit.TheKey, time.Hour, asked)
		require.Len(w, fields(w, kit.TheKey), 4)
		require.False(w, w.TryElsewhere(p.Writer))
		w.Unlock(p.Reader)
		require.Equal(w, before, fields(w, kit.TheKey))
		hasLease(w, kit.TheKey, 10*time.Minute, began)
		require.Equal(w, "4", w.Keys())

		// A shorter lease cuts none of theirs.
		w.Lock(p.Reader, lockregistry.Lease(time.Minute))
		hasLease(w, kit.TheKey, 10*time.Minute, began)
		w.Unlock(p.Reader)
		hasLease(w, kit.TheKey, 10*time.Minute, began)
	})
}
