package lockregistry

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Owners as goroutines have them, and as NewOwner makes them.
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
	for w := l.queue.first; w != nil; w = w.next {
		require.True(t, w.queued)
		forward = append(forward, w.owner)
	}
	for w := l.queue.last; w != nil; w = w.prev {
		backward = append([]owner.ID{w.owner}, backward...)
	}
	require.Equal(t, queue, forward, "queue")
	require.Equal(t, forward, backward, "queue from the end")
}

// in enters where that must not need waiting, and checks how.
func in(t *testing.T, l *localLock, o owner.ID, want entry) {
	t.Helper()
	how, w := l.enter(o, 0, false, nil)
	require.Equal(t, want, how)
	require.Nil(t, w)
}

// queue enters where that must need waiting.
func queue(t *testing.T, l *localLock, o owner.ID) *waiter {
	t.Helper()
	how, w := l.enter(o, time.Second, true, nil)
	require.Equal(t, refused, how)
	require.NotNil(t, w)
	require.Equal(t, o, w.owner)
	return w
}

// held is a lock that o holds.
func held(t *testing.T, o owner.ID) *localLock {
	t.Helper()
	l := &localLock{}
	in(t, l, o, entered)
	l.granted()
	return l
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestLocalLockFreeToAcquiring(t *testing.T) {
	for _, wait := range []bool{false, true} {
		l := &localLock{}
		looks(t, l, owner.Nobody, 0)
		how, w := l.enter(anna, 0, wait, nil)
		require.Equal(t, entered, how)
		require.Nil(t, w)
		looks(t, l, anna, 0)
		require.False(t, l.heldBy(anna), "who has no grant yet holds nothing")
	}
}

func TestLocalLockAcquiringToHeldAndBack(t *testing.T) {
	l := held(t, anna)
	looks(t, l, anna, 1)
	require.True(t, l.heldBy(anna))
	require.False(t, l.heldBy(bert))

	last, ok := exit(l, anna)
	require.True(t, ok)
	require.True(t, last)
	looks(t, l, owner.Leaving, 0)
	require.False(t, l.heldBy(anna))

	l.free()
	looks(t, l, owner.Nobody, 0)
	in(t, l, bert, entered)
}

func TestLocalLockAcquiringFails(t *testing.T) {
	l := &localLock{}
	in(t, l, anna, entered)
	l.free()
	looks(t, l, owner.Nobody, 0)
	in(t, l, bert, entered)

	// With somebody in the queue, the next one tries.
	w := queue(t, l, cleo)
	l.free()
	looks(t, l, cleo, 0)
	require.Equal(t, entered, l.wait(t.Context(), w, nil))
}

func TestLocalLockRefusesOthers(t *testing.T) {
	acquiring := &localLock{}
	in(t, acquiring, anna, entered)
	exiting := held(t, anna)
	_, _ = exit(exiting, anna)
	for name, l := range map[string]*localLock{"acquiring": acquiring, "held": held(t, anna), "leaving": exiting} {
		t.Run(name, func(t *testing.T) {
			before, holds := l.owner, l.holds
			in(t, l, bert, refused)
			looks(t, l, before, holds)
			w := queue(t, l, bert)
			looks(t, l, before, holds, bert)
			in(t, l, cleo, refused)
			looks(t, l, before, holds, bert)
			l.free()
			require.Equal(t, entered, l.wait(t.Context(), w, nil))
			looks(t, l, bert, 0)
		})
	}
}

func TestLocalLockOwnerCannotReenterWhileLeaving(t *testing.T) {
	l := held(t, anna)
	_, _ = exit(l, anna)
	in(t, l, anna, refused)
	looks(t, l, owner.Leaving, 0)
	w := queue(t, l, anna)
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), w, nil))
	looks(t, l, anna, 0)
}

