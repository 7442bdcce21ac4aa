package lockregistry

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/scheduler"
)

// stalled is a renewal that waits for a replica, for as long as the test says.
type stalled struct {
	task
	until chan struct{}
	asked chan<- struct{}
}

func (s stalled) wanted() bool {
	select {
	case s.asked <- struct{}{}:
		<-s.until
	case <-s.until:
	}
	return false
}

// However many renewals wait for replicas, what is given back is removed at once, and what is given back next too.
func TestRenewalsThatWaitForReplicasDelayNoRemoval(t *testing.T) {
	r := embedded(t, WithReplicas(1, time.Minute))
	until, asked := make(chan struct{}), make(chan struct{})
	b := r.background
	b.holds.mu.Lock()
	for range 2 * scheduler.MostAtOnce * scheduler.Batch {
		b.holds.tasks = append(b.holds.tasks, stalled{until: until, asked: asked})
	}
	b.holds.mu.Unlock()
	b.renewals.Hire(2 * scheduler.MostAtOnce * scheduler.Batch)
	defer close(until)
	for range scheduler.MostAtOnce {
		<-asked
	}
	for i := range 4 {
		l := r.newLock(strconv.Itoa(i))
		h := l.newHold(&request{lease: lease.NewTerm(time.Minute)})
		require.NoError(t, r.client.Do(t.Context(), r.client.B().Set().Key(l.place.key).Value(h.value).Build()).Error())
		require.True(t, b.cleaner.Remove(h.removal(), func(bool) {}))
		require.Eventually(t, func() bool {
			n, err := r.client.Do(t.Context(), r.client.B().Exists().Key(l.place.key).Build()).AsInt64()
			return err == nil && n == 0
		}, 20*time.Second, time.Millisecond, "removal %d", i)
	}
}
