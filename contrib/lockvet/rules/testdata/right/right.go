// Package right has what looks like the mistakes and is none.
package right

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

func work(context.Context) error { return nil }

type service struct {
	lock *lockregistry.Lock
	hold *lockregistry.Hold
	mu   sync.Mutex
}

func deferred(ctx context.Context, r *lockregistry.Registry) (err error) {
	l := r.Obtain("42")
	if err := l.Lock(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Unlock(context.WithoutCancel(ctx))) }()
	return work(l.Context(ctx))
}

func leads(ctx context.Context, r *lockregistry.Registry) error {
	candidate, err := leader.New(r, "dispatcher", func(led context.Context) error {
		slog.InfoContext(ctx, "it leads")
		return work(led)
	}, leader.OnRevoked(func(error) { _ = work(ctx) }))
	if err != nil {
		return err
	}
	return candidate.Run(ctx)
}

func nothingInBetween(ctx context.Context, l *lockregistry.Lock) (int, error) {
	n := 0
	if err := l.Lock(ctx); err != nil {
		return 0, err
	}
	n++
	err := l.Unlock(ctx)
	return n, err
}

func cleanedUp(t *testing.T, l *lockregistry.Lock) {
	if err := l.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Unlock(context.Background()) })
	_ = work(t.Context())
}

// Another method unlocks.
func (s *service) begin(ctx context.Context) error { return s.lock.Lock(ctx) }

func (s *service) end(ctx context.Context) error { return s.lock.Unlock(ctx) }

func handedOn(ctx context.Context, r *lockregistry.Registry) (func(context.Context) error, error) {
	l := r.Obtain("42")
	if err := l.Lock(ctx); err != nil {
		return nil, err
	}
	return l.Unlock, nil
}

func returned(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Lock, error) {
	l := r.Obtain("42")
	return l, l.Lock(ctx)
}

// Another library's locks are not looked at.
func (s *service) local() {
	s.mu.Lock()
	_ = work(context.Background())
	s.mu.Unlock()
}

func released(ctx context.Context, r *lockregistry.Registry) (err error) {
	hold, err := r.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	slog.InfoContext(ctx, "it has the lock")
	return work(hold.Context(ctx))
}

// Where there is no hold, it has no context.
func refused(ctx context.Context, r *lockregistry.Registry) (err error) {
	hold, err := r.Acquire(ctx, "42")
	if errors.Is(err, lockregistry.ErrTaken) {
		return work(ctx)
	}
	if err != nil {
		_ = work(ctx)
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	return work(hold.Context(ctx))
}

func refusedElsewhere(ctx context.Context, r *lockregistry.Registry) error {
	if hold, err := r.Acquire(ctx, "42"); err == nil {
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
		_ = work(hold.Context(ctx))
		return nil
	} else {
		return work(ctx)
	}
}

func refusedInACase(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.Acquire(ctx, "43")
	switch {
	case errors.Is(err, lockregistry.ErrTaken):
		return work(ctx)
	case err != nil:
		return errors.Join(err, work(ctx))
	default:
		return hold.Release(ctx)
	}
}

func refusedByDefault(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.Acquire(ctx, "42")
	switch {
	case err == nil:
		return hold.Release(ctx)
	default:
		return work(ctx)
	}
}

func refusedAfterwards(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.Acquire(ctx, "42", lockregistry.NoWait())
	if err == nil {
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
		return work(hold.Context(ctx))
	}
	return work(ctx)
}

func refusedOutOfScope(ctx context.Context, r *lockregistry.Registry) error {
	if hold, err := r.Acquire(ctx, "42"); err == nil {
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
		return work(hold.Context(ctx))
	}
	return work(ctx)
}

// The hold has no name where the function goes on with it or without it.
func besideItAtBest(ctx context.Context, r *lockregistry.Registry) error {
	if hold, err := r.Acquire(ctx, "42"); err == nil {
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
	}
	return work(ctx)
}

func refusedInALoop(ctx context.Context, r *lockregistry.Registry, paths []string) (err error) {
	for _, path := range paths {
		hold, acquired := r.Acquire(ctx, path)
		if path != "" && acquired == nil {
			err = errors.Join(err, work(hold.Context(ctx)), hold.Release(context.WithoutCancel(ctx)))
			continue
		}
		if !(acquired == nil) {
			err = errors.Join(err, work(ctx))
			break
		}
		panic("no path")
	}
	return err
}

func noHold(ctx context.Context, r *lockregistry.Registry) error {
	hold, _ := r.Acquire(ctx, "42")
	if hold == nil {
		return work(ctx)
	}
	defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
	return work(hold.Context(ctx))
}

func (s *service) stored(ctx context.Context, r *lockregistry.Registry) (err error) {
	s.hold, err = r.Acquire(ctx, "42")
	return err
}

func given(ctx context.Context, r *lockregistry.Registry, holds chan<- *lockregistry.Hold) error {
	hold, err := r.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	holds <- hold
	return work(ctx)
}

func renamed(ctx context.Context, r *lockregistry.Registry) (err error) {
	hold, err := r.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	ctx = hold.Context(ctx)
	return work(ctx)
}

func afterwards(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	if err := hold.Release(ctx); err != nil {
		return err
	}
	return work(ctx)
}

func inner(ctx context.Context, r *lockregistry.Registry) error {
	return r.Do(ctx, "42", func(within context.Context) error {
		slog.InfoContext(ctx, "it has the lock")
		_ = work(context.WithoutCancel(ctx))
		return work(within)
	})
}

func shadowed(ctx context.Context, r *lockregistry.Registry) error {
	return r.Do(ctx, "42", func(ctx context.Context) error { return work(ctx) })
}

func onPurpose(ctx context.Context, hold *lockregistry.Hold) {
	_ = hold.Release(ctx)
}

const short = 50 // of a unit that its user gives

func durations(ctx context.Context, l *lockregistry.Lock, d time.Duration) error {
	return l.Do(ctx, work, lockregistry.Lease(30*time.Second), lockregistry.Wait(d), lockregistry.AtMost(short*time.Minute))
}

func never(ctx context.Context, l *lockregistry.Lock) error {
	return l.Do(ctx, work, lockregistry.Wait(0))
}

func allErrors(ctx context.Context, r *lockregistry.Registry) error {
	err := r.Do(ctx, "42", work)
	if errors.Is(err, lockregistry.ErrTaken) {
		return nil
	}
	return err
}

func otherBranches(ctx context.Context, r *lockregistry.Registry) string {
	err := r.Do(ctx, "42", work)
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, lockregistry.ErrTaken):
		return "taken"
	default:
		return "failed"
	}
}

func elseBranch(ctx context.Context, r *lockregistry.Registry) string {
	if err := r.Do(ctx, "42", work); errors.Is(err, lockregistry.ErrTaken) {
		return "taken"
	} else {
		return "not taken"
	}
}

func ownGoroutine(ctx context.Context, l *lockregistry.Lock, failed chan<- error) {
	go func() {
		if err := l.Lock(ctx); err != nil {
			failed <- err
			return
		}
		defer func() { failed <- l.Unlock(ctx) }()
		_ = work(ctx)
	}()
}

func sharedOwner(ctx context.Context, l *lockregistry.Lock) error {
	owner := lockregistry.ContextWithOwner(ctx)
	if err := l.Lock(owner); err != nil {
		return err
	}
	go func() {
		_ = work(owner)
		_ = l.Unlock(owner)
	}()
	return nil
}
