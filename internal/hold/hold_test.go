package hold

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A process may have very many holds, and each Lock makes one. If a Hold took more than 160 bytes, the allocator would give 176.
func TestHold_Size(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Hold{}), uintptr(160))
}

// Most holds are neither renewed nor looked at: the schedule does not hear of them, nor does the lock.
func TestHold_NobodyIsAskedAboutAPlainOne(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		require.True(w, h.Valid())
		require.True(w, first(h.End(w.path.Clock.Now())))
		require.False(w, h.Valid())
		require.Zero(w, w.looks)
		require.True(w, w.schedule.None())
		require.Empty(w, w.lost())
	})
}

// A grant counts from when its command was sent, and does not count if it comes after the lease.
func TestHold_GrantCountsFromItsCommand(t *testing.T) {
	fake(t, func(w *world) {
		sent := w.path.Clock.Now()
		pass(600 * time.Millisecond)
		h := New(w.path, "me:7", terms(time.Second))
		require.True(w, h.Grant(sent, w.path.Clock.Now()))
		require.Equal(w, time.Second-lease.Margin(time.Second)-600*time.Millisecond, h.Left())
		held := h.Held(w.path.Clock.Now())
		require.Zero(w, held.Owned)
		require.Equal(w, 600*time.Millisecond, held.Had)
		pass(400 * time.Millisecond)
		require.False(w, New(w.path, "me:8", terms(time.Second)).Grant(sent, w.path.Clock.Now()))
	})
}

// A hold that another process's release has granted soon gets its whole lease, by a renewal.
func TestHold_GrantOfAnotherProcessIsLengthened(t *testing.T) {
	fake(t, func(w *world) {
		h := New(w.path, "me:7", terms(time.Minute))
		require.True(w, h.GrantShort(w.path.Clock.Now(), time.Second))
		require.LessOrEqual(w, h.Left(), time.Second)
		pass(time.Second)
		require.Equal(w, 1, w.commands())
		require.Greater(w, h.Left(), 50*time.Second)
		require.Empty(w, w.lost())
	})
}

func TestHold_IsRenewedEachThirdOfItsLease(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(renewed(30 * time.Second))
		pass(5 * time.Minute)
		require.InDelta(w, 30, w.commands(), 1)
		require.True(w, h.Valid())
		require.True(w, first(h.End(w.path.Clock.Now())))
		sent := w.commands()
		pass(5 * time.Minute)
		require.Equal(w, sent, w.commands(), "after its end")
		require.Empty(w, w.lost())
	})
}

// A loss is announced by this process's clock, before the server removes the key, and although no call looks.
func TestHold_EndOfTheLeaseIsAnnounced(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		ctx := w.context(h, anna)
		start := time.Now()
		<-ctx.Done()
		require.ErrorIs(w, context.Cause(ctx), fault.Lost)
		require.ErrorContains(w, context.Cause(ctx), fault.LeaseOver.String())
		require.Less(w, time.Since(start), time.Minute)
		require.Equal(w, []loss{{fault.LeaseOver, time.Since(start), false}}, w.lost())
		require.False(w, first(h.End(w.path.Clock.Now())))
		require.Len(w, w.lost(), 1)
	})
}

// The reply to a renewal has the same effect on a hold whether a call waits for the reply or not.
func TestHold_RepliesToRenewals(t *testing.T) {
	const length = 30 * time.Second
	passing := errors.New("no answer")
	for name, c := range map[string]struct {
		answer
		lost fault.Loss // of a hold that is renewed by a call
		err  error      // of that call
	}{
		"done":             {answer{n: 1}, fault.NotLost, nil},
		"the key is gone":  {answer{n: 0}, fault.KeyGone, fault.Lost},
		"another has it":   {answer{n: -1}, fault.KeyTaken, fault.Lost},
		"too late":         {answer{n: 1, wait: length}, fault.RenewedTooLate, fault.Lost},
		"failed":           {answer{err: passing}, fault.NotLost, passing},
		"it came late":     {answer{n: 1, late: true}, fault.NotLost, fault.Late},
		"gone, it is said": {answer{n: 0, late: true}, fault.KeyGone, fault.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(length))
				w.all(c.answer)
				until := h.Left()
				pass(time.Second)
				err := Part{h, anna}.Renew(w.wait(), nil)
				require.ErrorIs(w, err, c.err)
				if c.lost == fault.NotLost {
					require.Empty(w, w.lost())
					require.True(w, h.Valid())
					require.Equal(w, err == nil, h.Left() == until-roundTrip, "whether it is longer")
				} else {
					require.Len(w, w.lost(), 1)
					require.Equal(w, c.lost, w.lost()[0].why)
					require.Equal(w, c.lost, h.Loss())
				}
			})
			fake(t, func(w *world) {
				w.granted(renewed(length))
				w.all(c.answer)
				pass(2 * length)
				switch lost := w.lost(); {
				case c.err == nil:
					require.Empty(w, lost)
				case c.lost != fault.NotLost && c.lost != fault.RenewedTooLate:
					require.Equal(w, c.lost, lost[0].why)
				default: // it was tried until its time was over
					require.Equal(w, fault.LeaseOver, lost[0].why)
					require.Equal(w, c.wait == 0, w.commands() > 2)
				}
			})
		})
	}
}

