package lockregistry

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/several"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// Several paths are obtained in one of two ways:
//
//   - At once: the call gets all local halves, if it need not wait for any, then asks Redis with one script for up to a
//     thousand paths, on a cluster for the paths of one slot. It waits for no owner meanwhile.
//   - In order: one after the other in the order of their keys, each as Acquire does. The paths that the call has are renewed
//     while it waits for the next.
//
// When another owner has one of them, the call releases what it got at once, then goes in order. So a waiter has only keys that
// sort before the one that it waits for: no two callers wait for each other.
//
// Behind a proxy that keeps the paths on several servers a script does not obtain them, see readback.go in internal/protocol. A
// registry that has seen such a proxy goes in order for a while. Other code that sends one script for several paths must look at
// Apart, too.

// AcquireAll acquires several paths: all of them, or none. It waits like [Registry.Acquire] until it has them all; with [NoWait]
// it tries once. The [Hold] stands for all paths: Release, Renew and Context apply to all of them, and when one path is lost, the
// Hold is lost.
//
// Calls of AcquireAll never deadlock with each other, whatever the order of their paths: a call that must wait takes the paths
// one after another, in the byte order of their keys. There is no such guarantee for a caller that already holds other locks of
// the prefix.
//
// # Details
//
// When all paths are free, the call takes one script for each thousand of them, and on a cluster at least one for each slot. The
// release takes as many, and one more for each path that others wait for. Behind a proxy that spreads keys over several servers,
// and while a cluster moves a slot that has two of the paths, both take one command for each path, one after another.
//
// While the call waits, it renews the paths that it already has. When one of them is lost, it releases all and starts over, until
// the wait ends. [AtMost] counts from the time when the call has all of them.
//
// A path that is given twice counts once. Only plain locks can be acquired. Holder and Token of the Hold are those of the first
// path given, see [Hold.Paths] and [Hold.TokenOf]. Each path counts for the capacity, see [Registry.SetCapacity].
//
// # Errors
//
// AcquireAll returns the errors of Acquire, with the key that failed. [ErrTaken] names a path that the call has found taken and
// has not acquired since. If there is no such path when the wait ends, and there was no time to ask for all paths, the error is
// [ErrUnavailable]. An empty list, an empty path, and more than 20 000 paths are bad input.
func (r *Registry) AcquireAll(ctx context.Context, paths []string, opts ...AcquireOption) (*Hold, error) {
	b, err := r.several(ctx, paths, opts)
	if err != nil {
		return nil, err
	}
	holds, err := b.obtain(ctx)
	if err != nil {
		return nil, err
	}
	byPath := map[string]*Hold{}
	for _, h := range holds {
		byPath[h.lock.Path()] = h
	}
	first := byPath[paths[0]]
	for _, path := range paths {
		if h := byPath[path]; h != nil && h != first {
			first.more = append(first.more, h)
			delete(byPath, path)
		}
	}
	return first, nil
}

// Paths returns the paths that were acquired: after [Registry.AcquireAll], all of them in the order given, each once.
func (h *Hold) Paths() []string {
	parts := h.parts()
	paths := make([]string, len(parts))
	for i, part := range parts {
		paths[i] = part.lock.Path()
	}
	return paths
}

// TokenOf returns the fencing token of one of the hold's paths, see [Hold.Token]. It is 0 for any other path.
func (h *Hold) TokenOf(path string) uint64 {
	for _, part := range h.parts() {
		if part.lock.Path() == path {
			return part.token
		}
	}
	return 0
}

// parts returns the holds of all paths.
func (h *Hold) parts() []*Hold {
	if h == nil {
		return nil
	}
	return append([]*Hold{h}, h.more...)
}

// multiAcquire is one call of AcquireAll.
type multiAcquire struct {
	reg      *Registry
	locks    []*Lock // in the order of their keys
	request  request
	deadline clock.Instant
	began    clock.Instant // for an observer; 0: there is none
	failure  error         // why Redis could not be asked for all at once; nil when it was asked since
	taken    takenLock     // what keeps the call waiting
}

// takenLock is a lock that the call has seen taken, and has not obtained since.
type takenLock struct {
	lock    *Lock // nil: there is none
	inRedis bool  // it was taken in Redis; otherwise in this process
}

