package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
