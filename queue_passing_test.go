package lockregistry_test

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// inQueue returns the tickets of the first lock, the first one first.
func (w *world) inQueue() []string {
	w.Helper()
	return strings.Fields(strings.Trim(w.do("ZRANGEBYSCORE", theQueue, "0", "+inf"), "[]"))
}

// prompt has a waiting call look after its ticket, as a script does that has taken it out.
func (w *world) prompt(ticket string) {
	w.Helper()
	require.Equal(w, "1", w.do(append([]string{"PUBLISH"}, w.prompting(ticket)...)...))
}

// prompting is the channel and the message that do.
func (w *world) prompting(ticket string) []string {
	w.Helper()
	parts := regexp.MustCompile(`^(.*):(\d+)\|`).FindStringSubmatch(ticket)
	require.Len(w, parts, 3, ticket)
	return []string{"orders-channel@" + parts[1], "d " + parts[2] + " 0 " + theKey}
}

// passingFaults have a server refuse something for a while, until what they return is called.
var passingFaults = map[string]func(w *world) (ends func()){
	"NOREPLICAS": func(w *world) func() { return w.configured("min-replicas-to-write", "1", "0") },
	"OOM":        func(w *world) func() { return w.configured("maxmemory", "1", "0") },
	"READONLY": func(w *world) func() {
		w.do("REPLICAOF", "127.0.0.1", "1")
		return func() { w.do("REPLICAOF", "NO", "ONE") }
	},
	"MISCONF": (*world).withoutDisk,
}

func (w *world) configured(name, value, former string) (ends func()) {
	w.Helper()
	require.Equal(w, "OK", w.do("CONFIG", "SET", name, value))
	return func() { require.Equal(w, "OK", w.do("CONFIG", "SET", name, former)) }
}

// withoutDisk has the server fail to save, because a directory has the name of its file.
func (w *world) withoutDisk() (ends func()) {
	w.Helper()
	setting := func(name string) string {
		_, value, _ := strings.Cut(w.do("CONFIG", "GET", name), "\n")
		return value
	}
	require.NoError(w, os.Mkdir(filepath.Join(setting("dir"), setting("dbfilename")), 0o700))
	ends = w.configured("save", "3600 1000000", "") // without it the server does not mind
	w.do("BGSAVE")
	w.await("it cannot save", func() bool { return strings.Contains(w.do("INFO", "persistence"), "rdb_last_bgsave_status:err") })
	return ends
}

// What passes while calls wait in the queue costs none of them its ticket, nor the path its queue: they look again.
func TestQueue_WhatPassesCostsNobodyThePlace(t *testing.T) {
	t.Parallel()
	for name, begins := range passingFaults {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var log journal
				holder := w.registry().Obtain("42")
				w.lock(holder)
				queue := make([]*member, 0, 3)
				for range cap(queue) {
					queue = append(queue, w.joins(w.Context(), lockregistry.WithPollInterval(noPoll), log.option()))
				}
				tickets := w.inQueue()
				ends := begins(w)
				looks := w.executed("evalsha")
				for _, ticket := range tickets {
					w.prompt(ticket)
				}
				w.await("each looks twice", func() bool { return w.executed("evalsha") >= looks+2*len(queue) })
				late := w.goroutine()
				last := late.starts(w.registry(lockregistry.WithPollInterval(noPoll), log.option()).Obtain("42"),
					lockregistry.Wait(time.Minute))
				w.await("the log says what it is", func() bool { return len(log.lines(name)) > 0 })
				ends()
				w.await("who came meanwhile waits too", func() bool { return w.tickets() == len(queue)+1 })
				require.Equal(w, tickets, w.inQueue()[:len(queue)])
				w.unlock(holder)
				for i, m := range queue {
					require.NoError(w, <-m.result)
					for _, other := range queue[i+1:] {
						w.pending(other.result)
					}
					w.pending(last)
					require.NoError(w, m.unlock(m.lock))
				}
				require.NoError(w, <-last)
				require.Len(w, log.lines("for now"), len(log.lines()), "%s", log.lines())
			})
		})
	}
}

// Nor does a server that refuses every script for a while.
func TestQueue_RefusedLooksCostNobodyThePlace(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk",
		"LOADING Redis is loading the dataset in memory",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	} {
		name, _, _ := strings.Cut(refusal, " ")
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				holder, queue := w.lockedAndQueued()
				tickets, looks := w.inQueue(), looksOf(queue)
				for _, m := range queue {
					m.net.all("obtain", refused(refusal))
				}
				for _, ticket := range tickets {
					w.prompt(ticket)
				}
				for i, m := range queue {
					w.await("it looks twice", func() bool { return m.net.count("obtain") >= looks[i]+2 })
				}
				for _, m := range queue {
					m.net.Forget()
				}
				require.Equal(w, tickets, w.inQueue())
				w.servedInOrder(holder, queue)
			})
		})
	}
}

