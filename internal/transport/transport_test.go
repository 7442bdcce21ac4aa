package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onMiniredis returns a client, made outside of fake time.
func onMiniredis(t *testing.T) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// lateClient answers when the context of a command ends, or a while after that.
type lateClient struct {
	rueidis.Client
	after time.Duration
}

func (c lateClient) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	<-ctx.Done()
	<-time.After(c.after)
	return rueidis.RedisResult{}
}

// An answer that comes just when the wait for it ends does not mean that the client ignores contexts.
func TestClient_RepliesAtTheEndOfAContext(t *testing.T) {
	client := onMiniredis(t)
	for after, deaf := range map[time.Duration]bool{0: false, time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			way := New(lateClient{client, after})
			way.First.heardNow()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			way.Do(&Wait{Ctx: ctx, Limit: time.Minute}, &protocol.Call{Key: "42"})
			require.Equal(t, deaf, way.ignoresCtx.Load())
		})
	}
}

// stubClient answers commands as a test wants.
type stubClient struct {
	rueidis.Client
	do func(context.Context) rueidis.RedisResult
}

func (c stubClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if c.do == nil || command.Commands()[0] == "PING" { // after a command was given up
		return rueidis.RedisResult{}
	}
	return c.do(ctx)
}

// heardNow makes it look as if all connections were made, and the node was heard from just now.
func (s *Node) heardNow() {
	s.belief.WarmedUp()
	s.GotMessage(s.client.Clock.Now())
}

// withNode runs a test in fake time, with a node on which all connections have been made, and from which it was heard now.
func withNode(t *testing.T, test func(t *testing.T, open func(do func(context.Context) rueidis.RedisResult) *Client)) {
	t.Helper()
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		test(t, func(do func(context.Context) rueidis.RedisResult) *Client {
			way := New(stubClient{client, do})
			way.First.heardNow()
			return way
		})
	})
}

// A command ends with its caller's wait, although it has no timer of its own at first.
func TestBound_LastsAsLongAsItsCaller(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		limit, deadline, cancelled, grace time.Duration
		took, most                        time.Duration
	}{
		"short limit":                    {limit: ms, took: ms},
		"limit between two rounds":       {limit: timedAfter + roundEvery + ms, took: timedAfter + roundEvery + ms},
		"long limit":                     {limit: time.Second, took: time.Second},
		"context that ends soon":         {limit: time.Second, deadline: ms, took: ms},
		"context that ends later":        {limit: time.Second, deadline: 700 * ms, took: 700 * ms},
		"context that ends, with grace":  {limit: time.Second, deadline: ms, grace: 100 * ms, took: 101 * ms},
		"context that ends too late":     {limit: time.Second, deadline: 950 * ms, grace: 100 * ms, took: time.Second},
		"context that is cancelled":      {limit: time.Second, cancelled: 500 * ms, took: 500 * ms},
		"context that is cancelled soon": {limit: time.Second, cancelled: ms, took: ms, most: timedAfter + roundEvery},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
				way := open(func(ctx context.Context) rueidis.RedisResult {
					<-ctx.Done()
					return rueidis.NewErrorResult(ctx.Err())
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancelled > 0 {
					time.AfterFunc(c.cancelled, cancel)
				}
				began := time.Now()
				a := way.Do(&Wait{Ctx: ctx, Limit: c.limit, Grace: c.grace}, &protocol.Call{Key: "42"})
				require.ErrorIs(t, a.Error(), fault.NoAnswer)
				require.GreaterOrEqual(t, time.Since(began), c.took)
				require.LessOrEqual(t, time.Since(began), max(c.took, c.most))
			})
		})
	}
}

// Nothing runs while no command is under way.
func TestWatchdog_Rests(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(func(context.Context) rueidis.RedisResult { return rueidis.RedisResult{} })
		way.Do(&Wait{Ctx: t.Context(), Limit: time.Second}, &protocol.Call{Key: "42"})
		require.True(t, way.First.bounds.running.Load())
		<-time.After(roundEvery + 1)
		synctest.Wait()
		require.False(t, way.First.bounds.running.Load())
	})
}

