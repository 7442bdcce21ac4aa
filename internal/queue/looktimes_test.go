package queue

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// The calls of a queue look one after another, however long leases and poll intervals are: none before the lease is over, nor
// before the one in front of it.
func TestLookTimes_NearTheLongest(t *testing.T) {
	l := newLock(t)
	for _, poll := range []time.Duration{1, time.Second, math.MaxInt64 / 3, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
		for _, left := range []time.Duration{1, time.Minute, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
			a := &acquisition{attempt: attempt{path: &l.path}}
			a.path.all.Poll, a.at.Left, a.ticket.base = poll, left, a.path.Clock.Now()
			over := a.ticket.base.Add(left)
			before := lookTimes{due: over}
			for a.at.Rank = range 12 {
				now := a.whenToLook()
				require.GreaterOrEqual(t, now.patience, before.patience, "poll %v, left %v, rank %d", poll, left, a.at.Rank)
				require.GreaterOrEqual(t, now.due, before.due, "poll %v, left %v, rank %d", poll, left, a.at.Rank)
				before = now
			}
			next, now := a.whenToLook(), a.path.Clock.Now()
			a.isNext(&next, now, mail{next: left})
			require.GreaterOrEqual(t, next.due, now.Add(left))
		}
	}
}

// A message that comes after a look has found its grant is waited for, however long replicas may take.
func TestFound_NearTheLongest(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, math.MaxInt64 - transport.WaitAtMost, math.MaxInt64} {
		l := newLock(t)
		l.path.all.Replicas = &protocol.Replicas{N: 1, Timeout: timeout}
		a := l.waitingCall()
		h := a.hold
		_, _ = a.found(time.Second) // the embedded server knows no replicas
		_, until := h.Keeps()
		require.Greater(t, until, l.path.Clock.Now(), timeout)
	}
}

// Those in front of a call for permits may all be calls of one process that stands still. So it does not wait for each of them,
// but the calls of its own process look one after another.
func TestLookTimes_Permits(t *testing.T) {
	l := newLock(t)
	l.path.Path.Kind = &hold.Kind{Format: protocol.NewPermits(protocol.Config{}, 1, 4), Env: l.path.Env}
	line := &l.path.contention().line
	gone := line.join()
	calls := make([]*acquisition, 4)
	for i := range calls {
		calls[i] = &acquisition{attempt: attempt{path: &l.path}, ticket: ticket{seat: line.join()}}
	}
	line.leave(gone)
	l.path.all.Poll = 100 * time.Millisecond
	looks := func(a *acquisition, rank int) (polls, refreshes float64) {
		now := a.path.Clock.Now()
		a.at.Rank, a.at.Left, a.ticket.base = rank, time.Minute, now
		look := a.whenToLook()
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
			require.InDelta(t, min(max(1, others), 6), refreshes, 0.1, rank)
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

// A wake-up while a call tries without a ticket tells it of a change that it then no longer sees: with its next ticket it asks
// for reports anew, or it would sleep through the next change.
func TestDrop_ReportsAreAskedForAnew(t *testing.T) {
	a := newLock(t).waitingCall()
	a.ticket.newest, a.ticket.sees = "ticket", true
	a.drop()
	require.False(t, a.ticket.sees)
	require.Empty(t, a.ticket.newest)
}

// A window that a message tells of is counted once, also when the removal of the key has woken the call a moment before: then it
// looks, and finds the message only on its way.
func TestIsNext_WindowsAreCounted(t *testing.T) {
	for name, wakes := range map[string]protocol.Mode{"the message": "", "a change": protocol.ModeCheck} {
		t.Run(name, func(t *testing.T) {
			patientCall(t, func(t *testing.T, a *acquisition) {
				a.at.Left = time.Minute
				m, ok := ParseMessage("n " + a.hold.Number() + " 110 " + a.path.Key)
				require.True(t, ok)
				require.True(t, a.path.Deliver(m))
				if wakes != "" {
					_, _ = a.step(wakes) // the embedded server knows no queue
				}
				a.ticket.base = a.path.Clock.Now()
				_, err := a.asleep()
				require.NoError(t, err)
				require.EqualValues(t, 1, a.path.all.Windows.Load())
			})
		})
	}
}

// Only the first ticket is told of a window: other messages say how long until a look, too, and are not counted.
func TestIsNext_OtherMessagesAreNoWindows(t *testing.T) {
	for ms, windows := range map[string]int{"0": 0, "1": 1, "10": 1, "110": 1, "111": 0, "60000": 0} {
		t.Run(ms, func(t *testing.T) {
			patientCall(t, func(t *testing.T, a *acquisition) {
				m, ok := ParseMessage("n " + a.hold.Number() + " " + ms + " " + a.path.Key)
				require.True(t, ok)
				require.True(t, a.path.Deliver(m))
				a.ticket.base = a.path.Clock.Now()
				_, err := a.asleep()
				require.NoError(t, err)
				require.EqualValues(t, windows, a.path.all.Windows.Load())
			})
		})
	}
}

// A grant counts as a message only if that has come, before or while the call looked.
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
			_, err := a.found(time.Second)
			require.NoError(t, err)
			require.True(t, a.won)
			require.EqualValues(t, want, l.path.all.Grants.Load())
		})
	}
}

// Something may wake a call before its first look, a broken connection for instance. Scripts do not tell it that it is the next
// one all the same, until its ticket is a second old: so it looks once more then, and from then on rarely.
func TestLookTimes_AnEarlyLook(t *testing.T) {
	patientCall(t, func(t *testing.T, a *acquisition) {
		a.at.Rank, a.ticket.told, a.ticket.newest = 1, a.path.Clock.Now().Add(firstLook), "me:1|60000"
		client := a.path.lock.(*lock).client
		there := client.B().Zadd().Key(a.Queue()).ScoreMember().ScoreMember(1, a.ticket.newest).Build()
		require.NoError(t, client.Do(t.Context(), there).Error())
		looks := func(after time.Duration) {
			t.Helper()
			began := time.Now()
			a.ticket.base = a.path.Clock.Now()
			next, err := a.asleep()
			require.NoError(t, err)
			require.Equal(t, protocol.ModeCheck, next)
			require.Equal(t, after, time.Since(began))
		}
		time.AfterFunc(300*time.Millisecond, a.box.stir)
		looks(300 * time.Millisecond)
		looks(firstLook + lookStep - 300*time.Millisecond)
		looks(lookEvery)
	})
}
