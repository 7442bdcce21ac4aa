package lockregistry_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What the documentation of locks promises, sentence by sentence.

// Owners.

func TestLock_AnOwnerIsNotBoundToAGoroutine(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		other := w.goroutine()
		ctx := lockregistry.NewOwner(w.Context())

		require.NoError(w, l.Lock(ctx))
		require.NoError(w, other.do(func() error { return l.Lock(ctx) }), "nests elsewhere")
		require.NoError(w, other.do(func() error { return l.Renew(ctx, time.Hour) }))
		require.NoError(w, other.do(func() error { return l.Context(ctx).Err() }))
		require.NoError(w, other.do(func() error { return r.Do(ctx, "42", func(ctx context.Context) error { return ctx.Err() }) }))
		require.False(w, w.tryElsewhere(l))
		require.NoError(w, other.do(func() error { return l.Unlock(ctx) }))
		require.True(w, l.IsHeld())
		require.False(w, w.tryElsewhere(l))
		require.NoError(w, other.do(func() error { return l.Unlock(ctx) }), "unlocks elsewhere")
		require.True(w, w.free("orders:42"))
		w.fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
	})
}

func TestLock_OwnersExcludeEachOtherOnOneGoroutine(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		a, b := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
		require.NoError(w, l.Lock(a))
		for _, other := range []context.Context{b, w.Context(), lockregistry.NewOwner(a)} {
			ok, err := l.TryLock(other)
			require.NoError(w, err)
			require.False(w, ok)
			w.fails(l.Unlock(other), lockregistry.ErrNotOwner, "unlock", "orders:42")
			w.fails(l.Renew(other, time.Hour), lockregistry.ErrNotOwner, "renew", "orders:42")
			require.ErrorIs(w, context.Cause(l.Context(other)), lockregistry.ErrNotOwner)
		}
		type key struct{}
		child, cancel := context.WithTimeout(context.WithValue(a, key{}, 1), time.Hour)
		defer cancel()
		require.NoError(w, l.Lock(child), "a child of the context carries the owner")
		require.NoError(w, l.Unlock(child))
		require.LessOrEqual(w, w.pttl("orders:42"), time.Minute)
		require.NoError(w, l.Unlock(a))

		w.lock(l)
		ok, err := l.TryLock(a)
		require.NoError(w, err)
		require.False(w, ok, "an owner in the context goes before the goroutine")
		w.unlock(l)
	})
}

// Two goroutines of one owner lock at once, while a third party holds: when one gets the lock, both have it.
func TestLock_AnOwnerWaitsOnTwoGoroutines(t *testing.T) {
	t.Parallel()
	for _, remote := range []bool{false, true} {
		t.Run(map[bool]string{false: "local", true: "remote"}[remote], func(t *testing.T) {
			worlds(t, func(w *world) {
				r := w.registry()
				l := r.Obtain("42")
				holder := l
				if remote {
					holder = w.registry().Obtain("42")
				}
				w.lock(holder)
				ctx := lockregistry.NewOwner(w.Context())
				first, second := lockElsewhere(l, ctx), lockElsewhere(l, ctx)
				if w.fake {
					w.settle()
					w.pass(time.Second)
				}
				w.pending(first)
				w.pending(second)
				w.unlock(holder)
				require.NoError(w, <-first)
				require.NoError(w, <-second)
				require.NoError(w, l.Unlock(ctx))
				require.True(w, l.IsHeld())
				require.False(w, w.tryElsewhere(l))
				require.False(w, w.free("orders:42"))
				require.NoError(w, l.Unlock(ctx))
				require.True(w, w.free("orders:42"))
				w.fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
			})
		})
	}
}

// The second goroutine of an owner must not believe that it holds the lock while the first one still asks Redis.
func TestLock_AnOwnerHoldsNothingBeforeRedisHasAnswered(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		delivery := make(chan struct{})
		f.next("obtain", heldUp(delivery))
		ctx := lockregistry.NewOwner(w.Context())
		first := lockElsewhere(l, ctx)
		w.settle()
		second := lockElsewhere(l, ctx)
		w.settle()
		w.pending(second)
		ok, err := l.TryLock(ctx)
		require.NoError(w, err)
		require.False(w, ok)
		w.fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
		close(delivery)
		require.NoError(w, <-first)
		require.NoError(w, <-second)
		require.NoError(w, l.Unlock(ctx))
		require.NoError(w, l.Unlock(ctx))
	})
}

