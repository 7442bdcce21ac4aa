package lockregistry

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// waker is the registry's share of the listening on its client, in the words of locks: a waiting call listens for the key
// of its lock, and for messages to itself. See package wake, which does the listening for all registries on a client.
type waker struct {
	listening *wake.Listener // nil when calls only poll
	own       string         // the channel on which grants reach this registry, unless there are several
	id        string         // how the names of all end
	sharded   bool           // there are several, in the slots of the keys
	wait      func()         // returns when what close has ended is over; for use after close
}

// listener is one waiting call; one of nil when there will be no wake-ups.
type listener struct{ *wake.Waiter }

// keyState is what there was to be seen of a key when its listener was armed.
type keyState struct {
	armed bool // the listener was armed just now; otherwise nothing else is known
	taken bool // the key was there, and with what is left of its lease, where that has an end
	left  time.Duration
}

func newWaker(r *Registry, m Wakeup, log *slog.Logger) *waker {
	w := &waker{
		id:      strings.TrimSuffix(r.values, ":"),
		sharded: r.cluster,
		wait:    func() {},
	}
	w.own = r.prefix + "-channel@" + w.id
	to := r.transport.Client
	o := wake.Options{
		Track:     m == WakeupAuto || m == WakeupTracking,
		Subscribe: m == WakeupAuto || m == WakeupPubSub,
		Common:    r.plain.Format.CommonChannel(),
		Poll:      r.poll,
		RoundTrip: func() time.Duration { return to.Farthest().RoundTrip().Base },
		Log:       r.reports.dispatch.Log,
		Sink:      log,
		Message:   func(_, text string) { r.told(text) },
		Connection: func(c wake.Connection) {
			if !c.Up {
				r.others.presence.Doubt()
				r.background.doubt(c.Node)
			}
		},
	}
	if o.Track || o.Subscribe {
		w.listening = wake.Listen(r.client, o)
	}
	return w
}

// listener returns a new listener for a lock, not armed, or one of nil when there will be no wake-ups.
func (w *waker) listener(l *Lock) listener {
	if w.listening == nil {
		return listener{}
	}
	wait := wake.Wait{Key: l.place.Key, Channel: l.place.Format.Channel(l.place.Key), Own: w.own}
	if w.sharded {
		wait.Own = ownChannel(l.reg.prefix, l.place.Key, w.id)
	}
	return listener{w.listening.Waiter(wait)}
}

// arm sees to it that every change of the key from now on wakes the listener; see wake.Waiter.Arm.
func (l listener) arm(ctx context.Context, limit time.Duration) keyState {
	seen := l.Arm(ctx, limit)
	return keyState{armed: seen.Armed, taken: seen.Taken, left: seen.Left}
}

// ownChannel is where scripts on a cluster publish messages for a registry about a key: in the slot of the key. Where the
// tag of the key begins within the prefix, a channel that begins with the prefix, as access lists expect, is in that slot
// only if it begins with the key. See internal/protocol/lua/queue.lua.
func ownChannel(prefix, key, registry string) string {
	if _, tag, begins := strings.Cut(prefix, "{"); begins && !strings.Contains(tag, "}") {
		return key + "-channel@" + registry
	}
	return prefix + "-channel@{" + protocol.HashTag(key) + "}" + registry
}

// close ends the listening, which may take a while: see wait.
func (w *waker) close() {
	if w.listening != nil {
		w.wait = w.listening.Close()
	}
}
