package transport

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// movingCluster has one node, which says that the slots are at another one now, of which the client does not know.
type movingCluster struct {
	rueidis.Client
	node  *movingNode
	asked atomic.Int32 // for how many commands it had to find the way
}

func (c *movingCluster) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }
func (c *movingCluster) Nodes() map[string]rueidis.Client {
	return map[string]rueidis.Client{"a:1": c.node}
}
func (c *movingCluster) Do(_ context.Context, _ rueidis.Completed) rueidis.RedisResult {
	c.asked.Add(1)
	<-time.After(10 * time.Second) // it is to find out where a key is
	return rueidis.NewErrorResult(context.DeadlineExceeded)
}

type movingNode struct {
	rueidis.Client
	slotMoved          bool
	slots, moved, zero rueidis.RedisResult
}

func (n *movingNode) Do(_ context.Context, c rueidis.Completed) rueidis.RedisResult {
	if c.Commands()[0] == "CLUSTER" {
		return n.slots
	}
	<-time.After(2 * time.Second)
	return n.moved
}
func (n *movingNode) Dedicate() (rueidis.DedicatedClient, func()) {
	return &movingWire{n: n}, func() {}
}

type movingWire struct {
	rueidis.DedicatedClient
	n *movingNode
}

func (d *movingWire) B() rueidis.Builder { return d.n.B() }
func (d *movingWire) Close()             {}
func (d *movingWire) Do(ctx context.Context, c rueidis.Completed) rueidis.RedisResult {
	if c.Commands()[0] == "CLIENT" { // it does not report its age
		return d.n.zero
	}
	return d.n.Do(ctx, c)
}

func (d *movingWire) DoMulti(_ context.Context, cs ...rueidis.Completed) (rs []rueidis.RedisResult) {
	<-time.After(5 * time.Millisecond)
	for range cs[1:] {
		if !d.n.slotMoved {
			rs = append(rs, d.n.zero)
		} else {
			rs = append(rs, d.n.moved)
		}
	}
	d.n.slotMoved = true
	return append(rs, d.n.zero)
}

// moving runs a test in fake time with such a cluster.
func moving(t *testing.T, test func(c *movingCluster, way *Client)) {
	t.Helper()
	client := onMiniredis(t)
	eval := func(s string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(s).Numkeys(0).Build())
	}
	n := &movingNode{Client: client,
		slots: eval("return {{0, 16383, {'a', 1, 'id'}}}"),
		moved: eval("return redis.error_reply('MOVED 7 b:1')"),
		zero:  eval("return 0")}
	synctest.Test(t, func(*testing.T) {
		c := &movingCluster{Client: client, node: n}
		test(c, New(c))
		<-time.After(time.Minute)
	})
}

// While one command is sent elsewhere, the limits of the commands behind it end.
func TestReplicas_BoundsThatEndDuringARedirection(t *testing.T) {
	moving(t, func(_ *movingCluster, way *Client) {
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				p := Wait{Ctx: context.Background(), Limit: 5 * time.Second}
				k := &protocol.Call{Key: "k" + strconv.Itoa(i), Args: protocol.Args{"v", "1000"}}
				k.Replicas = &protocol.Replicas{N: 1, Timeout: 50 * time.Millisecond, Settled: func(error) {}}
				k.Wrote = func(_ *protocol.Call, r rueidis.RedisResult) bool { return r.Error() == nil }
				a := way.Do(&p, k)
				if err := a.Error(); err != nil {
					assert.ErrorIs(t, err, fault.NotSent)
				}
			})
		}
		all.Wait()
	})
}

// A node may redirect a command whose caller has left. A command that obtains is not sent again then; a removal is.
func TestNode_CallsThatGaveUpAreNotSentElsewhere(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, 30 * time.Second} {
		for _, abandoned := range []bool{false, true} {
			moving(t, func(c *movingCluster, way *Client) {
				way.Node("k").belief.Broke(way.Clock.Now())
				p := Wait{Ctx: context.Background(), Limit: limit}
				a := way.Do(&p, &protocol.Call{Key: "k", Args: protocol.Args{"v", "1000"}, DropIfAbandoned: abandoned})
				require.Error(t, a.Error())
				<-time.After(time.Minute)
				if abandoned && limit < 2*time.Second {
					require.Zero(t, c.asked.Load())
				} else {
					require.Equal(t, int32(1), c.asked.Load())
				}
			})
		}
	}
}

