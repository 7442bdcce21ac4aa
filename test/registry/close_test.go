package registry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestClose_WaitsForRemovals(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		delivery := make(chan struct{})
		f.Fate("release", kit.HeldUp(delivery))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
		closed := w.Goroutine().Start(r.Close)
		w.Settle()
		w.Pending(closed)
		require.False(w, w.Free("orders:42"))
		close(delivery)
		require.NoError(w, <-closed)
		require.True(w, w.Free("orders:42"))
	})
}

// Removals that have failed so far, and are due only at the next poll, are tried again.
func TestClose_TriesRemovalsOnceMore(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithPollInterval(time.Minute))
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(time.Hour))
		f.Fate("release", kit.Refused("LOADING Redis is loading the dataset in memory"))
		require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
		w.Settle()
		f.Forget()
		require.False(w, w.Free("orders:42"))
		start := time.Now()
		require.NoError(w, r.Close())
		require.Zero(w, time.Since(start))
		require.True(w, w.Free("orders:42"))
	})
}

func TestClose_DoesNotWaitForEver(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		f.Fate(kit.Anything, kit.Silence)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
		w.Settle()
		start := time.Now()
		require.NoError(w, r.Close())
		require.LessOrEqual(w, time.Since(start), 1100*time.Millisecond)
	})
}

func TestClose(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		client := f.Client()
		r := w.RegistryOn(client)
		held := r.Obtain("held")
		w.Lock(held)
		hold := held.Context(w.Context())
		localWaiter := w.Goroutine().Starts(held)
		w.Do("SET", "orders:42", "for ever")
		before := f.Count("obtain")
		redisWaiter := w.Goroutine().Starts(r.Obtain("42"))
		w.Await("the waiter has asked Redis", func() bool { return f.Count("obtain") > before })
		if w.Fake {
			w.Settle()
		}
		w.Pending(localWaiter)
		w.Pending(redisWaiter)

		start := time.Now()
		require.NoError(w, r.Close())
		w.Fails(<-localWaiter, lockregistry.ErrClosed, "lock", "orders:held")
		w.Fails(<-redisWaiter, lockregistry.ErrClosed, "lock", "orders:42")
		if w.Fake {
			require.Zero(w, time.Since(start))
		}
		<-hold.Done()
		require.Equal(w, lockregistry.ErrClosed, context.Cause(hold))
		require.Greater(w, w.Pttl("orders:held"), time.Duration(0), "left to its lease")
		require.Equal(w, "for ever", w.Do("GET", "orders:42"))

		for _, l := range []*lockregistry.Lock{held, r.Obtain("42"), r.Obtain("new")} {
			_, tried := l.TryLock(w.Context())
			w.Fails(tried, lockregistry.ErrClosed, "trylock", kit.Key(l))
			w.Fails(l.Lock(w.Context()), lockregistry.ErrClosed, "lock", kit.Key(l))
			w.Fails(r.Do(w.Context(), l.Path(), kit.DoNothing), lockregistry.ErrClosed, "do", kit.Key(l))
		}
		<-held.Context(w.Context()).Done()
		w.Released(held.Unlock(w.Context()))
		w.IsFree("orders:held") // Unlock removes it as before

		require.NoError(w, r.Close())
		require.Equal(w, "PONG", kit.Reply(client, "PING"), "the client is its user's")
		require.True(w, w.TryElsewhere(w.RegistryOn(client).Obtain("held")))
	})
}

// whenQueued is a context that calls a function once its call is in the queue, but does not wait there yet.
type whenQueued struct {
	context.Context
	lock *lockregistry.Lock
	then func()
}

func (c whenQueued) Deadline() (time.Time, bool) {
	if kit.Contended(c.lock) {
		c.then()
	}
	return c.Context.Deadline()
}

// whenWaiting is a context that calls a function once its call is about to wait in the queue, where others find it.
type whenWaiting struct {
	context.Context
	times *int // how often its Done was called
	then  func()
}

func (c whenWaiting) Done() <-chan struct{} {
	if *c.times++; *c.times == 2 {
		c.then()
	}
	return c.Context.Done()
}

// A call that waits for other calls of its process gets its turn, and the registry closes before the call knows.
func TestLock_NobodyGetsInAfterClose(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(0))
		l, holds := r.Obtain("42"), w.Goroutine()
		require.NoError(w, holds.Lock(l))
		failed, asked := make(chan error, 1), 0
		var unlocked, closed error
		go func() {
			failed <- l.Lock(whenWaiting{w.Context(), &asked, func() {
				assert.True(w, kit.Contended(l))
				unlocked = holds.Unlock(l)
				assert.False(w, kit.Contended(l), "it is its turn")
				closed = r.Close()
			}})
		}()
		w.Fails(<-failed, lockregistry.ErrClosed, "lock", kit.Key(l))
		require.NoError(w, unlocked)
		require.NoError(w, closed)
		require.True(w, w.Free(kit.TheKey))
	})
}

// The registry closes when a call is already in the queue, but not among the calls that Close finds waiting.
func TestClose_WhenACallIsAboutToWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		for _, which := range []string{"plain", "write", "read"} {
			r := w.Registry()
			l := map[string]*lockregistry.Lock{
				"plain": r.Obtain("a"), "write": r.ReadWrite("b").Writer(), "read": r.ReadWrite("c").Reader(),
			}[which]
			held := l
			if which == "read" {
				held = r.ReadWrite("c").Writer()
			}
			w.Lock(held)
			failed := make(chan error, 1)
			go func() {
				closing := whenQueued{w.Context(), l, func() { assert.NoError(w, r.Close()) }}
				failed <- l.Lock(closing)
			}()
			w.Fails(<-failed, lockregistry.ErrClosed, "lock", kit.Key(l))
			w.Unlock(held)
		}
	})
}

func TestClose_AtOnceFromManyGoroutines(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithRenewal())
		w.Lock(r.Obtain("42"))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { assert.NoError(w, r.Close()) })
		}
		all.Wait()
	})
}

func TestClose_OfAnUnusedRegistry(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		r.Obtain("42")
		require.NoError(w, r.Close())
		require.Zero(w, f.LockCommands())
	})
}
