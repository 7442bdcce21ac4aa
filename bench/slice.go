package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// slice is a contender's turn in a round: some goroutines lock and unlock for some time.
type slice struct {
	goroutines int
	length     time.Duration
	paths      []string
	// pick chooses the index of the path for a goroutine's n-th lock.
	pick func(goroutine, n int) int
	// settled is true when a goroutine stays with one path, so that it keeps one session.
	settled bool
	// contended is true when goroutines wait for each other.
	contended bool
	timed     bool          // each lock and unlock is timed
	impatient time.Duration // every tenth call to lock gives up after this time; 0: none does
}

// turn is the result of a slice.
type turn struct {
	ops     float64
	elapsed time.Duration
	mallocs float64 // for each lock and unlock
	bytes   float64 // for each lock and unlock
	load    serverLoad
	asleep  bool    // a goroutine still waited long after the end, although no new calls came
	fewest  float64 // the fewest turns of a goroutine, as a fraction of an even share
	took    []float64
}

// drainLimit is ample for the last waiters to get their turn once no new ones come, if a release wakes one of them. Then those
// that still wait are told to give up.
const drainLimit = time.Second

// perOp is the wall-clock time for each lock and unlock, in nanoseconds.
func (t turn) perOp() float64 { return float64(t.elapsed.Nanoseconds()) / t.ops }

// counter keeps a goroutine's count on a cache line of its own.
type counter struct {
	n    atomic.Int64
	took []float64 // see slice.timed
	_    [32]byte
}

var (
	errTogether = errors.New("two holders were inside one path at once")
	errNothing  = errors.New("nothing was locked")
)

func (s slice) run(ctx context.Context, ls locks, o observer) (turn, error) {
	keep := context.WithoutCancel(ctx) // a goroutine that has the lock releases it, even if it must give up
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		stop   atomic.Bool
		start  = make(chan struct{})
		ready  sync.WaitGroup
		done   sync.WaitGroup
		inside = make([]atomic.Int32, len(s.paths))
		counts = make([]counter, s.goroutines)
		errs   = make(chan error, s.goroutines)
	)
	loop := func(g int) error {
		path := s.pick(g, 0)
		held, other := ls.session(s.paths[path]), ls.session(s.paths[path]+"/impatient")
		if s.timed {
			counts[g].took = make([]float64, 0, 1<<12)
		}
		ready.Done()
		<-start
		for n := 1; !stop.Load(); n++ {
			if s.impatient > 0 && n%10 == 0 {
				s.giveUp(ctx, other)
				continue
			}
			called := time.Now()
			if err := held.lock(ctx); err != nil {
				if stop.Load() && ctx.Err() != nil {
					return nil //nolint:nilerr // the slice is over
				}
				return fmt.Errorf("lock: %w", err)
			}
			if inside[path].Add(1) != 1 {
				return errTogether
			}
			inside[path].Add(-1)
			end := ctx
			if stop.Load() {
				end = keep
			}
			if err := held.unlock(end); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
			counts[g].n.Add(1)
			if s.timed {
				counts[g].took = append(counts[g].took, float64(time.Since(called)))
			}
			if !s.settled {
				path = s.pick(g, n)
				held = ls.session(s.paths[path])
			}
		}
		return nil
	}
	ready.Add(s.goroutines)
	for g := range s.goroutines {
		done.Go(func() {
			if err := loop(g); err != nil {
				errs <- err
				stop.Store(true)
			}
		})
	}
	ready.Wait()
	runtime.GC() // so that the previous contender's garbage costs this one nothing

	var before, after runtime.MemStats
	loadBefore, err := o.load(ctx)
	if err != nil {
		stop.Store(true)
		close(start)
		return turn{}, err
	}
	runtime.ReadMemStats(&before)
	began := time.Now()
	close(start)
	time.Sleep(s.length)
	stop.Store(true)
	// A goroutine that waits for nobody ends its last lock and unlock at once, and these count. One that waits for others
	// continues for a while, with ever fewer competitors; that part does not count.
	if !s.contended {
		done.Wait()
	}
	t := turn{elapsed: time.Since(began)}
	least := counts[0].n.Load()
	for g := range counts {
		n := counts[g].n.Load()
		t.ops += float64(n)
		least = min(least, n)
		t.took = append(t.took, counts[g].took...)
	}
	runtime.ReadMemStats(&after)
	loadAfter, err := o.load(ctx)
	gone := make(chan struct{})
	go func() {
		done.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(drainLimit):
		t.asleep = true
		giveUp()
		select {
		case <-gone:
		case <-time.After(drainLimit): // it does not even give up: leave it behind
		}
	}
	select {
	case failed := <-errs:
		return turn{}, failed
	default:
	}
	if err != nil {
		return turn{}, err
	}
	if t.ops == 0 {
		return turn{}, fmt.Errorf("%w within %v", errNothing, s.length)
	}
	t.fewest = float64(least) * float64(s.goroutines) / t.ops
	t.mallocs = float64(after.Mallocs-before.Mallocs) / t.ops
	t.bytes = float64(after.TotalAlloc-before.TotalAlloc) / t.ops
	t.load = o.between(loadBefore, loadAfter)
	return t, nil
}

// giveUp makes a call to lock that soon gives up. The call does not count.
func (s slice) giveUp(ctx context.Context, of session) {
	soon, cancel := context.WithTimeout(ctx, s.impatient)
	defer cancel()
	if of.lock(soon) == nil {
		_ = of.unlock(ctx)
	}
}
