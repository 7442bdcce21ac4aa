// Package record writes in Redis what a registry says about itself: its record, and its place in the list of registries.
// Package presence says what and when; this package sends it, and notices that the user may not write.
package record

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Writer writes the record of a registry.
type Writer struct {
	Of

	key  string
	list list
}

// Of is the registry, and how it sends.
type Of struct {
	Prefix    string
	Registry  string // its name, with which its values begin
	Clock     clock.Clock
	Transport *transport.Client
	Limit     time.Duration // of any command, for a server nearby
	Log       func(level slog.Level, message string, about ...slog.Attr)
}

// most is how long a command of the record may take at most, for a server nearby: nobody waits for it.
const most = time.Second

// Init sets whose record it is.
func (w *Writer) Init(of Of) {
	w.Of, w.key, w.list.key = of, presence.Key(of.Prefix, of.Registry), presence.ListKey(of.Prefix)
}

// list is about the list of registries that have a record, see list.lua. Only the goroutine that writes the record uses it.
type list struct {
	key    string
	next   clock.Instant // until then the list has the registry, unless keys are gone
	denied clock.Instant // the server refuses it until then
	known  bool          // the server knows the script
}

// listEach is how often the list is told of the record. Told with each write, by thousands of waiting registries, it would cost
// the server as much as their looks.
const listEach = 5 * time.Minute

// Write writes the record, and now and then notes that in the list of registries, which may be on another server.
func (w *Writer) Write(ctx context.Context, text string, lasts time.Duration, gone bool) (refused bool, err error) {
	ms, keys := strconv.FormatInt(lasts.Milliseconds(), 10), []string{w.key}
	if gone {
		w.list.next = 0 // also if this write fails
	}
	if now := w.Clock.Now(); now >= w.list.next && now >= w.list.denied {
		keys = append(keys, w.list.key)
	}
	var listed rueidis.RedisResult
	verb, script := "EVAL", listScript.Source
	if w.list.known { // read now: the command may be built when this call has given up
		verb, script = "EVALSHA", listScript.SHA
	}
	w.each(ctx, keys, func(way rueidis.CoreClient, i int) rueidis.Completed {
		if i == 1 {
			return way.B().Arbitrary(verb, script, "1").Keys(w.list.key).Args(
				w.Registry, strconv.FormatInt(presence.ListedFor.Milliseconds(), 10),
				strconv.FormatInt((listEach+presence.SilentFor).Milliseconds(), 10), strconv.Itoa(presence.MostDead),
			).Build().ToPipe()
		}
		return way.B().Arbitrary("SET").Keys(w.key).Args(text, "PX", ms).Build().ToPipe()
	}, func(i int, reply rueidis.RedisResult, why error) {
		if i == 0 {
			err = why
		} else {
			listed = reply
		}
	})
	if len(keys) > 1 {
		w.end(ctx, w.list.told(listed, w.Clock.Now()))
	}
	return readonly.Forbidden(err), err
}

// each sends a command for each key, and calls done with the replies, one after another.
func (w *Writer) each(
	ctx context.Context, keys []string, command func(way rueidis.CoreClient, i int) rueidis.Completed,
	done func(i int, reply rueidis.RedisResult, why error),
) {
	t := w.Transport
	p := transport.Wait{Ctx: ctx, Limit: t.Node(w.key).RoundTrip().Plus(min(most, w.Limit))}
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

// told takes the reply, and returns the registries whose records end. A server that refuses the list is not asked for a while: a
// SCAN of all keys finds the records without it, too.
func (l *list) told(reply rueidis.RedisResult, now clock.Instant) (ended []string) {
	ended, err := reply.AsStrSlice()
	_, refused := rueidis.IsRedisErr(err)
	l.known = err == nil || l.known && !refused
	if err == nil {
		l.next = now.Add(listEach)
	} else if refused && !protocol.NoScript(err) && !fault.Transient(err) {
		l.denied = now.Add(presence.Denied)
	}
	return ended
}

// end makes the records of registries expire at once. One of them may have been frozen, and write its record just before that:
// then it writes it again within 20 s.
func (w *Writer) end(ctx context.Context, registries []string) {
	if len(registries) == 0 {
		return
	}
	keys := make([]string, len(registries))
	for i, registry := range registries {
		keys[i] = presence.Key(w.Prefix, registry)
	}
	w.each(ctx, keys, func(way rueidis.CoreClient, i int) rueidis.Completed {
		return way.B().Arbitrary("PEXPIRE").Keys(keys[i]).Args("1").Build().ToPipe()
	}, func(int, rueidis.RedisResult, error) {}) // after a failure a record lasts for the rest of its time
}

// Broke returns when the node's last connection broke.
func (w *Writer) Broke() clock.Instant {
	return w.Transport.Node(w.key).LastBreak()
}

// Refused logs that the user may not write the record.
func (w *Writer) Refused(err error) {
	w.Log(slog.LevelInfo, "the server refuses the record of this registry's host and process",
		slog.String("key", w.key), slog.Any("error", fault.Plain(err)))
}
