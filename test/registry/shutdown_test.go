package registry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Calls that wait, here or in Redis, and new calls get ErrClosed. The owner continues, and the registry is closed once it has
// released.
func TestShutdown(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		held := r.Obtain("held")
		w.Lock(held)
		ctx := held.Context(w.Context())
		local := w.Goroutine().Starts(held)
		w.Lock(w.Registry().Obtain("taken"))
		remote := w.Goroutine().Starts(r.Obtain("taken"))
		w.Await("both wait", func() bool { return r.Stats().Waiters == 2 })

		start := time.Now()
		done, _ := kit.Shutdown(w, r)
		w.Fails(<-local, lockregistry.ErrClosed, "lock", "orders:held")
		w.Fails(<-remote, lockregistry.ErrClosed, "lock", "orders:taken")
		if w.Fake {
			require.Less(w, time.Since(start), 10*time.Millisecond)
		}
		other := w.Goroutine()
		for _, path := range []string{"held", "taken", "new"} {
			w.Fails(other.Lock(r.Obtain(path)), lockregistry.ErrClosed, "lock", "orders:"+path)
			_, err := other.Try(r.Obtain(path))
			w.Fails(err, lockregistry.ErrClosed, "trylock", "orders:"+path)
			_ = other.Do(func() error {
				w.Fails(r.Do(w.Context(), path, kit.DoNothing), lockregistry.ErrClosed, "do", "orders:"+path)
				_, err := r.Acquire(w.Context(), path)
				w.Fails(err, lockregistry.ErrClosed, "acquire", "orders:"+path)
				_, err = r.AcquireAll(w.Context(), []string{path, path + "2"})
				w.Fails(err, lockregistry.ErrClosed, "acquire", "orders:"+path)
				_, err = r.Once(w.Context(), path, time.Minute, kit.DoNothing)
				w.Fails(err, lockregistry.ErrClosed, "once", "orders:"+path)
				w.Fails(r.ReadWrite(path+"rw").Reader().Lock(w.Context()), lockregistry.ErrClosed, "lock", "orders:"+path+"rw")
				return nil
			})
		}

		w.Lock(held) // nested
		w.Unlock(held)
		w.Lock(r.Obtain("new"))
		w.Unlock(r.Obtain("new"))
		_, err := inspect.Of(r).Inspect(w.Context(), "held")
		require.NoError(w, err)
		require.NoError(w, held.Renew(w.Context(), time.Minute))
		require.NoError(w, ctx.Err())
		w.Pending(done)
		w.Unlock(held)
		require.NoError(w, <-done)
		require.ErrorIs(w, held.Lock(w.Context()), lockregistry.ErrClosed)
		require.NoError(w, r.Shutdown(w.Context()))
		require.True(w, w.Free("orders:held"))
	})
}

