package bench_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The floor that locks are measured against: two scripts through the same client. One sets a key if it is not there, the other
// removes it if it has the right value.
var (
	bareObtain = rueidis.NewLuaScript(`
local v = redis.call('GET', KEYS[1])
if v == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
if not v then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end
return 0`)
	bareRelease = rueidis.NewLuaScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('UNLINK', KEYS[1]) end
return 0`)
)

func benchClient(b *testing.B) rueidis.Client {
	b.Helper()
	server := redistest.Start(b)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true})
	require.NoError(b, err)
	b.Cleanup(client.Close)
	return client
}

func benchRegistry(b *testing.B, client rueidis.Client, opts ...lockregistry.Option) *lockregistry.Registry {
	b.Helper()
	r, err := lockregistry.New(client, "bench", opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, r.Close()) })
	return r
}

// BenchmarkUncontended compares a lock and unlock that nobody else wants with two bare script calls, in turns on the same
// connection, so that the noise of the machine affects both. The metric "ratio" is the median, over the turns, of the library's
// time divided by the floor's.
func BenchmarkUncontended(b *testing.B) {
	for _, goroutines := range []int{1, 64, 512} {
		b.Run(strconv.Itoa(goroutines)+"-goroutines", func(b *testing.B) {
			client := benchClient(b)
			r := benchRegistry(b, client)
			ctx := context.Background()
			each := max(200/goroutines, 20) // for each goroutine in a turn, so that starting them costs little
			turn := each * goroutines
			run := func(once func(i int)) (nanoseconds float64) {
				start := nanotime()
				var all sync.WaitGroup
				for i := range goroutines {
					all.Go(func() {
						for range each {
							once(i)
						}
					})
				}
				all.Wait()
				return float64(nanotime() - start)
			}
			bare := func(i int) {
				key := []string{"bare:" + strconv.Itoa(i)}
				if n, err := bareObtain.Exec(ctx, client, key, []string{"id", "60000"}).AsInt64(); n != 1 {
					b.Error(n, err)
				}
				if n, err := bareRelease.Exec(ctx, client, key, []string{"id"}).AsInt64(); n != 1 {
					b.Error(n, err)
				}
			}
			locks := make([]*lockregistry.Lock, goroutines)
			for i := range locks {
				locks[i] = r.Obtain(strconv.Itoa(i))
			}
			lock := func(i int) {
				if err := locks[i].Lock(ctx); err != nil {
					b.Error(err)
				}
				if err := locks[i].Unlock(ctx); err != nil {
					b.Error(err)
				}
			}
			run(bare)
			run(lock)
			turns := max(b.N/turn, 3)
			floor, library, ratio := make([]float64, 0, turns), make([]float64, 0, turns), make([]float64, 0, turns)
			b.ResetTimer()
			for range turns {
				f, l := run(bare), run(lock)
				floor, library, ratio = append(floor, f), append(library, l), append(ratio, l/f)
			}
			b.StopTimer()
			median := func(of []float64) float64 {
				slices.Sort(of)
				return of[len(of)/2]
			}
			b.ReportMetric(median(library)/float64(turn), "ns/lock")
			b.ReportMetric(median(floor)/float64(turn), "ns/bare")
			b.ReportMetric(median(ratio), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkLockUnlock is for profiles and allocations.
func BenchmarkLockUnlock(b *testing.B) {
	r := benchRegistry(b, benchClient(b))
	l := r.Obtain("42")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Lock(ctx); err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkObtain measures Obtain for a path that the registry keeps, from 1 and from 64 goroutines. In both cases ns/op is per
// call, as seen by the whole process.
func BenchmarkObtain(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		for _, paths := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%d-goroutines/%d-paths", goroutines, paths), func(b *testing.B) {
				r := benchRegistry(b, kit.UnusedClient(b))
				names := make([]string, paths)
				for i := range names {
					names[i] = "path-" + strconv.Itoa(i)
					r.Obtain(names[i])
				}
				b.ReportAllocs()
				b.ResetTimer()
				var all sync.WaitGroup
				for g := range goroutines {
					all.Go(func() {
						for i := range b.N / goroutines {
							r.Obtain(names[(g*31+i)%paths])
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// BenchmarkCachedLocks measures the memory of a million unused cached locks: bytes per lock beyond its path.
func BenchmarkCachedLocks(b *testing.B) {
	const locks = 1_000_000
	for range b.N {
		r := kit.Capped(benchRegistry(b, kit.UnusedClient(b)), locks)
		names := make([]string, locks)
		for i := range names {
			names[i] = fmt.Sprintf("path-%010d", i)
		}
		before := heap()
		for _, name := range names {
			r.Obtain(name)
		}
		bytes := float64(heap()-before) / locks
		require.Equal(b, locks, kit.CachedLocks(r))
		b.ReportMetric(bytes, "B/lock")
		b.ReportMetric(bytes-float64(len("bench:"+names[0])), "B/lock-beyond-key")
		runtime.KeepAlive(names)
	}
}

// BenchmarkHeldLocks measures the memory and the goroutines of 20 000 held locks with renewal.
func BenchmarkHeldLocks(b *testing.B) {
	const locks = 20_000
	client := benchClient(b)
	for range b.N {
		r := benchRegistry(b, client, lockregistry.WithRenewal())
		names := make([]string, locks)
		for i := range names {
			names[i] = fmt.Sprintf("path-%010d", i)
		}
		ctx := context.Background()
		goroutines := runtime.NumGoroutine()
		before := heap()
		var next atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for i := next.Add(1) - 1; i < locks; i = next.Add(1) - 1 {
					if err := r.Obtain(names[i]).Lock(ctx); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(heap()-before)/locks, "B/lock")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		require.NoError(b, r.Close())
		require.NoError(b, client.Do(ctx, client.B().Flushall().Build()).Error())
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

var benchStart = time.Now()

func nanotime() int64 { return int64(time.Since(benchStart)) }

// BenchmarkOnePath has 64 goroutines of one process want one path.
func BenchmarkOnePath(b *testing.B) {
	l := benchRegistry(b, benchClient(b)).Obtain("42")
	ctx := context.Background()
	inside := 0 // the lock guards it
	var next atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range 64 {
		all.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := l.Lock(ctx); err != nil {
					b.Error(err)
				}
				inside++
				if err := l.Unlock(ctx); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(b, b.N, inside)
}

// instantClient answers at once that a lock was taken or released. Only other commands reach the server.
type instantClient struct {
	rueidis.Client
	taken, released rueidis.RedisResult
}

func newInstantClient(b *testing.B) rueidis.Client {
	b.Helper()
	c := benchClient(b)
	return &instantClient{
		Client:   c,
		taken:    c.Do(b.Context(), c.B().Set().Key("key").Value("").Build()),
		released: c.Do(b.Context(), c.B().Del().Key("key").Build()),
	}
}

func (c *instantClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	runtime.Gosched() // as while it waits for the reply
	switch command.Commands()[0] {
	case "SET":
		return c.taken
	case "EVALSHA":
		return c.released
	default:
		return c.Client.Do(ctx, command)
	}
}

// BenchmarkOwnWork measures what a lock and unlock cost this process besides the client, with that many paths in use at once.
// Much of it comes from CPU caches that other work has used meanwhile.
func BenchmarkOwnWork(b *testing.B) {
	for _, paths := range []int{1, 512} {
		b.Run(strconv.Itoa(paths)+"-paths", func(b *testing.B) {
			r := benchRegistry(b, newInstantClient(b))
			ctx := b.Context()
			var all sync.WaitGroup
			b.ReportAllocs()
			for i := range paths {
				l := r.Obtain(strconv.Itoa(i))
				all.Go(func() {
					for range b.N / paths {
						if err := l.Lock(ctx); err != nil {
							b.Error(err)
						}
						if err := l.Unlock(ctx); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// BenchmarkAcquireRelease is for profiles and allocations, beside BenchmarkLockUnlock.
func BenchmarkAcquireRelease(b *testing.B) {
	l := benchRegistry(b, benchClient(b)).Obtain("42")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		h, err := l.Acquire(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRush has two registries whose goroutines want one path all the time, like two processes: almost every lock waits for
// the other registry's unlock. It is for profiles and allocations.
func BenchmarkRush(b *testing.B) {
	server := redistest.Start(b)
	var all sync.WaitGroup
	b.ReportAllocs()
	for range 2 {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true})
		require.NoError(b, err)
		b.Cleanup(client.Close)
		l := benchRegistry(b, client).Obtain("42")
		all.Go(func() {
			for range b.N / 2 {
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

// BenchmarkStats asks a registry that keeps ten thousand locks, all of them held, or none.
func BenchmarkStats(b *testing.B) {
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("held=%v", held), func(b *testing.B) {
			r, err := lockregistry.New(kit.UnusedClient(b), "orders")
			require.NoError(b, err)
			defer func() { _ = r.Close() }()
			for i := range 10_000 {
				if l := r.Obtain(strconv.Itoa(i)); held {
					require.NoError(b, l.Lock(b.Context()))
				}
			}
			b.ResetTimer()
			for b.Loop() {
				r.Stats()
			}
		})
	}
}
