package queue

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Calls near the head look often, and calls far back rarely. When a lease is over, no call looks before the one in front of it.
func TestLookTimes(t *testing.T) {
	const (
		shown = clock.Instant(100 * time.Second)
		now   = shown + clock.Instant(50*time.Millisecond) // when the reply comes
		told  = shown + clock.Instant(firstLook)
		left  = time.Minute
		poll  = 5 * time.Second
		never = clock.Never
	)
	for name, c := range map[string]struct {
		standing
		due, refresh, watch clock.Instant
	}{
		"first":                     {standing{notified: 1}, shown.Add(left + 1e6), nextLook(now, 1), now.Add(10e6)},
		"first, of a foreign hold":  {standing{foreign: true, notified: 1}, shown.Add(left + 1e6), nextLook(now, 1), 0},
		"second, of a foreign hold": {standing{rank: 1, foreign: true}, shown.Add(left + poll + 1e6), told.Add(100e6), 0},
		"third, of a foreign hold":  {standing{rank: 2, foreign: true}, shown.Add(left + 2*poll + 1e6), told.Add(200e6), never},
		"second, just queued":       {standing{rank: 1}, shown.Add(left + poll + 1e6), told.Add(100e6), never},
		"second, for long":          {standing{rank: 1, notified: 1}, shown.Add(left + poll + 1e6), now.Add(lookEvery), never},
		"fourth, for long":          {standing{rank: 3, notified: 1}, shown.Add(left + 3*poll + 1e6), now.Add(3 * lookEvery), never},
		"hundredth, just queued":    {standing{rank: 99}, shown.Add(left + 99*poll + 1e6), told.Add(1e9), never},
		"hundredth, for long":       {standing{rank: 99, notified: 1}, shown.Add(left + 99*poll + 1e6), nextLook(now, 1), never},
		"first, for permits":        {standing{permits: true}, shown.Add(left + 1e6), now.Add(lookEvery), never},
		"of a process with 3 before, far back": {
			standing{permits: true, rank: 400, ahead: 3, notified: 1}, shown.Add(left + 13*poll + 1e6), nextLook(now, 1), never,
		},
		"of a process with 3 before, near": {
			standing{permits: true, rank: 50, ahead: 3, notified: 1}, shown.Add(left + 13*poll + 1e6), now.Add(4 * lookEvery), never,
		},
	} {
		s := c.standing
		s.left, s.shown, s.poll = left, shown, poll
		if s.notified == 0 {
			s.notified = told
		}
		l := s.times(now)
		require.Equal(t, []clock.Instant{c.due, c.refresh, c.watch}, []clock.Instant{l.due, l.refresh, l.watch}, name)
		require.False(t, l.window, name)
		s.left = 0
		require.Equal(t, clock.Never, s.times(now).due, name+", without an end")
	}
}

// A message, and what the server says about the key, change when the call looks.
func TestLookTimes_WhatChangesThem(t *testing.T) {
	const now = clock.Instant(time.Hour)
	second := standing{rank: 1, left: time.Minute, shown: now, poll: 5 * time.Second}
	for name, c := range map[string]struct {
		happens             func(l *lookTimes)
		due, refresh, watch time.Duration // from now on; 0: never
		window              bool
	}{
		"nothing": {func(*lookTimes) {}, 65*time.Second + afterEnd, lookEvery, 0, false},
		"it is the next one": {
			func(l *lookTimes) { l.isNext(now, mail{isNext: true, next: time.Second}) },
			time.Second + afterEnd, lookEvery, watchAfterFirst, false,
		},
		"it is the next one, after a window": {
			func(l *lookTimes) { l.isNext(now, mail{isNext: true, next: barging.Window, window: true}) },
			barging.Window + afterEnd, lookEvery, watchAfterFirst, true,
		},
		"it is the next one, for permits": {
			func(l *lookTimes) {
				l.permits = true
				l.isNext(now, mail{isNext: true, next: barging.Window, window: true})
			},
			barging.Window + afterEnd, lookEvery, 0, false,
		},
		"it is the next one, for permits of which others end before": {
			func(l *lookTimes) { l.permits = true; l.isNext(now, mail{isNext: true, next: time.Hour}) },
			65*time.Second + afterEnd, lookEvery, 0, false,
		},
		"the server reports changes": {
			func(l *lookTimes) { l.isWatched(now, 2*time.Minute) }, 125*time.Second + afterEnd, lookEvery, 0, false,
		},
		"the server reports changes of a key without an end": {
			func(l *lookTimes) { l.isWatched(now, 0) }, 65*time.Second + afterEnd, lookEvery, 0, false,
		},
		"the server does not": {func(l *lookTimes) { l.isUnwatched(now, time.Second) }, 65*time.Second + afterEnd, lookEvery, 0, false},
		"it is the next one, and the server does not": {func(l *lookTimes) {
			l.isNext(now, mail{isNext: true, next: time.Minute})
			l.isUnwatched(now, time.Second)
		}, time.Minute + afterEnd, time.Second, watchAfterFirst, false},
	} {
		l := second.times(now)
		c.happens(&l)
		watch := clock.Never
		if c.watch != 0 {
			watch = now.Add(c.watch)
		}
		require.Equal(t, []clock.Instant{now.Add(c.due), now.Add(c.refresh), watch}, []clock.Instant{l.due, l.refresh, l.watch}, name)
		require.Equal(t, c.window, l.window, name)
	}
}

