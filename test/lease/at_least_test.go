package lease_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A path that is released early stays taken for the rest of the time, and is free after that, to the millisecond.
func TestAtLeast(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(10*time.Second+time.Microsecond))
		mine := w.Holder(kit.TheKey)
		w.Pass(3 * time.Second)
		w.Release(h)
		require.Equal(w, mine+":atleast", w.Holder(kit.TheKey))
		require.Equal(w, 7*time.Second+time.Millisecond, w.Pttl(kit.TheKey))
		w.Fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.TheKey)
		require.False(w, r.Obtain("42").IsHeld())
		w.RefusedBy(r, other)
		require.False(w, w.TryElsewhere(r.Obtain("42")))
		w.Pass(7*time.Second - time.Millisecond)
		w.RefusedBy(r, other)
		w.Pass(3 * time.Millisecond)
		w.Release(w.Acquires(other.Obtain("42"), lockregistry.NoWait()))
		w.Release(w.Acquires(r.Obtain("42"), lockregistry.NoWait()))
		w.LeftNothing()
	})
}

// A path that is released late is free at once. After a crash the ordinary lease applies.
func TestAtLeast_ThatIsOver(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		w.Lock(r.Obtain("42"), lockregistry.AtLeast(time.Second), lockregistry.Lease(5*time.Second))
		require.Equal(w, 5*time.Second, w.Pttl(kit.TheKey))
		w.Pass(time.Second)
		w.Unlock(r.Obtain("42"))
		w.LeftNothing()

		w.Lock(r.Obtain("42"), lockregistry.AtLeast(time.Hour), lockregistry.Lease(5*time.Second))
		w.Pass(5 * time.Second)
		w.Release(w.Acquires(other.Obtain("42"), lockregistry.NoWait()))
		w.Fails(r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		w.LeftNothing()
	})
}

// AtLeast may be longer than the lease, and works for all calls.
func TestAtLeast_ForAllCalls(t *testing.T) {
	t.Parallel()
	const atLeast = 2 * time.Minute
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		for _, call := range kit.LockingCalls {
			require.NoError(w, call(w.Context(), r, lockregistry.AtLeast(atLeast), lockregistry.Lease(time.Second)))
			if r.Obtain("42").IsHeld() {
				w.Unlock(r.Obtain("42"))
			}
			require.Equal(w, atLeast, w.Pttl(kit.TheKey))
			w.RefusedBy(r, other)
			w.Pass(atLeast)
		}
		enough := errors.New("enough")
		err := r.Do(w.Context(), "42", func(context.Context) error { return enough }, lockregistry.AtLeast(atLeast))
		require.Equal(w, enough, err)
		require.Equal(w, atLeast, w.Pttl(kit.TheKey))
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
		w.Release(w.Acquires(r.Obtain("42"), lockregistry.NoWait()))
	})
}

func TestAtLeast_IsRefused(t *testing.T) {
	r := kit.UnusedRegistry(t)
	for op, locks := range kit.WaysToLock(r, "42") {
		for _, d := range []time.Duration{0, -time.Second} {
			kit.Refuses(t, locks(t.Context(), lockregistry.AtLeast(d)), op, "orders:42", "): the duration must be positive")
		}
	}
	for _, l := range []*lockregistry.Lock{r.ReadWrite("42").Reader(), r.ReadWrite("42").Writer()} {
		_, err := l.Acquire(t.Context(), lockregistry.AtLeast(time.Second))
		kit.Refuses(t, err, "acquire", "orders:42", "AtLeast: it is for plain locks only")
		kit.Refuses(t, l.Lock(t.Context(), lockregistry.AtLeast(time.Second)), "lock", "orders:42", "AtLeast: it is for plain")
	}
}

// An owner cannot ask for AtLeast, and its refused calls do not count as further locks.
func TestAtLeast_ForAnOwner(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		const why = "AtLeast: the owner already holds the lock"
		kit.Refuses(w.T, l.Lock(w.Context(), lockregistry.AtLeast(time.Hour)), "lock", kit.TheKey, why)
		ctx := l.Context(w.Context())
		kit.Refuses(w.T, kit.Elsewhere(func() error {
			return r.Do(ctx, "42", kit.DoNothing, lockregistry.AtLeast(time.Hour))
		}), "do", kit.TheKey, why)
		w.Unlock(l)
		w.LeftNothing()
	})
}