// several checks the arguments of AcquireAll.
func (r *Registry) several(ctx context.Context, paths []string, opts []AcquireOption) (*multiAcquire, error) {
	b := &multiAcquire{reg: r, deadline: clock.Never, began: r.observed()}
	ordered, err := several.Ordered(paths)
	if err != nil {
		return nil, r.newLock(ordered[0]).fail("acquire", err)
	}
	q := request{Request: queue.Request{Wait: untilDone}}
	err = apply(&q, opts)
	if ctx != nil {
		q.in = tenure.CarriedBy(ctx)
	}
	b.locks = make([]*Lock, 0, len(ordered))
	for _, path := range ordered {
		l := r.Obtain(path)
		switch failed := l.check(ctx); {
		case err != nil || failed != nil:
			err = fault.Join(err, failed)
		case q.in.Deadlock(owner.AnyHold, r.cache.current(l).shares) != nil:
			err = ErrDeadlock
		}
		if err != nil {
			return nil, l.fail("acquire", err)
		}
		b.locks = append(b.locks, l)
	}
	q.By = owner.NewHold() // each path has an owner of its own
	r.chooseTerms(&q, false)
	b.request = q
	if q.Wait > 0 {
		b.deadline = r.now().Add(q.Wait)
	}
	return b, nil
}

// obtain gets all locks, and returns their holds in the order of the keys.
func (b *multiAcquire) obtain(ctx context.Context) ([]*Hold, error) {
	patient := b.request.Wait != notAtAll
	contested := patient && slices.ContainsFunc(b.locks, func(l *Lock) bool { return b.reg.cache.current(l).redis.Contested() })
	if !contested && !b.reg.queues.Apart.Counts(b.reg.now()) {
		holds, l, err := b.atOnce(ctx)
		if err == nil {
			return holds, nil
		}
		call := several.Call{Patient: patient, Limited: b.request.Wait > 0 && ctx.Err() == nil, FailFast: b.request.FailFast}
		goesOn, failure := call.GoesOn(err)
		if b.failure = failure; !goesOn {
			waited := b.request.Wait
			if b.request.FailFast {
				waited = notAtAll
			}
			err = l.gaveUp("acquire", err, waited, b.taken.inRedis)
			l.tellAcquired(ctx, "acquire", &b.request, b.began, false, err)
			return nil, err
		}
	}
	for queued := false; ; queued = true {
		holds, err := b.inOrder(ctx, queued)
		if err == nil || ctx.Err() != nil || !patient || !errors.Is(err, ErrLockLost) {
			return holds, err
		}
	}
}

// inOrder gets one lock after the other. It fails with ErrLockLost when one is lost while it waits for another one. Queued: the
// call has waited before.
func (b *multiAcquire) inOrder(ctx context.Context, queued bool) (holds []*Hold, err error) {
	waiting, end := context.WithCancelCause(ctx) // also ends when one of them is lost
	var heed []func() bool
	got, complete := false, false
	defer func() {
		if !complete { // there are some if code of the user has panicked, or has ended the goroutine
			giveBack(holds)
		}
	}()
	defer func() {
		for _, stop := range heed {
			stop()
		}
		end(nil) // this calls methods of ctx, too
		complete = got
	}()
	for i, l := range b.locks {
		h, tell, err := b.next(waiting, l, queued || i > 0)
		if err != nil {
			back := givenBack(queue.NoTime, holds) // mutant: first path kept
			tell()                                 // only now: an observer may be slow
			_ = back.told()
			return nil, err
		}
		holds = append(holds, h)
		tell()
		// The contexts are siblings: a chain would take time and stack for each link. Deadlock detection knows the paths that this
		// call has by its goroutine.
		has := h.context(waiting, b.request.in)
		heed = append(heed, context.AfterFunc(has, func() { end(pathEndedError{context.Cause(has)}) }))
	}
	if err := b.settle(ctx, holds); err != nil {
		giveBack(holds)
		return nil, err
	}
	got = true
	return holds, nil
}

// pathEndedError is the cause with which a call's waiting ends when a path that it already has is lost, or the registry is
// closed.
type pathEndedError struct{ error }

func (p pathEndedError) Unwrap() error { return p.error }

