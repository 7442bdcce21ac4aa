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
				gone, kept := r.Obtain("42"), r.Obtain("43")
				w.lock(gone)
				w.lock(kept)
				told, goesOn := gone.Context(w.Context()), kept.Context(w.Context())
				elsewhere := w.registry(opts...).Obtain("46")
				w.lock(elsewhere)
				waiter := lockElsewhere(r.Obtain("46"), w.Context())
				w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
				w.do("DEL", theKey)
				start := time.Now()
				w.do("CLIENT", "KILL", "TYPE", "pubsub")
				<-told.Done()
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
