package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

const (
	samples     = 20
	samplePause = 10 * time.Millisecond
	slowMedian  = 100 * time.Millisecond
	slowWorst   = time.Second
	skewLimit   = time.Second
	jumpLimit   = 500 * time.Millisecond
)

// sample is one answer to TIME.
type sample struct {
	took   time.Duration
	offset time.Duration // the server's clock less this one's, within half of took
	told   bool          // the server told its time
}

// clocks looks at how fast the servers answer, and at their clocks.
func (x *examination) clocks(ctx context.Context) {
	type serverClock struct {
		n    *node
		best sample
	}
	var known []serverClock
	sampled := map[*node][]sample{}
	for range samples {
		if !clock.Rest(ctx, samplePause) {
			return
		}
		for _, n := range x.nodes {
			if s, ok := x.sample(ctx, n); ok {
				sampled[n] = append(sampled[n], s)
			}
		}
	}
	for _, n := range x.nodes {
		all := sampled[n]
		if len(all) == 0 {
			continue
		}
		x.latency(n, all)
		all = slices.DeleteFunc(all, func(s sample) bool { return !s.told })
		if len(all) == 0 {
			x.miss("+time")
			continue
		}
		x.jumps(n, all)
		best := slices.MinFunc(all, func(a, b sample) int { return cmp.Compare(a.took, b.took) })
		known = append(known, serverClock{n, best})
		x.found(Finding{ID: "clock", Severity: OK, Seen: "the clocks of the servers and of this host agree"})
		if skew := best.offset.Abs() - best.took/2; skew > skewLimit {
			x.found(Finding{
				ID: "clock", Severity: Warning, Nodes: []string{n.address},
				Seen: fmt.Sprintf("the clocks of the server and of this host differ by %v", best.offset.Abs().Round(jumpLimit/5)),
				Why: "lockreg shows wrong durations for holds and waits: processes use their own clocks, and the queue " +
					"uses the server's. Leases are not affected.",
				Do: "Let NTP set all clocks: timedatectl set-ntp true on each host.",
			})
		}
	}
	margin := max(x.opts.Lease/100, 50*time.Millisecond)
	for i, a := range known {
		for _, b := range known[:i] {
			apart := (a.best.offset - b.best.offset).Abs() - a.best.took/2 - b.best.took/2
			if apart > margin {
				x.found(Finding{
					ID: "clock-servers", Severity: Warning, Nodes: []string{a.n.address, b.n.address},
					Seen: fmt.Sprintf("the clocks of these servers differ by %v or more", apart.Round(10*time.Millisecond)),
					Why: "After a failover to the server whose clock is ahead, leases end sooner than their holders expect, by that " +
						"difference. Two processes may then hold a lock at once.",
					Do: "Let NTP set their clocks: timedatectl set-ntp true on each host.",
				})
			}
		}
	}
}

// sample asks a server for its time once; false when it does not answer.
func (x *examination) sample(ctx context.Context, n *node) (s sample, ok bool) {
	began, sent := time.Now(), x.opts.Now()
	reply, err := n.do(ctx, "TIME").AsStrSlice()
	came := x.opts.Now()
	s.took = time.Since(began)
	if len(reply) == 2 {
		seconds, err1 := strconv.ParseInt(reply[0], 10, 64)
		micros, err2 := strconv.ParseInt(reply[1], 10, 64)
		if err1 == nil && err2 == nil {
			s.told = true
			middle := sent.Add(came.Sub(sent) / 2).Round(0) // by the wall
			s.offset = time.Unix(seconds, micros*1000).Sub(middle)
		}
	}
	return s, answered(err)
}

func (x *examination) latency(n *node, all []sample) {
	const id = "latency"
	took := make([]time.Duration, 0, len(all))
	for _, s := range all {
		took = append(took, s.took)
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	x.found(Finding{ID: id, Severity: OK, Seen: "the servers answer quickly"})
	switch {
	case median > x.opts.Lease/10:
		x.found(Finding{
			ID: id, Severity: Error, Nodes: []string{n.address},
			Seen: fmt.Sprintf("half of %d answers took %v or more, with leases of %v", len(took), short(median), x.opts.Lease),
			Why:  "A lease may end before its lock is used, or before it is renewed.",
			Do:   "Use longer leases, or a server that is nearer or less busy.",
		})
	case median > slowMedian:
		x.found(Finding{
			ID: id, Severity: Warning, Nodes: []string{n.address},
			Seen: fmt.Sprintf("half of %d answers took %v or more", len(took), short(median)),
			Why:  "A lock and its unlock take twice that. The server is far away, or too busy.",
			Do:   "Run the program near the server. Look for slow commands: SLOWLOG GET.",
		})
	case worst > slowWorst:
		x.found(Finding{
			ID: id, Severity: Warning, Nodes: []string{n.address},
			Seen: fmt.Sprintf("the slowest of %d answers took %v", len(took), short(worst)),
			Why: "A lock that is granted to a waiting call has a lease of a second at first. The lock is lost when the server stalls " +
				"for longer.",
			Do: "Look for slow commands (SLOWLOG GET), for swapping, and for forks (latest_fork_usec in INFO).",
		})
	}
}

func short(d time.Duration) time.Duration { return d.Round(max(time.Millisecond, d/100)) }

// jumps says whether one of the clocks was set while it was looked at.
func (x *examination) jumps(n *node, all []sample) {
	const id = "clock-jumps"
	x.found(Finding{ID: id, Severity: OK, Seen: "no clock has jumped"})
	for i, s := range all[1:] {
		last := all[i]
		if moved := s.offset - last.offset; moved.Abs()-s.took/2-last.took/2 > jumpLimit {
			x.found(Finding{
				ID: id, Severity: Error, Nodes: []string{n.address},
				Seen: fmt.Sprintf("the clock of the server or of this host has jumped by %v", moved.Abs().Round(jumpLimit/5)),
				Why: "The server counts leases by its clock. When the clock jumps ahead, leases end while locks are held. When it jumps " +
					"back, they end later.",
				Do: "Let NTP slew clocks, not step them (chrony: makestep only at the start). Find out whether the machine was suspended.",
			})
			return
		}
	}
}
