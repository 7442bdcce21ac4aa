package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// localSide is a lock as seen by its path in Redis.
type localSide Lock

func (l *localSide) Hold() *hold.Hold { return l.hold.Load() }
func (l *localSide) Free()            { (*Lock)(l).freeLocal() }
func (l *localSide) Taken()           { (*Lock)(l).half().Taken() }
func (l *localSide) Contended() bool  { return (*Lock)(l).half().Contended() }
func (l *localSide) Under() string    { return l.pair.under() }

func (l *localSide) LostInBackground(held time.Duration, why fault.Loss) {
	l.reg.others.presence.Doubt()
	(*Lock)(l).tellLost(held, why)
}

func (l *localSide) NewHold(t hold.Terms) *hold.Hold {
	h := (*Lock)(l).newHold(t)
	if l.redis.Many() {
		l.reg.permits.asks((*Lock)(l), h.Number())
	}
	return h
}

func (l *localSide) Block(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	(*Lock)(l).block(ctx, call, w)
}

func (l *localSide) EndWait(call *deadlock.Call) { (*Lock)(l).endWait(call) }

func (l *localSide) Won(h *hold.Hold, since clock.Instant) {
	of := (*Lock)(l)
	if of.writes() {
		of.pair.wrote = h.Value() // mutant: writer forgotten
	}
	of.hold.Store(h)
	of.anchor().entry.Use(since)
	if of.half().Granted() {
		of.attend(true)
	}
}
