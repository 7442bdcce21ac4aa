package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The separate connection for single commands, which come one at a time.

// aged is the reply of a server that reports the age of a connection, which miniredis does not.
func aged(seconds int) kit.Fate {
	text := fmt.Sprintf("id=7 age=%d idle=0 db=0", seconds)
	return kit.Fate{Lost: true, Reply: fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)}
}

// newest is the connection over which the last command of a name was sent.
func newest(f *kit.Flaky, name string) *kit.Link {
	over := carriers(f, name)
	return over[len(over)-1]
}

func isOpen(f *kit.Flaky, l *kit.Link) bool { return slices.Contains(f.Links(), l) }

// alone returns a registry whose last commands went over a connection of their own, and that connection.
func alone(f *kit.Flaky, opts ...lockregistry.Option) (*lockregistry.Registry, *kit.Link) {
	f.W.Helper()
	return aloneOn(f, f.Client(kit.OneConnection), opts...)
}

func aloneOn(f *kit.Flaky, client rueidis.Client, opts ...lockregistry.Option) (*lockregistry.Registry, *kit.Link) {
	f.W.Helper()
	if f.W.Fake {
		f.Fate("CLIENT", aged(0))
	}
	r := f.W.RegistryOn(client, opts...)
	f.W.Known(r)
	return r, becomesAlone(f, r, newest(f, "release"))
}

// becomesAlone locks and unlocks until the commands go over another connection than the shared one.
func becomesAlone(f *kit.Flaky, r *lockregistry.Registry, shared *kit.Link) *kit.Link {
	f.W.Helper()
	for begun := time.Now(); ; <-time.After(time.Millisecond) { // no longer than this: the commands must follow without a pause
		if f.W.Fake {
			singleSections(f, r, 10)
		} else {
			inSpiteOfLoad(f, r, 10)
		}
		if newest(f, "release") != shared && newest(f, "obtain") == newest(f, "release") {
			break
		}
		require.Less(f.W, time.Since(begun), time.Minute) // on a busy machine commands rarely come without a pause
	}
	return newest(f, "release")
}

// inSpiteOfLoad is singleSections on a machine so busy that replies may be late.
func inSpiteOfLoad(f *kit.Flaky, r *lockregistry.Registry, n int) {
	f.W.Helper()
	for range n {
		err := r.Do(f.W.Context(), "single", kit.DoNothing, lockregistry.Wait(time.Minute))
		if !kit.TookLong(err) {
			require.NoError(f.W, err)
		}
	}
}

// singleSections locks and unlocks in one goroutine that does nothing else.
func singleSections(f *kit.Flaky, r *lockregistry.Registry, n int) {
	f.W.Helper()
	for range n {
		f.W.Lock(r.Obtain("single"))
		f.W.Unlock(r.Obtain("single"))
		if f.W.Fake {
			f.W.Settle()
		}
	}
}

// flakyWorlds are worlds with a network that can fail.
func flakyWorlds(t *testing.T, test func(w *kit.World, f *kit.Flaky)) {
	t.Helper()
	kit.Worlds(t, func(w *kit.World) { test(w, w.Flaky()) })
}

func TestOwnConnection_SingleCommandsHaveAConnection(t *testing.T) {
	flakyWorlds(t, func(w *kit.World, f *kit.Flaky) {
		r, own := alone(f)
		if w.Fake { // on a busy machine a late reply would move commands to another connection
			before := len(f.Links())
			over := len(f.Sent("release"))
			singleSections(f, r, 10)
			require.True(w, slices.Contains(carriers(f, "release")[over:], own))
			require.Len(w, f.Links(), before)
		}
		require.NoError(w, r.Close())
		start := time.Now()
		w.Await("it is closed", func() bool { return !isOpen(f, own) })
		require.Less(w, time.Since(start), 5*time.Second, "not because it is idle")
	})
}

