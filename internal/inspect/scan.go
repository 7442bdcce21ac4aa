package inspect

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

var keysOf = protocol.Load("keys")

// Scan runs a pass over the keys of all masters that match the prefix and a pattern.
func (r *Reader) Scan(ctx context.Context, pattern string, p *scan.Pass) error {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	p.Clock, p.Batch, p.Watch = r.Clock, together, scan.WatcherOf(ctx)
	p.Pause = func(d time.Duration) error { return r.pause(ctx, d) }
	for _, n := range nodes {
		p.Servers = append(p.Servers, func(cursor string, count int) (scan.Step, error) {
			return r.scanOnce(ctx, n, cursor, pattern, count)
		})
	}
	return p.Run()
}

// pause waits for d. It returns why the pass must end, or nil.
func (r *Reader) pause(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.Closed:
		}
	}
	return r.Calls.Stopped(ctx)
}

// node is a server whose keys the pass goes through.
type node struct {
	shard  *transport.Shard
	client rueidis.CoreClient // nil: the shard's server
}

// nodes returns the servers of all keys.
func (r *Reader) nodes(ctx context.Context) (nodes []node, err error) {
	t := r.Transport
	if err := r.Calls.Stopped(ctx); err != nil {
		return nil, err
	}
	if !r.Cluster {
		return []node{{shard: t.First}}, nil
	}
	reply, err := t.Ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().ClusterSlots().Build())
	}).ToArray()
	if err != nil {
		return nil, fault.Classify(err)
	}
	known, seen := r.Client.Nodes(), map[string]bool{}
	for _, part := range topology.Parse(reply, "") {
		if seen[part.Address] {
			continue
		}
		seen[part.Address] = true
		client := known[part.Address]
		if client == nil {
			return nil, fault.AsUnavailable(fmt.Errorf("the client does not know the master %s yet", part.Address))
		}
		nodes = append(nodes, node{t.ShardAt(part.Address), client})
	}
	return nodes, nil
}

// scanOnce calls SCAN once, in a script, since SCAN itself would send names of any length. A TIME that follows in the same
// pipeline shows the server's own time for it: what is executed in between for others counts, too.
func (r *Reader) scanOnce(ctx context.Context, n node, cursor, pattern string, count int) (next scan.Step, err error) {
	wait := r.wait(ctx)
	build := func(b rueidis.Builder, i int, verb, script string, _ bool) rueidis.Completed {
		if i == 1 {
			return b.Arbitrary("TIME").Build()
		}
		return b.Arbitrary(verb, script, "0", cursor, scan.Literal(r.Prefix)+pattern, strconv.Itoa(count)).Build()
	}
	var after int64
	reply, cut := n.shard.Ask(&wait, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		if n.client != nil {
			way = n.client
		}
		replies := r.runOnce(ctx, way, keysOf, []int{0, 1}, build, false)
		after = micros(replies[1])
		return replies[0]
	})
	rows, err := read(&wait, reply, cut)
	if err != nil {
		return next, err
	}
	next, before, err := ParseStep(rows)
	if before > 0 && after > before { // else the script was sent again, or TIME is not permitted
		next.Took = time.Duration(after-before) * time.Microsecond
	}
	return next, err
}

// micros reads a reply of TIME; 0 after an error.
func micros(reply rueidis.RedisResult) int64 {
	parts, err := reply.AsIntSlice()
	if err != nil || len(parts) != 2 {
		return 0
	}
	return parts[0]*1_000_000 + parts[1]
}

// ParseStep reads a reply of keys.lua. Before is the server's time before it, in microseconds; 0: not known.
func ParseStep(rows []rueidis.RedisMessage) (step scan.Step, before int64, err error) {
	if len(rows) != 4 {
		return step, 0, protocol.ErrStrange
	}
	var err1, err2, err3, err4 error
	step.Cursor, err1 = rows[0].ToString()
	step.Keys, err2 = rows[1].AsStrSlice()
	step.TooLong, err3 = rows[2].AsStrSlice()
	before, err4 = rows[3].AsInt64()
	if err := fault.Join(err1, err2, err3, err4); err != nil {
		return step, 0, fault.Join(protocol.ErrStrange, err)
	}
	return step, before, nil
}
