package transport

import (
	"context"
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

// distant is a server that answers after a while, which may change, or not at all.
type distant struct {
	trip  atomic.Int64
	mu    sync.Mutex
	until chan struct{} // until this is closed nothing is answered; nil: all is
}

func (d *distant) answer(context.Context) rueidis.RedisResult {
	d.mu.Lock()
	until := d.until
	d.mu.Unlock()
	<-time.After(time.Duration(d.trip.Load()))
	if until != nil {
		<-until
	}
	return rueidis.RedisResult{}
}

// freeze has nothing answered until it is called again.
func (d *distant) freeze() (thaw func()) {
	until := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = until
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.until = nil
		close(until)
	}
}

// Do is what commands do, and probes too, whose contexts do not end; others are given up with their contexts.
func (d *distant) Do(ctx context.Context) rueidis.RedisResult {
	answered := make(chan rueidis.RedisResult, 1)
	go func() { answered <- d.answer(ctx) }()
	select {
	case r := <-answered:
		return r
	case <-ctx.Done():
		return rueidis.NewErrorResult(ctx.Err())
	}
}

// distantClient answers every command as its server does.
type distantClient struct {
	rueidis.Client
	d *distant
}

func (c distantClient) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	return c.d.Do(ctx)
}

func (c distantClient) Dedicate() (rueidis.DedicatedClient, func()) {
	w := distantWire{c: c}
	w.open, w.close = context.WithCancel(context.Background())
	return w, func() {}
}

type distantWire struct {
	rueidis.DedicatedClient
	c     distantClient
	open  context.Context //nolint:containedctx // ends commands that are under way
	close context.CancelFunc
}

func (w distantWire) B() rueidis.Builder { return w.c.B() }
func (w distantWire) Close()             { w.close() }
func (w distantWire) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.open, cancel)()
	return w.c.d.Do(ctx)
}

// fromAfar runs a test in fake time with a node whose server is far away, and is known to be.
func fromAfar(
	t *testing.T, trip time.Duration,
	test func(t *testing.T, way *Client, d *distant, ask func(context.Context, time.Duration) Reply),
) {
	t.Helper()
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		d := &distant{}
		d.trip.Store(int64(trip))
		way := New(distantClient{client, d})
		ask := func(ctx context.Context, limit time.Duration) Reply {
			return way.Do(&Wait{Ctx: ctx, Limit: limit}, &protocol.Call{Key: "42"})
		}
		for range 32 {
			require.NoError(t, ask(t.Context(), time.Minute).Error())
		}
		require.Equal(t, trip, way.First.RoundTrip().Base)
		test(t, way, d, ask)
		<-time.After(time.Minute)
	})
}

var distances = []time.Duration{0, 50 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond}

// A caller that gives up says nothing about the server.
func TestNode_CallsThatGaveUpMakeNobodySuspect(t *testing.T) {
	for _, trip := range distances[1:] {
		fromAfar(t, trip, func(t *testing.T, way *Client, _ *distant, ask func(context.Context, time.Duration) Reply) {
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), trip/2)
				require.ErrorIs(t, ask(ctx, time.Minute).Error(), fault.NoAnswer)
				cancel()
				require.False(t, way.First.IsSuspect(way.Clock.Now()))
			}
			require.False(t, ask(t.Context(), time.Minute).Late)
		})
	}
}

// A silent server is suspect when the oldest command has had no reply for too long, whether or not its caller still waits. If a
// probe was sent in the command's place, the probe has half a second. A reply that comes after that to a command from before is
// late, however fast it was.
func TestNode_SilentServerIsSuspect(t *testing.T) {
	for _, trip := range distances {
		for name, patience := range map[string]time.Duration{
			"its caller waits": time.Minute, "its caller has gone": 60 * time.Millisecond,
		} {
			t.Run(trip.String()+", "+name, func(t *testing.T) {
				fromAfar(t, trip, func(t *testing.T, way *Client, d *distant, ask func(context.Context, time.Duration) Reply) {
					s := way.First
					thaw := d.freeze()
					silence := s.RoundTrip().Silence()
					begun := way.Clock.Now()
					go ask(t.Context(), patience)
					<-time.After(silence - time.Millisecond)
					synctest.Wait()
					require.False(t, s.IsSuspect(way.Clock.Now()))
					last := make(chan Reply, 1)
					go func() { last <- ask(t.Context(), time.Minute) }()
					for !s.IsSuspect(way.Clock.Now()) {
						<-time.After(time.Millisecond)
						synctest.Wait()
					}
					found := silence
					if patience < silence { // it is given up, and a probe is sent
						found = max(found, patience+belief.Silence)
					}
					require.LessOrEqual(t, begun.Until(way.Clock.Now()), found+2*time.Millisecond)
					thaw()
					a := <-last
					require.NoError(t, a.Error())
					require.True(t, a.Late, "it took %v", a.Sent.Until(a.Came))
				})
			})
		}
	}
}

