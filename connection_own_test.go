package lockregistry_test

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
)

// A connection of its own for commands that come one at a time.

// aged is the reply of a server that tells the age of a connection, as miniredis does not.
func aged(seconds int) fate {
	text := fmt.Sprintf("id=7 age=%d idle=0 db=0", seconds)
	return fate{Lost: true, Reply: fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)}
}

// newest is the connection over which the last command of a name was sent.
func (f *flaky) newest(name string) *link {
	over := f.carriers(name)
	return over[len(over)-1]
}

func (f *flaky) isOpen(l *link) bool { return slices.Contains(f.Links(), l) }

// alone is a registry whose commands have just gone over a connection of their own, and that connection.
func (f *flaky) alone(opts ...lockregistry.Option) (*lockregistry.Registry, *link) {
	f.w.Helper()
	return f.aloneOn(f.client(oneConnection), opts...)
}

func (f *flaky) aloneOn(client rueidis.Client, opts ...lockregistry.Option) (*lockregistry.Registry, *link) {
	f.w.Helper()
	if f.w.fake {
		f.all("CLIENT", aged(0))
	}
	r := f.w.registryOn(client, opts...)
	f.w.known(r)
	return r, f.becomesAlone(r, f.newest("release"))
}

// becomesAlone locks and unlocks until the commands go over another connection than before.
func (f *flaky) becomesAlone(r *lockregistry.Registry, shared *link) *link {
	f.w.Helper()
	for begun := time.Now(); ; <-time.After(time.Millisecond) { // no longer: the commands are to come without a pause
		f.sections(r, 10)
		if f.newest("release") != shared && f.newest("obtain") == f.newest("release") {
			break
		}
		require.Less(f.w, time.Since(begun), 20*time.Second)
	}
	return f.newest("release")
}

// sections locks and unlocks as one that does nothing else.
func (f *flaky) sections(r *lockregistry.Registry, n int) {
	f.w.Helper()
	for range n {
		f.w.lock(r.Obtain("single"))
		f.w.unlock(r.Obtain("single"))
		if f.w.fake {
			f.w.settle()
		}
	}
}

// flakyWorlds are those in which the server tells the age of a connection.
func flakyWorlds(t *testing.T, test func(w *world, f *flaky)) {
	t.Helper()
	worlds(t, func(w *world) { test(w, w.flaky()) })
}

func TestOwnConnection_SingleCommandsHaveAConnection(t *testing.T) {
	flakyWorlds(t, func(w *world, f *flaky) {
		r, own := f.alone()
		before := len(f.Links())
		over := len(f.sent("release"))
		f.sections(r, 10)
		require.True(w, slices.Contains(f.carriers("release")[over:], own))
		require.Len(w, f.Links(), before)
		require.NoError(w, r.Close())
		start := time.Now()
		w.await("it is closed", func() bool { return !f.isOpen(own) })
		require.Less(w, time.Since(start), 5*time.Second, "not because it is idle")
	})
}

// Several under way at once share a connection, on which rueidis sends them together.
func TestOwnConnection_CommandsUnderWayTogetherShareAConnection(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		answer := make(chan struct{})
		f.next("obtain", heldUp(answer))
		first := w.goroutine().starts(r.Obtain("1"))
		w.settle()
		require.Same(w, own, f.newest("obtain"))
		for i := range 3 {
			require.NoError(w, w.goroutine().lock(r.Obtain(strconv.Itoa(2+i))))
			require.NotSame(w, own, f.newest("obtain"))
		}
		close(answer)
		require.NoError(w, <-first)
	})
}

// A program that locks now and then has none.
func TestOwnConnection_NoConnectionForRareCommands(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		f.all("CLIENT", aged(0))
		r := f.registry()
		w.known(r)
		before := f.count("HELLO")
		for range 100 {
			f.sections(r, 1)
			w.pass(20 * time.Millisecond)
		}
		require.Equal(w, before, f.count("HELLO"))
	})
}

// wrapper is a client that is not rueidis's own.
type wrapper struct{ rueidis.Client }

