package health_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/health"
)

// watched is a monitor, and what it has reported.
type watched struct {
	*health.Monitor[string]
	clock clock.Clock
	told  []bool // that tasks fail
	gone  string // a server to which nothing is sent
}

func watch() *watched {
	w := &watched{clock: clock.New()}
	w.Monitor = health.New(w.clock, func(o health.Outcome) { w.told = append(w.told, o.Failure != nil) },
		func(at string) bool { return at != w.gone })
	return w
}

var errSome = errors.New("failed")

const retried = 5 * time.Second

// sent completes the outcome of tasks that are sent now.
func (w *watched) sent(o health.Outcome) health.Outcome {
	o.Sent, o.Retried, o.Tasks = w.clock.Now(), retried, 1
	return o
}

func (w *watched) silent() health.Outcome { return w.sent(health.Outcome{Failure: errSome}) }
func (w *watched) refused() health.Outcome {
	return w.sent(health.Outcome{Failure: errSome, Refused: true})
}
func (w *watched) answered() health.Outcome { return w.sent(health.Outcome{Succeeded: true}) }
func (w *watched) wrote() health.Outcome    { return w.sent(health.Outcome{Succeeded: true, Wrote: true}) }
func (w *watched) nothing() health.Outcome  { return w.sent(health.Outcome{}) }

func pass(d time.Duration) { <-time.After(d) }

func TestMonitor(t *testing.T) {
	const moment = time.Millisecond
	for name, c := range map[string]struct {
		do   func(w *watched)
		told []bool
	}{
		"all is well": {func(w *watched) {
			w.Note("a", w.wrote())
			w.Note("a", w.answered())
		}, nil},
		"a failure is told once": {func(w *watched) {
			w.Note("a", w.silent())
			pass(moment)
			w.Note("a", w.silent())
			w.Note("b", w.refused())
		}, []bool{true}},
		"any reply ends silence": {func(w *watched) {
			w.Note("a", w.silent())
			pass(moment)
			w.Note("a", w.answered())
		}, []bool{true, false}},
		"that nothing is left to send ends nothing": {func(w *watched) {
			w.Note("a", w.silent())
			pass(moment)
			w.Note("a", w.nothing())
		}, []bool{true}},
		"a reply that writes nothing does not end a refusal": {func(w *watched) {
			w.Note("a", w.refused())
			pass(moment)
			w.Note("a", w.answered())
		}, []bool{true}},
		"one that writes does": {func(w *watched) {
			w.Note("a", w.refused())
			pass(moment)
			w.Note("a", w.wrote())
		}, []bool{true, false}},
		"and one that writes nothing, when what was refused has been tried again": {func(w *watched) {
			w.Note("a", w.refused())
			pass(retried)
			w.Note("a", w.answered())
		}, []bool{true, false}},
		"each refusal counts": {func(w *watched) {
			w.Note("a", w.refused())
			pass(retried)
			w.Note("a", w.refused())
			pass(retried - moment)
			w.Note("a", w.answered())
		}, []bool{true}},
		"silence after a refusal does not make it short": {func(w *watched) {
			w.Note("a", w.refused())
			pass(moment)
			w.Note("a", w.silent())
			pass(moment)
			w.Note("a", w.answered())
		}, []bool{true}},
		"what was sent before a refusal came does not end it": {func(w *watched) {
			before := w.wrote()
			pass(moment)
			w.Note("a", w.refused())
			pass(moment)
			w.Note("a", before)
		}, []bool{true}},
		"nor what was sent while the refused was under way": {func(w *watched) {
			refused := w.refused()
			pass(moment)
			between := w.wrote()
			pass(moment)
			w.Note("a", refused)
			w.Note("a", between)
		}, []bool{true}},
		"nor when it is of another kind": {func(w *watched) {
			before := w.wrote()
			before.Kind = health.Removals
			pass(moment)
			w.Note("a", w.refused())
			w.Note("a", before)
		}, []bool{true}},
		"another server's success says nothing": {func(w *watched) {
			w.Note("a", w.refused())
			pass(moment)
			w.Note("b", w.wrote())
		}, []bool{true}},
		"all must succeed": {func(w *watched) {
			w.Note("a", w.silent())
			w.Note("b", w.refused())
			pass(moment)
			w.Note("b", w.wrote())
			w.Note("a", w.answered())
			pass(moment)
			w.Note("b", w.silent())
		}, []bool{true, false, true}},
		"one that fails counts beside many that have only not removed since": {func(w *watched) {
			w.Note("a", w.silent())
			for i := range 30 {
				at := strconv.Itoa(i)
				w.Note(at, w.silent())
				pass(moment)
				removal := w.answered()
				removal.Kind = health.Removals
				w.Note(at, removal)
			}
		}, []bool{true}},
		"but not one to which nothing is sent any more": {func(w *watched) {
			w.Note("a", w.silent())
			pass(moment)
			w.gone = "a"
			w.Note("b", w.wrote())
		}, []bool{true, false}},
		"nor one at which nothing is tried any more": {func(w *watched) {
			w.Note("a", w.silent())
			for range 120 {
				pass(time.Second)
				w.Note("b", w.wrote())
			}
			w.Note("b", w.silent())
		}, []bool{true, false, true}},
		"one that is tried again and again counts, however rarely others are": {func(w *watched) {
			for range 10 {
				w.Note("a", w.silent())
				pass(50 * time.Second)
				w.Note("b", w.wrote())
			}
		}, []bool{true}},
		"and so does one at which much is left to try": {func(w *watched) {
			o := w.silent()
			o.Retried = time.Hour
			w.Note("a", o)
			pass(time.Hour)
			w.Note("b", w.wrote())
		}, []bool{true}},
		"a failure elsewhere is no all-clear": {func(w *watched) {
			w.Note("a", w.silent())
			pass(time.Second)
			w.Note("b", w.silent())
		}, []bool{true}},
		"but begins anew when nothing is tried any more where it failed before": {func(w *watched) {
			w.Note("a", w.silent())
			pass(time.Hour)
			w.Note("b", w.silent())
			pass(moment)
			w.Note("a", w.silent())
			pass(time.Hour)
			w.Note("a", w.silent())
		}, []bool{true, true, true}},
		"success and failure together are failure": {func(w *watched) {
			w.Note("a", w.silent())
			pass(moment)
			o := w.wrote()
			o.Failure = errSome
			w.Note("a", o)
		}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch()
				pass(moment)
				c.do(w)
				require.Equal(t, c.told, w.told)
			})
		})
	}
}

