//go:build unix

package bench_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// processorTime returns the CPU time that this process has used so far, in seconds.
func processorTime() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// BenchmarkManyWaiters has 50 000 goroutines of one process wait for one path. The metric "%core" is the share of a core that
// they use in a second in which nothing happens, "ns/handoff" is the time of each handoff until all have had the lock, and
// "ns/cancel" that of each wait that is given up.
func BenchmarkManyWaiters(b *testing.B) {
	const waiters = 50_000
	plain := func(_ *lockregistry.ReadWriteLock, l *lockregistry.Lock, _ int) *lockregistry.Lock { return l }
	for name, c := range map[string]struct {
		pick  func(rw *lockregistry.ReadWriteLock, l *lockregistry.Lock, i int) *lockregistry.Lock
		owner func() context.Context
	}{
		"goroutines": {plain, context.Background},
		"owners":     {plain, func() context.Context { return lockregistry.ContextWithOwner(context.Background()) }},
		"writers": {func(rw *lockregistry.ReadWriteLock, _ *lockregistry.Lock, _ int) *lockregistry.Lock {
			return rw.Writer()
		}, context.Background},
		"readers behind a writer": {func(rw *lockregistry.ReadWriteLock, _ *lockregistry.Lock, i int) *lockregistry.Lock {
			if i == 0 {
				return rw.Writer()
			}
			return rw.Reader()
		}, context.Background},
	} {
		b.Run(name, func(b *testing.B) {
			r := benchRegistry(b, benchClient(b), lockregistry.WithHandoff(time.Hour), lockregistry.WithLease(time.Hour))
			rw, l := r.ReadWrite("42"), r.Obtain("43")
			held := c.pick(rw, l, 1)
			wait := func(ctx func() context.Context) (all *sync.WaitGroup) {
				all = &sync.WaitGroup{}
				for i := range waiters {
					mine, owner := c.pick(rw, l, i), ctx()
					all.Go(func() {
						if mine.Lock(owner) == nil {
							if err := mine.Unlock(owner); err != nil {
								b.Error(err)
							}
						}
					})
					if i == 0 {
						<-time.After(10 * time.Millisecond) // it is the first one
					}
				}
				<-time.After(time.Second) // all wait
				return all
			}
			require.NoError(b, held.Lock(b.Context()))
			var handing, cancelling, idle float64
			for range b.N {
				all := wait(c.owner)
				used := processorTime()
				<-time.After(time.Second)
				idle += processorTime() - used
				start := nanotime()
				require.NoError(b, held.Unlock(b.Context()))
				all.Wait()
				handing += float64(nanotime() - start)

				require.NoError(b, held.Lock(b.Context()))
				ctx, cancel := context.WithCancel(context.Background())
				all = wait(func() context.Context { return ctx })
				start = nanotime()
				cancel()
				all.Wait()
				cancelling += float64(nanotime() - start)
			}
			require.NoError(b, held.Unlock(b.Context()))
			b.ReportMetric(100*idle/float64(b.N), "%core")
			b.ReportMetric(handing/float64(b.N)/waiters, "ns/handoff")
			b.ReportMetric(cancelling/float64(b.N)/waiters, "ns/cancel")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkTakingTurns has two registries want the same path all the time, so that each waits for the other.
func BenchmarkTakingTurns(b *testing.B) {
	b.ReportAllocs()
	client := benchClient(b)
	registries := []*lockregistry.Registry{benchRegistry(b, client), benchRegistry(b, client)}
	b.ResetTimer()
	var all sync.WaitGroup
	for _, r := range registries {
		all.Go(func() {
			l := r.Obtain("42")
			for range b.N {
				if err := l.Lock(b.Context()); err != nil {
					b.Error(err)
				}
				if err := l.Unlock(b.Context()); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkSharingOwners has 50 000 owners share one hold on reading, each with a context, and measures how long one takes to
// join and leave.
func BenchmarkSharingOwners(b *testing.B) {
	const owners = 50_000
	reader := benchRegistry(b, benchClient(b), lockregistry.WithHandoff(time.Hour)).ReadWrite("42").Reader()
	var in, out float64
	for range b.N {
		var all [owners]context.Context
		start := nanotime()
		for i := range all {
			all[i] = lockregistry.ContextWithOwner(context.Background())
			require.NoError(b, reader.Lock(all[i]))
			require.NoError(b, reader.Context(all[i]).Err())
		}
		in += float64(nanotime() - start)
		start = nanotime()
		for _, owner := range all {
			require.NoError(b, reader.Unlock(owner))
		}
		out += float64(nanotime() - start)
	}
	b.ReportMetric(in/float64(b.N)/owners, "ns/in")
	b.ReportMetric(out/float64(b.N)/owners, "ns/out")
	b.ReportMetric(0, "ns/op")
}
