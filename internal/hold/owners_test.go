package hold

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// A hold is handed on while it is fresh, not for longer than the limit, and not with less than half of its lease.
func TestHold_Relinquish(t *testing.T) {
	const length = time.Minute
	for name, c := range map[string]struct {
		before   func(h *Hold)
		can, due bool
	}{
		"at once":               {func(*Hold) {}, true, false},
		"just before the limit": {func(*Hold) { pass(time.Second - 1) }, true, false},
		"at the limit":          {func(*Hold) { pass(time.Second) }, false, true},
		"lost":                  {func(h *Hold) { h.Lose(fault.Forced) }, false, false},
		"it stays":              {func(h *Hold) { h.Stay() }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(length))
				ctx := w.context(h, anna)
				c.before(h)
				can, due, running := h.HandOff(time.Second)
				require.Equal(w, c.can, can)
				require.Equal(w, c.due, due)
				if can {
					require.Equal(w, length, running)
					require.Equal(w, context.Canceled, context.Cause(ctx), "the owner that leaves")
					require.True(w, h.Valid())
				}
			})
		})
	}
}

// A hold with less than half of its lease left is not handed on but ends, and its end decides the cause of the contexts.
func TestHold_RelinquishNearItsEnd(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		ctx := w.context(h, anna)
		pass(time.Minute / 2)
		can, due, _ := h.HandOff(time.Hour)
		require.False(w, can)
		require.True(w, due)
		require.NoError(w, ctx.Err())
		h.Lose(fault.KeyGone)
		require.ErrorIs(w, context.Cause(ctx), fault.Lost)
	})
}

// The next owner gets the terms that it asks for. Its time with the hold starts again; the process's time does not.
func TestHold_Adopt(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		pass(time.Second)
		can, _, _ := h.HandOff(time.Hour)
		require.True(w, can)
		require.True(w, h.SetTerms(Terms{Lease: lease.NewTerm(30 * time.Second), AtLeast: time.Hour, Renewed: true, Leads: true}))
		require.Equal(w, Held{Had: time.Second, Fresh: true, Leads: true}, h.Held(w.path.Clock.Now()))
		kept, _ := h.Keeps()
		require.Equal(w, w.path.Clock.Now().Add(time.Hour), kept)
		pass(time.Hour)
		require.True(w, h.Valid())
		require.Greater(w, w.commands(), 300, "it is renewed each third of the new lease")
		require.True(w, h.SetTerms(terms(30*time.Second)))
		kept, _ = h.Keeps()
		require.Zero(w, kept, "which only the owner before asked for")
		pass(30 * time.Second)
		require.False(w, h.SetTerms(terms(time.Minute)))
	})
}

// A path that AtLeast keeps taken is not handed on before that time, unless AtLeast is dropped.
func TestHold_KeptPathIsNotHandedOn(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(Terms{Lease: lease.NewTerm(time.Minute), AtLeast: time.Second})
		can, _, _ := h.HandOff(time.Hour)
		require.False(w, can)
		pass(time.Second)
		can, _, _ = h.HandOff(time.Hour)
		require.True(w, can)
		h = w.granted(Terms{Lease: lease.NewTerm(time.Minute), AtLeast: time.Second})
		h.Unkeep()
		can, _, _ = h.HandOff(time.Hour)
		require.True(w, can)
	})
}

// Each owner has a token of its own, larger than that of the one before; when none is left the hold ends.
func TestHold_TokensGrow(t *testing.T) {
	fake(t, func(w *world) {
		w.path.Format.Fencing = true
		h := New(w.path, "me:7", terms(time.Hour))
		h.Draw(101)
		now := w.path.Clock.Now()
		require.True(w, h.Grant(now, now))
		for want := uint64(101); want <= 200; want++ {
			require.Equal(w, want, h.Token())
			require.Equal(w, want, h.TakenBy(anna))
			can, due, _ := h.HandOff(time.Minute)
			require.Equal(w, want < 200, can)
			require.False(w, due)
		}
		require.Equal(w, uint64(200), h.Token())
	})
	fake(t, func(w *world) {
		h := w.granted(terms(time.Hour))
		h.Draw(101)
		require.Zero(w, h.Token(), "without fencing")
	})
}

