package lease_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A lost lock goes to its waiters first: a call that does not wait cannot overtake them.
func TestLock_LostGoesToItsWaitersFirst(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Gone(l, 1, lockregistry.Lease(lostLease))
		has := kit.LockElsewhere(l, w.Context())
		w.Pass(2 * lostLease)
		require.NoError(w, <-has)
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
	})
}

// losses are the ways in which an owner that does not unlock loses a lock, with WithRenewal where that is how it learns of the
// loss.
var losses = map[string]struct {
	renewed bool
	lose    func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock)
}{
	"the lease is over here": {false, func(w *kit.World, _ *lockregistry.Registry, _ *lockregistry.Lock) {
		w.Pass(lostLease - lostLease/100 - time.Millisecond)
	}},
	"the lease is over": {false, func(w *kit.World, _ *lockregistry.Registry, _ *lockregistry.Lock) { w.Pass(2 * lostLease) }},
	"the key is gone": {true, func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) {
		w.Do("FLUSHALL")
		w.Pass(lostLease / 2)
		require.False(w, l.IsHeld())
	}},
	"by force": {false, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), l.Path()))
	}},
}

const lostLease = 10 * time.Second

// impatientCall does not wait. It reports whether it got the lock, which it has released by then.
type impatientCall func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) bool

// impatient are the calls that do not wait, for any kind of lock.
var impatient = map[string]impatientCall{
	"TryLock": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		if ok {
			w.Unlock(l)
		}
		return ok
	},
	"TryLock, Wait(0)": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(0))
		require.NoError(w, err)
		if ok {
			w.Unlock(l)
		}
		return ok
	},
	"Lock": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		w.Lock(l, lockregistry.NoWait())
		w.Unlock(l)
		return true
	},
	"Acquire": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) bool {
		h, err := l.Acquire(w.Context(), lockregistry.NoWait())
		require.NoError(w, err)
		w.Released(h.Release(w.Context()))
		return true
	},
}

// impatientPlain are such calls for plain locks only.
var impatientPlain = map[string]impatientCall{
	"Do": func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) (ran bool) {
		require.NoError(w, r.Do(w.Context(), l.Path(), func(context.Context) error { ran = true; return nil }, lockregistry.NoWait()))
		return ran
	},
	"Once": func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) bool {
		ran, err := r.Once(w.Context(), l.Path(), time.Second, func(context.Context) error { return nil })
		require.NoError(w, err)
		return ran
	},
	"AcquireAll": func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) bool {
		h, err := r.AcquireAll(w.Context(), []string{"41", l.Path(), "43"}, lockregistry.NoWait())
		require.NoError(w, err)
		w.Released(h.Release(w.Context()))
		return true
	},
}

// A lock whose owner has lost it without unlocking is free. The first call gets it, even one that does not wait.
func TestLock_LostIsFreeAtTheFirstCall(t *testing.T) {
	t.Parallel()
	for i, how := range kit.InOrder(losses) {
		loss := losses[how]
		for j, kind := range kit.InOrder(kit.LockKinds) {
			pick, layout, wakeup := kit.LockKinds[kind], observe.LayoutSpring, kit.WakeupAuto
			if (i+j)%2 == 1 {
				layout, wakeup = observe.LayoutRedisson, kit.WakeupPoll
			}
			t.Run(fmt.Sprint(kind, layout, " ", how), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					opts := []lockregistry.Option{kit.WithLayout(layout), kit.WithWakeup(wakeup)}
					if loss.renewed {
						opts = append(opts, lockregistry.WithRenewal())
					}
					r := w.Registry(opts...)
					l, calls := pick(r), maps.Clone(impatient)
					if kind == "plain" {
						maps.Copy(calls, impatientPlain)
					} else { // plain locks run them all with each loss
						call, has := kit.Turn(impatient, i+j)
						calls = map[string]impatientCall{call: has}
					}
					for call, has := range calls {
						owner := w.Gone(l, 1, lockregistry.Lease(lostLease))
						loss.lose(w, r, l)
						require.True(w, has(w, r, l), call)
						w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.Key(l))
						w.Pass(time.Second) // the time for which Once keeps the path
					}
				})
			})
		}
	}
}

// A lost lock on one side of a path does not block the other side.
func TestLock_LostReadersAreNotInTheWayOfAWriter(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		p := w.Pair()
		for _, both := range [][2]*lockregistry.Lock{{p.Reader, p.Writer}, {p.Writer, p.Reader}} {
			owner := w.Gone(both[0], 1, lockregistry.Lease(lostLease))
			w.Pass(2 * lostLease)
			ok, err := both[1].TryLock(w.Context())
			require.NoError(w, err)
			require.True(w, ok)
			w.Unlock(both[1])
			w.Fails(both[0].Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		}
	})
}
