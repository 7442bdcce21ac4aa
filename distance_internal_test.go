package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

func TestZerosInTickets(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		way   trip
		lease time.Duration
		want  string
	}{
		{"unknown", trip{time.Second, false}, time.Minute, ""},
		{"near", trip{249 * ms, true}, time.Minute, ""},
		{"for two seconds", trip{250 * ms, true}, time.Minute, "0"},
		{"for four seconds", trip{900 * ms, true}, time.Minute, "00"},
		{"for eight seconds", trip{time.Second, true}, time.Minute, "000"},
		{"none for a lease of a second", trip{900 * ms, true}, time.Second, ""},
	} {
		require.Equal(t, c.want, zerosFor(c.way, c.lease), c.name)
	}
}

func TestWhenGrantsAreLengthened(t *testing.T) {
	now := clock.Instant(time.Minute)
	for _, certain := range []time.Duration{time.Second, time.Second / 2} {
		require.Equal(t, now.Add(certain/3), lengthening(now, now.Add(certain), trip{certain / 4, true}))
		require.Equal(t, now, lengthening(now, now.Add(certain), trip{certain/3 + 1, true}), "from far away at once")
	}
}
