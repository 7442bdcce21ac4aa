package lockregistry

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Owners: some are goroutines, others are made by ContextWithOwner.
const (
	anna owner.ID = iota + 1
	bert
	cleo
	dora
	team = owner.Made | 1
	crew = owner.Made | 2
)

// looks checks everything that a localLock knows, and that its queue is a proper doubly linked list.
func looks(t *testing.T, l *localLock, o owner.ID, holds int32, queue ...owner.ID) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, o, l.owner, "owner")
	require.Equal(t, holds, l.holds, "holds")
	var forward, backward []owner.ID
	for w := l.queue.First(); w != nil; w = *field[*local.Waiter](w, "next") {
		require.True(t, w.Queued())
		forward = append(forward, w.Owner())
	}
	for w := l.queue.First(); w != nil && len(backward) < len(forward); { // the first one's prev is the last one
		w = *field[*local.Waiter](w, "prev")
		backward = append([]owner.ID{w.Owner()}, backward...)
	}
	require.Equal(t, queue, forward, "queue")
	require.Equal(t, forward, backward, "queue from the end")
}

// in enters, and checks that this needs no waiting, and how the owner is admitted.
func in(t *testing.T, l *localLock, o owner.ID, want local.Admission) {
	t.Helper()
	how, w := l.Enter(o, 0, false, nil)
	require.Equal(t, want, how)
	require.Nil(t, w)
}

// linesUp enters, and checks that this needs waiting.
func linesUp(t *testing.T, l *localLock, o owner.ID) *local.Waiter {
	t.Helper()
	how, w := l.Enter(o, time.Second, true, nil)
	require.Equal(t, local.Refused, how)
	require.NotNil(t, w)
	require.Equal(t, o, w.Owner())
	return w
}

// held is a lock that o holds.
func held(t *testing.T, o owner.ID) *localLock {
	t.Helper()
	l := &localLock{}
	in(t, l, o, local.Entered)
	l.Granted()
	return l
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestLocalLock_FreeToAcquiring(t *testing.T) {
	for _, wait := range []bool{false, true} {
		l := &localLock{}
		looks(t, l, owner.Nobody, 0)
		how, w := l.Enter(anna, 0, wait, nil)
		require.Equal(t, local.Entered, how)
		require.Nil(t, w)
		looks(t, l, anna, 0)
		require.False(t, l.HeldBy(anna), "who has no grant yet holds nothing")
	}
}

func TestLocalLock_AcquiringToHeldAndBack(t *testing.T) {
	l := held(t, anna)
	looks(t, l, anna, 1)
	require.True(t, l.HeldBy(anna))
	require.False(t, l.HeldBy(bert))

	last, ok := exit(l, anna)
	require.True(t, ok)
	require.True(t, last)
	looks(t, l, owner.Leaving, 0)
	require.False(t, l.HeldBy(anna))

	l.Free()
	looks(t, l, owner.Nobody, 0)
	in(t, l, bert, local.Entered)
}

func TestLocalLock_AcquiringFails(t *testing.T) {
	l := &localLock{}
	in(t, l, anna, local.Entered)
	l.Free()
	looks(t, l, owner.Nobody, 0)
	in(t, l, bert, local.Entered)

	// With somebody in the queue, the next one tries.
	w := linesUp(t, l, cleo)
	l.Free()
	looks(t, l, cleo, 0)
	require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
}

func TestLocalLock_RefusesOthers(t *testing.T) {
	acquiring := &localLock{}
	in(t, acquiring, anna, local.Entered)
	exiting := held(t, anna)
	_, _ = exit(exiting, anna)
	for name, l := range map[string]*localLock{"acquiring": acquiring, "held": held(t, anna), "leaving": exiting} {
		t.Run(name, func(t *testing.T) {
			before, holds := l.owner, l.holds
			in(t, l, bert, local.Refused)
			looks(t, l, before, holds)
			w := linesUp(t, l, bert)
			looks(t, l, before, holds, bert)
			in(t, l, cleo, local.Refused)
			looks(t, l, before, holds, bert)
			l.Free()
			require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
			looks(t, l, bert, 0)
		})
	}
}

func TestLocalLock_OwnerCannotReenterWhileLeaving(t *testing.T) {
	l := held(t, anna)
	_, _ = exit(l, anna)
	in(t, l, anna, local.Refused)
	looks(t, l, owner.Leaving, 0)
	w := linesUp(t, l, anna)
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
	looks(t, l, anna, 0)
}

func TestLocalLock_Reentrancy(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		l := held(t, o)
		const depth = 5
		for i := range depth {
			in(t, l, o, local.Reentered)
			looks(t, l, o, int32(i+2))
		}
		linesUp(t, l, bert) // does not keep the owner from entering again
		in(t, l, o, local.Reentered)
		for i := range depth + 1 {
			last, ok := exit(l, o)
			require.True(t, ok)
			require.False(t, last)
			looks(t, l, o, int32(depth+1-i), bert)
		}
		last, ok := exit(l, o)
		require.True(t, ok)
		require.True(t, last)
		looks(t, l, owner.Leaving, 0, bert)
		l.Free()
		looks(t, l, bert, 0)
	}
}