// Lock.

func TestLock_CancelledWhileWaitingForThisProcess(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l)
		sent := f.lockCommands()
		ctx, cancel := context.WithCancel(w.Context())
		given, behind := lockElsewhere(l, ctx), w.goroutine()
		if w.fake {
			w.settle() // so that given waits before behind
		}
		locked := behind.starts(l)
		if w.fake {
			w.settle()
		}
		w.pending(given)
		start := time.Now()
		cancel()
		w.fails(<-given, context.Canceled, "lock", "orders:42")
		if w.fake {
			require.Zero(w, time.Since(start))
		}
		w.pending(locked)
		require.True(w, l.IsHeld())
		require.Equal(w, sent, f.lockCommands(), "who waits for this process does not talk to Redis")
		w.unlock(l)
		require.NoError(w, <-locked)
		require.NoError(w, behind.unlock(l))
		require.True(w, w.free("orders:42"))
		require.True(w, w.tryElsewhere(l))
	})
}

func TestLock_CancelledWhileWaitingForRedis(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		mine, theirs := f.registry().Obtain("42"), w.registry().Obtain("42")
		w.lock(theirs)
		value := w.do("GET", "orders:42")
		ctx, cancel := context.WithCancel(w.Context())
		given := lockElsewhere(mine, ctx)
		w.await("the waiter has asked Redis", func() bool { return f.count("obtain") > 0 })
		locked := w.goroutine().starts(mine) // behind it, in this process
		if w.fake {
			w.settle()
		}
		w.pending(given)
		start := time.Now()
		cancel()
		if err := <-given; w.fake {
			w.fails(err, context.Canceled, "lock", "orders:42")
			require.Zero(w, time.Since(start), "without waiting for a poll")
		} else { // it may have been told nothing yet
			require.ErrorIs(w, err, context.Canceled)
		}
		// The mark says that somebody waits, as the other call may already.
		require.Equal(w, value, strings.TrimSuffix(w.do("GET", "orders:42"), "+"))
		require.False(w, mine.IsHeld())
		w.pending(locked)
		w.unlock(theirs)
		require.NoError(w, <-locked)
	})
}

func TestLock_NothingIsLeftOfACancelledLock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		mine := f.registry().Obtain("42")
		w.do("SET", "orders:42", "for ever")
		ctx, cancel := context.WithCancel(w.Context())
		given := lockElsewhere(mine, ctx)
		w.settle()
		cancel()
		require.ErrorIs(w, <-given, context.Canceled)
		w.do("DEL", "orders:42")
		sent := f.lockCommands()
		w.pass(time.Hour)
		require.True(w, w.free("orders:42"))
		require.Equal(w, sent, f.lockCommands())
		require.True(w, w.tryElsewhere(mine))
	})
}

func TestLock_CauseOfACancelledLock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.do("SET", "orders:42", "for ever")
		why := errors.New("the user went away")
		ctx, cancel := context.WithCancelCause(w.Context())
		given := lockElsewhere(l, ctx)
		w.settle()
		cancel(why)
		err := <-given
		w.fails(err, context.Canceled, "lock", "orders:42")
		require.ErrorIs(w, err, why)
	})
}

func TestLock_DeadlineOfALock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.do("SET", "orders:42", "for ever")
		ctx, cancel := context.WithTimeout(w.Context(), 1234*time.Millisecond)
		defer cancel()
		start := time.Now()
		other := w.goroutine().start(func() error { return l.Lock(ctx) }) // the one for Redis, the other for this process
		w.fails(l.Lock(ctx), context.DeadlineExceeded, "lock", "orders:42")
		w.fails(<-other, context.DeadlineExceeded, "lock", "orders:42")
		require.Equal(w, 1234*time.Millisecond, time.Since(start))
		w.do("DEL", "orders:42")
		require.True(w, w.tryElsewhere(l))
	})
}

