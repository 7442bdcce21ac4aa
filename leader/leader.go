// Package leader elects a leader among the processes that share a lock registry's prefix: one process at a time runs a
// function, and another one takes over when it ends. It is what Spring's LockRegistryLeaderInitiator does, and excludes one of
// a Java service: the leader of a role is the holder of the lock whose path is the role, in both.
//
//	candidate, err := leader.New(registry, "billing", func(ctx context.Context) error {
//		return bill(ctx) // until ctx ends
//	})
//	...
//	err = candidate.Run(ctx)
//
// There is at most one leader, as long as lead returns when its context ends. There is none for a moment at each change: less
// than 100 ms after an orderly end, the rest of the lease, less than [WithLease], after a crash.
package leader

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/seam"
)

var (
	// ErrYielded is the cause of lead's context after [Candidate.Yield].
	ErrYielded = errors.New("the leadership was yielded")

	// ErrRunning is what Run returns when it was called before, and has not returned.
	ErrRunning = errors.New("the candidate is running already")
)

// errUnreturned is why a term ended whose lead has panicked, or has ended its goroutine.
var errUnreturned = errors.New("lead did not return: it panicked")

// Candidate campaigns for a role, and leads when it is elected. Make it with [New]. It is safe for use by many goroutines. Each
// candidate needs a goroutine for its [Candidate.Run]; several of one process, of one registry too, exclude each other.
type Candidate struct {
	settings

	reg     *lockregistry.Registry
	role    string
	key     string // in Redis
	lead    func(context.Context) error
	running atomic.Bool
	term    atomic.Pointer[term] // nil while it does not lead
}

// term is a candidate's leadership, from when it has the lock until lead has returned.
type term struct {
	hold   *lockregistry.Hold
	led    context.Context // of lead
	cancel context.CancelCauseFunc
}

// New makes a candidate for a role. Role is the path of the lock in r, so its key is prefix + ":" + role; Spring's default role
// is "leader". It does not talk to Redis, and there is nothing to close.
//
// Lead does the leader's work, in the goroutine of [Candidate.Run]. It is called anew for each term. It must return when its
// context ends: until then the lock is kept and renewed, so no other candidate can lead, and Run does not return. The context
// is that of [lockregistry.Hold.Context]. It ends with the cause
//
//   - [lockregistry.ErrLockLost], as soon as the lock can no longer be guaranteed, before another candidate can have it
//   - [ErrYielded], after [Candidate.Yield]
//   - [lockregistry.ErrClosed], when r is closed. Then nothing renews the lock any more: close r after Run has returned
//   - that of Run's context
//
// What lead returns decides what follows:
//
//   - nil resigns: Run returns nil, and the candidate leads no more until it is run again
//   - an error yields: the lock is released, and the candidate campaigns again after a pause, see [WithBackoff]
//   - once its context has ended, either does what the end asks for: after a loss the candidate campaigns again at once, after
//     Yield it does so after the shortest pause, and Run returns when its own context or the registry ended
//
// New fails when r or lead is nil, role is empty or no lock can have it as its path, or an option is out of its bounds; the
// error says all that is wrong.
func New(r *lockregistry.Registry, role string, lead func(context.Context) error, opts ...Option) (*Candidate, error) {
	c := &Candidate{settings: defaults(), reg: r, role: role, lead: lead}
	var err error
	for _, o := range opts {
		if o == nil {
			err = errors.New("an option is nil")
			continue
		}
		o(&c.settings)
	}
	if r == nil {
		err = fault.Join(err, errors.New("the registry is nil"))
	}
	switch {
	case role == "":
		err = fault.Join(err, errors.New("the role is empty"))
	case r != nil:
		err = fault.Join(err, seam.Lockregistry.Lockable(r, role))
	}
	if lead == nil {
		err = fault.Join(err, errors.New("lead is nil"))
	}
	if err = fault.Join(err, c.check()); err != nil {
		return nil, fmt.Errorf("leader: new: %w", err)
	}
	c.key = r.Obtain(role).Key()
	return c, nil
}

// Run campaigns and leads, until lead resigns or ctx ends. While another candidate leads it waits in the lock's queue, and
// while Redis cannot be asked it tries again, after 50 ms at first and a second at last. Each term is a [lockregistry.Hold],
// which excludes everybody else, other candidates of the registry included. A panic in lead or a callback goes on through Run,
// once the lock is released; then the candidate can be run again.
//
// To stop a leader, end ctx: lead returns, the lock is released, and the next candidate leads. The release takes a second
// at most, as [lockregistry.Hold.Release] does.
//
// Run returns nil when lead resigned and the lock was released. Otherwise it returns, joined with the errors of lead and of the
// release if they say more:
//
//   - the error of ctx, and its cause, when it has ended
//   - [lockregistry.ErrClosed], when the registry is closed; during a pause, see [WithBackoff], it is noticed at the end of it
//   - [lockregistry.ErrDeadlock], when ctx is that of a hold on the role, which Run would wait for
//   - [ErrRunning]: Run was called before, and has not returned
//   - after a resignation, what the release returned: with [lockregistry.ErrLockLost] another candidate may have led at the
//     same time
//   - an error about a nil context
//
// Other errors do not end it; [OnFailed] and [OnRevoked] get them.
func (c *Candidate) Run(ctx context.Context) error {
	if ctx == nil {
		return c.fail(errors.New("the context is nil"))
	}
	if !c.running.CompareAndSwap(false, true) {
		return c.fail(ErrRunning)
	}
	defer c.running.Store(false)
	if ctx.Err() != nil {
		return c.fail(ended(ctx))
	}
	for failures := 0; ; {
		hold, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		since := time.Now()
		how, err := c.reign(ctx, hold)
		lasted := time.Since(since)
		pause := c.least
		switch how {
		case resigned, stopped:
			return err
		case lost:
			if lasted >= c.least {
				continue
			}
		case yielded:
			failures = 0
		case failed:
			if lasted >= c.most {
				failures = 0
			}
			pause = c.backoff(failures)
			failures++
		}
		if !rest(ctx, pause) {
			return c.fail(ended(ctx))
		}
	}
}

