package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// showProgress reports how far the job is until the returned function is called: on a terminal by refreshing one line,
// elsewhere by a line per second.
func showProgress(out io.Writer, j *job) (stop func()) {
	every, before, after := time.Second, "", "\n"
	if isTerminal(out) {
		every, before, after = 200*time.Millisecond, "\r\x1b[K", ""
	}
	quit := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		start := time.Now()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				if before != "" {
					fmt.Fprint(out, before)
				}
				took := time.Since(start)
				fmt.Fprintf(out, "%d updates in %.1f s, %.0f a second\n",
					j.done.Load(), took.Seconds(), float64(j.done.Load())/took.Seconds())
				return
			case <-ticker.C:
				done := j.done.Load()
				fmt.Fprintf(out, "%s%5.1f s  %3d %%  %d of %d updates%s",
					before, time.Since(start).Seconds(), done*100/int64(j.updates), done, j.updates, after)
			}
		}
	})
	return func() {
		close(quit)
		reporter.Wait()
	}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// printTable shows, for each path, what was done and what became of it.
func printTable(out io.Writer, j *job) {
	const row = "%-14s %13v %13s %13s %10v %13v\n"
	fmt.Fprintln(out)
	count := "acquisitions"
	if j.noLock {
		count = "updates"
	}
	fmt.Fprintf(out, row, "path", count, "longest wait", "median wait", "counter", "lost updates")
	var updates int
	var final int64
	var all []time.Duration
	for _, c := range j.counters {
		longest, median := j.waitTimes(c.waits)
		fmt.Fprintf(out, row, c.path, len(c.waits), longest, median, c.final, c.lost())
		updates += len(c.waits)
		final += c.final
		all = append(all, c.waits...)
	}
	longest, median := j.waitTimes(all)
	fmt.Fprintf(out, row, "all", updates, longest, median, final, j.lost())
	fmt.Fprintln(out)

	lost := j.lost()
	switch {
	case lost == 0 && !j.noLock:
		fmt.Fprintln(out, "No update was lost: nothing else used a counter between a read and its write.")
	case !j.noLock:
		fmt.Fprintf(out, "%d updates were lost although every one was made under a lock. That is a fault.\n", lost)
	case lost == 0:
		fmt.Fprintln(out, "No update was lost this time. That is luck: "+
			"nothing kept two goroutines from updating the same counter at once.")
	default:
		fmt.Fprintf(out, "%d of %d updates were lost: goroutines read the same value, and the last to write it back\n"+
			"wiped out the others. Run without -nolock: a lock per path prevents it.\n", lost, updates)
	}
}

// waitTimes gives the longest and the median wait for a lock as text. Without locks nobody waits.
func (j *job) waitTimes(waits []time.Duration) (longest, median string) {
	if j.noLock || len(waits) == 0 {
		return "-", "-"
	}
	sorted := slices.Sorted(slices.Values(waits))
	return milliseconds(sorted[len(sorted)-1]), milliseconds(sorted[len(sorted)/2])
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
