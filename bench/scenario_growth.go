package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// growth shows throughput against the number of paths, and against the number of goroutines that want one path.
func (s *suite) growth() ([]*result, error) {
	const goroutines = 64
	var results []*result
	for _, n := range either(s, []int{1, 10, 100, 1000, 10_000}, []int{1, 10_000}) {
		paths := pathNames(n)
		r, err := s.grow(slice{
			goroutines: goroutines,
			paths:      paths,
			pick:       func(int, int) int { return rand.IntN(n) },
		})
		if err != nil {
			return nil, err
		}
		r.scenario = fmt.Sprintf("growth-paths-%d", n)
		r.title = fmt.Sprintf("%d goroutines, each lock on one of %s paths", goroutines, grouped(int64(n)))
		results = append(results, r)
	}
	for _, waiters := range either(s, []int{1, 4, 16, 64, 256}, []int{256}) {
		r, err := s.grow(slice{
			goroutines: waiters,
			paths:      pathNames(1),
			pick:       func(int, int) int { return 0 },
			settled:    true,
		})
		if err != nil {
			return nil, err
		}
		r.scenario = fmt.Sprintf("growth-waiters-%d", waiters)
		r.title = fmt.Sprintf("%d goroutines on one path", waiters)
		results = append(results, r)
	}
	return results, nil
}

var throughput = metric{name: "throughput", unit: perSecond, higher: true, compared: true}

func (s *suite) grow(sl slice) (*result, error) {
	sl.length, sl.contended = either(s, 100*time.Millisecond, 60*time.Millisecond), true
	r, err := s.slices(sl, either(s, 3, 1), opening{queues: true}, func(c contender) bool { return !c.contended })
	if err != nil {
		return nil, err
	}
	r.metrics = []metric{throughput}
	for _, row := range r.rows {
		for _, ns := range row.values[timePerOp.name] {
			row.values[throughput.name] = append(row.values[throughput.name], 1e9/ns)
		}
	}
	return r, nil
}
