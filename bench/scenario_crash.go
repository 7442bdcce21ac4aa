package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/interop/peer"
)

var (
	lateMedian = metric{name: "p50", unit: nanoseconds, compared: true}
	lateMost   = metric{name: "slowest", unit: nanoseconds, compared: true}
)

// crash kills the process that holds some paths and looks how long after the end of each lease the next process has it.
func (s *suite) crash() ([]*result, error) {
	const lease = 600 * time.Millisecond
	paths := pathNames(20)
	rounds := either(s, 3, 1)
	workers, err := s.fleet(1, s.all(lease)...)
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
		// Who polls does so at any moment before the end of the lease.
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