// A renewal that is answered after the loss does not revive the hold.
func TestHold_WhatIsLostStaysLost(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.all(answer{n: 1, wait: time.Second})
		renewed := make(chan error)
		go func() { renewed <- Part{h, anna}.Renew(w.wait(), nil) }()
		synctest.Wait()
		h.Lose(fault.Forced)
		require.ErrorIs(w, <-renewed, fault.Lost)
		require.False(w, h.Valid())
		require.Equal(w, fault.Forced, h.Loss())
		require.Len(w, w.lost(), 1)
		require.Nil(w, h.tick())
	})
}

// A hold that is released before the reply to a renewal comes was not lost. A nested call is left without its hold all the same.
func TestHold_ReleasedDuringARenewal(t *testing.T) {
	for name, c := range map[string]struct {
		chosen   *lease.Term
		released error // after a release of the valid hold
	}{
		"its owner chooses a lease": {lease.NewTerm(time.Hour), fault.NotOwner},
		"a call nests":              {nil, fault.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lost := range []bool{false, true} {
				fake(t, func(w *world) {
					h := w.granted(terms(time.Minute))
					w.all(answer{n: 1, wait: time.Second})
					renewed := make(chan error)
					go func() { renewed <- Part{h, anna}.Renew(w.wait(), c.chosen) }()
					synctest.Wait()
					want := c.released
					if lost {
						h.Lose(fault.Forced)
						want = fault.Lost
					}
					require.Equal(w, !lost, first(h.End(w.path.Clock.Now())))
					require.ErrorIs(w, <-renewed, want)
					require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), c.chosen), want, "one that comes later")
				})
			}
		})
	}
}

// The lease of a hold that is shared is not shortened by one of its owners.
func TestHold_SharedLeaseIsNotShortened(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.path.Shared = true
		w.locked(func() { w.owners = 2 })
		require.NoError(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(time.Second)))
		require.Greater(w, h.Left(), 50*time.Second)
		w.locked(func() { w.owners = 1 })
		require.NoError(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(time.Second)))
		require.Less(w, h.Left(), time.Second)
	})
}

// Whichever of a loss and a waiter comes last finds the other one.
func TestHold_ALossAndAWaiterFindEachOther(t *testing.T) {
	fake(t, func(w *world) {
		first := w.granted(terms(time.Minute))
		require.False(w, first.Attend(true))
		require.True(w, first.Watched())
		require.False(w, first.Attend(true), "a second waiter")
		first.Lose(fault.Forced)
		require.False(w, first.Watched())
		require.True(w, w.lost()[0].awaited)
		second := w.granted(terms(time.Minute))
		second.Lose(fault.Forced)
		require.False(w, w.lost()[1].awaited)
		require.True(w, second.Attend(true))
		require.True(w, second.Attend(false))
	})
	fake(t, func(w *world) { // at the same time
		for range 2000 {
			h := w.granted(terms(time.Minute))
			w.locked(func() { w.losses = nil })
			var over bool
			var both sync.WaitGroup
			both.Go(func() { h.Lose(fault.KeyGone) })
			both.Go(func() { over = h.Attend(true) })
			both.Wait()
			require.True(w, over || w.losses[0].awaited)
		}
	})
}

// A waiter learns of the end of a lease although only the schedule looks.
func TestHold_AWaiterHearsOfTheEndOfTheLease(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		require.False(w, h.Attend(false))
		require.True(w, w.schedule.None(), "a call that does not wait")
		require.False(w, h.Attend(true))
		pass(time.Minute)
		lost := w.lost()
		require.Equal(w, fault.LeaseOver, lost[0].why)
		require.True(w, lost[0].awaited)
	})
}

// The key of a lost hold is removed only if it may still be there, and only when that removal is due: an earlier look of the
// schedule does not remove it.
func TestHold_WhichLossMayLeaveTheKey(t *testing.T) {
	for why, keeps := range map[fault.Loss]bool{
		fault.LeaseOver: true, fault.RenewedTooLate: true, fault.GrantedTwice: true,
		fault.KeyGone: false, fault.KeyTaken: false, fault.Forced: false,
	} {
		t.Run(why.String(), func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(time.Hour))
				h.Lose(why)
				require.Equal(w, keeps, !w.schedule.None())
				require.Nil(w, h.tick()) // it was due before, and another call has found the loss
				require.Empty(w, w.removals())
				h.End(w.path.Clock.Now())
				require.True(w, w.schedule.None())
			})
			fake(t, func(w *world) { // nobody releases it
				w.granted(terms(time.Hour)).Lose(why)
				pass(time.Hour)
				require.Empty(w, w.removals(), "the owner may be at work")
				pass(time.Hour)
				if keeps {
					require.Equal(w, []Remains{{"me:7", time.Hour, time.Hour, 0}}, w.removals())
				} else {
					require.Empty(w, w.removals())
				}
			})
		})
	}
}