func TestContext_ThatIsDoneBefore(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		l := r.Obtain("42")
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, tried := l.TryLock(ctx)
		w.fails(tried, context.Canceled, "trylock", "orders:42")
		w.fails(l.Lock(ctx), context.Canceled, "lock", "orders:42")
		w.fails(r.Do(ctx, "42", func(context.Context) error {
			w.Error("fn runs without the lock")
			return nil
		}), context.Canceled, "do", "orders:42")
		require.Zero(w, f.lockCommands())
		require.False(w, l.IsHeld())
		require.True(w, w.tryElsewhere(l))

		w.lock(l)
		w.fails(l.Lock(ctx), context.Canceled, "lock", "orders:42")
		w.unlock(l)
		require.True(w, w.free("orders:42"), "the failed one does not count")
	})
}

func TestReentry_AfterLoss(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		w.do("DEL", "orders:42")
		w.fails(l.Lock(w.Context()), lockregistry.ErrLockLost, "lock", "orders:42")
		_, err := l.TryLock(w.Context())
		w.fails(err, lockregistry.ErrLockLost, "trylock", "orders:42")
		require.True(w, w.free("orders:42"), "the lock is not taken anew")
		require.False(w, l.IsHeld())
		w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42") // the failed ones do not count
		w.lock(l)
		w.unlock(l)
	})
}

// When the key is there still, or again, the hold is as lost.
func TestReentry_AfterTheLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(10*time.Second))
		value := w.do("GET", "orders:42")
		w.pass(10 * time.Second)
		w.do("SET", "orders:42", value, "PX", "5000")
		sent := f.lockCommands()
		w.fails(l.Lock(w.Context()), lockregistry.ErrLockLost, "lock", "orders:42")
		require.Equal(w, sent, f.lockCommands(), "no need to ask")
		require.Equal(w, 5*time.Second, w.pttl("orders:42"))
	})
}

// TryLock and Wait.

func TestTryLock_DoesNotWait(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		start := time.Now()
		w.do("SET", "orders:42", "for ever")
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok, "held in Redis")
		w.do("DEL", "orders:42")
		w.lock(l)
		require.False(w, w.tryElsewhere(l), "held here")
		require.Zero(w, time.Since(start))
	})
}

func TestWait(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		w.do("SET", "orders:42", "for ever")
		const wait = 250 * time.Millisecond
		waits := func(try func() error) {
			w.Helper()
			start := time.Now()
			require.NoError(w, try())
			took := time.Since(start)
			require.GreaterOrEqual(w, took, wait)
			if w.fake {
				require.Equal(w, wait, took, "not rounded to polls")
			}
		}
		expired := func(err error, op string) error {
			w.fails(err, lockregistry.ErrTaken, op, "orders:42")
			return nil
		}
		waits(func() error {
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
			require.False(w, ok)
			return err
		})
		waits(func() error { return expired(l.Lock(w.Context(), lockregistry.Wait(wait)), "lock") })
		waits(func() error {
			return expired(r.Do(w.Context(), "42", func(context.Context) error {
				w.Error("fn runs without the lock")
				return nil
			}, lockregistry.Wait(wait)), "do")
		})

		w.do("DEL", "orders:42")
		other := w.goroutine()
		require.NoError(w, other.lock(l)) // in this process
		waits(func() error {
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
			require.False(w, ok)
			return err
		})
		waits(func() error { return expired(l.Lock(w.Context(), lockregistry.Wait(wait)), "lock") })
		require.NoError(w, other.unlock(l))
		require.True(w, w.tryElsewhere(l))
	})
}

func TestWait_ThatIsLongEnough(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		other := w.goroutine()
		w.do("SET", "orders:42", "a while", "PX", "200")
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		require.True(w, ok)
		locked := other.starts(l, lockregistry.Wait(time.Minute))
		w.pending(locked)
		w.unlock(l)
		require.NoError(w, <-locked)
		require.NoError(w, other.unlock(l))
	})
}

