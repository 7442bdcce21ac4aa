package lockregistry

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// LockInfo is what Redis knows of a path at one moment: who holds it, and who waits for it.
type LockInfo struct {
	Path string
	Key  string // prefix + ":" + path

	// Kind is "lock" for a plain lock, "readwrite" for a read-write lock, and empty when nobody holds it and nobody waits. It is
	// "too long" for a key whose name has more than 8192 bytes, of which [Registry.Locks] tells no more than the beginning.
	Kind string

	// Layout is that of a plain lock, as its key has it, or, when nobody holds it, of this registry. That of a read-write lock
	// is LayoutRedisson.
	Layout Layout

	Holders     []HolderInfo // the first 100 in no order; one, but for readers
	HolderCount int          // all of them

	Waiters     []WaiterInfo // the first 100 in the order of the queue
	WaiterCount int          // all of them

	// TooLong names what is longer in Redis than this package or its peers make it, "key", "token", "holder",
	// "waiter", or "record". It is not read: of names there is the beginning, and the rest is as if it were not there.
	TooLong []string
}

// HolderInfo is somebody who holds a lock.
type HolderInfo struct {
	Holder string // as it is in the key: its value, or a field of the hash. [Registry.ForceUnlockHolder] takes it
	Label  Label  // of its registry; see [Label.Known]
	Shared bool   // it is a reader

	// Since is when the call that holds the lock asked for it, by the wall clock of its process: for one that waited in the
	// queue, when it began to wait, or to wait anew. It may have been handed from one goroutine to another since. Zero: not
	// known, as for Java and older versions.
	Since time.Time

	Lease time.Duration // what is left of it, if it is not renewed; negative when it has no end
	Kept  bool          // nobody holds the lock any more, and [AtLeast] keeps the path

	// Token is the last fencing token that was drawn for the path; 0: none. They are drawn by the hundred, so that of the
	// present owner is at most 99 less, see [WithFencing].
	Token uint64
}

// WaiterInfo is a call that has a place in the queue of a path. Java, and calls that poll, have none. The place of a process
// that has died goes when its turn comes.
type WaiterInfo struct {
	Registry string    // as in Label
	Label    Label     // see [Label.Known]
	Shared   bool      // it wants to read
	Since    time.Time // since when it has its place, by the server's clock
}

const (
	mostNamed   = 100 // holders, and waiters, of a path
	inspectedAt = 100 // paths that one script reads
)

// note adds to what is too long.
func (i *LockInfo) note(what string) {
	if !slices.Contains(i.TooLong, what) {
		i.TooLong = append(i.TooLong, what)
	}
}

var (
	inspect = protocol.Load("inspect")
	records = protocol.Load("records")
)

// inspection is how a registry reads what Redis knows of locks.
type inspection struct {
	label    Label
	readOnly atomic.Bool // the server takes EVALSHA_RO, and refuses this user EVALSHA
}

// Inspect tells who holds the lock of path, and who waits for it: its plain lock in either layout, or its read-write lock,
// Java's holders included. It reads, in two round trips, and changes nothing, so a user without permission to write may call
// it; docs/operations.md names the commands. The holders and waiters are those of one moment, the labels of one just after it.
//
// Errors, each within a [*LockError]: [ErrWrongType] when the key is no lock at all, [ErrUnavailable], that of ctx,
// [ErrClosed], bad input such as an empty path, and other ones of Redis.
func (r *Registry) Inspect(ctx context.Context, path string) (LockInfo, error) {
	l := r.newLock(path)
	info, err := r.inspectOne(ctx, l)
	if err != nil {
		return LockInfo{}, l.fail("inspect", err)
	}
	return info, nil
}

func (r *Registry) inspectOne(ctx context.Context, l *Lock) (LockInfo, error) {
	switch {
	case ctx == nil:
		return LockInfo{}, errNilContext
	case l.path() == "":
		return LockInfo{}, errNoPath
	case protocol.Reserved(l.redis.Key):
		return LockInfo{}, errReserved
	}
	if err := l.reg.queues.Stopped(ctx); err != nil {
		return LockInfo{}, err
	}
	infos, errs := r.inspectKeys(ctx, []string{l.redis.Key})
	if errs[0] != nil {
		return LockInfo{}, errs[0]
	}
	if err := r.addLabels(ctx, infos, map[string]Label{}); err != nil {
		return LockInfo{}, err
	}
	return infos[0], nil
}

