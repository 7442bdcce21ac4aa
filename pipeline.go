package lockregistry

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// doAll sends scripts, in one pipeline for each lane, and hands over the answers to each as soon as they are there. It
// returns when all are, after limit at most. Of those that the server does not know yet it runs what is wanted still.
func (t *transport) doAll(
	limit time.Duration, calls []protocol.Call, lease func(i int) time.Duration, wanted func(i int) bool, done func(i int, a answer),
) {
	groups := map[*lane][]int{}
	var all sync.WaitGroup
	for i, c := range calls {
		if c.Replicas != nil {
			all.Go(func() {
				p := patience{ctx: context.Background(), limit: t.lane(c.Key).plus(limit), lease: lease(i)}
				done(i, t.doReplicated(&p, &c))
			})
			continue
		}
		l := t.lane(c.Key)
		groups[l] = append(groups[l], i)
	}
	send := func(l *lane, group []int) {
		p := patience{ctx: context.Background(), limit: l.plus(limit)}
		some := make([]protocol.Call, len(group))
		for k, i := range group {
			some[k] = calls[i]
		}
		from := t.clock.Now()
		e := l.apart(&p, t.batches, &sending{
			key: some[0].Key,
			send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
				return protocol.SendAll(ctx, way, some, func(k int) bool { return wanted(group[k]) })
			},
		})
		came := t.clock.Now()
		for k, i := range group {
			r := e.result(k)
			p.lease = lease(i)
			late := e.lane.judge(&p, r.Error(), e.at(came))
			done(i, answer{RedisResult: r, sent: from, came: came, late: late, anew: e.trusted})
		}
	}
	for l, group := range groups {
		all.Go(func() {
			t.regroup(l, group, func(i int) string { return calls[i].Key }, send)
		})
	}
	all.Wait()
}

// regroup sends some commands for a lane in one pipeline, or, if it is wary, in one for each master that has their keys by the
// word of the nodes now.
func (t *transport) regroup(l *lane, group []int, key func(i int) string, send func(l *lane, group []int)) {
	if t.resolver == nil || !l.isWary(t.clock.Now()) {
		send(l, group)
		return
	}
	t.resolver.Hear(topology.FreshFor)
	groups := map[*lane][]int{}
	for _, i := range group {
		l := t.lane(key(i))
		groups[l] = append(groups[l], i)
	}
	var all sync.WaitGroup
	for l, group := range groups {
		all.Go(func() { send(l, group) })
	}
	all.Wait()
}

// sendEach sends commands, one for each key, in one pipeline for each lane, and hands over the replies one after another, and
// whether there is none because the caller's context ended.
func (t *transport) sendEach(
	p *patience, keys []string,
	send func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult,
	done func(i int, reply rueidis.RedisResult, cut bool),
) {
	groups := map[*lane][]int{}
	for i, key := range keys {
		l := t.lane(key)
		groups[l] = append(groups[l], i)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	sendSome := func(l *lane, some []int) {
		e := l.apart(p, l.places, &sending{
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
	for l, some := range groups {
		all.Go(func() { t.regroup(l, some, func(i int) string { return keys[i] }, sendSome) })
	}
	all.Wait()
}
