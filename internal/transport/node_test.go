package transport

import (
	"context"
	"io"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
)

// When any connection breaks, others may have to be made, for which commands then have time.
func TestNode_TimeForNewConnections(t *testing.T) {
	for name, trusted := range map[string]bool{"the client's own": false, "the fresh one": true} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
				s := open(nil).First
				now, trip := s.client.Clock.Now(), s.RoundTrip()
				require.Equal(t, trip.Silence(), s.Patience())
				broken := belief.Exchange{Sent: now, Came: now, Trip: trip, Trusted: trusted}
				require.Equal(t, belief.Believed, s.believes(&Wait{}, io.EOF, broken))
				require.Equal(t, trip.Silence()+4*trip.Sure(), s.Patience())
			})
		})
	}
}