func TestLocalLock_ExitByOthersChangesNothing(t *testing.T) {
	exits := func(t *testing.T, l *localLock, who ...owner.ID) {
		t.Helper()
		before, holds := l.owner, l.holds
		for _, o := range who {
			last, ok := exit(l, o)
			require.False(t, ok, "exit of %x", uint64(o))
			require.False(t, last)
			looks(t, l, before, holds, dora)
		}
	}
	waits := func(t *testing.T, l *localLock) {
		t.Helper()
		l.mu.Lock()
		l.queue.Push(dora, 0, nil)
		l.mu.Unlock()
	}

	free := &localLock{}
	for _, o := range []owner.ID{owner.Nobody, anna, team, owner.Leaving} {
		last, ok := exit(free, o)
		require.False(t, ok)
		require.False(t, last)
		looks(t, free, owner.Nobody, 0)
	}

	acquiring := &localLock{}
	in(t, acquiring, anna, local.Entered)
	waits(t, acquiring)
	exits(t, acquiring, owner.Nobody, anna, bert, team, owner.Leaving, dora) // not even anna: she holds nothing yet

	one := held(t, anna)
	waits(t, one)
	exits(t, one, owner.Nobody, bert, team, owner.Leaving, dora)

	shared := held(t, team)
	in(t, shared, team, local.Reentered)
	waits(t, shared)
	exits(t, shared, owner.Nobody, anna, crew, owner.Leaving, dora)

	exiting := held(t, anna)
	_, _ = exit(exiting, anna)
	waits(t, exiting)
	exits(t, exiting, owner.Nobody, anna, owner.Leaving, dora)
}

func TestLocalLock_IsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const goroutines = 200
		l := held(t, anna)
		var order []owner.ID // guarded by the lock itself
		var done sync.WaitGroup
		for i := range goroutines {
			o := owner.ID(1000 + i)
			done.Go(func() {
				how, w := l.Enter(o, 0, true, nil)
				assert.Equal(t, local.Refused, how)
				assert.Equal(t, local.Entered, l.Wait(context.Background(), w, nil))
				order = append(order, o)
				l.Granted()
				last, ok := exit(l, o)
				assert.True(t, last && ok)
				l.Free()
			})
			synctest.Wait() // it waits
		}
		_, _ = exit(l, anna)
		synctest.Wait()
		require.Empty(t, order, "nobody is let in while the removal is under way")
		l.Free()
		done.Wait()
		want := make([]owner.ID, goroutines)
		for i := range want {
			want[i] = owner.ID(1000 + i)
		}
		require.Equal(t, want, order)
		looks(t, l, owner.Nobody, 0)
	})
}

func TestLocalLock_NobodyOvertakes(t *testing.T) {
	l := held(t, anna)
	w := linesUp(t, l, bert)
	_, _ = exit(l, anna)
	l.Free()
	// Bert has not run yet; the lock is his all the same.
	in(t, l, cleo, local.Refused)
	in(t, l, anna, local.Refused)
	late := linesUp(t, l, cleo)
	looks(t, l, bert, 0, cleo)
	require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), late, nil))
	looks(t, l, cleo, 0)
}

