package waiting_test

import (
	"math"
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
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// inQueue returns the tickets of the lock of 42, first to last.
func inQueue(w *kit.World) []string {
	w.Helper()
	return strings.Fields(strings.Trim(w.Do("ZRANGEBYSCORE", kit.TheQueue, "0", "+inf"), "[]"))
}

// prompt has a waiting call look after its ticket, as a script does that has removed the ticket.
func prompt(w *kit.World, ticket string) {
	w.Helper()
	require.Equal(w, "1", w.Do(append([]string{"PUBLISH"}, prompting(w, ticket)...)...))
}

// prompting returns the channel and the message for that.
func prompting(w *kit.World, ticket string) []string {
	w.Helper()
	parts := regexp.MustCompile(`^(.*):(\d+)\|`).FindStringSubmatch(ticket)
	require.Len(w, parts, 3, ticket)
	return []string{"orders-channel@" + parts[1], "d " + parts[2] + " 0 " + kit.TheKey}
}

// Passing faults while calls wait in the queue cost no call its ticket, and the path does not lose its queue: the calls look
// again.
func TestQueue_WhatPassesCostsNobodyThePlace(t *testing.T) {
	t.Parallel()
	for name, begins := range kit.PassingFaults {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				holder := w.Registry().Obtain("42")
				w.Lock(holder)
				queue := make([]*kit.Member, 0, 3)
				for range cap(queue) {
					queue = append(queue, w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll), log.Option()))
				}
				tickets := inQueue(w)
				ends := begins(w)
				looks := w.Executed("evalsha")
				for _, ticket := range tickets {
					prompt(w, ticket)
				}
				w.Await("each looks twice", func() bool { return w.Executed("evalsha") >= looks+2*len(queue) })
				late := w.Goroutine()
				last := late.Starts(w.Registry(lockregistry.WithPollInterval(kit.NoPoll), log.Option()).Obtain("42"),
					lockregistry.Wait(time.Minute))
				w.Await("the log says what it is", func() bool { return len(log.Lines(name)) > 0 })
				ends()
				w.Await("who came meanwhile waits too", func() bool { return w.Tickets() == len(queue)+1 })
				require.Equal(w, tickets, inQueue(w)[:len(queue)])
				w.Unlock(holder)
				for i, m := range queue {
					require.NoError(w, <-m.Result)
					for _, other := range queue[i+1:] {
						w.Pending(other.Result)
					}
					w.Pending(last)
					require.NoError(w, m.Unlock(m.Lock))
				}
				require.NoError(w, <-last)
				// A server that also refuses PING (MISCONF) may have kept the last call from a connection for wake-ups, for a while.
				most := len(log.Lines("for now")) + len(log.Lines("no connection for wake-ups", name))
				require.Len(w, log.Lines(), most)
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
			kit.RealWorlds(t, func(w *kit.World) {
				holder, queue := lockedAndQueued(w)
				tickets, looks := inQueue(w), looksOf(queue)
				for _, m := range queue {
					m.Net.Fate("obtain", kit.Refused(refusal))
				}
				for _, ticket := range tickets {
					prompt(w, ticket)
				}
				for i, m := range queue {
					w.Await("it looks twice", func() bool { return m.Net.Count("obtain") >= looks[i]+2 })
				}
				for _, m := range queue {
					m.Net.Forget()
				}
				require.Equal(w, tickets, inQueue(w))
				servedInOrder(w, holder, queue)
			})
		})
	}
}

