package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The two ways in which this library releases, which the scenario compares.
var (
	releasesBehind = contender{name: thisLibrary.name, role: subject}
	releasesFirst  = contender{name: "the same, waiting for each removal", role: floor}
)

// manyPaths are more than a registry releases at a time.
const manyPaths = 10_000

// releases lets goroutines lock and unlock, near the server and far from it, with background releases and without. Far away a
// round is longer than the 1.7 s between windows for pollers, so that it includes their cost.
func (s *suite) releases() (results []*result, err error) {
	for _, at := range []struct {
		name       string
		trip       time.Duration // in addition to the loopback's
		goroutines int
		rounds     int
		length     time.Duration
	}{
		{"loopback", 0, 1, either(s, 60, 20), 40 * time.Millisecond},
		{"loopback-64", 0, 64, either(s, 40, 12), 40 * time.Millisecond},
		{"1ms", time.Millisecond, 1, either(s, 6, 3), 2 * time.Second},
		{"2.3ms", 2300 * time.Microsecond, 1, either(s, 6, 3), 2 * time.Second},
		{"10ms", 10 * time.Millisecond, 1, either(s, 6, 3), 4 * time.Second},
	} {
		for _, rotating := range []bool{false, true} {
			name, title := "release-"+at.name, fmt.Sprintf("%d goroutines, a round trip of %v more", at.goroutines, at.trip)
			sl := slice{goroutines: at.goroutines, length: at.length, paths: pathNames(at.goroutines), settled: true}
			sl.pick = func(goroutine, _ int) int { return goroutine }
			if rotating {
				name, title = name+"-rotating", title+", another path each time"
				sl.paths, sl.settled = pathNames(manyPaths), false
				sl.pick = func(goroutine, n int) int { return (goroutine*manyPaths/at.goroutines + n) % manyPaths }
			}
			r := &result{
				scenario: name, title: title, metrics: inOneProcess, floor: releasesFirst.name,
				how: fmt.Sprintf("%d rounds of %v for each, in shuffled order. The option is WithBackgroundRelease.", at.rounds, sl.length),
			}
			if err := s.release(r, sl, at.trip, at.rounds); err != nil {
				return nil, err
			}
			results = append(results, r)
		}
	}
	return results, nil
}

func (s *suite) release(r *result, sl slice, trip time.Duration, rounds int) error {
	var opened []*open
	defer func() { closeAll(opened) }()
	for _, c := range []contender{releasesFirst, releasesBehind} {
		var options []lockregistry.Option
		if c.name == releasesBehind.name {
			options = append(options, lockregistry.WithBackgroundRelease())
		}
		client, err := far(s.addr, trip)
		if err != nil {
			return err
		}
		registry, err := lockregistry.New(client, fmt.Sprint("release", c.role), options...)
		if err != nil {
			client.Close()
			return fmt.Errorf("a registry at %v: %w", trip, err)
		}
		opened = append(opened, &open{c, opening{}, registryLocks{client: client, registry: registry}})
	}
	return s.inTurns(r, sl, opened, rounds)
}

// inTurns gives each contender a slice per round.
func (s *suite) inTurns(r *result, sl slice, opened []*open, rounds int) error {
	return turns(s, rounds+1, opened, func(round int, c *open) error {
		t, err := sl.run(s.ctx, c.locks, s.observer)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", r.scenario, c.name, err)
		}
		if round > 0 { // the first one warms up
			r.record(c.contender, t.values())
		}
		return nil
	})
}

// far is a client to which a round trip takes so much longer.
func far(addr string, trip time.Duration) (rueidis.Client, error) {
	option := rueidis.ClientOption{InitAddress: []string{addr}}
	if trip > 0 {
		away := redistest.NewDistance(trip)
		option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return away.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) })
		}
	}
	return rueidis.NewClient(option)
}