func TestWait_CoversThisProcessAndRedis(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		start := time.Now()
		locked := w.goroutine().starts(l, lockregistry.Wait(time.Second))
		w.settle()
		w.pass(600 * time.Millisecond)
		w.do("SET", "orders:42", "another's")
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.settle()
		w.pending(locked) // on Redis, from now on
		w.fails(<-locked, lockregistry.ErrTaken, "lock", "orders:42")
		require.Equal(w, time.Second, time.Since(start))
	})
}

func TestLock_FirstInFirstOut(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		const waiters = 12
		order := make(chan int, waiters)
		leave := map[int]context.CancelFunc{}
		left := make(chan error, waiters)
		for i := range waiters {
			ctx, cancel := context.WithCancel(w.Context())
			defer cancel()
			leave[i] = cancel
			go func() {
				if err := l.Lock(ctx); err != nil {
					left <- err
					return
				}
				order <- i
				left <- l.Unlock(w.Context())
			}()
			w.settle()
		}
		for _, i := range []int{0, 4, 5, waiters - 1} { // the first, some in between, the last
			leave[i]()
			require.ErrorIs(w, <-left, context.Canceled)
		}
		require.Empty(w, order)
		start := time.Now()
		w.unlock(l)
		for _, i := range []int{1, 2, 3, 6, 7, 8, 9, 10} {
			require.Equal(w, i, <-order)
			require.NoError(w, <-left)
		}
		require.Zero(w, time.Since(start), "local waiters do not poll")
	})
}

// Who comes when a waiter's turn has come cannot overtake it.
func TestLock_NobodyOvertakesWhoWaits(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithHandoff(0)).Obtain("42")
		w.lock(l)
		locked := w.goroutine().starts(l)
		w.settle()
		delivery, turn := make(chan struct{}), make(chan struct{})
		f.all("release", heldUp(delivery))
		f.next("obtain", heldUp(turn))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		w.unavailable(l.Unlock(ctx), "unlock") // goes on in the background
		w.settle()
		ok, err := w.goroutine().try(l)
		require.False(w, ok)
		require.NoError(w, err, "the removal's answer is not late yet: the key is there")
		w.pending(locked)
		close(delivery)
		w.settle()
		require.False(w, w.tryElsewhere(l))
		w.pending(locked)
		close(turn)
		require.NoError(w, <-locked)
	})
}

// Unlock.

func TestUnlock_WithADoneContext(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		l := r.Obtain("42")
		w.lock(l)
		hold := l.Context(w.Context())
		delivery := make(chan struct{})
		f.all("release", heldUp(delivery))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		w.fails(l.Unlock(ctx), lockregistry.ErrUnavailable, "unlock", "orders:42")
		require.Equal(w, 100*time.Millisecond, time.Since(start))
		require.False(w, l.IsHeld())
		require.Error(w, hold.Err())
		w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")

		w.settle()
		locked := w.goroutine().starts(l)
		w.settle()
		require.False(w, w.free("orders:42"))
		w.pending(locked)
		ok, err := w.goroutine().try(l)
		require.False(w, ok, "the local half is not free before the key is removed")
		require.NoError(w, err, "the removal's answer is not late yet: the key is there")
		w.pass(3 * time.Second)
		ok, err = w.goroutine().try(l)
		require.False(w, ok)
		w.fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		require.Equal(w, 1, f.count("obtain"), "and nobody asks Redis for it")

		close(delivery)
		require.NoError(w, <-locked)
		require.True(w, l.IsHeld())
	})
}

// When the time is over without an answer, Unlock says so, whichever connection the next removal takes.
func TestUnlock_OneConnectionIsStuck(t *testing.T) {
	t.Parallel()
	for range 10 { // the client chooses a connection by chance
		t.Run("", func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(lockregistry.WithHandoff(0)).Obtain("42")
				w.lock(l)
				delivery := make(chan struct{})
				f.next("release", heldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				cancel()
				start := time.Now()
				w.unavailable(l.Unlock(ctx), "unlock")
				require.Equal(w, 100*time.Millisecond, time.Since(start))
				close(delivery)
				w.awaitGone(theKey)
			})
		})
	}
}

