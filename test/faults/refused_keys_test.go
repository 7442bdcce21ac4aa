package faults_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A server or proxy may refuse keys that a script names besides the lock's.

// singlePaths are locks of one path, each of its kind.
var singlePaths = map[string]struct {
	opts []lockregistry.Option
	side func(r *lockregistry.Registry) *lockregistry.Lock
}{
	"spring":   {nil, plain},
	"fenced":   {[]lockregistry.Option{lockregistry.WithFencing()}, plain},
	"redisson": {[]lockregistry.Option{lockregistry.WithRedissonLayout()}, plain},
	"redisson fenced": {
		[]lockregistry.Option{lockregistry.WithRedissonLayout(), lockregistry.WithFencing()}, plain,
	},
	"writer": {nil, func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() }},
}

func reader(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() }

func plain(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") }

// takeTurns has registries take turns with a lock, and checks that they exclude each other, and that tokens grow.
func takeTurns(t *testing.T, all []*lockregistry.Registry, side func(r *lockregistry.Registry) *lockregistry.Lock) {
	t.Helper()
	var inside atomic.Int32
	var last uint64
	var each sync.WaitGroup
	for _, r := range all {
		each.Go(func() {
			for range 5 {
				err := side(r).Do(t.Context(), func(ctx context.Context) error {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d are inside", n)
					}
					defer inside.Add(-1)
					if token, ok := lockregistry.TokenFrom(ctx); ok {
						if token <= last {
							t.Errorf("token %d after %d", token, last)
						}
						last = token
					}
					return nil
				}, lockregistry.Lease(10*time.Second))
				if err != nil && !kit.TookLong(err) { // on a busy machine
					t.Error(err)
				}
			}
		})
	}
	each.Wait()
}

// A user who may touch the lock's key, but not its queue, locks without a queue. The registry finds that out once.
func TestRefusedKeys_NoPermissionForTheQueue(t *testing.T) {
	for name, c := range singlePaths {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				w.Do("ACL", "SETUSER", "app", "on", ">secret", "allchannels", "+@all", "~orders:42", "~orders:{orders:42}:fencing",
					"~redisson_lock_token:{orders:42}", "~{orders:42}:*", "~*:registry")
				var log kit.Journal
				opts := append([]lockregistry.Option{lockregistry.WithPollInterval(20 * time.Millisecond)}, c.opts...)
				limited := w.RegistryOn(w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password = "app", "secret"
				}), append(opts, log.Option())...)
				takeTurns(w.T, []*lockregistry.Registry{limited}, c.side)
				w.Do("CONFIG", "RESETSTAT")
				takeTurns(w.T, []*lockregistry.Registry{limited}, c.side)
				require.NotContains(w, w.Do("INFO", "commandstats"), "rejected_calls=1,", "it knows that the queue is refused")
				takeTurns(w.T, []*lockregistry.Registry{limited, w.Registry(opts...), limited}, c.side)
				require.LessOrEqual(w, len(log.Lines()), 1, "one line says it")
				for _, line := range log.Lines() {
					require.Contains(w, line, "the server refuses the queue of a lock")
					require.Contains(w, line, "NOPERM")
				}
			})
		})
	}
}

// A call whose user loses the permission for the queue while it waits goes on without it, as another hold. It can no longer
// remove its ticket; if it took the ticket's hold, a release that serves the ticket would grant the lock to the same hold
// again.
func TestRefusedKeys_TheQueueOfAWaitingCall(t *testing.T) {
	kinds := maps.Clone(singlePaths)
	kinds["reader"] = kinds["writer"]
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const queue = "orders:{orders:42}:waiters"
				w.Do("ACL", "SETUSER", "app", "on", ">secret", "allchannels", "+@all", "allkeys")
				limited := w.RegistryOn(w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password = "app", "secret"
				}), append([]lockregistry.Option{lockregistry.WithPollInterval(20 * time.Millisecond)}, c.opts...)...)
				side := c.side
				if name == "reader" {
					side = reader
				}
				other := w.Registry(c.opts...)
				w.Lock(c.side(other))
				won := w.Goroutine().Starts(side(limited))
				ticket := ""
				w.Await("a ticket", func() bool {
					ticket = strings.Trim(w.Do("ZRANGEBYSCORE", queue, "0", "+inf"), "[]")
					return ticket != ""
				})
				w.Do("ACL", "SETUSER", "app", "resetkeys", "~orders:42", "~orders:{orders:42}:fencing",
					"~redisson_lock_token:{orders:42}", "~{orders:42}:*", "~*:registry")
				w.Do("DEL", "orders:42") // so that the call looks
				require.NoError(w, <-won)
				require.Equal(w, ticket, strings.Trim(w.Do("ZRANGEBYSCORE", queue, "0", "+inf"), "[]"))
				own, _, _ := strings.Cut(ticket, "|")
				holder := w.Do("EVAL", "return redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1])"+
					" or table.concat(redis.call('HGETALL', KEYS[1]), ' ')", "1", "orders:42")
				require.NotEmpty(w, holder)
				require.NotContains(w, holder, own)
			})
		})
	}
}

// A user who may not touch the fencing counter gets an error, and no lock.
func TestRefusedKeys_NoPermissionForTheCounter(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("ACL", "SETUSER", "app", "on", ">secret", "allchannels", "+@all",
			"~orders:42", "~orders:{orders:42}:waiters", "~*:registry")
		r := w.RegistryOn(w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
			o.Username, o.Password = "app", "secret"
		}), lockregistry.WithFencing())
		err := r.Obtain("42").Lock(w.Context())
		require.Regexp(w, "NOPERM|can't access|ACL failure", err)
		require.True(w, w.Free(kit.TheKey))
	})
}

// Behind a proxy that sends each command by its first key, single paths work, even if the proxy refuses keys of several
// servers. Proxies go by hash tags or by the whole key.
func TestRefusedKeys_Proxies(t *testing.T) {
	t.Parallel()
	const another = "ERR some proxy says this"
	for _, proxy := range []struct {
		tags    bool
		refuses string
	}{
		{true, another}, // it has no reason to refuse
		{false, ""},
		{false, "CROSSSLOT Keys in request don't hash to the same slot"},
		{false, another},
	} {
		for name, c := range singlePaths {
			t.Run(fmt.Sprint(name, ", tags ", proxy.tags, ", ", strings.Split(proxy.refuses, " ")[0]), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					relay := w.Relay(proxy.tags, proxy.refuses)
					opts := append([]lockregistry.Option{lockregistry.WithPollInterval(20 * time.Millisecond)}, c.opts...)
					all := []*lockregistry.Registry{relay.Registry(opts...), relay.Registry(opts...)}
					takeTurns(w.T, all, c.side)
					before := relay.Refused.Load()
					takeTurns(w.T, all, c.side)
					require.Equal(w, before, relay.Refused.Load(), "they know what is refused")
					if proxy.tags {
						require.Zero(w, before, "all keys of a path have one hash tag")
					}
				})
			})
		}
	}
}
