package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Paths that stay taken after their release.

// bothLayouts runs a test with two registries of each layout.
func bothLayouts(
	t *testing.T, run func(*testing.T, func(*world)), test func(w *world, r, other *lockregistry.Registry),
	opts ...lockregistry.Option,
) {
	t.Helper()
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				opts := append(slices.Clone(opts), lockregistry.WithLayout(layout))
				test(w, w.registry(opts...), w.registry(opts...))
			})
		})
	}
}

// holder is whoever the key is taken by.
func (w *world) holder(key string) string {
	w.Helper()
	if w.do("TYPE", key) == "hash" {
		return strings.Trim(w.do("HKEYS", key), "[]")
	}
	return w.do("GET", key)
}

// refusedBy checks that the path is taken, for each of some registries.
func (w *world) refusedBy(registries ...*lockregistry.Registry) {
	w.Helper()
	for _, r := range registries {
		_, err := r.Acquire(w.Context(), "42", lockregistry.NoWait())
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
	}
}

// Released early, the path is taken by nobody for what is left of the time, and free after that to the millisecond.
func TestAtLeast(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(10*time.Second+time.Microsecond))
		mine := w.holder(theKey)
		w.pass(3 * time.Second)
		w.releases(h)
		require.Equal(w, mine+":atleast", w.holder(theKey))
		require.Equal(w, 7*time.Second+time.Millisecond, w.pttl(theKey))
		w.fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", theKey)
		require.False(w, r.Obtain("42").IsHeld())
		w.refusedBy(r, other)
		require.False(w, w.tryElsewhere(r.Obtain("42")))
		w.pass(7*time.Second - time.Millisecond)
		w.refusedBy(r, other)
		w.pass(3 * time.Millisecond)
		w.releases(w.acquires(other.Obtain("42"), lockregistry.NoWait()))
		w.releases(w.acquires(r.Obtain("42"), lockregistry.NoWait()))
		w.leftNothing()
	})
}

// Released late, it is free at once. A crash leaves the ordinary lease.
func TestAtLeast_ThatIsOver(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		w.lock(r.Obtain("42"), lockregistry.AtLeast(time.Second), lockregistry.Lease(5*time.Second))
		require.Equal(w, 5*time.Second, w.pttl(theKey))
		w.pass(time.Second)
		w.unlock(r.Obtain("42"))
		w.leftNothing()

		w.lock(r.Obtain("42"), lockregistry.AtLeast(time.Hour), lockregistry.Lease(5*time.Second))
		w.pass(5 * time.Second)
		w.releases(w.acquires(other.Obtain("42"), lockregistry.NoWait()))
		w.fails(r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
		w.leftNothing()
	})
}

// It may be longer than the lease, and works for all calls.
func TestAtLeast_ForAllCalls(t *testing.T) {
	t.Parallel()
	const atLeast = 2 * time.Minute
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		for _, call := range locking {
			require.NoError(w, call(w.Context(), r, lockregistry.AtLeast(atLeast), lockregistry.Lease(time.Second)))
			if r.Obtain("42").IsHeld() {
				w.unlock(r.Obtain("42"))
			}
			require.Equal(w, atLeast, w.pttl(theKey))
			w.refusedBy(r, other)
			w.pass(atLeast)
		}
		enough := errors.New("enough")
		err := r.Do(w.Context(), "42", func(context.Context) error { return enough }, lockregistry.AtLeast(atLeast))
		require.Equal(w, enough, err)
		require.Equal(w, atLeast, w.pttl(theKey))
		require.NoError(w, r.ForceUnlock(w.Context(), "42"))
		w.releases(w.acquires(r.Obtain("42"), lockregistry.NoWait()))
	})
}

func TestAtLeast_IsRefused(t *testing.T) {
	r := unusedRegistry(t)
	for op, locks := range lockings(r, "42") {
		for _, d := range []time.Duration{0, -time.Second} {
			refuses(t, locks(t.Context(), lockregistry.AtLeast(d)), op, "orders:42", "): the duration must be positive")
		}
	}
	for _, l := range []*lockregistry.Lock{r.ReadWrite("42").Reader(), r.ReadWrite("42").Writer()} {
		_, err := l.Acquire(t.Context(), lockregistry.AtLeast(time.Second))
		refuses(t, err, "acquire", "orders:42", "AtLeast: it is for plain locks only")
		refuses(t, l.Lock(t.Context(), lockregistry.AtLeast(time.Second)), "lock", "orders:42", "AtLeast: it is for plain")
	}
}