func TestUnlock_WithADoneContextRemovesTheKey(t *testing.T) { // alone: Unlock waits for 100 ms then
	worldsAlone(t, func(w *world) {
		l := w.registry().Obtain("42")
		ctx, cancel := context.WithCancel(w.Context())
		require.NoError(w, l.Lock(ctx))
		cancel()
		require.NoError(w, l.Unlock(ctx))
		w.awaitGone("orders:42")
		w.lock(l)
		w.unlock(l)
	})
}

// Also when the context ends while Unlock waits for Redis.
func TestContext_EndsDuringUnlock(t *testing.T) {
	t.Parallel()
	for _, deadline := range []bool{false, true} {
		t.Run(map[bool]string{false: "cancelled", true: "deadline"}[deadline], func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry().Obtain("42")
				w.lock(l)
				w.unlock(l) // everything is known about the server from now on
				w.lock(l)
				delivery := make(chan struct{})
				f.all("release", heldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				if deadline {
					ctx, cancel = context.WithTimeout(w.Context(), 300*time.Millisecond)
					defer cancel()
				} else {
					time.AfterFunc(300*time.Millisecond, cancel)
				}
				start := time.Now()
				err := l.Unlock(ctx)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.NotErrorIs(w, err, ctx.Err())
				require.Equal(w, 400*time.Millisecond, time.Since(start))
				require.False(w, l.IsHeld())
				close(delivery)
				w.awaitGone("orders:42")
				w.settle()
				require.True(w, w.tryElsewhere(l))
			})
		})
	}
}

func TestClose_WaitsForRemovals(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		l := r.Obtain("42")
		w.lock(l)
		delivery := make(chan struct{})
		f.all("release", heldUp(delivery))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
		closed := w.goroutine().start(r.Close)
		w.settle()
		w.pending(closed)
		require.False(w, w.free("orders:42"))
		close(delivery)
		require.NoError(w, <-closed)
		require.True(w, w.free("orders:42"))
	})
}

// Even those that have failed so far, and are due only at the next poll, get another chance.
func TestClose_TriesRemovalsOnceMore(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithPollInterval(time.Minute))
		l := r.Obtain("42")
		w.lock(l, lockregistry.Lease(time.Hour))
		f.all("release", refused("LOADING Redis is loading the dataset in memory"))
		require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
		w.settle()
		f.Forget()
		require.False(w, w.free("orders:42"))
		start := time.Now()
		require.NoError(w, r.Close())
		require.Zero(w, time.Since(start))
		require.True(w, w.free("orders:42"))
	})
}

func TestClose_DoesNotWaitForEver(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		l := r.Obtain("42")
		w.lock(l)
		f.all(anything, silence)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
		w.settle()
		start := time.Now()
		require.NoError(w, r.Close())
		require.LessOrEqual(w, time.Since(start), 1100*time.Millisecond)
	})
}

// Close.

