package lockregistry

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// stray is a value that may be in Redis although nobody holds it: a removal has not been confirmed, or a grant whose
// reply was lost may still be executed. The scheduler asks Redis to remove exactly this value, again and again, so that
// the path is not blocked for a whole lease. It can harm nobody: the value names one hold, which is over.
type stray struct {
	reg   *Registry
	kind  *kind
	key   string
	value string

	gone  instant       // removals only: when the key has expired even if no command ever arrives
	freed func()        // removals only: gives the local half free; nil once called
	late  bool          // a grant may arrive yet, so one removal is not enough
	watch time.Duration // for how long to look out for it, once Redis answers
	calm  instant       // since when Redis answers; 0 while it does not

	due instant // guarded by the scheduler's mutex; never while it is under way
}

const (
	strayWatch = time.Minute      // the least time to look out for a late grant
	strayHaste = 10 * time.Second // for so long every poll interval, then ever more rarely
	strayEase  = 8                // afterwards the pause is this fraction of the calm
)

// removal is the stray of a hold that is over and whose key is still to be removed.
func (h *hold) removal(freed func()) *stray {
	s := h.abandoned()
	s.freed, s.late = freed, h.late
	return s
}

// abandoned is the stray of a hold of which a grant may arrive yet.
func (h *hold) abandoned() *stray {
	h.mu.Lock()
	defer h.mu.Unlock()
	longest := max(h.lease.length, h.most)
	return &stray{
		reg:   h.lock.reg,
		kind:  h.lock.kind,
		key:   h.lock.key,
		value: h.value,
		gone:  h.lock.reg.clock.now().add(longest).add(margin(longest)),
		late:  true,
		watch: max(h.lease.length, strayWatch),
	}
}

// sweep hands a stray to the scheduler, which sees to it at once. It reports false, and does nothing, after close.
func (s *scheduler) sweep(t *stray) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	t.due = s.reg.clock.now()
	s.strays = append(s.strays, t)
	s.soon(t.due)
	return true
}

// dueStrays returns what is to be removed now, and when to look again. After an outage there may be very many strays: they
// take turns then, so that the server is not asked for more than a pipeline of them each poll interval. The caller holds
// the mutex.
func (s *scheduler) dueStrays(now instant) (errands []errand, again instant) {
	if len(s.strays) > batch {
		slices.SortFunc(s.strays, func(a, b *stray) int { return cmp.Compare(a.due, b.due) })
	}
	again = never
	for _, t := range s.strays {
		switch {
		case t.due > now:
			again = min(again, t.due)
		case len(errands) == batch:
			again = min(again, now.add(s.reg.poll))
		default:
			t.due = never // until it is answered
			errands = append(errands, t)
		}
	}
	return errands, again
}

// sweep has a stray removed in the background. When the registry is closed it does so itself, once, and tells whether the
// stray is known to be gone.
func (r *Registry) sweep(t *stray) (background, gone bool) {
	if r.scheduler.sweep(t) {
		return true, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace) // the caller's may be done already
	defer cancel()
	_, err := confirmed(t.call(ctx).do(ctx, r.client))
	if t.freed != nil {
		t.freed()
	}
	return false, err == nil
}

func (t *stray) call(ctx context.Context) call { return t.kind.layout.release(ctx, t.key, t.value) }

func (t *stray) done(_ instant, _ bool, err error) {
	now := t.reg.clock.now()
	pause := t.reg.poll
	finished := false
	switch {
	case err != nil:
		t.calm = 0
		finished = !t.late && now >= t.gone
	case !t.late:
		finished = true
	case t.calm == 0:
		t.calm = now
	default:
		calm := t.calm.until(now)
		if calm > strayHaste {
			pause = max(pause, calm/strayEase)
		}
		finished = calm > t.watch
	}

	s := t.reg.scheduler
	s.mu.Lock()
	finished = finished || s.closed
	if finished {
		s.forget(t)
	} else {
		t.due = now.add(pause)
		s.soon(t.due)
	}
	s.mu.Unlock()

	if t.freed != nil && (err == nil || now >= t.gone || finished) {
		t.freed()
		t.freed = nil
	}
}

// forget takes a stray off the list. The caller holds the mutex.
func (s *scheduler) forget(t *stray) {
	for i, other := range s.strays {
		if other == t {
			last := len(s.strays) - 1
			s.strays[i] = s.strays[last]
			s.strays[last] = nil
			s.strays = s.strays[:last]
			return
		}
	}
}
