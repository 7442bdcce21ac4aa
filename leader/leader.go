// Package leader elects a leader among the processes that share a lock registry's prefix: one process at a time runs a function,
// and another process takes over when the first one ends.
//
//	candidate, err := leader.New(registry, "billing", func(ctx context.Context) error {
//		return bill(ctx) // until ctx ends
//	})
//	...
//	err = candidate.Run(ctx)
//
// There is at most one leader, as long as lead returns when its context ends. At each change there is no leader for a while:
// less than 100 ms after an orderly end, and the rest of the lease after a crash, see [Option].
//
// The package corresponds to Spring's LockRegistryLeaderInitiator, and Java services can take part: in both, the leader of a role
// holds the lock whose path is the role.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/seam"
)

var (
	// ErrYielded is the cause of lead's context after [Candidate.Yield].
	ErrYielded = errors.New("the leadership was yielded")

	// ErrRunning is what Run returns while an earlier call of Run has not returned.
	ErrRunning = errors.New("the candidate is already running")
)

// errUnreturned is the error of a term whose lead panicked or ended its goroutine.
var errUnreturned = errors.New("lead did not return: it panicked")

// Candidate campaigns for a role, and leads when it is elected. Make it with [New], and run [Candidate.Run] in a goroutine. It is
// safe for use by many goroutines. Candidates of one process also exclude each other, even on the same registry.
type Candidate struct {
	settings

	reg     *lockregistry.Registry
	role    string
	key     string // in Redis
	log     func(level slog.Level, message string, about ...slog.Attr)
	lead    func(context.Context) error
	running atomic.Bool
	term    atomic.Pointer[term] // nil while it does not lead
}

// term is a candidate's leadership, from getting the lock until lead has returned.
type term struct {
	led    context.Context // of lead
	cancel context.CancelCauseFunc
}

// New makes a candidate for a role. Role is the path of the lock in r, so its key is prefix + ":" + role. Spring's default role
// is "leader". New does not talk to Redis, and there is nothing to close.
//
// Lead does the leader's work, in the goroutine of [Candidate.Run]. It is called once for each term. It must return when its
// context ends: until lead returns, the lock is kept and renewed, so no other candidate can lead, and Run does not return.
//
// # Details
//
// The context of lead comes from [lockregistry.Hold.Context]. It ends with one of these causes:
//
//   - [lockregistry.ErrLockLost], as soon as the lock can no longer be guaranteed, before another candidate can have it
//   - [ErrYielded], after [Candidate.Yield]
//   - [lockregistry.ErrClosed], when r is closed. Nothing renews the lock after that: close r only once Run has returned
//   - the cause of Run's context, when that context ends
//
// What lead returns decides what follows:
//
//   - nil resigns: Run returns nil, and the candidate no longer leads until it is run again.
//   - An error gives up the leadership: the lock is released, and the candidate campaigns again after a pause, see [WithBackoff].
//   - Once its context has ended, the cause decides instead. After a loss, the candidate campaigns again at once; after Yield, it
//     does so after the shortest pause. Run returns when its own context has ended or the registry is closed.
//
// # Errors
//
// New fails when r or lead is nil, role is empty or cannot be a lock's path, or an option is nil or out of bounds. The error
// lists everything that is wrong.
func New(r *lockregistry.Registry, role string, lead func(context.Context) error, opts ...Option) (*Candidate, error) {
	s, bad := settingsOf(opts)
	c := &Candidate{settings: s, reg: r, role: role, lead: lead}
	var err error
	if r == nil {
		err = errors.New("the registry is nil")
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
	if err = fault.Join(err, bad); err != nil {
		return nil, fmt.Errorf("leader: new: %w", err)
	}
	c.key, c.log = keyOf(r, role), seam.Lockregistry.Parts(r).Log
	return c, nil
}

// Run campaigns and leads until lead resigns or ctx ends. To stop a leader, end ctx: lead returns, the lock is released, and the
// next candidate leads. The release takes at most a second, like [lockregistry.Hold.Release].
//
// # Details
//
// While another candidate leads, Run waits in the lock's queue. While Redis cannot be reached, Run retries with a backoff from 50
// ms to a second, minus a random part of up to a quarter. Each term is a [lockregistry.Hold], so it excludes all other owners,
// other candidates of the registry included.
//
// When lead or a callback panics, the lock is released, and the panic passes through Run. Then the candidate can be run again.
//
// # Errors
//
// Run returns nil if lead resigned and the lock was released. Otherwise it returns one of these, joined with the errors of lead
// and of the release if they add anything:
//
//   - the error of ctx, and its cause, when ctx has ended
//   - [lockregistry.ErrClosed], when the registry is closed; Run notices it at the end of a pause, see [WithBackoff]
//   - [lockregistry.ErrDeadlock], when ctx belongs to a hold on the role, so that Run would wait for itself
//   - [ErrRunning], while an earlier call of Run has not returned
//   - after a resignation, the error of the release: with [lockregistry.ErrLockLost] another candidate may have led at the same
//     time
//   - an error that says that ctx is nil
//
// Other errors do not end Run; [OnFailed] and [OnRevoked] get them. Without these, the registry logs them, if it has a logger,
// but for errors of lead in a term that was lost or yielded.
func (c *Candidate) Run(ctx context.Context) error {
	if ctx == nil {
		return c.fail(errors.New("the context is nil"))
	}
	if !c.running.CompareAndSwap(false, true) {
		return c.fail(ErrRunning)
	}
	defer c.running.Store(false)
	if ctx.Err() != nil {
		return c.fail(fault.Ended(ctx))
	}
	for failures := 0; ; {
		hold, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		since := time.Now()
		how, err := c.reign(ctx, hold)
		lasted := time.Since(since)
		if lasted >= c.most { // however it ended
			failures = 0
		}
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
			pause = c.backoff(failures)
			failures++
			if c.revoked == nil {
				c.log(slog.LevelWarn, "a leader's work failed: the candidate campaigns again after a pause",
					slog.String("key", c.key), slog.Any("error", err), slog.Duration("pause", pause))
			}
		}
		if !clock.Rest(ctx, pause) {
			return c.fail(fault.Ended(ctx))
		}
	}
}

