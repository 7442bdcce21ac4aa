package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/sentinel"
)

// While all attempts to make a fresh connection hang, get says that there will be none, and the caller does not ask again at
// once.
func TestFreshConns_AllThatMakeOneHang(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		f := open(nil).First.fresh
		f.dials.hanging = []clock.Instant{f.judge.clock.Now().Add(-poolWait)}
		asked := 0
		conn, none := f.get(func() bool { asked++; return asked > 1 })
		require.Nil(t, conn)
		require.True(t, none)
		require.Nil(t, f.dials.dial(wanted{}), "nor does a lone caller, or one for replicas")
		require.Len(t, f.dials.hanging, 1, "one more would hang, too")
	})
}

// While a server is silent its round trip cannot be measured. It may have become so long that no connection is made in time. So
// it is measured anew after each failure, and a connection is made long before the node counts as healthy again.
func TestFreshConns_TheWayHasBecomeLonger(t *testing.T) {
	fromAfar(t, time.Millisecond, func(t *testing.T, way *Client, d *distant, _ func(context.Context, time.Duration) Reply) {
		_, known := way.database(time.Minute)
		require.True(t, known)
		thaw, now := d.freeze(), way.Clock.Now()
		way.First.foundSilent(now, now)
		<-time.After(probeLimit + time.Second)
		d.trip.Store(int64(900 * time.Millisecond))
		thaw()
		began := time.Now()
		conn, _ := way.First.fresh.get(func() bool { return time.Since(began) > belief.Old/2 })
		require.NotNil(t, conn)
	})
}

// On a suspect node, the attempts of other parts that hang do not count: the node makes its own attempts before it gives up.
func TestFreshConns_OthersHang(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		node := open(nil).First
		now := node.client.Clock.Now()
		node.dials.hanging = []clock.Instant{now.Add(-poolWait)}
		node.belief.FoundSilent(now, now)
		asked := 0
		_, none := node.fresh.get(func() bool { asked++; return asked > 1 })
		require.False(t, none)
	})
}

// dedicating notes when it was asked for a connection.
type dedicating struct {
	distantClient
	mu    sync.Mutex
	times []time.Time
}

func (c *dedicating) Dedicate() (rueidis.DedicatedClient, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Now())
	return c.distantClient.Dedicate()
}

// While a server is silent, one connection to it is made at a time, however many calls want one. Before the next there is a
// pause, which grows to a second.
func TestFreshConns_PauseAfterOneThatHasFailed(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		c := &dedicating{distantClient: distantClient{client, &distant{}}}
		way := New(c)
		_, known := way.database(time.Minute)
		require.True(t, known)
		defer c.d.freeze()()
		way.First.belief.FoundSilent(0, way.Clock.Now())
		end := way.Clock.Now().Add(lasts)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				conn, none := way.First.fresh.get(func() bool { return way.Clock.Now() >= end })
				if conn != nil || none {
					t.Error("there is one, or never will be")
				}
			})
		}
		all.Wait()
		synctest.Wait()
		c.mu.Lock() // one may be asked for by now
		times := slices.Clone(c.times)
		c.mu.Unlock()
		pauses := 0
		for i, at := range times[1:] {
			if at.Sub(times[i]) > belief.Connect/2 {
				pauses++
			}
		}
		require.GreaterOrEqual(t, pauses, 2, times)
		require.LessOrEqual(t, len(times), int(lasts/askLimit), "each is asked for its age")
		<-time.After(time.Minute)
	})
}

// refusing is a server whose connections are refused for a while, as while it restarts.
type refusing struct {
	dedicating
	until time.Time
}

type refusedWire struct{ rueidis.DedicatedClient }

func (refusedWire) Close() {}
func (refusedWire) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	return rueidis.NewErrorResult(syscall.ECONNREFUSED)
}

func (w refusedWire) B() rueidis.Builder { return w.DedicatedClient.B() }

func (c *refusing) Dedicate() (rueidis.DedicatedClient, func()) {
	made, back := c.dedicating.Dedicate()
	if time.Now().Before(c.until) {
		return refusedWire{made}, back
	}
	return made, back
}

// While connections are refused there is a pause after each, however many want one. It is short: soon after the
// server has started, there is one.
func TestFreshConns_PauseAfterOneThatIsRefused(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		c := &refusing{dedicating{distantClient: distantClient{client, &distant{}}}, time.Now().Add(lasts)}
		way := New(c)
		way.First.belief.FoundSilent(0, way.Clock.Now())
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				conn, none := way.First.fresh.get(func() bool { return false })
				if conn == nil || none {
					t.Error("there is none")
				} else if late := time.Since(c.until); late < 0 || late > refusedPause {
					t.Errorf("it was there after %v", late)
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, len(c.times), int(lasts/(refusedPause/2)))
		for i, at := range c.times[1:] {
			require.LessOrEqual(t, at.Sub(c.times[i]), refusedPause)
		}
		<-time.After(time.Minute)
	})
}

// A command is found unanswered, and the fresh connection that may have carried it is about to be closed for that. Just then a
// driver chooses this connection. Its command goes over another one.
func TestFreshConns_SilentBeforeItIsTaken(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.doubt()
		require.NoError(t, v.send(time.Second).Error())
		f := v.First.fresh
		before := f.held()
		<-time.After(time.Millisecond)
		now := v.Clock.Now()
		v.First.belief.FoundSilent(now, now)
		<-time.After(time.Millisecond)
		require.Same(t, before, f.held())
		require.NoError(t, v.send(time.Second).Error())
		require.NotSame(t, before, f.held())
	})
}

// held is the fresh connection.
func (f *freshConns) held() *freshConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn
}

// If this package has closed a connection, the client's error for that is not passed on: the command has had no reply.
func TestFreshConns_GivenUp(t *testing.T) {
	for _, err := range []error{rueidis.ErrClosing, rueidis.ErrDedicatedClientRecycled} {
		withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
			v.doubt()
			v.redis.answers = func(string) error { return err }
			a := v.send(time.Second)
			require.ErrorIs(t, a.Error(), fault.NoAnswer)
			require.NotErrorIs(t, a.Error(), err)
		})
	}
}

// helloless answers everything but HELLO.
type helloless struct {
	distantClient
	hangs atomic.Bool
	made  atomic.Int32
}

type hellolessWire struct {
	rueidis.DedicatedClient
	of *helloless
}

func (c *helloless) Dedicate() (rueidis.DedicatedClient, func()) {
	c.made.Add(1)
	made, back := c.distantClient.Dedicate()
	return hellolessWire{made, c}, back
}

func (w hellolessWire) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] == "HELLO" && w.of.hangs.Load() {
		defer w.of.d.freeze()()
		return w.DedicatedClient.Do(ctx, command)
	}
	return w.DedicatedClient.Do(ctx, command)
}

// A connection whose HELLO was not answered in time is closed: the reply may come to the next command.
func TestDialer_HelloWithoutAnAnswer(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		c := &helloless{distantClient: distantClient{client, &distant{}}}
		way := New(c)
		c.hangs.Store(true)
		require.Nil(t, way.First.dials.dial(wanted{skips: mostSkipped}))
		require.EqualValues(t, 1, c.made.Load())
		c.hangs.Store(false)
		require.NotNil(t, way.First.dials.dial(wanted{skips: mostSkipped}))
		<-time.After(time.Minute)
	})
}
