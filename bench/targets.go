package main

import (
	"fmt"
	"math"
)

// target is what this library set out to reach in one metric. A limit of zero means that none was set.
type target struct {
	title    string
	scenario string
	metric   string
	toFloor  float64 // the most that the ratio to the floor may be
	toPeer   float64 // the most that the ratio to the best peer may be
	most     float64 // the most that the figure itself may be
	// eager lets the polling peers take part with a pause of eagerRetry, too.
	eager bool
}

var targets = []target{
	{title: "one goroutine", scenario: "paths-1", metric: timePerOp.name, toFloor: 1.02, toPeer: 1},
	{title: "64 goroutines, a path each", scenario: "paths-64", metric: timePerOp.name, toFloor: 1.05, toPeer: 0.70},
	{title: "512 goroutines, a path each", scenario: "paths-512", metric: timePerOp.name, toFloor: 1.05, toPeer: 0.75},
	{title: "64 goroutines, one path", scenario: "one-path", metric: timePerOp.name, toPeer: 1.0 / 30, eager: true},
	{title: "hand-over p50, 2 processes", scenario: "handover-2", metric: handOverMedian.name, toFloor: 1.2, toPeer: 0.9},
	{title: "hand-over p99, 2 processes", scenario: "handover-2", metric: handOverTail.name, toFloor: 1.5, toPeer: 1.2},
	{title: "hand-over p50, 8 processes", scenario: "handover-8", metric: handOverMedian.name, toFloor: 1.2, toPeer: 0.9},
	{title: "hand-over p99, 8 processes", scenario: "handover-8", metric: handOverTail.name, toFloor: 1.5, toPeer: 1.2},
	{title: "the same p50, 2 processes, peers polling every ms too", scenario: "handover-2", metric: handOverMedian.name, toPeer: 0.9, eager: true},
	{title: "the same p99, 2 processes, peers polling every ms too", scenario: "handover-2", metric: handOverTail.name, toPeer: 1.2, eager: true},
	{title: "the same p50, 8 processes, peers polling every ms too", scenario: "handover-8", metric: handOverMedian.name, toPeer: 0.9, eager: true},
	{title: "the same p99, 8 processes, peers polling every ms too", scenario: "handover-8", metric: handOverTail.name, toPeer: 1.2, eager: true},
	{title: "allocations per lock and unlock", scenario: "paths-1", metric: allocations.name, toPeer: 1, most: 4},
	{title: "server CPU, one goroutine", scenario: "paths-1", metric: serverCPU.name, toFloor: 1, toPeer: 1},
	{title: "server CPU, 64 goroutines, a path each", scenario: "paths-64", metric: serverCPU.name, toFloor: 1, toPeer: 1},
}

// verdicts is the table that says which targets hold in these results; targets whose scenario did not run are left out.
func verdicts(results []*result) grid {
	lines := grid{{"", "lockregistry", "floor", "ratio", "wanted", "best peer", "ratio", "wanted", "holds"}}
	for _, t := range targets {
		for _, r := range results {
			own, ran := r.row(thisLibrary.name)
			if r.scenario != t.scenario || !ran {
				continue
			}
			lines = append(lines, t.verdict(r, own))
		}
	}
	return lines
}

func (t target) verdict(r *result, own row) []string {
	m := r.metric(t.metric)
	holds := true
	judge := func(other row, there bool, limit float64) (ratio, wanted string) {
		if !there || limit == 0 {
			return "–", "–"
		}
		measured := against(own, other, m)
		low, high := spread(measured)
		if !(median(measured) <= limit) {
			holds = false
		}
		return fmt.Sprintf("%s (%s … %s)", fine(median(measured)), fine(low), fine(high)), "≤ " + fine(limit)
	}
	base, hasFloor := r.floorRow()
	best, hasPeer := r.bestPlainPeer(m)
	if t.eager {
		best, hasPeer = r.bestPeer(m)
	}
	floorRatio, floorWanted := judge(base, hasFloor, t.toFloor)
	peerRatio, peerWanted := judge(best, hasPeer, t.toPeer)
	figure := m.unit.write(own.median(m.name))
	if t.most != 0 {
		figure += " (≤ " + digits(t.most) + ")"
		// A stray allocation in the background of a round must not decide: the figure counts whole ones.
		holds = holds && math.Round(own.median(m.name)) <= t.most
	}
	line := []string{t.title, figure, "–", floorRatio, floorWanted, "–", peerRatio, peerWanted, "no"}
	if hasFloor {
		line[2] = m.unit.write(base.median(m.name))
	}
	if hasPeer {
		line[5] = best.contender + " " + m.unit.write(best.median(m.name))
	}
	if holds {
		line[8] = "yes"
	}
	return line
}
