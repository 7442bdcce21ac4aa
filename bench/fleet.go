package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// process is another process that locks.
type process struct{ *peer.Peer }

// answerLimit is ample for every request to a process.
const answerLimit = 60 * time.Second

// startWorker starts this program once more, as a worker.
func startWorker(name string) (process, error) {
	p, err := peer.Again(name)
	return process{p}, err
}

func (p process) ask(ctx context.Context, thread, what string, fields peer.Fields) (peer.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return p.Do(ctx, thread, what, fields)
}

// fleet is a number of workers, each with the same contenders open.
type fleet []process

func (s *suite) fleet(n int, open ...peer.Fields) (fleet, error) {
	var f fleet
	for i := range n {
		p, err := startWorker(fmt.Sprintf("worker %d", i))
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f = append(f, p)
	}
	for _, p := range f {
		for _, fields := range open {
			if _, err := p.ask(s.ctx, "main", doOpen, fields); err != nil {
				return nil, errors.Join(fmt.Errorf("open %s: %w", fields["contender"], err), f.close())
			}
		}
	}
	return f, nil
}

func (f fleet) close() error {
	errs := make([]error, 0, len(f))
	for _, p := range f {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// opens is the request that opens a contender in a worker, under the contender's name.
func (s *suite) opens(c contender, lease time.Duration) peer.Fields {
	fields := peer.Fields{"registry": c.name, "contender": c.name, "addr": s.addr}
	if lease != 0 {
		fields["lease"] = peer.InMillis(lease)
	}
	return fields
}

// opensAll are the requests that open some contenders.
func (s *suite) opensAll(of []contender, lease time.Duration) []peer.Fields {
	requests := make([]peer.Fields, 0, len(of))
	for _, c := range of {
		requests = append(requests, s.opens(c, lease))
	}
	return requests
}
