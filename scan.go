package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Locks goes through the paths under the registry's prefix that somebody holds or waits for, in no order, each once, with what
// [Registry.Inspect] tells of it. It finds them by SCAN, on each master of a cluster: one that is locked all the time is among
// them, one that is locked or released meanwhile may be. A key that has no lock's content is left out, and so is a plain lock
// whose holder is named neither as this package, nor as Spring, nor as Redisson name theirs.
//
// SCAN goes through all keys of the database, 500 in a call. The first 250 calls follow one another, enough for 100 000 keys
// in a fraction of a second. In a database with more, the further calls are spread so that they take 5 % of the server's time
// at most: docs/operations.md has figures. Locks are told as they are found. The caller should wait between passes, too. SCAN
// shows a user the names of all keys, whatever the key patterns of the user's access list.
//
// An error is the last thing that it gives, within a [*LockError]: that of ctx, [ErrUnavailable], [ErrClosed], or another one
// of Redis. To stop sooner, break out of the loop.
func (r *Registry) Locks(ctx context.Context) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		l := listing{reg: r, ctx: ctx, yield: yield, yielded: map[string]bool{}, labels: map[string]Label{}}
		pick := func(key string) (string, bool) { return protocol.LockOf(r.prefix, key) }
		err := r.scan(ctx, everyLock, &scan.Pass{Pick: pick, Read: l.read, Tell: l.tell, TooLong: l.tellLong})
		if err != nil && !errors.Is(err, errEnough) {
			yield(LockInfo{}, &LockError{Op: "locks", Key: r.prefix + ":*", Err: r.transport.Farthest().Unsupported(err)})
		}
	}
}

// listing is one loop over [Registry.Locks].
type listing struct {
	reg     *Registry
	ctx     context.Context
	yield   func(LockInfo, error) bool
	yielded map[string]bool  // keys
	labels  map[string]Label // by registry
	infos   []LockInfo       // yet to be yielded
}

const (
	scanCount = "500"
	everyLock = ":*"
)

var keysOf = protocol.Load("keys")

// errEnough: the caller wants no more.
var errEnough = errors.New("the loop was left")

// scan has a pass go through the keys of all masters that match a pattern behind the prefix.
func (r *Registry) scan(ctx context.Context, pattern string, p *scan.Pass) error {
	if ctx == nil {
		return errNilContext
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	p.Clock, p.Batch = r.clock, inspectedAt
	p.Pause = func(d time.Duration) error { return r.pause(ctx, d) }
	for _, n := range nodes {
		p.Servers = append(p.Servers, func(cursor string) (scan.Step, error) { return r.scanOnce(ctx, n, cursor, pattern) })
	}
	return p.Run()
}

// pause waits for a while, and tells why to go no further, if so.
func (r *Registry) pause(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.closed:
		}
	}
	return r.queues.Stopped(ctx)
}

// node is a server whose keys are to be gone through.
type node struct {
	shard  *transport.Shard
	client rueidis.CoreClient // nil: whichever the shard leads to
}

// nodes are the servers of all keys.
func (r *Registry) nodes(ctx context.Context) (nodes []node, err error) {
	t := r.transport
	if err := r.queues.Stopped(ctx); err != nil {
		return nil, err
	}
	if !r.queues.Cluster {
		return []node{{shard: t.First}}, nil
	}
	reply, err := t.Ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().ClusterSlots().Build())
	}).ToArray()
	if err != nil {
		return nil, fault.Classify(err)
	}
	known, seen := r.client.Nodes(), map[string]bool{}
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

// scanOnce calls SCAN once, in a script, since SCAN itself would send names of any length.
func (r *Registry) scanOnce(ctx context.Context, n node, cursor, pattern string) (next scan.Step, err error) {
	wait := r.asks(ctx)
	build := func(b rueidis.Builder, _ int, verb, script string) rueidis.Completed {
		return b.Arbitrary(verb, script, "0", cursor, scan.Literal(r.prefix)+pattern, scanCount).Build()
	}
	reply, cut := n.shard.Ask(wait, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		if n.client != nil {
			way = n.client
		}
		return r.others.inspection.run(ctx, way, keysOf, []int{0}, build)[0]
	})
	rows, err := reply.ToArray()
	switch {
	case cut:
		return next, fault.Explain(fault.Ended(ctx), fault.AsUnavailable(fault.NoAnswer))
	case err != nil:
		return next, fault.Classify(err)
	}
	found, err := protocol.ParseFound(rows)
	return scan.Step(found), err
}

// tellLong tells the caller of keys with names that are too long. Nothing more is known of them.
func (l *listing) tellLong(names []string) error {
	for _, key := range names {
		if l.yielded[key] {
			continue
		}
		l.yielded[key] = true
		info := LockInfo{Path: strings.TrimPrefix(key, l.reg.prefix+":"), Key: key, Kind: protocol.TooLong, TooLong: []string{"key"}}
		if !l.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// read reads what there is about the locks with some keys.
func (l *listing) read(keys []string) error {
	found, errs := l.reg.inspectKeys(l.ctx, keys)
	for i, info := range found {
		if errs[i] != nil && !errors.Is(errs[i], ErrWrongType) {
			return errs[i]
		}
		if errs[i] == nil && info.isLock() && !l.yielded[info.Key] {
			l.yielded[info.Key] = true
			l.infos = append(l.infos, info)
		}
	}
	return l.reg.addLabels(l.ctx, l.infos, l.labels)
}

// tell tells the caller of the locks that were read.
func (l *listing) tell() error {
	infos := l.infos
	l.infos = nil
	for _, info := range infos {
		if !l.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// isLock tells whether somebody holds the lock or waits for it, and that it is one for certain: other strings and hashes may
// have the prefix, too.
func (i *LockInfo) isLock() bool {
	if i.WaiterCount > 0 {
		return true
	}
	certain := false
	for _, h := range i.Holders {
		if protocol.IsCut(h.Holder) {
			continue
		}
		certain = true
		registry := protocol.ParseName(h.Holder).Registry
		if n := len(registry) - uuidLength; n < 0 || n > 0 && registry[n-1] != ':' || uuid.Validate(registry[n:]) != nil {
			return false
		}
	}
	return certain || len(i.Holders) == 0 && i.HolderCount > 0
}

const uuidLength = 36
