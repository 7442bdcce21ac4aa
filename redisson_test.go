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

// hears waits for the next message on a channel.
func (w *world) hears(heard <-chan string, want string) {
	w.Helper()
	select {
	case got := <-heard:
		require.Equal(w, want, got)
	case <-time.After(20 * time.Second):
		w.Fatal("nobody published ", want)
	}
}

func TestRedisson_LockOnTheWire(t *testing.T) {
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
			w.hears(heard, channel+" 0")
			require.Equal(w, "0", w.keys())
		}
	})
}

func TestRedisson_ReadWriteLockOnTheWire(t *testing.T) {
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
				require.Equal(w, "2", w.keys())
				require.NoError(w, rw.Reader().Renew(w.Context(), time.Hour))
				for _, k := range []string{key, timeout} {
					require.InDelta(w, time.Hour, w.pttl(k), float64(2*time.Second), k)
				}
				w.unlock(rw.Reader())
				w.hears(heard, channel+" 0")
				require.Equal(w, "0", w.keys())

				w.lock(rw.Writer())
				holders = w.holdersOf(key)
				require.Len(w, holders, 1)
				require.Regexp(w, "^"+r.ClientID()+`:\d+:write$`, holders[0])
				require.Equal(w, map[string]string{"mode": "write", holders[0]: "1"}, w.fields(key))
				require.InDelta(w, lease, w.pttl(key), float64(2*time.Second))
				require.Equal(w, "1", w.keys())
				w.unlock(rw.Writer())
				w.hears(heard, channel+" 1")
				w.hears(heard, channel+" 0") // for a thread of Redisson that is about to sleep
				require.Equal(w, "0", w.keys())
			}
		}
	})
}

// Redisson's watchdog: who names no lease has one of 30 s that is renewed each third; one that is given ends.
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
					require.Equal(w, "0", w.keys())
				}
			})
		})
	}
}

func TestRedisson_ForeignHoldersKeepUsOut(t *testing.T) {
	t.Parallel()
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
func TestRedisson_ForeignLeasesEnd(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.read(foreign, 3*time.Second, 7*time.Second)
		start := time.Now()
		w.lock(w.waker(lockregistry.WakeupPubSub).ReadWrite("42").Writer())
		require.InDelta(w, 7*time.Second, time.Since(start), float64(5*time.Millisecond))
	})
}

// We come to read, and leave: the fields of others stay, and the lease becomes the longest of theirs.
func TestRedisson_ForeignReadersStay(t *testing.T) {
	worlds(t, func(w *world) {
		const other = "9d9f9a52-0a3a-4a43-8c39-54d1b54a5b0f:1"
		w.read(foreign, time.Minute, 10*time.Minute)
		w.read(other, 5*time.Minute)
		before := w.fields(theKey)
		p := w.pair()
		w.lock(p.reader, lockregistry.Lease(time.Hour))
		require.InDelta(w, time.Hour, w.pttl(theKey), float64(2*time.Second))
		require.Len(w, w.fields(theKey), 4)
		require.False(w, w.tryElsewhere(p.writer))
		w.unlock(p.reader)
		require.Equal(w, before, w.fields(theKey))
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(2*time.Second))
		require.Equal(w, "4", w.keys())

		// A shorter lease of ours cuts none of theirs.
		w.lock(p.reader, lockregistry.Lease(time.Second))
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(3*time.Second))
		w.unlock(p.reader)
		require.InDelta(w, 10*time.Minute, w.pttl(theKey), float64(3*time.Second))
	})
}

