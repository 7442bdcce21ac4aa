package cleanup

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// The transitions are those of the table in the type's comment, line by line.
func TestPending_Transitions(t *testing.T) {
	const now, expired = clock.Instant(time.Hour), clock.Instant(time.Hour)
	later := now.Add
	for name, c := range map[string]struct {
		late   bool
		many   bool
		queued bool
		since  clock.Instant
		failed bool
		now    clock.Instant
		pause  time.Duration // the longest
		over   bool
		after  clock.Instant // since
	}{
		"open, confirmed":                 {now: now, over: true},
		"open, confirmed, late":           {late: true, now: now, pause: pace, after: now},
		"open, unanswered":                {failed: true, now: now - 1, pause: 50 * time.Millisecond},
		"open, unanswered, expired":       {failed: true, now: now, over: true},
		"open, unanswered, expired, late": {late: true, failed: true, now: now, pause: 50 * time.Millisecond},
		"watched, confirmed":              {late: true, since: now, now: later(haste), pause: pace, after: now},
		"watched, confirmed, later":       {late: true, since: now, now: later(40 * time.Second), pause: 5 * time.Second, after: now},
		"watched, confirmed, longest":     {late: true, since: now, now: later(time.Minute), pause: 15 * time.Second / 2, after: now},
		"open, confirmed, many":           {late: true, many: true, now: now, pause: pace, after: now},
		"watched, confirmed, many":        {late: true, many: true, since: now, now: later(4 * pace), pause: 4 * pace, after: now},
		"watched, confirmed, many, later": {late: true, many: true, since: now, now: later(haste), pause: queuePace, after: now},
		"watched, confirmed, queued":      {late: true, queued: true, since: now, now: later(haste), pause: queuePace, after: now},
		"watched, confirmed, over":        {late: true, since: now, now: later(time.Minute + 1), over: true, after: now},
		"watched, unanswered":             {late: true, since: now, failed: true, now: now + 1, pause: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pending{
				Removal: Removal{Format: plain, MayArrive: c.late, Lease: lease, Watch: time.Minute, Expired: expired}, since: c.since,
			}
			if p.at = c.now; c.many {
				p.Format = permits
			}
			if c.queued {
				p.Leaving = []string{"a:1|1000"}
			}
			turn := p.confirmed
			if c.failed {
				turn = p.unanswered
			}
			pause, over := turn(c.now)
			require.Equal(t, c.over, over)
			require.Equal(t, c.after, p.since)
			if !c.over {
				require.LessOrEqual(t, pause, c.pause)
				require.GreaterOrEqual(t, pause, c.pause/2)
			}
		})
	}
}

// A process that stands still for longer than the watch may have commands that it has not sent. So that time does not count, and
// the watch goes on, with as many removals as if it had not stood still.
func TestPending_StandsStill(t *testing.T) {
	removals := func(stop time.Duration) (n int) {
		p := &pending{Removal: Removal{Format: plain, MayArrive: true, Watch: time.Minute}}
		for now, over := clock.Instant(time.Hour), false; !over; n++ {
			var pause time.Duration
			pause, over = p.confirmed(now)
			p.at = now.Add(pause)
			if now = p.at; n == 1 {
				now = now.Add(stop)
			}
		}
		return n
	}
	want := removals(0)
	require.Greater(t, want, 100)
	require.Equal(t, want, removals(2*time.Minute))
	require.Less(t, removals(haste), want, "as a slow answer")
}

// The pause doubles with each failure, up to a tenth of the lease, and is short again after an answer.
func TestPending_Backoff(t *testing.T) {
	p := &pending{Removal: Removal{Format: plain, MayArrive: true, Lease: lease, Watch: time.Minute}}
	longest := 50 * time.Millisecond
	for range 10 {
		pause, _ := p.unanswered(1)
		require.LessOrEqual(t, pause, min(longest, lease/10))
		require.GreaterOrEqual(t, pause, min(longest, lease/10)*3/4-1)
		longest *= 2
	}
	_, _ = p.confirmed(1)
	pause, _ := p.unanswered(1)
	require.LessOrEqual(t, pause, 50*time.Millisecond)
}

// Once the lease is over, however short it was, the removal of a grant that may arrive is tried more and more rarely.
func TestPending_BackoffWhenTheLeaseIsOver(t *testing.T) {
	p := &pending{Removal: Removal{Format: plain, MayArrive: true, Lease: 5 * time.Millisecond, Watch: time.Minute, Expired: 5}}
	for range 10 {
		pause, _ := p.unanswered(4)
		require.LessOrEqual(t, pause, time.Millisecond)
	}
	pause, over := p.unanswered(5)
	require.GreaterOrEqual(t, pause, clock.MostPause*3/4-1)
	require.False(t, over)
}

// The first removal, for instance of a ticket, needs to be confirmed once. Before it is, a call abandons a grant that may arrive
// later. So the removal is repeated after the confirmation, too.
func TestPending_MergeLooksOutForBoth(t *testing.T) {
	for _, c := range []struct{ older, newer bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		p := &pending{Removal: Removal{Format: plain, MayArrive: c.older, Watch: time.Hour}, since: 1, failures: 7}
		p.merge(Removal{Format: plain, MayArrive: c.newer, Watch: time.Minute, Value: "a:2", Expired: 5}, nil)
		require.Equal(t, Removal{Format: plain, MayArrive: c.older || c.newer, Watch: time.Hour, Value: "a:2", Expired: 5}, p.Removal)
		require.Zero(t, p.failures)
		require.Equal(t, c.newer, p.since == 0, "only a newer one begins anew")
		_, over := p.confirmed(2)
		require.Equal(t, c.older || c.newer, !over, "%+v", c)
	}
}

func TestPending_MergeRemovesTheTicketsOfBoth(t *testing.T) {
	for _, c := range []struct{ older, newer, want []string }{
		{nil, nil, nil},
		{nil, []string{"1"}, []string{"1"}},
		{[]string{"1"}, []string{"1"}, []string{"1"}},
		{[]string{"1"}, []string{"2"}, []string{"1", "2"}},
		{[]string{"1", "2"}, []string{"2", "3"}, []string{"1", "2", "3"}},
		{[]string{"1"}, nil, []string{"1"}},
	} {
		p := &pending{Removal: Removal{Leaving: c.older}}
		p.merge(Removal{Leaving: c.newer}, nil)
		require.Equal(t, c.want, p.Leaving, "%+v", c)
	}
}

// During an outage a call abandons one attempt after another. The cost of its removal does not grow with their number.
func TestPending_MergeRemovesTheNewestTickets(t *testing.T) {
	p := &pending{}
	for i := range mostTickets + 2 {
		p.merge(Removal{Leaving: []string{strconv.Itoa(i)}}, nil)
	}
	require.Len(t, p.Leaving, mostTickets)
	require.Equal(t, "2", p.Leaving[0])
	require.Equal(t, strconv.Itoa(mostTickets+1), p.Leaving[mostTickets-1])
}
