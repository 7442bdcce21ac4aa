package lockregistry

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
)

// movingCluster has one node, which says that the slots are at another one now, of which the client does not know.
type movingCluster struct {
	rueidis.Client
	node *movingNode
}

func (c *movingCluster) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }
func (c *movingCluster) Nodes() map[string]rueidis.Client {
	return map[string]rueidis.Client{"a:1": c.node}
}
func (c *movingCluster) Do(_ context.Context, _ rueidis.Completed) rueidis.RedisResult {
	<-time.After(10 * time.Second) // it is to find out where a key is
	return rueidis.NewErrorResult(context.DeadlineExceeded)
}

type movingNode struct {
	rueidis.Client
	slotMoved          bool
	slots, moved, zero rueidis.RedisResult
}

func (n *movingNode) Do(context.Context, rueidis.Completed) rueidis.RedisResult { return n.slots }
func (n *movingNode) Dedicate() (rueidis.DedicatedClient, func()) {
	return &movingWire{n: n}, func() {}
}

type movingWire struct {
	rueidis.DedicatedClient
	n *movingNode
}

func (d *movingWire) B() rueidis.Builder { return d.n.B() }
func (d *movingWire) Close()             {}
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

// While one command is sent elsewhere, the limits of others that are to follow end.
func TestLimitsThatEndDuringARedirection(t *testing.T) {
	client := onMiniredis(t)
	eval := func(s string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(s).Numkeys(0).Build())
	}
	n := &movingNode{Client: client,
		slots: eval("return {{0, 16383, {'a', 1, 'id'}}}"),
		moved: eval("return redis.error_reply('MOVED 7 b:1')"),
		zero:  eval("return 0")}
	synctest.Test(t, func(t *testing.T) {
		c := &movingCluster{Client: client, node: n}
		way := newTransport(c)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				p := patience{ctx: t.Context(), limit: 5 * time.Second, late: time.Hour}
				k := &call{key: "k" + strconv.Itoa(i), args: arguments{"v", "1000"}}
				k.replicas, k.wrote = &replicas{1, 50 * time.Millisecond}, grants
				a := way.do(&p, k)
				if err := a.Error(); err != nil {
					assert.ErrorIs(t, err, errNotSent)
				}
			})
		}
		all.Wait()
		<-time.After(time.Minute)
	})
}