// greetingNode is the only master of a cluster. It answers on connections that are made to it, once a test lets it greet them.
type greetingNode struct {
	rueidis.Client
	slots, reply rueidis.RedisResult
	refuses      atomic.Bool
	made, asked  atomic.Int32
	elsewhere    atomic.Int32 // commands for which the client had to find the way
}

type greetingCluster struct {
	rueidis.Client
	node *greetingNode
}

func (c *greetingCluster) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }
func (c *greetingCluster) Nodes() map[string]rueidis.Client {
	return map[string]rueidis.Client{"a:1": c.node}
}

func (c *greetingCluster) Do(_ context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] != "EVAL" { // otherwise the client is urged to look at the cluster again
		c.node.elsewhere.Add(1)
	}
	return rueidis.RedisResult{}
}

func (n *greetingNode) Do(_ context.Context, c rueidis.Completed) rueidis.RedisResult {
	switch c.Commands()[0] {
	case "CLUSTER":
		return n.slots
	case "EVALSHA":
		n.asked.Add(1)
	}
	return rueidis.RedisResult{}
}

func (n *greetingNode) Dedicate() (rueidis.DedicatedClient, func()) {
	n.made.Add(1)
	return &greetingWire{n: n}, func() {}
}

type greetingWire struct {
	rueidis.DedicatedClient
	n *greetingNode
}

func (w *greetingWire) B() rueidis.Builder { return w.n.B() }
func (w *greetingWire) Close()             {}
func (w *greetingWire) Do(_ context.Context, c rueidis.Completed) rueidis.RedisResult {
	switch {
	case w.n.refuses.Load():
		return rueidis.NewErrorResult(syscall.ECONNREFUSED)
	case c.Commands()[0] == "CLIENT":
		return rueidis.RedisResult{}
	}
	w.n.asked.Add(1)
	return w.n.reply
}

func (w *greetingWire) DoMulti(ctx context.Context, cs ...rueidis.Completed) (rs []rueidis.RedisResult) {
	for _, c := range cs {
		rs = append(rs, w.Do(ctx, c))
	}
	return rs
}

// suspected runs a test in fake time with a cluster whose only master is suspect.
func suspected(t *testing.T, test func(t *testing.T, way *Client, s *Node, n *greetingNode)) {
	t.Helper()
	client := onMiniredis(t)
	slots := client.Do(t.Context(), client.B().Eval().Script("return {{0, 16383, {'a', 1, 'id'}}}").Numkeys(0).Build())
	synctest.Test(t, func(t *testing.T) {
		n := &greetingNode{Client: client, slots: slots}
		way := New(&greetingCluster{client, n})
		way.resolver.Master(7)
		s := way.NodeAt("a:1")
		s.heardNow()
		s.foundSilent(way.Clock.Now(), way.Clock.Now())
		test(t, way, s, n)
		<-time.After(time.Minute)
	})
}

func obtain(way *Client, limit time.Duration) Reply {
	return way.Do(&Wait{Ctx: context.Background(), Limit: limit}, &protocol.Call{Key: "42", DropIfAbandoned: true})
}

// As TestFreshConns_SilentBeforeItIsTaken, where the nodes of a cluster name the master.
func TestNode_SilentWhileAWayIsFound(t *testing.T) {
	suspected(t, func(t *testing.T, way *Client, s *Node, _ *greetingNode) {
		a := obtain(way, time.Second)
		require.NoError(t, a.Error())
		require.True(t, a.Fresh)
		before := s.fresh.held()
		<-time.After(time.Millisecond)
		s.belief.FoundSilent(way.Clock.Now(), way.Clock.Now())
		require.Same(t, before, s.fresh.held())
		<-time.After(time.Millisecond)
		require.NoError(t, obtain(way, time.Second).Error())
		require.NotSame(t, before, s.fresh.held())
	})
}