// Owners that share a hold leave it one by one; the contexts of each end when it does.
func TestHold_SharedOwnersLeaveOneByOne(t *testing.T) {
	fake(t, func(w *world) {
		w.path.Shared = true
		h := w.granted(terms(time.Minute))
		first, second := w.context(h, anna), w.context(h, bert)
		h.TakenBy(anna)
		require.Equal(w, owner.Calling(), h.Taker(anna))
		require.Equal(w, owner.Nobody, h.Taker(bert))
		require.True(w, h.Leave(anna))
		require.Equal(w, context.Canceled, context.Cause(first))
		require.Equal(w, owner.Nobody, h.Taker(anna))
		require.NoError(w, second.Err())
		pass(time.Minute)
		require.False(w, h.Leave(bert))
		require.ErrorIs(w, context.Cause(second), fault.Lost)
	})
}

// One of several owners has left the local half. Before it leaves the hold, the last of the others ends the hold.
func TestHold_LeavingOneThatOthersHaveEnded(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(h *Hold)
		sound     bool
	}{
		"in time": {func(*Hold) {}, true},
		"lost":    {func(h *Hold) { h.Lose(fault.KeyGone) }, false},
		"late":    {func(*Hold) { pass(time.Minute) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(time.Minute))
				c.meanwhile(h)
				h.End(w.path.Clock.Now())
				require.Equal(w, c.sound, h.Leave(anna))
			})
		})
	}
}

// A hold that none of its owners can release is not renewed any more. Another owner may still share it.
func TestHold_StrandedOwners(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(renewed(time.Minute))
		ctx := w.context(h, anna)
		h.Orphan(anna)
		h.Orphan(anna)
		require.True(w, h.isOrphan(anna))
		require.ErrorContains(w, context.Cause(ctx), fault.GoroutineGone.String())
		pass(time.Minute)
		require.Equal(w, fault.LeaseOver, w.lost()[0].why)
		require.Len(w, w.logged, 2, "the goroutine is gone, and the hold lost")
		require.Zero(w, w.commands())
	})
	fake(t, func(w *world) { // one of two, and then both
		w.locked(func() { w.owners = 2 })
		h := w.granted(renewed(time.Minute))
		h.Orphan(anna)
		pass(time.Hour)
		require.True(w, h.Valid())
		h.Orphan(bert)
		pass(time.Minute)
		require.False(w, h.Valid())
	})
	fake(t, func(w *world) { // another goroutine unlocks for it, and others share the hold still
		w.locked(func() { w.owners = 2 })
		h := w.granted(renewed(time.Minute))
		h.Orphan(anna)
		require.True(w, h.Leave(anna))
		w.locked(func() { w.owners = 1 })
		pass(time.Hour)
		require.True(w, h.Valid())
	})
	fake(t, func(w *world) { // it is handed on all the same
		h := w.granted(renewed(time.Minute))
		h.Orphan(anna)
		require.True(w, h.SetTerms(renewed(time.Minute)))
		pass(time.Hour)
		require.True(w, h.Valid())
	})
	fake(t, func(w *world) { // another goroutine has unlocked for it at this moment
		h := w.granted(renewed(time.Minute))
		ctx := w.context(h, anna)
		w.left = map[owner.ID]bool{anna: true}
		h.Orphan(anna)
		require.Equal(w, context.Canceled, context.Cause(ctx))
		require.False(w, h.isOrphan(anna))
		pass(time.Hour)
		require.True(w, h.Valid())
	})
}

// A goroutine is a suspect if it has had a renewed hold for longer than the lease.
func TestHold_MayBeLeft(t *testing.T) {
	fake(t, func(w *world) {
		renews, plain := w.granted(renewed(time.Minute)), w.granted(terms(time.Hour))
		pass(time.Minute - 1)
		require.False(w, renews.mayBeLeft())
		pass(1)
		require.True(w, renews.mayBeLeft())
		require.False(w, plain.mayBeLeft())
		require.True(w, slices.Contains(w.schedule.all(), scheduled(renews)))
	})
}

// A look for ended goroutines that comes during a turn finds the holds that the turn looks at, each once.
func TestSchedule_AllDuringATurn(t *testing.T) {
	fake(t, func(w *world) {
		h, other := w.granted(renewed(time.Minute)), w.granted(renewed(time.Hour))
		synctest.Wait() // the first turn is over, and there is one at a time
		h.mu.Lock()     // so that the next one waits for it
		goOn := sync.OnceFunc(h.mu.Unlock)
		defer goOn()
		turned := make(chan struct{})
		go func() {
			defer close(turned)
			w.schedule.Turn(w.path.Clock.Now().Add(30 * time.Second))
		}()
		inHeap := func() bool {
			w.schedule.mu.Lock()
			defer w.schedule.mu.Unlock()
			return h.timing.index != 0
		}
		for inHeap() {
			runtime.Gosched()
		}
		require.ElementsMatch(w, []scheduled{h, other}, w.schedule.all())
		w.schedule.set(h, w.path.Clock.Now().Add(time.Minute)) // as the turn does, before it looks at the next one
		require.ElementsMatch(w, []scheduled{h, other}, w.schedule.all())
		goOn()
		<-turned
		w.schedule.drop(h)
		require.ElementsMatch(w, []scheduled{other}, w.schedule.all())
	})
}

