package queue

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// Waker is the registry's share of the listening on its client, in the words of locks: a waiting call listens for the key
// of its lock, and for messages to itself. See package wake, which does the listening for all registries on a client.
type Waker struct {
	Listening *wake.Listener // nil when calls only poll
	own       string         // the channel on which grants reach this registry, unless there are several
	id        string         // how the names of all end
	sharded   bool           // there are several, in the slots of the keys
	Wait      func()         // returns when what close has ended is over; for use after close
}

// listener is one waiting call; one of nil when there will be no wake-ups.
type listener struct{ *wake.Waiter }

// keyState is what there was to be seen of a key when its listener was armed.
type keyState struct {
	armed bool // the listener was armed just now; otherwise nothing else is known
	taken bool // the key was there, and with what is left of its lease, where that has an end
	left  time.Duration
}

// NewWaker is that of a registry with such a prefix, whose name in channels is id.
func NewWaker(prefix, id string, sharded bool) *Waker {
	return &Waker{own: prefix + "-channel@" + id, id: id, sharded: sharded, Wait: func() {}}
}

// Listen has waiting calls woken.
func (w *Waker) Listen(client rueidis.Client, o wake.Options) { w.Listening = wake.Listen(client, o) }

// listener returns a new listener for a path, not armed, or one of nil when there will be no wake-ups.
func (w *Waker) listener(p *Path) listener {
	if w.Listening == nil {
		return listener{}
	}
	wait := wake.Wait{Key: p.Key, Channel: p.Format.Channel(p.Key), Own: w.own}
	if w.sharded {
		wait.Own = ownChannel(p.all.Prefix, p.Key, w.id)
	}
	return listener{w.Listening.Waiter(wait)}
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

// Close ends the listening, which may take a while: see Wait.
func (w *Waker) Close() {
	if w.Listening != nil {
		w.Wait = w.Listening.Close()
	}
}