// Whatever makes a caller an owner of a hold lets it continue, and wait, too.
func TestShutdown_OwnersGoOn(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(w *kit.World, r *lockregistry.Registry) (within context.Context, release func() error){
		"goroutine": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			w.Lock(r.Obtain("a"))
			return w.Context(), func() error { return r.Obtain("a").Unlock(w.Context()) }
		},
		"reader": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			l := r.ReadWrite("a").Reader()
			w.Lock(l)
			return w.Context(), func() error { return l.Unlock(w.Context()) }
		},
		"an owner that was made": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			ctx := lockregistry.ContextWithOwner(w.Context())
			require.NoError(w, kit.Elsewhere(func() error { return r.Obtain("a").Lock(ctx) }))
			return ctx, func() error { return r.Obtain("a").Unlock(ctx) }
		},
		"the context of a lock": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			g := w.Goroutine()
			require.NoError(w, g.Lock(r.Obtain("a")))
			var ctx context.Context
			_ = g.Do(func() error { ctx = r.Obtain("a").Context(w.Context()); return nil })
			return ctx, func() error { return g.Unlock(r.Obtain("a")) }
		},
		"a new owner within it": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			g := w.Goroutine()
			require.NoError(w, g.Lock(r.Obtain("a")))
			var ctx context.Context
			_ = g.Do(func() error { ctx = r.Obtain("a").Context(w.Context()); return nil })
			return lockregistry.ContextWithOwner(ctx), func() error { return g.Unlock(r.Obtain("a")) }
		},
		"a hold": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			h, err := r.Acquire(w.Context(), "a")
			require.NoError(w, err)
			return w.Context(), func() error { return h.Release(w.Context()) }
		},
		"the context of a hold": func(w *kit.World, r *lockregistry.Registry) (context.Context, func() error) {
			h := kit.Elsewhere(func() *lockregistry.Hold {
				h, err := r.Acquire(w.Context(), "a")
				if err != nil {
					w.Error(err)
				}
				return h
			})
			return h.Context(w.Context()), func() error { return h.Release(w.Context()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				r := w.Registry()
				within, release := hold(w, r)
				local, remote := w.Goroutine(), w.Registry().Obtain("remote")
				require.NoError(w, local.Lock(r.Obtain("local")))
				w.Lock(remote)

				done, _ := kit.Shutdown(w, r)
				go func() {
					w.Await("it waits", func() bool { return r.Stats().Waiters == 1 })
					if err := local.Unlock(r.Obtain("local")); err != nil {
						w.Error(err)
					}
				}()
				require.NoError(w, r.Obtain("local").Lock(within))
				w.Released(r.Obtain("local").Unlock(within))
				go func() {
					w.Await("it waits", func() bool { return r.Stats().Waiters == 1 })
					w.Do("DEL", "orders:remote")
				}()
				require.NoError(w, r.Obtain("remote").Lock(within, lockregistry.Lease(time.Minute)))
				w.Released(r.Obtain("remote").Unlock(within))
				require.NoError(w, r.Obtain("free").Lock(within))
				w.Pending(done)
				w.Released(release())
				w.Pending(done)
				within = context.WithoutCancel(within)
				require.NoError(w, r.Obtain("free2").Lock(within), "it holds a lock still")
				w.Released(r.Obtain("free2").Unlock(within))
				w.Released(r.Obtain("free").Unlock(within))
				require.NoError(w, <-done)
			})
		})
	}
}

// A goroutine that has handed on its hold is no longer an owner.
func TestShutdown_TheFormerOwnerOfAHandoff(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		l, next := r.Obtain("a"), w.Goroutine()
		h := w.Acquires(l)
		got := next.Starts(l)
		w.Settle()
		w.Release(h)
		require.NoError(w, <-got)
		done, _ := kit.Shutdown(w, r)
		w.Fails(r.Obtain("b").Lock(w.Context()), lockregistry.ErrClosed, "lock", "orders:b")
		require.NoError(w, next.Unlock(l))
		require.NoError(w, <-done)
	})
}

// Owners that already wait continue to wait; other calls that wait for the same do not.
func TestShutdown_OwnersThatWaitGoOn(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("local"))
		taken := w.Registry().Obtain("remote")
		w.Lock(taken)
		one, two, other := w.Goroutine(), w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(r.Obtain("1")))
		require.NoError(w, two.Lock(r.Obtain("2")))
		var waits [3]<-chan error
		for i, g := range []*kit.Goroutine{other, one} {
			waits[i] = g.Starts(r.Obtain("local"))
			w.Await("it waits", func() bool { return r.Stats().Waiters == i+1 })
		}
		waits[2] = two.Starts(r.Obtain("remote"))
		w.Await("it waits", func() bool { return r.Stats().Waiters == 3 })
		done, _ := kit.Shutdown(w, r)
		require.ErrorIs(w, <-waits[0], lockregistry.ErrClosed)
		w.Unlock(taken)
		require.NoError(w, <-waits[2])
		w.Pending(waits[1])
		w.Unlock(r.Obtain("local"))
		require.NoError(w, <-waits[1])
		for path, g := range map[string]*kit.Goroutine{"1": one, "local": one, "2": two, "remote": two} {
			w.Pending(done)
			require.NoError(w, g.Unlock(r.Obtain(path)))
		}
		require.NoError(w, <-done)
	})
}

