package belief

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

func TestRoundTrip_Samples(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type exchanges [][2]time.Duration // when a command was sent, and answered
	for name, c := range map[string]struct {
		samples exchanges
		base    time.Duration
		known   bool
	}{
		"none":  {nil, 0, false},
		"two":   {exchanges{{0, 20 * ms}, {s, s + 10*ms}}, 10 * ms, false},
		"three": {exchanges{{0, 20 * ms}, {s, s + 10*ms}, {2 * s, 2*s + 30*ms}}, 10 * ms, true},
		"the last three": {
			exchanges{{0, ms}, {s, s + 20*ms}, {2 * s, 2*s + 30*ms}, {3 * s, 3*s + 40*ms}},
			20 * ms, true,
		},
		"a freeze": {
			exchanges{{0, ms}, {s, s + ms}, {2 * s, 2*s + ms}, {3 * s, 6 * s}, {3*s + ms, 6 * s}, {4 * s, 6 * s}, {5 * s, 6 * s}},
			ms, true,
		},
		"a step": {
			exchanges{{0, ms}, {s, s + ms}, {2 * s, 2*s + ms}, {3 * s, 3*s + 900*ms}, {4 * s, 4*s + 900*ms}, {5 * s, 5*s + 900*ms}},
			900 * ms, true,
		},
		"back at once":              {exchanges{{0, s}, {s, 2 * s}, {2 * s, 3 * s}, {3 * s, 3*s + 2*ms}}, 2 * ms, true},
		"farther than is supported": {exchanges{{0, 3 * s}, {3 * s, 6 * s}, {6 * s, 9 * s}}, s, true},
		"at the same time":          {exchanges{{0, 0}, {0, 0}, {0, 0}}, 0, true},
		"one that overlaps is none": {
			exchanges{{0, 100 * ms}, {50 * ms, 110 * ms}, {s, s + 70*ms}, {2 * s, 2*s + 80*ms}},
			70 * ms, true,
		},
		"soon after another is none": {
			exchanges{{0, 5 * ms}, {s, s + 5*ms}, {2 * s, 2*s + 5*ms}, {2*s + 5*ms, 2*s + 6*ms}},
			5 * ms, true,
		},
	} {
		var r Trips
		for _, x := range c.samples {
			r.Sample(clock.Instant(s+x[0]), clock.Instant(s+x[1]))
		}
		require.Equal(t, RoundTrip{Base: c.base, Known: c.known}, r.RoundTrip(), name)
	}
}

func TestRoundTrip_WhatFollows(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	unknown, near, far := RoundTrip{}, RoundTrip{Base: ms, Known: true}, RoundTrip{Base: 900 * ms, Known: true}
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"silence, unknown", unknown.Silence(), 2500 * ms},
		{"silence, near", near.Silence(), 502 * ms},
		{"silence, far", far.Silence(), 2300 * ms},
		{"late without a lease", far.Late(0), 2300 * ms},
		{"late, long lease", near.Late(time.Minute), 502 * ms},
		{"late, short lease", near.Late(900 * ms), 300 * ms},
		{"late, short lease, far", far.Late(5400 * ms), 1800 * ms},
		{"a grace, unknown", unknown.Plus(s), s},
		{"a grace, far", far.Plus(s), 2800 * ms},
		{"a connection, far", far.Connect(), 6400 * ms},
		{"the shortest lease, unknown", unknown.ShortestLease(), 0},
		{"the shortest lease, far", far.ShortestLease(), 5400 * ms},
	} {
		require.Equal(t, c.want, c.got, c.name)
	}
	require.True(t, far.Useless(899*ms))
	require.False(t, far.Useless(900*ms))
	require.False(t, unknown.Useless(0))
	require.Equal(t, "a round trip to Redis takes 900ms", far.String())
	require.Contains(t, RoundTrip{Base: s, Known: true}.String(), "not supported")
}

// The time of a greeting counts until there are three samples, and only to judge what is late.
func TestRoundTrip_Greeting(t *testing.T) {
	const ms = time.Millisecond
	var r Trips
	r.Greet(30 * ms)
	require.Equal(t, Silence+60*ms, r.RoundTrip().Silence())
	require.Equal(t, time.Second, r.RoundTrip().Plus(time.Second))
	r.Sample(1, clock.Instant(40*ms)+1)
	require.Equal(t, Silence+80*ms, r.RoundTrip().Silence(), "the longer one")
	r.Greet(time.Hour)
	require.Equal(t, Silence+2*Farthest, r.RoundTrip().Silence())
}
