package transport

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// DoAll sends scripts in one pipeline per node, and calls done with each reply as soon as the node's replies are there. It
// returns when all are, after limit at most. Scripts that the server does not know are sent again, if they are still wanted.
func (t *Client) DoAll(
	limit time.Duration, calls []protocol.Call, lease func(i int) time.Duration, wanted func(i int) bool, done func(i int, a Reply),
) {
	var some []int
	var all sync.WaitGroup
	for i, c := range calls {
		if c.Replicas == nil {
			some = append(some, i)
			continue
		}
		all.Go(func() {
			p := Wait{Ctx: context.Background(), Limit: t.Node(c.Key).Plus(limit), Lease: lease(i)}
			done(i, t.doReplicated(&p, &c))
		})
	}
	send := func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult {
		these := make([]protocol.Call, len(some))
		for k, i := range some {
			these[k] = calls[i]
		}
		return protocol.SendAll(ctx, way, these, func(k int) bool { return wanted(some[k]) })
	}
	t.perNode(some, func(i int) string { return calls[i].Key }, func(s *Node, group []int) {
		p := Wait{Ctx: context.Background(), Limit: s.Plus(limit)}
		from := t.Clock.Now()
		e := s.together(&p, calls[group[0]].Key, group, send)
		for k, i := range group {
			a := Reply{RedisResult: e.result(k), Sent: from, Came: e.Came, Fresh: e.Trusted}
			p.Lease = lease(i)
			e.to.assess(&p, e.exchange, &a)
			done(i, a)
		}
	})
	all.Wait()
}

// sendingSome sends some of several commands, each known by its index, in one pipeline.
type sendingSome func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult

// together sends some commands in one pipeline, and waits for the replies. Key is the key of the first command. Commands that a
// node of a cluster redirects are sent once more, through the client. That happens while the node is suspect and one of its
// slots moves: the commands go to this node alone, but half of the slot's keys may be at another node by now. A redirected
// command was not executed; its second reply may come over an old connection, as in carry.
func (s *Node) together(p *Wait, key string, some []int, send sendingSome) outcome {
	t := s.client
	return s.await(p, task{key: key, send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		results := send(ctx, way, some)
		if t.resolver != nil {
			protocol.Resend(results, some, fault.Elsewhere, func(moved []int) []rueidis.RedisResult {
				t.resolver.Forget()
				return send(ctx, t.redis, moved) // mutant: redirected renewal lost
			})
		}
		return results
	}})
}

// perNode sends some commands in one pipeline per node. If a node is suspect, it asks the cluster's nodes anew, and sends in
// one pipeline per master that they name for the keys.
func (t *Client) perNode(some []int, key func(i int) string, send func(s *Node, group []int)) {
	t.group(some, key, func(s *Node, group []int) {
		if t.resolver == nil || !s.IsSuspect(t.Clock.Now()) {
			send(s, group)
			return
		}
		t.resolver.Hear(topology.FreshFor)
		t.group(group, key, send)
	})
}

// group sends some commands by node, concurrently, and returns when all are done.
func (t *Client) group(some []int, key func(i int) string, send func(s *Node, group []int)) {
	groups := map[*Node][]int{}
	for _, i := range some {
		s := t.Node(key(i))
		groups[s] = append(groups[s], i)
	}
	var all sync.WaitGroup
	for s, group := range groups {
		all.Go(func() { send(s, group) })
	}
	all.Wait()
}

// DoEach sends commands, one per key, in one pipeline per node, and calls done with each reply, one after another. Cut: there
// is no reply because the caller's context ended.
func (t *Client) DoEach(
	p *Wait, keys []string, send sendingSome, done func(i int, reply rueidis.RedisResult, cut bool),
) {
	if err := p.Ctx.Err(); err != nil {
		for i := range keys {
			done(i, rueidis.NewErrorResult(err), true)
		}
		return
	}
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	var mu sync.Mutex
	t.perNode(all, func(i int) string { return keys[i] }, func(s *Node, some []int) {
		e := s.together(p, keys[some[0]], some, send)
		mu.Lock()
		defer mu.Unlock()
		for k, i := range some {
			reply := e.result(k)
			done(i, reply, p.cut(reply.Error()))
		}
	})
}