// Nor does a server that is busy with another client's script, from the moment it makes the calls look.
func TestQueue_ABusyServerCostsNobodyThePlace(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var log kit.Journal
		holder, queue := lockedAndQueued(w, log.Option())
		tickets := inQueue(w)
		w.Do("CONFIG", "SET", "lua-time-limit", "1")
		looks := looksOf(queue)
		call := []string{"EVAL", `for i = 1, #ARGV, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end while true do end`, "0"}
		for _, ticket := range tickets {
			call = append(call, prompting(w, ticket)...)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := w.Server.Do(call...)
			ended <- err
		}()
		for i, m := range queue {
			w.Await("it looks twice", func() bool { return m.Net.Count("obtain") >= looks[i]+2 })
		}
		_, err := w.Server.Do("SCRIPT", "KILL")
		require.NoError(w, err)
		require.Error(w, <-ended)
		require.GreaterOrEqual(w, w.CommandStat("evalsha", "rejected_calls"), 2*len(queue)-1, "the first script may be taken yet")
		require.Equal(w, tickets, inQueue(w))
		servedInOrder(w, holder, queue)
		require.Len(w, log.Lines("for now"), len(log.Lines()), "%s", log.Lines())
	})
}

// Nor does one that was restarted and loads its data. The calls lose their connections for messages with it, so they ask for
// tickets with new numbers, at the old places.
func TestQueue_ALoadingServerCostsNobodyThePlace(t *testing.T) {
	t.Parallel()
	kit.OnServers(t, func(t *testing.T, binary string) {
		t.Helper()
		t.Parallel()
		w := kit.RealWorld(t, redistest.StartBinary(t, binary, "--key-load-delay", "100000", "--rdbcompression", "no"))
		holder, queue := lockedAndQueued(w)
		order := registriesOf(inQueue(w))
		// While loading, a server answers after every two megabytes.
		w.Do("EVAL", `for i = 1, 40 do redis.call('SETRANGE', 'filler' .. i, 2200000, 'x') end`, "0")
		w.Do("SAVE")
		w.Server.Kill()
		looks, all := looksOf(queue), make(chan bool, 1)
		go func() {
			all <- lookTwice(queue, looks)
			_, _ = w.Server.Do("CONFIG", "SET", "key-load-delay", "0")
		}()
		w.Server.Revive(t)
		require.True(w, <-all, "each looks twice meanwhile")
		// One look of each call may have gone to the server that was killed.
		require.GreaterOrEqual(w, w.CommandStat("evalsha", "rejected_calls"), len(queue))
		for i, m := range queue {
			w.Await("it hears", func() bool { return w.Subscribers("orders-channel@"+order[i]) == 1 })
			w.Await("it has a ticket", func() bool { return m.Reg.Stats().Tickets == 1 })
		}
		w.Await("none but theirs is left", func() bool { return w.Tickets() == len(queue) })
		require.Equal(w, order, registriesOf(inQueue(w)))
		servedInOrder(w, holder, queue)
	})
}