// Nor one whose client has been wrapped, which may want to see each command, or cannot tell how old a connection is.
func TestOwnConnection_NoConnectionForSingleCommands(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wrap func(rueidis.Client) rueidis.Client
		tell fate
		more int // connections
	}{
		"wrapped":  {func(c rueidis.Client) rueidis.Client { return wrapper{c} }, aged(0), 0},
		"refused":  {func(c rueidis.Client) rueidis.Client { return c }, refused("NOPERM no"), 1},
		"no age":   {func(c rueidis.Client) rueidis.Client { return c }, fate{Lost: true, Reply: "$4\r\nid=7\r\n"}, 1},
		"old ones": {func(c rueidis.Client) rueidis.Client { return c }, aged(60), 8},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				f.all("CLIENT", c.tell)
				r := w.registryOn(c.wrap(f.client(oneConnection)))
				w.known(r)
				shared, before := f.newest("release"), f.count("HELLO")
				f.sections(r, 100)
				for _, over := range f.carriers("release") {
					require.Same(w, shared, over)
				}
				require.Equal(w, before+c.more, f.count("HELLO"), "it is not tried again at once")
			})
		})
	}
}

// Connections that the client has in its pool may be in any state.
func TestOwnConnection_PooledConnectionsAreGivenBack(t *testing.T) {
	t.Parallel()
	const elsewhere = "id=7 age=0 db=5 sub=0"
	for name, says := range map[string]fate{
		"old":                 aged(60),
		"of another database": {Lost: true, Reply: fmt.Sprintf("$%d\r\n%s\r\n", len(elsewhere), elsewhere)},
	} {
		t.Run(name, func(t *testing.T) { givesBack(t, says) })
	}
}

// givesBack shows that a connection in the pool of which the server says so is not taken.
func givesBack(t *testing.T, says fate) {
	t.Helper()
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		client := f.client(oneConnection)
		pooled, giveBack := client.Dedicate()
		require.NoError(w, pooled.Do(context.Background(), client.B().Arbitrary("SELECT", "5").Build()).Error())
		old := f.newest("SELECT")
		giveBack()
		f.next("CLIENT", says)
		_, own := f.aloneOn(client)
		require.NotSame(w, old, own)
		require.True(w, f.isOpen(old))
		pooled, giveBack = client.Dedicate()
		defer giveBack()
		require.NoError(w, pooled.Do(context.Background(), client.B().Arbitrary("SELECT", "6").Build()).Error())
		require.Same(w, old, f.newest("SELECT"))
	})
}

// A pool without a connection to give delays nobody. One that it gives too late is given back.
func TestOwnConnection_NoConnectionLeftForSingleCommands(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(w *world, r *lockregistry.Registry){
		"closed": func(w *world, r *lockregistry.Registry) { require.NoError(w, r.Close()) },
		"later":  func(w *world, _ *lockregistry.Registry) { w.pass(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				f.all("CLIENT", aged(0))
				client := f.client(oneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
				_, giveBack := client.Dedicate()
				r := w.registryOn(client)
				w.known(r)
				start := time.Now()
				f.sections(r, 500)
				require.Zero(w, time.Since(start))
				meanwhile(w, r)
				giveBack()
				start = time.Now()
				w.settle()
				one, giveBack := client.Dedicate()
				require.NoError(w, one.Do(context.Background(), client.B().Ping().Build()).Error())
				require.Zero(w, time.Since(start), "it is not kept")
				giveBack()
			})
		})
	}
}

// To give a command up closes the connection: nobody else uses it. What follows goes over the shared ones, and the reply to what
// was given up is nobody's.
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
			"":                 oneConnection,
			"always pipelined": func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysPipelining = -1, true },
			"RESP2":            func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysRESP2 = -1, true },
		} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r, own := f.aloneOn(f.client(change))
					f.next("obtain", slow(180*time.Millisecond)) // the server grants, and says so when nobody listens
					ctx, cancel := ends(w.Context())
					defer cancel()
					start := time.Now()
					ok, err := r.Obtain("42").TryLock(ctx)
					require.False(w, ok)
					require.ErrorIs(w, err, ctx.Err())
					require.Less(w, time.Since(start), 150*time.Millisecond)
					require.Same(w, own, f.newest("obtain"))
					w.pass(200 * time.Millisecond)
					require.False(w, f.isOpen(own))

					w.do("SET", "orders:43", "another")
					ok, err = r.Obtain("43").TryLock(w.Context())
					require.NoError(w, err)
					require.False(w, ok, "the grant was of another lock")
					require.NotSame(w, own, f.newest("obtain"))
					w.awaitGone(theKey)
				})
			})
		}
	}
}