// inspectKeys reads what there is about some keys, without labels. On a cluster each is read by a script of its own.
func (r *Registry) inspectKeys(ctx context.Context, keys []string) ([]LockInfo, []error) {
	infos, errs := make([]LockInfo, len(keys)), make([]error, len(keys))
	parts, firsts := r.parts(keys)
	build := func(b rueidis.Builder, n int, verb, script string) rueidis.Completed {
		return b.Arbitrary(verb, script, strconv.Itoa(len(parts[n]))).Keys(parts[n]...).
			Args(r.prefix, strconv.Itoa(mostNamed), r.formats.Sharded()).Build()
	}
	r.askEach(r.asks(ctx), firsts, func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult {
		return r.others.inspection.run(ctx, way, inspect, some, build)
	}, func(n int, reply rueidis.RedisResult, err error) {
		var rows []rueidis.RedisMessage
		if err == nil {
			rows, err = reply.ToArray()
		}
		if err == nil && len(rows) != len(parts[n]) {
			err = protocol.ErrStrange
		}
		for k, key := range parts[n] {
			i := n*r.together() + k
			if errs[i] = fault.Classify(err); err == nil {
				var x protocol.Inspection
				x, errs[i] = protocol.ReadInspection(rows[k])
				infos[i] = r.infoOf(key, &x)
			}
		}
	})
	return infos, errs
}

// run runs a script that only reads for some groups of keys in one pipeline. A server that does not know it gets the source,
// and a user who may only read uses the command for that, which is there since Redis 7.
func (i *inspection) run(
	ctx context.Context, way rueidis.CoreClient, what *protocol.Script, some []int,
	build func(b rueidis.Builder, n int, verb, script string) rueidis.Completed,
) []rueidis.RedisResult {
	send := func(which []int, verb, script string) []rueidis.RedisResult {
		if i.readOnly.Load() {
			verb += "_RO"
		}
		commands := make(rueidis.Commands, len(which))
		for k, n := range which {
			commands[k] = build(way.B(), n, verb, script)
		}
		return way.DoMulti(ctx, commands...)
	}
	results := send(some, "EVALSHA", what.SHA)
	if !i.readOnly.Load() && forbidden(results[0].Error()) {
		i.readOnly.Store(true)
		other := send(some, "EVALSHA", what.SHA)
		if err := other[0].Error(); err == nil || protocol.NoScript(err) {
			results = other
		} else {
			i.readOnly.Store(false)
		}
	}
	var again, places []int
	for k, result := range results {
		if protocol.NoScript(result.Error()) {
			again, places = append(again, some[k]), append(places, k) //nolint:gosec // there is one result for each
		}
	}
	if len(again) > 0 {
		for k, result := range send(again, "EVAL", what.Source) {
			results[places[k]] = result
		}
	}
	return results
}

// forbidden tells whether the user has no permission for a command.
func forbidden(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(reply.Error(), "NOPERM")
}

// askEach asks about keys, see transport.Client.DoEach, and hands over why there is no answer.
func (r *Registry) askEach(
	p *transport.Wait, keys []string,
	send func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult,
	done func(i int, reply rueidis.RedisResult, err error),
) {
	r.transport.DoEach(p, keys, send, func(i int, reply rueidis.RedisResult, cut bool) {
		err := reply.Error()
		if cut {
			err = fault.Explain(fault.Ended(p.Ctx), fault.AsUnavailable(fault.NoAnswer))
		}
		done(i, reply, err)
	})
}

// asks is how long a call waits that only asks something.
func (r *Registry) asks(ctx context.Context) *transport.Wait {
	p := r.queues.CommandWait(ctx, r.transport.Farthest())
	return &p
}

