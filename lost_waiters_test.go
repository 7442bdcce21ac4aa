package lockregistry_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// gone has a goroutine lock and end, count times.
func (w *world) gone(l *lockregistry.Lock, count int, opts ...lockregistry.LockOption) (owner context.Context) {
	w.Helper()
	owner = lockregistry.NewOwner(w.Context())
	for range count {
		require.NoError(w, l.Lock(owner, opts...))
	}
	return owner
}

// All kinds of locks of a registry.
var kinds = map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
	"plain":  func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
	"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
	"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
}

// An owner that never unlocks keeps a waiter out until its hold is lost, and no longer, although nobody calls.
func TestLost_AWaiterDoesNotWaitForAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	for name, pick := range kinds {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			t.Run(fmt.Sprint(name, layout), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					const lease = 10 * time.Second
					r := w.registry(lockregistry.WithLayout(layout))
					l := pick(r)
					waiting := l
					if name == "reader" {
						waiting = r.ReadWrite("42").Writer()
					}
					start := time.Now()
					owner := w.gone(l, 3, lockregistry.Lease(lease))
					next := w.goroutine()
					has := next.starts(waiting, lockregistry.Lease(lease))
					w.settle()
					third := lockElsewhere(waiting, w.Context())
					w.pass(time.Until(start.Add(lease - margin(lease) - 2*time.Millisecond)))
					w.pending(has)
					require.NoError(w, <-has)
					require.LessOrEqual(w, time.Since(start), lease)

					// The owner learns of it, whatever it does, until it has unlocked.
					w.fails(l.Lock(owner), lockregistry.ErrLockLost, "lock", theKey)
					_, err := l.TryLock(owner)
					w.fails(err, lockregistry.ErrLockLost, "trylock", theKey)
					w.fails(l.Renew(owner, time.Minute), lockregistry.ErrLockLost, "renew", theKey)
					require.ErrorIs(w, context.Cause(l.Context(owner)), lockregistry.ErrLockLost)
					for range 3 {
						w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
					}
					w.fails(l.Unlock(owner), lockregistry.ErrNotOwner, "unlock", theKey)
					require.Equal(w, lockregistry.ErrNotOwner, context.Cause(l.Context(owner)))

					// The next ones hold it as usual.
					require.True(w, waiting.IsHeld())
					w.pending(third)
					require.NoError(w, next.do(func() error { return waiting.Renew(w.Context(), time.Minute) }))
					require.NoError(w, next.unlock(waiting))
					require.NoError(w, <-third)
					require.False(w, w.free(theKey))
				})
			})
		}
	}
}

// With nobody there at the loss, the next one that comes does not wait either; not even one that only tries, again and again.
func TestLost_ANewcomerDoesNotWaitForAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	for name, pick := range kinds {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.registry(lockregistry.WithLease(time.Second))
				l := pick(r)
				w.gone(l, 1, lockregistry.Lease(time.Second))
				w.pass(time.Hour)
				start := time.Now()
				w.lock(l)
				require.Zero(w, time.Since(start))
				w.unlock(l)
				require.True(w, w.free(theKey))

				owner := w.gone(l, 1, lockregistry.Lease(time.Second))
				w.pass(time.Hour)
				w.await("the lock", func() bool { return w.tryElsewhere(l) })
				w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)

				// What was used can be dropped.
				w.settle()
				require.Equal(w, 1, r.ExpireUnusedOlderThan(0))
			})
		})
	}
}

// Readers that share a lost hold are put out together; so is a writer that reads.
func TestLost_AllWhoShareALostHoldAreEvicted(t *testing.T) {
	fakeWorld(t, func(w *world) {
		p := w.pair()
		var readers []context.Context
		for range 3 {
			readers = append(readers, w.gone(p.reader, 1, lockregistry.Lease(time.Second)))
		}
		require.NoError(w, p.writer.Lock(w.Context()))
		w.lock(p.reader)
		for _, o := range readers {
			w.fails(p.reader.Unlock(o), lockregistry.ErrLockLost, "unlock", theKey)
			w.fails(p.reader.Unlock(o), lockregistry.ErrNotOwner, "unlock", theKey)
		}
		w.unlock(p.writer)
		w.unlock(p.reader)

		owner := w.gone(p.writer, 1, lockregistry.Lease(2*time.Second))
		require.NoError(w, p.reader.Lock(owner, lockregistry.Lease(4*time.Second)))
		start := time.Now()
		w.lock(p.reader) // joins the one that reads on
		require.InDelta(w, 2*time.Second, time.Since(start), float64(200*time.Millisecond))
		w.fails(p.writer.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
		require.NoError(w, p.reader.Unlock(owner))
		w.unlock(p.reader)
		w.settle() // what the writer has lost is removed in the background
		require.Equal(w, "0", w.keys())
	})
}

// The next one does not wait for the removal of the lost hold's key: it takes the key over, and the removal finds another
// hold.
func TestLost_EvictionDoesNotWaitForTheRemoval(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 10 * time.Second
		w.loaded("spring")
		f := w.flaky()
		l := w.registryOn(f.client(ownConnections)).Obtain("42")
		owner := w.gone(l, 1, lockregistry.Lease(lease))
		has := lockElsewhere(l, w.Context(), lockregistry.Lease(lease))
		w.settle()
		arrive := make(chan struct{})
		f.all("release", heldUp(arrive))
		w.pass(lease - margin(lease))
		w.settle()
		require.NotZero(w, f.count("release"), "the scheduler sees to it")
		w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
		require.NoError(w, <-has)
		value := w.do("GET", theKey)
		require.NotEqual(w, f.sent("release")[0].Args[4], value)
		close(arrive)
		w.settle()
		for _, c := range f.sent("release") {
			require.Equal(w, "-2", w.arrives(c))
		}
		require.Equal(w, value, w.do("GET", theKey))
	})
}