func TestLocalLock_WaiterThatGivesUpCostsTheOthersNothing(t *testing.T) {
	all := []owner.ID{bert, cleo, dora}
	reasons := map[string]func(l *localLock, w *local.Waiter, stop <-chan struct{}) local.Admission{
		"context": func(l *localLock, w *local.Waiter, stop <-chan struct{}) local.Admission {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				<-stop
				cancel()
			}()
			return l.Wait(ctx, w, nil)
		},
		"timeout": func(l *localLock, w *local.Waiter, stop <-chan struct{}) local.Admission {
			timeout := make(chan time.Time, 1)
			go func() {
				<-stop
				timeout <- time.Time{}
			}()
			return l.Wait(context.Background(), w, timeout)
		},
		"cancelled": func(l *localLock, w *local.Waiter, stop <-chan struct{}) local.Admission {
			go func() {
				<-stop
				l.Cancel(w)
			}()
			return l.Wait(context.Background(), w, nil)
		},
	}
	for name, wait := range reasons {
		for quitter := range all { // at the head, in the middle, at the tail
			t.Run(name+"/"+string(rune('1'+quitter)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := held(t, anna)
					results := make([]chan local.Admission, len(all))
					stops := make([]chan struct{}, len(all))
					for i, o := range all {
						results[i], stops[i] = make(chan local.Admission, 1), make(chan struct{})
						w := linesUp(t, l, o)
						go func() { results[i] <- wait(l, w, stops[i]) }()
					}
					synctest.Wait()
					looks(t, l, anna, 1, all...)

					close(stops[quitter])
					require.Equal(t, local.Refused, <-results[quitter])
					var left []int
					var queued []owner.ID
					for i, o := range all {
						if i != quitter {
							left, queued = append(left, i), append(queued, o)
						}
					}
					looks(t, l, anna, 1, queued...)

					late := linesUp(t, l, all[quitter]) // comes back, at the end
					_, _ = exit(l, anna)
					for n, i := range left {
						l.Free()
						require.Equal(t, local.Entered, <-results[i])
						looks(t, l, all[i], 0, append(queued[n+1:len(queued):len(queued)], all[quitter])...)
						close(stops[i])
					}
					l.Free()
					require.Equal(t, local.Entered, l.Wait(context.Background(), late, nil))
					l.Free()
					looks(t, l, owner.Nobody, 0)
				})
			})
		}
	}
}

func TestLocalLock_EveryWaiterGivesUp(t *testing.T) {
	l := held(t, anna)
	waiting := []*local.Waiter{linesUp(t, l, bert), linesUp(t, l, cleo), linesUp(t, l, dora)}
	for _, w := range slices.Backward(waiting) {
		require.Equal(t, local.Refused, l.Wait(cancelled(), w, nil))
	}
	looks(t, l, anna, 1)
	w := linesUp(t, l, bert)
	_, _ = exit(l, anna)
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
	l.Free()
	looks(t, l, owner.Nobody, 0)
}

// Cancelled first: the turn goes to the next waiter as if the first one had not been there.
func TestLocalLock_CancelledBeforeTheTurn(t *testing.T) {
	l := held(t, anna)
	w, next := linesUp(t, l, bert), linesUp(t, l, cleo)
	require.Equal(t, local.Refused, l.Wait(cancelled(), w, nil))
	_, _ = exit(l, anna)
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), next, nil))
	looks(t, l, cleo, 0)
}

// tooLate is a context that is done. It lets the waiter's turn come after Wait has seen that the context is done, and before Wait
// takes the mutex.
type tooLate struct {
	context.Context
	turn func()
}

func (c tooLate) Done() <-chan struct{} {
	c.turn()
	return c.Context.Done()
}

// cancelledThenTurn waits with a context that is seen to be done. The turn comes before the waiter has left the queue.
func cancelledThenTurn(l *localLock, w *local.Waiter, turn func()) local.Admission {
	return l.Wait(tooLate{cancelled(), func() {
		// The select of wait looks at the old channel, on which nothing is ever sent.
		*field[chan local.Admission](w, "turn") = make(chan local.Admission, 1)
		turn()
	}}, w, nil)
}

