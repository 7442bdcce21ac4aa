package lockregistry_test

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
)

func shutdown(w *world, r *lockregistry.Registry) (done <-chan error, cancel context.CancelCauseFunc) {
	w.Helper()
	ctx, cancel := context.WithCancelCause(w.Context())
	w.Cleanup(func() { cancel(nil) })
	result := make(chan error, 1)
	go func() { result <- r.Shutdown(ctx) }()
	w.await("it shuts down", func() bool { return lockregistry.Draining(r) })
	return result, cancel
}

// Who waits here or in Redis, and who asks, gets ErrClosed; the owner goes on, and the registry is closed when it has released.
func TestShutdown(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		held := r.Obtain("held")
		w.lock(held)
		ctx := held.Context(w.Context())
		local := w.goroutine().starts(held)
		w.lock(w.registry().Obtain("taken"))
		remote := w.goroutine().starts(r.Obtain("taken"))
		w.await("both wait", func() bool { return r.Stats().Waiters == 2 })

		start := time.Now()
		done, _ := shutdown(w, r)
		w.fails(<-local, lockregistry.ErrClosed, "lock", "orders:held")
		w.fails(<-remote, lockregistry.ErrClosed, "lock", "orders:taken")
		if w.fake {
			require.Less(w, time.Since(start), 10*time.Millisecond)
		}
		other := w.goroutine()
		for _, path := range []string{"held", "taken", "new"} {
			w.fails(other.lock(r.Obtain(path)), lockregistry.ErrClosed, "lock", "orders:"+path)
			_, err := other.try(r.Obtain(path))
			w.fails(err, lockregistry.ErrClosed, "trylock", "orders:"+path)
			_ = other.do(func() error {
				w.fails(r.Do(w.Context(), path, nothing), lockregistry.ErrClosed, "do", "orders:"+path)
				_, err := r.Acquire(w.Context(), path)
				w.fails(err, lockregistry.ErrClosed, "acquire", "orders:"+path)
				_, err = r.AcquireAll(w.Context(), []string{path, path + "2"})
				w.fails(err, lockregistry.ErrClosed, "acquire", "orders:"+path)
				_, err = r.Once(w.Context(), path, time.Minute, nothing)
				w.fails(err, lockregistry.ErrClosed, "once", "orders:"+path)
				w.fails(r.ReadWrite(path+"rw").Reader().Lock(w.Context()), lockregistry.ErrClosed, "lock", "orders:"+path+"rw")
				return nil
			})
		}

		w.lock(held) // again
		w.unlock(held)
		w.lock(r.Obtain("new"))
		w.unlock(r.Obtain("new"))
		_, err := r.Inspect(w.Context(), "held")
		require.NoError(w, err)
		require.NoError(w, held.Renew(w.Context(), time.Minute))
		require.NoError(w, ctx.Err())
		w.pending(done)
		w.unlock(held)
		require.NoError(w, <-done)
		require.ErrorIs(w, held.Lock(w.Context()), lockregistry.ErrClosed)
		require.NoError(w, r.Shutdown(w.Context()))
		require.True(w, w.free("orders:held"))
	})
}

// All that makes a caller an owner of a hold lets it go on, also to wait.
func TestShutdown_OwnersGoOn(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(w *world, r *lockregistry.Registry) (within context.Context, release func() error){
		"goroutine": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			w.lock(r.Obtain("a"))
			return w.Context(), func() error { return r.Obtain("a").Unlock(w.Context()) }
		},
		"reader": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			l := r.ReadWrite("a").Reader()
			w.lock(l)
			return w.Context(), func() error { return l.Unlock(w.Context()) }
		},
		"an owner that was made": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			ctx := lockregistry.NewOwner(w.Context())
			require.NoError(w, elsewhere(func() error { return r.Obtain("a").Lock(ctx) }))
			return ctx, func() error { return r.Obtain("a").Unlock(ctx) }
		},
		"the context of a lock": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			g := w.goroutine()
			require.NoError(w, g.lock(r.Obtain("a")))
			var ctx context.Context
			_ = g.do(func() error { ctx = r.Obtain("a").Context(w.Context()); return nil })
			return ctx, func() error { return g.unlock(r.Obtain("a")) }
		},
		"a new owner within it": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			g := w.goroutine()
			require.NoError(w, g.lock(r.Obtain("a")))
			var ctx context.Context
			_ = g.do(func() error { ctx = r.Obtain("a").Context(w.Context()); return nil })
			return lockregistry.NewOwner(ctx), func() error { return g.unlock(r.Obtain("a")) }
		},
		"a hold": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			h, err := r.Acquire(w.Context(), "a")
			require.NoError(w, err)
			return w.Context(), func() error { return h.Release(w.Context()) }
		},
		"the context of a hold": func(w *world, r *lockregistry.Registry) (context.Context, func() error) {
			h := elsewhere(func() *lockregistry.Hold {
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
			worlds(t, func(w *world) {
				r := w.registry()
				within, release := hold(w, r)
				local, remote := w.goroutine(), w.registry().Obtain("remote")
				require.NoError(w, local.lock(r.Obtain("local")))
				w.lock(remote)

				done, _ := shutdown(w, r)
				go func() {
					w.await("it waits", func() bool { return r.Stats().Waiters == 1 })
					if err := local.unlock(r.Obtain("local")); err != nil {
						w.Error(err)
					}
				}()
				require.NoError(w, r.Obtain("local").Lock(within))
				require.NoError(w, r.Obtain("local").Unlock(within))
				go func() {
					w.await("it waits", func() bool { return r.Stats().Waiters == 1 })
					w.do("DEL", "orders:remote")
				}()
				require.NoError(w, r.Obtain("remote").Lock(within, lockregistry.Lease(time.Minute)))
				require.NoError(w, r.Obtain("remote").Unlock(within))
				require.NoError(w, r.Obtain("free").Lock(within))
				w.pending(done)
				require.NoError(w, release())
				w.pending(done)
				within = context.WithoutCancel(within)
				require.NoError(w, r.Obtain("free2").Lock(within), "it holds a lock still")
				require.NoError(w, r.Obtain("free2").Unlock(within))
				require.NoError(w, r.Obtain("free").Unlock(within))
				require.NoError(w, <-done)
			})
		})
	}
}