// A look removes the tickets of dead processes if the look is due, and if others are in front.
func TestClears(t *testing.T) {
	for _, c := range []struct {
		rank   int
		woken  bool
		clears bool
	}{{0, false, false}, {0, true, false}, {1, false, true}, {1, true, false}, {mostClear, false, true}} {
		a := &acquisition{waitKit: &waitKit{ticket: ticket{woken: c.woken}}}
		a.at.Rank = c.rank
		require.Equal(t, c.clears, a.clears(), c)
	}
	far, clearing := &acquisition{waitKit: &waitKit{}}, 0
	far.at.Rank = mostClear + 1
	for range 10_000 {
		if far.clears() {
			clearing++
		}
	}
	require.InDelta(t, 10_000/seldomClears, clearing, 300, "few of those that are far back")
}

// A look goes before everything else, and the server is asked only once to report changes.
func TestLookTimes_Chores(t *testing.T) {
	l := lookTimes{due: 30, refresh: 20, watch: 10}
	for _, c := range []struct {
		now, until clock.Instant
		what       chore
	}{{0, 10, rests}, {10, 10, watches}, {10, 20, rests}, {19, 20, rests}, {20, 20, looks}, {40, 40, looks}} {
		what, until := l.chore(c.now)
		require.Equal(t, c.what, what, c.now)
		require.Equal(t, c.until, until, c.now)
	}
	l = lookTimes{due: 10, refresh: 20, watch: 5}
	what, _ := l.chore(15)
	require.Equal(t, looks, what, "the look was due later, and both are due")
}

// The calls of a queue look one after another, however long leases and poll intervals are: none before the lease is over, nor
// before the one in front of it.
func TestLookTimes_NearTheLongest(t *testing.T) {
	now := clock.New().Now()
	for _, poll := range []time.Duration{1, time.Second, math.MaxInt64 / 3, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
		for _, left := range []time.Duration{1, time.Minute, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
			s := standing{poll: poll, left: left, shown: now}
			before := lookTimes{due: now.Add(left)}
			for s.rank = range 12 {
				l := s.times(now)
				require.GreaterOrEqual(t, l.patience, before.patience, "poll %v, left %v, rank %d", poll, left, s.rank)
				require.GreaterOrEqual(t, l.due, before.due, "poll %v, left %v, rank %d", poll, left, s.rank)
				before = l
			}
			before.isNext(now, mail{next: left})
			require.GreaterOrEqual(t, before.due, now.Add(left))
		}
	}
}

// After a look has found a grant, the call expects the grant's message, however long replicas may take.
func TestFound_NearTheLongest(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, math.MaxInt64 - transport.WaitAtMost, math.MaxInt64} {
		l := newLock(t)
		l.path.all.Replicas = &protocol.Replicas{N: 1, Timeout: timeout}
		a := l.waitingCall()
		h := a.hold
		_ = a.found(time.Second) // the embedded server knows no replicas
		_, until := h.Keeps()
		require.Greater(t, until, l.path.Clock.Now(), timeout)
	}
}

// The calls in front of a call for permits may all belong to one frozen process. So the call does not let each of them look
// first. But the calls of its own process look one after another.
func TestLookTimes_Permits(t *testing.T) {
	l := newLock(t)
	permits := hold.Kind{Format: protocol.NewPermits(protocol.Config{}, 1, 4), Env: l.path.Env}
	l.path.Init(l.path.all.Permits(permits, 1), l.path.Key, l, l, &l.path)
	line := &l.path.anchor.contention().line
	gone := line.join()
	calls := make([]*acquisition, 4)
	for i := range calls {
		calls[i] = &acquisition{attempt: attempt{path: &l.path}, waitKit: &waitKit{ticket: ticket{seat: line.join()}}}
	}
	line.leave(gone)
	l.path.all.Poll = 100 * time.Millisecond
	looks := func(a *acquisition, rank int) (polls, refreshes float64) {
		now := a.path.Clock.Now()
		a.at.Rank, a.at.Left, a.ticket.base = rank, time.Minute, now
		look := a.lookTimes()
		require.Equal(t, now.Add(time.Minute+look.patience), look.due, rank)
		return float64(look.patience-time.Millisecond) / float64(l.path.all.Poll), float64(now.Until(look.refresh)) / float64(lookEvery)
	}
	for i, a := range calls {
		for rank, most := range map[int]int{0: 0, 1: 1, 9: 9, 10: 10, 100: 10 + i, 101: 10 + i, 400: 10 + i, 10_000: 10 + i} {
			polls, refreshes := looks(a, rank)
			require.InDelta(t, min(rank, most), polls, 0.01, rank)
			others := rank
			if rank <= 100 {
				others = min(rank, 1+i)
			}
			if others >= farBack { // at a time of its own
				require.LessOrEqual(t, refreshes, float64(farBack), rank)
				continue
			}
			require.InDelta(t, max(1, others), refreshes, 0.1, rank)
		}
	}
	line.leave(calls[0].ticket.seat)
	line.leave(calls[2].ticket.seat)
	polls, _ := looks(calls[1], 400)
	require.InDelta(t, 10, polls, 0.01, "it is the first now")
	polls, _ = looks(calls[3], 400)
	require.InDelta(t, 12, polls, 0.01)
	polls, refreshes := looks(calls[3], 1)
	require.InDelta(t, 1, polls, 0.01)
	require.InDelta(t, 1, refreshes, 0.1)
}

