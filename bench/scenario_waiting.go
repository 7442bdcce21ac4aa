package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// crowdProcesses is how many processes share a crowd of registries: with two waiters, each registry has a process of its own.
const crowdProcesses = 3

// crowders are the contenders whose registries can share a client, and whose waiters are woken.
var crowders = []contender{bareFloor, directedFloor, thisLibrary}

var (
	commandsGrow = metric{name: "commands grow by", unit: times}
	cpuGrows     = metric{name: "server CPU grows by", unit: times}
)

func commandsWith(waiters int) metric {
	return metric{name: grouped(int64(waiters)) + " wait: commands", unit: count}
}

func cpuWith(waiters int) metric {
	return metric{name: grouped(int64(waiters)) + " wait: server CPU", unit: nanoseconds}
}

// waiting measures what a release costs the server when few and when many registries wait for the path.
func (s *suite) waiting() ([]*result, error) {
	crowds := []int{2, 32, 256, 2000}
	rounds, length := either(s, 8, 2), 150*time.Millisecond
	r := &result{
		scenario: "waiting",
		title:    "What a release costs the server, against how many registries wait",
		how: fmt.Sprintf("Crowds of registries, each crowd in %d processes and on a path of its own; in each process they share a client. The holder "+
			"releases at once and waits again, so that as many always wait; one crowd at a time does so, in shuffled order, in %d rounds of %v, "+
			"after all have had their turn since they came. Before each round this library's waiters look after their tickets, which those of no "+
			"other contender do; that is not counted. For each "+
			"release: commands, those that scripts call included, and CPU of the server, less what all crowds cost for as long while nothing "+
			"happens. “Grow by” is the greatest ratio of such a figure to that of a smaller crowd.", crowdProcesses, rounds, length),
		floor:   directedFloor.name,
		metrics: []metric{commandsGrow, cpuGrows},
		notes: []string{"The costs include the next wait of the registry that released. A dash: waiting alone cost more than that. rueidislock, redsync and " +
			"redislock take no part: each of their waiters has connections of its own, or polls."},
	}
	for _, n := range crowds {
		r.metrics = append(r.metrics, commandsWith(n), cpuWith(n))
	}
	err := turns(s, 1, crowders, func(_ int, c contender) error {
		if err := s.costsOfRelease(r, c, crowds, rounds, length); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		own, _ := r.row(c.name)
		var commands, cpu []float64
		for _, n := range crowds {
			commands = append(commands, own.median(commandsWith(n).name))
			cpu = append(cpu, own.median(cpuWith(n).name))
		}
		r.record(c, map[string]float64{commandsGrow.name: rise(commands), cpuGrows.name: rise(cpu)})
		return nil
	})
	r.inOrder()
	return []*result{r}, err
}

// rise is the greatest ratio of a value to an earlier one; NaN if one of them is zero.
func rise(values []float64) float64 {
	most, least := 0.0, math.Inf(1)
	for _, v := range values {
		if !(v > 0) {
			return math.NaN()
		}
		least = min(least, v)
		most = max(most, v/least)
	}
	return most
}

// costsOfRelease records the server's work for each release of a contender in crowds of several sizes.
func (s *suite) costsOfRelease(r *result, c contender, crowds []int, rounds int, length time.Duration) error {
	defer func() { _ = s.observer.flush(s.ctx) }()
	all := make([]fleet, len(crowds))
	waiters := 0
	for i, n := range crowds {
		workers, err := s.fleet(crowdProcesses)
		if err != nil {
			return err
		}
		defer func() { _ = workers.close() }()
		if err := workers.crowd(s.ctx, crowding{contender: c.name, addr: s.addr, registries: n + 1, paths: 1, prefix: strconv.Itoa(n) + "/"}); err != nil {
			return err
		}
		all[i] = workers
		waiters += n
	}
	idle, err := s.idleLoad(waiters, length)
	if err != nil {
		return err
	}
	which := make([]int, len(crowds))
	for i := range which {
		which[i] = i
	}
	return turns(s, rounds, which, func(_, i int) error {
		if c.name == thisLibrary.name {
			time.Sleep(firstLooks)
		}
		load, releases, err := s.passOn(all[i], time.Duration(crowds[i])*turnOfOne, length)
		if err != nil {
			return fmt.Errorf("%d waiting: %w", crowds[i], err)
		}
		if releases > 0 {
			each := load.less(idle).over(releases)
			r.record(c, map[string]float64{commandsWith(crowds[i]).name: each.commands(), cpuWith(crowds[i]).name: each.cpu * 1e9})
		}
		return nil
	})
}

// firstLooks is enough for the first looks of all waiters of this library at their tickets, which come within two seconds;
// later ones come every 30 s. In a crowd that hands its lock over, each waiter gets its turn sooner.
const firstLooks = 2200 * time.Millisecond

