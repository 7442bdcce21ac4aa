package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// Option changes what [New] makes. Of several of a kind the last one counts.
type Option func(*settings)

type settings struct {
	granted     func(context.Context)
	revoked     func(error)
	failed      func(error)
	least, most time.Duration
	lease       *time.Duration // nil: the registry's
	locking     []lockregistry.LockOption
	trying      []lockregistry.LockOption // the same, without waiting
}

const (
	defaultLeast = 500 * time.Millisecond
	defaultMost  = 30 * time.Second

	// leastLease is that of lockregistry.Lease.
	leastLease = 2 * time.Millisecond
)

func defaults() settings { return settings{least: defaultLeast, most: defaultMost} }

// OnGranted sets what is called when the candidate is elected, before lead and with lead's context. It is Spring's
// OnGrantedEvent. A term waits for it: lead is not called before it has returned. Default: nothing.
//
// All callbacks are called by the goroutine of Run, one after another.
func OnGranted(f func(ctx context.Context)) Option { return func(s *settings) { s.granted = f } }

// OnRevoked sets what is called when a term is over: after lead has returned, also by a panic, and the lock is released. It is
// Spring's OnRevokedEvent. Another candidate may lead by then; what must be over before that belongs into lead. A callback
// that blocks delays this candidate's next campaign and the return of Run, and no other candidate. Default: nothing.
//
// It gets why the term ended, joined with the errors of lead and of the release: nil after a resignation, an error of lead,
// [ErrYielded], [lockregistry.ErrLockLost], [lockregistry.ErrClosed], or the error of Run's context. Nothing else reports
// errors of lead after which the candidate campaigns again.
func OnRevoked(f func(err error)) Option { return func(s *settings) { s.revoked = f } }

// OnFailed sets what is called when an attempt to be elected fails. It is Spring's OnFailedToAcquireMutexEvent
// (publishFailedEvents). Default: nothing.
//
// It gets [lockregistry.ErrTaken] when another candidate leads: once for each campaign, where Spring reports it each
// heartbeat; then the candidate waits. It gets the error of Redis when the lock could not be asked for, such as
// [lockregistry.ErrUnavailable], at each attempt. A candidate that waits for the end of another one waits through outages,
// and does not report them.
func OnFailed(f func(err error)) Option { return func(s *settings) { s.failed = f } }

// WithBackoff sets for how long the candidate leaves the role to others after an error of lead: least at first, then twice as
// long each time, but no longer than most. It starts anew after a term that lasted at least most, and after
// [Candidate.Yield]. After Yield, and after a lock that was lost within less, the pause is least. Both must be positive, and
// least not above most. Default: 500 ms, in which a Java candidate that polls each 100 ms notices, and 30 s. Spring's pause is
// busyWaitMillis, 50 ms.
func WithBackoff(least, most time.Duration) Option {
	return func(s *settings) { s.least, s.most = least, most }
}

// WithLease sets the lease of the leader's lock, in whole milliseconds, at least two, as [lockregistry.Lease]: how long after a
// crash nobody leads. It is renewed each third of it, whether or not the registry has [lockregistry.WithRenewal]. Spring renews
// each heartBeatMillis (500 ms). Default: the registry's lease.
func WithLease(d time.Duration) Option { return func(s *settings) { s.lease = &d } }

// check judges the settings, and makes of them what to lock with.
func (s *settings) check() (err error) {
	if s.least <= 0 || s.most < s.least {
		err = fmt.Errorf("WithBackoff(%v, %v): the pauses must be positive, and the first not above the second", s.least, s.most)
	}
	s.locking = []lockregistry.LockOption{seam.Lockregistry.Leads.(lockregistry.LockOption)}
	switch {
	case s.lease == nil:
	case *s.lease < leastLease:
		err = fault.Join(err, fmt.Errorf("WithLease(%v): a lease must be at least %v", *s.lease, leastLease))
	default:
		s.locking = append(s.locking, lockregistry.Lease(*s.lease))
	}
	s.trying = append(slices.Clone(s.locking), lockregistry.NoWait())
	return err
}

// backoff is the pause after so many failures before this one.
func (s *settings) backoff(failures int) time.Duration {
	pause := s.least
	for range failures {
		if pause >= s.most/2 {
			return s.most
		}
		pause *= 2
	}
	return pause
}