// A key that was removed or taken away while the owner is gone is noticed by a renewal; the next one gets in then.
func TestLost_EvictionAfterARenewalThatFoundNoKey(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 9 * time.Second
		l := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease)).Obtain("42")
		owner := w.gone(l, 1)
		has := lockElsewhere(l, w.Context())
		w.pass(10 * lease)
		w.pending(has)
		w.do("DEL", theKey)
		start := time.Now()
		require.NoError(w, <-has)
		require.LessOrEqual(w, time.Since(start), lease/3)
		w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
	})
}

// Waiters of a closed registry end; nobody is let in.
func TestLost_NobodyIsEvictedAfterClose(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		owner := w.gone(l, 1, lockregistry.Lease(time.Second))
		has := lockElsewhere(l, w.Context())
		w.settle()
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-has, lockregistry.ErrClosed)
		w.pass(time.Hour)
		w.fails(l.Lock(w.Context()), lockregistry.ErrClosed, "lock", theKey)
		w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
	})
}

// One goroutine of an owner unlocks the writer while another one locks the reader: whichever command comes first, neither
// takes the other's key away.
func TestLost_UnlockingTheWriterWhileLockingTheReader(t *testing.T) {
	realWorlds(t, func(w *world) {
		p := w.pair()
		for range 300 {
			owner := lockregistry.NewOwner(w.Context())
			require.NoError(w, p.writer.Lock(owner))
			unlocked := make(chan error, 1)
			go func() { unlocked <- p.writer.Unlock(owner) }()
			require.NoError(w, p.reader.Lock(owner))
			require.NoError(w, <-unlocked)
			require.NoError(w, p.reader.Unlock(owner))
		}
	})
}

// A server that is out of memory grants nothing, but what is held can be renewed and released.
func TestLost_OutOfMemory(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.loaded("")
		var held []*lockregistry.Lock
		r := w.registry()
		for _, path := range []string{"reads", "writes", "both"} {
			if path != "reads" {
				held = append(held, r.ReadWrite(path).Writer())
			}
			if path != "writes" {
				held = append(held, r.ReadWrite(path).Reader())
			}
		}
		held = append(held, r.Obtain("spring"), w.registry(lockregistry.WithLayout(lockregistry.LayoutRedisson)).Obtain("redisson"))
		for _, l := range held {
			w.lock(l, lockregistry.Lease(time.Minute))
		}
		w.do("CONFIG", "SET", "maxmemory", "1")
		defer w.do("CONFIG", "SET", "maxmemory", "0")
		require.ErrorContains(w, r.Obtain("another").Lock(w.Context()), "OOM")
		for _, l := range held {
			require.NoError(w, l.Renew(w.Context(), time.Hour), l.Path())
			require.Greater(w, w.pttl(l.Key()), time.Minute)
		}
		for _, l := range held {
			require.NoError(w, l.Unlock(w.Context()), l.Path())
		}
		require.Equal(w, "0", w.keys())
	})
}

// A reader that joins has at least nine tenths of the lease that it asked for.
func TestLost_JoiningReadersGetTheirLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = time.Minute
		reader := w.registry(lockregistry.WithHandoff(time.Hour)).ReadWrite("42").Reader()
		w.lock(reader, lockregistry.Lease(lease))
		for _, after := range []time.Duration{lease / 20, lease / 5, lease / 2, lease * 9 / 10} {
			w.pass(after)
			g := w.goroutine()
			require.NoError(w, g.lock(reader, lockregistry.Lease(lease)))
			require.GreaterOrEqual(w, w.pttl(theKey), lease*9/10)
		}
	})
}
