package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The metrics of how commands are sent.
var (
	pairMedian     = metric{name: "p50", unit: nanoseconds}
	pairTail       = metric{name: "p99", unit: nanoseconds}
	sendingMetrics = []metric{timePerOp, pairMedian, pairTail, allocations, bytesPerOp}
)

// sendingWidths are the goroutines of each scenario of sending, how long a round takes beside the server, and how many rounds
// there are.
var sendingWidths = []struct {
	goroutines int
	length     time.Duration
}{{1, 20 * time.Millisecond}, {4, 30 * time.Millisecond}, {8, 30 * time.Millisecond}, {64, 40 * time.Millisecond},
	{512, 80 * time.Millisecond}, {1024, 100 * time.Millisecond}, {4096, 200 * time.Millisecond}}

// sending has each goroutine lock a path of its own, at some distance from the server. It shows what a change in how commands
// are sent costs or gains: see scripts/bench-before.sh.
func sending(trip time.Duration) func(s *suite) ([]*result, error) {
	return func(s *suite) (results []*result, err error) {
		for _, w := range sendingWidths {
			name := fmt.Sprintf("sending-%v-%d", trip, w.goroutines)
			r, err := s.sendingOf(name, w.goroutines, max(w.length, 20*trip), opening{away: trip}, 0)
			if err != nil {
				return results, err
			}
			results = append(results, r)
		}
		return results, nil
	}
}

// sendingImpatient is sending where one caller in ten gives up after a third of a round trip.
func (s *suite) sendingImpatient() ([]*result, error) {
	const trip = 5 * time.Millisecond
	r, err := s.sendingOf("sending-impatient", 64, 40*trip, opening{away: trip}, trip/3)
	return []*result{r}, err
}

// sendingOnACluster is sending with three masters.
func (s *suite) sendingOnACluster() (results []*result, err error) {
	nodes, err := redistest.RunCluster(s.binary, 3)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, node := range nodes {
			node.Stop()
		}
	}()
	there := *s
	there.addr = nodes[0].Addr()
	for _, goroutines := range []int{1, 8, 64, 512} {
		r, err := there.sendingOf(fmt.Sprintf("sending-cluster-%d", goroutines), goroutines, 60*time.Millisecond, opening{cluster: true}, 0)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// sendingOf measures one scenario. With impatient, one call in ten gives up after that time.
func (s *suite) sendingOf(name string, goroutines int, length time.Duration, o opening, impatient time.Duration) (*result, error) {
	r, err := s.slices(slice{
		goroutines: goroutines, length: length, paths: pathNames(goroutines), settled: true, timed: true,
		pick: func(goroutine, _ int) int { return goroutine }, impatient: impatient,
	}, either(s, 30, 10), o, func(c contender) bool { return !c.contended && (impatient == 0 || c.role != floor) })
	if err != nil {
		return nil, err
	}
	r.scenario, r.title, r.metrics = name, name, sendingMetrics
	return r, nil
}

// dialFrom returns a function that dials a server from a distance; nil for none.
func dialFrom(away time.Duration) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	if away == 0 {
		return nil
	}
	distance := redistest.NewDistance(away)
	return func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return distance.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) })
	}
}