// A wake-up during a try without a ticket uses up the server's report of changes. So with its next ticket the call asks for
// reports again. Otherwise it would sleep through the next change.
func TestLeaveForNow_ReportsAreAskedForAnew(t *testing.T) {
	a := newLock(t).waitingCall()
	a.ticket.newest, a.ticket.sees = "ticket", true
	a.leaveForNow()
	require.False(t, a.ticket.sees)
	require.Empty(t, a.ticket.newest)
}

// A message about a window is counted once, even if the removal of the key has woken the call a moment before: then the call
// looks, and finds the message on the way.
func TestIsNext_WindowsAreCounted(t *testing.T) {
	for name, wakes := range map[string]bool{"the message": false, "a change": true} {
		t.Run(name, func(t *testing.T) {
			patientCall(t, func(t *testing.T, a *acquisition) {
				a.at.Left = time.Minute
				m, ok := ParseMessage("n " + a.hold.Number() + " 110 " + a.path.Key)
				require.True(t, ok)
				require.True(t, a.path.Deliver(m))
				if wakes {
					_ = a.step(stateLook) // the embedded server knows no queue
				}
				a.ticket.base = a.path.Clock.Now()
				require.Equal(t, stateLook, a.sleep())
				require.EqualValues(t, 1, a.path.all.Windows.Load())
			})
		})
	}
}

// Only the message to the first ticket is about a window. Other messages also have the time of a look, and are not counted.
func TestIsNext_OtherMessagesAreNoWindows(t *testing.T) {
	for ms, windows := range map[string]int{"0": 0, "1": 1, "10": 1, "110": 1, "111": 0, "60000": 0} {
		t.Run(ms, func(t *testing.T) {
			patientCall(t, func(t *testing.T, a *acquisition) {
				m, ok := ParseMessage("n " + a.hold.Number() + " " + ms + " " + a.path.Key)
				require.True(t, ok)
				require.True(t, a.path.Deliver(m))
				a.ticket.base = a.path.Clock.Now()
				require.Equal(t, stateLook, a.sleep())
				require.EqualValues(t, windows, a.path.all.Windows.Load())
			})
		})
	}
}

// A grant counts as a message only if its message has come, before the look or during it.
func TestFound_OnlyMessagesAreCounted(t *testing.T) {
	for name, told := range map[string]bool{"by a look": false, "by a look and a message": true} {
		t.Run(name, func(t *testing.T) {
			l := newLock(t)
			a := l.waitingCall()
			want := 0
			if told {
				m, ok := ParseMessage("g " + a.hold.Number() + " 1000 " + l.path.Key)
				require.True(t, ok)
				require.True(t, l.path.Deliver(m))
				want = 1
			}
			require.Equal(t, stateHold, a.found(time.Second))
			require.True(t, a.won())
			require.EqualValues(t, want, l.path.all.Grants.Load())
		})
	}
}

// A call may be woken before its first look, for instance by a broken connection. Scripts do not tell it that it is the next one
// until its ticket is a second old. So it looks once more then, and rarely from then on.
func TestLookTimes_AnEarlyLook(t *testing.T) {
	patientCall(t, func(t *testing.T, a *acquisition) {
		a.at.Rank, a.ticket.notified, a.ticket.newest = 1, a.path.Clock.Now().Add(firstLook), "me:1|60000"
		client := a.path.lock.(*lock).client
		there := client.B().Zadd().Key(a.Queue()).ScoreMember().ScoreMember(1, a.ticket.newest).Build()
		require.NoError(t, client.Do(t.Context(), there).Error())
		looks := func(after time.Duration) {
			t.Helper()
			began := time.Now()
			a.ticket.base = a.path.Clock.Now()
			require.Equal(t, stateLook, a.sleep())
			require.Equal(t, after, time.Since(began))
		}
		time.AfterFunc(300*time.Millisecond, a.box.wakeToLook)
		looks(300 * time.Millisecond)
		looks(firstLook + lookStep - 300*time.Millisecond)
		looks(lookEvery)
	})
}
