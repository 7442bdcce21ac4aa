package bench_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// BenchmarkReadersOfOnePath compares sixteen readers of one process on one path, in turns, with sixteen that each take a hold
// in Redis, with the bare scripts. The metric "gain" is the library's throughput divided by theirs.
func BenchmarkReadersOfOnePath(b *testing.B) {
	const goroutines, turn = 16, 10_000
	client := benchClient(b)
	reader := benchRegistry(b, client).ReadWrite("42").Reader()
	ctx := context.Background()
	var bare []func()
	for i := range goroutines {
		bare = append(bare, bareReader(b, client, "42", "reader:"+strconv.Itoa(i)))
	}
	lock := func(int) {
		if err := reader.Lock(ctx); err != nil {
			b.Error(err)
		}
		if err := reader.Unlock(ctx); err != nil {
			b.Error(err)
		}
	}
	var each, shared float64
	turns := max(b.N/turn, 1)
	b.ResetTimer()
	for range turns {
		each += allTogether(goroutines, turn, func(i int) { bare[i]() })
		shared += allTogether(goroutines, turn, lock)
	}
	b.StopTimer()
	ops := float64(turns * turn)
	b.ReportMetric(shared/ops, "ns/lock")
	b.ReportMetric(each/ops, "ns/each")
	b.ReportMetric(each/shared, "gain")
	b.ReportMetric(0, "ns/op")
	require.False(b, reader.IsHeld())
}

// The floor that reading is measured against: two scripts through the same client that do the same work in Redis, for a lock
// that nobody holds and nobody else wants.
var (
	bareReadObtain = rueidis.NewLuaScript(`
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'write' then return redis.call('PTTL', KEYS[1]) end
local left = 0
if mode then left = redis.call('PTTL', KEYS[1]) end
if not mode and redis.call('EXISTS', KEYS[1]) == 1 then return -3 end
redis.call('HMSET', KEYS[1], 'mode', 'read', ARGV[1], '1')
redis.call('SET', ARGV[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:1', '1', 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
return nil`)
	bareReadRelease = rueidis.NewLuaScript(`
redis.call('DEL', ARGV[4] .. ':' .. ARGV[1] .. ':rwlock_timeout:1')
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
local fields, longest = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #fields, 2 do
  local lease = fields[i] ~= 'mode' and redis.call('PTTL', ARGV[4] .. ':' .. fields[i] .. ':rwlock_timeout:1')
  longest = math.max(longest, lease or 0)
end
if longest > 0 then redis.call('PEXPIRE', KEYS[1], longest) return 1 end
redis.call('DEL', KEYS[1])
return 1 + redis.call('PUBLISH', ARGV[3], '0')`)
)

// bareReader locks and unlocks for one reader with the bare scripts.
func bareReader(b *testing.B, client rueidis.Client, path, field string) func() {
	b.Helper()
	ctx := context.Background()
	name := "bare:" + path
	key, tag := []string{name}, "{"+name+"}"
	obtain := []string{field, "60000", tag, ""}
	release := []string{field, "PUBLISH", "redisson_rwlock:" + tag, tag}
	return func() {
		if err := bareReadObtain.Exec(ctx, client, key, obtain).Error(); !rueidis.IsRedisNil(err) {
			b.Error("not granted:", err)
		}
		if n, err := bareReadRelease.Exec(ctx, client, key, release).AsInt64(); n < 1 {
			b.Error("not released:", n, err)
		}
	}
}

// allTogether has goroutines do something count times in all and returns how long that took.
func allTogether(goroutines, count int, each func(i int)) (nanoseconds float64) {
	start := nanotime()
	var next atomic.Int64
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for next.Add(1) <= int64(count) {
				each(i)
			}
		})
	}
	all.Wait()
	return float64(nanotime() - start)
}

// BenchmarkReadUncontended compares a read lock and unlock that nobody else wants with two bare script calls, in turns on the
// same connection. The metric "ratio" is the library's time divided by the floor's.
func BenchmarkReadUncontended(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(strconv.Itoa(goroutines)+"-goroutines", func(b *testing.B) {
			client := benchClient(b)
			r := benchRegistry(b, client)
			ctx := context.Background()
			const turn = 200
			var bare, lock []func()
			for i := range goroutines {
				path := strconv.Itoa(i)
				bare = append(bare, bareReader(b, client, path, kit.ClientID(r)+":"+path))
				reader := r.ReadWrite(path).Reader()
				lock = append(lock, func() {
					if err := reader.Lock(ctx); err != nil {
						b.Error(err)
					}
					if err := reader.Unlock(ctx); err != nil {
						b.Error(err)
					}
				})
			}
			run := func(what []func()) float64 {
				return allTogether(goroutines, turn, func(i int) { what[i]() })
			}
			run(bare)
			run(lock)
			var floor, library float64
			b.ResetTimer()
			for range max(b.N/turn, 1) {
				floor += run(bare)
				library += run(lock)
			}
			b.StopTimer()
			ops := float64(max(b.N/turn, 1) * turn)
			b.ReportMetric(library/ops, "ns/lock")
			b.ReportMetric(floor/ops, "ns/bare")
			b.ReportMetric(library/floor, "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
