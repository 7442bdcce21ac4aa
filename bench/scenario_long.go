package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

var (
	turnMedian = metric{name: "wait", unit: nanoseconds}
	turnMost   = metric{name: "longest wait", unit: nanoseconds}
)

// long has three processes take turns with sections that are long compared with a handoff, so that a window for calls without a
// ticket may be due at each release. Then it adds a process without a ticket.
func (s *suite) long() ([]*result, error) {
	// All at the same time, since they mostly sleep; a contender that polls each millisecond would disturb the others.
	takesPart := func(c contender) bool { return c.role != rival || !c.contended }
	opened, err := s.openAll(opening{}, takesPart)
	if err != nil {
		return nil, err
	}
	defer closeAll(opened)
	requests := make([]peer.Fields, len(opened))
	for i, c := range opened {
		requests[i] = s.opens(c.contender, 0)
	}
	workers, err := s.fleet(3, requests...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	results := make([]*result, 0, 4)
	for _, of := range []struct {
		section time.Duration
		most    int
	}{
		{20 * time.Millisecond, 60},
		{time.Second, either(s, 30, 5)},
		{2 * time.Second, either(s, 20, 4)},
	} {
		r, err := s.longSections(workers, opened, of.section, of.most)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	late, err := s.latePoller(workers, opened)
	return append(results, late), err
}

// atOnce calls do for all contenders at the same time, with the number of each.
func atOnce(of []*open, do func(i int, c *open) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(of))
	for i, c := range of {
		all.Go(func() {
			if err := do(i, c); err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *suite) longSections(workers fleet, of []*open, section time.Duration, most int) (*result, error) {
	r := &result{
		scenario: "long-" + section.String(),
		title:    fmt.Sprintf("Handoff, %d processes, one path, sections of %v", len(workers), section),
		how: fmt.Sprintf("As in handoff, for which the others wait already: %d handoffs of each contender, all contenders at the same "+
			"time, on one path for sections of all lengths.", most),
		floor:   directedFloor.name,
		metrics: []metric{handoffMedian, lateMost, handoffs},
	}
	took := make([][]time.Duration, len(of))
	err := atOnce(of, func(i int, c *open) (err error) {
		took[i], err = relay{s, workers.parties(c.name), "long", section, c.poll, 1}.run(most, time.Hour)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, c := range of {
		values := latencies(took[i])
		values[lateMost.name] = float64(slices.Max(took[i]))
		r.record(c.contender, values)
	}
	return r, nil
}

// latePoller adds a poller to processes that take turns. The server does not know the poller's script. It gives up after a
// while: without a turn it would wait forever.
func (s *suite) latePoller(workers fleet, of []*open) (*result, error) {
	const section, before, limit = 20 * time.Millisecond, 4 * time.Second, 8 * time.Second
	rounds := either(s, 6, 2)
	r := &result{
		scenario: "long-poller",
		title:    fmt.Sprintf("A poller that comes later to %d processes with sections of %v", len(workers), section),
		how: fmt.Sprintf("It tries each %v with the script of Spring Integration 7.1, from the fifth second on, until it has the lock, for %v at "+
			"most. %d rounds, of all contenders at the same time; the server forgets all scripts before each.", springPause, limit, rounds),
		floor:   directedFloor.name,
		metrics: []metric{turnMedian, turnMost},
	}
	waits := make([][]float64, len(of))
	for round := range rounds {
		if err := s.observer.client.Do(s.ctx, s.observer.client.B().ScriptFlush().Build()).Error(); err != nil {
			return nil, fmt.Errorf("have the server forget its scripts: %w", err)
		}
		path := fmt.Sprintf("poller-%d", round)
		if err := atOnce(of, func(i int, c *open) error {
			waited := make(chan float64, 1)
			time.AfterFunc(before+rand.N(springPause), func() { waited <- s.pollLikeSpring(c.locks.key(path), limit) })
			_, err := relay{s, workers.parties(c.name), path, section, 0, 1}.run(math.MaxInt, before+limit)
			if errors.Is(err, errStalled) { // it did not notice that the poller had gone
				err = nil
			}
			waits[i] = append(waits[i], <-waited)
			return err
		}); err != nil {
			return nil, err
		}
	}
	for i, c := range of {
		r.record(c.contender, map[string]float64{turnMedian.name: median(waits[i]), turnMost.name: slices.Max(waits[i])})
	}
	return r, nil
}

// springPause is how long that poller waits between two tries.
const springPause = 100 * time.Millisecond

// springObtains is the script with which a registry of Spring Integration 7.1 tries to lock.
const springObtains = `local lockClientId = redis.call('GET', KEYS[1])
if lockClientId == ARGV[1] then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return true
elseif not lockClientId then
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	return true
end
return false
`

// pollLikeSpring tries until it has the key, and then removes it. It returns how long that took, or limit if it did not get the
// key.
func (s *suite) pollLikeSpring(key string, limit time.Duration) float64 {
	began, client := time.Now(), s.observer.client
	for time.Since(began) < limit {
		if client.Do(s.ctx, client.B().Eval().Script(springObtains).Numkeys(1).Key(key).Arg("spring", "60000").Build()).Error() == nil {
			waited := time.Since(began)
			client.Do(s.ctx, client.B().Del().Key(key).Build())
			return float64(waited)
		}
		time.Sleep(springPause)
	}
	return float64(limit)
}
