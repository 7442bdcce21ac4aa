package cluster_test

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
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster a read-write lock whose braces put its keys into different slots is refused, with its name. Other read-write
// locks work, and plain locks always do.
func TestRedisson_BracesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	client := cluster.Client(t)
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		r := cluster.RegistryOn(t, client, kit.WithLayout(layout))
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
					require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
					continue
				}
				require.ErrorContains(t, err, "in different slots, because of the braces in its name")
				require.ErrorContains(t, l.Unlock(t.Context()), "in different slots")
			}
		}
	}
}

// On a cluster a plain lock works on whichever node has its key. Its release is published in both ways: to the waiters of this
// library, whatever node they listen to, and on the key's own node to those of Redisson. Servers before version 7 have no
// sharded channels: there Redisson subscribes as this library does, and receives a release once.
func TestRedisson_LocksOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	sharded := nodes[0].Command(t, "COMMAND", "INFO", "SPUBLISH") != "(nil)"
	client := func(t *testing.T) rueidis.Client {
		t.Helper()
		c, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		require.Equal(t, rueidis.ClientModeCluster, c.Mode())
		return c
	}
	registry := func(t *testing.T, mode kit.Wakeup) *lockregistry.Registry {
		t.Helper()
		r, err := lockregistry.New(client(t), "orders", kit.Redisson,
			kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
	// said returns a node's reply, and which node that is: the others refuse commands for keys that are not theirs.
	said := func(t *testing.T, key string, args ...string) (string, *redistest.Server) {
		t.Helper()
		for _, node := range nodes {
			if answer, err := node.Do("EXISTS", key); err == nil && !strings.HasPrefix(answer, "MOVED") {
				return node.Command(t, args...), node
			}
		}
		t.Fatal("nobody has ", key)
		return "", nil
	}
	subscriptions := func(t *testing.T, kind, channel string) (n int) {
		t.Helper()
		for _, node := range nodes {
			counts := strings.Fields(node.Command(t, "PUBSUB", kind, channel))
			count, err := strconv.Atoi(counts[len(counts)-1])
			require.NoError(t, err)
			n += count
		}
		return n
	}
	owners := map[*redistest.Server]bool{}
	for name, mode := range map[string]kit.Wakeup{
		"by default": kit.WakeupAuto, "pubsub": kit.WakeupPubSub,
	} {
		t.Run(name, func(t *testing.T) {
			w := kit.RealWorld(t, nodes[0])
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
				kind, owner := said(t, key, "TYPE", key)
				require.Equal(t, "hash", kind)
				owners[owner] = true
				ok, err := kit.Elsewhere2(func() (bool, error) { return waited.TryLock(t.Context()) })
				require.NoError(t, err)
				require.False(t, ok)

				// Subscribe as a waiter of Redisson does.
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
				w.Await("a subscription as of Redisson", func() bool {
					select {
					case err := <-ended:
						w.Fatal(err)
					default:
					}
					return subscriptions(t, counted, channel) == 1
				})

				// A release is received once, though not always if it gives the lock to a waiter in the queue.
				require.NoError(t, kit.UnlessLate(held.Unlock(t.Context())))
				w.Hears(heard, channel+" 0")
				require.NoError(t, held.Lock(t.Context()))
				require.Empty(t, heard)
				g := w.Goroutine()
				result := g.Starts(waited)
				w.Await("it listens", func() bool {
					return subscriptions(t, "NUMSUB", channel) == 1+others || kit.RealWorld(t, owner).Tracked() == 1
				})
				w.Pending(result)
				start := time.Now()
				require.NoError(t, kit.UnlessLate(held.Unlock(t.Context())))
				t.Log(path, w.Takes(start, result))
				require.NoError(t, g.Unlock(waited))
				w.Hears(heard, channel+" 0")
				stop()
				require.ErrorIs(t, <-ended, context.Canceled)
				java.Close()
				left, _ := said(t, key, "EXISTS", key)
				require.Equal(t, "0", left)
			}
		})
	}
	require.True(t, t.Failed() || len(owners) == len(nodes), "keys on every node")
}

// Redisson publishes a release on the key's own node only, and this library's waiters wake all the same.
func TestRedisson_ReleaseByRedissonOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	publish, subscribers := "SPUBLISH", "SHARDNUMSUB"
	if nodes[0].Command(t, "COMMAND", "INFO", "SPUBLISH") == "(nil)" { // before version 7
		publish, subscribers = "PUBLISH", "NUMSUB"
	}
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			w := kit.RealWorld(t, nodes[0])
			r := w.RegistryOn(client, kit.Redisson, kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))
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
				g := w.Goroutine()
				result := g.Starts(r.Obtain(path))
				w.Await("it listens", func() bool {
					return kit.RealWorld(t, owner).Tracked() > 0 || owner.Command(t, "PUBSUB", subscribers, channel) == channel+"\n1"
				})
				w.Pending(result)
				start := time.Now()
				owner.Command(t, "EVAL", "redis.call('DEL', KEYS[1]) redis.call(ARGV[2], ARGV[1], '0')", "1", key, channel, publish)
				t.Log(path, w.Takes(start, result))
				require.NoError(t, g.Unlock(r.Obtain(path)))
			}
		})
	}
}