func TestLocalLockReentrancy(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		l := held(t, o)
		const depth = 5
		for i := range depth {
			in(t, l, o, reentered)
			looks(t, l, o, int32(i+2))
		}
		queue(t, l, bert) // does not keep the owner from entering again
		in(t, l, o, reentered)
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
		l.free()
		looks(t, l, bert, 0)
	}
}

func TestLocalLockExitByOthersChangesNothing(t *testing.T) {
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
		l.queue.push(twin{owner: dora}, 0, false, nil)
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
	in(t, acquiring, anna, entered)
	waits(t, acquiring)
	exits(t, acquiring, owner.Nobody, anna, bert, team, owner.Leaving, dora) // not even anna: she holds nothing yet

	one := held(t, anna)
	waits(t, one)
	exits(t, one, owner.Nobody, bert, team, owner.Leaving, dora)

	shared := held(t, team)
	in(t, shared, team, reentered)
	waits(t, shared)
	exits(t, shared, owner.Nobody, anna, crew, owner.Leaving, dora)

	exiting := held(t, anna)
	_, _ = exit(exiting, anna)
	waits(t, exiting)
	exits(t, exiting, owner.Nobody, anna, owner.Leaving, dora)
}

func TestLocalLockIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const goroutines = 200
		l := held(t, anna)
		var order []owner.ID // guarded by the lock itself
		var done sync.WaitGroup
		for i := range goroutines {
			o := owner.ID(1000 + i)
			done.Go(func() {
				how, w := l.enter(o, 0, true, nil)
				assert.Equal(t, refused, how)
				assert.Equal(t, entered, l.wait(context.Background(), w, nil))
				order = append(order, o)
				l.granted()
				last, ok := exit(l, o)
				assert.True(t, last && ok)
				l.free()
			})
			synctest.Wait() // it waits
		}
		_, _ = exit(l, anna)
		synctest.Wait()
		require.Empty(t, order, "nobody is let in while the removal is under way")
		l.free()
		done.Wait()
		want := make([]owner.ID, goroutines)
		for i := range want {
			want[i] = owner.ID(1000 + i)
		}
		require.Equal(t, want, order)
		looks(t, l, owner.Nobody, 0)
	})
}

func TestLocalLockNobodyOvertakes(t *testing.T) {
	l := held(t, anna)
	w := queue(t, l, bert)
	_, _ = exit(l, anna)
	l.free()
	// Bert has not run yet; the lock is his all the same.
	in(t, l, cleo, refused)
	in(t, l, anna, refused)
	late := queue(t, l, cleo)
	looks(t, l, bert, 0, cleo)
	require.Equal(t, entered, l.wait(t.Context(), w, nil))
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), late, nil))
	looks(t, l, cleo, 0)
}

func TestLocalLockWaiterThatGivesUpCostsTheOthersNothing(t *testing.T) {
	all := []owner.ID{bert, cleo, dora}
	reasons := map[string]func(l *localLock, w *waiter, stop <-chan struct{}) entry{
		"context": func(l *localLock, w *waiter, stop <-chan struct{}) entry {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				<-stop
				cancel()
			}()
			return l.wait(ctx, w, nil)
		},
		"timeout": func(l *localLock, w *waiter, stop <-chan struct{}) entry {
			timeout := make(chan time.Time, 1)
			go func() {
				<-stop
				timeout <- time.Time{}
			}()
			return l.wait(context.Background(), w, timeout)
		},
		"turned away": func(l *localLock, w *waiter, stop <-chan struct{}) entry {
			go func() {
				<-stop
				l.turnAway(w)
			}()
			return l.wait(context.Background(), w, nil)
		},
	}
	for name, wait := range reasons {
		for quitter := range all { // at the head, in the middle, at the tail
			t.Run(name+"/"+string(rune('1'+quitter)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := held(t, anna)
					results := make([]chan entry, len(all))
					stops := make([]chan struct{}, len(all))
					for i, o := range all {
						results[i], stops[i] = make(chan entry, 1), make(chan struct{})
						w := queue(t, l, o)
						go func() { results[i] <- wait(l, w, stops[i]) }()
					}
					synctest.Wait()
					looks(t, l, anna, 1, all...)

					close(stops[quitter])
					require.Equal(t, refused, <-results[quitter])
					var left []int
					var queued []owner.ID
					for i, o := range all {
						if i != quitter {
							left, queued = append(left, i), append(queued, o)
						}
					}
					looks(t, l, anna, 1, queued...)

					late := queue(t, l, all[quitter]) // comes back, at the end
					_, _ = exit(l, anna)
					for n, i := range left {
						l.free()
						require.Equal(t, entered, <-results[i])
						looks(t, l, all[i], 0, append(queued[n+1:len(queued):len(queued)], all[quitter])...)
						close(stops[i])
					}
					l.free()
					require.Equal(t, entered, l.wait(context.Background(), late, nil))
					l.free()
					looks(t, l, owner.Nobody, 0)
				})
			})
		}
	}
}