func TestLocalLock_TurnBeforeTheCancelledWaiterLeft(t *testing.T) {
	l := held(t, anna)
	w, next := linesUp(t, l, bert), linesUp(t, l, cleo)
	_, _ = exit(l, anna)
	require.Equal(t, local.Refused, cancelledThenTurn(l, w, func() {
		l.Free()
		looks(t, l, bert, 0, cleo)
	}))
	looks(t, l, cleo, 0)
	require.Equal(t, local.Entered, l.Wait(t.Context(), next, nil))
	l.Free()

	// With nobody behind it, the lock is free.
	in(t, l, anna, local.Entered)
	w = linesUp(t, l, bert)
	require.Equal(t, local.Refused, cancelledThenTurn(l, w, l.Free))
	looks(t, l, owner.Nobody, 0)
}

// The turn and the cancellation are both there before Wait looks: select takes either, and both are right.
func TestLocalLock_TurnAndCancellationAtOnce(t *testing.T) {
	seen := map[local.Admission]bool{}
	for tries := 0; len(seen) < 2; tries++ {
		require.Less(t, tries, 10_000, "only ever saw %v", seen)
		l := held(t, anna)
		w, next := linesUp(t, l, bert), linesUp(t, l, cleo)
		_, _ = exit(l, anna)
		l.Free()
		how := l.Wait(cancelled(), w, nil)
		seen[how] = true
		switch how {
		case local.Entered:
			looks(t, l, bert, 0, cleo)
			l.Free()
		case local.Refused:
			looks(t, l, cleo, 0)
		default:
			t.Fatal(how)
		}
		require.Equal(t, local.Entered, l.Wait(t.Context(), next, nil))
		l.Free()
		looks(t, l, owner.Nobody, 0)
	}
}

// A waiter that was admitted to the hold of its own owner is in, even if it was cancelled: the hold counts it.
func TestLocalLock_CancelledWaiterThatWasAdmittedToItsOwnersHold(t *testing.T) {
	l := &localLock{}
	in(t, l, team, local.Entered)
	w := linesUp(t, l, team)
	require.Equal(t, local.Reentered, cancelledThenTurn(l, w, func() { l.Granted() }))
	looks(t, l, team, 2)
	last, ok := exit(l, team)
	require.True(t, ok)
	require.False(t, last)
	last, ok = exit(l, team)
	require.True(t, ok)
	require.True(t, last)
}

func TestLocalLock_SharedOwnerQueuesWhileItAcquires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &localLock{}
		in(t, l, team, local.Entered)
		in(t, l, team, local.Refused) // it holds nothing yet, so nothing more can be held
		results := make(chan local.Admission, 2)
		for range 2 {
			w := linesUp(t, l, team)
			go func() { results <- l.Wait(context.Background(), w, nil) }()
		}
		synctest.Wait()
		looks(t, l, team, 0, team, team)
		require.Empty(t, results)

		l.Granted()
		require.Equal(t, local.Reentered, <-results)
		require.Equal(t, local.Reentered, <-results)
		looks(t, l, team, 3)
		for i := range 3 {
			last, ok := exit(l, team)
			require.True(t, ok)
			require.Equal(t, i == 2, last)
		}
	})
}

// When the first goroutine of the owner fails, the second one tries for itself.
func TestLocalLock_SharedOwnerFailsToAcquire(t *testing.T) {
	l := &localLock{}
	in(t, l, team, local.Entered)
	w := linesUp(t, l, team)
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), w, nil))
	looks(t, l, team, 0)
}