// Somebody else has the lock that was ours: we are told, and they lose nothing.
func TestRedisson_UnlockAfterRedissonTookOver(t *testing.T) {
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

// The second message of a writer's release is for those who heard the first one.
func TestRedisson_WritersRepeatNothingToNobody(t *testing.T) {
	realWorlds(t, func(w *world) {
		p := w.pair()
		w.lock(p.writer)
		before := w.executed("publish")
		w.unlock(p.writer)
		require.Equal(w, 1, w.executed("publish")-before)

		heard := w.published(rwChannel)
		w.lock(p.writer)
		w.lock(p.reader)
		before = w.executed("publish")
		w.unlock(p.writer)
		require.Equal(w, 2, w.executed("publish")-before)
		w.hears(heard, rwChannel+" 1")
		w.hears(heard, rwChannel+" 0")
		w.unlock(p.reader)
	})
}

// A user who may do all but set a lease gets no lock, and leaves nothing that would stay for ever.
func TestRedisson_WithoutPermissionToSetALease(t *testing.T) {
	realWorlds(t, func(w *world) {
		r, other := w.registryOn(w.user("-pexpire"), redisson), w.pair()
		rw := r.ReadWrite("42")
		locks := map[string]*lockregistry.Lock{"plain": r.Obtain("42"), "reader": rw.Reader(), "writer": rw.Writer()}
		refused := func(l *lockregistry.Lock, name string) {
			w.Helper()
			const forbidden = "can't run this command|no permissions" // as servers of different versions put it
			require.Regexp(w, forbidden, l.Lock(w.Context()), name)
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Minute))
			require.Regexp(w, forbidden, err, name)
			require.False(w, ok)
			require.False(w, l.IsHeld())
		}
		for name, l := range locks {
			refused(l, name)
			require.Equal(w, "0", w.keys(), name)
		}

		// Beside a reader of another process, which loses nothing.
		w.lock(other.reader, lockregistry.Lease(time.Minute))
		before := w.fields(theKey)
		refused(locks["reader"], "reader")
		require.Equal(w, before, w.fields(theKey))
		require.InDelta(w, time.Minute, w.pttl(theKey), float64(20*time.Second))
		require.Equal(w, "2", w.keys())
		w.unlock(other.reader)

		// Who writes already, when the permission is taken away.
		name := "user" + strconv.Itoa(len(strings.Fields(w.do("ACL", "USERS")))-1)
		w.do("ACL", "SETUSER", name, "+pexpire")
		w.lock(locks["writer"])
		before = w.fields(theKey)
		w.do("ACL", "SETUSER", name, "-pexpire")
		refused(locks["reader"], "reader under a writer")
		require.Equal(w, before, w.fields(theKey))
		require.Greater(w, w.pttl(theKey), time.Second)
		require.Equal(w, "1", w.keys())
		w.unlock(locks["writer"])
		require.Equal(w, "0", w.keys())
	})
}

// On a cluster a read-write lock whose braces put its keys into different slots is refused by name; others work, plain locks
// always do.
func TestRedisson_BracesOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
	require.NoError(t, err)
	defer client.Close()
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
		r := openOn(t, client, lockregistry.WithLayout(layout))
		for path, works := range map[string]bool{
			"a": true, "{t}a": true, "a{}b": false, "a{b": false, "a}b": false, "}{": false, "{}": false, "{}{x}": false,
			"a\x00\n\xff": true, "a{b}c}d": true, "{{x}": true,
		} {
			rw, plain := r.ReadWrite(path), r.Obtain("plain "+path)
			for _, l := range []*lockregistry.Lock{rw.Reader(), rw.Writer(), plain} {
				err := l.Lock(t.Context())
				if works || l == plain {
					require.NoError(t, err, path)
					require.NoError(t, l.Renew(t.Context(), time.Minute))
					require.NoError(t, l.Unlock(t.Context()))
					continue
				}
				require.ErrorContains(t, err, "in different slots, because of the braces in its name")
				require.ErrorContains(t, l.Unlock(t.Context()), "in different slots")
			}
		}
	}
}