func TestLocalLockEveryWaiterGivesUp(t *testing.T) {
	l := held(t, anna)
	waiting := []*waiter{queue(t, l, bert), queue(t, l, cleo), queue(t, l, dora)}
	for _, w := range slices.Backward(waiting) {
		require.Equal(t, refused, l.wait(cancelled(), w, nil))
	}
	looks(t, l, anna, 1)
	w := queue(t, l, bert)
	_, _ = exit(l, anna)
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), w, nil))
	l.free()
	looks(t, l, owner.Nobody, 0)
}

// Cancelled first: the turn goes to the next waiter as if the first one had not been there.
func TestLocalLockCancelledBeforeTheTurn(t *testing.T) {
	l := held(t, anna)
	w, next := queue(t, l, bert), queue(t, l, cleo)
	require.Equal(t, refused, l.wait(cancelled(), w, nil))
	_, _ = exit(l, anna)
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), next, nil))
	looks(t, l, cleo, 0)
}

// tooLate is a context that is done, and lets the waiter's turn come between the moment at which wait sees that and the one
// at which it takes the mutex.
type tooLate struct {
	context.Context
	turn func()
}

func (c tooLate) Done() <-chan struct{} {
	c.turn()
	return c.Context.Done()
}

// cancelledThenTurn is a wait whose context is seen to be done, and whose turn comes before it could leave the queue.
func cancelledThenTurn(l *localLock, w *waiter, turn func()) entry {
	return l.wait(tooLate{cancelled(), func() {
		// The select of wait looks at the old channel, in which nothing ever comes.
		w.turn = make(chan entry, 1)
		turn()
	}}, w, nil)
}

func TestLocalLockTurnBeforeTheCancelledWaiterLeft(t *testing.T) {
	l := held(t, anna)
	w, next := queue(t, l, bert), queue(t, l, cleo)
	_, _ = exit(l, anna)
	require.Equal(t, refused, cancelledThenTurn(l, w, func() {
		l.free()
		looks(t, l, bert, 0, cleo)
	}))
	looks(t, l, cleo, 0)
	require.Equal(t, entered, l.wait(t.Context(), next, nil))
	l.free()

	// With nobody behind, the lock is free.
	in(t, l, anna, entered)
	w = queue(t, l, bert)
	require.Equal(t, refused, cancelledThenTurn(l, w, l.free))
	looks(t, l, owner.Nobody, 0)
}

// Turn and cancellation both there before wait looks: select takes either, and both are right.
func TestLocalLockTurnAndCancellationAtOnce(t *testing.T) {
	seen := map[entry]bool{}
	for tries := 0; len(seen) < 2; tries++ {
		require.Less(t, tries, 10_000, "only ever saw %v", seen)
		l := held(t, anna)
		w, next := queue(t, l, bert), queue(t, l, cleo)
		_, _ = exit(l, anna)
		l.free()
		how := l.wait(cancelled(), w, nil)
		seen[how] = true
		switch how {
		case entered:
			looks(t, l, bert, 0, cleo)
			l.free()
		case refused:
			looks(t, l, cleo, 0)
		default:
			t.Fatal(how)
		}
		require.Equal(t, entered, l.wait(t.Context(), next, nil))
		l.free()
		looks(t, l, owner.Nobody, 0)
	}
}