// An owner that shares a hold has at least nine tenths of the lease that it asks for, and expects that it is renewed.
func TestHold_Join(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		ok, renew := h.Join(lease.NewTerm(time.Minute), false)
		require.True(w, ok)
		require.False(w, renew)
		pass(10 * time.Second)
		_, renew = h.Join(lease.NewTerm(time.Minute), false)
		require.True(w, renew)
		_, renew = h.Join(lease.NewTerm(time.Minute), true)
		require.True(w, renew, "it was not renewed so far")
		pass(time.Hour + time.Second) // no renewal is under way
		_, renew = h.Join(lease.NewTerm(time.Minute), true)
		require.False(w, renew)
		_, renew = h.Join(lease.NewTerm(time.Hour), true)
		require.True(w, renew, "its lease is shorter")
		require.NoError(w, Part{h, anna}.Renew(w.wait(), nil))
		require.Greater(w, h.Left(), 59*time.Minute)
		h.Lose(fault.Forced)
		ok, _ = h.Join(lease.NewTerm(time.Minute), true)
		require.False(w, ok)
	})
}

// A hold that is renewed for ten leases is logged, once for each owner. A leader's hold is not: it is meant to be long.
func TestHold_HeldForLong(t *testing.T) {
	fake(t, func(w *world) {
		logged := func(n int) {
			w.Helper()
			w.locked(func() { require.Len(w, w.logged, n) })
		}
		h, leads := renewed(time.Minute), renewed(time.Minute)
		leads.Leads = true
		held := w.granted(h)
		w.granted(leads)
		w.granted(terms(time.Hour))
		pass(10 * time.Minute)
		logged(0)
		pass(20 * time.Second)
		logged(1)
		pass(time.Hour)
		logged(1)
		require.True(w, held.SetTerms(h))
		pass(10 * time.Minute)
		logged(1)
		pass(20 * time.Second)
		logged(2)
		require.Contains(w, w.logged[0], "held for a long time")
	})
}

// A function under a lock renews it until it ends, and what was planned before stays.
func TestHold_Uphold(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(30 * time.Second))
		h.StartRenewing()
		h.StartRenewing()
		pass(5 * time.Minute)
		h.StopRenewing()
		pass(5 * time.Minute)
		require.True(w, h.Valid())
		h.StopRenewing()
		sent := w.commands()
		pass(29 * time.Second)
		require.Equal(w, sent, w.commands())
		pass(time.Second)
		require.False(w, h.Valid())
	})
	fake(t, func(w *world) { // it is lost, and its key is yet to be removed
		h := w.granted(terms(30 * time.Second))
		pass(29800 * time.Millisecond)
		require.False(w, h.Valid())
		h.StartRenewing()
		require.Empty(w, w.removals())
		pass(time.Minute)
		require.Len(w, w.removals(), 1)
	})
	for name, renew := range map[string]func(h *Hold){
		"others rely on it": func(h *Hold) { _, _ = h.Join(lease.NewTerm(30*time.Second), true) },
		"another owner":     func(h *Hold) { h.SetTerms(renewed(30 * time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(30 * time.Second))
				h.StartRenewing()
				pass(time.Minute)
				renew(h)
				h.StopRenewing()
				h.StopRenewing() // once too often
				pass(time.Hour)
				require.True(w, h.Valid())
			})
		})
	}
	fake(t, func(w *world) { // the owner has entered by two calls, one of which already runs the function
		h := w.granted(renewed(30 * time.Second))
		h.StartRenewing()
		require.True(w, h.SetTerms(terms(30*time.Second)))
		pass(time.Hour)
		require.True(w, h.Valid())
		sent := w.commands()
		h.Verify()
		h.StopRenewing()
		pass(time.Minute)
		require.Equal(w, sent+1, w.commands(), "what was in doubt")
		require.False(w, h.Valid())
	})
	fake(t, func(w *world) { // a function that has unlocked too often runs on
		h := w.granted(terms(30 * time.Second))
		h.StartRenewing()
		can, _, _ := h.HandOff(time.Hour)
		require.True(w, can)
		require.True(w, h.SetTerms(terms(30*time.Second)))
		h.StartRenewing()
		h.StopRenewing()
		pass(time.Minute)
		require.False(w, h.Valid())
	})
}

