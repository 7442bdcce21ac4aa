package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/permits"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// Semaphore limits how many holds there are at a time across all processes. It has a number of permits, and each [Hold] takes one
// or more of them. It is safe for use by many goroutines. Get it from [Registry.Semaphore].
//
//	partner := registry.Semaphore("partner", 5)
//	err := partner.Do(ctx, func(ctx context.Context) error { return call(ctx) })
//
// # Details
//
// Waiting calls are served first in, first out, within a process and across processes. A call for several permits, see
// [Permits], waits until that many are free, and no later call overtakes it.
//
// Each hold has its own lease. When the lease is over, the hold's permits are free. No call nests in a hold: each takes permits
// of its own. All times are by the server's clock, so the clocks of the processes do not matter.
type Semaphore struct {
	reg    *Registry
	key    string
	number int
	one    *queue.Kind // for holds of one permit
}

// mostPermits is how many permits a semaphore may have: Lua counts in floating point numbers.
const mostPermits = math.MaxInt32

// Semaphore returns the semaphore of a path, with n permits. It never returns nil, never fails and never talks to Redis: later
// calls report what is wrong.
//
// # Details
//
// The first call that acquires sets the number in Redis. Redis forgets it once all leases are over, at most half a minute later,
// unless [Semaphore.SetPermits] has set it permanently. If Redis has a number other than n, the number in Redis counts, and the
// registry logs a warning.
//
// A path belongs either to a lock or to a semaphore, since both would use the same key. Semaphores do not count for the
// registry's capacity.
//
// The format is the library's own, the same in each layout ([observe.Layout]), and Java does not know it. Redisson's RSemaphore
// and RPermitExpirableSemaphore are different objects: if Java has one at the path's key, calls return [ErrWrongType].
func (r *Registry) Semaphore(path string, n int) *Semaphore {
	s := &Semaphore{reg: r, key: r.prefix + ":" + path, number: n}
	s.one = s.kind(1)
	return s
}

// Permits sets how many permits a call of a [Semaphore] asks for. The call gets all of them or none. N must be positive. The call
// returns an error if the semaphore has fewer than n permits in total. Default: 1.
func Permits(n int) SemaphoreOption { return semaphoreOption{option{isPermits, time.Duration(n)}} }

// fewPermits checks the number that a call asks for.
func fewPermits(n time.Duration) error {
	switch {
	case n < 1:
		return fmt.Errorf("Permits(%d): the number must be positive", n)
	case n > mostPermits:
		return fmt.Errorf("Permits(%d): the number must be at most %d", n, mostPermits)
	}
	return nil
}

// Acquire waits until it has a permit, or as many as [Permits] says, and returns a [Hold], which is renewed until it is released.
//
// With [WithPolling], a call has no place in the queue, and gets a permit only when no other call waits there. A call whose user
// may not use the queue's key does not see which calls wait there: it takes any permit that is free.
//
// # Errors
//
// The errors are those of [Lock.Acquire], each within a [*LockError], with these differences:
//
//   - [ErrTaken] means that others have the permits, or wait for them
//   - asking for more permits than the semaphore has is an error
//   - it never returns [ErrCapacity]
//   - it never returns [ErrDeadlock]: if all holders of the permits wait in cycles, package inspect reports the deadlock
func (s *Semaphore) Acquire(ctx context.Context, opts ...SemaphoreOption) (*Hold, error) {
	q := request{Request: queue.Request{Wait: untilDone}}
	return s.acquire(ctx, "acquire", &q, apply(&q, opts))
}

// Do runs fn while it has a permit, or as many as [Permits] says. Fn gets the context of [Hold.Context]: it is cancelled, with
// the cause [ErrLockLost], as soon as the hold can no longer be guaranteed. Do also releases when fn panics, and when ctx is
// done.
//
// Do returns the error of fn, joined with the error of the release, see [Hold.Release]. When it returns an error of
// [Semaphore.Acquire], fn has not run.
func (s *Semaphore) Do(ctx context.Context, fn func(context.Context) error, opts ...SemaphoreOption) error {
	q := request{Request: queue.Request{Wait: untilDone}}
	return s.do(ctx, fn, &q, apply(&q, opts))
}

func (s *Semaphore) do(ctx context.Context, fn func(context.Context) error, q *request, bad error) (err error) {
	if fn == nil {
		return s.fail("do", errors.New("the function is nil"))
	}
	h, err := s.acquire(ctx, "do", q, bad)
	if err != nil {
		return err
	}
	defer h.releaseAfter(ctx, &err)
	return fn(h.within(ctx, q.in))
}