func TestClose(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		client := f.client()
		r := w.registryOn(client)
		held := r.Obtain("held")
		w.lock(held)
		hold := held.Context(w.Context())
		localWaiter := w.goroutine().starts(held)
		w.do("SET", "orders:42", "for ever")
		before := f.count("obtain")
		redisWaiter := w.goroutine().starts(r.Obtain("42"))
		w.await("the waiter has asked Redis", func() bool { return f.count("obtain") > before })
		if w.fake {
			w.settle()
		}
		w.pending(localWaiter)
		w.pending(redisWaiter)

		start := time.Now()
		require.NoError(w, r.Close())
		w.fails(<-localWaiter, lockregistry.ErrClosed, "lock", "orders:held")
		w.fails(<-redisWaiter, lockregistry.ErrClosed, "lock", "orders:42")
		if w.fake {
			require.Zero(w, time.Since(start))
		}
		<-hold.Done()
		require.Equal(w, lockregistry.ErrClosed, context.Cause(hold))
		require.Greater(w, w.pttl("orders:held"), time.Duration(0), "left to its lease")
		require.Equal(w, "for ever", w.do("GET", "orders:42"))

		for _, l := range []*lockregistry.Lock{held, r.Obtain("42"), r.Obtain("new")} {
			_, tried := l.TryLock(w.Context())
			w.fails(tried, lockregistry.ErrClosed, "trylock", l.Key())
			w.fails(l.Lock(w.Context()), lockregistry.ErrClosed, "lock", l.Key())
			w.fails(r.Do(w.Context(), l.Path(), nothing), lockregistry.ErrClosed, "do", l.Key())
		}
		<-held.Context(w.Context()).Done()
		require.NoError(w, held.Unlock(w.Context()))
		require.True(w, w.free("orders:held"), "Unlock removes it as before")

		require.NoError(w, r.Close())
		require.Equal(w, "PONG", said(client, "PING"), "the client is its user's")
		require.True(w, w.tryElsewhere(w.registryOn(client).Obtain("held")))
	})
}

// whenQueued is a context that does something once its call is in the queue, and before it waits there.
type whenQueued struct {
	context.Context
	lock *lockregistry.Lock
	then func()
}

func (c whenQueued) Deadline() (time.Time, bool) {
	if lockregistry.Contended(c.lock) {
		c.then()
	}
	return c.Context.Deadline()
}

// whenWaiting is a context that does something once its call is about to wait in the queue, where others find it.
type whenWaiting struct {
	context.Context
	times *int // that its channel was asked for
	then  func()
}

func (c whenWaiting) Done() <-chan struct{} {
	if *c.times++; *c.times == 2 {
		c.then()
	}
	return c.Context.Done()
}

// A call that waits for others of its process has its turn, and then the registry closes, before the call knows.
func TestLock_NobodyGetsInAfterClose(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithHandoff(0))
		l, holds := r.Obtain("42"), w.goroutine()
		require.NoError(w, holds.lock(l))
		failed, asked := make(chan error, 1), 0
		var unlocked, closed error
		go func() {
			failed <- l.Lock(whenWaiting{w.Context(), &asked, func() {
				assert.True(w, lockregistry.Contended(l))
				unlocked = holds.unlock(l)
				assert.False(w, lockregistry.Contended(l), "it is its turn")
				closed = r.Close()
			}})
		}()
		w.fails(<-failed, lockregistry.ErrClosed, "lock", l.Key())
		require.NoError(w, unlocked)
		require.NoError(w, closed)
		require.True(w, w.free(theKey))
	})
}

// The registry closes when a call is in the queue already, but not among those that Close finds waiting.
func TestClose_WhenACallIsAboutToWait(t *testing.T) {
	fakeWorld(t, func(w *world) {
		for _, which := range []string{"plain", "write", "read"} {
			r := w.registry()
			l := map[string]*lockregistry.Lock{
				"plain": r.Obtain("a"), "write": r.ReadWrite("b").Writer(), "read": r.ReadWrite("c").Reader(),
			}[which]
			held := l
			if which == "read" {
				held = r.ReadWrite("c").Writer()
			}
			w.lock(held)
			failed := make(chan error, 1)
			go func() {
				closing := whenQueued{w.Context(), l, func() { assert.NoError(w, r.Close()) }}
				failed <- l.Lock(closing)
			}()
			w.fails(<-failed, lockregistry.ErrClosed, "lock", l.Key())
			w.unlock(held)
		}
	})
}

func TestClose_AtOnceFromManyGoroutines(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithRenewal())
		w.lock(r.Obtain("42"))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { assert.NoError(w, r.Close()) })
		}
		all.Wait()
	})
}

func TestClose_OfAnUnusedRegistry(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		r.Obtain("42")
		require.NoError(w, r.Close())
		require.Zero(w, f.lockCommands())
	})
}

// Context.

