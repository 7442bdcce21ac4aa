package transport

import (
	"context"
	"runtime"
	"strings"
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
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// No two commands ever have one bound, however rounds come in between, and each place is free in the end.
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
					end := s.bounds.next()
					_, taken := has.LoadOrStore(end, true)
					s.bounds.begin(end, &p, way.Clock.Now()-clock.Instant(2*timedAfter), nil) // a round takes it for slow
					runtime.Gosched()
					if end.phase.Load() == timed {
						slows.Add(1)
					}
					has.Delete(end)
					if taken || s.bounds.stop(end) { // from here on it may be another's
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

// bomb is a context. One call of its methods panics, in the goroutine that sends a command.
type bomb struct {
	context.Context
	left  *atomic.Int32 // calls before that
	after time.Duration // how long that call takes
}

func (b bomb) count() {
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(2, stack[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		sends := strings.HasSuffix(f.Function, ".(*Client).send") || strings.HasSuffix(f.Function, ".(*Node).doOwn")
		if sends && b.left.Add(-1) == 0 {
			<-time.After(b.after)
			panic("a method of the context")
		}
	}
}

func (b bomb) Deadline() (time.Time, bool) { b.count(); return b.Context.Deadline() }
func (b bomb) Done() <-chan struct{}       { b.count(); return b.Context.Done() }
func (b bomb) Err() error                  { b.count(); return b.Context.Err() }
func (b bomb) Value(key any) any           { b.count(); return b.Context.Value(key) }

// Code of the user may panic, in a hook or in a method of the context. Afterwards the place of the command is free, and no
// other command gets its reply.
func TestBound_IsFreeAfterAPanic(t *testing.T) {
	const took = 300 * time.Millisecond // a round makes its bound a timed one
	for name, c := range map[string]struct {
		queued bool
		after  time.Duration
	}{
		"direct": {false, 0}, "queued": {true, 0},
		"queued, and sent": {true, took / 2}, "queued, and the reply has come": {true, 2 * took},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
				explodes := false
				way := open(func(context.Context) rueidis.RedisResult {
					<-time.After(took)
					if explodes {
						panic("a hook")
					}
					return rueidis.RedisResult{}
				})
				s := way.First
				way.ignoresCtx.Store(c.queued)
				do := func(ctx context.Context) (panicked any) {
					defer func() { panicked = recover() }()
					s.heardNow()
					way.Do(&Wait{Ctx: ctx, Limit: time.Minute}, &protocol.Call{Key: "42"})
					return nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for n, panicked := int32(1), any(true); panicked != nil; n++ {
					left := new(atomic.Int32)
					left.Store(n)
					panicked = do(bomb{ctx, left, c.after})
					require.Empty(t, s.bounds.used, "after call %d", n)
					began := time.Now()
					require.Nil(t, do(t.Context()))
					require.Equal(t, took, time.Since(began), "after call %d", n)
				}
				if !c.queued {
					explodes = true
					require.NotNil(t, do(t.Context()))
					require.Empty(t, s.bounds.used)
				}
			})
		})
	}
}

// A command learns how many are under way, and a bound is used again.
func TestBoundPool(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		p := &open(nil).First.bounds
		var all []*bound
		for i := range 5 {
			b, used := p.take()
			require.Equal(t, i+1, used)
			all = append(all, b)
		}
		all[2].phase.Store(spent)
		p.free(all[0])
		p.free(all[4])
		p.free(all[2])
		require.Same(t, all[4], p.next())
		b, used := p.take()
		require.Same(t, all[0], b)
		require.Equal(t, 4, used)
		require.NotSame(t, all[2], p.next())
		for i, b := range p.used {
			require.Equal(t, i, b.index)
		}
	})
}

// A bound that has ended, or waits for the end of a context, is not used again.
func TestBound_TimedIsNotUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		end := s.bounds.next()
		p := Wait{Ctx: t.Context(), Limit: time.Minute}
		s.bounds.begin(end, &p, way.Clock.Now(), nil)
		require.False(t, s.bounds.stop(end))
		again := s.bounds.next()
		require.Same(t, end, again)
		s.bounds.begin(again, &p, way.Clock.Now(), nil)
		<-time.After(2 * roundEvery)
		synctest.Wait()
		require.Equal(t, timed, again.phase.Load())
		<-again.Done()
		require.ErrorIs(t, again.Err(), fault.NoAnswer)
		require.True(t, s.bounds.stop(again))
		require.NotSame(t, again, s.bounds.next())
	})
}

