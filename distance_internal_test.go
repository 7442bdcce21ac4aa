package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/transport"
)

func TestZerosInTickets(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		way   transport.RoundTrip
		lease time.Duration
		want  string
	}{
		{"unknown", transport.RoundTrip{Base: time.Second, Known: false}, time.Minute, ""},
		{"near", transport.RoundTrip{Base: 249 * ms, Known: true}, time.Minute, ""},
		{"for two seconds", transport.RoundTrip{Base: 250 * ms, Known: true}, time.Minute, "0"},
		{"for four seconds", transport.RoundTrip{Base: 900 * ms, Known: true}, time.Minute, "00"},
		{"for eight seconds", transport.RoundTrip{Base: time.Second, Known: true}, time.Minute, "000"},
		{"none for a lease of a second", transport.RoundTrip{Base: 900 * ms, Known: true}, time.Second, ""},
	} {
		require.Equal(t, c.want, zerosFor(c.way, c.lease), c.name)
	}
}

func TestWhenGrantsAreLengthened(t *testing.T) {
	now := clock.Instant(time.Minute)
	for _, certain := range []time.Duration{time.Second, time.Second / 2} {
		near, far := transport.RoundTrip{Base: certain / 4, Known: true}, transport.RoundTrip{Base: certain/3 + 1, Known: true}
		require.Equal(t, now.Add(certain/3), lengthening(now, now.Add(certain), near))
		require.Equal(t, now, lengthening(now, now.Add(certain), far), "from far away at once")
	}
}