// Whoever holds the lock already cannot ask for it, and holds it no more often than before.
func TestAtLeast_ForAnOwner(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		w.lock(l)
		const why = "AtLeast: the owner holds the lock already"
		refuses(w.T, l.Lock(w.Context(), lockregistry.AtLeast(time.Hour)), "lock", theKey, why)
		ctx := l.Context(w.Context())
		refuses(w.T, elsewhere(func() error {
			return r.Do(ctx, "42", nothing, lockregistry.AtLeast(time.Hour))
		}), "do", theKey, why)
		w.unlock(l)
		w.leftNothing()
	})
}

// Who waits in this process is not handed the lock before the time is over, nor any other; then who comes first gets it.
func TestAtLeast_WaitingForAPathThatStaysTaken(t *testing.T) {
	t.Parallel()
	const least = 500 * time.Millisecond
	modes := maps.Clone(wakeups)
	modes["poll"] = lockregistry.WakeupPoll
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			bothLayouts(t, realWorlds, func(w *world, r, other *lockregistry.Registry) {
				h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(least), lockregistry.Lease(time.Minute))
				began := time.Now()
				there := w.acquiring(other.Obtain("42"))
				if mode != lockregistry.WakeupPoll {
					w.await("a ticket", func() bool { return w.tickets() == 1 })
				}
				here := w.acquiring(r.Obtain("42"))
				w.await("it waits", func() bool { return lockregistry.Contended(r.Obtain("42")) })
				w.releases(h)
				released := time.Since(began)
				first, second := there, here
				select {
				case err := <-here.err:
					require.NoError(w, err)
					first, second = here, there
				case err := <-there.err:
					require.NoError(w, err)
				}
				got := time.Since(began)
				w.Log(released, got)
				require.Greater(w, got, least-5*time.Millisecond) // began is a moment after it was obtained
				require.Less(w, got, least+atOnce)
				require.True(w, first == there || mode == lockregistry.WakeupPoll, "its ticket is the first")
				w.releases(first.hold)
				w.releases(w.got(second))
				w.leftNothing()
			}, lockregistry.WithWakeup(mode), lockregistry.WithHandoff(time.Hour))
		})
	}
}

// So it is where processes get the lock from each other all the time, and releases are quick.
func TestAtLeast_AmongManyProcesses(t *testing.T) {
	t.Parallel()
	const least = 300 * time.Millisecond
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				path := func() *lockregistry.Lock { return w.registry(lockregistry.WithLayout(layout)).Obtain("42") }
				first := w.acquires(path())
				second := w.acquiring(path(), lockregistry.AtLeast(least))
				w.await("a ticket", func() bool { return w.tickets() == 1 })
				third := w.acquiring(path())
				w.await("another one", func() bool { return w.tickets() == 2 })
				w.releases(first)
				kept := w.got(second)
				began := time.Now()
				w.releases(kept)
				last := w.got(third)
				require.Greater(w, time.Since(began), least-100*time.Millisecond)
				w.releases(last)
			})
		})
	}
}

// The next owner in this process has the time from when it was handed the lock, and hands it on only when that is over.
func TestAtLeast_AfterAHandOver(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, _ *lockregistry.Registry) {
		first := w.acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Millisecond))
		value := w.holder(theKey)
		waits := w.acquiring(r.Obtain("42"), lockregistry.AtLeast(40*time.Millisecond))
		w.settle()
		w.pass(20 * time.Millisecond)
		w.releases(first)
		second := w.got(waits)
		require.Equal(w, value, w.holder(theKey), "it was handed over: the time of the first was over")
		next := w.acquiring(r.Obtain("42"))
		w.settle()
		w.pass(30 * time.Millisecond)
		w.releases(second)
		w.settle()
		w.pending(next.err)
		require.Equal(w, value+":atleast", w.holder(theKey))
		require.Equal(w, 10*time.Millisecond, w.pttl(theKey))
		third := w.got(next)
		w.releases(third)
		w.leftNothing()
	})
}

// A hold that was handed to an owner without AtLeast does not keep the path for it.
func TestAtLeast_IsNotHandedOver(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.lock(l)
		second := w.acquiring(l, lockregistry.AtLeast(time.Second))
		w.settle()
		w.unlock(l)
		h := w.got(second)
		third := w.acquiring(l)
		w.settle()
		w.pass(time.Second)
		w.releases(h)
		w.releases(w.got(third))
		w.leftNothing()
	})
}