// A bound that was timed, and has not ended, is used again. The context that it watched may end later: that does not concern
// the next command.
func TestBound_TimedIsUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		for _, rang := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			if rang {
				ctx = context.Background()
			}
			end := s.bounds.next()
			s.bounds.begin(end, &Wait{Ctx: ctx, Limit: time.Minute}, way.Clock.Now(), nil)
			<-time.After(2 * roundEvery)
			synctest.Wait()
			require.Equal(t, timed, end.phase.Load())
			if rang {
				end.mu.Lock()
				require.True(t, end.alarm.Ring(&s.belief, clock.Instant(end.began.Load()), end.alarm.At))
				end.mu.Unlock()
			}
			require.False(t, s.bounds.stop(end))
			again := s.bounds.next()
			require.Same(t, end, again)
			require.Equal(t, belief.Alarm{}, again.alarm)
			now, silence := way.Clock.Now(), way.First.RoundTrip().Silence() // a round has taken it for slow, and is yet to set its timer
			require.False(t, again.excuses(now, now.Add(silence)), "when its timer was to ring before says nothing")
			require.True(t, again.excuses(now, now.Add(silence+belief.Tick)))
			begun := time.Now()
			s.bounds.begin(again, &Wait{Ctx: t.Context(), Limit: time.Second}, way.Clock.Now(), nil)
			cancel()
			<-again.Done()
			require.Equal(t, time.Second, time.Since(begun))
			require.True(t, s.bounds.stop(again))
		}
	})
}

// The timer of a command notices that the server is silent, just as the reply comes and another command gets the bound. It
// reports the silence of the first command.
func TestBound_ASilenceIsToldOfTheCommandThatHadIt(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		end := s.bounds.next()
		for range 20 {
			s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: time.Minute}, way.Clock.Now(), nil)
			<-time.After(2 * roundEvery)
			synctest.Wait()
			at := func() clock.Instant {
				end.mu.Lock()
				defer end.mu.Unlock()
				return end.alarm.At
			}
			rings := at()
			<-time.After(way.Clock.Now().Until(rings))
			for at() == rings { // the timer's goroutine runs now, too
				runtime.Gosched()
			}
			require.False(t, s.bounds.stop(end))
			end = s.bounds.next()
			end.enter(task{plain: true})
			s.bounds.free(end)
			end = s.bounds.next()
			end.plain = false
		}
	})
}

// A bound whose context has ended is not used again: what the end has started may still use it.
func TestBound_EndedContextIsNotUsedAgain(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		ctx, cancel := context.WithCancel(t.Context())
		s := way.First
		end := s.bounds.next()
		s.bounds.begin(end, &Wait{Ctx: ctx, Limit: time.Minute, Grace: time.Minute / 2}, way.Clock.Now(), nil)
		<-time.After(2 * roundEvery)
		cancel()
		synctest.Wait()
		require.False(t, s.bounds.stop(end))
		require.NotSame(t, end, s.bounds.next())
	})
}

// A round has found a command slow, and has yet to set its timer, when the context of its caller ends.
func TestBound_ContextEndsBeforeTheTimerIsSet(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		end := s.bounds.next()
		ctx, cancel := context.WithCancel(t.Context())
		end.queued = true
		s.bounds.begin(end, &Wait{Ctx: ctx, Limit: time.Hour, Grace: time.Minute}, way.Clock.Now(), nil)
		require.True(t, end.phase.CompareAndSwap(untimed, timed))
		cancel()
		end.contextEnded(way.Clock.Now())
		require.False(t, end.over())
		s.bounds.stop(end)
		require.NotSame(t, end, s.bounds.next(), "the round comes to it yet")
	})
}

// A command that is sent another way has the rest of the time that its caller was promised: the limit, or the grace after the
// end of its context, whether or not a round has seen that end.
func TestBound_WhatIsLeft(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		const grace, limit = 10 * roundEvery, time.Minute
		way := open(nil)
		now := way.Clock.Now()
		ctx, cancel := context.WithCancel(t.Context())
		end := way.First.bound(&Wait{Ctx: ctx, Limit: limit, Grace: grace}, now)
		defer end.stop()
		require.Equal(t, limit-timedAfter, end.left(now.Add(timedAfter)))
		cancel()
		synctest.Wait()
		require.Equal(t, grace-timedAfter, end.left(now.Add(timedAfter)))
		require.Zero(t, end.left(now.Add(limit)))
	})
}