// If a look has found a grant before its message, one message may still come. A second message is about another server's grant.
func TestHold_GrantedTwice(t *testing.T) {
	fake(t, func(w *world) {
		h := New(w.path, "me:7", terms(time.Minute))
		h.AwaitMessage(w.path.Clock.Now().Add(time.Second))
		require.True(w, h.GrantShort(w.path.Clock.Now(), time.Second))
		_, found := h.Keeps()
		require.NotZero(w, found)
		h.GrantAgain()
		require.True(w, h.Valid())
		h.GrantAgain()
		require.Equal(w, fault.GrantedTwice, w.lost()[0].why)
	})
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		h.AwaitMessage(w.path.Clock.Now().Add(time.Second))
		pass(time.Second)
		h.GrantAgain()
		require.Equal(w, fault.GrantedTwice, w.lost()[0].why, "too late for that message")
	})
}

// When the server may no longer be the master, a renewed hold is renewed at once, and any other hold is verified.
func TestHold_DoubtAsksTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		terms Terms
		answer
		lost int
	}{
		"renewed, and there":       {renewed(time.Hour), answer{n: 1}, 0},
		"renewed, and gone":        {renewed(time.Hour), answer{n: 0}, 1},
		"not renewed, and there":   {terms(time.Hour), answer{n: 1}, 0},
		"not renewed, and gone":    {terms(time.Hour), answer{n: 0}, 1},
		"another has it":           {terms(time.Hour), answer{n: -1}, 1},
		"the reply may be another": {terms(time.Hour), answer{n: 0, late: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(c.terms)
				w.all(c.answer)
				h.Verify()
				pass(roundTrip)
				require.GreaterOrEqual(w, w.commands(), 1)
				require.Len(w, w.lost(), c.lost)
				sent := w.commands()
				pass(time.Minute)
				require.Equal(w, c.late, w.commands() > sent, "whether it asks again")
			})
		})
	}
}

// The owner of a hold changes the lease while the hold is verified. The reply is judged by the lease at the time of the question.
// The race detector sees it if that lease is read without the mutex.
func TestHold_LeaseChangesWhileTheServerIsAsked(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.stall() // so that the test has the task
		h.Verify()
		task := h.tick()
		require.False(w, task.Writes())
		asked := make(chan time.Duration)
		go func() { asked <- task.Length() }()
		require.NoError(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(300*time.Millisecond)))
		require.Equal(w, time.Minute, <-asked)
	})
}

// A closed schedule announces no loss: so contexts end, and there are no new ones.
func TestHold_CloseLeavesHoldsToTheirLeases(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(renewed(time.Minute))
		ctx := w.context(h, anna)
		w.schedule.Close()
		require.ErrorIs(w, context.Cause(ctx), fault.Closed)
		_, err := within(w.Context(), h, anna)
		require.ErrorIs(w, err, fault.Closed)
		require.True(w, h.Valid())
		require.False(w, h.Attend(true))
		require.False(w, h.Watched())
		require.NoError(w, Part{h, anna}.Renew(w.wait(), nil))
		require.True(w, first(h.End(w.path.Clock.Now())))
	})
}

// What is left of a hold in Redis is named by its value, and lives for the longest lease that it ever had.
func TestHold_Remains(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(Terms{Lease: lease.NewTerm(time.Minute), AtLeast: time.Hour})
		kept := w.path.Clock.Now().Add(time.Hour)
		w.all(answer{n: 1, late: true})
		require.ErrorIs(w, Part{h, anna}.Renew(w.wait(), lease.NewTerm(time.Second)), fault.Late)
		require.Equal(w, Remains{"me:7", time.Minute, time.Second, kept}, h.Remains())
		require.Equal(w, "7", h.Number())
	})
}

// Renewals and verifications name the value of their hold.
func TestHold_CommandsNameTheHold(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		w.locked(func() {
			w.reply = func(c protocol.Call) answer {
				if c.Key != "orders:42" || !names(c, h.Value()) {
					return answer{n: -1}
				}
				return answer{n: 1}
			}
		})
		require.NoError(w, Part{h, anna}.Renew(w.wait(), nil))
		h.Verify()
		require.Equal(w, 2, w.commands())
		require.True(w, h.Valid())
	})
}

func names(c protocol.Call, value string) bool {
	for _, a := range c.Args {
		if a == value {
			return true
		}
	}
	return false
}

// first is the first of two results.
func first(a, _ bool) bool { return a }