func TestLocalLock_GrantedAdmitsItsOwnersWaitersOnly(t *testing.T) {
	l := held(t, anna)
	waiting := map[string]*local.Waiter{}
	for _, q := range []struct {
		name string
		o    owner.ID
	}{{"bert", bert}, {"team 1", team}, {"crew 1", crew}, {"team 2", team}, {"cleo", cleo}, {"team 3", team}, {"crew 2", crew}} {
		waiting[q.name] = linesUp(t, l, q.o)
	}
	comes := func(name string, want local.Admission) {
		t.Helper()
		select {
		case how := <-*field[chan local.Admission](waiting[name], "turn"):
			require.Equal(t, want, how, name)
		default:
			t.Fatalf("the turn of %s has not come", name)
		}
	}
	_, _ = exit(l, anna)
	l.Free()
	comes("bert", local.Entered)
	l.Granted() // nobody else is bert
	looks(t, l, bert, 1, team, crew, team, cleo, team, crew)
	_, _ = exit(l, bert)
	l.Free()
	comes("team 1", local.Entered)
	looks(t, l, team, 0, crew, team, cleo, team, crew)
	l.Granted()
	comes("team 2", local.Reentered)
	comes("team 3", local.Reentered)
	looks(t, l, team, 3, crew, cleo, crew)
	for range 3 {
		_, _ = exit(l, team)
	}
	looks(t, l, owner.Leaving, 0, crew, cleo, crew)
	l.Free()
	comes("crew 1", local.Entered)
	l.Granted()
	comes("crew 2", local.Reentered)
	looks(t, l, crew, 2, cleo)
	_, _ = exit(l, crew)
	_, _ = exit(l, crew)
	l.Free()
	comes("cleo", local.Entered)
	l.Free()
	looks(t, l, owner.Nobody, 0)
}

func TestLocalLock_Pass(t *testing.T) {
	l := held(t, anna)
	queued := func() int {
		n, _ := l.Queued()
		return n
	}
	require.Zero(t, queued())
	_, short := l.Enter(bert, time.Second, true, nil)
	_, long := l.Enter(cleo, 2*time.Second, true, nil)
	require.Equal(t, 2, queued())

	_, _ = exit(l, anna)
	require.True(t, l.HandOff(time.Second), "asks for no longer a lease than that")
	looks(t, l, bert, 1, cleo)
	require.True(t, l.HeldBy(bert), "before it even runs")
	require.Equal(t, local.HandedOff, l.Wait(t.Context(), short, nil))
	in(t, l, bert, local.Reentered)
	_, _ = exit(l, bert)

	_, _ = exit(l, bert)
	require.False(t, l.HandOff(2*time.Second-1), "asks for a longer lease")
	looks(t, l, owner.Leaving, 0, cleo)
	require.Equal(t, 1, queued())
	l.Free()
	require.Equal(t, local.Entered, l.Wait(t.Context(), long, nil))
	l.Granted()
	_, _ = exit(l, cleo)
	require.Zero(t, queued())
	require.False(t, l.HandOff(time.Hour), "nobody waits")
	looks(t, l, owner.Leaving, 0)
	l.Free()
	looks(t, l, owner.Nobody, 0)
}

// HandOff asks only whether the lease suits the first waiter: to pass over that waiter would break the order.
func TestLocalLock_PassKeepsTheOrder(t *testing.T) {
	l := held(t, anna)
	_, first := l.Enter(bert, time.Hour, true, nil)
	linesUp(t, l, cleo)
	_, _ = exit(l, anna)
	require.False(t, l.HandOff(time.Second))
	looks(t, l, owner.Leaving, 0, bert, cleo)

	require.Equal(t, local.Refused, l.Wait(cancelled(), first, nil)) // now cleo is first
	require.True(t, l.HandOff(time.Second))
	looks(t, l, cleo, 1)
}

func TestLocalLock_PassAdmitsAllOfItsNextOwner(t *testing.T) {
	l := held(t, anna)
	waiting := []*local.Waiter{linesUp(t, l, team), linesUp(t, l, bert), linesUp(t, l, team), linesUp(t, l, crew)}
	_, _ = exit(l, anna)
	require.True(t, l.HandOff(time.Second))
	looks(t, l, team, 2, bert, crew)
	require.Equal(t, local.HandedOff, l.Wait(t.Context(), waiting[0], nil))
	require.Equal(t, local.Reentered, l.Wait(t.Context(), waiting[2], nil))
}

// The hold is passed on to a waiter that is being cancelled: it has the lock then, and must give it back itself.
func TestLocalLock_CancelledWaiterThatWasHandedTheHold(t *testing.T) {
	l := held(t, anna)
	w := linesUp(t, l, bert)
	linesUp(t, l, cleo)
	_, _ = exit(l, anna)
	require.Equal(t, local.HandedOff, cancelledThenTurn(l, w, func() { require.True(t, l.HandOff(time.Second)) }))
	looks(t, l, bert, 1, cleo)
	last, ok := exit(l, bert)
	require.True(t, last && ok)
}

