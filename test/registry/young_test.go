package registry_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// openedOver returns a registry made by Open, whose client talks through f.
func openedOver(f *kit.Flaky) *lockregistry.Registry {
	f.W.Helper()
	over := func(o *rueidis.ClientOption) {
		o.ForceSingleClient = true
		o.DialCtxFn = func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return f.Dial(ctx)
		}
	}
	r, err := lockregistry.Open(f.W.Context(), "redis://redis", "orders", lockregistry.WithClientOption(over))
	require.NoError(f.W, err)
	f.W.Cleanup(func() { require.NoError(f.W, r.Close()) })
	return r
}

// A process that has sent nothing yet knows the round trip from the greeting of its connection. So with FailFast even its first
// call ends within 750 ms and two round trips.
func TestOpen_FailFastAtOnce(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond} {
		for op, call := range kit.LockingCalls {
			t.Run(op+"/"+trip.String(), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.FlakyFar(trip)
					r := openedOver(f)
					f.Stall()
					start := time.Now()
					w.Unavailable(call(w.Context(), r, kit.FailFastOptions...), op)
					require.LessOrEqual(w, time.Since(start), 750*time.Millisecond+2*trip)
				})
			})
		}
	}
}

// On a slow link no first call fails because of the distance.
func TestOpen_FailFastFarAway(t *testing.T) {
	t.Parallel()
	for op, call := range kit.LockingCalls {
		t.Run(op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := openedOver(w.FlakyFar(900 * time.Millisecond))
				for range 5 {
					require.NoError(w, call(w.Context(), r, kit.FailFastOptions...))
					if op != "do" {
						w.Unlock(r.Obtain("42"))
					}
				}
			})
		})
	}
}