// The release is lost, or only its answer is: the path stays taken all the same, for the same time.
func TestAtLeast_WhenTheReleaseIsNotAnswered(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"lost": cut, "reply lost": cutAfter, "silence": silence, "LOADING": refused(loading)} {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			t.Run(fmt.Sprint(name, " ", layout), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r, other := f.registry(lockregistry.WithLayout(layout)), w.registry(lockregistry.WithLayout(layout))
					w.known(r)
					f.next("obtain", cutAfter)
					_, err := r.Acquire(w.Context(), "42")
					w.unavailable(err, "acquire") // so there is a removal already that is repeated for a while
					w.awaitGone(theKey)
					start := time.Now()
					h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Second))
					f.all("release", what)
					w.unavailable(h.Release(w.Context()), "release")
					waits := w.acquiring(r.Obtain("42"))
					w.pass(5 * time.Second)
					w.refusedBy(other)
					f.reconnect()
					w.await("the release arrives", func() bool { return strings.HasSuffix(w.holder(theKey), ":atleast") })
					w.refusedBy(other)
					left := 20*time.Second - time.Since(start)
					require.InDelta(w, left, w.pttl(theKey), float64(10*time.Millisecond))
					w.pending(waits.err)
					next := w.got(waits)
					require.InDelta(w, 20*time.Second, time.Since(start), float64(150*time.Millisecond))
					w.pass(30 * time.Second)
					require.Positive(w, next.Remaining(), "no late removal has touched it")
					w.releases(next)
				})
			})
		}
	}
}

// Close gives the release its last chance.
func TestAtLeast_WhileTheRegistryCloses(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r, other := f.registry(), w.registry()
		w.known(r)
		h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(20*time.Second))
		after := w.acquires(r.Obtain("43"), lockregistry.AtLeast(20*time.Second))
		f.next("release", cut)
		releasing := make(chan error, 1)
		go func() { releasing <- h.Release(w.Context()) }()
		require.NoError(w, r.Close())
		if err := <-releasing; err != nil { // or it was tried again in time
			w.unavailable(err, "release")
		}
		w.await("the release arrives", func() bool { return strings.HasSuffix(w.holder(theKey), ":atleast") })
		w.refusedBy(other)
		w.releases(after)
		require.True(w, strings.HasSuffix(w.holder("orders:43"), ":atleast"))
		require.Equal(w, 20*time.Second, w.pttl("orders:43"))
	})
}

// A call that asks for it and gives up leaves nothing, also when its grant arrives late.
func TestAtLeast_ThatIsNotObtained(t *testing.T) {
	t.Parallel()
	bothLayouts(t, fakeWorld, func(w *world, r, other *lockregistry.Registry) {
		held := w.acquires(other.Obtain("42"))
		_, err := r.Acquire(w.Context(), "42", lockregistry.AtLeast(time.Hour), lockregistry.Wait(time.Second))
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		w.releases(held)
		w.leftNothing()
	})
	t.Run("without an answer", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			f.next("obtain", cutAfter)
			_, err := r.Acquire(w.Context(), "42", lockregistry.AtLeast(time.Hour))
			w.unavailable(err, "acquire")
			w.awaitGone(theKey)
		})
	})
}

// A removal of the same hold that others of this process send because they know no more of it than its number, after a
// failover or for a message that comes late, keeps the path too.
func TestAtLeast_WhenARemovalIsSentOnceMore(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry()
		held, l := w.registry().Obtain("46"), r.Obtain("42")
		w.lock(held)
		waiter := lockElsewhere(r.Obtain("46"), w.Context())
		w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
		h := w.acquires(l, lockregistry.AtLeast(time.Minute))
		value := w.do("GET", theKey)
		w.releases(h)
		w.do("SET", theKey, value, "PX", "600000") // as a server has it that has taken over
		w.do("CLIENT", "KILL", "TYPE", "pubsub")
		w.await("the removal", func() bool { return w.do("GET", theKey) != value })
		require.Equal(w, value+":atleast", w.do("GET", theKey))
		require.LessOrEqual(w, w.pttl(theKey), time.Minute)

		w.do("SET", theKey, value, "PX", "600000") // as if the release were still on its way
		channel := strings.Trim(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "[]")
		w.await("it listens", func() bool {
			channel = strings.Trim(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "[]")
			return w.do("PUBLISH", channel, "g "+value[strings.LastIndex(value, ":")+1:]+" 1000 "+theKey) == "1"
		})
		w.await("the removal", func() bool { return w.do("GET", theKey) != value })
		require.Equal(w, value+":atleast", w.do("GET", theKey))
		w.unlock(held)
		require.NoError(w, <-waiter)
	})
}

// A server without memory to spare refuses to mark the path. It stays taken by the hold's lease meanwhile.
func TestAtLeast_OutOfMemory(t *testing.T) {
	t.Parallel()
	bothLayouts(t, realWorlds, func(w *world, r, other *lockregistry.Registry) {
		h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(time.Minute))
		value := w.holder(theKey)
		w.do("CONFIG", "SET", "maxmemory", "1")
		w.unavailable(h.Release(w.Context()), "release")
		require.Equal(w, value, w.holder(theKey))
		w.do("CONFIG", "SET", "maxmemory", "0")
		w.await("the release arrives", func() bool { return w.holder(theKey) == value+":atleast" })
		w.refusedBy(other)
	})
}