// Who was admitted to the hold of its own owner is in, even when it was cancelled: the hold counts it.
func TestLocalLockCancelledWaiterThatWasAdmittedToItsOwnersHold(t *testing.T) {
	l := &localLock{}
	in(t, l, team, entered)
	w := queue(t, l, team)
	require.Equal(t, reentered, cancelledThenTurn(l, w, func() { l.granted() }))
	looks(t, l, team, 2)
	last, ok := exit(l, team)
	require.True(t, ok)
	require.False(t, last)
	last, ok = exit(l, team)
	require.True(t, ok)
	require.True(t, last)
}

func TestLocalLockSharedOwnerQueuesWhileItAcquires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &localLock{}
		in(t, l, team, entered)
		in(t, l, team, refused) // it holds nothing yet, so nothing more can be held
		results := make(chan entry, 2)
		for range 2 {
			w := queue(t, l, team)
			go func() { results <- l.wait(context.Background(), w, nil) }()
		}
		synctest.Wait()
		looks(t, l, team, 0, team, team)
		require.Empty(t, results)

		l.granted()
		require.Equal(t, reentered, <-results)
		require.Equal(t, reentered, <-results)
		looks(t, l, team, 3)
		for i := range 3 {
			last, ok := exit(l, team)
			require.True(t, ok)
			require.Equal(t, i == 2, last)
		}
	})
}

// When the first goroutine of the owner fails, the second one tries for itself.
func TestLocalLockSharedOwnerFailsToAcquire(t *testing.T) {
	l := &localLock{}
	in(t, l, team, entered)
	w := queue(t, l, team)
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), w, nil))
	looks(t, l, team, 0)
}

func TestLocalLockGrantedAdmitsItsOwnersWaitersOnly(t *testing.T) {
	l := held(t, anna)
	waiting := map[string]*waiter{}
	for _, q := range []struct {
		name string
		o    owner.ID
	}{{"bert", bert}, {"team 1", team}, {"crew 1", crew}, {"team 2", team}, {"cleo", cleo}, {"team 3", team}, {"crew 2", crew}} {
		waiting[q.name] = queue(t, l, q.o)
	}
	comes := func(name string, want entry) {
		t.Helper()
		select {
		case how := <-waiting[name].turn:
			require.Equal(t, want, how, name)
		default:
			t.Fatalf("the turn of %s has not come", name)
		}
	}
	_, _ = exit(l, anna)
	l.free()
	comes("bert", entered)
	l.granted() // nobody else is bert
	looks(t, l, bert, 1, team, crew, team, cleo, team, crew)
	_, _ = exit(l, bert)
	l.free()
	comes("team 1", entered)
	looks(t, l, team, 0, crew, team, cleo, team, crew)
	l.granted()
	comes("team 2", reentered)
	comes("team 3", reentered)
	looks(t, l, team, 3, crew, cleo, crew)
	for range 3 {
		_, _ = exit(l, team)
	}
	looks(t, l, owner.Leaving, 0, crew, cleo, crew)
	l.free()
	comes("crew 1", entered)
	l.granted()
	comes("crew 2", reentered)
	looks(t, l, crew, 2, cleo)
	_, _ = exit(l, crew)
	_, _ = exit(l, crew)
	l.free()
	comes("cleo", entered)
	l.free()
	looks(t, l, owner.Nobody, 0)
}