// If its context ends first, Shutdown does what Close does.
func TestShutdown_EndsWithItsContext(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("a"))
		w.Lock(r.Obtain("b"))
		within := r.Obtain("a").Context(w.Context())
		taken := w.Registry().Obtain("taken")
		w.Lock(taken)
		done, cancel := kit.Shutdown(w, r)
		waits := make(chan error, 1)
		go func() { waits <- r.Obtain("taken").Lock(within) }()
		w.Await("it waits", func() bool { return r.Stats().Waiters == 1 })
		cancel(errors.New("time is up"))
		err := <-done
		require.ErrorIs(w, err, context.Canceled)
		require.NotErrorIs(w, err, lockregistry.ErrClosed)
		require.ErrorContains(w, err, "lockregistry: shutdown: 2 locks are still held: context canceled; time is up")
		<-within.Done()
		require.ErrorIs(w, context.Cause(within), lockregistry.ErrClosed)
		err = <-waits
		require.True(w, errors.Is(err, lockregistry.ErrClosed) || errors.Is(err, context.Canceled), err)
		require.ErrorIs(w, r.Obtain("b").Lock(w.Context()), lockregistry.ErrClosed)
		w.Unlock(r.Obtain("a"))
		w.Unlock(r.Obtain("b"))
	})
}

func TestShutdown_OfWhatIsNotInUse(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		r := w.Registry()
		require.ErrorContains(w, r.Shutdown(nil), "the context is nil") //nolint:staticcheck // a caller may do that
		w.Lock(r.Obtain("42"))
		w.Unlock(r.Obtain("42"))
		require.NoError(w, r.Shutdown(ended), "there is nothing to wait for")
		require.NoError(w, r.Shutdown(w.Context()))
		require.NoError(w, r.Close())
	})
}

func TestShutdown_ClosedMeanwhile(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("42"))
		done, _ := kit.Shutdown(w, r)
		require.NoError(w, r.Close())
		err := <-done
		require.Equal(w, []error{lockregistry.ErrClosed}, kit.SentinelsOf(err), err)
	})
}

func TestShutdown_Twice(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("42"))
		one, _ := kit.Shutdown(w, r)
		two, _ := kit.Shutdown(w, r)
		w.Unlock(r.Obtain("42"))
		require.NoError(w, <-one)
		require.NoError(w, <-two)
	})
}

// A lost hold does not count: Shutdown does not wait for it, nor may its owner continue.
func TestShutdown_AfterALoss(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("42"), lockregistry.Lease(10*time.Second))
		done, _ := kit.Shutdown(w, r)
		w.Pass(9 * time.Second)
		w.Pending(done)
		w.Lock(r.Obtain("43"), lockregistry.Lease(time.Second))
		w.Unlock(r.Obtain("43"))
		w.Pass(time.Second)
		require.NoError(w, <-done)
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost)
	})
	kit.FakeWorldAlone(t, func(w *kit.World) {
		r, holds := w.Registry(), w.Goroutine()
		require.NoError(w, holds.Lock(r.Obtain("41")))
		w.Lock(r.Obtain("42"), lockregistry.Lease(10*time.Second))
		within := context.WithoutCancel(r.Obtain("42").Context(w.Context()))
		done, _ := kit.Shutdown(w, r)
		w.Lock(r.Obtain("43"))
		w.Unlock(r.Obtain("43"))
		w.Pass(10 * time.Second)
		w.Fails(r.Obtain("43").Lock(w.Context()), lockregistry.ErrClosed, "lock", "orders:43")
		w.Fails(r.Obtain("43").Lock(within), lockregistry.ErrClosed, "lock", "orders:43")
		require.NoError(w, holds.Unlock(r.Obtain("41")))
		require.NoError(w, <-done)
	})
}

// Shutdown begins when a call is already in the queue, but not among the calls that it finds waiting.
func TestShutdown_WhenACallIsAboutToWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		failed := make(chan error, 1)
		var done <-chan error
		go func() {
			begins := whenQueued{w.Context(), l, func() {
				if done == nil {
					done, _ = kit.Shutdown(w, r)
					w.Settle()
				}
			}}
			failed <- l.Lock(begins)
		}()
		w.Fails(<-failed, lockregistry.ErrClosed, "lock", kit.Key(l))
		w.Unlock(l)
		require.NoError(w, <-done)
	})
}

