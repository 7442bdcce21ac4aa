// Package readonly reads what Redis knows about many locks, and about registries, by scripts that change nothing: so a user who
// may only read can run them.
package readonly

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// mostNamed limits the holders, and the waiters, that are listed for a path.
const mostNamed = 100

// Together is how many keys one script reads; on a cluster one, since keys are in different slots, and behind a proxy that keeps
// them on several servers.
const Together = 100

var (
	locks   = protocol.Load("inspect")
	records = protocol.Load("records")
)

// Calls limits and stops the commands of a Reader.
type Calls interface {
	CommandWait(ctx context.Context, s *transport.Node) transport.Wait
	Stopped(ctx context.Context) error // why a call must stop, or nil
}

// Reader reads for the registry of a prefix.
type Reader struct {
	Prefix    string
	Sharded   string // as scripts take it, see [protocol.Config]
	Cluster   bool
	Clock     clock.Clock
	Client    rueidis.Client
	Transport *transport.Client
	Calls     Calls
	Apart     *protocol.Apart // whether a proxy keeps keys on several servers; nil: that is not known

	readOnly atomic.Bool // the server knows EVALSHA_RO, and refuses EVALSHA to this user
}

// Bystander returns a Reader for a prefix that belongs to no registry. A command ends with the context of its call, or when no
// answer comes within limit, besides the time that the trip to the server takes.
func Bystander(client rueidis.Client, prefix string, limit time.Duration) *Reader {
	t, cluster := transport.New(client), client.Mode() == rueidis.ClientModeCluster
	return &Reader{
		Prefix: prefix, Sharded: (&protocol.Config{Cluster: cluster}).Sharded(), Cluster: cluster,
		Clock: t.Clock, Client: client, Transport: t, Calls: calls{limit},
	}
}

// calls are those of a Bystander.
type calls struct{ limit time.Duration }

func (c calls) CommandWait(ctx context.Context, s *transport.Node) transport.Wait {
	return transport.Wait{Ctx: ctx, Limit: s.Plus(c.limit), Near: c.limit}
}

func (calls) Stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	return nil
}

// builder makes the command for a group of keys: verb is EVAL or EVALSHA, or its read-only form.
type builder func(b rueidis.Builder, n int, verb, script string, as naming) rueidis.Completed

// naming is what a command names besides the keys of locks.
type naming uint8

const (
	beside naming = iota // the keys beside them
	bare                 // nothing
	moving               // nothing, since the slot of a cluster moves: these keys may be at another node
)

// Locks inspects some keys.
func (r *Reader) Locks(ctx context.Context, keys []string) ([]protocol.Inspection, []error) {
	found, errs := make([]protocol.Inspection, len(keys)), make([]error, len(keys))
	args := []string{r.Prefix, strconv.Itoa(mostNamed), r.Sharded}
	more := func(key string) []string { return protocol.KeysBeside(r.Prefix, key, r.Cluster) }
	r.rows(ctx, locks, keys, more, args, func(i int, row rueidis.RedisMessage, err error) {
		if errs[i] = err; err == nil {
			found[i], errs[i] = protocol.ReadInspection(row)
		}
	})
	return found, errs
}

// Inspect returns what there is in Redis at a path.
func (r *Reader) Inspect(ctx context.Context, path string) (protocol.Inspection, error) {
	key := r.Prefix + ":" + path
	if ctx == nil {
		return protocol.Inspection{}, fault.NilContext
	}
	if err := cmp.Or(protocol.CheckPath(path, key), r.Calls.Stopped(ctx)); err != nil {
		return protocol.Inspection{}, err
	}
	found, errs := r.Locks(ctx, []string{key})
	return found[0], r.Transport.Node(key).Unsupported(errs[0])
}

// Records reads the records of some registries, and calls each with one after another; with zero values if there is none.
func (r *Reader) Records(
	ctx context.Context, registries []string, each func(i int, record presence.Record, from presence.Identity),
) (failure error) {
	keys := make([]string, len(registries))
	for i, registry := range registries {
		keys[i] = presence.Key(r.Prefix, registry)
	}
	r.rows(ctx, records, keys, nil, []string{strconv.Itoa(presence.MostBytes)}, func(i int, row rueidis.RedisMessage, err error) {
		if err == nil && row.IsInt64() { // its length
			each(i, presence.Record{}, presence.Unread(registries[i]))
			return
		}
		var text string
		var left int64
		if err == nil && row.IsArray() {
			text, left, err = expiring(row)
		}
		if err != nil {
			failure = err
			return
		}
		record, from := presence.Parse(registries[i], text)
		record.Left = time.Duration(left) * time.Millisecond
		each(i, record, from)
	})
	return failure
}