// If the fresh connection redirects a command, the client finds the right node. Its connection to that may be an old one.
func TestNode_ARedirectedReplyIsNotFresh(t *testing.T) {
	client := onMiniredis(t)
	moved := client.Do(t.Context(), client.B().Eval().Script("return redis.error_reply('MOVED 7 b:1')").Numkeys(0).Build())
	suspected(t, func(t *testing.T, way *Client, _ *Node, n *greetingNode) {
		n.reply = moved
		a := obtain(way, time.Second)
		require.NoError(t, a.Error())
		require.EqualValues(t, 1, n.elsewhere.Load())
		require.False(t, a.Fresh)
	})
}

// Of several questions, the client sends those again that a suspect node redirects, and only these.
func TestNode_EachQuestionFollowsARedirection(t *testing.T) {
	client := onMiniredis(t)
	moved := client.Do(t.Context(), client.B().Eval().Script("return redis.error_reply('ASK 7 b:1')").Numkeys(0).Build())
	suspected(t, func(t *testing.T, way *Client, _ *Node, n *greetingNode) {
		n.reply = moved
		ask := func(ctx context.Context, to rueidis.CoreClient, some []int) (all []rueidis.RedisResult) {
			for _, i := range some {
				result := to.Do(ctx, to.B().Arbitrary("PTTL").Keys(strconv.Itoa(i)).Build())
				if i == 1 {
					result = n.slots // it was answered
				}
				all = append(all, result)
			}
			return all
		}
		var answered []int
		way.DoEach(&Wait{Ctx: t.Context(), Limit: time.Second}, []string{"0", "1", "2"}, ask,
			func(i int, reply rueidis.RedisResult, _ bool) {
				require.NoError(t, reply.Error())
				answered = append(answered, i)
			})
		require.Equal(t, []int{0, 1, 2}, answered)
		require.EqualValues(t, 2, n.elsewhere.Load())
	})
}

// If the nodes name a master that the client does not know, or do not agree on one, the client may lead to a deposed master.
// Then its reply is not believed, however fast it comes. If the client has never known a master by the names that the nodes
// give, an unknown name proves nothing.
func TestNode_TheClientLeadsAstray(t *testing.T) {
	client := onMiniredis(t)
	slot := strconv.Itoa(int(protocol.Slot("42")))
	for name, test := range map[string]struct {
		slots string
		begun bool // the nodes have said nothing before
		late  bool
	}{
		"unknown":      {"{0, " + slot + ", {'b', 1, 'j'}}, {" + slot + " + 1, 16383, {'a', 1, 'i'}}", false, true},
		"all unknown":  {"{0, 16383, {'b', 1, 'j'}}", false, true},
		"disputed":     {"{" + slot + " + 1, 16383, {'a', 1, 'i'}}", false, true},
		"other names":  {"{0, 16383, {'b', 1, 'j'}}", true, false},
		"nothing said": {"", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			slots := client.Do(t.Context(), client.B().Eval().Script("return {"+test.slots+"}").Numkeys(0).Build())
			require.NoError(t, slots.Error())
			suspected(t, func(t *testing.T, way *Client, _ *Node, n *greetingNode) {
				n.slots = slots
				if test.begun {
					way = New(way.redis)
					way.First.foundSilent(way.Clock.Now(), way.Clock.Now())
				}
				<-time.After(topology.FreshFor)
				a := obtain(way, time.Second)
				require.NoError(t, a.Error())
				require.EqualValues(t, 1, n.elsewhere.Load())
				require.False(t, a.Fresh)
				require.Equal(t, test.late, a.Late)
			})
		})
	}
}

// A suspect node is closed while a command waits for its fresh connection. Then nothing is obtained there over any connection.
func TestNode_ClosedWhileAWayIsFound(t *testing.T) {
	suspected(t, func(t *testing.T, way *Client, s *Node, n *greetingNode) {
		n.refuses.Store(true)
		came := make(chan error, 1)
		go func() {
			a := obtain(way, time.Minute)
			came <- a.Error()
		}()
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Positive(t, n.made.Load())
		require.Empty(t, came)
		way.Close()
		require.ErrorIs(t, <-came, fault.NotSent)
		require.Zero(t, n.asked.Load()+n.elsewhere.Load())
		require.True(t, s.belief.Barred())
	})
}