// Nor does a server that is busy with somebody's script. It is so from the moment in which it has the calls look.
func TestQueue_ABusyServerCostsNobodyThePlace(t *testing.T) {
	realWorlds(t, func(w *world) {
		var log journal
		holder, queue := w.lockedAndQueued(log.option())
		tickets := w.inQueue()
		w.do("CONFIG", "SET", "lua-time-limit", "1")
		looks := looksOf(queue)
		call := []string{"EVAL", `for i = 1, #ARGV, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end while true do end`, "0"}
		for _, ticket := range tickets {
			call = append(call, w.prompting(ticket)...)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := w.server.Do(call...)
			ended <- err
		}()
		for i, m := range queue {
			w.await("it looks twice", func() bool { return m.net.count("obtain") >= looks[i]+2 })
		}
		_, err := w.server.Do("SCRIPT", "KILL")
		require.NoError(w, err)
		require.Error(w, <-ended)
		require.GreaterOrEqual(w, w.commandStat("evalsha", "rejected_calls"), 2*len(queue)-1, "the first script may be taken yet")
		require.Equal(w, tickets, w.inQueue())
		w.servedInOrder(holder, queue)
		require.Len(w, log.lines("for now"), len(log.lines()), "%s", log.lines())
	})
}

// Nor does one that was restarted and reads its data. The calls lose their connections for messages with it, so they ask for
// tickets with new numbers, at the old places.
func TestQueue_ALoadingServerCostsNobodyThePlace(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, binary string) {
		t.Helper()
		t.Parallel()
		w := realWorld(t, redistest.StartBinary(t, binary, "--key-load-delay", "100000", "--rdbcompression", "no"))
		holder, queue := w.lockedAndQueued()
		order := registriesOf(w.inQueue())
		// While it loads, a server answers after each two megabytes.
		w.do("EVAL", `for i = 1, 40 do redis.call('SETRANGE', 'filler' .. i, 2200000, 'x') end`, "0")
		w.do("SAVE")
		w.server.Kill()
		looks, all := looksOf(queue), make(chan bool, 1)
		go func() {
			all <- lookTwice(queue, looks)
			_, _ = w.server.Do("CONFIG", "SET", "key-load-delay", "0")
		}()
		w.server.Revive(t)
		require.True(w, <-all, "each looks twice meanwhile")
		require.GreaterOrEqual(w, w.commandStat("evalsha", "rejected_calls"), 2*len(queue))
		for i, m := range queue {
			w.await("it hears", func() bool { return w.subscribers("orders-channel@"+order[i]) == 1 })
			w.await("it has a ticket", func() bool { return m.reg.Stats().Tickets == 1 })
		}
		w.await("none but theirs is left", func() bool { return w.tickets() == len(queue) })
		require.Equal(w, order, registriesOf(w.inQueue()))
		w.servedInOrder(holder, queue)
	})
}

// lookTwice waits until each of some calls has looked twice more, and tells whether they have while a server reads its data.
func lookTwice(queue []*member, before []int) bool {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if !slices.ContainsFunc(queue, func(m *member) bool {
			return m.net.count("obtain") < before[slices.Index(queue, m)]+2
		}) {
			return true
		}
	}
	return false
}

func registriesOf(tickets []string) (all []string) {
	for _, ticket := range tickets {
		registry, _, _ := strings.Cut(ticket, ":")
		all = append(all, registry)
	}
	return all
}

// lockedAndQueued has a lock held, and three processes wait for it.
func (w *world) lockedAndQueued(opts ...lockregistry.Option) (holder *lockregistry.Lock, queue []*member) {
	w.Helper()
	holder = w.registry().Obtain("42")
	w.lock(holder)
	for range 3 {
		queue = append(queue, w.joins(w.Context(), append(opts, lockregistry.WithPollInterval(noPoll))...))
	}
	return holder, queue
}

func looksOf(queue []*member) (looks []int) {
	for _, m := range queue {
		looks = append(looks, m.net.count("obtain"))
	}
	return looks
}

// servedInOrder checks that calls have the lock one after another, once it is free.
func (w *world) servedInOrder(holder *lockregistry.Lock, queue []*member) {
	w.Helper()
	w.unlock(holder)
	for i, m := range queue {
		require.NoError(w, <-m.result)
		for _, other := range queue[i+1:] {
			w.pending(other.result)
		}
		require.NoError(w, m.unlock(m.lock))
	}
}