func TestContext_EndsWithTheHold(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		outer := l.Context(w.Context())
		w.lock(l)
		inner := l.Context(w.Context())
		w.unlock(l)
		require.NoError(w, outer.Err())
		require.NoError(w, inner.Err())
		w.unlock(l)
		for _, ctx := range []context.Context{outer, inner} {
			require.ErrorIs(w, ctx.Err(), context.Canceled)
			require.Equal(w, context.Canceled, context.Cause(ctx))
		}
		w.lock(l)
		require.NoError(w, l.Context(w.Context()).Err())
		require.Error(w, outer.Err())
		w.unlock(l)
	})
}

func TestContext_IsAChild(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l)
		type key struct{}
		why := errors.New("enough")
		parent, cancel := context.WithCancelCause(context.WithValue(w.Context(), key{}, "value"))
		ctx := l.Context(parent)
		require.Equal(w, "value", ctx.Value(key{}))
		cancel(why)
		require.ErrorIs(w, ctx.Err(), context.Canceled)
		require.Equal(w, why, context.Cause(ctx))
		require.True(w, l.IsHeld())
		w.unlock(l)
	})
}

func TestContext_WithoutAHold(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		ctx := l.Context(w.Context())
		require.ErrorIs(w, ctx.Err(), context.Canceled)
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(ctx))
		w.lock(l)
		require.Equal(w, lockregistry.ErrNotOwner, elsewhere(func() error { return context.Cause(l.Context(w.Context())) }))
		w.do("DEL", "orders:42")
		require.Error(w, l.Renew(w.Context(), time.Minute))
		require.ErrorIs(w, context.Cause(l.Context(w.Context())), lockregistry.ErrLockLost)
	})
}

// Whatever call finds out that the hold is lost, all its contexts are told.
func TestContext_ContextsLearnOfALoss(t *testing.T) {
	worlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		for name, findOut := range map[string]func() error{
			"lock":  func() error { return l.Lock(w.Context()) },
			"renew": func() error { return l.Renew(w.Context(), time.Minute) },
		} {
			w.lock(l)
			ctx := l.Context(w.Context())
			another := l.Context(w.Context())
			w.do("DEL", "orders:42")
			require.ErrorIs(w, findOut(), lockregistry.ErrLockLost)
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, name)
			require.ErrorIs(w, context.Cause(another), lockregistry.ErrLockLost, name)
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		}
	})
}

// Do.

func TestDo(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		type key struct{}
		failed := errors.New("out of paper")
		var inside context.Context
		err := r.Do(context.WithValue(w.Context(), key{}, "value"), "42", func(ctx context.Context) error {
			inside = ctx
			require.NoError(w, ctx.Err())
			require.Equal(w, "value", ctx.Value(key{}))
			require.True(w, l.IsHeld())
			require.False(w, w.free("orders:42"))
			require.False(w, w.tryElsewhere(l))
			require.NoError(w, r.Do(ctx, "42", nothing), "nests")
			require.NoError(w, ctx.Err())
			require.True(w, l.IsHeld())
			return failed
		})
		require.Equal(w, failed, err)
		require.Error(w, inside.Err())
		require.True(w, w.free("orders:42"))
		require.NoError(w, r.Do(w.Context(), "42", nothing))
		require.True(w, w.tryElsewhere(l))
	})
}

func TestDo_JoinsTheLoss(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		failed := errors.New("out of paper")
		err := r.Do(w.Context(), "42", func(context.Context) error {
			w.do("DEL", "orders:42")
			return failed
		})
		require.ErrorIs(w, err, failed)
		w.fails(err, lockregistry.ErrLockLost, "unlock", "orders:42")
		require.ErrorIs(w, r.Do(w.Context(), "42", func(context.Context) error {
			w.do("DEL", "orders:42")
			return nil
		}), lockregistry.ErrLockLost, "although fn succeeded")
		require.True(w, w.tryElsewhere(r.Obtain("42")))
	})
}

func TestDo_TellsFnOfTheLoss(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithRenewal())
		err := r.Do(w.Context(), "42", func(ctx context.Context) error {
			w.do("DEL", "orders:42")
			<-ctx.Done() // the next renewal finds out
			return context.Cause(ctx)
		}, lockregistry.Lease(brief))
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
	})
}

