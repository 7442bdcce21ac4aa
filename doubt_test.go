package lockregistry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// When the connection for wake-ups is lost, holds whose keys a failover has lost are told so at once, and not only with their
// next renewal or their leases' ends. Those that are not lost go on.
func TestALostConnectionHasHoldsLookedAt(t *testing.T) {
	for name, opts := range map[string][]lockregistry.Option{
		"with a context": nil,
		"renewed":        {lockregistry.WithRenewal()},
		"redisson":       {lockregistry.WithLayout(lockregistry.LayoutRedisson)},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				r := w.registry(opts...)
				gone, kept, silent := r.Obtain("42"), r.Obtain("43"), r.Obtain("44")
				w.lock(gone)
				w.lock(kept)
				w.lock(silent) // without a context
				told, goesOn := gone.Context(w.Context()), kept.Context(w.Context())
				elsewhere := w.registry(opts...).Obtain("46")
				w.lock(elsewhere)
				waiter := lockElsewhere(r.Obtain("46"), w.Context())
				w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
				w.do("DEL", theKey, "orders:44")
				start := time.Now()
				w.do("CLIENT", "KILL", "TYPE", "pubsub")
				<-told.Done()
				w.await("the loss of the other one", func() bool { return !silent.IsHeld() })
				require.ErrorIs(w, context.Cause(told), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), time.Second)
				require.NoError(w, goesOn.Err())
				w.unlock(kept)
				w.unlock(elsewhere)
				require.NoError(w, <-waiter)
			})
		})
	}
}

// A removal that was confirmed just before the connection broke may be lost by a failover. It is sent once more, so that the
// path is not blocked for a lease.
func TestARemovalIsSentOnceMore(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry()
		elsewhere, l := w.registry().Obtain("46"), r.Obtain("42")
		w.lock(elsewhere)
		waiter := lockElsewhere(r.Obtain("46"), w.Context())
		w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
		w.lock(l)
		value, newer := w.do("GET", theKey), r.Obtain("43")
		w.unlock(l)
		w.lock(newer)
		w.do("SET", theKey, value, "PX", "600000") // as the server that has taken over has it
		w.do("CLIENT", "KILL", "TYPE", "pubsub")
		w.awaitGone(theKey)
		require.True(w, newer.IsHeld())
		w.unlock(newer)
		w.unlock(elsewhere)
		require.NoError(w, <-waiter)
	})
}