// lookTwice waits until each of some calls has looked twice more, and reports whether they have done so in time.
func lookTwice(queue []*kit.Member, before []int) bool {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if !slices.ContainsFunc(queue, func(m *kit.Member) bool {
			return m.Net.Count("obtain") < before[slices.Index(queue, m)]+2
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
func lockedAndQueued(w *kit.World, opts ...lockregistry.Option) (holder *lockregistry.Lock, queue []*kit.Member) {
	w.Helper()
	holder = w.Registry().Obtain("42")
	w.Lock(holder)
	for range 3 {
		queue = append(queue, w.Joins(w.Context(), append(opts, lockregistry.WithPollInterval(kit.NoPoll))...))
	}
	return holder, queue
}

func looksOf(queue []*kit.Member) (looks []int) {
	for _, m := range queue {
		looks = append(looks, m.Net.Count("obtain"))
	}
	return looks
}

// servedInOrder checks that the calls get the lock one after another, once it is free.
func servedInOrder(w *kit.World, holder *lockregistry.Lock, queue []*kit.Member) {
	w.Helper()
	w.Unlock(holder)
	for i, m := range queue {
		require.NoError(w, <-m.Result)
		for _, other := range queue[i+1:] {
			w.Pending(other.Result)
		}
		require.NoError(w, m.Unlock(m.Lock))
	}
}

// A release that is temporarily refused the queue does not take the queue from the path.
func TestQueue_ReleaseWithoutMemory(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var log kit.Journal
		r := w.Registry(lockregistry.WithHandoff(0), lockregistry.WithPollInterval(kit.NoPoll), log.Option())
		g, l := w.Goroutine(), r.Obtain("42")
		require.NoError(w, g.Lock(l))
		waits := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
		w.Do("CONFIG", "SET", "maxmemory", "1")
		require.NoError(w, g.Unlock(l))
		w.Await("the log says what it was", func() bool { return len(log.Lines("OOM")) == 1 })
		w.Do("CONFIG", "SET", "maxmemory", "0")
		require.NoError(w, <-waits.Result)
		again := g.Starts(l)
		w.Await("it waits in the queue", func() bool { return r.Stats().Tickets == 1 })
		require.NoError(w, waits.Unlock(waits.Lock))
		require.NoError(w, <-again)
	})
}

// A release whose removal the server refuses returns an error, and the key is removed as soon as the server accepts that again.
// That holds even for a release that asks who else listens.
func TestQueue_AReleaseThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, begins := range kit.PassingFaults {
		for lock, c := range map[string]struct {
			layout observe.Layout
			of     func(r *lockregistry.Registry) *lockregistry.Lock
		}{
			"spring":   {observe.LayoutSpring, kit.LockKinds["plain"]},
			"redisson": {observe.LayoutRedisson, kit.LockKinds["plain"]},
			"writer":   {observe.LayoutRedisson, kit.LockKinds["writer"]},
		} {
			t.Run(name+" "+lock, func(t *testing.T) {
				kit.RealWorlds(t, func(w *kit.World) {
					opts := []lockregistry.Option{kit.WithLayout(c.layout), lockregistry.WithPollInterval(kit.NoPoll)}
					g, l := w.Goroutine(), c.of(w.Registry(opts...))
					require.NoError(w, g.Lock(l))
					waits := &kit.Member{Goroutine: w.Goroutine(), Net: w.Flaky()}
					waits.Lock = c.of(waits.Net.Registry(opts...))
					waits.Waits(w.Context())
					now := strings.Fields(strings.Trim(w.Do("TIME"), "[]"))
					seconds, err := strconv.ParseInt(now[0], 10, 64)
					require.NoError(w, err)
					newest := strconv.FormatInt(500-1000*seconds, 10) // half a second ago, or more
					require.Equal(w, "0", w.Do("ZADD", kit.TheQueue, newest, "open", newest, "wide"))
					ends := begins(w)
					err = g.Unlock(l)
					if name == "OOM" { // then servers still execute removals
						require.NoError(w, err)
					} else {
						w.Fails(err, lockregistry.ErrUnavailable, "unlock", kit.TheKey)
						require.Equal(w, "1", w.Do("EXISTS", kit.TheKey))
					}
					began := time.Now()
					ends()
					require.NoError(w, <-waits.Result)
					require.Less(w, time.Since(began), 30*time.Second, "half of the lease")
					require.NoError(w, waits.Unlock(waits.Lock))
				})
			})
		}
	}
}

// A release that may not tell the process that it granted the lock to grants it to nobody.
func TestQueue_AGrantThatMayNotBeTold(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				opts := []lockregistry.Option{kit.WithLayout(layout), lockregistry.WithPollInterval(kit.NoPoll)}
				w.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", "&orders-channel", "&orders-channel:*",
					"&redisson_lock__channel:*")
				client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				})
				g, l := w.Goroutine(), w.RegistryOn(client, opts...).Obtain("42")
				require.NoError(w, g.Lock(l))
				o := w.Witness()
				waits := w.Acquiring(o.Registry(opts...).Obtain("42"))
				w.Await("a ticket", func() bool { return w.Tickets() == 1 })
				require.NoError(w, g.Unlock(l))
				w.Release(w.Got(waits))
				o.Got("acquire", observe.HowFoundFree)
			})
		})
	}
}