// The same for a script. Unlock waits for 100 ms when its context is done, and goes on over another connection.
func TestOwnConnection_GivingUpASingleScript(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		w.lock(r.Obtain("42"))
		f.next("release", silence)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		if err := r.Obtain("42").Unlock(ctx); err != nil { // else it has gone on at the same instant
			w.unavailable(err, "unlock")
		}
		require.Equal(w, 100*time.Millisecond, time.Since(start))
		w.awaitGone(theKey)
		over := f.carriers("release")
		require.Same(w, own, over[len(over)-2])
		require.NotSame(w, own, over[len(over)-1])
	})
}

// The same on a server that is frozen.
func TestOwnConnection_GivingUpASingleCommandOnAFrozenServer(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		r, _ := f.alone()
		took := time.Hour
		for range 5 { // this machine may be busy
			f.becomesAlone(r, nil)
			w.server.Freeze()
			ctx, cancel := context.WithCancel(w.Context())
			start := time.Now()
			time.AfterFunc(50*time.Millisecond, cancel)
			err := r.Obtain("42").Lock(ctx)
			took = min(took, time.Since(start)-50*time.Millisecond)
			w.server.Thaw()
			require.ErrorIs(w, err, context.Canceled)
			w.awaitGone(theKey)
		}
		require.Less(w, took, 100*time.Millisecond)
	})
}

// The connection breaks while a command is under way: as on every other, nobody knows the outcome.
func TestOwnConnection_TheConnectionOfASingleCommandBreaks(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"before": cut, "after": cutAfter} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r, own := f.alone()
				f.next("obtain", what)
				w.unavailable(r.Obtain("42").Lock(w.Context(), lockregistry.Lease(time.Hour)), "lock")
				require.Same(w, own, f.newest("obtain"))
				w.awaitGone(theKey)
				w.lock(r.Obtain("42"))
				require.NotSame(w, own, f.newest("obtain"))
			})
		})
	}
}

// It breaks while nobody uses it: no call fails.
func TestOwnConnection_AnIdleConnectionForSingleCommandsBreaks(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		for range 10 {
			w.pass(130 * time.Millisecond)
			own.Cut()
			f.sections(r, 20)
			own = f.becomesAlone(r, own)
		}
	})
}

// One that has been idle for a while is used again once it has answered.
func TestOwnConnection_AnIdleConnectionForSingleCommandsIsAsked(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		w.pass(900 * time.Millisecond)
		before := f.count("HELLO")
		f.sections(r, 1)
		require.NotSame(w, own, f.newest("obtain"))
		require.NotSame(w, own, f.newest("release"))
		f.sections(r, 9)
		require.Same(w, own, f.newest("release"))
		require.Equal(w, before, f.count("HELLO"))

		w.pass(11 * time.Second)
		require.False(w, f.isOpen(own))
	})
}

// It does not last: rueidis does not renew credentials on it.
func TestOwnConnection_AConnectionForSingleCommandsIsReplaced(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		f.all("CLIENT", aged(3600)) // the shared ones are older: they say nothing against it
		uses := func(d time.Duration) {
			for start := time.Now(); time.Since(start) < d; w.pass(time.Second) {
				f.sections(r, 10)
			}
		}
		uses(28 * time.Second)
		require.True(w, f.isOpen(own))
		require.Same(w, own, f.newest("release"))
		uses(3 * time.Second)
		require.False(w, f.isOpen(own))
	})
}

// Every second a command goes over the shared connections: one that obtains a lock, since nobody waits for that lock yet.
func TestOwnConnection_ACommandGoesOverTheSharedConnections(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		f.all("CLIENT", aged(3600)) // the shared ones are older
		others := func(name string, from int) (n int) {
			for _, over := range f.carriers(name)[from:] {
				if over != own {
					n++
				}
			}
			return n
		}
		w.pass(time.Millisecond / 2) // so that no command is sent at the instant at which the connection is looked after
		obtained, released := f.count("obtain"), f.count("release")
		l := r.Obtain("single")
		for start := time.Now(); time.Since(start) < 10*time.Second; {
			w.lock(l)
			w.pass(9 * time.Millisecond) // so soon that the shard is still healthy
			w.unlock(l)
			w.pass(9 * time.Millisecond)
		}
		require.InDelta(w, 10, others("obtain", obtained), 1)
		require.Zero(w, others("release", released))

		w.lock(l) // from now on no call obtains anything
		renewed := f.count("renew")
		for start := time.Now(); time.Since(start) < 10*time.Second; w.pass(9 * time.Millisecond) {
			require.NoError(w, l.Renew(w.Context(), time.Minute))
		}
		require.GreaterOrEqual(w, others("renew", renewed), 9)
		w.unlock(l)
	})
}