// Commands that are under way at the same time share a connection, on which rueidis sends them together.
func TestOwnConnection_CommandsUnderWayTogetherShareAConnection(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		answer := make(chan struct{})
		f.Fates("obtain", kit.HeldUp(answer))
		first := w.Goroutine().Starts(r.Obtain("1"))
		w.Settle()
		require.Same(w, own, newest(f, "obtain"))
		for i := range 3 {
			require.NoError(w, w.Goroutine().Lock(r.Obtain(strconv.Itoa(2+i))))
			require.NotSame(w, own, newest(f, "obtain"))
		}
		close(answer)
		require.NoError(w, <-first)
	})
}

// A program that locks now and then has no such connection.
func TestOwnConnection_NoConnectionForRareCommands(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		f.Fate("CLIENT", aged(0))
		r := f.Registry()
		w.Known(r)
		before := f.Count("HELLO")
		for range 100 {
			singleSections(f, r, 1)
			w.Pass(20 * time.Millisecond)
		}
		require.Equal(w, before, f.Count("HELLO"))
	})
}

// Neither has one with a wrapped client, which may want to see each command, or with a server that does not tell the age of a
// connection.
func TestOwnConnection_NoConnectionForSingleCommands(t *testing.T) {
	t.Parallel()
	const refusal = "NOPERM User x has no permissions to run the 'client|info' command"
	for name, c := range map[string]struct {
		wrap func(rueidis.Client) rueidis.Client
		tell kit.Fate
		more int // connections
	}{
		"wrapped":  {func(c rueidis.Client) rueidis.Client { return kit.Wrapper{Client: c} }, aged(0), 0},
		"refused":  {func(c rueidis.Client) rueidis.Client { return c }, kit.Refused(refusal), 0},
		"no age":   {func(c rueidis.Client) rueidis.Client { return c }, kit.Fate{Lost: true, Reply: "$4\r\nid=7\r\n"}, 0},
		"old ones": {func(c rueidis.Client) rueidis.Client { return c }, aged(60), 8},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				f.Fate("CLIENT", c.tell)
				r := w.RegistryOn(c.wrap(f.Client(kit.OneConnection)))
				w.Known(r)
				shared, before := newest(f, "release"), f.Count("HELLO")
				singleSections(f, r, 100)
				for _, over := range carriers(f, "release") {
					require.Same(w, shared, over)
				}
				require.Equal(w, before+c.more, f.Count("HELLO"), "it is not tried again at once")
			})
		})
	}
}

// Connections in the client's pool may be in any state; unsuitable ones are given back.
func TestOwnConnection_PooledConnectionsAreGivenBack(t *testing.T) {
	t.Parallel()
	const elsewhere = "id=7 age=0 db=5 sub=0"
	for name, says := range map[string]kit.Fate{
		"old":                 aged(60),
		"of another database": {Lost: true, Reply: fmt.Sprintf("$%d\r\n%s\r\n", len(elsewhere), elsewhere)},
	} {
		t.Run(name, func(t *testing.T) { givesBack(t, says) })
	}
}

// givesBack checks that a pooled connection about which the server says this is not used.
func givesBack(t *testing.T, says kit.Fate) {
	t.Helper()
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		client := f.Client(kit.OneConnection)
		pooled, giveBack := client.Dedicate()
		require.NoError(w, pooled.Do(context.Background(), client.B().Arbitrary("SELECT", "5").Build()).Error())
		old := newest(f, "SELECT")
		giveBack()
		f.Fates("CLIENT", aged(0), says) // the first reply is about the shared connection
		_, own := aloneOn(f, client)
		require.NotSame(w, old, own)
		require.True(w, isOpen(f, old))
		w.Pass(time.Second)
		pooled, giveBack = client.Dedicate()
		defer giveBack()
		require.NoError(w, pooled.Do(context.Background(), client.B().Arbitrary("SELECT", "6").Build()).Error())
		require.Same(w, old, newest(f, "SELECT"))
	})
}