// Of several holds that belong together, one logs, and the others do not.
func TestHold_HeldForLongQuietly(t *testing.T) {
	fake(t, func(w *world) {
		quiet := renewed(time.Minute)
		quiet.Unlogged = true
		h := w.granted(quiet)
		require.Equal(w, quiet, h.Terms())
		pass(time.Hour)
		require.Empty(w, w.logged)
		require.True(w, h.SetTerms(renewed(time.Minute)))
		pass(time.Hour)
		require.Len(w, w.logged, 1)
		require.True(w, h.SetTerms(quiet))
		pass(time.Hour)
		require.Len(w, w.logged, 1)
	})
}

// An owner chooses a lease. Another goroutine of that owner unlocks just after the local half was asked for the hold's owners.
// The next owner has the lease that it asked for.
func TestRenew_AsTheHoldIsHandedOver(t *testing.T) {
	const asked = 30 * time.Second
	for _, chosen := range []time.Duration{2 * time.Second, time.Hour} {
		t.Run(chosen.String(), func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(asked))
				w.meanwhile = func() {
					can, _, _ := h.HandOff(time.Hour)
					require.True(w, can)
					w.locked(func() { w.left = map[owner.ID]bool{anna: true} })
					require.True(w, h.SetTerms(terms(asked)))
					h.Nest(bert, lease.NewTerm(time.Minute))
				}
				require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(chosen)), fault.NotOwner)
				require.Zero(w, w.commands())
				require.Equal(w, asked-lease.Margin(asked), h.Left())
				require.Equal(w, time.Minute, h.Remains().Term)
				h.Unnest(bert)
				require.Equal(w, asked, h.Remains().Term)
			})
		})
	}
}

// The local half's answer is old, but by then the owner has the hold again: it may choose.
func TestRenew_AsTheHoldComesBack(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.meanwhile = func() {
			for range 2 { // to another one, and back
				can, _, _ := h.HandOff(time.Hour)
				require.True(w, can)
				require.True(w, h.SetTerms(terms(time.Minute)))
			}
		}
		require.NoError(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(time.Hour)))
		require.Equal(w, time.Hour, h.Remains().Term)
		require.Equal(w, 1, w.commands())
	})
}

// A reader chooses a shorter lease, and another goroutine of the same owner unlocks. The other readers have what they asked for.
func TestRenew_AsAReaderLeaves(t *testing.T) {
	const asked = 30 * time.Second
	for name, c := range map[string]struct {
		owners    int64 // before
		meanwhile func(w *world, h *Hold)
		err       error
	}{
		"not yet dismissed": {2, func(*world, *Hold) {}, nil},
		"dismissed":         {2, func(w *world, h *Hold) { require.True(w, h.Leave(anna)) }, fault.NotOwner},
		"after another came": {1, func(w *world, h *Hold) {
			ok, _ := h.Join(lease.NewTerm(asked), false)
			require.True(w, ok)
		}, fault.NotOwner},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				w.path.Shared = true
				w.locked(func() { w.owners = c.owners })
				h := w.granted(terms(asked))
				w.meanwhile = func() {
					w.locked(func() { w.left, w.owners = map[owner.ID]bool{anna: true}, 1 })
					c.meanwhile(w, h)
				}
				require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(time.Second)), c.err)
				require.Greater(w, h.Left(), asked-time.Second)
				require.Equal(w, asked, h.Remains().Term)
			})
		})
	}
}

// An owner renews, gets a late reply, and leaves. When it renews again, it does not choose the lease.
func TestRenew_AgainAfterTheOwnerHasLeft(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.all(answer{n: 1, late: true})
		require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(90*time.Second)), fault.Late)
		can, _, _ := h.HandOff(time.Hour)
		require.True(w, can)
		w.locked(func() { w.left = map[owner.ID]bool{anna: true} })
		require.True(w, h.SetTerms(terms(time.Minute)))
		require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(90*time.Second)), fault.NotOwner)
		require.Equal(w, time.Minute, h.Remains().Term)
		require.Equal(w, 1, w.commands())
	})
}
