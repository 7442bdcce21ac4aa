package main

import (
	"context"
	"fmt"
	"time"

	"github.com/bsm/redislock"

	"github.com/lockregistry/lockregistry"
)

const together = 3 // paths of one call

// several has each goroutine lock some paths of its own with one call. Only redislock among the peers has such a call.
func (s *suite) several() ([]*result, error) {
	var results []*result
	for _, goroutines := range []int{1, 64} {
		r, err := s.slices(slice{
			goroutines: goroutines,
			length:     40 * time.Millisecond,
			paths:      pathNames(goroutines),
			pick:       func(goroutine, _ int) int { return goroutine },
			settled:    true,
		}, either(s, 45, 12), opening{several: together}, func(c contender) bool { return c.several && !c.contended })
		if err != nil {
			return nil, err
		}
		r.scenario = fmt.Sprintf("several-%d", goroutines)
		r.title = fmt.Sprintf("Several paths at once: %d goroutines, %d paths each", goroutines, together)
		r.notes = append(r.notes, "rueidislock and redsync have no such call.")
		r.metrics = inOneProcess
		results = append(results, r)
	}
	return results, nil
}

// pathsBelow returns the paths of one call.
func pathsBelow(path string, n int) []string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("%s/%d", path, i)
	}
	return paths
}

// severalSession keeps its paths as a slice: both libraries take one.
type severalSession struct {
	registry *lockregistry.Registry
	paths    []string
	held     *lockregistry.Hold
}

func (s *severalSession) lock(ctx context.Context) (err error) {
	s.held, err = s.registry.AcquireAll(ctx, s.paths)
	return err
}

func (s *severalSession) unlock(ctx context.Context) error { return s.held.Release(ctx) }

// redislockSeveral is for paths that nobody else wants: it does not try again.
type redislockSeveral struct {
	l    redislockLocks
	keys []string
	hold *redislock.Lock
}

func (s *redislockSeveral) lock(ctx context.Context) (err error) {
	s.hold, err = s.l.locks.ObtainMulti(ctx, s.keys, s.l.lease, s.l.opts)
	return err
}

func (s *redislockSeveral) unlock(ctx context.Context) error { return s.hold.Release(ctx) }
