package lockregistry

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/observe"
)

// recorded is the record that a registry keeps of itself in Redis, and the registry as seen by package presence.
type recorded struct {
	presence.Recorder

	reg      *Registry
	key      string
	list     list
	detector *detector.Detector
}

// list is about the list of registries that have a record, see list.lua. Only the goroutine that writes the record uses it.
type list struct {
	key    string
	denied clock.Instant // the server refuses it until then
	known  bool          // the server knows the script
}

const recordLimit = time.Second

// keepRecord makes the registry keep a record of itself, with its name if it has one, and look for cycles across processes.
func (r *Registry) keepRecord(name *string) {
	own := presence.Own(strings.TrimSuffix(r.values, ":"), name)
	o := &r.others.reader
	o.Apart = &r.queues.Apart
	o.Prefix, o.Sharded, o.Cluster, o.Clock, o.Client = r.prefix, r.formats.Sharded(), r.queues.Cluster, r.clock, r.client
	o.Transport, o.Calls, o.Closed = r.transport.Client, &r.queues, r.closed
	p := &r.others.presence
	r.others.label = observe.Label(own)
	p.reg, p.key, p.list.key = r, presence.Key(r.prefix, own.Registry), presence.ListKey(r.prefix)
	p.detector = detector.New(forDetector{o, r}, own, &waiting, r.clock, r.closed)
	p.Start(p, r.clock, own)
}

func (w *recorded) Newest() uint64 { return w.reg.numbers.Newest() }

// Waits returns the waiting calls that the record lists. When one of them ends, the record is written anew.
func (w *recorded) Waits() []presence.Wait { return w.detector.Waits() }

// Locks returns the locks that the record lists.
func (w *recorded) Locks() (all []presence.Lock) {
	now := w.reg.clock.Now()
	for l := range w.reg.everyLock() {
		if l.entry().Pins() <= 0 {
			continue
		}
		if lock, lasts := w.describe(l, now); lasts {
			all = append(all, lock)
		}
		if len(all) == 2*presence.MostLocks {
			all = presence.Upper(all)
		}
	}
	return all
}

// of is what others are told of a path, or are yet to be.
func (w *recorded) of(path string) (all []presence.Lock) {
	for l := range w.reg.locksOf(path) {
		if is, lasts := w.describe(l, w.reg.clock.Now()); lasts {
			all = append(all, is)
		}
	}
	return all
}

// describe returns what the record says about a lock, and whether the lock belongs in the record.
func (w *recorded) describe(l *Lock, now clock.Instant) (is presence.Lock, lasts bool) {
	is.Path = l.path()
	if h := l.hold.Load(); h != nil {
		if owned, had, fresh := h.Held(now); fresh && had >= presence.Lasting {
			is.Hold, is.Since = h.Number(), w.reg.clock.Time(now.Add(-owned)).UnixMicro()
			is.Lease, is.Lasts = h.Upheld().Milliseconds(), h.Lasts(now)
		}
	}
	if l == l.anchor() { // the waiters for either side of a pair are together
		n, first := l.half().Queued()
		waits, queued, since := l.redis.Waits()
		is.Waiting = n
		lasts = l.pair != nil && is.Waiting > 0 || waits && since.Until(now) >= presence.Lasting
		if waits && !queued {
			is.Waiting++
			if first == 0 || since < first {
				first = since
			}
		}
		if first != 0 && first.Until(now) >= presence.Lasting {
			is.Oldest = w.reg.clock.Time(first).UnixMicro()
		}
		is.Standby = queued && l.redis.WaitsToLead()
	}
	return is, lasts || is.Hold != "" || is.Standby
}

// InUse reports whether the registry holds a lock or waits for one, and whether one of these has lasted a second.
func (w *recorded) InUse(now clock.Instant) (used, lasting bool) {
	for l := range w.reg.everyLock() {
		if l.entry().Pins() <= 0 {
			continue
		}
		if h := l.hold.Load(); h != nil {
			if _, had, fresh := h.Held(now); fresh {
				used, lasting = true, had >= presence.Lasting
			}
		}
		if waits, _, since := l.redis.Waits(); waits {
			used, lasting = true, lasting || since.Until(now) >= presence.Lasting
		}
		if lasting {
			break
		}
	}
	return used, lasting
}

