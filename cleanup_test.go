package lockregistry_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What is left behind in Redis is removed, however many calls have failed, and at the price of one.

// ownConnections makes a client use a connection of its own for each command, so that none waits for another.
func ownConnections(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }

// pipelining makes a client read replies while it writes commands, which many in one pipeline need on a connection without
// a buffer.
func pipelining(o *rueidis.ClientOption) { o.AlwaysPipelining = true }

// A waiter that is tried again for as long as an outage lasts leaves one thing to look for, which stands for all grants
// that may come late.
func TestCleanup_ManyAbandonedGrantsOfOnePath(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const calls = 500
		f := w.flaky()
		l := w.registryOn(f.client(ownConnections), polling).Obtain("42")
		w.lock(l)
		w.unlock(l) // the server knows the script from now on
		f.all("obtain", cut)
		f.all("release", cut)
		for range calls {
			require.Error(w, l.Lock(w.Context()))
			w.pass(100 * time.Millisecond)
		}
		require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		late := f.sent("obtain")[1:]
		require.Equal(w, calls+1, len(late)) //nolint:testifylint // not to print them all
		require.LessOrEqual(w, f.count("release"), 2*calls+calls/100, "hardly more than are due at a failure and at the poll interval")

		// One of the grants has been executed when the network is back.
		require.Equal(w, "OK", w.arrives(late[calls/2]))
		f.Forget()
		start := time.Now()
		w.awaitGone("orders:42")
		require.LessOrEqual(w, time.Since(start), 101*time.Millisecond)
		removals := f.count("release")
		w.pass(5 * time.Second)
		require.LessOrEqual(w, f.count("release")-removals, 51, "one each poll interval")

		// Whichever comes now.
		for _, i := range []int{0, 1, calls / 3, calls - 1, calls} {
			require.Equal(w, "OK", w.arrives(late[i]))
			start := time.Now()
			w.awaitGone("orders:42")
			require.LessOrEqual(w, time.Since(start), 101*time.Millisecond)
		}

		// None of that touches a later hold, of this process or of another.
		for _, next := range []*lockregistry.Lock{l, w.registry().Obtain("42")} {
			w.lock(next)
			value := w.do("GET", "orders:42")
			removals := f.sent("release")
			for _, c := range []command{removals[1], removals[len(removals)-1], late[0], late[calls]} {
				w.arrives(c)
			}
			w.pass(5 * time.Second)
			require.Equal(w, value, w.do("GET", "orders:42"))
			w.unlock(next)
		}

		// And after the next call that fails it is looked for often again.
		w.pass(30 * time.Second)
		f.next("obtain", cut)
		require.Error(w, l.Lock(w.Context()))
		w.pass(time.Second)
		obtained := f.sent("obtain")
		require.Equal(w, "OK", w.arrives(obtained[len(obtained)-1]))
		w.pass(100 * time.Millisecond)
		w.settle()
		require.True(w, w.free("orders:42"))

		// It ends, when the longest lease is over.
		w.pass(50 * time.Minute)
		require.Equal(w, "OK", w.arrives(late[calls]))
		w.awaitRemoval("orders:42", 10*time.Minute)
		w.pass(20 * time.Minute)
		removals = f.count("release")
		w.pass(time.Hour)
		require.Equal(w, removals, f.count("release"))
	})
}

// awaitRemoval waits until a key is gone, in steps of a second.
func (w *world) awaitRemoval(key string, within time.Duration) {
	w.Helper()
	for start := time.Now(); !w.free(key); w.pass(time.Second) {
		require.LessOrEqual(w, time.Since(start), within)
	}
}

// While the answer to the removal of an older grant is on its way, a newer one is abandoned, or released with a context that
// is done. That does not wait for the answer, and the answer says nothing about it.
func TestCleanup_SomethingIsLeftDuringARemoval(t *testing.T) {
	t.Parallel()
	during := func(w *world, test func(f *flaky, l *lockregistry.Lock)) {
		f := w.flaky()
		l := w.registryOn(f.client(ownConnections), polling).Obtain("42")
		w.lock(l)
		w.unlock(l) // the server knows the script from now on
		f.next("obtain", cutAfter)
		f.next("release", slow(300*time.Millisecond))
		require.Error(w, l.Lock(w.Context()))
		w.settle()
		require.True(w, w.free("orders:42"), "removed, but that is not answered yet")
		test(f, l)
	}
	t.Run("abandoned", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			during(w, func(f *flaky, l *lockregistry.Lock) {
				f.next("obtain", cutAfter)
				f.next("release", refused(loading))
				require.Error(w, l.Lock(w.Context()))
				w.settle()
				require.False(w, w.free("orders:42"))
				w.pass(100 * time.Millisecond)
				w.settle()
				require.True(w, w.free("orders:42"))
				w.pass(250 * time.Millisecond)
				obtained := f.sent("obtain")
				w.arrives(obtained[len(obtained)-1])
				require.False(w, w.free("orders:42"))
				w.pass(100 * time.Millisecond)
				w.settle()
				require.True(w, w.free("orders:42"))
			})
		})
	})
	t.Run("released", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			during(w, func(f *flaky, l *lockregistry.Lock) {
				owner := lockregistry.NewOwner(w.Context())
				require.NoError(w, l.Lock(owner))
				f.next("release", slow(600*time.Millisecond))
				unlocked := w.goroutine().start(func() error { return l.Unlock(owner) })
				w.settle()
				require.True(w, w.free("orders:42"), "removed, but that is not answered yet")
				locked := w.goroutine().starts(l)
				w.pass(590 * time.Millisecond)
				w.pending(locked)
				w.pass(10 * time.Millisecond)
				require.NoError(w, <-unlocked)
				require.NoError(w, <-locked)
			})
		})
	})
}