// A call that is about to be turned away is part of no deadlock, even before Shutdown has come to it. A call that continues may
// be.
func TestShutdown_NoDeadlockWithACallThatIsTurnedAway(t *testing.T) {
	t.Parallel()
	for name, goesOn := range map[string]bool{"turned away": false, "goes on": true} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				r, other := w.Registry(), w.Registry()
				owns, waits := w.Goroutine(), w.Goroutine()
				require.NoError(w, owns.Lock(r.Obtain("a")))
				require.NoError(w, waits.Lock(other.Obtain("b")))
				if goesOn {
					require.NoError(w, waits.Lock(r.Obtain("c")))
				}
				turned := waits.Starts(r.Obtain("a"))
				w.Await("it waits", func() bool { return r.Stats().Waiters == 1 })
				kit.BeginDrain(r)
				got := owns.Starts(other.Obtain("b"))
				if goesOn {
					select { // the later of the two in the graph of waiting calls
					case err := <-got:
						w.Fails(err, lockregistry.ErrDeadlock, "lock", "orders:b")
						require.NoError(w, owns.Unlock(r.Obtain("a")))
						require.NoError(w, <-turned)
						require.NoError(w, waits.Unlock(r.Obtain("a")))
					case err := <-turned:
						require.False(w, w.Fake)
						w.Fails(err, lockregistry.ErrDeadlock, "lock", "orders:a")
						require.NoError(w, waits.Unlock(other.Obtain("b")))
						require.NoError(w, <-got)
					}
					require.NoError(w, waits.Unlock(r.Obtain("c")))
					return
				}
				w.Await("it waits, too", func() bool { return other.Stats().Waiters == 1 })
				done, _ := kit.Shutdown(w, r)
				w.Fails(<-turned, lockregistry.ErrClosed, "lock", "orders:a")
				require.NoError(w, waits.Unlock(other.Obtain("b")))
				require.NoError(w, <-got)
				require.NoError(w, owns.Unlock(r.Obtain("a")))
				require.NoError(w, <-done)
			})
		})
	}
}

// A registry made by Open is closed together with its client.
func TestShutdown_OfOpen(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := opened(w)
		w.Lock(r.Obtain("42"))
		done, _ := kit.Shutdown(w, r)
		w.Unlock(r.Obtain("42"))
		require.NoError(w, <-done)
		w.Await("no connection", func() bool { return opens(w) == 0 })
	})
}

// A goroutine that holds a lock gets the locks that it needs within, whenever the shutdown begins; others get none.
func TestShutdown_WhileManyLock(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		for round := range 5 {
			r := w.Registry(lockregistry.WithPollInterval(10 * time.Millisecond))
			var all sync.WaitGroup
			var sections, refused atomic.Int32
			begin := make(chan struct{})
			for range 20 {
				all.Go(func() {
					for i := range 1000 {
						if i == 3 {
							select {
							case begin <- struct{}{}:
							default:
							}
						}
						err := w.UnlessBusy(r.Do(w.Context(), "outer"+strconv.Itoa(rand.IntN(4)), func(ctx context.Context) error {
							inner := "inner" + strconv.Itoa(rand.IntN(2))
							sections.Add(1)
							assert.NoError(w, w.UnlessBusy(r.Do(ctx, inner, kit.DoNothing)))
							assert.NoError(w, w.UnlessBusy(r.Do(w.Context(), inner, kit.DoNothing)))
							return nil
						}))
						if err != nil {
							assert.Equal(w, []error{lockregistry.ErrClosed}, kit.SentinelsOf(err), err)
							refused.Add(1)
							return
						}
					}
				})
			}
			<-begin
			require.NoError(w, r.Shutdown(w.Context()))
			all.Wait()
			require.Equal(w, int32(20), refused.Load())
			w.LeftNothing()
			w.Log(round, sections.Load())
		}
	})
}

// Calls that are turned away do not keep a shutdown open, however many there are.
func TestShutdown_WhileManyAreTurnedAway(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		for i := range 10_000 {
			r.Obtain("idle" + strconv.Itoa(i))
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var over atomic.Bool
		for i := range 20 {
			l := r.Obtain("42" + strconv.Itoa(i))
			all.Go(func() {
				for !over.Load() {
					if l.Lock(w.Context()) == nil {
						assert.NoError(w, w.UnlessBusy(l.Unlock(w.Context())))
					}
				}
			})
		}
		require.NoError(w, r.Shutdown(ctx))
		over.Store(true)
		all.Wait()
	})
}