// Write writes the record, and notes that in the list of registries, which may be on another server.
func (w *recorded) Write(ctx context.Context, text string, lasts time.Duration) (refused bool, err error) {
	ms, keys := strconv.FormatInt(lasts.Milliseconds(), 10), []string{w.key}
	if w.reg.clock.Now() >= w.list.denied {
		keys = append(keys, w.list.key)
	}
	var listed rueidis.RedisResult
	verb, script := w.list.script() // now: the command may be built when this call has given up
	w.each(ctx, keys, func(way rueidis.CoreClient, i int) rueidis.Completed {
		if i == 1 {
			return way.B().Arbitrary(verb, script, "1").Keys(w.list.key).Args(w.list.args(w.reg.values)...).Build()
		}
		return way.B().Arbitrary("SET").Keys(w.key).Args(text, "PX", ms).Build()
	}, func(i int, reply rueidis.RedisResult, why error) {
		if i == 0 {
			err = why
		} else {
			listed = reply
		}
	})
	if len(keys) > 1 {
		w.end(ctx, w.list.told(listed, w.reg.clock.Now()))
	}
	return readonly.Forbidden(err), err
}

// each sends a command for each key, and calls done with the replies, one after another.
func (w *recorded) each(
	ctx context.Context, keys []string, command func(way rueidis.CoreClient, i int) rueidis.Completed,
	done func(i int, reply rueidis.RedisResult, why error),
) {
	t := w.reg.transport
	p := transport.Wait{Ctx: ctx, Limit: t.Shard(w.key).RoundTrip().Plus(min(recordLimit, w.reg.queues.Limit))}
	t.DoEach(&p, keys, func(ctx context.Context, way rueidis.CoreClient, some []int) []rueidis.RedisResult {
		commands := make(rueidis.Commands, len(some))
		for k, i := range some {
			commands[k] = command(way, i)
		}
		return way.DoMulti(ctx, commands...)
	}, func(i int, reply rueidis.RedisResult, cut bool) {
		why := reply.Error()
		if cut {
			why = p.Explain(true, nil)
		}
		done(i, reply, why)
	})
}

var listScript = protocol.Load("list")

// script returns how the script is sent.
func (l *list) script() (verb, script string) {
	if l.known {
		return "EVALSHA", listScript.SHA
	}
	return "EVAL", listScript.Source
}

// args are the arguments of the script, for a registry whose values begin like this.
func (*list) args(values string) []string {
	return []string{
		strings.TrimSuffix(values, ":"), strconv.FormatInt(presence.ListedFor.Milliseconds(), 10),
		strconv.FormatInt(presence.SilentFor.Milliseconds(), 10), strconv.Itoa(presence.MostDead),
	}
}

// told takes the reply, and returns the registries whose records end. A server that refuses the list is not asked for a while:
// the records alone are found, too, by a SCAN of all keys.
func (l *list) told(reply rueidis.RedisResult, now clock.Instant) (ended []string) {
	ended, err := reply.AsStrSlice()
	_, refused := rueidis.IsRedisErr(err)
	l.known = err == nil || l.known && !refused
	if refused && !protocol.NoScript(err) && !fault.Transient(err) {
		l.denied = now.Add(presence.Denied)
	}
	return ended
}

// end has the records of registries expire at once. One of them may have been frozen, and write its record just before that: then
// it writes it again within 20 s.
func (w *recorded) end(ctx context.Context, registries []string) {
	if len(registries) == 0 {
		return
	}
	keys := make([]string, len(registries))
	for i, registry := range registries {
		keys[i] = presence.Key(w.reg.prefix, registry)
	}
	w.each(ctx, keys, func(way rueidis.CoreClient, i int) rueidis.Completed {
		return way.B().Arbitrary("PEXPIRE").Keys(keys[i]).Args("1").Build()
	}, func(int, rueidis.RedisResult, error) {}) // what fails leaves a record to its time
}

// Broke returns when the shard's last connection broke.
func (w *recorded) Broke() clock.Instant {
	return w.reg.transport.Shard(w.key).LastBreak()
}

// Lasts is called when a call has waited for a while. It looks for cycles with calls of this registry.
func (w *recorded) Lasts(ctx context.Context) { w.detector.Look(ctx) }

// Refused logs that the user may not write the record.
func (w *recorded) Refused(err error) {
	w.reg.reports.dispatch.Log(slog.LevelInfo, "the server refuses the record of this registry's host and process",
		slog.String("key", w.key), slog.Any("error", fault.Plain(err)))
}
