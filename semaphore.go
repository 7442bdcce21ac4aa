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
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// Semaphore has a number of permits, which holds in any process have for a while: so that no more than that many do something
// at a time. It is safe for use by many goroutines; get it from [Registry.Semaphore]. Later versions may add methods.
//
// Who waits is served first in, first out, within a process and across processes. A call for several permits, see [Permits],
// gets all of them or none. It waits until there are as many at once, and nobody behind it is served before.
//
// A hold of a semaphore is a [Hold] with a lease of its own: when that is over its permits are the next one's. It is never
// reentrant. All times are those of the server, so that the clocks of the processes do not matter.
type Semaphore interface {
	// Acquire waits until it has a permit, or as many as [Permits] says. Options are [Lease], [AtMost], [Wait], [NoWait],
	// [FailFast] and Permits. It is renewed, as any [Hold]. The errors, each within a [*LockError], are those of [Lock.Acquire],
	// but never [ErrCapacity] or [ErrDeadlock]: a cycle of calls of which one waits for permits is not found. [ErrTaken] means
	// that others have the permits, or wait for them. With [WithPolling], and where Redis refuses the queue, a call has no place
	// in it, and gets a permit only when nobody else waits there.
	Acquire(ctx context.Context, opts ...LockOption) (*Hold, error)

	// TryAcquire acquires like Acquire but does not wait; with [Wait] it waits that long at most. It reports false without an
	// error when others have the permits, or wait for them: it overtakes nobody.
	TryAcquire(ctx context.Context, opts ...LockOption) (*Hold, bool, error)

	// Do runs fn while it has a permit, or as many as [Permits] says. Options and errors are those of Acquire. The context of fn
	// is that of [Hold.Context]: it is cancelled, with the cause [ErrLockLost], as soon as the hold can no longer be guaranteed.
	//
	// Do returns the error of fn, joined with that of the release. It releases also when fn panics, and when ctx is done.
	Do(ctx context.Context, fn func(context.Context) error, opts ...LockOption) error

	// SetPermits sets the number of permits for good: it stays in Redis when nobody holds any, and what calls name does not
	// matter any more. When it is raised, waiting calls get what is added at once. When it is lowered nobody loses a permit, and
	// none is given until fewer are held; a waiting call for more than n fails.
	SetPermits(ctx context.Context, n int) error
}

// semaphoreAt is the semaphore of a path, as a caller has it.
type semaphoreAt struct {
	reg    *Registry
	key    string
	number int
	one    *kind // of a hold of one permit
}

// mostPermits is how many a semaphore has at most: in Redis they are counted as floating point numbers.
const mostPermits = math.MaxInt32

// Semaphore returns the semaphore of a path, which has n permits. It never returns nil, never fails and never talks to Redis:
// the calls report what is wrong. A semaphore is a key of its own: a path is that of a lock, or of a semaphore. It does not
// count for the registry's capacity.
//
// The number is kept in Redis with the permits that are held: it is what the call names that comes first, and is forgotten when
// no lease that was given lasts any more, half a minute later at most. It can be set for good, by SetPermits. A call that
// names another number goes by the one in Redis, and the registry logs that.
//
// It is for [LayoutSpring], in a format that Java does not know. With [LayoutRedisson] each call fails: Redisson's
// RPermitExpirableSemaphore is not there yet.
func (r *Registry) Semaphore(path string, n int) Semaphore { //nolint:ireturn // its methods are no names of the package
	s := &semaphoreAt{reg: r, key: r.prefix + ":" + path, number: n}
	s.one = s.kind(1)
	return s
}

// Permits has a call to a [Semaphore] ask for n permits, all or none. It fails when there are not so many. Default: 1.
func Permits(n int) LockOption {
	return LockOption{"Permits", time.Duration(n), func(q *request, n time.Duration) { q.permits = int(n) }}
}

// fewPermits checks how many a call asks for.
func fewPermits(n time.Duration) error {
	switch {
	case n < 1:
		return fmt.Errorf("Permits(%d): the number must be positive", n)
	case n > mostPermits:
		return fmt.Errorf("Permits(%d): the number must be %d at most", n, mostPermits)
	}
	return nil
}

func (s *semaphoreAt) Acquire(ctx context.Context, opts ...LockOption) (*Hold, error) {
	return s.acquire(ctx, "acquire", opts, untilDone)
}