// A limit that was chosen for a server nearby, plus round trips, ends later if the round trips turn out longer.
func TestBound_TheWayTurnsOutLonger(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		const near, trip = time.Second, 600 * time.Millisecond
		for _, grows := range []bool{false, true} {
			way := open(nil)
			p := Wait{Ctx: t.Context(), Limit: way.First.Plus(near)}
			if grows {
				p.Near = near
			}
			end := way.First.bound(&p, way.Clock.Now())
			for i := range 3 {
				sent := clock.Instant(i) * clock.Instant(time.Second)
				way.First.belief.Sample(sent, sent.Add(trip))
			}
			<-time.After(near + trip)
			require.Equal(t, grows, !end.over())
			<-time.After(2 * trip)
			require.True(t, end.over())
			end.stop()
		}
	})
}

func (p *boundPool) next() *bound {
	b, _ := p.take()
	return b
}

func (p *boundPool) stop(b *bound) (over bool) {
	defer p.free(b)
	return b.stop()
}

// The silence of a queued command begins when it is sent, and counts against the server to which it was sent. A command over
// the old connections of a suspect node says nothing new, nor does one that is answered.
func TestBound_SilenceOfAQueuedCommand(t *testing.T) {
	for name, c := range map[string]struct {
		sent, plain, answered bool
		finds                 bool
	}{
		"not sent":   {},
		"sent":       {sent: true, finds: true},
		"old way":    {sent: true, plain: true},
		"answered":   {sent: true, answered: true},
		"only asked": {plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
				way := open(nil)
				s, other := way.First, open(nil).First
				<-time.After(time.Minute)
				if c.plain {
					s.belief.Doubted(way.Clock.Now())
				}
				before := s.belief.SilentAt()
				<-time.After(time.Second)
				end := s.bounds.next()
				e := end.enter(task{plain: c.plain})
				s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: time.Minute}, way.Clock.Now(), nil)
				if c.sent {
					end.firstSent.Store(int64(way.Clock.Now()))
					end.to.Store(&other.judge)
				}
				if c.answered {
					e.answer(rueidis.RedisResult{})
				}
				<-time.After(10 * time.Second)
				synctest.Wait()
				require.Equal(t, before, s.belief.SilentAt())
				require.Equal(t, c.finds, other.belief.SilentAt() != 0)
				s.bounds.stop(end)
			})
		})
	}
}

// A round has found a command slow, and is about to set its timer. Then the command is answered, and the context of its caller
// ends. That does not concern the bound any more.
func TestBound_ContextEndsAfterItWasStopped(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		end := s.bounds.next()
		s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: time.Second}, way.Clock.Now(), nil)
		require.True(t, end.phase.CompareAndSwap(untimed, timed))
		s.bounds.stop(end)
		end.contextEnded(way.Clock.Now())
		<-time.After(time.Minute)
		synctest.Wait()
		require.False(t, end.over())
	})
}

// An idle bound is reused. It must not keep the node of its last command in memory, since no slot may lead to that node any
// more.
func TestBound_AnIdleOneKeepsNoNode(t *testing.T) {
	way := New(onMiniredis(t))
	defer way.Close()
	s := way.First
	for _, limit := range []time.Duration{time.Minute, timedAfter} { // untimed, and timed
		end, _ := s.bounds.take()
		e := end.enter(task{})
		s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: limit}, way.Clock.Now(), nil)
		end.to.Store(&newNode(way, "").judge) // its driver sends it
		e.answer(rueidis.RedisResult{})
		e.await()
		require.False(t, s.bounds.stop(end))
		require.Nil(t, end.to.Load())
		require.Same(t, end, s.bounds.idle[0])
	}
}

// After a burst of calls, most of their bounds are dropped.
func TestBoundPool_KeepsFewIdleOnes(t *testing.T) {
	way := New(onMiniredis(t))
	defer way.Close()
	p := &way.First.bounds
	all := make([]*bound, mostIdleBounds+10)
	for i := range all {
		all[i] = p.next()
	}
	for _, b := range all {
		p.free(b)
	}
	require.Empty(t, p.used)
	require.Len(t, p.idle, mostIdleBounds)
}