// campaign waits until it has acquired the lock.
func (c *Candidate) campaign(ctx context.Context) (*lockregistry.Hold, error) {
	told := c.failed == nil // OnFailed knows that another candidate leads
	passing := false        // the newest logged failure was an outage
	for failures := 1; ; failures++ {
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
		case failures == 1 || passing != errors.Is(err, lockregistry.ErrUnavailable): // an outage may hide what lasts
			passing = errors.Is(err, lockregistry.ErrUnavailable)
			c.log(slog.LevelWarn, "a candidate cannot be elected; trying again",
				slog.String("key", c.key), slog.Any("error", err))
		}
		if !clock.Rest(ctx, clock.Pause(failures, clock.MostPause)) {
			return nil, c.fail(fault.Join(fault.Ended(ctx), err))
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
	stopped                 // Run must return
)

// reign leads for one term and releases the lock. The error says why the term ended; nil after a resignation.
func (c *Candidate) reign(ctx context.Context, hold *lockregistry.Hold) (how outcome, err error) {
	err = errUnreturned
	began := false
	defer func() { // lead may panic, as may a method of ctx here
		// Only now: no other candidate may lead before lead has returned.
		released := hold.Release(context.WithoutCancel(ctx))
		if !errors.Is(released, lockregistry.ErrLockLost) || !errors.Is(err, lockregistry.ErrLockLost) {
			err = fault.Join(err, released)
		}
		if began && c.revoked != nil {
			c.revoked(err)
		}
	}()
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &term{hold.Context(within), cancel} // the hold's context itself, which goes by the clock
	began = true
	c.term.Store(t)
	defer c.term.Store(nil)
	if c.granted != nil {
		c.granted(t.led)
	}
	returned := c.lead(t.led)
	how, why := t.verdict(ctx, returned)
	err = returned
	switch {
	case why == nil:
	case returned == nil || returned == t.led.Err(): //nolint:errorlint // a wrapped one may say more
		err = c.fail(why)
	case !errors.Is(returned, why):
		err = fault.Join(c.fail(why), returned)
	}
	return how, err
}

// verdict returns how a term ended, once lead has returned, and the cause if lead's context ended.
func (t *term) verdict(ctx context.Context, returned error) (outcome, error) {
	if t.led.Err() == nil {
		if returned == nil {
			return resigned, nil
		}
		return failed, nil
	}
	switch why := context.Cause(t.led); {
	case ctx.Err() != nil:
		return stopped, fault.Ended(ctx)
	case errors.Is(why, lockregistry.ErrClosed):
		return stopped, why
	case errors.Is(why, lockregistry.ErrLockLost):
		return lost, why
	default:
		return yielded, why
	}
}

// Yield ends the leadership, so that another candidate can take over. It does nothing if the candidate does not lead. It does not
// wait for the following steps, so lead itself may call it:
//
//  1. Lead's context ends with the cause [ErrYielded].
//  2. When lead returns, the lock is released.
//  3. After the shortest pause of [WithBackoff], the candidate campaigns again.
func (c *Candidate) Yield() {
	if t := c.term.Load(); t != nil {
		t.cancel(ErrYielded)
	}
}

// IsLeader reports whether the candidate leads: it is elected, lead has not returned, lead's context has not ended, and the
// lock's lease is not over by this process's clock. It does not ask Redis.
func (c *Candidate) IsLeader() bool {
	t := c.term.Load()
	return t != nil && t.led.Err() == nil
}

// Current asks Redis who leads, and returns the name of the leader's hold in Redis, which ForceUnlockHolder of package inspect
// takes. The name is empty when no candidate leads. Another candidate may lead by the time Current returns. To know whether this
// process leads, use [Candidate.IsLeader].
//
// The name of a Java leader is its registry's client id. A leader of this package has a new name each term, which begins with its
// registry's client id, see [lockregistry.WithClientID].
//
// # Errors
//
// Each is within a [*lockregistry.LockError], except the error for a nil registry: the error of ctx, [lockregistry.ErrClosed],
// [lockregistry.ErrUnavailable], [lockregistry.ErrWrongType], bad input such as an empty role, and other errors of Redis.
func Current(ctx context.Context, r *lockregistry.Registry, role string) (string, error) {
	if r == nil {
		return "", errors.New("leader: the registry is nil")
	}
	found, err := seam.Lockregistry.Parts(r).Inspect(ctx, role)
	switch {
	case err == nil && found.Kind != "" && found.Kind != protocol.KindLock:
		err = lockregistry.ErrWrongType
	case err == nil && len(found.Holders) > 0:
		return found.Holders[0].Text, nil
	case err == nil:
		return "", nil
	}
	return "", &lockregistry.LockError{Op: "leader", Key: keyOf(r, role), Err: err}
}

func keyOf(r *lockregistry.Registry, role string) string {
	return seam.Lockregistry.Parts(r).Prefix + ":" + role
}

func (c *Candidate) fail(err error) error { return fmt.Errorf("leader: %s: %w", c.key, err) }