// After an outage the paths do not wait for each other.
func TestCleanup_AbandonedGrantsOfManyPaths(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const paths = 520 // more than two pipelines
		f := w.flaky()
		r := w.registryOn(f.client(pipelining), polling)
		w.lock(r.Obtain("42"))
		w.unlock(r.Obtain("42")) // the server knows the script from now on
		f.all("release", cut)
		f.all("obtain", cutAfter)
		for i := range paths {
			require.Error(w, r.Obtain(strconv.Itoa(i)).Lock(w.Context()))
		}
		require.NotEqual(w, "0", w.keys())
		before := f.count("release")
		w.pass(3 * time.Second)
		require.Less(w, f.count("release")-before, 3*10*(256+100), "while it fails, a pipeline each poll interval")
		f.Forget()
		start := time.Now()
		w.await("all are removed", func() bool { return w.keys() == "0" })
		require.LessOrEqual(w, time.Since(start), 250*time.Millisecond, "a poll interval, and a last attempt that fails")

		before = f.count("release")
		w.pass(2 * time.Second)
		require.Less(w, f.count("release")-before, 2*10*(256+100), "to look for more, a pipeline each poll interval")
		require.NoError(w, r.Close())
	})
}

// Close gives what was left behind a last chance.
func TestCleanup_AbandonedGrantsAtClose(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const paths = 300 // more than a pipeline
		f := w.flaky()
		r := w.registryOn(f.client(pipelining), polling)
		w.lock(r.Obtain("42"))
		w.unlock(r.Obtain("42")) // the server knows the script from now on
		f.all("release", cut)
		f.all("obtain", cutAfter)
		for i := range paths {
			require.Error(w, r.Obtain(strconv.Itoa(i)).Lock(w.Context()))
		}
		w.pass(2 * time.Second)
		f.Forget()
		require.NotEqual(w, "0", w.keys())
		require.NoError(w, r.Close())
		require.Equal(w, "0", w.keys())
	})
}

// The last removal does not overtake a command that was given up before, be it that the call gives up before Close, that a
// removal is even under way when Close begins, or that the call gives up after Close.
func TestCleanup_CloseWaitsForWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "before that, and is being removed", "after"} {
		t.Run(when, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := w.registryOn(f.client(ownConnections))
				w.lock(r.Obtain("43"))
				w.unlock(r.Obtain("43")) // the server knows the script from now on
				released := f.count("release")
				delivery := make(chan struct{})
				f.all("obtain", heldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				locked := w.goroutine().start(func() error { return r.Obtain("42").Lock(ctx) })
				w.settle()
				var waits <-chan error
				if when == "after" {
					require.NoError(w, r.Close())
					cancel()
					waits = locked
				} else {
					if when != "before" {
						f.next("release", slow(50*time.Millisecond))
					}
					cancel()
					require.ErrorIs(w, <-locked, context.Canceled)
					w.settle()
					require.Equal(w, released+1, f.count("release"))
					waits = w.goroutine().start(r.Close)
				}
				w.settle()
				w.pending(waits)
				close(delivery)
				if err := <-waits; when == "after" {
					require.ErrorIs(w, err, context.Canceled)
				} else {
					require.NoError(w, err)
				}
				require.True(w, w.free("orders:42"))
			})
		})
	}
}

// A hold's own removal takes an older one's late grant along, and says that the hold was lost.
func TestCleanup_TheRemovalFindsALateGrant(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry(polling).Obtain("42")
		f.next("obtain", refused(loading))
		require.Error(w, l.Lock(w.Context()))
		w.lock(l)
		w.do("DEL", "orders:42")
		require.Equal(w, "OK", w.arrives(f.sent("obtain")[0]))
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		require.True(w, w.free("orders:42"))

		// But not a newer one, nor that of another registry, nor what is no lock.
		w.lock(l)
		w.unlock(l)
		released := f.sent("release")
		older := released[0]
		newer := f.sent("obtain")[2].Args[2]
		for _, value := range []string{"x:1", newer, "text", "", "12"} {
			w.do("SET", "orders:42", value)
			theirs := "-1"
			if value == newer {
				theirs = "-2"
			}
			require.Equal(w, theirs, w.arrives(older))
			require.Equal(w, value, w.do("GET", "orders:42"))
		}
	})
}

// While nobody knows whether the key of the last hold is gone, that somebody else has the lock would be a guess.
func TestCleanup_TryLockWhileARemovalIsNotAnswered(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		rw := f.registry(polling).ReadWrite("rw")
		for _, l := range []*lockregistry.Lock{f.registry(polling).Obtain("42"), rw.Reader(), rw.Writer()} {
			w.lock(l)
			f.Down()
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrUnavailable)
			ok, err := l.TryLock(w.Context())
			require.False(w, ok)
			w.fails(err, lockregistry.ErrUnavailable, "trylock", l.Key())
			err = l.Lock(w.Context(), lockregistry.Wait(200*time.Millisecond))
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)

			f.Forget()
			w.lock(l)
			require.False(w, elsewhere(func() bool { // who is refused now is told that somebody has it
				ok, err := rw.Writer().TryLock(w.Context())
				if l.Key() == "orders:42" {
					ok, err = l.TryLock(w.Context())
				}
				return ok || err != nil
			}))
			w.unlock(l)
		}
	})
}