// next gets one lock, which is renewed until the call has all. The caller must call tell, which calls an observer.
func (b *multiAcquire) next(ctx context.Context, l *Lock, queued bool) (h *Hold, tell func(), err error) {
	q, began := b.request, b.reg.observed()
	q.By, q.Terms.Unlogged = owner.NewHold(), b.unlogged(l)
	q.Terms.AtMost = 0 // it counts from when the call has all
	now := b.reg.now()
	var asked bool
	err = b.timeOver(ctx, now)
	if err != nil {
		l, asked, err = b.unasked(l, err)
	} else {
		if b.deadline != clock.Never {
			q.Wait = now.Until(b.deadline)
		}
		q.Queued = queued
		var on *Lock
		if on, err = l.enter(ctx, &q); on != nil {
			asked, err = true, queue.Obtain(ctx, &on.redis, &q.Request)
		}
		b.failure = nil
		if b.taken.lock != nil && b.taken.lock.redis.Key == l.redis.Key {
			b.taken = takenLock{}
		}
	}
	if err != nil {
		var of pathEndedError
		if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &of) {
			err = of.error // the caller's own context has not ended
		}
		err = l.gaveUp("acquire", err, b.request.Wait, asked)
	}
	outcome := err
	tell = func() { l.tellAcquired(ctx, "acquire", &q, began, outcome == nil, outcome) }
	if err == nil {
		h, err = l.take(ctx, "acquire", q.By)
	}
	return h, tell, err
}

// timeOver returns why the call has no time to ask for another lock: fault.Busy when its wait is over.
func (b *multiAcquire) timeOver(ctx context.Context, now clock.Instant) error {
	switch {
	case errors.Is(context.Cause(ctx), ErrLockLost): // the call begins anew
		return nil
	case ctx.Err() != nil:
		return fault.Ended(ctx)
	case b.deadline <= now:
		return fault.Busy
	default:
		return nil
	}
}

// unasked returns the error of a call whose time ended before it could ask for l. The error says that a lock is taken only if the
// call has seen that. Why is the end of ctx, or fault.Busy.
func (b *multiAcquire) unasked(l *Lock, why error) (about *Lock, asked bool, err error) {
	taken := b.taken
	if taken.lock == nil {
		return l, false, fault.Explain(why, cmp.Or(b.failure, fault.OutOfTime))
	}
	if taken.inRedis && why != fault.Busy { //nolint:errorlint // never wrapped
		why = fault.HeldError{End: why}
	}
	return taken.lock, taken.inRedis, why
}

// settle gives the holds the terms that the call has asked for, and renews them, since the call may have waited for most of
// their leases. After a transient failure each hold stays valid for the rest of its lease.
func (b *multiAcquire) settle(ctx context.Context, holds []*Hold) error {
	return queue.Each(holds, func(h *Hold) error {
		terms := b.request.Terms
		terms.Unlogged = b.unlogged(h.lock)
		if !h.lock.setTerms(h.hold, terms) {
			return h.lock.fail("acquire", ErrLockLost)
		}
		length := b.request.Terms.Lease.Length
		if h.Remaining() < length-length/10 {
			until := queue.Limits{Deadline: b.deadline, FailFast: b.request.FailFast}
			if err := h.lock.redis.Prolong(ctx, hold.Part{Hold: h.hold, Owner: h.owner}, nil, until); errors.Is(err, ErrLockLost) {
				return h.lock.fail("acquire", err)
			}
		}
		return nil
	})
}

// unlogged reports whether l is not the first path: only that one logs, so that each message appears once.
func (b *multiAcquire) unlogged(l *Lock) bool { return l.redis.Key != b.locks[0].redis.Key }

