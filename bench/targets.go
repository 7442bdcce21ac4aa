package main

import (
	"fmt"
	"math"
	"slices"
)

// target is this library's goal in one metric. A limit of zero means none. If less is better, a limit is the most that is
// allowed; if more is better, the least.
type target struct {
	title    string
	scenario string
	metric   string
	toFloor  float64 // limit of the ratio to the floor that the scenario names
	toPeer   float64 // limit of the ratio to the best peer
	limit    float64 // limit of the figure itself
	// a figure between window and enough may have any ratio: it contains a window for waiters without a ticket
	window, enough float64
	// eager compares with the polling peers that pause for eagerRetry, too.
	eager bool
}

var targets = slices.Concat(singleTargets, rushTargets(), crowdTargets, permitTargets())

var singleTargets = []target{
	{title: "one goroutine", scenario: "paths-1", metric: timePerOp.name, toFloor: 1.02, toPeer: 1},
	{title: "64 goroutines, a path each", scenario: "paths-64", metric: timePerOp.name, toFloor: 1, toPeer: 0.70},
	{title: "512 goroutines, a path each", scenario: "paths-512", metric: timePerOp.name, toFloor: 1, toPeer: 0.75},
	{title: "1 024 goroutines, a path each", scenario: "paths-1024", metric: timePerOp.name, toFloor: 1},
	{title: "4 096 goroutines, a path each", scenario: "paths-4096", metric: timePerOp.name, toFloor: 1},
	{title: "64 goroutines, one path", scenario: "one-path", metric: timePerOp.name, toPeer: 1.0 / 30, eager: true},
	{title: "handoff p50, 2 processes", scenario: "handoff-2", metric: handoffMedian.name, toFloor: 1.2, toPeer: 0.9},
	{title: "handoff p99, 2 processes", scenario: "handoff-2", metric: handoffTail.name, toFloor: 1.5, toPeer: 1.2},
	{title: "handoff p50, 8 processes", scenario: "handoff-8", metric: handoffMedian.name, toFloor: 1.2, toPeer: 0.9},
	{title: "handoff p99, 8 processes", scenario: "handoff-8", metric: handoffTail.name, toFloor: 1.5, toPeer: 1.2},
	{title: "the same p50, 2 processes, peers polling every ms too", scenario: "handoff-2", metric: handoffMedian.name, toPeer: 0.9, eager: true},
	{title: "the same p99, 2 processes, peers polling every ms too", scenario: "handoff-2", metric: handoffTail.name, toPeer: 1.2, eager: true},
	{title: "the same p50, 8 processes, peers polling every ms too", scenario: "handoff-8", metric: handoffMedian.name, toPeer: 0.9, eager: true},
	{title: "the same p99, 8 processes, peers polling every ms too", scenario: "handoff-8", metric: handoffTail.name, toPeer: 1.2, eager: true},
	{title: "handoff p50, 3 processes, sections of 1 s", scenario: "long-1s", metric: handoffMedian.name, toPeer: 1},
	{title: "handoff p50, 3 processes, sections of 2 s", scenario: "long-2s", metric: handoffMedian.name, toPeer: 1},
	{title: "allocations per lock and unlock", scenario: "paths-1", metric: allocations.name, toPeer: 1, limit: 4},
	{title: "the same, of a goroutine that locks every 15 ms", scenario: "slow-caller", metric: allocations.name, limit: 2.5},
	{title: "three paths at once, one goroutine", scenario: "several-1", metric: timePerOp.name, toPeer: 1.05},
	{title: "three paths at once, 64 goroutines", scenario: "several-64", metric: timePerOp.name, toPeer: 0.9},
	{title: "memory of a held lock that is renewed", scenario: "held", metric: bytesPerLock.name, limit: 600},
	{title: "server CPU, one goroutine", scenario: "paths-1", metric: serverCPU.name, toFloor: 1, toPeer: 1},
	{title: "server CPU, 64 goroutines, a path each", scenario: "paths-64", metric: serverCPU.name, toFloor: 1, toPeer: 1},
}

