package transport

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// DoAll sends scripts, in one pipeline for each shard, and hands over the replies to each as soon as they are there. It
// returns when all are, after limit at most. Of those that the server does not know yet it runs what is wanted still.
func (t *Client) DoAll(
	limit time.Duration, calls []protocol.Call, lease func(i int) time.Duration, wanted func(i int) bool, done func(i int, a Reply),
) {
	groups := map[*Shard][]int{}
	var all sync.WaitGroup
	for i, c := range calls {
		if c.Replicas != nil {
			all.Go(func() {
				p := Wait{Ctx: context.Background(), Limit: t.Shard(c.Key).Plus(limit), Lease: lease(i)}
				done(i, t.doReplicated(&p, &c))
			})
			continue
		}
		s := t.Shard(c.Key)
		groups[s] = append(groups[s], i)
	}
	send := func(s *Shard, group []int) {
		p := Wait{Ctx: context.Background(), Limit: s.Plus(limit)}
		some := make([]protocol.Call, len(group))
		for k, i := range group {
			some[k] = calls[i]
		}
		from := t.Clock.Now()
		e := s.async(&p, t.pipelines, &asyncCall{
			key: some[0].Key,
			send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
				return protocol.SendAll(ctx, way, some, func(k int) bool { return wanted(group[k]) })
			},
		})
		came := t.Clock.Now()
		for k, i := range group {
			r := e.result(k)
			p.Lease = lease(i)
			late := e.shard.judge(&p, r.Error(), e.at(came))
			done(i, Reply{RedisResult: r, Sent: from, Came: came, Late: late, Fresh: e.trusted})
		}
	}
	for s, group := range groups {
		all.Go(func() {
			t.regroup(s, group, func(i int) string { return calls[i].Key }, send)
		})
	}
	all.Wait()
}

// regroup sends some commands for a shard in one pipeline, or, if it is suspect, in one for each master that has their keys by
// the word of the nodes now.
func (t *Client) regroup(s *Shard, group []int, key func(i int) string, send func(s *Shard, group []int)) {
	if t.resolver == nil || !s.IsSuspect(t.Clock.Now()) {
		send(s, group)
		return
	}
	t.resolver.Hear(topology.FreshFor)
	groups := map[*Shard][]int{}
	for _, i := range group {
		s := t.Shard(key(i))
		groups[s] = append(groups[s], i)
	}
	var all sync.WaitGroup
	for s, group := range groups {
		all.Go(func() { send(s, group) })
	}
	all.Wait()
}

// DoEach sends commands, one for each key, in one pipeline for each shard, and hands over the replies one after another, and
// whether there is none because the caller's context ended.
func (t *Client) DoEach(
	p *Wait, keys []string,
	send func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult,
	done func(i int, reply rueidis.RedisResult, cut bool),
) {
	groups := map[*Shard][]int{}
	for i, key := range keys {
		s := t.Shard(key)
		groups[s] = append(groups[s], i)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	sendSome := func(s *Shard, some []int) {
		e := s.async(p, s.places, &asyncCall{
			key: keys[some[0]],
			send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
				return send(ctx, way, some)
			},
		})
		mu.Lock()
		defer mu.Unlock()
		for k, i := range some {
			reply := e.result(k)
			done(i, reply, p.cut(reply.Error()))
		}
	}
	for s, some := range groups {
		all.Go(func() { t.regroup(s, some, func(i int) string { return keys[i] }, sendSome) })
	}
	all.Wait()
}
