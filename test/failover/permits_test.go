package failover

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const permits = 4

// seats counts how many permits are held according to their holders, without asking Redis.
type seats struct {
	*testing.T
	processes []*lockregistry.Registry
	kept      *lockregistry.Hold // of one permit, all the time

	mu      sync.Mutex
	inside  map[*lockregistry.Hold]int
	entries []time.Time
	most    int

	stop    context.CancelFunc
	running sync.WaitGroup
}

// sit has some processes acquire permits all the time.
func sit(t *testing.T, d *redistest.Deployment) *seats {
	t.Helper()
	s := &seats{T: t, inside: map[*lockregistry.Hold]int{}}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	t.Cleanup(s.end)
	for range processes {
		s.processes = append(s.processes, newProcess(t, d, lockregistry.WithRenewal()))
	}
	var err error
	s.kept, err = s.at(0).Acquire(t.Context(), lockregistry.Wait(patience))
	require.NoError(t, err)
	s.enter(s.kept, 1)
	for i := range processes {
		for range 3 {
			s.running.Go(func() {
				for ctx.Err() == nil {
					s.once(ctx, i, 1+rand.IntN(permits-1))
				}
			})
		}
	}
	wait(calmBefore)
	return s
}

func (s *seats) at(process int) *lockregistry.Semaphore {
	return s.processes[process].Semaphore("one", permits)
}

func (s *seats) once(ctx context.Context, process, each int) {
	h, err := s.at(process).Acquire(ctx, lockregistry.Permits(each), lockregistry.Wait(patience))
	if err != nil {
		if ctx.Err() == nil {
			s.Errorf("a call with Wait failed: %v", err)
		}
		return
	}
	s.enter(h, each)
	wait(time.Duration(1+rand.IntN(3)) * time.Millisecond)
	s.leave(h)
	_ = h.Release(context.WithoutCancel(ctx)) // may fail, and is retried
}

func (s *seats) enter(h *lockregistry.Hold, each int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[h] = each
	s.entries = append(s.entries, time.Now())
	n := 0
	for other, has := range s.inside {
		if other.Remaining() > 0 {
			n += has
		}
	}
	s.most = max(s.most, n)
}

func (s *seats) leave(h *lockregistry.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inside, h)
}

// end returns when all calls have ended.
func (s *seats) end() {
	s.stop()
	s.running.Wait()
}

// since returns how many permits were acquired after a given time, and how long after it the first one was.
func (s *seats) since(promoted time.Time) (n int, served time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.entries {
		if at.After(promoted) {
			if n++; n == 1 {
				served = at.Sub(promoted)
			}
		}
	}
	return n, served
}

// judge checks the promises about permits across a promotion.
func (s *seats) judge(promoted time.Time, limit time.Duration) {
	s.Helper()
	require.Eventually(s, func() bool {
		n, _ := s.since(promoted)
		return n > 50
	}, time.Minute, 10*time.Millisecond, "calls are served")
	s.end()
	n, served := s.since(promoted)
	s.Logf("%d acquired, %d after the promotion, the first %v after it, %d permits at once", len(s.entries), n, served, s.most)
	assert.Equal(s, permits, s.most, "permits held at once")
	assert.Less(s, served, limit)
	assert.Positive(s, s.kept.Remaining())
	require.NoError(s, unlessLate(s.kept.Release(s.Context())))
	require.Eventually(s, func() bool {
		info, err := inspect.Of(s.processes[0]).Inspect(s.Context(), "one")
		return err == nil && info.HolderCount == 0 && info.WaiterCount == 0
	}, time.Minute, 10*time.Millisecond, "nothing is left")
}

// When a master is killed, permits that its replica knew of are not granted again, and calls go on.
func TestPermitsMasterIsKilled(t *testing.T) {
	t.Parallel()
	cluster := func(t *testing.T) *redistest.Deployment { t.Helper(); return redistest.StartReplicatedCluster(t, 3, 1) }
	sentinels := func(t *testing.T) *redistest.Deployment { t.Helper(); return redistest.StartSentinels(t, 2, 3) }
	for name, c := range map[string]struct {
		start  func(t *testing.T) *redistest.Deployment
		within time.Duration
	}{
		"cluster":  {cluster, soon},
		"Sentinel": {sentinels, sentinelsTell},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := c.start(t)
			s := sit(t, d)
			master := d.Master(keyOf("one"), nil)
			d.Settle(master, time.Minute) // otherwise the latest grants may be lost
			master.Kill()
			_, promoted := d.AwaitPromotion(keyOf("one"), master)
			s.judge(promoted, within(c.within))
		})
	}
}