func TestLocalLockPass(t *testing.T) {
	l := held(t, anna)
	require.False(t, l.contended())
	_, short := l.enter(bert, time.Second, true, nil)
	_, long := l.enter(cleo, 2*time.Second, true, nil)
	require.True(t, l.contended())

	_, _ = exit(l, anna)
	require.True(t, l.pass(time.Second), "asks for no longer a lease than that")
	looks(t, l, bert, 1, cleo)
	require.True(t, l.heldBy(bert), "before it even runs")
	require.Equal(t, handed, l.wait(t.Context(), short, nil))
	in(t, l, bert, reentered)
	_, _ = exit(l, bert)

	_, _ = exit(l, bert)
	require.False(t, l.pass(2*time.Second-1), "asks for a longer lease")
	looks(t, l, owner.Leaving, 0, cleo)
	require.True(t, l.contended())
	l.free()
	require.Equal(t, entered, l.wait(t.Context(), long, nil))
	l.granted()
	_, _ = exit(l, cleo)
	require.False(t, l.contended())
	require.False(t, l.pass(time.Hour), "nobody waits")
	looks(t, l, owner.Leaving, 0)
	l.free()
	looks(t, l, owner.Nobody, 0)
}

// Only the first waiter counts: to pass over it would break the order.
func TestLocalLockPassKeepsTheOrder(t *testing.T) {
	l := held(t, anna)
	_, first := l.enter(bert, time.Hour, true, nil)
	queue(t, l, cleo)
	_, _ = exit(l, anna)
	require.False(t, l.pass(time.Second))
	looks(t, l, owner.Leaving, 0, bert, cleo)

	require.Equal(t, refused, l.wait(cancelled(), first, nil)) // now cleo is first
	require.True(t, l.pass(time.Second))
	looks(t, l, cleo, 1)
}

func TestLocalLockPassAdmitsAllOfItsNextOwner(t *testing.T) {
	l := held(t, anna)
	waiting := []*waiter{queue(t, l, team), queue(t, l, bert), queue(t, l, team), queue(t, l, crew)}
	_, _ = exit(l, anna)
	require.True(t, l.pass(time.Second))
	looks(t, l, team, 2, bert, crew)
	require.Equal(t, handed, l.wait(t.Context(), waiting[0], nil))
	require.Equal(t, reentered, l.wait(t.Context(), waiting[2], nil))
}

// The hold is passed on to a waiter that is being cancelled: it has the lock then, and must give it back itself.
func TestLocalLockCancelledWaiterThatWasHandedTheHold(t *testing.T) {
	l := held(t, anna)
	w := queue(t, l, bert)
	queue(t, l, cleo)
	_, _ = exit(l, anna)
	require.Equal(t, handed, cancelledThenTurn(l, w, func() { require.True(t, l.pass(time.Second)) }))
	looks(t, l, bert, 1, cleo)
	last, ok := exit(l, bert)
	require.True(t, last && ok)
}

func TestSharedOwners(t *testing.T) {
	for o, want := range map[owner.ID]bool{
		owner.Nobody: false, anna: false, owner.Made - 1: false, team: true, owner.Leaving - 1: true, owner.Leaving: false,
	} {
		require.Equal(t, want, o.Shared(), "%x", uint64(o))
	}
	ctx := NewOwner(t.Context())
	ownerOf := func(ctx context.Context) owner.ID { return carriedBy(ctx).caller() }
	require.True(t, ownerOf(ctx).Shared())
	require.NotEqual(t, ownerOf(ctx), ownerOf(NewOwner(ctx)))
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	require.Equal(t, ownerOf(ctx), ownerOf(child))
	require.False(t, ownerOf(t.Context()).Shared())
	require.Equal(t, owner.Calling(), ownerOf(t.Context()))
}

// A process may hold very many locks, and each Lock makes a hold. The allocator gives 176 bytes for what takes more than 160.
func TestMemoryOfAHold(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(hold{}), uintptr(160))
	require.LessOrEqual(t, unsafe.Sizeof(waiter{}), uintptr(256))
}

