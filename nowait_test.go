package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// A call that does not wait, for anybody, here or in Redis.

// locksOf are the locks of a registry for a path that keep everybody else out.
func locksOf(r *lockregistry.Registry, path string) map[string]*lockregistry.Lock {
	return map[string]*lockregistry.Lock{"lock": r.Obtain(path), "writer": r.ReadWrite("rw-" + path).Writer()}
}

func TestNoWait_WithWaitIsRefused(t *testing.T) {
	r := unusedRegistry(t)
	const why = "NoWait and Wait: a call cannot have both"
	for op, locks := range lockings(r, "42") {
		refuses(t, locks(t.Context(), lockregistry.NoWait(), lockregistry.Wait(time.Second)), op, "orders:42", why)
		refuses(t, locks(t.Context(), lockregistry.Wait(time.Second), lockregistry.Lease(time.Second), lockregistry.NoWait()),
			op, "orders:42", why)
		refuses(t, locks(t.Context(), lockregistry.NoWait(), lockregistry.Wait(-1)), op, "orders:42", why)
	}
}

// A lock that is free, or the caller's own, is to be had.
func TestNoWait_TakesAFreeLock(t *testing.T) {
	worlds(t, func(w *world) {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			for _, l := range locksOf(w.registry(lockregistry.WithLayout(layout)), "42") {
				w.lock(l, lockregistry.NoWait())
				w.lock(l, lockregistry.NoWait())
				ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
				require.NoError(w, err)
				require.True(w, ok)
				for range 3 {
					w.unlock(l)
				}
			}
		}
		r := w.registry()
		require.NoError(w, r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.NoWait()))
		w.leftNothing()
	})
}

// Somebody else has it, here or in another process: no time passes, and no ticket is left.
func TestNoWait_GivesUpAtOnce(t *testing.T) {
	fakeWorld(t, func(w *world) {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			r, other := w.registry(lockregistry.WithLayout(layout)), w.registry(lockregistry.WithLayout(layout))
			for _, holders := range []*lockregistry.Registry{r, other} {
				held := locksOf(holders, "42")
				for name, l := range locksOf(r, "42") {
					g := w.goroutine()
					require.NoError(w, g.lock(held[name]))
					began := time.Now()
					err := l.Lock(w.Context(), lockregistry.NoWait())
					w.fails(err, lockregistry.ErrTaken, "lock", l.Key())
					require.ErrorContains(w, err, "the lock was not free")
					require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
					ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
					require.NoError(w, err)
					require.False(w, ok)
					require.Zero(w, time.Since(began))
					require.NoError(w, g.unlock(held[name]))
				}
			}
		}
		w.leftNothing()
	})
}

// While a goroutine of this process waits, and others queue behind it, a call that does not is refused like any newcomer, and
// changes nothing for them.
func TestNoWait_BehindWaiters(t *testing.T) {
	realWorlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		held, l := other.Obtain("42"), r.Obtain("42")
		w.lock(held)
		first, second := w.goroutine(), w.goroutine()
		got := first.starts(l)
		w.await("a ticket", func() bool { return w.tickets() == 1 })
		behind := second.starts(l)
		w.fails(l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken, "lock", theKey)
		w.fails(r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.NoWait()),
			lockregistry.ErrTaken, "do", theKey)
		require.Equal(w, 1, w.tickets())
		w.unlock(held)
		require.NoError(w, <-got)
		w.fails(l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken, "lock", theKey)
		require.NoError(w, first.unlock(l))
		require.NoError(w, <-behind)
		require.NoError(w, second.unlock(l))
	})
}

// When Redis cannot be asked, nobody knows whether somebody else has the lock: that is no ErrTaken.
func TestNoWait_WhenRedisCannotBeAsked(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		for op, call := range locking {
			f.all("obtain", cut)
			err := call(w.Context(), r, lockregistry.NoWait())
			w.unavailable(err, op)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)

			f.Forget()
			f.all("obtain", silence)
			asking := lockElsewhere(r.Obtain("42"), w.Context(), lockregistry.Wait(4*time.Second))
			w.pass(3 * time.Second) // another goroutine has asked, and was not answered
			err = call(w.Context(), r, lockregistry.NoWait())
			w.unavailable(err, op)
			require.NotErrorIs(w, err, lockregistry.ErrTaken)
			w.unavailable(<-asking, "lock")
			f.Forget()
			w.pass(5 * time.Minute)
		}
	})
}

// Who tries again and again for a side of a read-write lock is seen by those who wait in its queue, and leaves no reservation,
// which keeps readers out.
func TestNoWait_TriesOfAReadWriteLockAreSeen(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, tries := w.pair(), w.pair()
		refused := func(l *lockregistry.Lock) {
			ok, err := l.TryLock(w.Context(), lockregistry.NoWait())
			require.NoError(w, err)
			require.False(w, ok)
		}
		w.lock(holder.reader)
		for range 3 {
			refused(tries.writer)
		}
		require.Equal(w, "0", w.do("EXISTS", rwQueue), "a trace begins no queue")
		w.unlock(holder.reader)

		for name, of := range map[string]func(p pair) *lockregistry.Lock{
			"writer": func(p pair) *lockregistry.Lock { return p.writer }, "reader": func(p pair) *lockregistry.Lock { return p.reader },
		} {
			waiter, l := w.pair(), of(w.pair())
			w.lock(holder.writer)
			g, result := w.linesUp(waiter.writer)
			wide := func() string { return w.do("ZSCORE", rwQueue, "wide") }
			w.do("ZADD", rwQueue, "-1", "wide") // it may have tried once without a ticket
			before := wide()
			refused(l)
			require.Equal(w, before, wide(), "%s: it tries once", name)
			refused(l)
			require.Equal(w, before+".5", wide(), name)
			require.Equal(w, "(nil)", w.do("ZSCORE", rwQueue, "guest"), name)
			w.unlock(holder.writer)
			require.NoError(w, <-result)
			require.NoError(w, g.unlock(waiter.writer))
			w.do("DEL", rwQueue)
		}
	})
}
