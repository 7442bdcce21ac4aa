package owner

import (
	"math"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A count stops the program for as long as it takes.
func BenchmarkGoroutineScan_Look(b *testing.B) {
	for _, goroutines := range []int{1_000, 10_000, 100_000} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			quit := make(chan struct{})
			var begun, done sync.WaitGroup
			begun.Add(goroutines)
			for range goroutines {
				done.Go(func() { waits(&begun, quit, 8) })
			}
			begun.Wait()
			var c GoroutineScan
			for b.Loop() {
				c.next = time.Time{}
				if living, _, looked := c.Look(math.MaxInt); !looked || len(living) < goroutines {
					b.Fatalf("%d goroutines, %v", len(living), looked)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(goroutines)*1000, "µs/1000")
			close(quit)
			done.Wait()
		})
	}
}

// waits has a stack of so many calls more.
func waits(begun *sync.WaitGroup, quit <-chan struct{}, calls int) {
	if calls > 0 {
		waits(begun, quit, calls-1)
		return
	}
	begun.Done()
	<-quit
}
