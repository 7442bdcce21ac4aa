package waiting_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// An owner that asked for renewal is renewed, although the previous one was not.
func TestHandoff_BeginsRenewals(t *testing.T) {
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
			kit.ExclusiveLocks(t, lease, true, func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
				w.Lock(l, lockregistry.Lease(c.ttl))
				g, kept := f.HandTo(l)
				require.Equal(w, c.kept, kept)
				ctx := g.Watch(l)
				renewals := f.Scripts("renew")
				w.Pass(10 * time.Second)
				require.NoError(w, context.Cause(ctx))
				require.InDelta(w, 30, f.Scripts("renew")-renewals, 1, "each third of its own lease")
				require.LessOrEqual(w, w.Pttl(kit.Key(l)), lease)
				require.NoError(w, g.Unlock(l))
			})
		})
	}
}

// An owner that did not ask for renewal is not renewed, although the previous one was.
func TestHandoff_EndsRenewals(t *testing.T) {
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
			kit.ExclusiveLocks(t, lease, true, func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
				w.Lock(l)
				w.Pass(2 * time.Second)
				g, kept := f.HandTo(l, lockregistry.Lease(c.ttl))
				require.Equal(w, c.kept, kept)
				ctx := g.Watch(l)
				renewals := f.Scripts("renew")
				w.Pass(lease)
				require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
				require.True(w, w.Free(kit.Key(l)))
				require.Equal(w, renewals, f.Scripts("renew"))
				require.ErrorIs(w, g.Unlock(l), lockregistry.ErrLockLost)
			})
		})
	}
}

// The crash of an owner with a short lease does not block others for the long lease of the previous owner.
func TestHandoff_KeepsNoLongLease(t *testing.T) {
	t.Parallel()
	kit.ExclusiveLocks(t, time.Minute, false, func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
		for _, c := range []struct {
			before, after time.Duration
			kept          bool
		}{
			{time.Hour, 2 * time.Second, false},
			{31 * time.Second, 20 * time.Second, false},
			{30 * time.Second, 20 * time.Second, true},
			{20 * time.Second, 20 * time.Second, true},
		} {
			w.Lock(l, lockregistry.Lease(c.before))
			g, kept := f.HandTo(l, lockregistry.Lease(c.after))
			require.Equal(w, c.kept, kept, "from %v to %v", c.before, c.after)
			require.LessOrEqual(w, w.Pttl(kit.Key(l)), c.after+c.after/2)
			require.GreaterOrEqual(w, w.Pttl(kit.Key(l)), c.after)

			// A nested lock also sets the lease that the owner asked for.
			require.NoError(w, g.Lock(l))
			require.Equal(w, c.after, w.Pttl(kit.Key(l)))
			require.NoError(w, g.Unlock(l))
			require.NoError(w, g.Unlock(l))
			require.True(w, w.Free(kit.Key(l)))
		}
	})
}

// Renewals after a handoff have the length that the next owner asked for.
func TestHandoff_RenewalsHaveTheNextOwnersLength(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithHandoff(time.Hour))
		w.Known(r)
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(12*time.Second))
		g, kept := f.HandTo(l, lockregistry.Lease(9*time.Second))
		require.True(w, kept)
		renewals := f.Count("renew")
		w.Pass(30 * time.Second)
		sent := f.Sent("renew")[renewals:]
		require.InDelta(w, 30/3, len(sent), 1)
		for _, c := range sent {
			require.Contains(w, c.Args, "9000")
		}
		require.NoError(w, g.Unlock(l))
	})
}
