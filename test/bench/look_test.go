package bench_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
)

// BenchmarkLocksAmongOthers lists two locks in a database with many other keys. It measures how soon the lock in a record is
// listed, and the one that only SCAN finds, and what share of a core the server spends on it.
func BenchmarkLocksAmongOthers(b *testing.B) {
	for _, others := range []int{100_000, 1_000_000} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			h := newHoard(b)
			const fill = "for i = ARGV[1], ARGV[1] + 9999 do redis.call('SET', 'other:' .. i, '1') end"
			for i := 0; i < others; i += 10_000 {
				h.do("EVAL", fill, "0", strconv.Itoa(i))
			}
			h.do("SET", "orders:java", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55")
			held, err := h.registry().Acquire(b.Context(), "42")
			require.NoError(b, err)
			for h.do("EXISTS", "orders:{registries}:registry") == "0" {
				<-time.After(10 * time.Millisecond)
			}
			viewer := h.registry()
			var first, all, busy time.Duration
			for b.Loop() {
				used, began := h.core(), time.Now()
				found := 0
				for _, err := range inspect.Of(viewer).Locks(b.Context()) {
					require.NoError(b, err)
					if found++; found == 1 {
						first += time.Since(began)
					}
				}
				all += time.Since(began)
				require.Equal(b, 2, found)
				busy += h.core() - used
			}
			b.ReportMetric(first.Seconds()/float64(b.N), "s/first")
			b.ReportMetric(all.Seconds()/float64(b.N), "s/all")
			b.ReportMetric(100*busy.Seconds()/all.Seconds(), "%core")
			require.NoError(b, held.Release(b.Context()))
		})
	}
}

// BenchmarkLocksOf lists the locks of one prefix, and of three that share a pass, among many other keys. It measures the
// server's CPU time.
func BenchmarkLocksOf(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			h := newHoard(b)
			const others, fill = 1_000_000, "for i = ARGV[1], ARGV[1] + 9999 do redis.call('SET', 'other:' .. i, '1') end"
			for i := 0; i < others; i += 10_000 {
				h.do("EVAL", fill, "0", strconv.Itoa(i))
			}
			var all []*inspect.Inspector
			for _, prefix := range []string{"orders", "stock", "mail"}[:n] {
				h.do("SET", prefix+":java", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55")
				one, err := inspect.New(h.client, prefix)
				require.NoError(b, err)
				all = append(all, one)
			}
			used := h.core()
			for b.Loop() {
				found := 0
				for _, err := range inspect.LocksOf(b.Context(), all...) {
					require.NoError(b, err)
					found++
				}
				require.Equal(b, n, found)
			}
			b.ReportMetric((h.core()-used).Seconds()/float64(b.N), "s-of-core/op")
		})
	}
}

// core returns how much CPU time the server has used.
func (h *hoard) core() (used time.Duration) {
	h.Helper()
	for line := range strings.Lines(h.do("INFO", "cpu")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(h, err)
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}