// A pool without a free connection delays nobody. A connection that it hands out too late is given back.
func TestOwnConnection_NoConnectionLeftForSingleCommands(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(w *kit.World, r *lockregistry.Registry){
		"closed": func(w *kit.World, r *lockregistry.Registry) { require.NoError(w, r.Close()) },
		"later":  func(w *kit.World, _ *lockregistry.Registry) { w.Pass(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				f.Fate("CLIENT", aged(0))
				client := f.Client(kit.OneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
				_, giveBack := client.Dedicate()
				r := w.RegistryOn(client)
				w.Known(r)
				start := time.Now()
				singleSections(f, r, 500)
				require.Zero(w, time.Since(start))
				meanwhile(w, r)
				giveBack()
				start = time.Now()
				w.Settle()
				one, giveBack := client.Dedicate()
				require.NoError(w, one.Do(context.Background(), client.B().Ping().Build()).Error())
				require.Zero(w, time.Since(start), "it is not kept")
				giveBack()
			})
		})
	}
}

// Giving up a command closes its connection, so that nobody else uses it. The next commands go over shared connections, and the
// reply to the abandoned command reaches nobody.
func TestOwnConnection_GivingUpASingleCommand(t *testing.T) {
	t.Parallel()
	const short = 30 * time.Millisecond
	for name, ends := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, short)
		},
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(short, cancel)
			return ctx, cancel
		},
	} {
		for mode, change := range map[string]func(*rueidis.ClientOption){
			"":                 kit.OneConnection,
			"always pipelined": func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysPipelining = -1, true },
			"RESP2":            func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysRESP2 = -1, true },
		} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r, own := aloneOn(f, f.Client(change))
					f.Fates("obtain", kit.SlowReply(180*time.Millisecond)) // the server grants, and replies when nobody listens any more
					ctx, cancel := ends(w.Context())
					defer cancel()
					start := time.Now()
					ok, err := r.Obtain("42").TryLock(ctx)
					require.False(w, ok)
					require.ErrorIs(w, err, ctx.Err())
					require.Less(w, time.Since(start), 150*time.Millisecond)
					require.Same(w, own, newest(f, "obtain"))
					w.Pass(200 * time.Millisecond)
					require.False(w, isOpen(f, own))

					w.Do("SET", "orders:43", "another")
					ok, err = r.Obtain("43").TryLock(w.Context())
					require.NoError(w, err)
					require.False(w, ok, "the grant was of another lock")
					require.NotSame(w, own, newest(f, "obtain"))
					w.AwaitGone(kit.TheKey)
				})
			})
		}
	}
}

// The same for a script. Unlock waits for 100 ms when its context is done, and continues over another connection.
func TestOwnConnection_GivingUpASingleScript(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		w.Lock(r.Obtain("42"))
		f.Fates("release", kit.Silence)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		if err := r.Obtain("42").Unlock(ctx); err != nil { // otherwise it has continued at the same instant
			w.Unavailable(err, "unlock")
		}
		require.Equal(w, 100*time.Millisecond, time.Since(start))
		w.AwaitGone(kit.TheKey)
		over := carriers(f, "release")
		require.Same(w, own, over[len(over)-2])
		require.NotSame(w, own, over[len(over)-1])
	})
}

// The same on a server that is frozen.
func TestOwnConnection_GivingUpASingleCommandOnAFrozenServer(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		r, _ := alone(f)
		took := time.Hour
		for range 5 { // the machine may be busy
			becomesAlone(f, r, nil)
			w.Server.Freeze()
			ctx, cancel := context.WithCancel(w.Context())
			start := time.Now()
			time.AfterFunc(50*time.Millisecond, cancel)
			err := r.Obtain("42").Lock(ctx)
			took = min(took, time.Since(start)-50*time.Millisecond)
			w.Server.Thaw()
			require.ErrorIs(w, err, context.Canceled)
			w.AwaitGone(kit.TheKey)
		}
		require.Less(w, took, 100*time.Millisecond)
	})
}