// A release that is refused the queue in passing leaves the path its queue.
func TestQueue_ReleaseWithoutMemory(t *testing.T) {
	realWorlds(t, func(w *world) {
		var log journal
		r := w.registry(lockregistry.WithHandoff(0), lockregistry.WithPollInterval(noPoll), log.option())
		g, l := w.goroutine(), r.Obtain("42")
		require.NoError(w, g.lock(l))
		waits := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
		w.do("CONFIG", "SET", "maxmemory", "1")
		require.NoError(w, g.unlock(l))
		w.await("the log says what it was", func() bool { return len(log.lines("OOM")) == 1 })
		w.do("CONFIG", "SET", "maxmemory", "0")
		require.NoError(w, <-waits.result)
		again := g.starts(l)
		w.await("it waits in the queue", func() bool { return r.Stats().Tickets == 1 })
		require.NoError(w, waits.unlock(waits.lock))
		require.NoError(w, <-again)
	})
}

// A release of which the server refuses the removal says so, and the key is removed as soon as the server takes that again. It
// does not matter that the release is one that asks who else listens.
func TestQueue_AReleaseThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, begins := range passingFaults {
		for lock, c := range map[string]struct {
			layout lockregistry.Layout
			of     func(r *lockregistry.Registry) *lockregistry.Lock
		}{
			"spring":   {lockregistry.LayoutSpring, kinds["plain"]},
			"redisson": {lockregistry.LayoutRedisson, kinds["plain"]},
			"writer":   {lockregistry.LayoutRedisson, kinds["writer"]},
		} {
			t.Run(name+" "+lock, func(t *testing.T) {
				realWorlds(t, func(w *world) {
					opts := []lockregistry.Option{lockregistry.WithLayout(c.layout), lockregistry.WithPollInterval(noPoll)}
					g, l := w.goroutine(), c.of(w.registry(opts...))
					require.NoError(w, g.lock(l))
					waits := &member{goroutine: w.goroutine(), net: w.flaky()}
					waits.lock = c.of(waits.net.registry(opts...))
					waits.waits(w.Context())
					now := strings.Fields(strings.Trim(w.do("TIME"), "[]"))
					seconds, err := strconv.ParseInt(now[0], 10, 64)
					require.NoError(w, err)
					newest := strconv.FormatInt(500-1000*seconds, 10) // half a second ago, and more
					require.Equal(w, "0", w.do("ZADD", theQueue, newest, "open", newest, "wide"))
					ends := begins(w)
					err = g.unlock(l)
					if name == "OOM" { // which removes what it is told to
						require.NoError(w, err)
					} else {
						w.fails(err, lockregistry.ErrUnavailable, "unlock", theKey)
						require.Equal(w, "1", w.do("EXISTS", theKey))
					}
					began := time.Now()
					ends()
					require.NoError(w, <-waits.result)
					require.Less(w, time.Since(began), 30*time.Second, "half of the lease")
					require.NoError(w, waits.unlock(waits.lock))
				})
			})
		}
	}
}

// A release that may not tell the process to which it has given the lock gives it to nobody.
func TestQueue_AGrantThatMayNotBeTold(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				opts := []lockregistry.Option{lockregistry.WithLayout(layout), lockregistry.WithPollInterval(noPoll)}
				w.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", "&orders-channel", "&orders-channel:*",
					"&redisson_lock__channel:*")
				client := w.clientWith(w.dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				})
				g, l := w.goroutine(), w.registryOn(client, opts...).Obtain("42")
				require.NoError(w, g.lock(l))
				o := w.witness()
				waits := w.acquiring(o.registry(opts...).Obtain("42"))
				w.await("a ticket", func() bool { return w.tickets() == 1 })
				require.NoError(w, g.unlock(l))
				w.releases(w.got(waits))
				o.got("acquire", observe.HowFoundFree)
			})
		})
	}
}

// Calls that wait with the longest poll interval ask for nothing meanwhile.
func TestQueue_LongestPollInterval(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder := w.registry().Obtain("42")
		w.lock(holder)
		queue := make([]*member, 0, 4)
		for range cap(queue) {
			queue = append(queue, w.joins(w.Context(), lockregistry.WithPollInterval(math.MaxInt64)))
		}
		before := w.executed("evalsha")
		require.Never(w, func() bool { return w.executed("evalsha") > before+2*len(queue) }, 200*time.Millisecond, 10*time.Millisecond)
		w.unlock(holder)
		for _, m := range queue {
			require.NoError(w, <-m.result)
			require.NoError(w, m.unlock(m.lock))
		}
	})
}
