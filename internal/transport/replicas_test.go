package transport

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// replicating makes a sender for a write that waits for it. Nothing runs.
func replicating(way *Client, e *replication) *replicaSender {
	e.call = protocol.Call{Key: "42", Args: protocol.Args{"v", "1000"}, Replicas: &protocol.Replicas{N: 1, Timeout: time.Minute}}
	e.call.Wrote = func(_ *protocol.Call, result rueidis.RedisResult) bool { return result.Error() == nil }
	e.done = make(chan struct{})
	r := &replicator{client: way}
	s := &replicaSender{replicator: r, node: way.First, since: way.Clock.Now(), trusted: true, stands: func() bool { return true }}
	r.sender, r.queue = s, []*replication{e}
	return s
}

// A reply over a connection that was made while the node was suspect is believed if its server is certainly the master of the
// key. Otherwise the reply must be confirmed.
func TestReplicas_AServerThatMayBeNoMaster(t *testing.T) {
	client := onMiniredis(t)
	for _, unsure := range []bool{false, true} {
		e := &replication{unsure: unsure}
		replicating(New(client), e).take(client.B())
		require.Equal(t, !unsure, e.reply.Fresh)
	}
}

// A node to which a slot moves executes a command for it only after ASKING. A command that was redirected too often is not sent
// on: two nodes that name each other would send it to and fro for ever.
func TestReplicas_ASlotThatMoves(t *testing.T) {
	client := onMiniredis(t)
	e := &replication{asking: true}
	commands, of := replicating(New(client), e).take(client.B())
	require.Equal(t, []string{"ASKING"}, commands[0].Commands())
	require.Equal(t, []*replication{nil, e, nil}, of)

	moved := client.Do(t.Context(), client.B().Eval().Script("return redis.error_reply('MOVED 7 b:1')").Numkeys(0).Build())
	e = &replication{hops: mostHops}
	s := replicating(New(client), e)
	s.take(client.B())
	s.takeIn(e, moved)
	require.Equal(t, isSettled, e.stage)
	require.True(t, fault.Elsewhere(e.reply.Error()))
}

// A connection may hang, or lead to a former master. So after a while new commands go over another one.
func TestReplicas_ASenderThatHangs(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(client)
		s := replicating(way, &replication{})
		limit := way.First.RoundTrip().Plus(senderFor)
		<-time.After(limit - 1)
		require.False(t, s.stale())
		<-time.After(1)
		require.True(t, s.stale())
	})
}

// scripted is a client whose server knows no script by its digest. Its connections count what they send.
type scripted struct {
	rueidis.Client
	unknown, none     rueidis.RedisResult
	sources           atomic.Int32
	closed, givenBack atomic.Int32
}

func (c *scripted) Dedicate() (rueidis.DedicatedClient, func()) {
	return &scriptedWire{nil, c}, func() { c.givenBack.Add(1) }
}

type scriptedWire struct {
	rueidis.DedicatedClient
	of *scripted
}

func (w *scriptedWire) B() rueidis.Builder { return w.of.B() }
func (w *scriptedWire) Close()             { w.of.closed.Add(1) }
func (w *scriptedWire) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	return w.of.none
}

func (w *scriptedWire) DoMulti(_ context.Context, commands ...rueidis.Completed) (replies []rueidis.RedisResult) {
	<-time.After(time.Millisecond)
	for _, c := range commands {
		switch c.Commands()[0] {
		case "EVALSHA":
			replies = append(replies, w.of.unknown)
		case "EVAL":
			w.of.sources.Add(1)
			replies = append(replies, w.of.none)
		default:
			replies = append(replies, w.of.none)
		}
	}
	return replies
}

func newScripted(t *testing.T) *scripted {
	t.Helper()
	client := onMiniredis(t)
	does := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	unknown := does("return redis.error_reply('NOSCRIPT No matching script')")
	return &scripted{Client: client, unknown: unknown, none: does("return 0")}
}

// A script that the server does not know is sent once more, by its source, and no further time.
func TestReplicas_AnUnknownScript(t *testing.T) {
	c := newScripted(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(c)
		way.Sole(0)
		call := protocol.Call{Script: protocol.NewScript("return redis.call('SET', KEYS[1], 1)"), Key: "42"}
		call.Replicas = &protocol.Replicas{N: 1, Timeout: 2 * WaitAtMost, Settled: func(error) {}}
		call.Wrote = func(*protocol.Call, rueidis.RedisResult) bool { return true }
		a := way.Do(&Wait{Ctx: context.Background(), Limit: time.Minute}, &call)
		require.NoError(t, a.Error())
		require.ErrorIs(t, a.ReplicaErr, fault.FewReplicas)
		require.EqualValues(t, 1, c.sources.Load())
		way.Close()
		<-time.After(time.Minute)
	})
}

// A connection goes back to the client's pool when nothing more is to be sent. But if the node has become suspect it is closed:
// it may lead to a former master, and nobody checks pooled connections later.
func TestReplicas_AConnectionToASuspectServer(t *testing.T) {
	c := newScripted(t)
	for _, suspect := range []bool{false, true} {
		c.closed.Store(0)
		synctest.Test(t, func(t *testing.T) {
			way := New(c)
			way.Sole(0)
			s := replicating(way, &replication{})
			s.trusted, s.sender = false, nil // replaced: it has nothing to send
			if suspect {
				now := way.Clock.Now()
				way.First.belief.FoundSilent(now, now)
			}
			s.queue = nil
			s.run()
			require.Equal(t, suspect, c.closed.Load() == 1)
			way.Close()
			<-time.After(time.Minute)
		})
	}
	require.EqualValues(t, 1, c.givenBack.Load())
}