// When the connection breaks while a command is under way, the outcome is unknown, as on any other connection.
func TestOwnConnection_TheConnectionOfASingleCommandBreaks(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{"before": kit.Cut, "after": kit.CutAfter} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r, own := alone(f)
				f.Fates("obtain", what)
				w.Unavailable(r.Obtain("42").Lock(w.Context(), lockregistry.Lease(time.Hour)), "lock")
				require.Same(w, own, newest(f, "obtain"))
				w.AwaitGone(kit.TheKey)
				w.Lock(r.Obtain("42"))
				require.NotSame(w, own, newest(f, "obtain"))
			})
		})
	}
}

// When the connection breaks while it is idle, no call fails.
func TestOwnConnection_AnIdleConnectionForSingleCommandsBreaks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		for range 10 {
			w.Pass(130 * time.Millisecond)
			own.Cut()
			singleSections(f, r, 20)
			own = becomesAlone(f, r, own)
		}
	})
}

// An idle connection is used again only after it has answered.
func TestOwnConnection_AnIdleConnectionForSingleCommandsIsAsked(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		w.Pass(900 * time.Millisecond)
		before := f.Count("HELLO")
		singleSections(f, r, 1)
		require.NotSame(w, own, newest(f, "obtain"))
		require.NotSame(w, own, newest(f, "release"))
		singleSections(f, r, 9)
		require.Same(w, own, newest(f, "release"))
		require.Equal(w, before, f.Count("HELLO"))

		w.Pass(11 * time.Second)
		require.False(w, isOpen(f, own))
	})
}

// The connection is replaced after a while: rueidis does not renew credentials on it.
func TestOwnConnection_AConnectionForSingleCommandsIsReplaced(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		f.Fate("CLIENT", aged(3600)) // the shared ones are older, and are no reason to replace it
		uses := func(d time.Duration) {
			for start := time.Now(); time.Since(start) < d; w.Pass(time.Second) {
				singleSections(f, r, 10)
			}
		}
		uses(28 * time.Second)
		require.True(w, isOpen(f, own))
		require.Same(w, own, newest(f, "release"))
		uses(3 * time.Second)
		require.False(w, isOpen(f, own))
	})
}

// Once a second a command goes over a shared connection, preferably one that obtains a lock, since nobody waits for that lock
// yet.
func TestOwnConnection_ACommandGoesOverTheSharedConnections(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		f.Fate("CLIENT", aged(3600)) // the shared ones are older
		others := func(name string, from int) (n int) {
			for _, over := range carriers(f, name)[from:] {
				if over != own {
					n++
				}
			}
			return n
		}
		w.Pass(time.Millisecond / 2) // so that no command is sent at the very moment at which the connection is checked
		obtained, released := f.Count("obtain"), f.Count("release")
		l := r.Obtain("single")
		for start := time.Now(); time.Since(start) < 10*time.Second; {
			w.Lock(l)
			w.Pass(9 * time.Millisecond) // soon enough for the node to be healthy still
			w.Unlock(l)
			w.Pass(9 * time.Millisecond)
		}
		require.InDelta(w, 10, others("obtain", obtained), 1)
		require.Zero(w, others("release", released))

		w.Lock(l) // from here on no call obtains a lock
		renewed := f.Count("renew")
		for start := time.Now(); time.Since(start) < 10*time.Second; w.Pass(9 * time.Millisecond) {
			require.NoError(w, l.Renew(w.Context(), time.Minute))
		}
		require.GreaterOrEqual(w, others("renew", renewed), 9)
		w.Unlock(l)
	})
}

// A few commands over the shared connections are enough to notice that the client was closed.
func TestOwnConnection_SingleCommandsEndWithTheClient(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		client := f.Client(kit.OneConnection)
		r, own := aloneOn(f, client)
		client.Close()
		var err error
		start := time.Now()
		for err == nil && time.Since(start) < 10*time.Second {
			l := r.Obtain("single")
			if err = l.Lock(w.Context()); err == nil {
				err = l.Unlock(w.Context())
			}
			w.Pass(5 * time.Millisecond)
		}
		require.ErrorIs(w, err, rueidis.ErrClosing)
		require.Less(w, time.Since(start), 3*time.Second) // an Unlock without a reply takes one second
		w.Settle()
		require.False(w, isOpen(f, own))
	})
}