// An owner that waits already goes on waiting, and nobody else who waits for the same.
func TestShutdown_OwnersThatWaitGoOn(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.lock(r.Obtain("local"))
		taken := w.registry().Obtain("remote")
		w.lock(taken)
		one, two, other := w.goroutine(), w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(r.Obtain("1")))
		require.NoError(w, two.lock(r.Obtain("2")))
		var waits [3]<-chan error
		for i, g := range []*goroutine{other, one} {
			waits[i] = g.starts(r.Obtain("local"))
			w.await("it waits", func() bool { return r.Stats().Waiters == i+1 })
		}
		waits[2] = two.starts(r.Obtain("remote"))
		w.await("it waits", func() bool { return r.Stats().Waiters == 3 })
		done, _ := shutdown(w, r)
		require.ErrorIs(w, <-waits[0], lockregistry.ErrClosed)
		w.unlock(taken)
		require.NoError(w, <-waits[2])
		w.pending(waits[1])
		w.unlock(r.Obtain("local"))
		require.NoError(w, <-waits[1])
		for path, g := range map[string]*goroutine{"1": one, "local": one, "2": two, "remote": two} {
			w.pending(done)
			require.NoError(w, g.unlock(r.Obtain(path)))
		}
		require.NoError(w, <-done)
	})
}

// When its context ends first, it does what Close does.
func TestShutdown_EndsWithItsContext(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.lock(r.Obtain("a"))
		w.lock(r.Obtain("b"))
		within := r.Obtain("a").Context(w.Context())
		taken := w.registry().Obtain("taken")
		w.lock(taken)
		done, cancel := shutdown(w, r)
		waits := make(chan error, 1)
		go func() { waits <- r.Obtain("taken").Lock(within) }()
		w.await("it waits", func() bool { return r.Stats().Waiters == 1 })
		cancel(errors.New("time is up"))
		err := <-done
		require.ErrorIs(w, err, context.Canceled)
		require.NotErrorIs(w, err, lockregistry.ErrClosed)
		require.ErrorContains(w, err, "lockregistry: shutdown: 2 locks are held still: context canceled; time is up")
		<-within.Done()
		require.ErrorIs(w, context.Cause(within), lockregistry.ErrClosed)
		err = <-waits
		require.True(w, errors.Is(err, lockregistry.ErrClosed) || errors.Is(err, context.Canceled), err)
		require.ErrorIs(w, r.Obtain("b").Lock(w.Context()), lockregistry.ErrClosed)
		w.unlock(r.Obtain("a"))
		w.unlock(r.Obtain("b"))
	})
}

func TestShutdown_OfWhatIsNotInUse(t *testing.T) {
	worlds(t, func(w *world) {
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		r := w.registry()
		require.ErrorContains(w, r.Shutdown(nil), "the context is nil") //nolint:staticcheck // a caller may do that
		w.lock(r.Obtain("42"))
		w.unlock(r.Obtain("42"))
		require.NoError(w, r.Shutdown(ended), "there is nothing to wait for")
		require.NoError(w, r.Shutdown(w.Context()))
		require.NoError(w, r.Close())
	})
}

func TestShutdown_ClosedMeanwhile(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.lock(r.Obtain("42"))
		done, _ := shutdown(w, r)
		require.NoError(w, r.Close())
		err := <-done
		require.Equal(w, []error{lockregistry.ErrClosed}, about(err), err)
	})
}

func TestShutdown_Twice(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.lock(r.Obtain("42"))
		one, _ := shutdown(w, r)
		two, _ := shutdown(w, r)
		w.unlock(r.Obtain("42"))
		require.NoError(w, <-one)
		require.NoError(w, <-two)
	})
}

