package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

func openDirected(t *testing.T, addr string, lease time.Duration) session {
	t.Helper()
	d, err := openDirectedFloor(opening{addr: addr, lease: lease})
	require.NoError(t, err)
	t.Cleanup(d.close)
	return d.session("path")
}

func TestDirectedFloorLeavesNobodyAsleep(t *testing.T) {
	const processes, sections = 4, 500
	redis := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var (
		done   sync.WaitGroup
		inside atomic.Int32
	)
	for range processes {
		s := openDirected(t, redis.Addr(), time.Minute)
		done.Go(func() {
			for range sections {
				if !assert.NoError(t, s.lock(ctx)) {
					return
				}
				assert.EqualValues(t, 1, inside.Add(1))
				inside.Add(-1)
				if !assert.NoError(t, s.unlock(ctx)) {
					return
				}
			}
		})
	}
	done.Wait()
}

func TestDirectedFloorServesWhenALeaseEnds(t *testing.T) {
	redis := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	dead := openDirected(t, redis.Addr(), 100*time.Millisecond)
	require.NoError(t, dead.lock(ctx))
	var done sync.WaitGroup
	for range 3 {
		s := openDirected(t, redis.Addr(), time.Minute)
		done.Go(func() {
			assert.NoError(t, s.lock(ctx))
			assert.NoError(t, s.unlock(ctx))
		})
	}
	done.Wait()
	assert.ErrorIs(t, dead.unlock(ctx), errFloorLost)
}
