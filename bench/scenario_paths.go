package main

import (
	"errors"
	"fmt"
	"time"
)

// The metrics of every scenario that runs in one process.
var (
	timePerOp     = metric{name: "time", unit: nanoseconds, compared: true}
	allocations   = metric{name: "allocations", unit: count}
	bytesPerOp    = metric{name: "bytes", unit: byteCount}
	serverCPU     = metric{name: "server CPU", unit: nanoseconds, compared: true}
	serverCalls   = metric{name: "commands", unit: count}
	leastServed   = metric{name: "least served", unit: share, higher: true}
	inOneProcess  = []metric{timePerOp, allocations, bytesPerOp, serverCPU, serverCalls}
	sharedMetrics = []metric{timePerOp, allocations, bytesPerOp, serverCPU, serverCalls, leastServed}
)

func (t turn) values() map[string]float64 {
	return map[string]float64{
		timePerOp.name:   t.perOp(),
		allocations.name: t.mallocs,
		bytesPerOp.name:  t.bytes,
		serverCPU.name:   t.load.cpu * 1e9 / t.ops,
		serverCalls.name: t.load.commands() / t.ops,
		leastServed.name: t.fewest,
		pairMedian.name:  quantile(t.took, 0.5),
		pairTail.name:    quantile(t.took, 0.99),
	}
}

// ownPaths has each goroutine lock a path of its own, so that none waits for another.
func (s *suite) ownPaths() ([]*result, error) {
	var results []*result
	for _, width := range []struct {
		goroutines int
		title      string
		rounds     int
		length     time.Duration
	}{
		{1, "One goroutine, one path", either(s, 80, 30), 20 * time.Millisecond},
		{64, "64 goroutines, a path each", either(s, 45, 12), 40 * time.Millisecond},
		{512, "512 goroutines, a path each", either(s, 45, 12), 40 * time.Millisecond},
		{1024, "1 024 goroutines, a path each", either(s, 45, 12), 80 * time.Millisecond},
		{4096, "4 096 goroutines, a path each", either(s, 30, 8), 200 * time.Millisecond},
	} {
		paths := pathNames(width.goroutines)
		var r *result
		measure := func() (err error) {
			r, err = s.slices(slice{
				goroutines: width.goroutines,
				length:     width.length,
				paths:      paths,
				pick:       func(goroutine, _ int) int { return goroutine },
				settled:    true,
			}, width.rounds, opening{}, func(c contender) bool { return !c.contended })
			return err
		}
		if width.goroutines == 1 {
			err := s.apart(measure)
			if err != nil {
				return nil, err
			}
			r.how += " The server has one core to itself and the contenders have the others, see bench/cores.go."
		} else if err := measure(); err != nil {
			return nil, err
		}
		r.scenario, r.title = fmt.Sprintf("paths-%d", width.goroutines), width.title
		r.metrics = inOneProcess
		results = append(results, r)
	}
	return results, nil
}

// onePath has many goroutines of one process want the same path.
func (s *suite) onePath() ([]*result, error) {
	r, err := s.slices(slice{
		goroutines: 64,
		length:     200 * time.Millisecond,
		paths:      pathNames(1),
		pick:       func(int, int) int { return 0 },
		settled:    true,
		contended:  true,
	}, either(s, 8, 3), opening{queues: true}, func(c contender) bool { return c.name != directedFloor.name })
	if err != nil {
		return nil, err
	}
	r.scenario, r.title = "one-path", "64 goroutines, one path, one process"
	r.metrics = sharedMetrics
	r.notes = append(r.notes, "A flag inside every section showed that nobody was ever inside with another. “Least served” is what the goroutine with the fewest turns in a round got, as a part of an even share: 0 % was starved.")
	return []*result{r}, nil
}

// slices gives every contender that takes part a slice per round. The first round warms up and is thrown away.
func (s *suite) slices(sl slice, rounds int, o opening, takesPart func(contender) bool) (*result, error) {
	opened, err := s.openAll(o, takesPart)
	if err != nil {
		return nil, err
	}
	defer closeAll(opened)
	r := &result{how: fmt.Sprintf("%d rounds of %v for each contender, in shuffled order.", rounds, sl.length)}
	asleep, idle := map[string]int{}, map[string]int{}
	loads, ops := map[string]serverLoad{}, map[string]float64{}
	err = turns(s, rounds+1, opened, func(round int, c *open) error {
		t, err := sl.run(s.ctx, c.locks, s.observer)
		if sl.contended && errors.Is(err, errNothing) {
			idle[c.name]++
			return c.reopen()
		}
		if err != nil {
			return fmt.Errorf("%s with %d goroutines: %w", c.name, sl.goroutines, err)
		}
		if t.asleep {
			// The contender's next turn starts afresh.
			asleep[c.name]++
			if err := c.reopen(); err != nil {
				return err
			}
		}
		if round == 0 {
			return nil
		}
		loads[c.name], ops[c.name] = loads[c.name].add(t.load), ops[c.name]+t.ops
		r.record(c.contender, t.values())
		return nil
	})
	for name, n := range asleep {
		r.notes = append(r.notes, fmt.Sprintf("%s had somebody still waiting %v after the last newcomer in %d of %d rounds.", name, drainLimit, n, rounds+1))
	}
	for name, n := range idle {
		r.notes = append(r.notes, fmt.Sprintf("%s locked nothing in %d of %d rounds, which count in no figure.", name, n, rounds+1))
	}
	r.inOrder()
	r.notes = append(r.notes, "The commands of one lock and unlock, those that scripts call included:")
	for _, row := range r.rows {
		r.notes = append(r.notes, fmt.Sprintf("- %s: %s", row.contender, loads[row.contender].perOp(ops[row.contender])))
	}
	return r, err
}