// A hold that is lost is nobody's: neither is it waited for, nor does its owner go on.
func TestShutdown_AfterALoss(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		w.lock(r.Obtain("42"), lockregistry.Lease(10*time.Second))
		done, _ := shutdown(w, r)
		w.pass(9 * time.Second)
		w.pending(done)
		w.lock(r.Obtain("43"), lockregistry.Lease(time.Second))
		w.unlock(r.Obtain("43"))
		w.pass(time.Second)
		require.NoError(w, <-done)
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrLockLost)
	})
	fakeWorldAlone(t, func(w *world) {
		r, holds := w.registry(), w.goroutine()
		require.NoError(w, holds.lock(r.Obtain("41")))
		w.lock(r.Obtain("42"), lockregistry.Lease(10*time.Second))
		within := context.WithoutCancel(r.Obtain("42").Context(w.Context()))
		done, _ := shutdown(w, r)
		w.lock(r.Obtain("43"))
		w.unlock(r.Obtain("43"))
		w.pass(10 * time.Second)
		w.fails(r.Obtain("43").Lock(w.Context()), lockregistry.ErrClosed, "lock", "orders:43")
		w.fails(r.Obtain("43").Lock(within), lockregistry.ErrClosed, "lock", "orders:43")
		require.NoError(w, holds.unlock(r.Obtain("41")))
		require.NoError(w, <-done)
	})
}

// It begins when a call is in the queue already, but not among those that it finds waiting.
func TestShutdown_WhenACallIsAboutToWait(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		w.lock(l)
		failed := make(chan error, 1)
		var done <-chan error
		go func() {
			begins := whenQueued{w.Context(), l, func() {
				if done == nil {
					done, _ = shutdown(w, r)
					w.settle()
				}
			}}
			failed <- l.Lock(begins)
		}()
		w.fails(<-failed, lockregistry.ErrClosed, "lock", l.Key())
		w.unlock(l)
		require.NoError(w, <-done)
	})
}

// A call that is about to be turned away is in nobody's way, also while Shutdown has yet to come to it. One that goes on is.
func TestShutdown_NoDeadlockWithACallThatIsTurnedAway(t *testing.T) {
	t.Parallel()
	for name, goesOn := range map[string]bool{"turned away": false, "goes on": true} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				r, other := w.registry(), w.registry()
				owns, waits := w.goroutine(), w.goroutine()
				require.NoError(w, owns.lock(r.Obtain("a")))
				require.NoError(w, waits.lock(other.Obtain("b")))
				if goesOn {
					require.NoError(w, waits.lock(r.Obtain("c")))
				}
				turned := waits.starts(r.Obtain("a"))
				w.await("it waits", func() bool { return r.Stats().Waiters == 1 })
				lockregistry.BeginDrain(r)
				got := owns.starts(other.Obtain("b"))
				if goesOn {
					w.fails(<-got, lockregistry.ErrDeadlock, "lock", "orders:b")
					require.NoError(w, owns.unlock(r.Obtain("a")))
					require.NoError(w, <-turned)
					require.NoError(w, waits.unlock(r.Obtain("a")))
					require.NoError(w, waits.unlock(r.Obtain("c")))
					return
				}
				w.await("it waits, too", func() bool { return other.Stats().Waiters == 1 })
				done, _ := shutdown(w, r)
				w.fails(<-turned, lockregistry.ErrClosed, "lock", "orders:a")
				require.NoError(w, waits.unlock(other.Obtain("b")))
				require.NoError(w, <-got)
				require.NoError(w, owns.unlock(r.Obtain("a")))
				require.NoError(w, <-done)
			})
		})
	}
}

// A registry of Open is closed with its client.
func TestShutdown_OfOpen(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.opened()
		w.lock(r.Obtain("42"))
		done, _ := shutdown(w, r)
		w.unlock(r.Obtain("42"))
		require.NoError(w, <-done)
		w.await("no connection", func() bool { return w.opens() == 0 })
	})
}

// Whoever has got a lock gets the ones that it needs within, whenever the shutdown begins; whoever has none does not.
func TestShutdown_WhileManyLock(t *testing.T) {
	worlds(t, func(w *world) {
		for round := range 5 {
			r := w.registry(lockregistry.WithPollInterval(10 * time.Millisecond))
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
						err := r.Do(w.Context(), "outer"+strconv.Itoa(rand.IntN(4)), func(ctx context.Context) error {
							inner := "inner" + strconv.Itoa(rand.IntN(2))
							sections.Add(1)
							assert.NoError(w, r.Do(ctx, inner, nothing))
							assert.NoError(w, r.Do(w.Context(), inner, nothing))
							return nil
						})
						if err != nil {
							assert.Equal(w, []error{lockregistry.ErrClosed}, about(err), err)
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
			w.leftNothing()
			w.Log(round, sections.Load())
		}
	})
}
