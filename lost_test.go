package lockregistry_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// losses are the ways in which an owner that does not unlock loses a lock, with WithRenewal where the owner learns of it so.
var losses = map[string]struct {
	renewed bool
	lose    func(w *world, r *lockregistry.Registry, l *lockregistry.Lock)
}{
	"the lease is over here": {false, func(w *world, _ *lockregistry.Registry, _ *lockregistry.Lock) {
		w.pass(lostLease - lostLease/100 - time.Millisecond)
	}},
	"the lease is over": {false, func(w *world, _ *lockregistry.Registry, _ *lockregistry.Lock) { w.pass(2 * lostLease) }},
	"the key is gone": {true, func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) {
		w.do("FLUSHALL")
		w.pass(lostLease / 2)
		require.False(w, l.IsHeld())
	}},
	"by force": {false, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		require.NoError(w, r.ForceUnlock(w.Context(), l.Path()))
	}},
}

const lostLease = 10 * time.Second

// impatient are the calls that do not wait: each reports whether it had the lock of a kind, and has released it.
var impatient = map[string]func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) bool{
	"TryLock": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		if ok {
			w.unlock(l)
		}
		return ok
	},
	"TryLock, Wait(0)": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(0))
		require.NoError(w, err)
		if ok {
			w.unlock(l)
		}
		return ok
	},
	"Lock": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		w.lock(l, lockregistry.NoWait())
		w.unlock(l)
		return true
	},
	"Acquire": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		h, err := l.Acquire(w.Context(), lockregistry.NoWait())
		require.NoError(w, err)
		require.NoError(w, h.Release(w.Context()))
		return true
	},
}

// impatientPlain are those that are for plain locks only.
var impatientPlain = map[string]func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) bool{
	"Do": func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) (ran bool) {
		require.NoError(w, r.Do(w.Context(), l.Path(), func(context.Context) error { ran = true; return nil }, lockregistry.NoWait()))
		return ran
	},
	"Once": func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) bool {
		ran, err := r.Once(w.Context(), l.Path(), time.Second, func(context.Context) error { return nil })
		require.NoError(w, err)
		return ran
	},
	"AcquireAll": func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) bool {
		h, err := r.AcquireAll(w.Context(), []string{"41", l.Path(), "43"}, lockregistry.NoWait())
		require.NoError(w, err)
		require.NoError(w, h.Release(w.Context()))
		return true
	},
}

// A lock whose owner has lost it and has not unlocked is free. The first call has it, also one that does not wait.
func TestLock_LostIsFreeAtTheFirstCall(t *testing.T) {
	t.Parallel()
	for layout, wakeup := range map[lockregistry.Layout]lockregistry.Wakeup{
		lockregistry.LayoutSpring: lockregistry.WakeupAuto, lockregistry.LayoutRedisson: lockregistry.WakeupPoll,
	} {
		for how, loss := range losses {
			for kind, pick := range kinds {
				t.Run(fmt.Sprint(kind, layout, " ", how), func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						opts := []lockregistry.Option{lockregistry.WithLayout(layout), lockregistry.WithWakeup(wakeup)}
						if loss.renewed {
							opts = append(opts, lockregistry.WithRenewal())
						}
						r := w.registry(opts...)
						l, calls := pick(r), maps.Clone(impatient)
						if kind == "plain" {
							maps.Copy(calls, impatientPlain)
						}
						for call, has := range calls {
							owner := w.gone(l, 1, lockregistry.Lease(lostLease))
							loss.lose(w, r, l)
							require.True(w, has(w, r, l), call)
							w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", l.Key())
							w.pass(time.Second) // what Once keeps
						}
					})
				})
			}
		}
	}
}

// Of two locks of a path, a lost one is not in the way of the other.
func TestLock_LostReadersAreNotInTheWayOfAWriter(t *testing.T) {
	fakeWorld(t, func(w *world) {
		p := w.pair()
		for _, both := range [][2]*lockregistry.Lock{{p.reader, p.writer}, {p.writer, p.reader}} {
			owner := w.gone(both[0], 1, lockregistry.Lease(lostLease))
			w.pass(2 * lostLease)
			ok, err := both[1].TryLock(w.Context())
			require.NoError(w, err)
			require.True(w, ok)
			w.unlock(both[1])
			w.fails(both[0].Unlock(owner), lockregistry.ErrLockLost, "unlock", theKey)
		}
	})
}

// The waiters of a lock that is lost come first: a call that does not wait does not overtake them.
func TestLock_LostGoesToItsWaitersFirst(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.gone(l, 1, lockregistry.Lease(lostLease))
		has := lockElsewhere(l, w.Context())
		w.pass(2 * lostLease)
		require.NoError(w, <-has)
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
	})
}
