package kit

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// RoundTrip is the round trip in the tests that count round trips.
const RoundTrip = 50 * time.Millisecond

// FlakyFar returns the network to a server at this distance.
func (w *World) FlakyFar(trip time.Duration) *Flaky {
	dial, _ := w.Far(trip)
	f := &Flaky{netfault.New(dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// Connected has a client make all of its few connections, so that no later command waits for one to be made, which takes two or
// three more round trips. Rueidis chooses one at random for each command with a key: the probability that so many commands miss
// one of four is one in ten billion.
func (w *World) Connected(client rueidis.Client) {
	w.Helper()
	const enough = 88
	var all sync.WaitGroup
	for range enough {
		all.Go(func() {
			assert.NoError(w, client.Do(w.Context(), client.B().Arbitrary("PING").Keys("there").Build()).Error())
		})
	}
	all.Wait()
}

// KnownWell shows a registry 32 replies, from which it concludes that all connections of its client have been made.
func (w *World) KnownWell(r *lockregistry.Registry) {
	w.Helper()
	for range 6 {
		w.Known(r)
	}
}

// EachRoundTrip runs a test in fake time, for several round trips, with a registry that knows the round trip, and whose client
// has made its connections.
func EachRoundTrip(
	t *testing.T, test func(w *World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry),
) {
	t.Helper()
	for _, trip := range RoundTrips {
		t.Run(trip.String(), func(t *testing.T) {
			AtRoundTrip(t, trip, func(w *World, registry func(...lockregistry.Option) *lockregistry.Registry) { test(w, trip, registry) })
		})
	}
}

// AtRoundTrip is EachRoundTrip for one round trip.
func AtRoundTrip(
	t *testing.T, trip time.Duration, test func(w *World, registry func(...lockregistry.Option) *lockregistry.Registry),
) {
	t.Helper()
	FakeWorld(t, func(w *World) {
		test(w, func(opts ...lockregistry.Option) *lockregistry.Registry {
			dial, _ := w.Far(trip)
			client := w.ClientWith(dial)
			w.Connected(client)
			r := w.RegistryOn(client, opts...)
			w.Known(r)
			return r
		})
	})
}

// WithQueues makes miniredis one in whose queues calls wait. Miniredis lets no connection that has subscribed run a script, so
// the script that proves that messages arrive is answered here. Nobody is said to listen to releases, as if the server reported
// changes of keys, so releases leave no short windows.
func (w *World) WithQueues() {
	w.Mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		switch {
		case cmd == "EVAL" && len(args) == 6 && args[2] == "NUMSUB":
			told := w.Mini.Publish(args[4], args[5])
			c.Block(func(out *server.Writer) {
				out.WriteLen(2)
				out.WriteInt(told)
				out.WriteInt(told)
			})
			return true
		case cmd == "PUBLISH" && strings.HasPrefix(args[0], "orders-channel:"):
			c.WriteInt(0)
			return true
		default:
			return false
		}
	})
}

// A slow link is no outage: calls fail only when their own limits end, whatever the round trip, up to a second.

// Far returns a function that dials the server of a world from a distance.
func (w *World) Far(trip time.Duration) (dial func(context.Context) (net.Conn, error), d *redistest.Distance) {
	d = redistest.NewDistance(trip)
	return func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, w.Dial) }, d
}

// RoundTrips are the distances of the tests about slow links.
var RoundTrips = []time.Duration{
	time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond,
}

// FindsTaken tries the lock of 42, which somebody else must hold, and returns the error of TryLock.
func (w *World) FindsTaken(r *lockregistry.Registry) error {
	ok, err := r.Obtain("42").TryLock(w.Context())
	require.False(w, ok)
	return err
}

// A slow reply may be that of a master that was frozen, deposed, and then resumed. It is not believed.

// LateAfter is how late the replies of a deposed master are here.
const LateAfter = 600 * time.Millisecond

// DeposedAnswer is the fate of a command that a deposed master executes late: it replies, and its successor never learns of the
// command.
func DeposedAnswer(reply string) Fate { return Fate{Lost: true, Reply: reply, Linger: LateAfter} }
