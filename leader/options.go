package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// Option changes what [New] makes. It is an option of this package or [lockregistry.Lease]. If an option is given several times,
// the last one counts.
//
// Lease sets the lease of the leader's lock: after a crash no candidate leads for that long. The lock is renewed every third of
// its lease, with or without [lockregistry.WithRenewal]. Spring renews every heartBeatMillis (500 ms). Default: the registry's
// lease.
type Option interface{ seam.LeaderOption }

// option is an option of this package.
type option struct {
	seam.ForLeader
	set func(*settings)
}

func newOption(set func(*settings)) Option { return option{set: set} }

type settings struct {
	granted     func(context.Context)
	revoked     func(error)
	failed      func(error)
	least, most time.Duration
	locking     []lockregistry.LockOption // how to lock
	trying      []lockregistry.LockOption // the same, without waiting
}

const (
	defaultLeast = 500 * time.Millisecond
	defaultMost  = 30 * time.Second
)

// settingsOf applies options to the defaults.
func settingsOf(opts []Option) (s settings, err error) {
	s = settings{least: defaultLeast, most: defaultMost}
	var lease lockregistry.LeaseOption // nil: the registry's
	for _, o := range opts {
		switch o := o.(type) {
		case option:
			o.set(&s)
		case lockregistry.LeaseOption:
			lease = o
		default:
			err = fault.Join(err, errors.New("an option is nil, or was not made by a function of this package"))
		}
	}
	s.locking = []lockregistry.LockOption{seam.Lockregistry.Leads.(lockregistry.LockOption)}
	if lease != nil {
		err = fault.Join(err, seam.Lockregistry.CheckOption(lease))
		s.locking = append(s.locking, lease)
	}
	s.trying = append(slices.Clone(s.locking), lockregistry.NoWait())
	if s.least <= 0 || s.most < s.least {
		err = fault.Join(err, fmt.Errorf(
			"WithBackoff(%v, %v): the pauses must be positive, and the first not above the second", s.least, s.most))
	}
	return s, err
}

// OnGranted sets a function that is called when the candidate is elected, with lead's context. It is Spring's OnGrantedEvent.
// Lead is called after f has returned. Default: nothing is called.
//
// The goroutine of Run calls all callbacks, one after another.
func OnGranted(f func(ctx context.Context)) Option {
	return newOption(func(s *settings) { s.granted = f })
}

// OnRevoked sets a function that is called when a term is over: after lead has returned or panicked, and the lock is released. It
// is Spring's OnRevokedEvent. Default: an error of lead after which the candidate campaigns again is logged, see
// [lockregistry.WithLogger].
//
// # Details
//
// Another candidate may already lead when f is called. So work that must end before then belongs in lead. A callback that blocks
// delays this candidate's next campaign and the return of Run, but no other candidate.
//
// Err says why the term ended, joined with the errors of lead and of the release: nil after a resignation, an error of lead,
// [ErrYielded], [lockregistry.ErrLockLost], [lockregistry.ErrClosed], or the error of Run's context. An error of lead after which
// the candidate campaigns again is reported only here.
func OnRevoked(f func(err error)) Option { return newOption(func(s *settings) { s.revoked = f }) }

// OnFailed sets a function that is called when an attempt to be elected fails. It is Spring's OnFailedToAcquireMutexEvent
// (publishFailedEvents). Default: an error of Redis is logged, see [lockregistry.WithLogger]: once in each campaign, and again
// when an outage begins, or is over and there is another error.
//
// # Details
//
//   - Err is [lockregistry.ErrTaken] when another candidate leads. F gets it once in each campaign, before the candidate waits.
//     Spring reports it at each heartbeat.
//   - Otherwise err is the error of Redis, such as [lockregistry.ErrUnavailable]. F gets it at each attempt that fails with it.
//
// Outages of Redis are not reported while the candidate waits behind a leader.
func OnFailed(f func(err error)) Option { return newOption(func(s *settings) { s.failed = f }) }

// WithBackoff sets how long the candidate pauses after an error of lead, so that others can lead: least at first, doubling each
// time up to most. Both must be positive, and least must not exceed most. Default: 500 ms, which is enough for a Java candidate
// that polls every 100 ms, and 30 s. Spring's pause is busyWaitMillis, 50 ms.
//
// The pause is least again after [Candidate.Yield], after a term whose lock was lost before least had passed, and after a term
// that lasted for most or longer.
func WithBackoff(least, most time.Duration) Option {
	return newOption(func(s *settings) { s.least, s.most = least, most })
}

// backoff returns the pause after a failure that follows so many others.
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
