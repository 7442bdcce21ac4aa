package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/observe"
)

// releaseLast is release, reported to an observer.
func (l *Lock) releaseLast(ctx context.Context) error {
	if l.reg.reports.observer.Released == nil {
		_, err := l.release(ctx)
		return err
	}
	held := l.hold.Load().Held(l.reg.now())
	how, err := l.release(ctx)
	l.tellOfRelease(ctx, held, how, err)
	return err
}

// release ends the hold after its last unlock. It hands the hold to the next goroutine of this process, if it can. Otherwise it
// ends the hold, has its key removed, and frees the local half, which is leaving until then. See [queue.Path.Release] for the
// order of these steps.
func (l *Lock) release(ctx context.Context) (observe.End, error) {
	e, how, err := l.endHold()
	if e.Hold == nil {
		return how, err
	}
	e.Lost, e.Err = l.redis.Release(ctx, e.Ending)
	return l.ended(&e, e.Hold.Held(e.At))
}

// endHold ends the hold of the lock, or hands it on. It returns the hold that is to be released in Redis, if there is one.
func (l *Lock) endHold() (queue.Ended, observe.End, error) {
	reg := l.reg
	h := l.hold.Load()
	e := queue.Ended{Path: &l.redis, Ending: queue.Ending{Hold: h, Due: reg.handoff == 0}}
	if reg.handoff > 0 && h.Watched() { // another goroutine waits, or did
		var can bool
		var running time.Duration
		if can, e.Due, running = h.HandOff(reg.handoff); can && l.half().HandOff(running) {
			reg.reports.handoffs.Add(1)
			l.unpin() // the next owner brings its own
			return queue.Ended{}, observe.EndHandedOver, nil
		}
	}
	e.At = reg.now()
	e.Kept = l.redis.NoteKept(h)
	l.hold.Store(nil)
	sound, noticed := h.End(e.At)
	if noticed {
		l.tellLost(h.Held(e.At), fault.LeaseOver)
	}
	if !sound {
		l.endLost(h)
		return queue.Ended{}, observe.EndLost, h.Err()
	}
	return e, 0, nil
}

// ended returns what became of the release of a hold in Redis. Held is how it stood when its owner released it.
func (l *Lock) ended(e *queue.Ended, held hold.Held) (observe.End, error) {
	switch {
	case e.Err != nil:
		return observe.EndUnknown, e.Err
	case e.Lost != fault.NotLost:
		l.tellLost(held, e.Lost)
		l.reg.record.MayBeGone()
		return observe.EndLost, e.Lost.Err()
	case e.Kept > e.At:
		return observe.EndKept, nil
	default:
		return observe.EndReleased, nil
	}
}

// releasing releases several holds together.
type releasing struct {
	ctx   context.Context
	errs  []error   // in the order of the holds
	these []leaving // the holds that no owner has any more
}

// leaving is a hold that is being released.
type leaving struct {
	queue.Ended
	i    int // the index of its error
	lock *Lock
	held hold.Held
	how  observe.End // unless it is to be released in Redis
}

// add ends a hold in this process.
func (r *releasing) add(h *Hold) {
	i := len(r.errs)
	before, err := h.claim()
	r.errs = append(r.errs, h.lock.fail("release", err))
	if err == nil {
		r.leave(i, h, before)
	}
}

// leave ends the claimed hold whose error is the i-th.
func (r *releasing) leave(i int, h *Hold, before int32) {
	l := h.lock
	last, err := h.leave(before)
	if !last {
		r.errs[i] = l.fail("release", err)
		return
	}
	one := leaving{i: i, lock: l, held: l.hold.Load().Held(l.reg.now())}
	one.Ended, one.how, one.Err = l.endHold()
	r.these = append(r.these, one)
}

// release releases them in Redis. The caller must then call told.
func (r *releasing) release() {
	ended := make([]*queue.Ended, 0, len(r.these))
	for i := range r.these {
		if one := &r.these[i]; one.Hold != nil {
			ended = append(ended, &one.Ended)
		}
	}
	queue.ReleaseAll(r.ctx, ended)
}

// told tells observers, which may be slow. It returns the errors of all holds, joined.
func (r *releasing) told() error {
	for i := range r.these {
		one := &r.these[i]
		how, err := one.how, one.Err
		if one.Hold != nil {
			how, err = one.lock.ended(&one.Ended, one.held)
		}
		one.lock.tellOfRelease(r.ctx, one.held, how, err)
		r.errs[one.i] = one.lock.fail("release", err)
	}
	return fault.Join(r.errs...)
}
