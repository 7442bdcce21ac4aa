package lockregistry

import (
	"context"
	"errors"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// shard is the way to the master that has the lock's key.
func (l *Lock) shard() *transport.Shard { return l.redis.Shard() }

// prolong sets the lease of a hold anew, now, with t or with the term that it has. When the answer comes late it does so once
// more, to be sure, until the call's time is over.
func (l *Lock) prolong(ctx context.Context, h *hold.Hold, t *lease.Term) error {
	p := l.reg.queues.CommandWait(ctx, l.shard())
	p.Since = l.reg.clock.Now()
	for {
		if err := l.tooFar(h, &p, t); err != nil {
			return err
		}
		if err := h.Renew(&p, t); !errors.Is(err, fault.Late) || p.Left(l.reg.clock) <= 0 || ctx.Err() != nil {
			return err
		}
	}
}

// tooFar is why a renewal is not sent, if so: the lease that its owner asks for, if any, is too short to be of use, or the answer
// would come when the call is over. The call waits for its end then.
func (l *Lock) tooFar(h *hold.Hold, p *transport.Wait, asked *lease.Term) error {
	reg, way := l.reg, l.shard()
	if p.Ctx.Err() != nil || !h.Valid() {
		return nil //nolint:nilerr // the call tells of its end itself, at once
	}
	if err := queue.TooShort(asked, way); err != nil {
		return err
	}
	trip, left := way.RoundTrip(), p.Left(reg.clock)
	if !trip.Useless(left) {
		return nil
	}
	way.Relearn()
	if err := reg.queues.Outwait(p.Ctx, left); err != nil {
		return err
	}
	if !h.Valid() {
		return fault.WithEnd(p.Ctx, h.Err())
	}
	failure := fault.AsUnavailable(queue.TooLittleTimeError{Trip: trip})
	if p.Ctx.Err() == nil {
		return failure
	}
	return fault.Explain(fault.Ended(p.Ctx), failure)
}
