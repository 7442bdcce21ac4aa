package wake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// after makes moments of a test.
func after(d time.Duration) time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(d) }

// look is the result of a look at a key with so many milliseconds left. Its reply takes a millisecond.
func (t *throttle) look(at time.Duration, pttl int64) bool {
	return t.looked(after(at), after(at+time.Millisecond), pttl)
}

func TestThrottle(t *testing.T) {
	const ms = time.Millisecond
	for name, pttl := range map[string]func(at time.Duration) int64{
		"a lease":  func(at time.Duration) int64 { return 60_000 - at.Milliseconds() },
		"no lease": func(time.Duration) int64 { return -1 },
	} {
		t.Run(name, func(t *testing.T) {
			d := throttle{poll: 100 * ms}
			require.True(t, d.look(0, pttl(0)))
			at := time.Duration(0)
			pauses := []time.Duration{}
			for range 9 {
				at += ms
				pause := d.woken(after(at))
				pauses = append(pauses, pause)
				at += pause
				require.False(t, d.look(at, pttl(at)))
				at += 2 * ms
			}
			require.Equal(t, []time.Duration{
				0, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 100 * ms, 100 * ms,
			}, pauses)
			require.True(t, d.on())

			// A new owner resets the throttle.
			require.True(t, d.look(at, 60_000))
			require.Zero(t, d.woken(after(at+ms)))
			require.True(t, d.look(at+ms, 70_000), "renewed")
		})
	}
}

// Owners that follow each other every third of a millisecond are told apart after the shortest pauses.
func TestThrottle_NotInAHurry(t *testing.T) {
	d := throttle{poll: 100 * time.Millisecond}
	for at := time.Duration(0); at < time.Second; at += 300 * time.Microsecond {
		d.look(at, 60_000)
		pause := d.woken(after(at + 100*time.Microsecond))
		require.LessOrEqual(t, pause, 2*shortestPause)
		at += pause
	}
}

// A waiter that nothing has woken for a poll interval is trusted again.
func TestThrottle_EndsAfterAPause(t *testing.T) {
	d := throttle{poll: 100 * time.Millisecond, pause: time.Second, since: after(0), expiry: span{none: true}}
	require.Zero(t, d.woken(after(100*time.Millisecond)))
	require.False(t, d.look(101*time.Millisecond, -1))
	require.NotZero(t, d.woken(after(102*time.Millisecond)))
}
