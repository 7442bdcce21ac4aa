package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// An owner that never unlocks keeps a waiter out only until its hold is lost, even if nothing else happens.
func TestLost_AWaiterDoesNotWaitForAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	for name, pick := range kit.LockKinds {
		for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			t.Run(fmt.Sprint(name, layout), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					const lease = 10 * time.Second
					r := w.Registry(kit.WithLayout(layout))
					l := pick(r)
					waiting := l
					if name == "reader" {
						waiting = r.ReadWrite("42").Writer()
					}
					start := time.Now()
					owner := w.Gone(l, 3, lockregistry.Lease(lease))
					next := w.Goroutine()
					has := next.Starts(waiting, lockregistry.Lease(lease))
					w.Settle()
					third := kit.LockElsewhere(waiting, w.Context())
					w.Pass(time.Until(start.Add(lease - kit.DriftMargin(lease) - 2*time.Millisecond)))
					w.Pending(has)
					require.NoError(w, <-has)
					require.LessOrEqual(w, time.Since(start), lease)

					// The owner learns of the loss from whatever it does, until it has unlocked.
					w.Fails(l.Lock(owner), lockregistry.ErrLockLost, "lock", kit.TheKey)
					_, err := l.TryLock(owner)
					w.Fails(err, lockregistry.ErrLockLost, "trylock", kit.TheKey)
					w.Fails(l.Renew(owner, time.Minute), lockregistry.ErrLockLost, "renew", kit.TheKey)
					require.ErrorIs(w, context.Cause(l.Context(owner)), lockregistry.ErrLockLost)
					for range 3 {
						w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
					}
					w.Fails(l.Unlock(owner), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
					require.Equal(w, lockregistry.ErrNotOwner, context.Cause(l.Context(owner)))

					// The next owner holds the lock as usual.
					require.True(w, waiting.IsHeld())
					w.Pending(third)
					require.NoError(w, next.Do(func() error { return waiting.Renew(w.Context(), time.Minute) }))
					require.NoError(w, next.Unlock(waiting))
					require.NoError(w, <-third)
					require.False(w, w.Free(kit.TheKey))
				})
			})
		}
	}
}

// If nobody waits at the time of the loss, the next call does not wait either, not even one that only tries, again and again.
func TestLost_ANewcomerDoesNotWaitForAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	for name, pick := range kit.LockKinds {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry(lockregistry.WithLease(time.Second))
				l := pick(r)
				w.Gone(l, 1, lockregistry.Lease(time.Second))
				w.Pass(time.Hour)
				start := time.Now()
				w.Lock(l)
				require.Zero(w, time.Since(start))
				w.Unlock(l)
				require.True(w, w.Free(kit.TheKey))

				owner := w.Gone(l, 1, lockregistry.Lease(time.Second))
				w.Pass(time.Hour)
				w.Await("the lock", func() bool { return w.TryElsewhere(l) })
				w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)

				// The unused lock can be dropped from the cache.
				w.Settle()
				require.Equal(w, 1, r.ExpireUnusedOlderThan(0))
			})
		})
	}
}

// Readers that share a lost hold are evicted together, and so is a writer that reads.
func TestLost_AllWhoShareALostHoldAreEvicted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		p := w.Pair()
		var readers []context.Context
		for range 3 {
			readers = append(readers, w.Gone(p.Reader, 1, lockregistry.Lease(time.Second)))
		}
		require.NoError(w, p.Writer.Lock(w.Context()))
		w.Lock(p.Reader)
		for _, o := range readers {
			w.Fails(p.Reader.Unlock(o), lockregistry.ErrLockLost, "unlock", kit.TheKey)
			w.Fails(p.Reader.Unlock(o), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		}
		w.Unlock(p.Writer)
		w.Unlock(p.Reader)

		owner := w.Gone(p.Writer, 1, lockregistry.Lease(2*time.Second))
		require.NoError(w, p.Reader.Lock(owner, lockregistry.Lease(4*time.Second)))
		start := time.Now()
		w.Lock(p.Reader) // joins the owner that still reads
		require.InDelta(w, 2*time.Second, time.Since(start), float64(200*time.Millisecond))
		w.Fails(p.Writer.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		w.Released(p.Reader.Unlock(owner))
		w.Unlock(p.Reader)
		w.Settle() // the writer's lost hold is removed in the background
		require.Equal(w, "0", w.Keys())
	})
}