func (s *semaphoreAt) TryAcquire(ctx context.Context, opts ...LockOption) (*Hold, bool, error) {
	h, err := s.acquire(ctx, "tryacquire", opts, notAtAll)
	return h, h != nil, err
}

func (s *semaphoreAt) Do(ctx context.Context, fn func(context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return s.fail("do", errors.New("the function is nil"))
	}
	h, err := s.acquire(ctx, "do", opts, untilDone)
	if err != nil {
		return err
	}
	defer func() {
		if releasing := h.Release(context.WithoutCancel(ctx)); releasing != nil {
			err = fault.Join(err, releasing)
		}
	}()
	return fn(h.Context(ctx))
}

func (s *semaphoreAt) SetPermits(ctx context.Context, n int) error {
	l := &s.reg.permits.of(s.key).anchor
	err := l.check(ctx)
	if unusable := s.check(n); unusable != nil {
		err = fault.Join(err, unusable)
	}
	if err == nil {
		err = s.reg.queues.Stopped(ctx)
	}
	if err == nil {
		c := l.redis.Format.SetPermits(s.key, n)
		if _, _, err = l.send(ctx, c); errors.Is(err, fault.Late) {
			_, _, err = l.send(ctx, c)
		}
	}
	if err != nil {
		return l.fail("setpermits", err)
	}
	return nil
}

// send has a command about a semaphore executed that is no call's for permits. With an error, unknown tells that it may have been
// executed all the same.
func (l *Lock) send(ctx context.Context, c protocol.Call) (n int64, unknown bool, err error) {
	p := l.reg.queues.CommandWait(ctx, l.shard())
	reply := l.reg.transport.Do(&p, &c)
	if n, err = protocol.Confirmed(reply.RedisResult); err == nil {
		err = reply.Error() // a key of another type
	}
	unknown = reply.Cut || reply.Late || fault.OutcomeUnknown(err)
	if err == nil && reply.Late { // by a master that is none any more, perhaps
		err = fault.Late
	}
	return n, unknown, p.Explain(reply.Cut, err)
}

func (s *semaphoreAt) fail(op string, err error) error {
	return &LockError{Op: op, Key: s.key, Err: err}
}

// check finds what makes every call fail that names a number.
func (s *semaphoreAt) check(number int) error {
	switch {
	case s.reg.layout != LayoutSpring:
		return errors.New("semaphores are for LayoutSpring only")
	case number < 1:
		return fmt.Errorf("%d permits: a semaphore has at least one", number)
	case number > mostPermits:
		return fmt.Errorf("%d permits: a semaphore has %d at most", number, mostPermits)
	}
	return nil
}

// acquire is one call. It has a lock of its own, whose local half nobody else wants.
func (s *semaphoreAt) acquire(ctx context.Context, op string, opts []LockOption, wait time.Duration) (*Hold, error) {
	k := s.one
	if len(opts) > 0 {
		q, err := request{}.with(opts)
		if err != nil {
			return nil, s.fail(op, err)
		}
		if q.permits > 1 {
			k = s.kind(q.permits)
		}
	}
	if err := s.check(s.number); err != nil {
		return nil, s.fail(op, err)
	}
	l := s.reg.permits.join(k, s.key)
	h, err := l.acquireAs(ctx, op, opts, wait, owner.NewHold())
	if h == nil {
		s.reg.permits.leave(l)
	}
	return h, err
}

// kind is what holds of so many permits have in common.
func (s *semaphoreAt) kind(each int) *kind {
	k := s.reg.permitsOf(each, s.number)
	k.side.Found = s.found
	return k
}

// permitsOf is a kind of holds that have so many permits each, of the number of all.
func (r *Registry) permitsOf(each, number int) *kind {
	format := protocol.NewPermits(r.formats, each, number)
	return &kind{hold.Kind{Format: format, Fencing: r.formats.Fencing, Env: r.holds}, r.queues.Side(queue.Permits(each))}
}

// found notes that Redis has another number of permits.
func (s *semaphoreAt) found(number int) {
	if s.reg.permits.news(s.key, number) {
		s.reg.reports.dispatch.Log(slog.LevelWarn, "a semaphore has another number of permits than a call names: it goes by Redis",
			slog.String("key", s.key), slog.Int("permits", number), slog.Int("named", s.number))
	}
}