// turnOfOne is ample for one registry's turn if a release wakes only the next one, even for the first turn after a pause.
const turnOfOne = time.Millisecond

// passOn has a crowd hand its lock over: first until all have had their turn, then during the measurement.
func (s *suite) passOn(workers fleet, warm, length time.Duration) (load serverLoad, releases float64, err error) {
	begin := time.Now().Add(20 * time.Millisecond)
	from := begin.Add(warm)
	to := from.Add(length)
	calls := make([]*peer.Call, len(workers))
	for i, p := range workers {
		calls[i] = p.Send("main", doPass, peer.Fields{
			"begin": strconv.FormatInt(begin.UnixMicro(), 10),
			"from":  strconv.FormatInt(from.UnixMicro(), 10), "to": strconv.FormatInt(to.UnixMicro(), 10),
		})
	}
	time.Sleep(time.Until(from))
	before, err := s.observer.load(s.ctx)
	time.Sleep(time.Until(to))
	after, err2 := s.observer.load(s.ctx)
	err = errors.Join(err, err2)
	for _, call := range calls {
		reply, failed := call.Wait(s.ctx)
		n, unread := strconv.ParseFloat(reply.Fields["sections"], 64)
		err = errors.Join(err, failed, unread)
		releases += n
	}
	time.Sleep(50 * time.Millisecond) // waiters that were woken in vain wait again
	return s.observer.between(before, after), releases, err
}

// idleLoad lets a crowd come to rest, and then measures what it costs the server.
func (s *suite) idleLoad(waiters int, length time.Duration) (serverLoad, error) {
	// Registries of this library write their records every 20 s.
	time.Sleep(firstLooks + time.Second + time.Duration(waiters)*800*time.Microsecond)
	before, err := s.observer.load(s.ctx)
	if err != nil {
		return serverLoad{}, err
	}
	time.Sleep(length)
	after, err := s.observer.load(s.ctx)
	return s.observer.between(before, after), err
}

var (
	shareOfCore    = metric{name: "server CPU", unit: share}
	commandsAlways = metric{name: "commands", unit: perSecond}
)

// idle measures what waiting costs the server while nothing happens.
func (s *suite) idle() ([]*result, error) {
	const many = 10_000
	length := either(s, time.Minute, 4*time.Second)
	how := fmt.Sprintf("The lock is held all the time. In %v for this library, and in a second for the floors, which do nothing meanwhile: "+
		"the server's CPU as a part of one core, and its commands, those that scripts call included.", length)
	registries := &result{
		scenario: "idle-registries",
		title:    fmt.Sprintf("%s registries wait for one path while nothing happens", grouped(many)),
		how:      fmt.Sprintf("Registries in %d processes; in each process they share a client. ", crowdProcesses) + how,
	}
	paths := &result{
		scenario: "idle-paths",
		title:    fmt.Sprintf("One process waits for %s paths while nothing happens", grouped(many)),
		how:      "One registry, a goroutine for each path; another process holds them all. " + how,
	}
	for _, r := range []*result{registries, paths} {
		r.floor, r.metrics = directedFloor.name, []metric{shareOfCore, commandsAlways}
		for _, c := range crowders {
			during := length
			if c.role == floor {
				during = time.Second
			}
			values, err := s.idleCosts(c, 0, r == paths, many, during)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r.record(c, values)
		}
	}
	return []*result{registries, paths}, nil
}

func (s *suite) idleCosts(c contender, permits int, paths bool, many int, length time.Duration) (map[string]float64, error) {
	defer func() { _ = s.observer.flush(s.ctx) }()
	workers, err := s.fleet(crowdProcesses)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	want := crowding{
		contender: c.name, addr: s.addr, lease: time.Minute, renew: true, registries: many + 1, paths: 1, permits: permits,
	}
	waiters := workers
	if paths {
		want.registries, want.paths, want.renew = 1, many, false
		holder := want
		holder.lease = 10 * time.Minute // no lease ends during the run
		if err := workers[:1].crowd(s.ctx, holder); err != nil {
			return nil, err
		}
		if _, err := s.idleLoad(many, 0); err != nil { // until it holds all of them
			return nil, err
		}
		waiters = workers[1:2]
	}
	if err := waiters.crowd(s.ctx, want); err != nil {
		return nil, err
	}
	if length >= time.Minute { // after a try without a timely reply, a registry looks for a lease whether it was granted after all
		time.Sleep(time.Minute + 10*time.Second)
	}
	load, err := s.idleLoad(many, length)
	return map[string]float64{
		shareOfCore.name:    load.cpu / length.Seconds(),
		commandsAlways.name: load.commands() / length.Seconds(),
	}, err
}