// How long a campaign pauses after Redis could not be asked, at first and at last.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// campaign waits until the lock is free, and has acquired it then.
func (c *Candidate) campaign(ctx context.Context) (*lockregistry.Hold, error) {
	told := c.failed == nil // that another candidate leads
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		how := c.locking
		if !told {
			how = c.trying
		}
		hold, err := c.reg.Acquire(ctx, c.role, how...)
		switch {
		case err == nil:
			return hold, nil
		case ctx.Err() != nil || errors.Is(err, lockregistry.ErrClosed) || errors.Is(err, lockregistry.ErrDeadlock):
			return nil, err
		case errors.Is(err, lockregistry.ErrTaken):
			told = true
			c.failed(err)
			continue
		case c.failed != nil:
			c.failed(err)
		}
		if !rest(ctx, pause) {
			return nil, c.fail(fault.Join(ended(ctx), err))
		}
	}
}

// outcome is how a term ended.
type outcome uint8

const (
	failed   outcome = iota // lead returned an error
	resigned                // lead returned nil
	yielded                 // by Yield
	lost                    // the lock was lost
	stopped                 // Run is to return
)

// reign leads for a term, until it has released the lock. The error is why the term ended, nil after a resignation.
func (c *Candidate) reign(ctx context.Context, hold *lockregistry.Hold) (how outcome, err error) {
	t := &term{hold: hold}
	t.led, t.cancel = context.WithCancelCause(hold.Context(ctx))
	c.term.Store(t)
	err = errUnreturned
	defer func() { // lead may panic
		c.term.Store(nil)
		t.cancel(nil)
		// Only now: nobody else may lead before lead has returned.
		released := hold.Release(context.WithoutCancel(ctx))
		if !errors.Is(released, lockregistry.ErrLockLost) || !errors.Is(err, lockregistry.ErrLockLost) {
			err = fault.Join(err, released)
		}
		if c.revoked != nil {
			c.revoked(err)
		}
	}()
	if c.granted != nil {
		c.granted(t.led)
	}
	returned := c.lead(t.led)
	how, why := t.verdict(ctx, returned)
	err = returned
	switch {
	case why == nil:
	case returned == nil || returned == t.led.Err(): //nolint:errorlint // one that is wrapped may say more
		err = c.fail(why)
	case !errors.Is(returned, why):
		err = fault.Join(c.fail(why), returned)
	}
	return how, err
}

// verdict tells how the term of a lead that has returned ended, and why if its context did.
func (t *term) verdict(ctx context.Context, returned error) (outcome, error) {
	if t.led.Err() == nil {
		if returned == nil {
			return resigned, nil
		}
		return failed, nil
	}
	switch why := context.Cause(t.led); {
	case ctx.Err() != nil:
		return stopped, ended(ctx)
	case errors.Is(why, lockregistry.ErrClosed):
		return stopped, why
	case errors.Is(why, lockregistry.ErrLockLost):
		return lost, why
	default:
		return yielded, why
	}
}

// Yield ends the leadership, if the candidate leads: lead's context ends with the cause [ErrYielded], the lock is released
// when lead returns, and the candidate campaigns again after the shortest pause of [WithBackoff], so that another one can take
// over. It does not wait for any of that, so lead may call it too. It does nothing when the candidate does not lead.
func (c *Candidate) Yield() {
	if t := c.term.Load(); t != nil {
		t.cancel(ErrYielded)
	}
}

// IsLeader reports whether the candidate leads: it is elected, lead has not returned, its context has not ended, and the lease of
// the lock is not over by the clock of this process, even when that could not be announced yet. It does not ask Redis.
func (c *Candidate) IsLeader() bool {
	t := c.term.Load()
	return t != nil && t.led.Err() == nil && t.hold.Remaining() > 0
}

// Current asks Redis who leads: the holder of the lock, as it is in Redis and as
// [lockregistry.Registry.ForceUnlockHolder] takes it. In Java that is the registry's client id. Here it begins with
// [lockregistry.Registry.ClientID], which [lockregistry.WithClientID] sets, and is another one each term. It is empty when
// nobody leads. By the time it is returned somebody else may lead; to know whether this process does, use
// [Candidate.IsLeader].
//
// Errors are a [*lockregistry.LockError] about that of ctx, [lockregistry.ErrClosed], [lockregistry.ErrUnavailable],
// [lockregistry.ErrWrongType], an empty role, or another one of Redis; and one for a nil registry.
func Current(ctx context.Context, r *lockregistry.Registry, role string) (string, error) {
	if r == nil {
		return "", errors.New("leader: the registry is nil")
	}
	return seam.Lockregistry.Holder(ctx, r, role, "leader")
}

func (c *Candidate) fail(err error) error { return fmt.Errorf("leader: %s: %w", c.key, err) }

// ended is the error of a context that is done, with the cause when there is another one.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fault.Join(err, cause)
	}
	return err
}

// rest lets a pause pass, and reports false when ctx ended before.
func rest(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
