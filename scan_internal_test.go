package lockregistry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// What the first calls have cost is not made up for, whatever it was: the calls after them leave the server alone for as long as
// each of them says.
func TestLocksPaceHasNoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Registry{clock: clock.New(), closed: make(chan struct{})}
		p := pass{reg: r, ctx: t.Context()}
		call := func() (pause time.Duration) {
			require.NoError(t, p.timed(func() error { <-time.After(4 * time.Millisecond); return nil }))
			began := time.Now()
			require.NoError(t, p.pace())
			return time.Since(began)
		}
		for range 2000 {
			require.Zero(t, call())
		}
		p.calls = unpaced
		for range 10 {
			require.Equal(t, 76*time.Millisecond, call(), "it takes a twentieth")
		}
		// One that took long was under way for long, or this process was not running: that is not the server's time.
		require.NoError(t, p.timed(func() error { <-time.After(time.Minute); return nil }))
		began := time.Now()
		require.NoError(t, p.pace())
		require.Equal(t, (shareOf-1)*mostBusy, time.Since(began))
	})
}
