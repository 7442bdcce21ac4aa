package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// A Do whose owner has unlocked too often does not renew the hold of the next owner, and leaves the next owner's renewals alone.
func TestTenure_UpholdsNothingThatIsOver(t *testing.T) {
	now := clock.New()
	env := &hold.Env{Clock: now, Schedule: hold.NewSchedule(func(clock.Instant) {}, nil)}
	h := hold.New(&hold.Path{Kind: &hold.Kind{Env: env}}, "me:1", hold.Terms{Lease: lease.NewTerm(time.Minute)})
	require.True(t, h.Grant(now.Now(), now.Now()))
	var l tenure.Held
	l.Store(h)
	half := &localLock{}
	in(t, half, team, local.Entered)
	half.Granted()
	work := l.Tenure(half, team, h, 0)
	work.StartRenewing()
	require.Equal(t, time.Minute, h.RenewalLease())
	work.StopRenewing()
	require.Zero(t, h.RenewalLease())

	how, _ := l.Exit(half, team)
	require.Equal(t, local.Last, how)
	work.StartRenewing()
	require.Zero(t, h.RenewalLease(), "the hold may be the next owner's")
	h.StartRenewing() // for that one
	work.StopRenewing()
	require.Equal(t, time.Minute, h.RenewalLease())

	var lost *tenure.Tenure
	lost.StartRenewing()
	lost.StopRenewing()
}