func TestDo_UnlocksWhenItsContextEnds(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		ctx, cancel := context.WithCancel(w.Context())
		require.ErrorIs(w, r.Do(ctx, "42", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}), context.Canceled)
		require.True(w, w.free("orders:42"), "before Do returns")
		require.True(w, w.tryElsewhere(r.Obtain("42")))
	})
}

func TestDo_UnlocksWhenFnPanics(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		require.PanicsWithValue(w, "oops", func() {
			_ = r.Do(w.Context(), "42", func(context.Context) error { panic("oops") })
		})
		require.True(w, w.free("orders:42"))
		require.True(w, w.tryElsewhere(r.Obtain("42")))
	})
}

func TestDo_UnlocksWhenFnEndsItsGoroutine(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.Do(w.Context(), "42", func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-ended
		require.True(w, w.free("orders:42"))
		require.True(w, w.tryElsewhere(r.Obtain("42")))
	})
}

// Both sides of a read-write lock: readers share, a writer excludes them. The context of one that writes nests in reading, too.
func TestDo_OfAReadWriteLock(t *testing.T) {
	worlds(t, func(w *world) {
		rw, other := w.registry().ReadWrite("42"), w.registry().ReadWrite("42")
		failed := errors.New("out of paper")
		require.Equal(w, failed, rw.Reader().Do(w.Context(), func(ctx context.Context) error {
			require.NoError(w, other.Reader().Do(ctx, nothing, lockregistry.NoWait()))
			require.ErrorIs(w, other.Writer().Do(ctx, nothing, lockregistry.NoWait()), lockregistry.ErrTaken)
			require.NoError(w, rw.Reader().Do(ctx, nothing), "nests")
			w.fails(rw.Writer().Do(ctx, nothing), lockregistry.ErrUpgrade, "do", theKey)
			return failed
		}))
		var inside context.Context
		require.NoError(w, rw.Writer().Do(w.Context(), func(ctx context.Context) error {
			inside = ctx
			require.ErrorIs(w, other.Reader().Do(ctx, nothing, lockregistry.NoWait()), lockregistry.ErrTaken)
			require.NoError(w, rw.Reader().Do(ctx, nothing))
			require.NoError(w, rw.Writer().Do(ctx, nothing))
			return nil
		}))
		require.ErrorIs(w, inside.Err(), context.Canceled)
		w.leftNothing()
		require.ErrorContains(w, rw.Writer().Do(w.Context(), nil), "do orders:42: the function is nil")
	})
}

// fn may pass its context to other goroutines, which nest in the hold; without it they are owners of their own.
func TestDo_AsAnOwner(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		require.NoError(w, r.Do(lockregistry.NewOwner(w.Context()), "42", func(ctx context.Context) error {
			return elsewhere(func() error { return errors.Join(l.Lock(ctx), l.Unlock(ctx), l.Context(ctx).Err()) })
		}))
		require.NoError(w, r.Do(w.Context(), "42", func(ctx context.Context) error {
			assert.True(w, w.tries(ctx, l))
			assert.False(w, w.tries(w.Context(), l))
			return nil
		}))
	})
}

// IsHeld.

func TestLock_IsHeld(t *testing.T) {
	worlds(t, func(w *world) {
		l, other := w.registry().Obtain("42"), w.registry().Obtain("42")
		require.False(w, l.IsHeld())
		holder := w.goroutine()
		require.NoError(w, holder.lock(l, lockregistry.Lease(3*brief)))
		require.True(w, l.IsHeld(), "by any goroutine of this process")
		require.False(w, other.IsHeld(), "by another registry")
		waiter := w.goroutine().starts(other)
		require.False(w, other.IsHeld(), "who waits does not hold")
		require.NoError(w, <-waiter)
		require.False(w, l.IsHeld(), "the lease is over")
		require.True(w, other.IsHeld())
		require.ErrorIs(w, holder.unlock(l), lockregistry.ErrLockLost)
		require.False(w, l.IsHeld())
	})
}
