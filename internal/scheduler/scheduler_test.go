package scheduler

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// alarm is a source that is due when told, and notes when it was called.
type alarm struct {
	next   clock.Instant
	called []clock.Instant
	during func() // called in each turn
}

func (a *alarm) turn(now clock.Instant) clock.Instant {
	a.called = append(a.called, now)
	if a.during != nil {
		a.during()
	}
	if a.next <= now {
		a.next = clock.Never
	}
	return a.next
}

func TestScheduler_HasNoGoroutineWhileNothingIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		s := New(clock.New(), (&alarm{next: clock.Never}).turn)
		s.Wake()
		s.Soon(clock.Never)
		synctest.Wait()
		require.Equal(t, before, runtime.NumGoroutine())
		s.Close()
		s.Wait()
	})
}

// The sources are called by the earliest instant that was asked for, or that one of them has returned.
func TestScheduler_EarliestWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		first, second := &alarm{next: clock.Never}, &alarm{next: clock.Never}
		s := New(c, first.turn, second.turn)
		defer s.Wait()
		defer s.Close()
		start := c.Now()
		at := func(d time.Duration) clock.Instant { return start.Add(d) }
		first.next, second.next = at(7*time.Second), at(4*time.Second)
		s.Soon(at(7 * time.Second))
		synctest.Wait() // the first turn comes at once
		require.Equal(t, []clock.Instant{start}, first.called)
		s.Soon(at(9 * time.Second)) // later than what is due: it calls nobody
		s.Soon(at(time.Second))
		<-time.After(20 * time.Second)
		synctest.Wait()
		// Soon has the goroutine look at once what is due by now.
		require.Equal(t, []clock.Instant{start, start, at(4 * time.Second), at(7 * time.Second)}, first.called)
		require.Equal(t, first.called, second.called)
	})
}

// What becomes due during a turn, in a source that was called already, is not forgotten.
func TestScheduler_SoonDuringATurn(t *testing.T) {
	for name, after := range map[string]time.Duration{"now": 0, "later": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := clock.New()
				first, second := &alarm{next: clock.Never}, &alarm{next: clock.Never}
				s := New(c, first.turn, second.turn)
				defer s.Wait()
				defer s.Close()
				start := c.Now()
				second.during = func() {
					second.during = nil
					first.next = start.Add(after)
					s.Soon(first.next)
				}
				s.Soon(start)
				<-time.After(2 * time.Second)
				synctest.Wait()
				require.Equal(t, []clock.Instant{start, start.Add(after)}, first.called)
			})
		})
	}
}

func TestScheduler_WakeCallsTheSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		a := &alarm{next: clock.Never}
		s := New(c, a.turn)
		defer s.Wait()
		defer s.Close()
		s.Soon(c.Now())
		synctest.Wait()
		require.Len(t, a.called, 1)
		s.Wake()
		synctest.Wait()
		require.Len(t, a.called, 2)
	})
}

func TestScheduler_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		a := &alarm{next: c.Now().Add(time.Second)}
		during, goOn := make(chan struct{}), make(chan struct{})
		a.during = func() { close(during); <-goOn }
		s := New(c, a.turn)
		s.Soon(c.Now())
		<-during
		s.Close()
		s.Close()
		waited := make(chan struct{})
		go func() { defer close(waited); s.Wait() }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("a turn is under way")
		default:
		}
		close(goOn)
		<-waited
		s.Soon(c.Now())
		<-time.After(time.Minute)
		require.Len(t, a.called, 1)
	})
}

func TestScheduler_NothingIsDueAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		for range 20 { // a goroutine might end before it calls anybody
			a := &alarm{next: clock.Never}
			s := New(c, a.turn)
			s.Close()
			s.Soon(c.Now())
			s.Wait()
			require.Empty(t, a.called)
		}
	})
}
