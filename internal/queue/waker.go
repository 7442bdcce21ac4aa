package queue

import (
	"strings"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// Waker is the registry's part of the listening on its client: a waiting call listens for changes of its lock's key, and for
// messages to itself. Package wake listens for all registries on a client.
type Waker struct {
	Listening *wake.Listener // nil when calls only poll
	own       string         // the channel for grants to this registry, unless there are several
	id        string         // the end of their names
	sharded   bool           // there is a channel in the slot of each key
	Wait      func()         // returns, after Close, when the listening has ended
}

// NewWaker makes the waker of a registry with this prefix, whose name in channels is id.
func NewWaker(prefix, id string, sharded bool) *Waker {
	return &Waker{own: prefix + "-channel@" + id, id: id, sharded: sharded, Wait: func() {}}
}

// listener returns a new listener for a path, whose key is not watched; nil if there are no wake-ups.
func (w *Waker) listener(p *Path) *wake.Waiter {
	if w.Listening == nil {
		return nil
	}
	wait := wake.Wait{Key: p.Key, Channel: p.Format.Channel(p.Key), Own: w.own}
	if w.sharded {
		wait.Own = ownChannel(p.all.Prefix, p.Key, w.id)
	}
	return w.Listening.Waiter(wait)
}

// ownChannel returns the channel, in the key's slot, on which scripts on a cluster publish messages for a registry about a key.
// If the key's hash tag begins within the prefix, a channel that begins with the prefix, as access lists expect, is in that
// slot only if it begins with the key. See internal/protocol/lua/queue.lua.
func ownChannel(prefix, key, registry string) string {
	if _, tag, begins := strings.Cut(prefix, "{"); begins && !strings.Contains(tag, "}") {
		return key + "-channel@" + registry
	}
	return prefix + "-channel@{" + protocol.HashTag(key) + "}" + registry
}

// Close ends the listening, which may take a while, see Wait.
func (w *Waker) Close() {
	if w.Listening != nil {
		w.Wait = w.Listening.Close()
	}
}