// On a cluster a plain lock works on whichever node has its key. Its release is published in both ways: to the waiters of
// this library, whatever node they listen to, and on the key's own node to those of Redisson. Servers before version 7
// have no sharded channels: there Redisson subscribes as this library does, and hears of a release once.
func TestRedisson_LocksOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	sharded := nodes[0].Command(t, "COMMAND", "INFO", "SPUBLISH") != "(nil)"
	client := func(t *testing.T) rueidis.Client {
		t.Helper()
		c, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		require.Equal(t, rueidis.ClientModeCluster, c.Mode())
		return c
	}
	registry := func(t *testing.T, mode lockregistry.Wakeup) *lockregistry.Registry {
		t.Helper()
		r, err := lockregistry.New(client(t), "orders", redisson,
			lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
	// said is what one of the nodes answers, and which that is: they refuse commands for keys of others.
	said := func(key string, args ...string) (string, *redistest.Server) {
		for _, node := range nodes {
			if answer, err := node.Do("EXISTS", key); err == nil && !strings.HasPrefix(answer, "MOVED") {
				return node.Command(t, args...), node
			}
		}
		t.Fatal("nobody has ", key)
		return "", nil
	}
	subscriptions := func(kind, channel string) (n int) {
		for _, node := range nodes {
			counts := strings.Fields(node.Command(t, "PUBSUB", kind, channel))
			count, err := strconv.Atoi(counts[len(counts)-1])
			require.NoError(t, err)
			n += count
		}
		return n
	}
	owners := map[*redistest.Server]bool{}
	for name, mode := range map[string]lockregistry.Wakeup{
		"by default": lockregistry.WakeupAuto, "pubsub": lockregistry.WakeupPubSub,
	} {
		t.Run(name, func(t *testing.T) {
			w := realWorld(t, nodes[0])
			holds, waits := registry(t, mode), registry(t, mode)
			for path, channel := range map[string]string{
				"1":           "redisson_lock__channel:{orders:1}",
				"2":           "redisson_lock__channel:{orders:2}",
				"3":           "redisson_lock__channel:{orders:3}",
				"4":           "redisson_lock__channel:{orders:4}",
				"{eu}:1":      "redisson_lock__channel:orders:{eu}:1",
				"{us}:1":      "redisson_lock__channel:orders:{us}:1",
				"with blanks": "redisson_lock__channel:{orders:with blanks}",
			} {
				key := "orders:" + path
				held, waited := holds.Obtain(path), waits.Obtain(path)
				require.NoError(t, held.Lock(t.Context()))
				require.NoError(t, held.Renew(t.Context(), time.Minute))
				kind, owner := said(key, "TYPE", key)
				require.Equal(t, "hash", kind)
				owners[owner] = true
				ok, err := elsewhere2(func() (bool, error) { return waited.TryLock(t.Context()) })
				require.NoError(t, err)
				require.False(t, ok)

				// What a waiter of Redisson does.
				heard := make(chan string, 8)
				listening, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				java := client(t)
				subscribe, counted, others := java.B().Ssubscribe().Channel(channel).Build(), "SHARDNUMSUB", 0
				if !sharded {
					subscribe, counted, others = java.B().Subscribe().Channel(channel).Build(), "NUMSUB", 1
				}
				go func() {
					ended <- java.Receive(listening, subscribe, func(m rueidis.PubSubMessage) { heard <- m.Channel + " " + m.Message })
				}()
				w.await("a subscription as of Redisson", func() bool {
					select {
					case err := <-ended:
						w.Fatal(err)
					default:
					}
					return subscriptions(counted, channel) == 1
				})

				// A release is heard of once; one that gives the lock to who waits in the queue, not always.
				require.NoError(t, held.Unlock(t.Context()))
				w.hears(heard, channel+" 0")
				require.NoError(t, held.Lock(t.Context()))
				require.Empty(t, heard)
				g := w.goroutine()
				result := g.starts(waited)
				w.await("it listens", func() bool {
					return subscriptions("NUMSUB", channel) == 1+others || realWorld(t, owner).tracked() == 1
				})
				w.pending(result)
				start := time.Now()
				require.NoError(t, held.Unlock(t.Context()))
				t.Log(path, w.takes(start, result))
				require.NoError(t, g.unlock(waited))
				w.hears(heard, channel+" 0")
				stop()
				require.ErrorIs(t, <-ended, context.Canceled)
				java.Close()
				left, _ := said(key, "EXISTS", key)
				require.Equal(t, "0", left)
			}
		})
	}
	require.True(t, t.Failed() || len(owners) == len(nodes), "keys on every node")
}

// Who only polls publishes nothing.
func TestRedisson_FormatWithoutPublishing(t *testing.T) {
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

// What Redisson releases on a cluster it publishes on the key's own node only, and wakes all the same.
func TestRedisson_ReleaseByRedissonOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	publish, subscribers := "SPUBLISH", "SHARDNUMSUB"
	if nodes[0].Command(t, "COMMAND", "INFO", "SPUBLISH") == "(nil)" { // before version 7
		publish, subscribers = "PUBLISH", "NUMSUB"
	}
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			w := realWorld(t, nodes[0])
			r := w.registryOn(client, redisson, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
			for _, path := range []string{"1", "2", "{eu}:1"} {
				key, channel := "orders:"+path, "redisson_lock__channel:{orders:"+path+"}"
				if strings.Contains(path, "{") {
					channel = "redisson_lock__channel:orders:" + path
				}
				var owner *redistest.Server
				for _, node := range nodes {
					if _, err := node.Do("HSET", key, "a-java-thread", "1"); err == nil {
						owner = node
					}
				}
				require.NotNil(t, owner)
				g := w.goroutine()
				result := g.starts(r.Obtain(path))
				w.await("it listens", func() bool {
					return realWorld(t, owner).tracked() > 0 || owner.Command(t, "PUBSUB", subscribers, channel) == channel+"\n1"
				})
				w.pending(result)
				start := time.Now()
				owner.Command(t, "EVAL", "redis.call('DEL', KEYS[1]) redis.call(ARGV[2], ARGV[1], '0')", "1", key, channel, publish)
				t.Log(path, w.takes(start, result))
				require.NoError(t, g.unlock(r.Obtain(path)))
			}
		})
	}
}