// A call that waits in this process is not handed the lock before the time is over, nor does any other call get it. Then the
// one that comes first gets it.
func TestAtLeast_WaitingForAPathThatStaysTaken(t *testing.T) {
	t.Parallel()
	const least = 500 * time.Millisecond
	modes := maps.Clone(kit.Wakeups)
	modes["poll"] = kit.WakeupPoll
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			kit.BothLayouts(t, kit.RealWorlds, func(w *kit.World, r, other *lockregistry.Registry) {
				began := time.Now()
				h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(least), lockregistry.Lease(time.Minute))
				there := w.Acquiring(other.Obtain("42"))
				if mode != kit.WakeupPoll {
					w.Await("a ticket", func() bool { return w.Tickets() == 1 })
				}
				here := w.Acquiring(r.Obtain("42"))
				w.Await("it waits", func() bool { return kit.Contended(r.Obtain("42")) })
				w.Release(h)
				released := time.Since(began)
				first, second := there, here
				select {
				case err := <-here.Err:
					require.NoError(w, err)
					first, second = here, there
				case err := <-there.Err:
					require.NoError(w, err)
				}
				got := time.Since(began)
				w.Log(released, got)
				require.Greater(w, got, least-5*time.Millisecond)
				require.Less(w, got, max(least, released)+kit.AtOnce)
				// A release for which nothing is left of the time may hand the lock over within the process, and a call that asks when the
				// time is over may come before the first ticket.
				late := released >= least/2
				require.True(w, first == there || mode == kit.WakeupPoll || late, "its ticket is the first")
				w.Release(first.Hold)
				w.Release(w.Got(second))
				w.LeftNothing()
			}, kit.WithWakeup(mode), lockregistry.WithHandoff(time.Hour))
		})
	}
}

// The same when processes keep getting the lock from each other, and releases are quick.
func TestAtLeast_AmongManyProcesses(t *testing.T) {
	t.Parallel()
	const least = 300 * time.Millisecond
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				path := func() *lockregistry.Lock { return w.Registry(kit.WithLayout(layout)).Obtain("42") }
				first := w.Acquires(path())
				second := w.Acquiring(path(), lockregistry.AtLeast(least))
				w.Await("a ticket", func() bool { return w.Tickets() == 1 })
				third := w.Acquiring(path())
				w.Await("another one", func() bool { return w.Tickets() == 2 })
				began := time.Now()
				w.Release(first)
				w.Release(w.Got(second))
				last := w.Got(third)
				require.Greater(w, time.Since(began), least-5*time.Millisecond)
				w.Release(last)
			})
		})
	}
}

// The next owner's time in this process counts from the handoff, and it hands the lock on only when that time is over.
func TestAtLeast_AfterAHandoff(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, _ *lockregistry.Registry) {
		first := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Millisecond))
		value := w.Holder(kit.TheKey)
		waits := w.Acquiring(r.Obtain("42"), lockregistry.AtLeast(40*time.Millisecond))
		w.Settle()
		w.Pass(20 * time.Millisecond)
		w.Release(first)
		second := w.Got(waits)
		require.Equal(w, value, w.Holder(kit.TheKey), "it was handed over: the time of the first was over")
		next := w.Acquiring(r.Obtain("42"))
		w.Settle()
		w.Pass(30 * time.Millisecond)
		w.Release(second)
		w.Settle()
		w.Pending(next.Err)
		require.Equal(w, value+":atleast", w.Holder(kit.TheKey))
		require.Equal(w, 10*time.Millisecond, w.Pttl(kit.TheKey))
		third := w.Got(next)
		w.Release(third)
		w.LeftNothing()
	})
}

// A hold that is handed to an owner without AtLeast does not keep the path for it.
func TestAtLeast_IsNotHandedOver(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.Lock(l)
		second := w.Acquiring(l, lockregistry.AtLeast(time.Second))
		w.Settle()
		w.Unlock(l)
		h := w.Got(second)
		third := w.Acquiring(l)
		w.Settle()
		w.Pass(time.Second)
		w.Release(h)
		w.Release(w.Got(third))
		w.LeftNothing()
	})
}

// The release is lost, or only its reply: the path stays taken for the same time all the same.
func TestAtLeast_WhenTheReleaseIsNotAnswered(t *testing.T) {
	t.Parallel()
	fates := map[string]kit.Fate{
		"lost": kit.Cut, "reply lost": kit.CutAfter, "silence": kit.Silence, "LOADING": kit.Refused(kit.Loading),
	}
	for i, name := range kit.InOrder(fates) {
		what := fates[name]
		_, layout := kit.Turn(kit.Layouts, i) // each layout has its own scripts; when what is repeated does not depend on them
		t.Run(fmt.Sprint(name, " ", layout), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r, other := f.Registry(kit.WithLayout(layout)), w.Registry(kit.WithLayout(layout))
				w.Known(r)
				f.Fates("obtain", kit.CutAfter)
				_, err := r.Acquire(w.Context(), "42")
				w.Unavailable(err, "acquire") // so a removal is already being repeated for a while
				w.AwaitGone(kit.TheKey)
				start := time.Now()
				h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Second))
				f.Fate("release", what)
				w.Unavailable(h.Release(w.Context()), "release")
				waits := w.Acquiring(r.Obtain("42"))
				w.Pass(5 * time.Second)
				w.RefusedBy(other)
				f.Reconnect()
				w.Await("the release arrives", func() bool { return strings.HasSuffix(w.Holder(kit.TheKey), ":atleast") })
				w.RefusedBy(other)
				left := 20*time.Second - time.Since(start)
				require.InDelta(w, left, w.Pttl(kit.TheKey), float64(10*time.Millisecond))
				w.Pending(waits.Err)
				next := w.Got(waits)
				require.InDelta(w, 20*time.Second, time.Since(start), float64(150*time.Millisecond))
				w.Pass(30 * time.Second)
				require.Positive(w, next.Remaining(), "no late removal has touched it")
				w.Release(next)
			})
		})
	}
}

