package belief

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// The test shows what breaks when one of the times is halved or doubled. Each fact is how long something takes in the world,
// and is compatible with the times as they are. If the time were half as long, the fact would be twice as long in comparison,
// and no longer compatible; and vice versa.
func TestTimes(t *testing.T) {
	const ms, begun = time.Millisecond, clock.Instant(time.Minute)
	late := func(by time.Duration) (excused bool) {
		s, a := near(), Alarm{}
		a.At = a.Due(s, begun)
		return !a.Ring(s, begun, a.At.Add(by))
	}
	believed := func(took time.Duration) bool {
		s := near()
		answer, _ := s.Judge(Exchange{Sent: begun, Came: begun.Add(took), Trip: s.RoundTrip()})
		return answer == Believed
	}
	stoodStill := func(pause time.Duration) (noticed bool) {
		s := near()
		s.Watched(begun)
		return s.StoodStill(begun.Add(pause)) != 0
	}
	for name, c := range map[string]struct {
		fact    time.Duration
		well    func(fact time.Duration) bool
		halved  bool // the time must not be halved
		doubled bool // nor doubled
	}{
		"Tick: a timer on a busy machine, at a silent server": {
			fact: 60 * ms, well: func(by time.Duration) bool { return !late(by) }, halved: true,
		},
		"Tick: a stop of the process, which is none of the server": {fact: 150 * ms, well: late, doubled: true},
		"Silence: a server that forks":                             {fact: 300 * ms, well: believed, halved: true},
		"Silence: a call that waits for a second has time to go another way": {
			fact: time.Second, well: func(wait time.Duration) bool { return near().Patience() < wait }, doubled: true,
		},
		"Connect: TCP repeats its first packet, and then five trips": {
			fact:   time.Second,
			well:   func(takes time.Duration) bool { return takes+5*ms < near().RoundTrip().Connect() },
			halved: true,
		},
		"Connect: the fastest failover": {
			fact: 2 * time.Second, well: func(takes time.Duration) bool { return near().RoundTrip().Connect() < takes }, doubled: true,
		},
		"Pause: an ordinary stop of a machine": {
			fact: 1500 * ms, well: func(pause time.Duration) bool { return !stoodStill(pause) }, halved: true,
		},
		"Pause: a failover with the usual settings of tests": {fact: 3 * time.Second, well: stoodStill, doubled: true},
		"Old: a deposed master answers": {
			fact: 22 * time.Second,
			well: func(answers time.Duration) bool {
				s := near()
				s.FoundSilent(begun, begun)
				return s.IsSuspect(begun.Add(answers))
			},
			halved: true,
		},
		"Old: after a silence commands go over the client's own connections again": {
			fact: 45 * time.Second,
			well: func(after time.Duration) bool {
				s := near()
				s.FoundSilent(begun, begun)
				return !s.IsSuspect(begun.Add(after))
			},
			doubled: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, c.well(c.fact))
			if c.halved {
				require.False(t, c.well(2*c.fact))
			}
			if c.doubled {
				require.False(t, c.well(c.fact/2))
			}
		})
	}
	require.GreaterOrEqual(t, Farthest, time.Second, "the farthest supported way needs all of Pause")
}

// A question that is refused is asked less and less often: it makes some thirty entries a day in the server's log.
func TestAgainAfter(t *testing.T) {
	for refusals, after := range map[int]time.Duration{
		0: Again, 1: Again, 2: 2 * Again, 3: 4 * Again, 6: 32 * Again, 7: MostAgain, 8: MostAgain, 1 << 30: MostAgain,
	} {
		require.Equal(t, after, AgainAfter(refusals), refusals)
	}
	n := 0
	for at := time.Duration(0); at < 24*time.Hour; at += AgainAfter(n) {
		n++
	}
	require.InDelta(t, 30, n, 3)
}