// expiring reads a text, and in how many milliseconds it expires.
func expiring(row rueidis.RedisMessage) (text string, left int64, err error) {
	parts, err := row.ToArray()
	if err != nil || len(parts) != 2 {
		return "", 0, fault.Classify(cmp.Or(err, protocol.ErrStrange))
	}
	if text, err = parts[0].ToString(); err == nil {
		left, err = parts[1].AsInt64()
	}
	return text, left, fault.Classify(err)
}

// Holders are the registries that hold some paths.
func (r *Reader) Holders(ctx context.Context, paths []string) ([][]string, error) {
	keys := make([]string, len(paths))
	for i, path := range paths {
		keys[i] = r.Prefix + ":" + path
	}
	holders := make([][]string, len(paths))
	found, errs := r.Locks(ctx, keys)
	for i, info := range found {
		if errs[i] != nil && !errors.Is(errs[i], fault.WrongType) {
			return nil, errs[i]
		}
		for _, h := range info.Holders {
			if !h.Name.Kept {
				holders[i] = append(holders[i], h.Name.Registry)
			}
		}
		if info.HolderCount > len(info.Holders) {
			holders[i] = append(holders[i], "")
		}
	}
	return holders, nil
}

// AtKey runs a script on one key, and returns what it replies about that.
func (r *Reader) AtKey(
	ctx context.Context, what *protocol.Script, key string, args ...string,
) (reply rueidis.RedisMessage, failure error) {
	r.rows(ctx, what, []string{key}, nil, args, func(_ int, row rueidis.RedisMessage, err error) { reply, failure = row, err })
	return reply, failure
}

// rows runs a script on some keys, and calls each with the reply about one key after another, or with why there is none. More
// returns the keys that the script also touches, for each; nil: none. Where a proxy refuses several keys they are asked for
// once more, each by itself.
func (r *Reader) rows(
	ctx context.Context, what *protocol.Script, keys []string, more func(key string) []string, args []string,
	each func(i int, row rueidis.RedisMessage, err error),
) {
	if r.Cluster || r.Apart.Seen(r.Clock.Now()) {
		r.groups(ctx, what, keys, 1, more, args, each)
		return
	}
	var single []string
	var at []int
	r.groups(ctx, what, keys, Together, more, args, func(i int, row rueidis.RedisMessage, err error) {
		if errors.Is(err, fault.Apart) {
			single, at = append(single, keys[i]), append(at, i)
			return
		}
		each(i, row, err)
	})
	if len(single) > 0 {
		r.groups(ctx, what, single, 1, more, args, func(k int, row rueidis.RedisMessage, err error) { each(at[k], row, err) })
	}
}

// groups is rows, with scripts for a number of keys. The error of keys that a proxy refuses together is [fault.Apart].
func (r *Reader) groups(
	ctx context.Context, what *protocol.Script, keys []string, size int, more func(key string) []string, args []string,
	each func(i int, row rueidis.RedisMessage, err error),
) {
	parts := slices.Collect(slices.Chunk(keys, size))
	firsts := make([]string, len(parts))
	for n, part := range parts {
		firsts[n] = part[0]
	}
	build := func(b rueidis.Builder, n int, verb, script string, as naming) rueidis.Completed {
		these, given := parts[n], args
		switch {
		case more == nil || as == bare:
		case as == moving:
			given = append(slices.Clip(given), strconv.Itoa(len(these)), "moving") // mutant: readers lost on the move
		default:
			these, given = slices.Clone(these), append(slices.Clip(given), strconv.Itoa(len(these)))
			for _, key := range parts[n] {
				these = append(these, more(key)...)
			}
		}
		return b.Arbitrary(verb, script, strconv.Itoa(len(these))).Keys(these...).Args(given...).Build().ToPipe()
	}
	wait := r.wait(ctx)
	r.Transport.DoEach(&wait, firsts, func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult {
		return r.run(ctx, way, what, some, build)
	}, func(n int, reply rueidis.RedisResult, cut bool) {
		rows, err := read(&wait, reply, cut)
		switch {
		case len(parts[n]) > 1 && fault.CrossSlot(reply.Error()):
			err = fault.Apart
		case err == nil && len(rows) != len(parts[n]):
			err = protocol.ErrStrange
		}
		for k := range parts[n] {
			if err != nil {
				each(n*size+k, rueidis.RedisMessage{}, err)
			} else {
				each(n*size+k, rows[k], nil)
			}
		}
	})
}