// Each of many owners learns of its loss, whether they share a hold or lose the lock one after the other. None gets the lock
// again within its lost section.
func TestLost_EachOwnerLearnsOfIt(t *testing.T) {
	const owners = 10
	for name, pick := range kit.LockKinds {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				l := pick(w.Registry())
				var gone []context.Context
				for range owners {
					gone = append(gone, w.Gone(l, 2, lockregistry.Lease(time.Second)))
				}
				w.Pass(time.Minute)
				w.Lock(l) // finds the previous hold lost
				w.Unlock(l)
				for _, o := range gone {
					for range 2 {
						_, err := l.TryLock(o)
						w.Fails(err, lockregistry.ErrLockLost, "trylock", kit.Key(l))
						w.Fails(l.Unlock(o), lockregistry.ErrLockLost, "unlock", kit.Key(l))
					}
					w.Fails(l.Unlock(o), lockregistry.ErrNotOwner, "unlock", kit.Key(l))
				}
			})
		})
	}
}

// Do knows its hold, and learns of the loss, even if so many others have lost the lock since that the lock has forgotten it. If
// fn itself has unlocked, the hold was not lost.
func TestLost_DoKnowsItsHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const remembered = 1000 // besides the latest one
		l := w.Registry().Obtain("42")
		w.Fails(l.Do(w.Context(), func(ctx context.Context) error {
			w.Do("DEL", kit.Key(l))
			<-ctx.Done()
			for range remembered + 1 {
				w.Gone(l, 1, lockregistry.Lease(10*time.Millisecond))
				w.Pass(20 * time.Millisecond)
			}
			return nil
		}), lockregistry.ErrLockLost, "unlock", kit.Key(l))
		w.Fails(l.Do(w.Context(), func(ctx context.Context) error { return l.Unlock(ctx) }),
			lockregistry.ErrNotOwner, "unlock", kit.Key(l))
	})
}

// Another goroutine uses the context of a hold to nest in it, or to unlock for its owner. When the hold is lost, and a waiter
// gets the lock, that goroutine still unlocks for the owner, which can then lock again.
func TestLost_NestedCallsOfOtherGoroutines(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	for kind, pick := range kit.LockKinds {
		for name, nests := range map[string]func(ctx context.Context, w *kit.World, l *lockregistry.Lock, lost func()){
			"Do": func(ctx context.Context, w *kit.World, l *lockregistry.Lock, lost func()) {
				w.Fails(l.Do(ctx, func(context.Context) error { lost(); return nil }), lockregistry.ErrLockLost, "unlock", kit.TheKey)
			},
			"Lock": func(ctx context.Context, w *kit.World, l *lockregistry.Lock, lost func()) {
				require.NoError(w, l.Lock(ctx))
				lost()
				w.Fails(l.Renew(ctx, time.Minute), lockregistry.ErrLockLost, "renew", kit.TheKey)
				require.ErrorIs(w, context.Cause(l.Context(ctx)), lockregistry.ErrLockLost)
				w.Fails(l.Unlock(ctx), lockregistry.ErrLockLost, "unlock", kit.TheKey)
			},
			"nothing": func(_ context.Context, _ *kit.World, _ *lockregistry.Lock, lost func()) { lost() },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					r := w.Registry()
					l := pick(r)
					next := l
					if kind == "reader" {
						next = r.ReadWrite("42").Writer()
					}
					owner, waiter := w.Goroutine(), w.Goroutine()
					require.NoError(w, owner.Lock(l, lockregistry.Lease(lease)))
					ctx := context.WithoutCancel(owner.Watch(l))
					nests(ctx, w, l, func() {
						has := waiter.Starts(next)
						w.Do("DEL", kit.TheKey)
						w.Pass(lease)
						require.NoError(w, <-has)
					})
					w.Fails(l.Unlock(ctx), lockregistry.ErrLockLost, "unlock", kit.TheKey)
					w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
					require.Equal(w, lockregistry.ErrNotOwner, context.Cause(l.Context(ctx)))
					require.NoError(w, waiter.Unlock(next))
					require.NoError(w, owner.Lock(l))
					w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
					require.NoError(w, owner.Unlock(l))
				})
			})
		}
	}
}

// A call of Do that nested in a lost hold unlocks that hold, not one that its goroutine has locked since.
func TestLost_DoKeepsWhatItsGoroutineHasLockedSince(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l, owner := w.Registry().Obtain("42"), w.Goroutine()
		require.NoError(w, owner.Lock(l, lockregistry.Lease(10*time.Second)))
		ctx := context.WithoutCancel(owner.Watch(l))
		w.Fails(l.Do(ctx, func(context.Context) error {
			w.Do("DEL", kit.TheKey)
			return l.Lock(w.Context()) // waits until the hold is lost
		}), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.True(w, l.IsHeld())
		w.Unlock(l)
		w.Fails(owner.Unlock(l), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.NoError(w, owner.Lock(l))
		require.NoError(w, owner.Unlock(l))
	})
}

