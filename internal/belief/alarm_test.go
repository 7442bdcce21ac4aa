package belief

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// On a machine that is so busy that every timer is late, a server that answers nothing is suspect all the same: the time that
// is excused is bounded. A reply that comes after that time is not excused either.
func TestAlarm_EachTimerIsLate(t *testing.T) {
	begun := clock.Instant(time.Hour)
	for name, s := range map[string]*State{"known": near(), "not known": {}} {
		for _, by := range []time.Duration{Tick, 300 * time.Millisecond, time.Second, Pause} {
			for _, probes := range []clock.Instant{0, begun.Add(-time.Second)} {
				a := Alarm{Probes: probes}
				a.At = a.Due(s, begun)
				due, at := a.At, a.At.Add(by)
				for ; !a.Ring(s, begun, at); at = a.At.Add(by) {
					require.LessOrEqual(t, due.Until(at), Pause, "%s, each %v late", name, by)
					require.True(t, a.Excuses(s, begun, at))
					require.False(t, a.Excuses(s, begun, due.Add(Pause+1)))
				}
				require.LessOrEqual(t, due.Until(at), Pause+s.RoundTrip().Silence()+by)
				require.False(t, a.Excuses(s, begun, at))
				require.Equal(t, clock.Never, a.At, "it rings once")
			}
		}
	}
}

// A command that was sent after its alarm was set, or whose round trip turns out to be longer, has as much time as one that is
// sent now.
func TestAlarm_IsSetAnew(t *testing.T) {
	s, a, now := near(), Alarm{}, clock.Instant(time.Hour)
	a.At = a.Due(s, now)
	require.False(t, a.Ring(s, now, a.At-1))
	first := a.At
	require.False(t, a.Ring(s, first, first), "it was sent later")
	require.Equal(t, first.Add(s.Patience()), a.At)
	require.True(t, a.Ring(s, first, a.At))

	var never Alarm
	never.At = clock.Never
	require.False(t, never.Ring(s, now, now.Add(Never)))
	block := Alarm{Holds: time.Second}
	block.At = block.Due(s, now)
	require.Equal(t, now.Add(s.Patience()+time.Second), block.At)
}

// A probe takes the place of a command that was given up, but has its own time to be answered.
func TestAlarm_OfAProbe(t *testing.T) {
	s, now := near(), clock.Instant(time.Hour)
	for ago, due := range map[time.Duration]time.Duration{0: s.Patience(), 10 * time.Millisecond: Silence, time.Minute: Silence} {
		a := Alarm{Probes: now.Add(-ago)}
		a.At = a.Due(s, now)
		require.Equal(t, due, now.Until(a.At), ago)
	}
}
