package transport

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// lonely is a master without replicas, a millisecond away: WAIT takes as long as it may.
type lonely struct {
	rueidis.Client
	done, none rueidis.RedisResult // the replies to a script, and to WAIT
}

func (c lonely) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, command)[0]
}

func (c lonely) DoMulti(_ context.Context, commands ...rueidis.Completed) (replies []rueidis.RedisResult) {
	<-time.After(time.Millisecond)
	for _, command := range commands {
		reply := c.done
		if command.Commands()[0] == "WAIT" {
			<-time.After(waitSlice)
			reply = c.none
		}
		replies = append(replies, reply)
	}
	return replies
}

func (c lonely) Dedicate() (rueidis.DedicatedClient, func()) {
	return &lonelyConnection{lonely: c}, func() {}
}

// lonelyConnection is a connection of its client alone.
type lonelyConnection struct {
	lonely
	rueidis.DedicatedClient
}

func (c *lonelyConnection) B() rueidis.Builder { return c.lonely.B() }

func (c *lonelyConnection) Close() {}

func (c *lonelyConnection) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	return c.lonely.Do(ctx, command)
}

func (c *lonelyConnection) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	return c.lonely.DoMulti(ctx, commands...)
}

// A command that waits for replicas takes longer than a round trip, so it is no sample of one. Otherwise locks with short
// leases would be refused.
func TestRoundTrip_WaitingForReplicasIsNoSample(t *testing.T) {
	client := onMiniredis(t)
	answer := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	master := lonely{client, answer("return redis.status_reply('OK')"), answer("return 0")}
	synctest.Test(t, func(t *testing.T) {
		way := New(master)
		defer func() {
			way.Close()
			<-time.After(time.Minute)
		}()
		p := Wait{Ctx: context.Background(), Limit: time.Minute}
		plain := protocol.Call{Script: protocol.NewScript("return redis.call('SET', KEYS[1], 1)"), Key: "42"}
		replicated := plain
		replicated.Replicas = &protocol.Replicas{N: 1, Timeout: 2 * WaitAtMost, Settled: func(error) {}}
		replicated.Wrote = func(*protocol.Call, rueidis.RedisResult) bool { return true }
		waits := func() {
			for range 5 { // sequential, and so long that each would be a sample
				a := way.Do(&p, &replicated)
				require.NoError(t, a.Error())
				require.Error(t, a.ReplicaErr, "there are no replicas")
				require.GreaterOrEqual(t, a.Sent.Until(a.Came), waitSlice)
			}
			require.Equal(t, time.Millisecond, way.First.RoundTrip().Base)
		}
		waits()
		require.False(t, way.First.RoundTrip().Known, "a question is the only sample")
		for range 32 {
			p := Wait{Ctx: context.Background(), Limit: time.Minute}
			require.NoError(t, way.Do(&p, &plain).Error())
		}
		require.True(t, way.First.RoundTrip().Known)
		waits()
	})
}

// While a connection waits for the replicas of earlier writes, it may take no more. Then a write goes over another connection,
// whenever it comes.
func TestReplicas_AWriteIsNotLeftBehindOthers(t *testing.T) {
	client := onMiniredis(t)
	answer := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	master := lonely{client, answer("return redis.status_reply('OK')"), answer("return 0")}
	for after := -2 * waitSlice; after < 2*waitSlice; after += time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			way := New(master)
			defer func() {
				way.Close()
				<-time.After(time.Minute)
			}()
			send := func(writes bool, timeout time.Duration) Reply {
				return way.Do(&Wait{Ctx: t.Context(), Limit: time.Hour}, &protocol.Call{
					Key: "42", Args: protocol.Args{"v", "60000"},
					Replicas: &protocol.Replicas{N: 1, Timeout: timeout, Settled: func(error) {}},
					Wrote:    func(*protocol.Call, rueidis.RedisResult) bool { return writes },
				})
			}
			const most = 2 * WaitAtMost
			pause := way.First.RoundTrip().Plus(senderFor) + after
			var first sync.WaitGroup
			first.Go(func() { send(true, pause+2*most) }) // until then it is in the way
			<-time.After(pause)
			began := way.Clock.Now()
			second := send(false, time.Minute)
			require.NoError(t, second.Error())
			require.Less(t, began.Until(second.Came), most)
			first.Wait()
		})
	}
}

// lossy is a master whose first dedicated connection loses all that is sent on it, until the client gives it up.
type lossy struct {
	lonely
	made *atomic.Int32
}

