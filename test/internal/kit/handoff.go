package kit

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// A lock that is handed over within a process behaves as if the next owner had obtained it itself: it has that owner's lease,
// and is renewed or not as that owner asked.

// ExclusiveLocks runs a test on every kind of lock that one goroutine at a time holds, in a registry with a lease.
func ExclusiveLocks(t *testing.T, lease time.Duration, watchdogs bool, test func(w *World, f *Flaky, l *lockregistry.Lock)) {
	t.Helper()
	plain := func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") }
	writer := func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() }
	for name, c := range map[string]struct {
		layout   observe.Layout
		lock     func(r *lockregistry.Registry) *lockregistry.Lock
		watchdog bool // locks taken without a lease are renewed
	}{
		"plain, Spring":    {observe.LayoutSpring, plain, false},
		"plain, Redisson":  {observe.LayoutRedisson, plain, true},
		"writer, Spring":   {observe.LayoutSpring, writer, false},
		"writer, Redisson": {observe.LayoutRedisson, writer, true},
	} {
		if watchdogs && !c.watchdog {
			continue
		}
		t.Run(name, func(t *testing.T) {
			FakeWorld(t, func(w *World) {
				f := w.Flaky()
				r := f.Registry(WithLayout(c.layout), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
				w.Known(r)
				test(w, f, c.lock(r))
			})
		})
	}
}

// Scripts returns how many scripts that do this to any kind of lock were sent so far.
func (f *Flaky) Scripts(what string) (n int) {
	sent := f.Sent(Anything)
	for name, body := range Sources() {
		if !strings.Contains(name+"_", "_"+what+"_") {
			continue
		}
		sum := Digest(body)
		for _, c := range sent {
			if len(c.Args) > 1 && (c.Args[1] == sum || c.Args[1] == body) {
				n++
			}
		}
	}
	return n
}

// HandTo has the test's goroutine hand the lock to another one. It reports whether the key stayed meanwhile.
func (f *Flaky) HandTo(l *lockregistry.Lock, opts ...lockregistry.LockOption) (g *Goroutine, kept bool) {
	f.W.Helper()
	g = f.W.Goroutine()
	got := g.Starts(l, opts...)
	f.W.Settle()
	f.W.Pending(got)
	releases := f.Scripts("release")
	f.W.Unlock(l)
	require.NoError(f.W, <-got)
	return g, f.Scripts("release") == releases
}

// Commands returns how many commands were sent so far, except rueidis's checks of its connections, and records.
func (f *Flaky) Commands() (n int) {
	for _, c := range f.Sent(Anything) {
		if c.Name != "PING" && c.Name != record && !c.Pushed {
			n++
		}
	}
	return n
}
