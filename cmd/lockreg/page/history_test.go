package page_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

// historyOf is what a browser that comes now is told of the time before.
func historyOf(t *testing.T, h *page.Handler) (samples [][]int64, text string) {
	t.Helper()
	b := look(t, h)
	synctest.Wait()
	text = b.read()
	_, data, _ := strings.Cut(text, "event: hello\ndata: ")
	data, _, _ = strings.Cut(data, "\n")
	var hello struct {
		History [][]int64 `json:"history"`
	}
	require.NoError(t, json.Unmarshal([]byte(data), &hello))
	b.close()
	return hello.History, text
}

// With a record the source is asked every ten seconds while nobody looks, once each time, and for deadlocks not at all.
func TestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &asked{fake: newFake()}
		source.set(someLock("a", 7))
		h := newPage(t, source, page.WithRecord())
		<-time.After(time.Hour)
		require.InDelta(t, 360, source.passes.Load(), 1)
		require.Zero(t, source.cycles.Load())
		require.Zero(t, source.probes.Load(), "nor whether it answers")

		samples, text := historyOf(t, h)
		require.InDelta(t, 360, len(samples), 1, "one for each look")
		for i := range samples[1:] {
			require.Equal(t, int64(10_000), samples[i+1][0]-samples[i][0])
			require.Equal(t, []int64{0, 1, 7}, samples[i][1:4])
		}
		require.Contains(t, text, `"path":"a"`)

		// Somebody who looks sees what is there now, at once, although the next look was seconds away.
		<-time.After(3 * time.Second)
		source.set(someLock("new", 0))
		b := look(t, h)
		synctest.Wait()
		require.Contains(t, b.read(), `"path":"new"`)
		before := source.passes.Load()
		<-time.After(time.Minute)
		require.InDelta(t, before+120, source.passes.Load(), 2)
		require.NotZero(t, source.cycles.Load())
		require.NotZero(t, source.probes.Load())

		// And when nobody does any more, it is every ten seconds again.
		b.close()
		<-time.After(time.Second)
		before, cycles, probes := source.passes.Load(), source.cycles.Load(), source.probes.Load()
		<-time.After(time.Minute)
		synctest.Wait()
		require.InDelta(t, before+6, source.passes.Load(), 1)
		require.Equal(t, cycles, source.cycles.Load())
		require.Equal(t, probes, source.probes.Load())
		h.Close()
		<-time.After(time.Minute)
		require.InDelta(t, before+6, source.passes.Load(), 1, "it ends with the page")
	})
}

// A deadlock that was there when somebody looked last is not told to those who come later.
func TestRecordTellsNoOldDeadlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.deadlocks = oneDeadlock
		h := newPage(t, source, page.WithRecord())
		b := look(t, h)
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.Contains(t, b.read(), "goroutine 1")
		b.close()
		source.do(func() { source.deadlocks = nil })
		<-time.After(time.Hour)
		_, text := historyOf(t, h)
		require.NotContains(t, text, "goroutine 1")
	})
}

// A long look is followed by a pause as long.
func TestRecordOfALongPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.rest = 20 * time.Second
		newPage(t, source, page.WithRecord())
		<-time.After(time.Hour)
		require.InDelta(t, 90, source.passes.Load(), 1)
	})
}

// Gaps say why nothing is known: nobody looked, or Redis could not be asked.
func TestGapsOfTheHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.set(someLock("a", 0))
		h := newPage(t, source)
		samples, _ := historyOf(t, h)
		require.Empty(t, samples, "nothing is said of the time before the first look")
		<-time.After(time.Minute)
		b := look(t, h)
		<-time.After(5 * time.Second)
		source.do(func() { source.failure = errors.New("NOAUTH") })
		<-time.After(5 * time.Second)
		source.do(func() { source.failure = nil })
		<-time.After(5 * time.Second)
		b.close()
		<-time.After(5 * time.Minute)
		samples, _ = historyOf(t, h)
		var gaps [][]int64
		for i, s := range samples {
			if s[1] != 0 {
				require.Len(t, s, 2)
				gap := []int64{s[1], -1}
				if i+1 < len(samples) {
					gap[1] = (samples[i+1][0] - s[0] + 500) / 1000
				}
				gaps = append(gaps, gap)
			}
		}
		require.Equal(t, [][]int64{{1, 60}, {2, 5}, {1, -1}}, gaps)
		require.Equal(t, time.Now().Add(-5*time.Minute).UnixMilli(), samples[len(samples)-1][0])
	})
}