// A process may have very many waiters.
func TestMemoryOfAWaiter(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(local.Waiter{}), uintptr(256))
}

// Many goroutines, some of them with a shared owner, do everything at once. The race detector would see it if two were in.
func TestLocalLock_Hammer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const goroutines, rounds = 32, 400
	l := &localLock{}
	var pool local.Pool
	var (
		plain   int        // not atomic: only a goroutine that is in alone touches it
		inside  owner.ID   // the owner that holds, written by the first goroutine of that owner and by the last
		mu      sync.Mutex // goroutines of one shared owner hold together
		users   int        // how many, under mu
		holding = map[owner.ID]int{}
	)
	// Each goroutine of a shared owner leaves by itself, so the one that leaves last need not be the one that came first.
	arrive := func(o owner.ID, alone bool) {
		mu.Lock()
		defer mu.Unlock()
		if alone {
			assert.Zero(t, users, "entered while others hold")
		}
		if users == 0 {
			inside = o
		}
		assert.Equal(t, inside, o, "two owners hold")
		users++
		holding[o]++
	}
	leave := func(o owner.ID) {
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, inside, o, "two owners held")
		users--
		if holding[o]--; holding[o] == 0 {
			delete(holding, o)
		}
	}
	var done sync.WaitGroup
	for g := range goroutines {
		done.Go(func() {
			dice := rand.New(rand.NewPCG(seed, uint64(g)))
			o := owner.ID(1000 + g)
			if g%4 == 0 {
				o = owner.Made | owner.ID(1+g%8) // two shared owners with several goroutines each
			}
			for range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				var timeout <-chan time.Time
				how, w := l.Enter(o, time.Duration(dice.IntN(3)), dice.IntN(8) > 0, &pool)
				if w != nil {
					known := false
					switch dice.IntN(4) {
					case 0:
						go cancel()
					case 1:
						timeout = time.After(time.Duration(dice.IntN(50)) * time.Microsecond)
					case 2:
						known = true // as by Close, which has found it in the graph
						go l.Cancel(w)
					}
					how = l.Wait(ctx, w, timeout)
					if !known {
						pool.Put(w)
					}
				}
				cancel()
				switch how {
				case local.Refused:
					continue
				case local.Entered:
					plain++ // acquiring: alone, whatever the owner
					if dice.IntN(5) == 0 {
						l.Free()
						continue
					}
					arrive(o, true)
					l.Granted()
				case local.HandedOff:
					plain++ // others of a shared owner may hold too, but only the last of them touches plain
					arrive(o, false)
				case local.Reentered:
					arrive(o, false)
				default:
					t.Errorf("a plain lock let somebody in as %d", how)
				}
				again := 0
				for dice.IntN(3) == 0 {
					got, _ := l.Enter(o, 0, false, nil)
					assert.Equal(t, local.Reentered, got)
					again++
				}
				assert.True(t, l.HeldBy(o))
				for range again {
					last, ok := exit(l, o)
					assert.True(t, ok)
					assert.False(t, last)
				}
				_, ok := exit(l, dora)
				assert.False(t, ok)
				leave(o)
				last, ok := exit(l, o)
				assert.True(t, ok)
				if last {
					plain++ // leaving: alone too
					if dice.IntN(2) == 0 || !l.HandOff(1) {
						l.Free()
					}
				}
			}
		})
	}
	done.Wait()
	looks(t, l, owner.Nobody, 0)
	require.Zero(t, users)
	require.Empty(t, holding)
	require.Positive(t, plain)
}

// exit calls [localLock.Exit], and reports whether the owner was the last one, and whether it was in.
func exit(l *localLock, o owner.ID) (isLast, ok bool) {
	d, _ := l.Exit(o)
	return d == local.Last, d != local.NotIn
}

// knot makes a loop in the list of waiters at one of them, until the test calls the result: code that walks the queue past that
// waiter never ends.
func knot(w *local.Waiter) (untie func()) {
	next := field[*local.Waiter](w, "next")
	before := *next
	*next = w
	return func() { *next = before }
}

