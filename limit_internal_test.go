package lockregistry

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Nobody gets a limit that another one has, however rounds come in between, and each place is free in the end.
func TestALimitHasOneOwner(t *testing.T) {
	const owners, times = 64, 500
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		way := open(nil)
		l := way.first
		var has sync.Map
		var over, slows atomic.Int32
		var all sync.WaitGroup
		stop := make(chan struct{})
		rounds := make(chan struct{})
		go func() {
			defer close(rounds)
			for {
				select {
				case <-stop:
					return
				default:
					way.watch.round()
				}
			}
		}()
		for range owners {
			all.Go(func() {
				p := patience{ctx: t.Context(), limit: time.Hour}
				for range times {
					end := l.place()
					_, taken := has.LoadOrStore(end, true)
					end.begin(&p, way.clock.Now()-clock.Instant(2*watchAfter), nil) // a round takes it for slow
					if end.phase.Load() == slow {
						slows.Add(1)
					}
					has.Delete(end)
					if taken || end.stop() { // from here on it may be another's
						over.Add(1)
					}
				}
			})
		}
		all.Wait()
		close(stop)
		<-rounds
		require.Zero(t, over.Load())
		require.NotZero(t, slows.Load())
		for i := range l.limits {
			if g := l.limits[i].Load(); g != nil {
				require.Zero(t, g.taken.Load())
			}
		}
	})
}

func TestPlacesForLimits(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		l := open(nil).first
		first := l.place()
		require.True(t, l.alone(first))
		last := l.place()
		require.False(t, l.alone(first))
		for range mostDirect - 2 {
			last = l.place()
			require.NotNil(t, last)
		}
		require.Nil(t, l.place())
		last.free()
		require.Same(t, last, l.place())
	})
}

// A limit that has ended, or waits for the end of a context, is not used again.
func TestASlowLimitIsNotUsedAgain(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		way := open(nil)
		end := way.first.place()
		p := patience{ctx: t.Context(), limit: time.Minute}
		end.begin(&p, way.clock.Now(), nil)
		require.False(t, end.stop())
		again := end.group.take(way.first)
		require.Same(t, end, again)
		again.begin(&p, way.clock.Now(), nil)
		<-time.After(2 * watchEvery)
		synctest.Wait()
		require.Equal(t, slow, again.phase.Load())
		<-again.Done()
		require.ErrorIs(t, again.Err(), fault.NoAnswer)
		require.True(t, again.stop())
		require.NotSame(t, again, end.group.take(way.first))
	})
}

// What is left when a command goes another way is what its caller has been promised: the limit, or the grace after the end of
// its context, whether or not a round has seen that yet.
func TestWhatIsLeftOfALimit(t *testing.T) {
	inLanes(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *transport) {
		const grace, limit = 10 * watchEvery, time.Minute
		way := open(nil)
		for _, rounds := range []bool{false, true} {
			end, now := way.first.place(), way.clock.Now()
			ctx, cancel := context.WithCancel(t.Context())
			end.begin(&patience{ctx: ctx, limit: limit, grace: grace}, now, nil)
			require.Equal(t, limit-watchAfter, end.left(now.Add(watchAfter)))
			cancel()
			if rounds {
				<-time.After(2 * watchEvery)
				now = way.clock.Now()
				require.Equal(t, slow, end.phase.Load())
			}
			require.LessOrEqual(t, end.left(now.Add(watchAfter)), grace-watchAfter)
			require.Positive(t, end.left(now.Add(watchAfter)))
			require.Zero(t, end.left(now.Add(limit)))
			end.stop()
		}
	})
}
