package lockregistry_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What is on the wire in Redisson's format, and that we respect what Redisson itself would put there.

var redisson = lockregistry.WithLayout(lockregistry.LayoutRedisson)

// foreign is a holder's field as Redisson names it.
const foreign = "5c1e7a2e-8f6b-4f0e-9d2c-1b7a6e0c4d11:73"

// read sets the fields and keys of a reader of Redisson with these leases, one for each time it has locked.
func (w *world) read(holder string, leases ...time.Duration) {
	w.Helper()
	w.do("HSET", theKey, "mode", "read", holder, strconv.Itoa(len(leases)))
	longest := max(w.pttl(theKey), 0)
	for i, lease := range leases {
		key := "{orders:42}:" + holder + ":rwlock_timeout:" + strconv.Itoa(i+1)
		w.do("SET", key, "1", "PX", strconv.FormatInt(lease.Milliseconds(), 10))
		longest = max(longest, lease)
	}
	w.do("PEXPIRE", theKey, strconv.FormatInt(longest.Milliseconds(), 10))
}

// published is what is published on a channel from now on, as "channel message".
func (w *world) published(channel string) <-chan string {
	w.Helper()
	return w.heard(func(c rueidis.Client) rueidis.Completed {
		return c.B().Subscribe().Channel(channel).Build()
	}, channel, "1")
}

func TestRedissonLockOnTheWire(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(redisson)
		for path, channel := range map[string]string{
			"42":           "redisson_lock__channel:{orders:42}",
			"{eu}:42":      "redisson_lock__channel:orders:{eu}:42",
			"größe 42 \"ü": "redisson_lock__channel:{orders:größe 42 \"ü}",
		} {
			key := "orders:" + path
			heard := w.published(channel)
			l := r.Obtain(path)
			w.lock(l)
			w.lock(l)
			require.Equal(w, "hash", w.do("TYPE", key))
			fields := w.fields(key)
			require.Len(w, fields, 1)
			for field, count := range fields {
				require.Regexp(w, "^"+r.ClientID()+`:\d+$`, field)
				require.Equal(w, "1", count)
			}
			require.InDelta(w, 30*time.Second, w.pttl(key), float64(2*time.Second))
			w.unlock(l)
			w.unlock(l)
			require.Equal(w, channel+" 0", <-heard)
			require.Equal(w, "0", w.do("DBSIZE"))
		}
	})
}

func TestReadWriteLockOnTheWire(t *testing.T) {
	worlds(t, func(w *world) {
		for path, tag := range map[string]string{"42": "{orders:42}", "{eu}:42": "orders:{eu}:42"} {
			channel := "redisson_rwlock:" + tag
			heard := w.published(channel)
			for _, opts := range [][]lockregistry.Option{nil, {redisson}} {
				key := "orders:" + path
				r := w.registry(opts...)
				lease := 60 * time.Second
				if opts != nil {
					lease = 30 * time.Second
				}
				rw := r.ReadWrite(path)

				w.lock(rw.Reader())
				holders := w.holdersOf(key)
				require.Len(w, holders, 1)
				require.Regexp(w, "^"+r.ClientID()+`:\d+$`, holders[0])
				timeout := tag + ":" + holders[0] + ":rwlock_timeout:1"
				require.Equal(w, map[string]string{"mode": "read", holders[0]: "1"}, w.fields(key))
				for _, k := range []string{key, timeout} {
					require.InDelta(w, lease, w.pttl(k), float64(2*time.Second), k)
				}
				require.Equal(w, "1", w.do("GET", timeout))
				require.Equal(w, "2", w.do("DBSIZE"))
				require.NoError(w, rw.Reader().Renew(w.Context(), time.Hour))
				for _, k := range []string{key, timeout} {
					require.InDelta(w, time.Hour, w.pttl(k), float64(2*time.Second), k)
				}
				w.unlock(rw.Reader())
				require.Equal(w, channel+" 0", <-heard)
				require.Equal(w, "0", w.do("DBSIZE"))

				w.lock(rw.Writer())
				holders = w.holdersOf(key)
				require.Len(w, holders, 1)
				require.Regexp(w, "^"+r.ClientID()+`:\d+:write$`, holders[0])
				require.Equal(w, map[string]string{"mode": "write", holders[0]: "1"}, w.fields(key))
				require.InDelta(w, lease, w.pttl(key), float64(2*time.Second))
				require.Equal(w, "1", w.do("DBSIZE"))
				w.unlock(rw.Writer())
				require.Equal(w, channel+" 1", <-heard)
				require.Equal(w, "0", w.do("DBSIZE"))
			}
		}
	})
}