// Calls that wait with the longest poll interval send nothing in the meantime.
func TestQueue_LongestPollInterval(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder := w.Registry().Obtain("42")
		w.Lock(holder)
		queue := make([]*kit.Member, 0, 4)
		for range cap(queue) {
			queue = append(queue, w.Joins(w.Context(), lockregistry.WithPollInterval(math.MaxInt64)))
		}
		before := w.Executed("evalsha")
		require.Never(w, func() bool { return w.Executed("evalsha") > before+2*len(queue) }, 200*time.Millisecond, 10*time.Millisecond)
		w.Unlock(holder)
		for _, m := range queue {
			require.NoError(w, <-m.Result)
			require.NoError(w, m.Unlock(m.Lock))
		}
	})
}

// A call learns late that it has a ticket. Meanwhile it was granted the lock, and that grant is over when it asks again: the
// message about the grant does not count for what the call has then.
func TestQueue_TheGrantOfATicketThatIsToldLate(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const lease = 750 * time.Millisecond // so that replies are late after a third of it, which makes no server suspect yet
		owner, next := w.Registry(lockregistry.WithHandoff(0)).Obtain("42"), w.Registry().Obtain("42")
		w.Lock(owner)
		m := w.Joins(w.Context()) // it listens from now on
		w.Unlock(owner)
		require.NoError(w, <-m.Result)
		require.NoError(w, m.Unlock(m.Lock))
		w.Known(m.Reg)
		w.Lock(owner)
		arrives := make(chan struct{})
		m.Net.Fates("obtain", kit.Delivered, kit.SlowReply(300*time.Millisecond), kit.HeldUp(arrives))
		m.Waits(w.Context(), lockregistry.Lease(lease))
		w.Unlock(owner) // to the ticket
		w.AwaitGone(kit.TheKey)
		w.Lock(next)
		close(arrives)
		w.Await("another ticket", func() bool { return w.Tickets() == 1 })
		<-time.After(50 * time.Millisecond)
		w.Pending(m.Result)
		w.Unlock(next)
		require.NoError(w, <-m.Result)
		require.NoError(w, m.Unlock(m.Lock))
	})
}

// A call that cannot listen tries once in each poll interval, so that it finds the windows that releases leave for it. Only
// before its first try it waits for a window that its own process may have left.
func TestQueue_WithoutItsConnectionACallTriesEachPollInterval(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		f := w.Flaky()
		client := f.Client(func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		_, giveBack := client.Dedicate() // so that there is none for messages
		defer giveBack()
		l := w.RegistryOn(client).Obtain("42")
		w.Lock(l)
		holds, waits := w.Joins(w.Context()), w.Joins(w.Context())
		w.Unlock(l)
		require.NoError(w, <-holds.Result)

		before := f.Count("obtain")
		ctx := lockregistry.ContextWithOwner(w.Context())
		got := kit.LockElsewhere(l, ctx)
		w.Pass(100 * time.Millisecond)
		require.Equal(w, before, f.Count("obtain"), "it waits first")
		w.Pass(850 * time.Millisecond)
		require.InDelta(w, before+9, f.Count("obtain"), 1)
		require.NoError(w, holds.Unlock(holds.Lock))
		require.NoError(w, <-waits.Result)
		require.NoError(w, waits.Unlock(waits.Lock))
		require.NoError(w, <-got)
		w.Released(l.Unlock(ctx))
	})
}

// A call whose user may not set an expiry waits without a queue, and leaves no queue behind.
func TestQueue_WithoutPermissionToSetAnExpiry(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var log kit.Journal
		holder, g := w.Registry().Obtain("42"), w.Goroutine()
		w.Lock(holder)
		l := w.RegistryOn(w.User("-pexpire"), lockregistry.WithPollInterval(20*time.Millisecond), log.Option()).Obtain("42")
		result := g.Starts(l)
		log.Await(w, 1, "refuses the queue")
		w.Unlock(holder)
		require.NoError(w, <-result)
		require.NoError(w, g.Unlock(l))
		require.Equal(w, "0", w.Do("EXISTS", kit.TheQueue))
	})
}