// A command whose caller wants to fail fast ends soon after the server was found silent, by whichever command.
func TestBound_FailFast(t *testing.T) {
	for _, trip := range distances {
		for _, fast := range []bool{true, false} {
			fromAfar(t, trip, func(t *testing.T, way *Client, d *distant, ask func(context.Context, time.Duration) Reply) {
				silence := way.First.RoundTrip().Silence()
				defer d.freeze()()
				begun := way.Clock.Now()
				go ask(t.Context(), time.Minute)
				<-time.After(silence / 2)
				const limit = 10 * time.Second
				p := Wait{Ctx: t.Context(), Limit: limit, FailFast: fast}
				a := way.Do(&p, &protocol.Call{Key: "42"})
				require.ErrorIs(t, a.Error(), fault.NoAnswer)
				if took := begun.Until(way.Clock.Now()); fast {
					require.GreaterOrEqual(t, took, silence)
					require.LessOrEqual(t, took, silence+2*tooSoon)
				} else {
					require.Equal(t, silence/2+limit, took)
				}
			})
		}
	}
}

// A freeze does not make a server that is near a distant one.
func TestRoundTrip_WhatIsLearnedOfAFreeze(t *testing.T) {
	fromAfar(t, time.Millisecond, func(t *testing.T, way *Client, d *distant, ask func(context.Context, time.Duration) Reply) {
		thaw := d.freeze()
		for range 20 {
			go ask(t.Context(), time.Minute)
			<-time.After(150 * time.Millisecond)
		}
		thaw()
		synctest.Wait()
		require.Less(t, way.First.RoundTrip().Base, 2*time.Millisecond)
	})
}

// When the round trip becomes longer, that is known after three exchanges.
func TestRoundTrip_WhatIsLearnedOfALongWay(t *testing.T) {
	fromAfar(t, time.Millisecond, func(t *testing.T, way *Client, d *distant, ask func(context.Context, time.Duration) Reply) {
		d.trip.Store(int64(900 * time.Millisecond))
		go ask(t.Context(), time.Minute)
		<-time.After(4 * time.Second)
		synctest.Wait()
		require.Equal(t, 900*time.Millisecond, way.First.RoundTrip().Base)
	})
}

// When this process itself stood still, a late reply says nothing about the server, unless the process stood still for very
// long.
func TestAlarm_PauseOfTheProcess(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(distantClient{client, &distant{}})
		s := way.First
		s.belief.WarmedUp()
		for i := range 3 {
			s.belief.Sample(clock.Instant(i+1)*clock.Instant(time.Second), clock.Instant(i+1)*clock.Instant(time.Second))
		}
		for stood, excused := range map[time.Duration]bool{
			550 * time.Millisecond: false, time.Second: true, 2900 * time.Millisecond: true, 3100 * time.Millisecond: false,
		} {
			end := s.bounds.next()
			begun := way.Clock.Now()
			s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: time.Minute}, begun, nil) // its timer is not there yet
			require.Equal(t, excused, end.excuses(begun, begun.Add(stood)), stood)
			s.bounds.stop(end)

			end = s.bounds.next()
			s.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: time.Minute}, begun, nil)
			require.True(t, end.phase.CompareAndSwap(untimed, timed))
			end.mu.Lock()
			end.setTimer(begun)
			rings := end.silent(begun.Add(stood)) != nil // it fires so late
			end.mu.Unlock()
			require.Equal(t, !excused, rings, stood)
			require.Equal(t, excused, end.excuses(begun, begun.Add(stood)), stood)
			s.bounds.stop(end)
		}
		x := belief.Exchange{Sent: way.Clock.Now(), Came: way.Clock.Now().Add(time.Second), Trip: s.RoundTrip(), Excused: true}
		require.Equal(t, belief.Late, s.believes(&Wait{}, nil, x))
		require.False(t, s.IsSuspect(x.Came))
		for i := range 3 {
			sent := clock.Instant(10+10*i) * clock.Instant(time.Second)
			s.takeIn(&Wait{}, true, &Reply{Sent: sent, Came: sent.Add(time.Second)})
		}
		require.Equal(t, RoundTrip{Known: true}, s.RoundTrip(), "none is a sample")
		<-time.After(time.Minute)
	})
}