// A client that may want to see each command sees each, even if many wait since the server is silent.
func TestQueue_OneCommandAtATime(t *testing.T) {
	const many = apartDrivers + 100
	withNode(t, func(t *testing.T, open func(do func(context.Context) rueidis.RedisResult) *Client) {
		var seen atomic.Int32
		answer := make(chan struct{})
		way := open(func(context.Context) rueidis.RedisResult {
			seen.Add(1)
			<-answer
			return rueidis.RedisResult{}
		})
		<-time.After(belief.HealthyFor)
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				p := Wait{Ctx: t.Context(), Limit: time.Minute}
				if err := way.Do(&p, &protocol.Call{Key: "42"}).Error(); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		require.EqualValues(t, apartDrivers, seen.Load())
		close(answer)
		all.Wait()
		require.EqualValues(t, many, seen.Load())
	})
}

// A message shows that the server is there, as a reply does. It does not show that connections for commands have been made.
func TestNode_MessageMakesItHealthy(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		way := open(nil)
		s := way.First
		enters := func() bool {
			end, _, direct := s.enter(way.Clock.Now())
			s.bounds.free(end)
			return direct
		}
		<-time.After(time.Second)
		require.False(t, enters())
		s.GotMessage(way.Clock.Now())
		require.True(t, enters())
		s.belief.Redirected(way.Clock.Now())
		s.belief.Inspected(s.belief.Inspecting())
		s.GotMessage(way.Clock.Now())
		require.False(t, enters(), "connections have to be made")
	})
}

// oldClient is a client all of whose connections look old, as behind a proxy that reports the age of its own connections.
type oldClient struct {
	rueidis.Client
	info rueidis.RedisResult
	made *atomic.Int32
}

type oldConnection struct {
	rueidis.DedicatedClient
	of oldClient
}

func (c oldClient) Dedicate() (rueidis.DedicatedClient, func()) {
	c.made.Add(1)
	return oldConnection{nil, c}, func() {}
}

func (c oldConnection) B() rueidis.Builder                                        { return c.of.B() }
func (c oldConnection) Do(context.Context, rueidis.Completed) rueidis.RedisResult { return c.of.info }
func (oldConnection) Close()                                                      {}

// If no connection looks new, there is a pause between attempts, and they end when the node is no longer suspect.
func TestFresh_NoConnectionLooksNew(t *testing.T) {
	client := onMiniredis(t)
	info := client.Do(t.Context(), client.B().Eval().Script("return 'id=1 age=86400 db=0'").Numkeys(0).Build())
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		way := New(oldClient{client, info, &made})
		way.First.probes.ask = nil // it would send over a real connection, for which fake time waits
		now := way.Clock.Now()
		way.First.belief.FoundSilent(0, now)
		conn, none := way.First.fresh.get(func() bool { return false })
		require.Nil(t, conn)
		require.True(t, none)
		require.Less(t, now.Until(way.Clock.Now()), belief.Old+2*time.Second)
		require.Less(t, made.Load(), int32(mostUnfit+100))
	})
}

// silentPing is a client that does not answer a PING for a while, and then says that it is closed.
type silentPing struct {
	rueidis.Client
	asked atomic.Int32
	until chan struct{}
}

func (c *silentPing) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	c.asked.Add(1)
	<-c.until
	return rueidis.NewErrorResult(rueidis.ErrClosing)
}

// However many callers ask whether the client is closed, one question is under way, and all of them get its answer.
func TestClient_OneQuestionWhetherItIsClosed(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		c := &silentPing{Client: client, until: make(chan struct{})}
		way := New(c)
		all := func(closed bool) {
			var asking sync.WaitGroup
			for range 100 {
				asking.Go(func() {
					if way.Closed() != closed {
						t.Errorf("closed is not %v", closed)
					}
				})
			}
			asking.Wait()
		}
		begun := time.Now()
		all(false)
		require.Equal(t, askLimit, time.Since(begun))
		all(false)
		require.EqualValues(t, 1, c.asked.Load())
		time.AfterFunc(askLimit/2, func() { close(c.until) })
		all(true)
		require.EqualValues(t, 1, c.asked.Load())
	})
}
