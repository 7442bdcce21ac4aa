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

// RoundTrip is how long a command and its reply take in the tests that count round trips.
const RoundTrip = 50 * time.Millisecond

// FlakyFar is the network to a server that is so far away.
func (w *World) FlakyFar(trip time.Duration) *Flaky {
	dial, _ := w.Far(trip)
	f := &Flaky{netfault.New(dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// Connected has a client make all of its few connections, so that no command has to wait for one later, which takes two or three
// round trips more. Rueidis chooses one by chance for each command with a key: that one of four is not chosen in so many has a
// probability of one in ten billion.
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

// KnownWell has a registry believe that all connections of its client have been made, for which it has seen 32 replies.
func (w *World) KnownWell(r *lockregistry.Registry) {
	w.Helper()
	for range 6 {
		w.Known(r)
	}
}

// EachRoundTrip runs a test in fake time with a registry that knows how far away its server is, and whose client has made its
// connections.
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

// AtRoundTrip does so for one round trip.
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

// WithQueues makes miniredis one in whose queues calls wait. It lets no connection that has subscribed run a script, as the
// one does that proves that messages arrive. Nobody listens to releases, as where the server tells of changes: so they leave
// no short windows.
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

// A slow link is no outage: calls fail by their own ends only, however long a round trip takes, up to a second.

// Far returns what dials the server of a world from so far away.
func (w *World) Far(trip time.Duration) (dial func(context.Context) (net.Conn, error), d *redistest.Distance) {
	d = redistest.NewDistance(trip)
	return func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, w.Dial) }, d
}

// RoundTrips are the distances of the tests about slow links.
var RoundTrips = []time.Duration{
	time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond,
}

// FindsTaken tries the lock of 42, which somebody else must hold, and returns the error, nil as a rule.
func (w *World) FindsTaken(r *lockregistry.Registry) error {
	ok, err := r.Obtain("42").TryLock(w.Context())
	require.False(w, ok)
	return err
}

// An answer that took long may be that of a master which was frozen, deposed, and then went on. It is not believed.

// LateAfter is as long as the answer of a deposed master takes here.
const LateAfter = 600 * time.Millisecond

// DeposedAnswer is the fate of a command that a deposed master executes, late: it replies, and its successor knows nothing of it.
func DeposedAnswer(reply string) Fate { return Fate{Lost: true, Reply: reply, Linger: LateAfter} }
