package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// Shared is what all paths of a registry share.
type Shared struct {
	Settings
	Prefix    string
	Values    string // the prefix of the values of the registry's holds
	Clock     clock.Clock
	Transport *transport.Client
	Waker     *Waker
	Closed    <-chan struct{}
	Draining  Draining
	Cleaner   *cleanup.Cleaner
	Lease     time.Duration // of holds, unless a call names another

	kits  sync.Pool // of *waitKit
	freed freed
	Counts
	refusals
	proofs
}

// Counts are figures about waiting calls.
type Counts struct {
	Grants  atomic.Uint64 // messages that made a call the owner
	Polls   atomic.Uint64 // tries that were made only because it was time
	Windows atomic.Uint64 // times that a waiter left a free key to calls without a ticket
}

// refusals is what servers, or proxies in front of them, refuse.
type refusals struct {
	Apart protocol.Apart // whether a proxy keeps paths on several servers: one script cannot obtain them

	unqueued  atomic.Bool  // a refusal for good was logged
	postponed atomic.Int64 // an instant: until then a refusal for now is not logged again
}

// Draining ends waiting calls when the registry shuts down, except those that may go on.
type Draining struct {
	Begins <-chan struct{}
	// GoesOn reports whether a call may go on. The call's goroutine calls it.
	GoesOn func(ctx context.Context) bool
}

// numberIn returns the number in the value of a hold of the registry; 0 if there is none, since the value may come from a
// message.
func (all *Shared) numberIn(value string) uint64 {
	n, err := strconv.ParseUint(value[len(all.Values):], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Stopped returns why a call must stop waiting: its context ended, or the registry is closed. It returns nil if neither is
// true.
func (all *Shared) Stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	select {
	case <-all.Closed:
		return fault.Closed
	default:
		return nil
	}
}

// Settings are the settings of a registry's calls.
type Settings struct {
	Cluster      bool               // the client is a cluster's
	Limit        time.Duration      // of a command
	DefaultLimit bool               // Limit is the default, to which two round trips are added
	Poll         time.Duration      // the poll interval
	Replicas     *protocol.Replicas // nil: holds count at once
}

// CommandWait returns how long a command of the registry waits for its reply.
func (s *Settings) CommandWait(ctx context.Context, l *transport.Node) transport.Wait {
	if s.DefaultLimit {
		return transport.Wait{Ctx: ctx, Limit: l.Plus(s.Limit), Near: s.Limit}
	}
	return transport.Wait{Ctx: ctx, Limit: s.Limit}
}

// grants reports whether a reply is a grant, which replicas must acknowledge.
func grants(c *protocol.Call, result rueidis.RedisResult) bool {
	s, err := c.Decode(result)
	return err == nil && s.Granted
}

// Renews is grants for a renewal.
func Renews(_ *protocol.Call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// Demand makes a call wait for replicas, if the registry has WithReplicas. Wrote reports whether the call has written.
func (s *Settings) Demand(c *protocol.Call, wrote func(*protocol.Call, rueidis.RedisResult) bool) {
	if s.Replicas != nil {
		c.Replicas, c.Wrote = s.Replicas, wrote
	}
}

// acknowledging returns how long a renewal may wait for replicas.
func (s *Settings) acknowledging() time.Duration {
	if s.Replicas == nil {
		return 0
	}
	return clock.Plus(s.Replicas.Timeout, transport.WaitAtMost)
}

// Waker is the registry's part of the listening on its client: a waiting call listens for changes of its lock's key, and for
// messages to itself. Package wake listens for all registries on a client.
type Waker struct {
	Listening *wake.Listener // nil when calls only poll
	own       string         // the channel for grants to this registry, unless there are several
	id        string         // the end of the name of each channel for grants
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

// ownChannel returns the channel on which scripts on a cluster publish messages for a registry about a key. It is in the key's
// slot, and begins with the prefix, as access lists expect. If the key's hash tag begins within the prefix, only a channel that
// begins with the whole key is both. See internal/protocol/lua/queue.lua.
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