// looksAtNobody fails the test if a function walks a queue that has a knot.
func looksAtNobody(t *testing.T, transitions func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		transitions()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("somebody goes through the whole queue under the mutex")
	}
}

// A transition looks only at the first waiter, and at those of the owner that enters.
func TestLocalLock_DoesConstantWork(t *testing.T) {
	l := held(t, anna)
	linesUp(t, l, team)
	linesUp(t, l, bert)
	same := []*local.Waiter{linesUp(t, l, team), linesUp(t, l, team)}
	middle := linesUp(t, l, cleo)
	behind := []*local.Waiter{linesUp(t, l, dora), linesUp(t, l, team), linesUp(t, l, crew)}
	untie := knot(middle)
	looksAtNobody(t, func() {
		assert.Equal(t, local.Refused, l.Wait(cancelled(), behind[2], nil))
		l.Exit(anna)
		assert.True(t, l.HandOff(time.Second)) // to team
		assert.Equal(t, local.Reentered, turn(same[0]))
		assert.Equal(t, local.Reentered, turn(same[1]))
		assert.Equal(t, local.Reentered, turn(behind[1]))
		for range 4 {
			l.Exit(team)
		}
		l.Free()
		assert.True(t, l.Granted())
		assert.True(t, l.Evict(always)) // bert
	})
	untie()
	l.Free()
	looks(t, l, cleo, 0, dora)
}

func always() fault.Loss { return fault.LeaseOver }
func still() fault.Loss  { return fault.NotLost }

// departs is how an owner left.
func departs(how local.Departure, _ fault.Loss) local.Departure { return how }

func TestLocalLock_Evicts(t *testing.T) {
	l := &localLock{}
	require.False(t, l.Evict(always), "nobody is in")
	in(t, l, anna, local.Entered)
	require.False(t, l.Evict(always), "who asks Redis has no hold to lose")
	l.Granted()
	in(t, l, anna, local.Reentered)
	w := linesUp(t, l, bert)
	require.False(t, l.Evict(still), "the hold is not lost")
	looks(t, l, anna, 2, bert)
	require.True(t, l.Evict(always))
	looks(t, l, owner.Leaving, 0, bert)
	require.Equal(t, local.Refused, turn(w), "the key may be there still")
	require.False(t, l.Evict(always))
	require.False(t, l.HeldBy(anna))
	require.Equal(t, fault.LeaseOver, l.Lost(anna))
	l.Free()
	require.Equal(t, local.Entered, turn(w))
	l.Granted()

	// She learns of it until she has unlocked as often as she has locked.
	for range 2 {
		in(t, l, anna, local.Evicted)
		require.Equal(t, local.Lost, departs(l.Exit(anna)))
	}
	require.Equal(t, local.NotIn, departs(l.Exit(anna)))
	require.Equal(t, fault.NotLost, l.Lost(anna))
	in(t, l, anna, local.Refused)
	looks(t, l, bert, 1)
	require.Equal(t, local.Last, departs(l.Exit(bert)))
	require.False(t, l.Evict(always), "he is out by himself")
}

// Only the last owners that were evicted are remembered.
func TestLocalLock_EvictionsAreForgotten(t *testing.T) {
	const remembered = 1000 // and the last one
	l := &localLock{}
	for o := range owner.ID(remembered + 2) {
		in(t, l, 1000+o, local.Entered)
		l.Granted()
		require.True(t, l.Evict(always))
		l.Free()
	}
	require.Equal(t, local.NotIn, departs(l.Exit(1000)))
	in(t, l, 1000, local.Entered)
	l.Free()
	for o := range owner.ID(remembered + 1) {
		require.Equal(t, local.Lost, departs(l.Exit(1001+o)))
	}
	require.Zero(t, l.evictions)
}

// turn is how a waiter was let in; Refused when it was not yet.
func turn(w *local.Waiter) local.Admission {
	select {
	case how := <-*field[chan local.Admission](w, "turn"):
		return how
	default:
		return local.Refused
	}
}

// field returns a field of another package's struct, for a test to read and change.
func field[T any](of any, name string) *T {
	return (*T)(reflect.ValueOf(of).Elem().FieldByName(name).Addr().UnsafePointer())
}
