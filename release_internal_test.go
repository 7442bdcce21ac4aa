package lockregistry

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/scheduler"
)

// stalled is a renewal that waits for a replica, for as long as the test says.
type stalled struct {
	hold.Task
	until chan struct{}
	asked chan<- struct{}
}

func (s stalled) Wanted() bool {
	select {
	case s.asked <- struct{}{}:
		<-s.until
	case <-s.until:
	}
	return false
}

// However many renewals wait for replicas, holds that are given back are removed at once, one after another.
func TestReplicas_RenewalsThatWaitForReplicasDelayNoRemoval(t *testing.T) {
	r := embedded(t, WithReplicas(1, time.Minute))
	until, asked := make(chan struct{}), make(chan struct{})
	b := r.background
	b.Holds.Send(slices.Repeat([]hold.Task{stalled{until: until, asked: asked}}, 2*scheduler.MostAtOnce*scheduler.Batch)...)
	defer close(until)
	for range scheduler.MostAtOnce {
		<-asked
	}
	for i := range 4 {
		l := r.newLock(strconv.Itoa(i))
		h := (*forQueue)(l).NewHold(hold.Terms{Lease: lease.NewTerm(time.Minute)})
		require.NoError(t, r.client.Do(t.Context(), r.client.B().Set().Key(l.redis.Key).Value(h.Value()).Build()).Error())
		l.redis.RemoveLost(h)
		require.Eventually(t, func() bool {
			n, err := r.client.Do(t.Context(), r.client.B().Exists().Key(l.redis.Key).Build()).AsInt64()
			return err == nil && n == 0
		}, 20*time.Second, time.Millisecond, "removal %d", i)
	}
}
