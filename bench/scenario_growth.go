package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// growth is how throughput changes with a size: a chart has a line for each contender. Results are named growth-NAME-SIZE.
type growth struct {
	name            string
	thorough, quick []float64
	measure         func(s *suite, sizes []float64) ([]*result, error)
}

const (
	growthPrefix     = "growth-"
	growthGoroutines = 64
)

var growths = []growth{
	{"paths", []float64{1, 10, 100, 1000, 10_000}, []float64{1, 10_000}, (*suite).growPaths},
	{"waiters", []float64{1, 4, 16, 64, 256}, []float64{256}, (*suite).growWaiters},
	{"processes", []float64{2, 4, 8, 16, 32, 64}, []float64{2, 8}, (*suite).growProcesses},
	{"trip", []float64{0.1, 0.5, 1, 5, 20, 50}, []float64{0.1, 5}, (*suite).growTrip},
	{"nodes", []float64{1, 3, 6}, []float64{3}, (*suite).growNodes},
}

// scenario returns the growth as a scenario. The first two growths belong to a quick run.
func (g growth) scenario() scenario {
	return scenario{name: growthPrefix + g.name, slow: g.name != "paths" && g.name != "waiters", run: func(s *suite) ([]*result, error) {
		return g.measure(s, either(s, g.thorough, g.quick))
	}}
}

var throughput = metric{name: "throughput", unit: perSecond, higher: true, compared: true}

// each measures every size, and names the results.
func (s *suite) each(name string, sizes []float64, title string, measure func(size float64) (*result, error)) (results []*result, err error) {
	for _, size := range sizes {
		r, err := measure(size)
		if err != nil {
			return results, err
		}
		text := strconv.FormatFloat(size, 'f', -1, 64)
		r.scenario, r.metrics = fmt.Sprintf("%s%s-%s", growthPrefix, name, text), []metric{throughput}
		if size >= 1 {
			text = digits(size)
			if size == float64(int64(size)) {
				text = grouped(int64(size))
			}
		}
		r.title = fmt.Sprintf(title, text)
		results = append(results, r)
	}
	return results, nil
}

// growPaths has goroutines of one process lock ever more paths.
func (s *suite) growPaths(sizes []float64) ([]*result, error) {
	return s.each("paths", sizes, "64 goroutines, each lock on one of %s paths", func(size float64) (*result, error) {
		n := int(size)
		return s.grow(slice{
			goroutines: growthGoroutines, paths: pathNames(n), contended: true,
			pick: func(int, int) int { return rand.IntN(n) },
		}, opening{queues: true})
	})
}

// growWaiters lets ever more goroutines of one process lock one path.
func (s *suite) growWaiters(sizes []float64) ([]*result, error) {
	return s.each("waiters", sizes, "%s goroutines on one path", func(size float64) (*result, error) {
		return s.grow(slice{
			goroutines: int(size), paths: pathNames(1), settled: true, contended: true,
			pick: func(int, int) int { return 0 },
		}, opening{queues: true})
	})
}

// pathEach is a slice in which each goroutine has a path of its own.
func pathEach() slice {
	return slice{
		goroutines: growthGoroutines, paths: pathNames(growthGoroutines), settled: true,
		pick: func(goroutine, _ int) int { return goroutine },
	}
}

// growTrip moves the server ever further away: sizes are milliseconds of a round trip.
func (s *suite) growTrip(sizes []float64) ([]*result, error) {
	return s.each("trip", sizes, "64 goroutines, a path each, round trips of %s ms", func(size float64) (*result, error) {
		trip := time.Duration(size * float64(time.Millisecond))
		sl := pathEach()
		sl.length = 10 * trip
		return s.grow(sl, opening{away: trip})
	})
}

