package lockregistry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A lock that is handed over within a process is the next owner's as if it had obtained it itself: with its lease, and renewed
// or not.

// terms runs a test on every kind of lock that one goroutine at a time holds, in a registry with a lease.
func terms(t *testing.T, lease time.Duration, watchdogs bool, test func(w *world, f *flaky, l *lockregistry.Lock)) {
	t.Helper()
	plain := func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") }
	writer := func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() }
	for name, c := range map[string]struct {
		layout   lockregistry.Layout
		lock     func(r *lockregistry.Registry) *lockregistry.Lock
		watchdog bool // locks without a lease are renewed
	}{
		"plain, Spring":    {lockregistry.LayoutSpring, plain, false},
		"plain, Redisson":  {lockregistry.LayoutRedisson, plain, true},
		"writer, Spring":   {lockregistry.LayoutSpring, writer, false},
		"writer, Redisson": {lockregistry.LayoutRedisson, writer, true},
	} {
		if watchdogs && !c.watchdog {
			continue
		}
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(lockregistry.WithLayout(c.layout), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
				w.known(r)
				test(w, f, c.lock(r))
			})
		})
	}
}

// scripts is how many scripts of any kind of lock that do something were sent so far.
func (f *flaky) scripts(what string) (n int) {
	sent := f.sent(anything)
	for name, body := range sources() {
		if !strings.Contains(name+"_", "_"+what+"_") {
			continue
		}
		sum := digest(body)
		for _, c := range sent {
			if len(c.Args) > 1 && (c.Args[1] == sum || c.Args[1] == body) {
				n++
			}
		}
	}
	return n
}

// known is how many releases in Spring's format were sent that said so of those who wait.
func (f *flaky) known(what protocol.Known) (n int) {
	for _, c := range f.sent("release") {
		if len(c.Args) > 7 && c.Args[7] == string(what) {
			n++
		}
	}
	return n
}

// handTo has the lock, which the goroutine of the test holds, go to another one. It tells whether the key stayed meanwhile.
func (f *flaky) handTo(l *lockregistry.Lock, opts ...lockregistry.LockOption) (g *goroutine, kept bool) {
	f.w.Helper()
	g = f.w.goroutine()
	got := g.starts(l, opts...)
	f.w.settle()
	f.w.pending(got)
	releases := f.scripts("release")
	f.w.unlock(l)
	require.NoError(f.w, <-got)
	return g, f.scripts("release") == releases
}

// An owner that is renewed stays so, although the one before was not.
func TestHandOver_BeginsRenewals(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	for name, c := range map[string]struct {
		ttl  time.Duration
		kept bool
	}{
		"handed over":   {1200 * time.Millisecond, true},
		"obtained anew": {2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			terms(t, lease, true, func(w *world, f *flaky, l *lockregistry.Lock) {
				w.lock(l, lockregistry.Lease(c.ttl))
				g, kept := f.handTo(l)
				require.Equal(w, c.kept, kept)
				ctx := g.watch(l)
				renewals := f.scripts("renew")
				w.pass(10 * time.Second)
				require.NoError(w, context.Cause(ctx))
				require.InDelta(w, 30, f.scripts("renew")-renewals, 1, "each third of its own lease")
				require.LessOrEqual(w, w.pttl(l.Key()), lease)
				require.NoError(w, g.unlock(l))
			})
		})
	}
}

// An owner that is not renewed is not, although the one before was.
func TestHandOver_EndsRenewals(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	for name, c := range map[string]struct {
		ttl  time.Duration
		kept bool
	}{
		"handed over":   {800 * time.Millisecond, true},
		"obtained anew": {500 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			terms(t, lease, true, func(w *world, f *flaky, l *lockregistry.Lock) {
				w.lock(l)
				w.pass(2 * time.Second)
				g, kept := f.handTo(l, lockregistry.Lease(c.ttl))
				require.Equal(w, c.kept, kept)
				ctx := g.watch(l)
				renewals := f.scripts("renew")
				w.pass(lease)
				require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
				require.True(w, w.free(l.Key()))
				require.Equal(w, renewals, f.scripts("renew"))
				require.ErrorIs(w, g.unlock(l), lockregistry.ErrLockLost)
			})
		})
	}
}

// The crash of an owner that asked for a short lease blocks nobody for the long one of the owner before.
func TestHandOver_KeepsNoLongLease(t *testing.T) {
	t.Parallel()
	terms(t, time.Minute, false, func(w *world, f *flaky, l *lockregistry.Lock) {
		for _, c := range []struct {
			before, after time.Duration
			kept          bool
		}{
			{time.Hour, 2 * time.Second, false},
			{31 * time.Second, 20 * time.Second, false},
			{30 * time.Second, 20 * time.Second, true},
			{20 * time.Second, 20 * time.Second, true},
		} {
			w.lock(l, lockregistry.Lease(c.before))
			g, kept := f.handTo(l, lockregistry.Lease(c.after))
			require.Equal(w, c.kept, kept, "from %v to %v", c.before, c.after)
			require.LessOrEqual(w, w.pttl(l.Key()), c.after+c.after/2)
			require.GreaterOrEqual(w, w.pttl(l.Key()), c.after)

			// A nested lock, too, sets the lease that the owner asked for.
			require.NoError(w, g.lock(l))
			require.Equal(w, c.after, w.pttl(l.Key()))
			require.NoError(w, g.unlock(l))
			require.NoError(w, g.unlock(l))
			require.True(w, w.free(l.Key()))
		}
	})
}

// Renewals after a hand-over have the length that the next owner asked for.
func TestHandOver_RenewalsHaveTheNextOwnersLength(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal(), lockregistry.WithHandoff(time.Hour))
		w.known(r)
		l := r.Obtain("42")
		w.lock(l, lockregistry.Lease(12*time.Second))
		g, kept := f.handTo(l, lockregistry.Lease(9*time.Second))
		require.True(w, kept)
		renewals := f.count("renew")
		w.pass(30 * time.Second)
		sent := f.sent("renew")[renewals:]
		require.InDelta(w, 30/3, len(sent), 1)
		for _, c := range sent {
			require.Contains(w, c.Args, "9000")
		}
		require.NoError(w, g.unlock(l))
	})
}