// SetPermits sets the number of permits permanently: Redis keeps the number when no permit is held, and the number given to
// [Registry.Semaphore] no longer matters. N must be from 1 to 2 147 483 647.
//
// If n is higher than before, waiting calls get the added permits at once. If it is lower, no hold loses a permit, and no permit
// is granted until fewer than n are held. Waiting calls for more than n fail.
//
// # Errors
//
// Each is within a [*LockError]: [ErrWrongType], [ErrUnavailable], [ErrClosed], the error of ctx, bad input, and other errors of
// Redis. After [ErrUnavailable], or the error of ctx, Redis may still set the number later, even after another call has set a
// different one.
func (s *Semaphore) SetPermits(ctx context.Context, n int) error {
	l := s.reg.permits.Of(s.key)
	err := l.check(ctx)
	if unusable := s.check(n); unusable != nil {
		err = fault.Join(err, unusable)
	}
	if err == nil {
		err = s.reg.queues.Stopped(ctx)
	}
	if err == nil {
		set := func() error {
			p, c := l.reg.queues.CommandWait(ctx, l.redis.Node()), l.redis.Format.SetPermits(s.key, n)
			_, _, err := l.reg.transport.Confirmed(&p, &c)
			return err
		}
		if err = set(); errors.Is(err, fault.Late) {
			err = set()
		}
	}
	return l.fail("setpermits", err)
}

func (s *Semaphore) fail(op string, err error) error {
	return &LockError{Op: op, Key: s.key, Err: err}
}

// check returns the error of every call that names this number, if there is one.
func (s *Semaphore) check(number int) error {
	switch {
	case number < 1:
		return fmt.Errorf("%d permits: a semaphore has at least one", number)
	case number > mostPermits:
		return fmt.Errorf("%d permits: a semaphore has %d at most", number, mostPermits)
	}
	return nil
}

// acquire is one call. It has its own Lock, so its local half is always free. Bad is what is wrong with the options, if anything
// is.
func (s *Semaphore) acquire(ctx context.Context, op string, q *request, bad error) (h *Hold, err error) {
	if bad != nil {
		return nil, s.fail(op, bad)
	}
	if err := s.check(s.number); err != nil {
		return nil, s.fail(op, err)
	}
	q.By = owner.NewHold()
	k := s.one
	if q.permits > 1 {
		k = s.kind(q.permits)
	}
	l := s.join(k)
	defer func() {
		if h == nil { // also when code of the user panics
			s.reg.permits.Leave(l)
		}
	}()
	return l.acquireAs(ctx, op, q, nil)
}

// join makes the lock for one call.
func (s *Semaphore) join(k *queue.Kind) *Lock {
	return s.reg.permits.Join(s.key, func(anchor *Lock) *Lock {
		l := newPlain()
		l.entry().Park() // so that its last unpin is reported
		l.begin(s.reg, k, s.key, anchor)
		return l
	})
}

// semaphores makes the set of all calls for permits. The anchor of a key is never locked: its path has what is known of other
// processes.
func (r *Registry) semaphores() *permits.Calls[*Lock] {
	return permits.New(func(l *Lock) string { return l.redis.Key }, func(key string) *Lock {
		anchor := newPlain()
		anchor.begin(r, r.permit, key, anchor)
		return anchor
	})
}

// kind returns the kind of the semaphore's holds that have this number of permits each.
func (s *Semaphore) kind(each int) *queue.Kind {
	k := s.reg.permitsOf(each, s.number)
	k.Found = s.found
	return k
}

// permitsOf returns the kind of a semaphore's holds: each is the number of permits of one hold, number that of the semaphore.
func (r *Registry) permitsOf(each, number int) *queue.Kind {
	format := protocol.NewPermits(r.formats, each, number)
	return r.queues.Permits(hold.Kind{Format: format, Env: r.plain.Holds.Env}, each)
}

// found logs that Redis has another number of permits than the caller named, unless that was logged.
func (s *Semaphore) found(number int) {
	if s.reg.permits.News(s.key, number) {
		s.reg.reports.dispatch.Log(slog.LevelWarn,
			"a call names a different number of permits than the semaphore has: the number in Redis counts",
			slog.String("key", s.key), slog.Int("permits", number), slog.Int("named", s.number))
	}
}