func (c lossy) Dedicate() (rueidis.DedicatedClient, func()) {
	return &lossyConnection{lonelyConnection{lonely: c.lonely}, c.made.Add(1) == 1}, func() {}
}

type lossyConnection struct {
	lonelyConnection
	loses bool
}

func (c *lossyConnection) DoMulti(ctx context.Context, commands ...rueidis.Completed) (replies []rueidis.RedisResult) {
	if !c.loses {
		return c.lonelyConnection.DoMulti(ctx, commands...)
	}
	<-time.After(12 * time.Second)
	for range commands {
		replies = append(replies, rueidis.NewErrorResult(io.ErrUnexpectedEOF))
	}
	return replies
}

// When a connection has had no reply for as long as it takes new writes, a write that waits behind it goes over another, although
// no further write comes.
func TestReplicas_AWriteIsNotLeftBehindALostConnection(t *testing.T) {
	client := onMiniredis(t)
	answer := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	master := lossy{lonely{client, answer("return redis.status_reply('OK')"), answer("return 0")}, &atomic.Int32{}}
	synctest.Test(t, func(t *testing.T) {
		way := New(master)
		defer func() {
			way.Close()
			<-time.After(time.Minute)
		}()
		send := func() Reply {
			return way.Do(&Wait{Ctx: t.Context(), Limit: time.Hour}, &protocol.Call{
				Key: "42", Args: protocol.Args{"v", "60000"},
				Replicas: &protocol.Replicas{N: 1, Timeout: time.Minute, Settled: func(error) {}},
				Wrote:    func(*protocol.Call, rueidis.RedisResult) bool { return false },
			})
		}
		var first sync.WaitGroup
		first.Go(func() { send() })
		<-time.After(belief.Tick)
		began := way.Clock.Now()
		second := send()
		require.NoError(t, second.Error())
		require.Less(t, began.Until(second.Came), senderFor+belief.Tick)
		first.Wait()
	})
}

// The time for which a command itself may wait at the server is added to what is late, and to what is silence.
func TestNode_WaitingForReplicasIsNotLate(t *testing.T) {
	way := New(onMiniredis(t))
	defer way.Close()
	s := way.First
	s.belief.WarmedUp()
	for i := range 3 {
		at := clock.Instant(i+1) * clock.Instant(time.Second)
		s.belief.Sample(at, at.Add(time.Millisecond))
	}
	trip := s.RoundTrip()
	require.Equal(t, RoundTrip{Base: time.Millisecond, Known: true}, trip)
	for _, lease := range []time.Duration{0, time.Minute, 300 * time.Millisecond} {
		for _, holds := range []time.Duration{0, WaitAtMost} {
			sent := way.Clock.Now()
			late := sent.Add(trip.Late(lease) + holds)
			p := Wait{Lease: lease, holds: holds}
			intime := belief.Exchange{Sent: sent, Came: late - 1, Trip: trip}
			require.Equal(t, belief.Believed, s.believes(&p, nil, intime), "%v, %v", lease, holds)
			excused := belief.Exchange{Sent: sent, Came: late, Trip: trip, Excused: true}
			require.Equal(t, belief.Late, s.believes(&p, nil, excused), "%v, %v", lease, holds)
			a := belief.Alarm{Holds: holds}
			a.At = a.Due(&s.belief, sent)
			require.False(t, a.Ring(&s.belief, sent, sent.Add(trip.Silence()+holds-1)))
			require.True(t, a.Ring(&s.belief, sent, sent.Add(trip.Silence()+holds)))
		}
	}
	require.False(t, s.IsSuspect(way.Clock.Now()))
}

// As TestQueue_SentBeforeTheLook, for a write that replicas must have.
func TestReplicas_SentBeforeTheLook(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(client)
		var looked clock.Instant
		r := &replicator{client: way}
		s := &replicaSender{replicator: r, node: way.First, since: way.Clock.Now(), stands: func() bool {
			<-time.After(time.Millisecond)
			looked = way.Clock.Now()
			return true
		}}
		write := &replication{call: protocol.Call{Key: "42", Args: protocol.Args{"v", "1000"}, Replicas: &protocol.Replicas{N: 1}}}
		r.sender, r.queue = s, []*replication{write}
		commands, _ := s.take(client.B())
		require.Len(t, commands, 2)
		require.Less(t, write.reply.Sent, looked)
	})
}