// growNodes measures clusters of ever more masters.
func (s *suite) growNodes(sizes []float64) ([]*result, error) {
	return s.each("nodes", sizes, "64 goroutines, a path each, a cluster of %s masters", func(size float64) (*result, error) {
		nodes, err := redistest.RunCluster(s.binary, int(size))
		if err != nil {
			return nil, err
		}
		defer func() {
			for _, node := range nodes {
				node.Stop()
			}
		}()
		there := *s
		there.addr = nodes[0].Addr()
		return there.grow(pathEach(), opening{cluster: true})
	})
}

// growProcesses has a goroutine in each of ever more processes lock one path. It counts how often the lock went from one to
// another.
func (s *suite) growProcesses(sizes []float64) ([]*result, error) {
	var takePart []contender
	for _, c := range contenders {
		if !c.contended {
			takePart = append(takePart, c)
		}
	}
	workers, err := s.fleet(int(sizes[len(sizes)-1]), s.opensAll(takePart, 0)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	rounds, length := either(s, 3, 1), either(s, time.Second, 250*time.Millisecond)
	return s.each("processes", sizes, "%s processes, one path", func(size float64) (*result, error) {
		r := &result{how: fmt.Sprintf("A goroutine in each process; the sections before which another process had the lock, since a contender that "+
			"keeps the lock in one process needs no handoff. %d rounds of %v for each contender, in shuffled order.", rounds, length)}
		err := turns(s, rounds, takePart, func(round int, c contender) error {
			path := fmt.Sprintf("growth-%v-%d", size, round)
			values, err := s.compete(workers[:int(size)], contention{registry: c.name, path: path, goroutines: 1}, length)
			if err != nil && c.role == rival && s.ctx.Err() == nil {
				r.notes = append(r.notes, fmt.Sprintf("%s failed in a round, which does not count: %v", c.name, err))
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.record(c, map[string]float64{throughput.name: values[sectionRate.name] * values[passedOn.name]})
			return nil
		})
		r.inOrder()
		return r, err
	})
}

func (s *suite) grow(sl slice, o opening) (*result, error) {
	sl.length = max(sl.length, either(s, 100*time.Millisecond, 60*time.Millisecond))
	r, err := s.slices(sl, either(s, 3, 1), o, func(c contender) bool { return !c.contended })
	if err != nil {
		return nil, err
	}
	for _, row := range r.rows {
		for _, ns := range row.values[timePerOp.name] {
			row.values[throughput.name] = append(row.values[throughput.name], 1e9/ns)
		}
	}
	return r, nil
}

// goRedis is a client of go-redis, with default options.
func (o opening) goRedis() redis.UniversalClient {
	if o.cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{o.addr}})
	}
	options := &redis.Options{Addr: o.addr}
	if o.away != 0 {
		distance := redistest.NewDistance(o.away)
		options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			return distance.Dial(ctx, func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			})
		}
	}
	return redis.NewClient(options)
}

// writeSome draws the charts of what ran, and puts its figures into the tables and pages of the repository at root. It is for
// runs of only such scenarios as have charts, or a part of a page, of their own.
func writeSome(root string, results []*result) error {
	if _, err := draw(filepath.Join(root, "docs", "performance"), results); err != nil {
		return err
	}
	if err := writePermits(root, results); err != nil {
		return err
	}
	figures := grid{}
	for _, r := range results {
		figures = append(figures, melted(r.scenario, r.table())...)
	}
	dir := filepath.Join(root, "bench", "results")
	return errors.Join(
		mergeTable(filepath.Join(dir, "figures.csv"), figuresTable()[0], figures),
		mergeTable(filepath.Join(dir, "scenarios.csv"), scenariosTable(nil)[0], scenariosTable(results)[1:]))
}

// mergeTable puts lines into a table, in place of those with the same first cells.
func mergeTable(name string, head []string, lines grid) error {
	all, err := readTable(name)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(old []string) bool {
		return slices.ContainsFunc(lines, func(line []string) bool { return line[0] == old[0] })
	})
	return slices.Concat(grid{head}, all, lines).csv(name)
}