// Close tries the release one last time.
func TestAtLeast_WhileTheRegistryCloses(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r, other := f.Registry(), w.Registry()
		w.Known(r)
		h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Second))
		after := w.Acquires(r.Obtain("43"), lockregistry.AtLeast(20*time.Second))
		f.Fates("release", kit.Cut)
		releasing := make(chan error, 1)
		go func() { releasing <- h.Release(w.Context()) }()
		require.NoError(w, r.Close())
		if err := <-releasing; err != nil { // it may also have been tried again in time
			w.Unavailable(err, "release")
		}
		w.Await("the release arrives", func() bool { return strings.HasSuffix(w.Holder(kit.TheKey), ":atleast") })
		w.RefusedBy(other)
		w.Release(after)
		require.True(w, strings.HasSuffix(w.Holder("orders:43"), ":atleast"))
		require.Equal(w, 20*time.Second, w.Pttl("orders:43"))
	})
}

// A call with AtLeast that gives up leaves nothing behind, even if its grant arrives late.
func TestAtLeast_ThatIsNotObtained(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.FakeWorld, func(w *kit.World, r, other *lockregistry.Registry) {
		held := w.Acquires(other.Obtain("42"))
		_, err := r.Acquire(w.Context(), "42", lockregistry.AtLeast(time.Hour), lockregistry.Wait(time.Second))
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		w.Release(held)
		w.LeftNothing()
	})
	t.Run("without an answer", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			f.Fates("obtain", kit.CutAfter)
			_, err := r.Acquire(w.Context(), "42", lockregistry.AtLeast(time.Hour))
			w.Unavailable(err, "acquire")
			w.AwaitGone(kit.TheKey)
		})
	})
}

// Other calls of this process may send a removal of the same hold, after a failover or for a late message. They know no more of
// it than its number, and the removal keeps the path, too.
func TestAtLeast_WhenARemovalIsSentOnceMore(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		held, l := w.Registry().Obtain("46"), r.Obtain("42")
		w.Lock(held)
		waiter := kit.LockElsewhere(r.Obtain("46"), w.Context())
		w.Await("it listens", func() bool { return strings.Contains(w.Do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
		h := w.Acquires(l, lockregistry.AtLeast(time.Minute))
		value := w.Do("GET", kit.TheKey)
		w.Release(h)
		w.Do("SET", kit.TheKey, value, "PX", "600000") // as on a server that has taken over
		w.Do("CLIENT", "KILL", "TYPE", "pubsub")
		w.Await("the removal", func() bool { return w.Do("GET", kit.TheKey) != value })
		require.Equal(w, value+":atleast", w.Do("GET", kit.TheKey))
		require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute)

		w.Do("SET", kit.TheKey, value, "PX", "600000") // as if the release were still under way
		channel := strings.Trim(w.Do("PUBSUB", "CHANNELS", "orders-channel@*"), "[]")
		w.Await("it listens", func() bool {
			channel = strings.Trim(w.Do("PUBSUB", "CHANNELS", "orders-channel@*"), "[]")
			return w.Do("PUBLISH", channel, "g "+value[strings.LastIndex(value, ":")+1:]+" 1000 "+kit.TheKey) == "1"
		})
		w.Await("the removal", func() bool { return w.Do("GET", kit.TheKey) != value })
		require.Equal(w, value+":atleast", w.Do("GET", kit.TheKey))
		w.Unlock(held)
		require.NoError(w, <-waiter)
	})
}

// A server that is out of memory refuses to mark the path. Until it does, the hold's lease keeps the path.
func TestAtLeast_OutOfMemory(t *testing.T) {
	t.Parallel()
	kit.BothLayouts(t, kit.RealWorlds, func(w *kit.World, r, other *lockregistry.Registry) {
		h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(time.Minute))
		value := w.Holder(kit.TheKey)
		w.Do("CONFIG", "SET", "maxmemory", "1")
		w.Unavailable(h.Release(w.Context()), "release")
		require.Equal(w, value, w.Holder(kit.TheKey))
		w.Do("CONFIG", "SET", "maxmemory", "0")
		w.Await("the release arrives", func() bool { return w.Holder(kit.TheKey) == value+":atleast" })
		w.RefusedBy(other)
	})
}
