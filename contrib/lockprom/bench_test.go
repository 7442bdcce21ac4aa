package lockprom_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockprom"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

func BenchmarkEvents(b *testing.B) {
	o, subject := lockprom.New().Observer(), observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		o.Acquired(ctx, observe.Acquired{Subject: subject, Op: "lock", How: observe.HowFree, Redis: time.Millisecond})
		o.Released(ctx, observe.Released{Subject: subject, Held: time.Second})
	}
}

// BenchmarkLock is a lock and unlock of free paths on a real server, by some goroutines with a path each. A registry with
// metrics and one without take turns of some milliseconds, so that whatever else the machine does concerns both. It reports the
// medians, and that of the turns' ratios.
func BenchmarkLock(b *testing.B) {
	server := redistest.Start(b)
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			registry := func(opts ...lockregistry.Option) *lockregistry.Registry {
				r, err := lockregistry.Open(b.Context(), "redis://"+server.Addr(), "bench", opts...)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = r.Close() })
				return r
			}
			metrics := lockprom.New()
			without, with := registry(), registry(lockregistry.WithObserver(metrics.Observer()))
			defer metrics.Watch("bench", with.Stats)()
			var figures [3][]float64 // without, with, ratio
			for b.Loop() {
				before, observed, after := sections(b, without, goroutines), sections(b, with, goroutines), sections(b, without, goroutines)
				alone := (before + after) / 2
				for i, f := range []float64{alone, observed, observed / alone} {
					figures[i] = append(figures[i], f)
				}
			}
			for i, unit := range []string{"without-ns/lock", "with-ns/lock", "ratio"} {
				slices.Sort(figures[i])
				b.ReportMetric(figures[i][len(figures[i])/2], unit)
			}
		})
	}
}

// sections locks and unlocks for a while, and returns how many nanoseconds one took.
func sections(b *testing.B, locks *lockregistry.Registry, goroutines int) float64 {
	b.Helper()
	const all = 512
	var workers sync.WaitGroup
	begun := time.Now()
	for g := range goroutines {
		workers.Go(func() {
			lock, ctx := locks.Obtain(strconv.Itoa(g)), context.Background()
			for range all / goroutines {
				if err := lock.Lock(ctx); err != nil {
					b.Error(err)
					return
				}
				if err := lock.Unlock(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return float64(time.Since(begun).Nanoseconds()) / all
}