// A waiter that is done is used again, unless somebody has found it in the graph of those that wait, and may look at it yet.
func TestWaitersThatAreDone(t *testing.T) {
	for _, known := range []bool{false, true} {
		again := 0
		for range 100 { // the race detector has a pool drop some
			l := held(t, anna)
			var pool waiterPool
			_, w := l.enter(bert, time.Second, true, &pool)
			w.call.Lock, w.call.Goroutine = waited{&Lock{}}, bert
			var g deadlock.Graph
			require.NoError(t, g.Enter(&w.call))
			if known {
				require.Equal(t, []*deadlock.Call{&w.call}, slices.Collect(g.All()))
			}
			g.Leave(&w.call)
			require.Equal(t, refused, l.wait(cancelled(), w, nil))
			pool.put(w)
			require.Equal(t, known, w.call.Lock != nil)
			next := pool.get()
			if next == w {
				again++
			}
			require.Empty(t, next.turn)
			require.Zero(t, next.twin)
			require.Zero(t, next.lease)
		}
		require.Equal(t, known, again == 0)
	}
}

// Many goroutines, some of them with a shared owner, do everything at once. The race detector sees it when two are in.
func TestLocalLockHammer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const goroutines, rounds = 32, 400
	l := &localLock{}
	var pool waiterPool
	var (
		plain   int        // not atomic: only who is alone in touches it
		inside  owner.ID   // who holds, written by the first of its owner and by the last
		mu      sync.Mutex // goroutines of one shared owner hold together
		users   int        // how many, under mu
		holding = map[owner.ID]int{}
	)
	// Each goroutine of a shared owner leaves by itself, so who comes last is not who came first.
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
	depart := func(o owner.ID) {
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
				how, w := l.enter(o, time.Duration(dice.IntN(3)), dice.IntN(8) > 0, &pool)
				if w != nil {
					known := false
					switch dice.IntN(4) {
					case 0:
						go cancel()
					case 1:
						timeout = time.After(time.Duration(dice.IntN(50)) * time.Microsecond)
					case 2:
						known = true // as by Close, which has found it in the graph
						go l.turnAway(w)
					}
					how = l.wait(ctx, w, timeout)
					if !known {
						pool.put(w)
					}
				}
				cancel()
				switch how {
				case refused:
					continue
				case entered:
					plain++ // acquiring: alone, whatever the owner
					if dice.IntN(5) == 0 {
						l.free()
						continue
					}
					arrive(o, true)
					l.granted()
				case handed:
					plain++ // others of a shared owner may hold too, but only the last of them touches plain
					arrive(o, false)
				case reentered:
					arrive(o, false)
				default:
					t.Errorf("a plain lock let somebody in as %d", how)
				}
				again := 0
				for dice.IntN(3) == 0 {
					got, _ := l.enter(o, 0, false, nil)
					assert.Equal(t, reentered, got)
					again++
				}
				assert.True(t, l.heldBy(o))
				for range again {
					last, ok := exit(l, o)
					assert.True(t, ok)
					assert.False(t, last)
				}
				_, ok := exit(l, dora)
				assert.False(t, ok)
				depart(o)
				last, ok := exit(l, o)
				assert.True(t, ok)
				if last {
					plain++ // leaving: alone too
					if dice.IntN(2) == 0 || !l.pass(1) {
						l.free()
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

// exit is what [localLock.exit] tells, as two answers.
func exit(l *localLock, o owner.ID) (isLast, ok bool) {
	d, _ := l.exit(o)
	return d == last, d != notIn
}

// knot makes a loop of the list of waiters at one of them, until the test calls the result: whoever goes through the queue
// past it never ends.
func knot(w *waiter) (untie func()) {
	next := w.next
	w.next = w
	return func() { w.next = next }
}

// looksAtNobody fails the test when a function goes through a queue that has a knot.
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

// No transition looks at the waiters but for the first one and those of the owner that comes in.
func TestLocalLockDoesConstantWork(t *testing.T) {
	l := held(t, anna)
	queue(t, l, team)
	queue(t, l, bert)
	twins := []*waiter{queue(t, l, team), queue(t, l, team)}
	middle := queue(t, l, cleo)
	behind := []*waiter{queue(t, l, dora), queue(t, l, team), queue(t, l, crew)}
	untie := knot(middle)
	looksAtNobody(t, func() {
		assert.Equal(t, refused, l.wait(cancelled(), behind[2], nil))
		l.exit(anna)
		assert.True(t, l.pass(time.Second)) // to team
		assert.Equal(t, reentered, turn(twins[0]))
		assert.Equal(t, reentered, turn(twins[1]))
		assert.Equal(t, reentered, turn(behind[1]))
		for range 4 {
			l.exit(team)
		}
		l.free()
		assert.True(t, l.granted())
		assert.True(t, l.evict(always)) // bert
	})
	untie()
	l.free()
	looks(t, l, cleo, 0, dora)
	require.Empty(t, l.queue.rings)
}

func always() fault.Loss { return fault.LeaseOver }
func still() fault.Loss  { return fault.NotLost }

// leavesHow is how an owner left.
func leavesHow(how departure, _ fault.Loss) departure { return how }

func TestLocalLockEvicts(t *testing.T) {
	l := &localLock{}
	require.False(t, l.evict(always), "nobody is in")
	in(t, l, anna, entered)
	require.False(t, l.evict(always), "who asks Redis has no hold to lose")
	l.granted()
	in(t, l, anna, reentered)
	w := queue(t, l, bert)
	require.False(t, l.evict(still), "the hold is not lost")
	looks(t, l, anna, 2, bert)
	require.True(t, l.evict(always))
	looks(t, l, owner.Leaving, 0, bert)
	require.Equal(t, refused, turn(w), "the key may be there still")
	require.False(t, l.evict(always))
	require.False(t, l.heldBy(anna))
	require.Equal(t, fault.LeaseOver, l.expelled(anna))
	l.free()
	require.Equal(t, entered, turn(w))
	l.granted()

	// She learns of it until she has unlocked as often as she has locked.
	for range 2 {
		in(t, l, anna, outcast)
		require.Equal(t, evicted, leavesHow(l.exit(anna)))
	}
	require.Equal(t, notIn, leavesHow(l.exit(anna)))
	require.Equal(t, fault.NotLost, l.expelled(anna))
	in(t, l, anna, refused)
	looks(t, l, bert, 1)
	require.Equal(t, last, leavesHow(l.exit(bert)))
	require.False(t, l.evict(always), "he is out by himself")
}

// Only the last owners that were evicted are remembered.
func TestEvictionsAreForgotten(t *testing.T) {
	l := &localLock{}
	for o := range owner.ID(mostEvictions + 1) {
		in(t, l, 1000+o, entered)
		l.granted()
		require.True(t, l.evict(always))
		l.free()
	}
	require.Equal(t, notIn, leavesHow(l.exit(1000)))
	in(t, l, 1000, entered)
	l.free()
	for o := range owner.ID(mostEvictions) {
		require.Equal(t, evicted, leavesHow(l.exit(1001+o)))
	}
	require.Empty(t, *l.evicted)
}

// The index of waiters by owner is gone with them.
func TestLocalLockIndex(t *testing.T) {
	l := held(t, anna)
	waiting := []*waiter{queue(t, l, team), queue(t, l, crew), queue(t, l, team), queue(t, l, bert), queue(t, l, team)}
	require.Len(t, l.queue.rings, 2)
	for _, i := range []int{2, 0, 4, 3, 1} {
		require.Equal(t, refused, l.wait(cancelled(), waiting[i], nil))
		var found []*waiter
		for who := range l.queue.rings {
			for w, first := l.queue.rings[who], true; first || w != l.queue.rings[who]; w, first = w.right, false {
				require.Same(t, w, w.right.left)
				require.Same(t, w, w.left.right)
				found = append(found, w)
			}
		}
		want := 0
		for w := l.queue.first; w != nil; w = w.next {
			if w.owner.Shared() {
				want++
				require.Contains(t, found, w)
			}
		}
		require.Len(t, found, want)
	}
	require.Nil(t, l.queue.rings)
}
