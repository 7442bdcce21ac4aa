package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

var (
	heldLocks         = metric{name: "locks", unit: count}
	bytesPerLock      = metric{name: "bytes", unit: byteCount, compared: true}
	goroutinesPerLock = metric{name: "goroutines", unit: count}
	renewalsLost      = metric{name: "lost", unit: count}
	renewalCPU        = metric{name: "client CPU of a renewal", unit: nanoseconds, compared: true}
	renewalServerCPU  = metric{name: "server CPU of a renewal", unit: nanoseconds, compared: true}
	renewals          = metric{name: "renewals", unit: perSecond}
	serverBytes       = metric{name: "bytes in Redis", unit: byteCount}
	connections       = metric{name: "connections", unit: count}
)

// renewer is a session whose lock the caller has to renew.
type renewer interface {
	renew(ctx context.Context) error
}

// manyHeld holds very many locks for longer than their lease.
func (s *suite) manyHeld() ([]*result, error) {
	many := either(s, 100_000, 20_000)
	few := many / 10
	lease := either(s, 6*time.Second, 1500*time.Millisecond)
	r := &result{
		scenario: "held",
		title:    fmt.Sprintf("%s locks held and renewed by one process", grouped(int64(many))),
		how: fmt.Sprintf("A lease of %v, held for %v. Bytes are those of heap and stacks in the process, counted before and after, "+
			"and so are goroutines; lost are the locks that were gone at unlock.", lease, heldFor(lease)),
		metrics: []metric{
			heldLocks, bytesPerLock, goroutinesPerLock, renewalsLost, renewals, renewalCPU, renewalServerCPU, serverBytes, connections,
		},
		notes: []string{
			fmt.Sprintf("rueidislock needs goroutines for each lock, and redsync and redislock, which do not renew by themselves, got "+
				"one each with a ticker of a third of the lease: they hold only %s locks.", grouped(int64(few))),
			"CPU is that of the time in which locks are only held, divided by the renewals of that time, as the server counted them. " +
				"Connections are those that one process has to the server.",
		},
	}
	for _, c := range contenders {
		if c.contended {
			continue
		}
		n := many
		if c.role == rival {
			n = few
		}
		values, err := s.holdMany(c, n, lease)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.record(c, values)
		if err := s.observer.flush(s.ctx); err != nil {
			return nil, err
		}
	}
	return []*result{r}, nil
}

func heldFor(lease time.Duration) time.Duration { return lease + lease/4 }

func (s *suite) holdMany(c contender, n int, lease time.Duration) (map[string]float64, error) {
	clientsBefore, err := s.observer.number(s.ctx, "clients", "connected_clients")
	if err != nil {
		return nil, err
	}
	ls, err := c.open(opening{addr: s.addr, lease: lease, renew: true, held: n})
	if err != nil {
		return nil, err
	}
	defer ls.close()
	const goroutines = 64
	paths := pathNames(n)
	held := make([]session, n)
	for i := range held {
		held[i] = ls.session(paths[i])
	}
	memory, routines := footprint()
	inRedis, err := s.observer.number(s.ctx, "memory", "used_memory")
	if err != nil {
		return nil, err
	}
	var (
		locked, done sync.WaitGroup
		let          = make(chan struct{})
		lost         atomic.Int64
		errs         = make(chan error, goroutines)
		ctx, cancel  = context.WithCancel(s.ctx)
	)
	defer cancel()
	locked.Add(goroutines)
	for g := range goroutines {
		done.Go(func() {
			var err error
			for i := g; i < n && err == nil; i += goroutines {
				if err = held[i].lock(ctx); err != nil {
					err = fmt.Errorf("lock %s: %w", paths[i], err)
				} else if r, ok := held[i].(renewer); ok {
					done.Go(func() { renewEvery(r, lease/3, let) })
				}
			}
			if err != nil {
				errs <- err
			}
			locked.Done()
			<-let
			for i := g; i < n && err == nil; i += goroutines {
				if held[i].unlock(ctx) != nil {
					lost.Add(1)
				}
			}
		})
	}
	locked.Wait()
	select {
	case err := <-errs:
		close(let)
		done.Wait()
		return nil, err
	default:
	}
	memoryNow, routinesNow := footprint()
	inRedisNow, err1 := s.observer.number(s.ctx, "memory", "used_memory")
	clientsNow, err2 := s.observer.number(s.ctx, "clients", "connected_clients")
	before, err3 := s.observer.load(s.ctx)
	var cpuBefore, cpuAfter unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &cpuBefore)
	began := time.Now()
	time.Sleep(heldFor(lease))
	_ = unix.Getrusage(unix.RUSAGE_SELF, &cpuAfter)
	elapsed := time.Since(began)
	after, err4 := s.observer.load(s.ctx)
	close(let)
	done.Wait()
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, err
		}
	}
	load := s.observer.between(before, after)
	renewed := load.calls["pexpire"] + load.calls["pexpireat"] // what every contender renews with
	return map[string]float64{
		heldLocks.name:         float64(n),
		bytesPerLock.name:      (memoryNow - memory) / float64(n),
		goroutinesPerLock.name: float64(routinesNow-routines-goroutines) / float64(n),
		renewalsLost.name:      float64(lost.Load()),
		renewals.name:          renewed / elapsed.Seconds(),
		renewalCPU.name:        float64((cpuTime(&cpuAfter) - cpuTime(&cpuBefore)).Nanoseconds()) / renewed,
		renewalServerCPU.name:  load.cpu * 1e9 / renewed,
		serverBytes.name:       (inRedisNow - inRedis) / float64(n),
		connections.name:       clientsNow - clientsBefore,
	}, nil
}

func renewEvery(r renewer, pause time.Duration, end <-chan struct{}) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = r.renew(context.Background()) // a failure shows at unlock
		case <-end:
			return
		}
	}
}

// footprint is the memory that this process uses, heap and stacks, and its goroutines.
func footprint() (bytes float64, goroutines int) {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept until now
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}
