package deadlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/owner"
)

var errDeadlock = errors.New("deadlock")

// lock is one that an owner has.
type lock struct {
	owner  owner.ID
	closed bool
	report func(cycle []Step)
}

func (l *lock) Obstacles(*Call) (all Obstacles) {
	all.Add(Obstacle{Owner: l.owner, Held: l})
	return all
}

func (l *lock) Stands() bool            { return true }
func (l *lock) Taker(owner.ID) owner.ID { return owner.Nobody }
func (l *lock) Delegated(owner.ID) bool { return false }
func (l *lock) Ends(*Call) bool         { return l.closed }
func (l *lock) Report(cycle []Step, first bool) error {
	if first {
		l.report(cycle)
	}
	return errDeadlock
}

// ring is a ring of owners, each of which has a lock and waits for that of the next one.
type ring struct {
	g      Graph
	owners []owner.ID
	locks  []*lock
	alarms [][]Step // of all locks; the graph's mutex guards them
}

func newRing(owners ...owner.ID) *ring {
	r := &ring{owners: owners}
	for _, o := range owners {
		r.locks = append(r.locks, &lock{owner: o, report: func(cycle []Step) { r.alarms = append(r.alarms, cycle) }})
	}
	return r
}

// call is a call of one owner for the lock of the next one.
func (r *ring) call(ctx context.Context, i int, ends bool) *Call {
	c := &Call{Lock: r.locks[(i+1)%len(r.locks)], Owner: r.owners[i], Goroutine: r.owners[i], Done: ctx.Done(), Ends: ends}
	if !c.Owner.IsGoroutine() {
		c.Goroutine = 100 + owner.ID(i)
	}
	c.Place = c
	return c
}

func (r *ring) reports() [][]Step {
	r.g.closing.Lock()
	defer r.g.closing.Unlock()
	return slices.Clone(r.alarms)
}

// A call whose context is cancelled, or whose registry is closed, is about to end, although its goroutine has yet to see that: it
// is part of no cycle.
func TestGraph_ACallThatIsAboutToEndIsInNoCycle(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(cancel func(), l *lock){
		"nothing ends":             func(func(), *lock) {},
		"its context is cancelled": func(cancel func(), _ *lock) { cancel() },
		"its registry is closed":   func(_ func(), l *lock) { l.closed = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(1, 2)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			require.NoError(t, r.g.Enter(r.call(ctx, 0, false)))
			end(cancel, r.locks[1])
			err := r.g.Enter(r.call(context.Background(), 1, false))
			if name == "nothing ends" {
				require.ErrorIs(t, err, errDeadlock)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// Calls that are put into the graph at the same time see each other, and all find the cycle that they close together.
func TestGraph_ACycleThatSeveralCallsFindIsReportedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owner owner.ID // or'ed to both
		ends  bool
		err   error
	}{
		"nothing ends it":   {err: errDeadlock},
		"it ends by itself": {ends: true},
		"others may end it": {owner: owner.Made},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRing(1|c.owner, 2|c.owner)
				call := func(i int) *Call { return r.call(t.Context(), i, c.ends) }
				reported := func(times int) {
					t.Helper()
					<-time.After(2 * SecondLook)
					synctest.Wait()
					require.Len(t, r.reports(), times)
				}
				first, second := call(0), call(1)
				require.NoError(t, r.g.Enter(first))
				require.ErrorIs(t, r.g.Enter(second), c.err)
				require.NoError(t, r.g.judge(first)) // as if it had looked for what is in its way only now
				reported(1)

				r.g.Leave(second)
				require.ErrorIs(t, r.g.Enter(call(1)), c.err)
				reported(2) // it is another cycle
			})
		})
	}
}

// Of several calls that close a cycle together, one is refused, and the report begins with that one, whenever the others look.
func TestGraph_OneOfTheCallsThatCloseACycleTogetherIsRefused(t *testing.T) {
	t.Parallel()
	for range 2000 {
		synctest.Test(t, func(t *testing.T) {
			r := newRing(1, 2, 3, 4, 5)
			var (
				all     sync.WaitGroup
				mu      sync.Mutex
				refused []int
			)
			for i := range r.owners {
				c := r.call(t.Context(), i, false)
				all.Go(func() {
					if r.g.Enter(c) != nil {
						mu.Lock()
						defer mu.Unlock()
						refused = append(refused, i)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			require.Len(t, refused, 1)
			require.Len(t, r.reports(), 1)
			require.Equal(t, r.owners[refused[0]], r.reports()[0][0].Call.Goroutine)
		})
	}
}

// After the first few, obstacles are kept in a slice.
func TestGraph_Obstacles(t *testing.T) {
	t.Parallel()
	var some Obstacles
	var want []Obstacle
	for i := range 10 {
		require.Equal(t, i, some.Len())
		require.Equal(t, want, slices.Collect(some.all()))
		one := Obstacle{Owner: owner.ID(i)}
		some.Add(one)
		want = append(want, one)
	}
}

// holds are those of an owner on some locks.
type holds struct {
	of    owner.ID
	locks []Lock
}

func (h holds) Owners() []owner.ID             { return []owner.ID{h.of} }
func (h holds) Within(l Lock, o owner.ID) bool { return o == h.of && slices.Contains(h.locks, l) }

// A call with the context of another owner's hold keeps that hold, whichever goroutine makes it.
func TestGraph_ACallKeepsTheHoldsOfItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRing(1, 2)
		nested := r.call(t.Context(), 0, false)
		nested.Goroutine, nested.Owner = 3, 3
		require.NoError(t, r.g.Enter(nested))
		require.NoError(t, r.g.Enter(r.call(t.Context(), 1, false)))
		<-time.After(2 * SecondLook)
		require.Empty(t, r.reports())

		r = newRing(1, 2)
		nested = r.call(t.Context(), 0, false)
		nested.Goroutine, nested.Owner, nested.Holds = 3, 3, holds{1, []Lock{r.locks[0]}}
		require.NoError(t, r.g.Enter(nested))
		require.NoError(t, r.g.Enter(r.call(t.Context(), 1, false)), "owner 1 itself may unlock")
		<-time.After(2 * SecondLook)
		require.Len(t, r.reports(), 1)
		require.False(t, r.g.Unreported([]*Call{nested}))
		require.False(t, r.g.Tell([]*Call{nested}))
	})
}

// Whoever reports a call to others learns when it leaves, or has left.
func TestGraph_LeavingTellsOfARecord(t *testing.T) {
	t.Parallel()
	r := newRing(1, 2)
	first, second := r.call(t.Context(), 0, true), r.call(t.Context(), 0, true)
	require.NoError(t, r.g.Enter(first))
	require.NoError(t, r.g.Enter(second))
	require.False(t, r.g.Leave(first))
	require.False(t, r.g.Record(first))
	require.True(t, r.g.Record(second))
	require.Equal(t, []*Call{second}, slices.Collect(r.g.All()))
	require.True(t, second.Known())
	require.True(t, r.g.Leave(second))
	require.Empty(t, slices.Collect(r.g.All()))
}