// infoOf is what inspect.lua tells of a key.
func (r *Registry) infoOf(key string, x *protocol.Inspection) LockInfo {
	info := LockInfo{
		Path: key[len(r.prefix)+1:], Key: key, Kind: x.Kind, Layout: r.Layout(),
		HolderCount: x.HolderCount, WaiterCount: x.WaiterCount, TooLong: x.TooLong,
	}
	switch {
	case x.Stored == protocol.AsString:
		info.Layout = LayoutSpring
	case x.Stored == protocol.AsHash, x.Kind == protocol.KindReadWrite:
		info.Layout = LayoutRedisson
	}
	for _, h := range x.Holders {
		info.Holders = append(info.Holders, HolderInfo{
			Holder: h.Text, Label: Label{Registry: h.Name.Registry}, Shared: h.Shared,
			Since: h.Name.Since, Lease: h.Lease, Kept: h.Name.Kept, Token: h.Token,
		})
	}
	for _, q := range x.Waiters {
		info.Waiters = append(info.Waiters, WaiterInfo{Registry: q.Registry, Shared: q.Shared, Since: q.Since})
	}
	return info
}

// addLabels puts the labels of registries in. Known are those that were read before; registries without one among them.
func (r *Registry) addLabels(ctx context.Context, infos []LockInfo, known map[string]Label) error {
	own := r.others.inspection.label
	known[own.Registry] = own
	var registries []string
	want := func(registry string) {
		if _, ok := known[registry]; !ok && !protocol.IsCut(registry) {
			known[registry] = Label{}
			registries = append(registries, registry)
		}
	}
	for i := range infos {
		for k := range infos[i].Holders {
			want(infos[i].Holders[k].Label.Registry)
		}
		for k := range infos[i].Waiters {
			want(infos[i].Waiters[k].Registry)
		}
	}
	err := r.readRecords(ctx, registries, func(i int, _ presence.Record, from presence.Identity) {
		known[registries[i]] = Label(from)
	})
	if err != nil {
		return err
	}
	for i := range infos {
		info := &infos[i]
		label := func(registry string) Label {
			l := known[registry]
			if presence.Identity(l).Unread() {
				info.note("record")
			}
			return l
		}
		for k := range info.Holders {
			info.Holders[k].Label = label(info.Holders[k].Label.Registry)
		}
		for k := range info.Waiters {
			info.Waiters[k].Label = label(info.Waiters[k].Registry)
		}
	}
	return nil
}

// readRecords hands over what some registries say of themselves, one after another: nothing where there is no record.
func (r *Registry) readRecords(
	ctx context.Context, registries []string, each func(i int, record presence.Record, from presence.Identity),
) (failure error) {
	keys := make([]string, len(registries))
	for i, registry := range registries {
		keys[i] = presence.Key(r.prefix, registry)
	}
	parts, firsts := r.parts(keys)
	build := func(b rueidis.Builder, n int, verb, script string) rueidis.Completed {
		return b.Arbitrary(verb, script, strconv.Itoa(len(parts[n]))).Keys(parts[n]...).Args(strconv.Itoa(presence.MostBytes)).Build()
	}
	r.askEach(r.asks(ctx), firsts, func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult {
		return r.others.inspection.run(ctx, way, records, some, build)
	}, func(n int, reply rueidis.RedisResult, err error) {
		var rows []rueidis.RedisMessage
		if err == nil {
			rows, err = reply.ToArray()
		}
		if err == nil && len(rows) != len(parts[n]) {
			err = protocol.ErrStrange
		}
		for k := 0; err == nil && k < len(rows); k++ {
			i := n*r.together() + k
			if rows[k].IsInt64() { // its length
				each(i, presence.Record{}, presence.Unread(registries[i]))
				continue
			}
			var text string
			if text, err = rows[k].ToString(); err == nil {
				record, from := presence.Parse(registries[i], text)
				each(i, record, from)
			}
		}
		if err != nil {
			failure = fault.Classify(err)
		}
	})
	return failure
}

// together is how many keys one script reads: on a cluster they are in different slots.
func (r *Registry) together() int {
	if r.queues.Cluster {
		return 1
	}
	return inspectedAt
}

// parts are keys in groups that one script reads each, and the first key of each group.
func (r *Registry) parts(keys []string) (parts [][]string, firsts []string) {
	for part := range slices.Chunk(keys, r.together()) {
		parts, firsts = append(parts, part), append(firsts, part[0])
	}
	return parts, firsts
}
