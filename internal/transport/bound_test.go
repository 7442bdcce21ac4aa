package transport

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Nobody gets a bound that another one has, however rounds come in between, and each place is free in the end.
func TestBound_HasOneOwner(t *testing.T) {
	const owners, times = 64, 500
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
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
					s.bounds.round()
				}
			}
		}()
		for range owners {
			all.Go(func() {
				p := Wait{Ctx: t.Context(), Limit: time.Hour}
				for range times {
					end := s.bounds.take()
					_, taken := has.LoadOrStore(end, true)
					end.begin(&p, way.Clock.Now()-clock.Instant(2*timedAfter), nil) // a round takes it for slow
					runtime.Gosched()
					if end.phase.Load() == timed {
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
		require.Empty(t, s.bounds.used)
	})
}

// A command learns how many are under way, and a bound is used again.
func TestBoundPool(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		p := &open(nil).First.bounds
		var all []*bound
		for i := range 5 {
			all = append(all, p.take())
			require.Equal(t, i+1, all[i].nth)
		}
		p.free(all[0], true)
		p.free(all[4], true)
		p.free(all[2], false)
		require.Same(t, all[4], p.take())
		require.Same(t, all[0], p.take())
		require.Equal(t, 4, all[0].nth)
		require.NotSame(t, all[2], p.take())
		for i, b := range p.used {
			require.Equal(t, i, b.index)
		}
	})
}

// A bound that has ended, or waits for the end of a context, is not used again.
func TestBound_TimedIsNotUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		end := way.First.bounds.take()
		p := Wait{Ctx: t.Context(), Limit: time.Minute}
		end.begin(&p, way.Clock.Now(), nil)
		require.False(t, end.stop())
		again := end.pool.take()
		require.Same(t, end, again)
		again.begin(&p, way.Clock.Now(), nil)
		<-time.After(2 * roundEvery)
		synctest.Wait()
		require.Equal(t, timed, again.phase.Load())
		<-again.Done()
		require.ErrorIs(t, again.Err(), fault.NoAnswer)
		require.True(t, again.stop())
		require.NotSame(t, again, end.pool.take())
	})
}

// A bound that was timed, and has not ended, is used again. The end of the context that it watched is nothing to its next owner.
func TestBound_TimedIsUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		for _, rang := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			if rang {
				ctx = context.Background()
			}
			end := way.First.bounds.take()
			end.begin(&Wait{Ctx: ctx, Limit: time.Minute}, way.Clock.Now(), nil)
			<-time.After(2 * roundEvery)
			synctest.Wait()
			require.Equal(t, timed, end.phase.Load())
			if rang {
				end.mu.Lock()
				require.True(t, end.alarm.ring(clock.Instant(end.began.Load()), end.alarm.At()))
				end.mu.Unlock()
			}
			require.False(t, end.stop())
			again := end.pool.take()
			require.Same(t, end, again)
			require.Equal(t, belief.Alarm{}, again.alarm.Alarm)
			now, silence := way.Clock.Now(), way.First.RoundTrip().Silence() // a round has taken it for slow, and is yet to set its timer
			require.False(t, again.excuses(now, now.Add(silence)), "when its timer was to ring before says nothing")
			require.True(t, again.excuses(now, now.Add(silence+belief.Tick)))
			begun := time.Now()
			again.begin(&Wait{Ctx: t.Context(), Limit: time.Second}, way.Clock.Now(), nil)
			cancel()
			<-again.Done()
			require.Equal(t, time.Second, time.Since(begun))
			require.True(t, again.stop())
		}
	})
}

// A bound whose context has ended is not used again: what that has begun may still use it.
func TestBound_EndedContextIsNotUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		ctx, cancel := context.WithCancel(t.Context())
		end := way.First.bounds.take()
		end.begin(&Wait{Ctx: ctx, Limit: time.Minute, Grace: time.Minute / 2}, way.Clock.Now(), nil)
		<-time.After(2 * roundEvery)
		cancel()
		synctest.Wait()
		require.False(t, end.stop())
		require.NotSame(t, end, end.pool.take())
	})
}

// What is left when a command goes another way is what its caller has been promised: the limit, or the grace
// after the end of its context, whether or not a round has seen that yet.
// A round has found a command slow, and has yet to set its timer, when the context of its caller ends.
func TestBound_ContextEndsBeforeTheTimerIsSet(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		end := way.First.bounds.take()
		ctx, cancel := context.WithCancel(t.Context())
		end.callers = true
		end.begin(&Wait{Ctx: ctx, Limit: time.Hour, Grace: time.Minute}, way.Clock.Now(), nil)
		require.True(t, end.phase.CompareAndSwap(untimed, timed))
		cancel()
		end.contextEnded(way.Clock.Now())
		require.False(t, end.over())
		end.stop()
		require.NotSame(t, end, way.First.bounds.take(), "the round comes to it yet")
	})
}

func TestBound_WhatIsLeft(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		const grace, limit = 10 * roundEvery, time.Minute
		way := open(nil)
		for _, rounds := range []bool{false, true} {
			end, now := way.First.bounds.take(), way.Clock.Now()
			ctx, cancel := context.WithCancel(t.Context())
			end.begin(&Wait{Ctx: ctx, Limit: limit, Grace: grace}, now, nil)
			require.Equal(t, limit-timedAfter, end.left(now.Add(timedAfter)))
			cancel()
			if rounds {
				<-time.After(2 * roundEvery)
				now = way.Clock.Now()
				require.Equal(t, timed, end.phase.Load())
			}
			require.LessOrEqual(t, end.left(now.Add(timedAfter)), grace-timedAfter)
			require.Positive(t, end.left(now.Add(timedAfter)))
			require.Zero(t, end.left(now.Add(limit)))
			end.stop()
		}
	})
}
