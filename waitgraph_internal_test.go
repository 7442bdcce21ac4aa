package lockregistry

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// graphRing is a ring of owners, each of which has a lock and waits for that of the next one.
type graphRing struct {
	g      waitGraph
	owners []owner.ID
	locks  []*Lock
	alarms []Deadlock // of all registries, in a bubble of synctest
}

// newRing makes a ring of locks that each have a registry of their own.
func newRing(owners ...owner.ID) *graphRing {
	ring := &graphRing{owners: owners}
	var mu sync.Mutex
	for i, o := range owners {
		r := &Registry{prefix: "orders", closed: make(chan struct{}), clock: clock.New()}
		r.observer.Deadlocked = func(d Deadlock) {
			mu.Lock()
			defer mu.Unlock()
			ring.alarms = append(ring.alarms, d)
		}
		l := &Lock{reg: r, key: fmt.Sprint("orders:", i), kind: &kind{}}
		l.local.owner, l.local.holds = o, 1
		l.hold.Store(&hold{lock: l, state: live, until: clock.Never})
		ring.locks = append(ring.locks, l)
	}
	return ring
}

// call is one of an owner for the lock of the next one.
func (ring *graphRing) call(ctx context.Context, i int, wait time.Duration) *blockedCall {
	l, o := ring.locks[(i+1)%len(ring.locks)], ring.owners[i]
	b := &blockedCall{}
	b.init(ctx, carriedBy(ctx), l, l.local.queue.push(twin{owner: o}, 0, false, nil), &request{wait: wait}, o)
	return b
}

// A call whose context is cancelled, or whose registry is closed, is about to end, although its goroutine has yet to see that: it
// is part of no cycle.
func TestACallThatIsAboutToEndIsInNoCycle(t *testing.T) {
	for name, end := range map[string]func(cancel func(), r *Registry){
		"nothing ends":             func(func(), *Registry) {},
		"its context is cancelled": func(cancel func(), _ *Registry) { cancel() },
		"its registry is closed":   func(_ func(), r *Registry) { close(r.closed) },
	} {
		t.Run(name, func(t *testing.T) {
			ring := newRing(1, 2)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			require.NoError(t, ring.g.enter(ring.call(ctx, 0, untilDone)))
			end(cancel, ring.locks[1].reg)
			err := ring.g.enter(ring.call(context.Background(), 1, untilDone))
			if name == "nothing ends" {
				require.ErrorIs(t, err, ErrDeadlock)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// Calls that are put into the graph at the same time see each other, and all find the cycle that they close together.
func TestACycleThatSeveralCallsFindIsReportedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		owner    owner.ID // or'ed to both
		wait     time.Duration
		tolerant bool
		err      error
	}{
		"nothing ends it":   {wait: untilDone, err: ErrDeadlock},
		"it ends by itself": {wait: time.Minute},
		"others may end it": {wait: untilDone, owner: owner.Made},
		"the option":        {wait: untilDone, tolerant: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ring := newRing(1|c.owner, 2|c.owner)
				for _, l := range ring.locks {
					l.reg.tolerant = c.tolerant
				}
				call := func(i int) *blockedCall { return ring.call(t.Context(), i, c.wait) }
				reported := func(times int) {
					t.Helper()
					<-time.After(2 * secondLook)
					synctest.Wait()
					require.Len(t, ring.alarms, times)
				}
				first, second := call(0), call(1)
				require.NoError(t, ring.g.enter(first))
				require.ErrorIs(t, ring.g.enter(second), c.err)
				require.NoError(t, ring.g.judge(first)) // as if it had looked for what is in its way only now
				reported(1)

				ring.g.leave(second)
				require.ErrorIs(t, ring.g.enter(call(1)), c.err)
				reported(2) // it is another cycle
			})
		})
	}
}

// Of calls that close a cycle together one is refused, and the report begins with that one, whenever the others look.
func TestOneOfTheCallsThatCloseACycleTogetherIsRefused(t *testing.T) {
	for range 2000 {
		synctest.Test(t, func(t *testing.T) {
			ring := newRing(1, 2, 3, 4, 5)
			var (
				all     sync.WaitGroup
				mu      sync.Mutex
				refused []int
			)
			for i := range ring.owners {
				b := ring.call(t.Context(), i, untilDone)
				all.Go(func() {
					if ring.g.enter(b) != nil {
						mu.Lock()
						defer mu.Unlock()
						refused = append(refused, i)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			require.Len(t, refused, 1)
			require.Len(t, ring.alarms, 1)
			require.Equal(t, fmt.Sprint("goroutine ", ring.owners[refused[0]]), ring.alarms[0].Waits[0].Owner)
		})
	}
}
