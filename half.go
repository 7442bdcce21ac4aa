package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// half is a lock, for its path.
type half Lock

func (l *half) NewHold(t hold.Terms) *hold.Hold         { return (*Lock)(l).newHold(t) }
func (l *half) Hold() *hold.Hold                        { return l.hold.Load() }
func (l *half) Free()                                   { (*Lock)(l).freeLocal() }
func (l *half) Taken()                                  { (*Lock)(l).half().Taken() }
func (l *half) Contended() bool                         { return (*Lock)(l).half().Contended() }
func (l *half) Under() string                           { return l.pair.under() }
func (l *half) EndWait(call *deadlock.Call)             { (*Lock)(l).endWait(call) }
func (l *half) Abandoned(h *hold.Hold) cleanup.Removal  { return (*Lock)(l).abandoned(h) }
func (l *half) Unclaimed(number string) cleanup.Removal { return (*Lock)(l).unclaimed(number) }

func (l *half) Block(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	(*Lock)(l).block(ctx, call, w)
}

func (l *half) Won(h *hold.Hold, since clock.Instant) {
	of := (*Lock)(l)
	if of.place.Side() == queue.Writes {
		of.pair.wrote = h.Value() // mutant: writer forgotten
	}
	of.hold.Store(h)
	of.anchor().lockedAt.Store(int64(since))
	if of.half().Granted() {
		of.attend(true)
	}
}