// atOnce gets all locks if all are free. Otherwise it releases what Redis may have granted, and returns the lock that failed,
// and why: fault.Busy when another owner has it.
func (b *multiAcquire) atOnce(ctx context.Context) (holds []*Hold, failed *Lock, err error) {
	group, as := queue.NewGroup(len(b.locks), b.request.FailFast, b.request.Wait != notAtAll), make([]owner.ID, 0, len(b.locks))
	asked, returned := false, false
	defer func() {
		switch {
		case returned:
			return
		case !asked:
			group.Forsake()
			holds, _, _ = b.won(queue.NoTime, group, as)
		}
		giveBack(holds) // code of the user has panicked, or has ended the goroutine
	}()
	for i, l := range b.locks {
		q := b.request
		q.By, q.Wait, q.Terms.Unlogged = owner.NewHold(), notAtAll, b.unlogged(l)
		now, err := l.enter(ctx, &q)
		if err != nil {
			asked, returned = true, true
			group.Leave()
			if err == fault.Busy { //nolint:errorlint // never wrapped
				b.taken = takenLock{l, false}
			}
			return nil, l, err
		}
		group.Add(ctx, &now.redis, q.Terms)
		b.locks[i], as = now, append(as, q.By)
	}
	at, taken, err := group.Try(b.deadline)
	asked = true
	group.Leave()
	holds, lost, noHold := b.won(ctx, group, as)
	if err == nil && noHold != nil {
		at, err = lost, noHold
	}
	if err == nil {
		b.tellWon(ctx, group)
		returned = true
		return holds, nil, nil
	}
	// A call that does not wait, and goes on with one path after another, would find taken what it has not given back yet.
	goesOn, within := errors.Is(err, fault.Apart) && b.request.Wait == notAtAll, queue.NoTime
	if goesOn {
		within = ctx
	}
	back := givenBack(within, holds)
	b.tellWon(ctx, group)
	returned = true
	if unsure := back.told(); goesOn && errors.Is(unsure, ErrUnavailable) {
		return nil, b.locks[at], fault.AsUnavailable(fault.NoAnswer)
	}
	if taken >= 0 {
		b.taken = takenLock{b.locks[taken], true}
	}
	return nil, b.locks[at], err
}

// won returns the holds of the paths that Redis has granted at once, and which of them is lost already, if one is.
func (b *multiAcquire) won(ctx context.Context, group *queue.Group, as []owner.ID) (holds []*Hold, at int, lost error) {
	holds = make([]*Hold, 0, len(as))
	for i, o := range as {
		if !group.Won(i) {
			continue
		}
		if h, err := b.locks[i].take(ctx, "acquire", o); err == nil {
			holds = append(holds, h)
		} else if lost == nil {
			at, lost = i, ErrLockLost
		}
	}
	return holds, at, lost
}

// tellWon tells an observer of the paths that Redis has granted at once. The observer may be slow, so a call that fails gives the
// paths back first.
func (b *multiAcquire) tellWon(ctx context.Context, group *queue.Group) {
	for i, l := range b.locks {
		if group.Won(i) {
			l.tellAcquired(ctx, "acquire", &request{Request: queue.Request{How: observe.HowFree}}, b.began, true, nil)
		}
	}
}

// releaseAll is Release for several paths.
func (h *Hold) releaseAll(ctx context.Context) error {
	before, err := h.claim()
	if err != nil {
		return h.lock.fail("release", err)
	}
	parts := releasing{ctx: ctx, errs: make([]error, 1, 1+len(h.more)), these: make([]leaving, 0, 1+len(h.more))}
	parts.leave(0, h, before)
	for _, part := range h.more {
		parts.add(part)
	}
	parts.release()
	return parts.told()
}

// giveBack releases the holds of a call that failed, and tells observers.
func giveBack(holds []*Hold) {
	back := givenBack(queue.NoTime, holds)
	_ = back.told()
}

// givenBack releases the holds of a call that failed, as Unlock does with ctx. If the call may have no time left, ctx is NoTime;
// removals go on in the background until they are confirmed. The caller must call told.
func givenBack(ctx context.Context, holds []*Hold) releasing {
	parts := releasing{ctx: ctx}
	for _, h := range holds {
		parts.add(h)
	}
	parts.release()
	return parts
}

// contextFor is a context that was made for several paths, and its parent.
type contextFor struct{ parent, ctx context.Context }

// contextOfAll returns a context that ends when one of the paths is lost, and carries them all, the first one given innermost.
// For the parent of one of the previous calls it returns the same context, so that a program that calls Context before each of
// its steps does not fill the memory. If two calls come at the same moment, one may overwrite what the other has noted: then a
// later call makes another context.
func (h *Hold) contextOfAll(parent context.Context) context.Context {
	var last []contextFor
	if before := h.last.Load(); before != nil {
		last = *before
	}
	for _, c := range last {
		if hold.SameContext(c.parent, parent) && c.ctx.Err() == nil {
			return c.ctx
		}
	}
	ctx := parent
	for _, other := range h.more {
		ctx = other.context(ctx, tenure.CarriedBy(ctx)) //nolint:fatcontext // it is to end with any of them
	}
	ctx = h.context(ctx, tenure.CarriedBy(ctx))
	next := []contextFor{{parent, ctx}}
	for _, c := range last {
		if len(next) < hold.LooksBack && c.ctx.Err() == nil {
			next = append(next, c)
		}
	}
	h.last.Store(&next)
	return ctx
}
