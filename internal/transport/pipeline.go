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
	send := func(s *Node, group []int) {
		p := Wait{Ctx: context.Background(), Limit: s.Plus(limit)}
		these := make([]protocol.Call, len(group))
		for k, i := range group {
			these[k] = calls[i]
		}
		from := t.Clock.Now()
		e := s.await(&p, task{
			key: these[0].Key,
			send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
				all := protocol.SendAll(ctx, way, these, func(k int) bool { return wanted(group[k]) })
				t.follow(all, func(some []int) []rueidis.RedisResult {
					moved := make([]protocol.Call, len(some))
					for m, k := range some {
						moved[m] = these[k]
					}
					return protocol.SendAll(ctx, t.redis, moved, func(m int) bool { return wanted(group[some[m]]) })
				})
				return all
			},
		})
		for k, i := range group {
			a := Reply{RedisResult: e.result(k), Sent: from, Came: e.came, Fresh: e.trusted}
			p.Lease = lease(i)
			e.to.assess(&p, e.exchange, &a)
			done(i, a)
		}
	}
	t.perNode(some, func(i int) string { return calls[i].Key }, send)
	all.Wait()
}

// follow sends once more, by the client, what a node of a cluster has redirected, and replaces its replies. While a node is
// suspect commands go to it alone, and half of a slot of it may be at another node, for as long as the slot moves. What is sent
// again was not executed; the replies may come over old connections, as in carry.
func (t *Client) follow(results []rueidis.RedisResult, again func(some []int) []rueidis.RedisResult) {
	var moved []int
	for i, result := range results {
		if fault.Elsewhere(result.Error()) {
			moved = append(moved, i)
		}
	}
	if len(moved) == 0 || t.resolver == nil {
		return
	}
	t.resolver.Forget()
	for m, result := range again(moved) { // mutant: redirected renewal lost
		results[moved[m]] = result
	}
}

// perNode sends some commands in one pipeline per node, or, if the node is suspect, per master that the nodes now name for
// their keys.
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
	p *Wait, keys []string,
	send func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult,
	done func(i int, reply rueidis.RedisResult, cut bool),
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
	sendSome := func(s *Node, some []int) {
		e := s.await(p, task{
			key: keys[some[0]],
			send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
				all := send(ctx, way, some)
				t.follow(all, func(moved []int) []rueidis.RedisResult {
					these := make([]int, len(moved))
					for m, k := range moved {
						these[m] = some[k]
					}
					return send(ctx, t.redis, these)
				})
				return all
			},
		})
		mu.Lock()
		defer mu.Unlock()
		for k, i := range some {
			reply := e.result(k)
			done(i, reply, p.cut(reply.Error()))
		}
	}
	t.perNode(all, func(i int) string { return keys[i] }, sendSome)
}