// A few commands over the shared connections suffice for a client that was closed to be noticed.
func TestOwnConnection_SingleCommandsEndWithTheClient(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		client := f.client(oneConnection)
		r, own := f.aloneOn(client)
		client.Close()
		var err error
		start := time.Now()
		for err == nil && time.Since(start) < 10*time.Second {
			l := r.Obtain("single")
			if err = l.Lock(w.Context()); err == nil {
				err = l.Unlock(w.Context())
			}
			w.pass(5 * time.Millisecond)
		}
		require.ErrorIs(w, err, rueidis.ErrClosing)
		require.Less(w, time.Since(start), 3*time.Second) // an Unlock that is not answered takes one
		w.settle()
		require.False(w, f.isOpen(own))
	})
}

// An answer that comes late makes the shard suspect, and the connection is given up with the others.
func TestOwnConnection_ALateAnswerToASingleCommand(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		renewals, before := len(f.sent("renew")), f.Links()
		f.next("obtain", slow(late))
		w.lock(r.Obtain("42"))
		require.Same(w, own, f.newest("obtain"))
		over := f.carriers("renew")[renewals:]
		require.Len(w, over, 1, "it is confirmed")
		require.False(w, slices.Contains(before, over[0]), "over a connection made since")
		w.settle()
		require.False(w, f.isOpen(own))
		f.sections(r, 200)
		require.NotSame(w, own, f.newest("release"))
		require.False(w, slices.Contains(before, f.newest("release")), "so are all that were there")
	})
}

// A trouble on a shared connection concerns this one, too.
func TestOwnConnection_TheSharedConnectionsBreak(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		w.pass(20 * time.Millisecond) // the next one has a goroutine, and is sent over the shared one
		f.next("obtain", cut)
		w.unavailable(r.Obtain("42").Lock(w.Context()), "lock")
		require.NotSame(w, own, f.newest("obtain"))
		w.settle()
		require.False(w, f.isOpen(own))
	})
}

// Close does not end a command that is under way, and leaves no connection behind.
func TestOwnConnection_CloseDuringASingleCommand(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		w.lock(r.Obtain("42"))
		answer := make(chan struct{})
		f.next("release", heldUp(answer))
		unlocked := make(chan error, 1)
		owner := lockregistry.NewOwner(w.Context())
		require.NoError(w, r.Obtain("43").Lock(owner))
		go func() { unlocked <- r.Obtain("43").Unlock(owner) }()
		w.settle()
		require.Same(w, own, f.newest("release"))
		closed := make(chan error, 1)
		go func() { closed <- r.Close() }()
		w.settle()
		require.True(w, f.isOpen(own))
		close(answer)
		require.NoError(w, <-unlocked)
		require.NoError(w, <-closed)
		w.settle()
		require.False(w, f.isOpen(own))
		require.True(w, w.free("orders:43"))
	})
}

// A call that may wait for longer than rueidis waits on a silent connection takes the shared ones, where it notices.
func TestOwnConnection_ALongCommandTimeout(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		f.all("CLIENT", aged(0))
		r := w.registryOn(f.client(oneConnection), lockregistry.WithCommandTimeout(time.Minute))
		w.known(r)
		shared := f.newest("obtain")
		f.sections(r, 200)
		require.Same(w, shared, f.newest("obtain"))
	})
}

// The same when an answer would have been late, for a short lease: no call after that uses it.
func TestOwnConnection_TheConnectionOfASingleCommandBreaksLate(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, own := f.alone()
		until := make(chan struct{})
		time.AfterFunc(150*time.Millisecond, func() { close(until) })
		f.next("obtain", fate{Held: netfault.HoldUntil(until), Cut: netfault.CutRequest(0)})
		w.unavailable(r.Obtain("42").Lock(w.Context(), lockregistry.Lease(300*time.Millisecond)), "lock")
		require.Same(w, own, f.newest("obtain"))
		f.sections(r, 20)
	})
}

// A shared connection that is younger may lead elsewhere: the one for single commands is given up within a moment. One that is
// older says nothing.
func TestOwnConnection_ASharedConnectionIsMadeAnew(t *testing.T) {
	t.Parallel()
	for age, stays := range map[int]bool{0: false, 3600: true} {
		t.Run(strconv.Itoa(age), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r, own := f.alone()
				f.all("CLIENT", aged(age))
				for start := time.Now(); time.Since(start) < 3500*time.Millisecond; w.pass(9 * time.Millisecond) {
					f.sections(r, 1)
				}
				require.Equal(w, stays, f.isOpen(own))
			})
		})
	}
}