// The next owner does not wait for the removal of the lost hold's key: it takes the key over, and the removal finds another
// hold.
func TestLost_EvictionDoesNotWaitForTheRemoval(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 10 * time.Second
		w.Loaded("spring")
		f := w.Flaky()
		l := w.RegistryOn(kit.Apart(f.Client())).Obtain("42")
		owner := w.Gone(l, 1, lockregistry.Lease(lease))
		has := kit.LockElsewhere(l, w.Context(), lockregistry.Lease(lease))
		w.Settle()
		arrive := make(chan struct{})
		f.Fate("release", kit.HeldUp(arrive))
		w.Pass(lease - kit.DriftMargin(lease))
		w.Settle()
		require.NotZero(w, f.Count("release"), "the scheduler sees to it")
		w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.NoError(w, <-has)
		value := w.Do("GET", kit.TheKey)
		require.NotEqual(w, f.Sent("release")[0].Args[4], value)
		close(arrive)
		w.Settle()
		for _, c := range f.Sent("release") {
			require.Equal(w, "-1", w.Arrives(c))
		}
		require.Equal(w, value, w.Do("GET", kit.TheKey))
	})
}

// A renewal notices that a key was removed or taken while the owner is gone; then the next call gets in.
func TestLost_EvictionAfterARenewalThatFoundNoKey(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 9 * time.Second
		l := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease)).Obtain("42")
		owner := w.Gone(l, 1)
		has := kit.LockElsewhere(l, w.Context())
		w.Pass(10 * lease)
		w.Pending(has)
		w.Do("DEL", kit.TheKey)
		start := time.Now()
		require.NoError(w, <-has)
		require.LessOrEqual(w, time.Since(start), lease/3)
		w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
	})
}

// Waiting calls of a closed registry end, and none gets the lock.
func TestLost_NobodyIsEvictedAfterClose(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		owner := w.Gone(l, 1, lockregistry.Lease(time.Second))
		has := kit.LockElsewhere(l, w.Context())
		w.Settle()
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-has, lockregistry.ErrClosed)
		w.Pass(time.Hour)
		w.Fails(l.Lock(w.Context()), lockregistry.ErrClosed, "lock", kit.TheKey)
		w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
	})
}

// One goroutine of an owner unlocks the writer while another one locks the reader. Whichever command arrives first, neither
// removes the other's key.
func TestLost_UnlockingTheWriterWhileLockingTheReader(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		p := w.Pair()
		for range 300 {
			owner := lockregistry.ContextWithOwner(w.Context())
			require.NoError(w, p.Writer.Lock(owner))
			unlocked := make(chan error, 1)
			go func() { unlocked <- p.Writer.Unlock(owner) }()
			require.NoError(w, p.Reader.Lock(owner))
			w.Released(<-unlocked)
			w.Released(p.Reader.Unlock(owner))
		}
	})
}

// A server that is out of memory grants nothing, but holds can be renewed and released.
func TestLost_OutOfMemory(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Loaded("")
		var held []*lockregistry.Lock
		r := w.Registry()
		for _, path := range []string{"reads", "writes", "both"} {
			if path != "reads" {
				held = append(held, r.ReadWrite(path).Writer())
			}
			if path != "writes" {
				held = append(held, r.ReadWrite(path).Reader())
			}
		}
		held = append(held, r.Obtain("spring"), w.Registry(lockregistry.WithRedissonLayout()).Obtain("redisson"))
		for _, l := range held {
			w.Lock(l, lockregistry.Lease(time.Minute))
		}
		w.Do("CONFIG", "SET", "maxmemory", "1")
		defer w.Do("CONFIG", "SET", "maxmemory", "0")
		require.ErrorContains(w, r.Obtain("another").Lock(w.Context()), "OOM")
		for _, l := range held {
			require.NoError(w, l.Renew(w.Context(), time.Hour), l.Path())
			require.Greater(w, w.Pttl(kit.Key(l)), time.Minute)
		}
		for _, l := range held {
			require.NoError(w, w.UnlessLate(l.Unlock(w.Context())), l.Path())
		}
		w.LeftNothingSoon()
	})
}

// A reader that joins has at least nine tenths of the lease that it asked for.
func TestLost_JoiningReadersGetTheirLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = time.Minute
		reader := w.Registry(lockregistry.WithHandoff(time.Hour)).ReadWrite("42").Reader()
		w.Lock(reader, lockregistry.Lease(lease))
		for _, after := range []time.Duration{lease / 20, lease / 5, lease / 2, lease * 9 / 10} {
			w.Pass(after)
			g := w.Goroutine()
			require.NoError(w, g.Lock(reader, lockregistry.Lease(lease)))
			require.GreaterOrEqual(w, w.Pttl(kit.TheKey), lease*9/10)
		}
	})
}