// wait returns how long a reading call waits.
func (r *Reader) wait(ctx context.Context) transport.Wait {
	return r.Calls.CommandWait(ctx, r.Transport.Farthest())
}

// read returns the rows of a reply, or why there are none.
func read(p *transport.Wait, reply rueidis.RedisResult, cut bool) ([]rueidis.RedisMessage, error) {
	rows, err := reply.ToArray()
	return rows, p.Explain(cut, err)
}

// run runs a read-only script for some groups of keys in one pipeline. It sends the source to a server that does not know the
// script, and uses the read-only command, which exists since Redis 7, for a user who may only read. Where the server or a proxy
// refuses the keys beside those of locks, it names only these, as processes did before.
func (r *Reader) run(
	ctx context.Context, way rueidis.CoreClient, what *protocol.Script, some []int, build builder,
) []rueidis.RedisResult {
	results := r.runOnce(ctx, way, what, some, build, beside)
	again := func(failed func(err error) bool, as naming) {
		protocol.Resend(results, some, failed, func(these []int) []rueidis.RedisResult {
			return r.runOnce(ctx, way, what, these, build, as)
		})
	}
	again(fault.Refusal, bare)
	again(fault.BetweenNodes, moving)
	return results
}

func (r *Reader) runOnce(
	ctx context.Context, way rueidis.CoreClient, what *protocol.Script, some []int, build builder, as naming,
) []rueidis.RedisResult {
	send := func(which []int, verb, script string) []rueidis.RedisResult {
		if r.readOnly.Load() {
			verb += "_RO"
		}
		commands := make(rueidis.Commands, len(which))
		for k, n := range which {
			commands[k] = build(way.B(), n, verb, script, as)
		}
		return way.DoMulti(ctx, commands...)
	}
	results := send(some, "EVALSHA", what.SHA)
	// Concurrent calls find out the same; each asks again by itself.
	if !r.readOnly.Load() && Forbidden(results[0].Error()) {
		r.readOnly.Store(true)
		other := send(some, "EVALSHA", what.SHA)
		if err := other[0].Error(); err == nil || protocol.NoScript(err) {
			results = other
		} else {
			r.readOnly.Store(false)
		}
	}
	protocol.Resend(results, some, protocol.NoScript, func(again []int) []rueidis.RedisResult {
		return send(again, "EVAL", what.Source)
	})
	return results
}

// AtServer runs a script that names no keys at one server: at client, or at that of the node if it is nil. After is the server's
// time just after it, in microseconds, by a TIME that follows in the same pipeline; 0: not known.
func (r *Reader) AtServer(
	ctx context.Context, s *transport.Node, client rueidis.CoreClient, what *protocol.Script, args ...string,
) (rows []rueidis.RedisMessage, after int64, err error) {
	wait := r.wait(ctx)
	var told atomic.Int64 // the question goes on when ctx has ended
	build := func(b rueidis.Builder, i int, verb, script string, _ naming) rueidis.Completed {
		if i == 1 {
			return b.Arbitrary("TIME").Build()
		}
		return b.Arbitrary(verb, script, "0").Args(args...).Build().ToPipe()
	}
	reply, cut := s.Ask(&wait, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		if client != nil {
			way = client
		}
		replies := r.runOnce(ctx, way, what, []int{0, 1}, build, bare)
		told.Store(micros(replies[1]))
		return replies[0]
	})
	rows, err = read(&wait, reply, cut)
	return rows, told.Load(), err
}

// micros reads a reply of TIME; 0 after an error.
func micros(reply rueidis.RedisResult) int64 {
	parts, err := reply.AsIntSlice()
	if err != nil || len(parts) != 2 {
		return 0
	}
	return parts[0]*1_000_000 + parts[1]
}

// Forbidden reports whether the user lacks permission for a command.
func Forbidden(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(reply.Error(), "NOPERM")
}

// Either sends a script by EVAL, or, if the user may not use that, by EVAL_RO, which exists since Redis 7.
func Either(send func(verb string) rueidis.RedisResult) rueidis.RedisResult {
	reply := send("EVAL")
	if !Forbidden(reply.Error()) {
		return reply
	}
	other := send("EVAL_RO")
	if refused, ok := rueidis.IsRedisErr(other.Error()); ok && strings.Contains(refused.Error(), "unknown command") {
		return reply
	}
	return other
}
