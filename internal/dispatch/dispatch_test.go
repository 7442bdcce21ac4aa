package dispatch

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pages is a handler that notes lines, after it has done what a test wants done for them.
type pages struct {
	enabled func()
	handle  func(line string)
	lines   []string // for the goroutine of the queue, and for a test once that is idle or blocked
}

func (p *pages) Enabled(context.Context, slog.Level) bool {
	if p.enabled != nil {
		p.enabled()
	}
	return true
}

func (p *pages) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	if p.handle != nil {
		p.handle(line)
	}
	p.lines = append(p.lines, line)
	return nil
}

func (p *pages) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *pages) WithGroup(string) slog.Handler      { return p }

func TestQueue_WritesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{}
		q := &Queue{Handler: p}
		var want []string
		for i := range 10 {
			q.Log(slog.LevelInfo, "line", slog.Int("n", i))
			want = append(want, "line n="+strconv.Itoa(i))
		}
		synctest.Wait()
		require.Equal(t, want, p.lines)
		require.Nil(t, q.idle, "the goroutine has ended")
		q.Log(slog.LevelInfo, "one more")
		synctest.Wait()
		require.Equal(t, append(want, "one more"), p.lines)
		require.Nil(t, q.idle)
	})
}

// A handler that blocks, even in Enabled, blocks no caller that logs. The count of the lines that it misses comes after the
// lines before them, and before the later ones.
func TestQueue_CountsWhatItDrops(t *testing.T) {
	for _, where := range []string{"Handle", "Enabled"} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			wait := func() { <-release }
			p := &pages{enabled: wait}
			if where == "Handle" {
				p = &pages{handle: func(string) { wait() }}
			}
			q := &Queue{Handler: p}
			q.Log(slog.LevelInfo, "blocks")
			synctest.Wait()
			const lost = 7
			for range backlog + lost {
				q.Log(slog.LevelInfo, "waits")
			}
			release <- struct{}{}
			synctest.Wait()
			q.Log(slog.LevelInfo, "later")
			close(release)
			synctest.Wait()
			require.Len(t, p.lines, 1+backlog+1+1, where)
			require.Equal(t, "blocks", p.lines[0], where)
			require.Equal(t, "waits", p.lines[backlog], where)
			require.Equal(t, []string{"log lines dropped: the handler did not keep up lines=7", "later"}, p.lines[backlog+1:], where)
		})
	}
}

// A call that panics, or ends its goroutine, loses no later line.
func TestQueue_OutlivesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{handle: func(line string) {
			switch line {
			case "panics":
				panic("a fault of the user's")
			case "exits":
				runtime.Goexit()
			}
		}}
		q := &Queue{Handler: p}
		for _, line := range []string{"first", "panics", "second", "exits", "third", "panics"} {
			q.Log(slog.LevelInfo, line)
		}
		synctest.Wait()
		require.Equal(t, []string{"first", "second", "third"}, p.lines)
		require.Nil(t, q.idle)
	})
}

func TestQueue_Flush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{handle: func(string) { <-time.After(30 * time.Millisecond) }}
		q := &Queue{Handler: p}
		took := func() time.Duration {
			start := time.Now()
			q.Flush()
			return time.Since(start)
		}
		require.Zero(t, took(), "nothing to wait for")
		q.Log(slog.LevelInfo, "one")
		q.Log(slog.LevelInfo, "two")
		require.Equal(t, 60*time.Millisecond, took())
		require.Equal(t, []string{"one", "two"}, p.lines)
		for range 10 {
			q.Log(slog.LevelInfo, "slow")
		}
		require.Equal(t, grace, took(), "no longer than this")
		<-time.After(time.Second)
		synctest.Wait()
		require.Len(t, p.lines, 12)
	})
}

// A line keeps the place that it was logged from, for handlers with AddSource.
func TestQueue_KnowsTheSource(t *testing.T) {
	var line slog.Record
	q := &Queue{Handler: recorder{func(r slog.Record) { line = r }}}
	q.Log(slog.LevelInfo, "here")
	q.Flush()
	frame, _ := runtime.CallersFrames([]uintptr{line.PC}).Next()
	require.Contains(t, frame.Function, "TestQueue_KnowsTheSource")
}

type recorder struct{ record func(r slog.Record) }

func (recorder) Enabled(context.Context, slog.Level) bool { return true }
func (h recorder) Handle(_ context.Context, r slog.Record) error {
	h.record(r)
	return nil
}
func (h recorder) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h recorder) WithGroup(string) slog.Handler      { return h }

func TestQueue_WithoutHandlerCostsNothing(t *testing.T) {
	q := &Queue{}
	key, failure := "orders:"+strconv.Itoa(int(time.Now().UnixNano())), context.Canceled
	require.Zero(t, testing.AllocsPerRun(100, func() {
		q.Log(slog.LevelWarn, "lock lost", slog.String("key", key), slog.Any("error", failure))
	}))
	require.Nil(t, q.idle)
}