// A late reply makes the node suspect, and the connection is given up like the others.
func TestOwnConnection_ALateAnswerToASingleCommand(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		renewals, before := len(f.Sent("renew")), f.Links()
		f.Fates("obtain", kit.SlowReply(kit.LateAfter))
		w.Lock(r.Obtain("42"))
		require.Same(w, own, newest(f, "obtain"))
		over := carriers(f, "renew")[renewals:]
		require.Len(w, over, 1, "it is confirmed")
		require.False(w, slices.Contains(before, over[0]), "over a connection made since")
		w.Settle()
		require.False(w, isOpen(f, own))
		singleSections(f, r, 200)
		require.NotSame(w, own, newest(f, "release"))
		require.False(w, slices.Contains(before, newest(f, "release")), "so are all that were there")
	})
}

// A failure on a shared connection ends this one, too.
func TestOwnConnection_TheSharedConnectionsBreak(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		w.Pass(20 * time.Millisecond) // after a pause, the next command goes over a shared connection
		f.Fates("obtain", kit.Cut)
		w.Unavailable(r.Obtain("42").Lock(w.Context()), "lock")
		require.NotSame(w, own, newest(f, "obtain"))
		w.Settle()
		require.False(w, isOpen(f, own))
	})
}

// Close does not interrupt a command that is under way, and leaves no connection behind.
func TestOwnConnection_CloseDuringASingleCommand(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		w.Lock(r.Obtain("42"))
		answer := make(chan struct{})
		f.Fates("release", kit.HeldUp(answer))
		unlocked := make(chan error, 1)
		owner := lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, r.Obtain("43").Lock(owner))
		go func() { unlocked <- r.Obtain("43").Unlock(owner) }()
		w.Settle()
		require.Same(w, own, newest(f, "release"))
		closed := make(chan error, 1)
		go func() { closed <- r.Close() }()
		w.Settle()
		require.True(w, isOpen(f, own))
		close(answer)
		require.NoError(w, <-unlocked)
		require.NoError(w, <-closed)
		w.Settle()
		require.False(w, isOpen(f, own))
		require.True(w, w.Free("orders:43"))
	})
}

// A call that may wait longer than rueidis waits on a silent connection uses the shared connections, where rueidis notices
// silence.
func TestOwnConnection_ALongCommandTimeout(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		f.Fate("CLIENT", aged(0))
		r := w.RegistryOn(f.Client(kit.OneConnection), lockregistry.WithCommandTimeout(time.Minute))
		w.Known(r)
		shared := newest(f, "obtain")
		singleSections(f, r, 200)
		require.Same(w, shared, newest(f, "obtain"))
	})
}

// The same when the break comes after the time at which a reply would have been late, for a short lease: no later call uses the
// connection.
func TestOwnConnection_TheConnectionOfASingleCommandBreaksLate(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, own := alone(f)
		until := make(chan struct{})
		time.AfterFunc(150*time.Millisecond, func() { close(until) })
		f.Fates("obtain", kit.Fate{Held: netfault.HoldUntil(until), Cut: netfault.CutRequest(0)})
		w.Unavailable(r.Obtain("42").Lock(w.Context(), lockregistry.Lease(300*time.Millisecond)), "lock")
		require.Same(w, own, newest(f, "obtain"))
		singleSections(f, r, 20)
	})
}

// A shared connection that is younger may lead elsewhere: then the one for single commands is soon given up. An older one is no
// reason to.
func TestOwnConnection_ASharedConnectionIsMadeAnew(t *testing.T) {
	t.Parallel()
	for age, stays := range map[int]bool{0: false, 3600: true} {
		t.Run(strconv.Itoa(age), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r, own := alone(f)
				f.Fate("CLIENT", aged(age))
				for start := time.Now(); time.Since(start) < 3500*time.Millisecond; w.Pass(9 * time.Millisecond) {
					singleSections(f, r, 1)
				}
				require.Equal(w, stays, isOpen(f, own))
			})
		})
	}
}
