package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

var (
	cachedBytes   = metric{name: "bytes", unit: byteCount, compared: true}
	obtainFirst   = metric{name: "first Obtain", unit: nanoseconds, compared: true}
	obtainOne     = metric{name: "Obtain, 1 goroutine", unit: nanoseconds, compared: true}
	obtainMany    = metric{name: "Obtain, 64 goroutines", unit: nanoseconds, compared: true}
	obtainNewMany = metric{name: "first Obtain, 64 goroutines", unit: nanoseconds}
)

// lookup finds or makes the lock object of a path.
type lookup func(path string) any

// manyCached keeps very many lock objects and looks them up. It sends nothing to Redis.
func (s *suite) manyCached() ([]*result, error) {
	n := either(s, 1_000_000, 200_000)
	paths := pathNames(n)
	r := &result{
		scenario: "cached",
		title:    fmt.Sprintf("%s cached locks", grouped(int64(n))),
		how: fmt.Sprintf("Obtain of each of %s paths in turn, then of random ones. Bytes are those of the heap, for each lock, without its "+
			"path. Redis is not asked.", grouped(int64(n))),
		metrics: []metric{cachedBytes, obtainFirst, obtainOne, obtainMany, obtainNewMany},
		notes: []string{
			"The floor is a sync.Map of mutexes. redsync has no cache: its row makes a new mutex each time, and its bytes are those of " +
				"keeping them. rueidislock and redislock have no lock objects that could be kept.",
		},
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr}})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for _, c := range []struct {
		contender
		start func() (lookup, func(), error)
	}{
		{bareFloor, func() (lookup, func(), error) {
			var locks sync.Map
			return func(path string) any {
				if found, ok := locks.Load(path); ok {
					return found
				}
				found, _ := locks.LoadOrStore(path, &sync.Mutex{})
				return found
			}, func() { locks.Clear() }, nil
		}},
		{redsyncPeer, func() (lookup, func(), error) {
			ls := openRedsync(opening{addr: s.addr})
			return func(path string) any { return ls.redsync.NewMutex(path, redsync.WithTries(1)) }, ls.close, nil
		}},
		{thisLibrary, func() (lookup, func(), error) {
			registry, err := lockregistry.New(client, "lockregistry")
			if err != nil {
				return nil, nil, err
			}
			_ = registry.SetCapacity(n) // it is positive
			return func(path string) any { return registry.Obtain(path) }, func() { _ = registry.Close() }, nil
		}},
	} {
		for range either(s, 3, 1) {
			values, err := s.keepMany(c.start, paths)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r.record(c.contender, values)
		}
	}
	return []*result{r}, nil
}

func (s *suite) keepMany(start func() (lookup, func(), error), paths []string) (map[string]float64, error) {
	const goroutines = 64
	n := len(paths)
	values := map[string]float64{}
	many := func(pick func(g, i int) string, find lookup) float64 {
		var all sync.WaitGroup
		began := time.Now()
		for g := range goroutines {
			all.Go(func() {
				for i := range n / goroutines {
					if find(pick(g, i)) == nil {
						panic("no lock")
					}
				}
			})
		}
		all.Wait()
		return float64(time.Since(began).Nanoseconds()) / float64(n)
	}

	find, end, err := start()
	if err != nil {
		return nil, err
	}
	values[obtainNewMany.name] = many(func(g, i int) string { return paths[g*(n/goroutines)+i] }, find)
	end()

	if find, end, err = start(); err != nil {
		return nil, err
	}
	defer end()
	kept := make([]any, n)
	before, _ := footprint()
	began := time.Now()
	for i, path := range paths {
		kept[i] = find(path)
	}
	values[obtainFirst.name] = float64(time.Since(began).Nanoseconds()) / float64(n)
	after, _ := footprint()
	values[cachedBytes.name] = (after - before) / float64(n)

	began = time.Now()
	for range n {
		if find(paths[rand.IntN(n)]) == nil {
			panic("no lock")
		}
	}
	values[obtainOne.name] = float64(time.Since(began).Nanoseconds()) / float64(n)
	values[obtainMany.name] = many(func(int, int) string { return paths[rand.IntN(n)] }, find)
	runtime.KeepAlive(kept)
	return values, nil
}
