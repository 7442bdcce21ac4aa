package transport

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// movingCluster has one node, which says that the slots are at another one now, of which the client does not know.
type movingCluster struct {
	rueidis.Client
	node  *movingNode
	asked atomic.Int32 // how many commands it was to find the way for
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
	if c.Commands()[0] == "CLIENT" { // it does not tell its age
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

// While one command is sent elsewhere, the limits of others that are to follow end.
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

// A node may refuse a command as that of another one when nobody waits for it any more. A
// lock is not asked for then; a key is still removed.
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