// Changes are reported in the order in which they happen, however many goroutines note outcomes: each change is the opposite of
// the one before.
func TestMonitor_TellsInOrder(t *testing.T) {
	w := watch()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2000 {
				w.Note("a", w.silent())
				w.Note("a", w.answered())
			}
		})
	}
	all.Wait()
	require.NotEmpty(t, w.told)
	for i, failing := range w.told {
		require.Equal(t, i%2 == 0, failing)
	}
}

// Note says when tasks succeed again at one server, whatever happens at the others.
func TestMonitor_ToldOfEachServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		pass(time.Second)
		require.False(t, w.Note("a", w.silent()))
		require.False(t, w.Note("b", w.silent()))
		pass(time.Second)
		require.True(t, w.Note("a", w.answered()))
		require.False(t, w.Note("a", w.answered()), "it does already")
		require.Equal(t, []bool{true}, w.told)
	})
}

// Tasks that failed at a former master go to its successor, so they are tried again when the successor answers.
func TestMonitor_TheSuccessorAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		pass(time.Second)
		w.Note("a", w.silent())
		w.Note("b", w.silent())
		pass(time.Second)
		require.False(t, w.Note("c", w.wrote()), "both still lead")
		w.gone = "a"
		pass(time.Second)
		require.True(t, w.Note("c", w.wrote()))
		require.False(t, w.Note("c", w.wrote()), "it does already")
		require.Equal(t, []bool{true}, w.told)
	})
}

func TestMonitor_Since(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		pass(time.Second)
		require.Zero(t, w.Since("a", health.Renewals))
		began := w.clock.Now()
		stale := w.wrote()
		w.Note("a", w.silent())
		pass(time.Second)
		w.Note("a", w.silent())
		w.Note("a", stale)
		require.Equal(t, began, w.Since("a", health.Renewals))
		require.Zero(t, w.Since("a", health.Removals))
		require.Zero(t, w.Since("b", health.Renewals))
		pass(time.Second)
		removal := w.wrote()
		removal.Kind = health.Removals
		require.True(t, w.Note("a", removal))
		require.Equal(t, began, w.Since("a", health.Renewals), "it is told of that kind's own")
		w.Note("a", w.answered())
		require.Zero(t, w.Since("a", health.Renewals))

		again := w.clock.Now()
		w.Note("a", w.silent())
		pass(time.Minute)
		require.Equal(t, again, w.Since("a", health.Renewals))
		pass(time.Second)
		require.Zero(t, w.Since("a", health.Renewals), "nothing is tried any more")
	})
}