// Redisson's watchdog: who names no lease has one of 30 s that is renewed each third; one that is given ends.
func TestWatchdog(t *testing.T) {
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
		"WithExpiry": {[]lockregistry.Option{lockregistry.WithExpiry(6 * time.Second)}, nil, 6 * time.Second, false},
		"TTL":        {nil, []lockregistry.LockOption{lockregistry.TTL(9 * time.Second)}, 9 * time.Second, true},
		"TTL, renewal": {
			[]lockregistry.Option{lockregistry.WithRenewal()}, []lockregistry.LockOption{lockregistry.TTL(9 * time.Second)},
			9 * time.Second, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				for kind, l := range locks(w.registry(append(c.opts, redisson)...)) {
					start := time.Now()
					w.lock(l, c.lock...)
					require.Equal(w, c.lease, w.pttl(l.Key()), kind)
					w.pass(c.lease/3 - time.Millisecond)
					require.Equal(w, c.lease-time.Since(start), w.pttl(l.Key()), kind)
					w.pass(2 * time.Millisecond)
					if c.ends {
						w.pass(c.lease - time.Since(start))
						require.False(w, l.IsHeld())
						w.awaitGone(l.Key())
						w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", l.Key())
						continue
					}
					require.Greater(w, w.pttl(l.Key()), c.lease-5*time.Millisecond, kind)
					w.pass(20 * c.lease)
					require.True(w, l.IsHeld())
					w.unlock(l)
					w.pass(c.lease)
					require.Equal(w, "0", w.do("DBSIZE"))
				}
			})
		})
	}
}

func TestForeignHoldersKeepUsOut(t *testing.T) {
	for name, c := range map[string]struct {
		channel, message string
		put              func(w *world)
		wanted           func(r *lockregistry.Registry) *lockregistry.Lock
	}{
		"a lock": {
			"redisson_lock__channel:{orders:42}", "0",
			func(w *world) { w.do("HSET", theKey, foreign, "2"); w.do("PEXPIRE", theKey, "600000") },
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		},
		"a reader, of whom wants to write": {
			rwChannel, "0",
			func(w *world) { w.read(foreign, time.Minute, 10*time.Minute) },
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
		},
		"a writer, of whom wants to read": {
			rwChannel, "1",
			func(w *world) {
				w.do("HSET", theKey, "mode", "write", foreign+":write", "3")
				w.do("PEXPIRE", theKey, "600000")
			},
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
		},
		"a writer, of whom wants to write": {
			rwChannel, "1",
			func(w *world) {
				w.do("HSET", theKey, "mode", "write", foreign+":write", "1")
				w.do("PEXPIRE", theKey, "600000")
			},
			func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				c.put(w)
				l := c.wanted(w.waker(lockregistry.WakeupPubSub, redisson))
				before := w.fields(theKey)
				require.False(w, w.tryElsewhere(l))
				got := w.goroutine().starts(l)
				w.subscribed(c.channel, 1)
				if w.fake {
					w.settle()
				}
				w.pending(got)
				require.Equal(w, before, w.fields(theKey))
				require.Greater(w, w.pttl(theKey), 9*time.Minute)
				start := time.Now()
				w.do("DEL", theKey)
				w.do("PUBLISH", c.channel, c.message)
				w.takes(start, got)
				require.True(w, l.IsHeld())
			})
		})
	}
}

// A lease of Redisson that ends lets us in then, however long we would poll.
func TestForeignLeasesEnd(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.read(foreign, 3*time.Second, 7*time.Second)
		start := time.Now()
		w.lock(w.waker(lockregistry.WakeupPubSub).ReadWrite("42").Writer())
		require.InDelta(w, 7*time.Second, time.Since(start), float64(5*time.Millisecond))
	})
}

// We come to read, and leave: the fields of others stay, and the lease becomes the longest of theirs.
func TestForeignReadersStay(t *testing.T) {
	worlds(t, func(w *world) {
		const other = "9d9f9a52-0a3a-4a43-8c39-54d1b54a5b0f:1"
		w.read(foreign, time.Minute, 10*time.Minute)
		w.read(other, 5*time.Minute)
		before := w.fields(theKey)
		p := w.pair()
		w.lock(p.reader, lockregistry.TTL(time.Hour))
		require.InDelta(w, time.Hour, w.pttl(theKey), float64(2*time.Second))
		require.Len(w, w.fields(theKey), 4)
		require.False(w, w.tryElsewhere(p.writer))
		w.unlock(p.reader)
		require.Equal(w, before, w.fields(theKey))
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(2*time.Second))
		require.Equal(w, "4", w.do("DBSIZE"))

		// A shorter lease of ours cuts none of theirs.
		w.lock(p.reader, lockregistry.TTL(time.Second))
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(3*time.Second))
		w.unlock(p.reader)
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(3*time.Second))
	})
}

// Somebody else has the lock that was ours: we are told, and they lose nothing.
func TestUnlockAfterRedissonTookOver(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(redisson)
		rw := r.ReadWrite("42")
		for name, l := range map[string]*lockregistry.Lock{"plain": r.Obtain("42"), "reader": rw.Reader(), "writer": rw.Writer()} {
			w.lock(l)
			w.do("FLUSHALL")
			switch name {
			case "plain":
				w.do("HSET", theKey, foreign, "1")
			case "reader":
				w.do("HSET", theKey, "mode", "write", foreign+":write", "1")
			case "writer":
				w.do("HSET", theKey, "mode", "read", foreign, "1")
			}
			w.do("PEXPIRE", theKey, "600000")
			before := w.fields(theKey)
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
			require.Equal(w, before, w.fields(theKey), name)
			require.Greater(w, w.pttl(theKey), 9*time.Minute)
			w.do("FLUSHALL")
		}
	})
}

// Who only polls publishes nothing.
func TestRedissonFormatWithoutPublishing(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry(redisson, polling)
		rw := r.ReadWrite("43")
		for _, l := range []*lockregistry.Lock{r.Obtain("42"), rw.Reader(), rw.Writer()} {
			w.lock(l)
			w.unlock(l)
		}
		require.Zero(w, w.executed("publish"))
	})
}
