package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

var (
	lateMedian = metric{name: "p50", unit: nanoseconds, compared: true}
	lateMost   = metric{name: "slowest", unit: nanoseconds, compared: true}
)

// crash kills the process that holds some paths, and measures how long after the end of each lease the next process gets the
// path.
func (s *suite) crash() ([]*result, error) {
	const lease = 600 * time.Millisecond
	paths := pathNames(20)
	rounds := either(s, 3, 1)
	workers, err := s.fleet(1, s.opensAll(contenders, lease)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	r := &result{
		scenario: "crash",
		title:    "A holder that crashes",
		how: fmt.Sprintf("A process holds %d paths, with a lease of %v each, and is killed while another one waits for all of them. From "+
			"the end of each lease, as the server tells it, to the moment at which lock returns in the other process. %d rounds.",
			len(paths), lease, rounds),
		metrics: []metric{lateMedian, lateMost},
	}
	err = turns(s, rounds, contenders, func(_ int, c contender) error {
		late, err := s.succession(c, workers[0], paths, lease)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.record(c, map[string]float64{lateMedian.name: median(late), lateMost.name: quantile(late, 1)})
		return nil
	})
	r.inOrder()
	return []*result{r}, err
}

func (s *suite) succession(c contender, heir process, paths []string, lease time.Duration) ([]float64, error) {
	doomed, err := startWorker("doomed")
	if err != nil {
		return nil, err
	}
	dead := false
	defer func() {
		if !dead {
			_ = doomed.Kill()
		}
	}()
	if _, err := doomed.ask(s.ctx, "main", doOpen, s.opens(c, lease)); err != nil {
		return nil, err
	}
	ls, err := c.open(opening{addr: s.addr}) // only for the names of its keys
	if err != nil {
		return nil, err
	}
	defer ls.close()
	requests := make([]peer.Fields, len(paths))
	calls := make([]*peer.Call, len(paths))
	for i, path := range paths {
		requests[i] = peer.Fields{"registry": c.name, "path": path}
		calls[i] = doomed.Send(strconv.Itoa(i), doLock, requests[i])
	}
	for _, call := range calls {
		if _, err := call.Wait(s.ctx); err != nil {
			return nil, err
		}
	}
	for i := range paths {
		// A polling process does so at any moment before the end of the lease.
		time.Sleep(rand.N(10 * time.Millisecond))
		calls[i] = heir.Send(strconv.Itoa(i), doLock, requests[i])
	}
	time.Sleep(20 * time.Millisecond)
	dead = true
	if err := doomed.Kill(); err != nil {
		return nil, err
	}
	ends := make([]time.Time, len(paths))
	for i, path := range paths {
		at, err := s.observer.expiresAt(s.ctx, ls.key(path))
		if err != nil {
			return nil, err
		}
		ends[i] = time.UnixMilli(at)
	}
	late := make([]float64, len(paths))
	limited, cancel := context.WithTimeout(s.ctx, answerLimit)
	defer cancel()
	for i, call := range calls {
		reply, err := call.Wait(limited)
		if err != nil {
			return nil, err
		}
		late[i] = float64(reply.End.Sub(ends[i]).Nanoseconds())
	}
	for i := range paths {
		if _, err := heir.ask(s.ctx, strconv.Itoa(i), doUnlock, requests[i]); err != nil {
			return nil, err
		}
	}
	return late, nil
}

// crashBeforeMany kills the process that holds a path with very many waiters, and measures how long after the end of the lease
// the next one gets it.
func (s *suite) crashBeforeMany() ([]*result, error) {
	const waiters, lease = 100, 800 * time.Millisecond
	rounds := either(s, 5, 3)
	r := &result{
		scenario: "crash-100",
		title:    fmt.Sprintf("A holder that crashes while %d wait", waiters),
		how: fmt.Sprintf("A process holds a path, with a lease of %v, and is killed while %d registries in %d processes wait for it. From "+
			"the end of the lease, as the server tells it, to the moment at which lock returns in one of them. %d crashes.",
			lease, waiters, crowdProcesses, rounds),
		floor:   directedFloor.name,
		metrics: []metric{lateMedian, lateMost},
	}
	var inCrash []contender
	for _, c := range contenders {
		if c.role != rival || !c.contended { // a hundred that try every millisecond would only measure the machine
			inCrash = append(inCrash, c)
		}
	}
	slowest := map[string]float64{}
	err := turns(s, rounds, inCrash, func(_ int, c contender) error {
		ns, err := s.successionOfMany(c, waiters, lease)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		slowest[c.name] = max(slowest[c.name], ns)
		r.record(c, map[string]float64{lateMedian.name: ns})
		return nil
	})
	for _, c := range inCrash {
		r.record(c, map[string]float64{lateMost.name: slowest[c.name]})
	}
	r.inOrder()
	return []*result{r}, err
}

func (s *suite) successionOfMany(c contender, waiters int, lease time.Duration) (late float64, err error) {
	defer func() { _ = s.observer.flush(s.ctx) }()
	heirs, err := s.fleet(crowdProcesses)
	if err != nil {
		return 0, err
	}
	defer func() { _ = heirs.close() }()
	doomed, err := startWorker("doomed")
	if err != nil {
		return 0, err
	}
	defer func() { _ = doomed.Kill() }() // a second kill does no harm
	held := crowding{contender: c.name, addr: s.addr, lease: lease, registries: 1, paths: 1}
	if err := (fleet{doomed}).crowd(s.ctx, held); err != nil {
		return 0, err
	}
	if _, err := doomed.ask(s.ctx, "main", doFirst, nil); err != nil {
		return 0, err
	}
	waiting := held
	waiting.registries = waiters
	if err := heirs.crowd(s.ctx, waiting); err != nil {
		return 0, err
	}
	time.Sleep(200 * time.Millisecond) // ample for all to wait
	if err := doomed.Kill(); err != nil {
		return 0, err
	}
	ls, err := c.open(opening{addr: s.addr}) // only for the name of its key
	if err != nil {
		return 0, err
	}
	defer ls.close()
	end, err := s.observer.expiresAt(s.ctx, ls.key(pathNames(1)[0]))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, answerLimit)
	defer cancel()
	taken := make(chan error, len(heirs))
	at := make(chan time.Time, len(heirs))
	for _, p := range heirs {
		call := p.Send("first", doFirst, nil)
		go func() {
			reply, err := call.Wait(ctx)
			if err == nil {
				var locked time.Time
				if locked, err = reply.Time("at"); err == nil {
					at <- locked
				}
			}
			taken <- err
		}()
	}
	select {
	case locked := <-at:
		return float64(locked.Sub(time.UnixMilli(end)).Nanoseconds()), nil
	case err := <-taken:
		return 0, err
	}
}
