package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A call with NoWait waits for nobody, here or in Redis.

// locksOf returns the exclusive locks of a registry for a path.
func locksOf(r *lockregistry.Registry, path string) map[string]*lockregistry.Lock {
	return map[string]*lockregistry.Lock{"lock": r.Obtain(path), "writer": r.ReadWrite("rw-" + path).Writer()}
}

func TestNoWait_WithWaitIsRefused(t *testing.T) {
	r := kit.UnusedRegistry(t)
	const why = "NoWait and Wait: a call cannot have both"
	for op, locks := range kit.WaysToLock(r, "42") {
		kit.Refuses(t, locks(t.Context(), lockregistry.NoWait(), lockregistry.Wait(time.Second)), op, "orders:42", why)
		kit.Refuses(t, locks(t.Context(), lockregistry.Wait(time.Second), lockregistry.Lease(time.Second), lockregistry.NoWait()),
			op, "orders:42", why)
		kit.Refuses(t, locks(t.Context(), lockregistry.NoWait(), lockregistry.Wait(-1)), op, "orders:42", why)
	}
}

// NoWait takes a lock that is free, or the caller's own.
func TestNoWait_TakesAFreeLock(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			for _, l := range locksOf(w.Registry(kit.WithLayout(layout)), "42") {
				w.Lock(l, lockregistry.NoWait())
				w.Lock(l, lockregistry.NoWait())
				ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
				require.NoError(w, err)
				require.True(w, ok)
				for range 3 {
					w.Unlock(l)
				}
			}
		}
		r := w.Registry()
		require.NoError(w, r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.NoWait()))
		w.LeftNothing()
	})
}

// If somebody else has the lock, here or in another process, no time passes, and no ticket is left.
func TestNoWait_GivesUpAtOnce(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			r, other := w.Registry(kit.WithLayout(layout)), w.Registry(kit.WithLayout(layout))
			for _, holders := range []*lockregistry.Registry{r, other} {
				held := locksOf(holders, "42")
				for name, l := range locksOf(r, "42") {
					g := w.Goroutine()
					require.NoError(w, g.Lock(held[name]))
					began := time.Now()
					err := l.Lock(w.Context(), lockregistry.NoWait())
					w.Fails(err, lockregistry.ErrTaken, "lock", kit.Key(l))
					require.ErrorContains(w, err, "the lock was not free")
					require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
					ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
					require.NoError(w, err)
					require.False(w, ok)
					require.Zero(w, time.Since(began))
					require.NoError(w, g.Unlock(held[name]))
				}
			}
		}
		w.LeftNothing()
	})
}

// While a goroutine of this process waits, and others queue behind it, a call with NoWait is refused like any newcomer, and
// changes nothing for them.
func TestNoWait_BehindWaiters(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		held, l := other.Obtain("42"), r.Obtain("42")
		w.Lock(held)
		first, second := w.Goroutine(), w.Goroutine()
		got := first.Starts(l)
		w.Await("a ticket", func() bool { return w.Tickets() == 1 })
		behind := second.Starts(l)
		w.Fails(l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken, "lock", kit.TheKey)
		w.Fails(r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.NoWait()),
			lockregistry.ErrTaken, "do", kit.TheKey)
		require.Equal(w, 1, w.Tickets())
		w.Unlock(held)
		require.NoError(w, <-got)
		w.Fails(l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken, "lock", kit.TheKey)
		require.NoError(w, first.Unlock(l))
		require.NoError(w, <-behind)
		require.NoError(w, second.Unlock(l))
	})
}

// When Redis cannot be reached, nobody knows whether somebody else has the lock: the error is not ErrTaken.
func TestNoWait_WhenRedisCannotBeAsked(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		for op, call := range kit.LockingCalls {
			f.Fate("obtain", kit.Cut)
			err := call(w.Context(), r, lockregistry.NoWait())
			w.Unavailable(err, op)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)

			f.Forget()
			f.Fate("obtain", kit.Silence)
			asking := kit.LockElsewhere(r.Obtain("42"), w.Context(), lockregistry.Wait(4*time.Second))
			w.Pass(3 * time.Second) // another goroutine has asked, and got no reply
			err = call(w.Context(), r, lockregistry.NoWait())
			w.Unavailable(err, op)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)
			w.Unavailable(<-asking, "lock")
			f.Forget()
			w.Pass(5 * time.Minute)
		}
	})
}

// Waiters in the queue of a read-write lock notice a process that tries again and again without waiting. It leaves no
// reservation, which would keep readers out.
func TestNoWait_TriesOfAReadWriteLockAreSeen(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, tries := w.Pair(), w.Pair()
		refused := func(l *lockregistry.Lock) {
			ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
			require.NoError(w, err)
			require.False(w, ok)
		}
		w.Lock(holder.Reader)
		for range 3 {
			refused(tries.Writer)
		}
		require.Equal(w, "0", w.Do("EXISTS", kit.RwQueue), "a trace begins no queue")
		w.Unlock(holder.Reader)

		for name, of := range map[string]func(p kit.Pair) *lockregistry.Lock{
			"writer": func(p kit.Pair) *lockregistry.Lock { return p.Writer },
			"reader": func(p kit.Pair) *lockregistry.Lock { return p.Reader },
		} {
			waiter, l := w.Pair(), of(w.Pair())
			w.Lock(holder.Writer)
			g, result := w.LinesUp(waiter.Writer)
			wide := func() string { return w.Do("ZSCORE", kit.RwQueue, "wide") }
			w.Do("ZADD", kit.RwQueue, "-1", "wide") // it may have tried once without a ticket
			before := wide()
			refused(l)
			require.Equal(w, before, wide(), "%s: it tries once", name)
			refused(l)
			require.Equal(w, before+".5", wide(), name)
			require.Equal(w, "(nil)", w.Do("ZSCORE", kit.RwQueue, "guest"), name)
			w.Unlock(holder.Writer)
			require.NoError(w, <-result)
			require.NoError(w, g.Unlock(waiter.Writer))
			w.Do("DEL", kit.RwQueue)
		}
	})
}
