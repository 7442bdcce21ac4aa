package lockregistry

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A call whose context is cancelled, or whose registry is closed, is about to end, although its goroutine has yet to see that: it
// is part of no cycle.
func TestACallThatIsAboutToEndIsInNoCycle(t *testing.T) {
	for name, end := range map[string]func(cancel func(), r *Registry){
		"nothing ends":             func(func(), *Registry) {},
		"its context is cancelled": func(cancel func(), _ *Registry) { cancel() },
		"its registry is closed":   func(_ func(), r *Registry) { close(r.closed) },
	} {
		t.Run(name, func(t *testing.T) {
			var g waitGraph
			registries := [2]*Registry{}
			locks := [2]*Lock{}
			for i := range locks {
				r := &Registry{prefix: "orders", closed: make(chan struct{}), clock: newClock()}
				l := &Lock{reg: r, key: "orders:42", kind: &kind{}}
				l.local.owner, l.local.holds = owner(i+1), 1
				l.hold.Store(&hold{lock: l, state: live, until: never})
				registries[i], locks[i] = r, l
			}
			wait := func(ctx context.Context, i int) error { // the owner of one lock waits for the other one
				l, o := locks[1-i], owner(i+1)
				b := &blockedCall{}
				b.init(ctx, l, l.local.queue.push(twin{owner: o}, 0, false), &request{wait: untilDone}, o)
				return g.enter(b)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			require.NoError(t, wait(ctx, 0))
			end(cancel, registries[1])
			err := wait(context.Background(), 1)
			if name == "nothing ends" {
				require.ErrorIs(t, err, ErrDeadlock)
			} else {
				require.NoError(t, err)
			}
		})
	}
}
