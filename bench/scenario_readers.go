package main

import (
	"fmt"
	"time"
)

var (
	insideAtOnce = metric{name: "most at once", unit: count, higher: true}
	readsLost    = metric{name: "lost", unit: count}
)

// readers has many goroutines of several processes read under the same path. None of the peers in Go has such a lock.
func (s *suite) readers() ([]*result, error) {
	const processes, goroutines = 4, 16
	var open []contender
	for _, c := range contenders {
		if c.openReaders != nil {
			open = append(open, c)
		}
	}
	workers, err := s.fleet(processes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	for _, p := range workers {
		for _, c := range open {
			fields := s.opens(c, 0)
			fields["readers"] = "true"
			if _, err := p.ask(s.ctx, "main", doOpen, fields); err != nil {
				return nil, fmt.Errorf("open %s: %w", c.name, err)
			}
		}
	}
	rounds, length := either(s, 10, 3), either(s, 500*time.Millisecond, 300*time.Millisecond)
	r := &result{
		scenario: "readers",
		title:    fmt.Sprintf("Read locks: %d processes of %d readers each, one path", processes, goroutines),
		how: fmt.Sprintf("%d rounds of %v for each contender, in shuffled order. “Most at once” is how many readers were seen "+
			"inside together, and “lost” how many reads of a round were told at unlock that they had lost the lock; time is that of all readers together. rueidislock, redsync and redislock have no read locks.", rounds, length),
		metrics: []metric{timePerOp, sectionRate, insideAtOnce, readsLost, serverCPU, serverCalls, clientCPU},
	}
	err = turns(s, rounds+1, open, func(round int, c contender) error {
		values, err := s.compete(workers, contention{registry: c.name, path: "readers", goroutines: goroutines, readers: true}, length)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if round > 0 {
			r.record(c, values)
		}
		return nil
	})
	r.inOrder()
	return []*result{r}, err
}
