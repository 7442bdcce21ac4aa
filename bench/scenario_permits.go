package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Permits of a semaphore are compared with this library's plain lock, with Redisson's permits (see permits_java.go), and with
// those of golang.org/x/sync, which work within one process.
var (
	plainLock    = contender{name: "plain lock", role: floor}
	semaphores   = contender{name: thisLibrary.name, role: subject}
	localPermits = contender{name: "x/sync, in one process", role: local}
)

const permitsEach = 4 // of a semaphore that nobody waits for

var (
	permitProcesses = []int{8, 32} // that hand permits over
	permitNumbers   = []int{1, 4}  // of permits
)

// permits measures semaphores: alone, and handed from process to process.
func (s *suite) permits() (results []*result, err error) {
	for _, goroutines := range []int{1, 64} {
		r, err := s.permitsAlone(goroutines)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	java, err := s.javaClients()
	if err != nil {
		return nil, err
	}
	beside, err := s.permitsOfOneThread(java)
	if err != nil {
		return nil, errors.Join(err, java.close())
	}
	results = append(results, beside)
	for _, n := range permitProcesses {
		more, err := s.permitsPassedOn(n, java)
		if err != nil {
			return nil, errors.Join(err, java.close())
		}
		results = append(results, more...)
	}
	return results, java.close() // they must not disturb what follows
}

// permitsAlone has each goroutine acquire and release a permit of a path of its own.
func (s *suite) permitsAlone(goroutines int) (*result, error) {
	rounds := either(s, 60, 20)
	sl := slice{
		goroutines: goroutines, length: 40 * time.Millisecond, paths: pathNames(goroutines), settled: true,
		pick: func(goroutine, _ int) int { return goroutine },
	}
	r := &result{
		scenario: fmt.Sprintf("permits-alone-%d", goroutines),
		title:    fmt.Sprintf("A permit of four, %d goroutines, a path each", goroutines),
		how:      fmt.Sprintf("%d rounds of %v for each, in shuffled order. Nobody waits.", rounds, sl.length),
		floor:    plainLock.name, metrics: inOneProcess,
	}
	var opened []*open
	defer func() { closeAll(opened) }()
	for _, c := range []contender{plainLock, semaphores} {
		o := opening{addr: s.addr}
		if c.role == subject {
			o.permits = permitsEach
		}
		ls, err := thisLibrary.open(o)
		if err != nil {
			return nil, err
		}
		opened = append(opened, &open{c, o, ls})
	}
	opened = append(opened, &open{localPermits, opening{}, localSemaphores{}})
	measure := func() error { return s.inTurns(r, sl, opened, rounds) }
	if goroutines == 1 {
		return r, s.apart(measure)
	}
	return r, measure()
}

// giver is a row of the handoffs: parties that have opened a lock, or semaphores with a number of permits.
type giver struct {
	contender
	parties []party
	permits int
}

// givers returns the rows for a number of permits, the plain lock first.
func (s *suite) givers(workers fleet, permits int, java javaClients) ([]giver, error) {
	var rows []giver
	for _, c := range []contender{plainLock, semaphores} {
		g := giver{c, workers.parties(fmt.Sprintf("%s, %d", c.name, permits)), permits}
		if c.role == floor {
			g.permits = 1
		}
		for _, p := range g.parties {
			fields := s.opens(thisLibrary, 0)
			fields["registry"] = p.registry
			if c.role == subject {
				fields["permits"] = strconv.Itoa(permits)
			}
			if _, err := p.ask(s.ctx, "main", doOpen, fields); err != nil {
				return nil, fmt.Errorf("open %s: %w", p.registry, err)
			}
		}
		rows = append(rows, g)
	}
	if java.missing == "" {
		rows = append(rows, giver{redissonPermits, java.parties(len(workers)), permits})
	}
	return rows, nil
}

// permitsPassedOn measures handoffs as handoff does. Of several permits, the one held for longest is handed over.
func (s *suite) permitsPassedOn(processes int, java javaClients) (results []*result, err error) {
	workers, err := s.fleet(processes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	for _, permits := range permitNumbers {
		rows, err := s.givers(workers, permits, java)
		if err != nil {
			return nil, err
		}
		r, err := s.passedOnInTurns(rows, processes, permits)
		if err != nil {
			return nil, err
		}
		r.how += java.how()
		results = append(results, r)
	}
	return results, nil
}

func (s *suite) passedOnInTurns(rows []giver, processes, permits int) (*result, error) {
	const each, limit = 40, 2 * time.Second
	rounds := either(s, 20, 8)
	r := &result{
		scenario: fmt.Sprintf("permits-%d-%d", processes, permits),
		title:    fmt.Sprintf("Handoff of one of %d permits, %d processes", permits, processes),
		how: fmt.Sprintf("From before release to after acquire in the next process; the others wait already. %d rounds of %d handoffs for "+
			"each, in shuffled order.", rounds, each),
		floor: plainLock.name, metrics: []metric{handoffMedian, handoffTail, handoffs},
	}
	stalled := 0
	err := turns(s, rounds+1, rows, func(round int, g giver) error {
		path := fmt.Sprintf("%s-%d", r.scenario, round)
		if err := s.begin(g, path); err != nil {
			return err
		}
		took, err := relay{s, g.parties, path, settling, g.poll, g.permits}.run(each, limit)
		if g.role == rival && errors.Is(err, errStalled) {
			stalled++
			err = nil
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", r.scenario, g.name, err)
		}
		if round > 0 && len(took) > 0 { // the first round warms up
			r.record(g.contender, latencies(took))
		}
		return nil
	})
	if stalled > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s stopped in %d of %d rounds: %v for %v. What it had done until then counts.",
			redissonPermits.name, stalled, rounds+1, errStalled, stallLimit))
	}
	return r, err
}

// permitsIdle measures what waiting for a permit costs the server while nothing happens.
func (s *suite) permitsIdle() ([]*result, error) {
	const many = 10_000
	length := either(s, time.Minute, 4*time.Second)
	r := &result{
		scenario: "idle-permits",
		title:    fmt.Sprintf("%s registries wait for one permit while nothing happens", grouped(many)),
		how: fmt.Sprintf("Registries in %d processes; in each process they share a client. The permit is held all the time. In %v: the server's "+
			"CPU as a part of one core, and its commands, those that scripts call included.", crowdProcesses, length),
		floor: plainLock.name, metrics: []metric{shareOfCore, commandsAlways},
	}
	for _, c := range []contender{plainLock, semaphores} {
		permits := 0
		if c.role == subject {
			permits = 1
		}
		values, err := s.idleCosts(thisLibrary, permits, false, many, length)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.record(c, values)
	}
	return []*result{r}, nil
}

// inTurns gives each contender a slice per round.
func (s *suite) inTurns(r *result, sl slice, opened []*open, rounds int) error {
	return turns(s, rounds+1, opened, func(round int, c *open) error {
		t, err := sl.run(s.ctx, c.locks, s.observer)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", r.scenario, c.name, err)
		}
		if round > 0 { // the first round warms up
			r.record(c.contender, t.values())
		}
		return nil
	})
}