// rushTargets returns the targets for processes that all want one path at once. A release with a window for waiters without a
// ticket takes 10 ms: with sections of 2 ms more than one release in a hundred may have one.
func rushTargets() []target {
	var all []target
	for _, n := range []int{2, 8, 32} {
		for _, busy := range []bool{false, true} {
			scenario, title, window, slow, p50 := fmt.Sprintf("rush-%d", n), fmt.Sprintf("%d processes in a rush", n), 0.0, 0.0, 1.25
			if busy {
				scenario, title, window, slow = scenario+"-busy", title+", sections of 2 ms", 10e6, 12e6
				p50 = 1.2
			}
			all = append(all,
				target{title: title + ": sections", scenario: scenario, metric: sectionRate.name, toFloor: 0.75},
				target{title: title + ": handoff p50", scenario: scenario, metric: handoffMedian.name, toFloor: p50},
				target{title: title + ": handoff p99", scenario: scenario, metric: handoffTail.name, toFloor: 1.5, window: window, enough: slow},
				target{title: title + ": least share", scenario: scenario, metric: leastShare.name, limit: 0.8})
		}
		if toPeer := map[int]float64{8: 2, 32: 8}[n]; toPeer != 0 {
			title, scenario := fmt.Sprintf("%d processes in a rush: sections", n), fmt.Sprintf("rush-%d", n)
			all = append(all,
				target{title: title + ", beside peers", scenario: scenario, metric: sectionRate.name, toPeer: toPeer},
				target{title: "the same, peers polling every ms too", scenario: scenario, metric: sectionRate.name, toPeer: toPeer, eager: true})
		}
	}
	return all
}

var crowdTargets = []target{
	{title: "commands for each release, 2 to 2 000 waiting", scenario: "waiting", metric: commandsGrow.name, limit: 1.2},
	{title: "server CPU for each release, 2 to 2 000 waiting", scenario: "waiting", metric: cpuGrows.name, limit: 1.2},
	{title: "a key deleted on a cluster beside load, p50", scenario: "cluster-wake", metric: handoffMedian.name, toFloor: 1.3},
	{title: "a key deleted on a cluster beside load, p99", scenario: "cluster-wake", metric: handoffTail.name, toFloor: 2},
	{title: "Redisson unlocks on a cluster beside load, p50", scenario: "cluster-wake-published", metric: handoffMedian.name, toFloor: 1.3},
	{title: "Redisson unlocks on a cluster beside load, p99", scenario: "cluster-wake-published", metric: handoffTail.name, toFloor: 2},
	{title: "handoff on a cluster beside load, p50", scenario: "cluster-wake-handoff", metric: handoffMedian.name, toFloor: 1.3},
	{title: "handoff on a cluster beside load, p99", scenario: "cluster-wake-handoff", metric: handoffTail.name, toFloor: 2},
	{title: "server CPU, 10 000 registries wait for one path", scenario: "idle-registries", metric: shareOfCore.name, limit: 0.02},
	{title: "server CPU, one process waits for 10 000 paths", scenario: "idle-paths", metric: shareOfCore.name, limit: 0.02},
	{title: "crash of the holder while 100 wait: slowest", scenario: "crash-100", metric: lateMost.name, limit: 20e6},
}

// permitTargets returns the targets of semaphores, compared with plain locks.
func permitTargets() []target {
	all := []target{
		{title: "acquire and release of a permit, one goroutine", scenario: "permits-alone-1", metric: timePerOp.name, toFloor: 1.1},
		{title: "server CPU, 10 000 registries wait for a permit", scenario: "idle-permits", metric: shareOfCore.name, toFloor: 1.1, limit: 0.02},
	}
	for _, n := range permitProcesses {
		for _, permits := range permitNumbers {
			all = append(all, target{
				title:    fmt.Sprintf("handoff of one of %d permits, %d processes", permits, n),
				scenario: fmt.Sprintf("permits-%d-%d", n, permits), metric: handoffMedian.name, toFloor: 1.3,
			})
		}
	}
	return all
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
		if !m.within(median(measured), limit) && !(t.enough != 0 && own.median(m.name) >= t.window && m.within(own.median(m.name), t.enough)) {
			holds = false
		}
		wanted = m.sign() + fine(limit)
		if t.enough != 0 {
			wanted += " or " + m.unit.write(t.window) + " to " + m.unit.write(t.enough)
		}
		return fmt.Sprintf("%s (%s … %s)", fine(median(measured)), fine(low), fine(high)), wanted
	}
	base, hasFloor := r.floorRow()
	best, hasPeer := r.bestPlainPeer(m)
	if t.eager {
		best, hasPeer = r.bestPeer(m)
	}
	floorRatio, floorWanted := judge(base, hasFloor, t.toFloor)
	peerRatio, peerWanted := judge(best, hasPeer, t.toPeer)
	figure := m.unit.write(own.median(m.name))
	if t.limit != 0 {
		figure += " (" + m.sign() + m.unit.write(t.limit) + ")"
		value := own.median(m.name)
		if m.unit == count {
			value = math.Round(value) // a stray allocation in the background of a round must not decide
		}
		holds = holds && m.within(value, t.limit)
	}
	line := []string{t.title, figure, "–", floorRatio, floorWanted, "–", peerRatio, peerWanted, "no"}
	if hasFloor {
		line[2] = m.unit.write(base.median(m.name))
		if r.floor != "" {
			line[2] = r.floor + " " + line[2]
		}
	}
	if hasPeer {
		line[5] = best.contender + " " + m.unit.write(best.median(m.name))
	}
	if holds {
		line[8] = "yes"
	}
	return line
}
