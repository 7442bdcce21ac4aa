package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// values are the calls of a Hold: on the path "43", and on "44" together with "45".
var values = map[string]func(ctx context.Context, c *caller) error{
	"Registry.Renew":     func(ctx context.Context, c *caller) error { return c.reg.Renew(ctx, "43", callerLease) },
	"Hold.Renew":         func(ctx context.Context, c *caller) error { return c.hold.Renew(ctx, callerLease) },
	"Release":            func(ctx context.Context, c *caller) error { return c.hold.Release(ctx) },
	"Hold.Renew of all":  func(ctx context.Context, c *caller) error { return c.all.Renew(ctx, callerLease) },
	"Release of several": func(ctx context.Context, c *caller) error { return c.all.Release(ctx) },
}

// obtaining are the calls of a caller that does not hold the lock.
var obtaining = map[string]func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error{
	"Lock": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		return c.lock.Lock(ctx, opts...)
	},
	"TryLock": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		return c.try(c.lock.TryLock(ctx, opts...))
	},
	"Acquire": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		_, err := c.lock.Acquire(ctx, opts...)
		return err
	},
	"AcquireAll": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		if c.lock != c.reg.Obtain("42") {
			return c.lock.Lock(ctx, opts...)
		}
		_, err := c.reg.AcquireAll(ctx, []string{"41", "42"}, kit.As[lockregistry.AcquireOption](opts)...)
		return err
	},
	"Do": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		if c.lock != c.reg.Obtain("42") {
			return c.lock.Lock(ctx, opts...)
		}
		return c.reg.Do(ctx, "42", func(context.Context) error { return nil }, opts...)
	},
	"Once": func(ctx context.Context, c *caller, opts ...lockregistry.LockOption) error {
		if c.lock != c.reg.Obtain("42") || len(opts) > 0 { // Once never waits
			return c.try(c.lock.TryLock(ctx, opts...))
		}
		return c.try(c.reg.Once(ctx, "42", time.Minute, kit.DoNothing))
	},
}

// triers are the calls that return false without an error if the lock is taken.
var triers = map[string]bool{"TryLock": true, "Once": true}

const callerLease = 10 * time.Second

func (c *caller) try(ok bool, err error) error {
	require.NotEqual(c, err == nil, !ok, "false without an error is for a lock that is taken")
	return err
}

// answers runs a test of one call for each kind of lock, each in a world of its own.
func answers(t *testing.T, name string, test func(c *caller)) {
	t.Helper()
	answersOf(t, kit.LockKinds, name, test)
}

// answersInTurn is answers for one kind of lock, picked by the number.
func answersInTurn(t *testing.T, number int, name string, test func(c *caller)) {
	t.Helper()
	kind, pick := kit.Turn(kit.LockKinds, number)
	answersOf(t, map[string]func(r *lockregistry.Registry) *lockregistry.Lock{kind: pick}, name, test)
}

// valueAnswers is answers for a call of a Hold, for which the caller's lock does not matter.
func valueAnswers(t *testing.T, name string, test func(c *caller)) {
	t.Helper()
	answersOf(t, map[string]func(r *lockregistry.Registry) *lockregistry.Lock{"plain": kit.LockKinds["plain"]}, name, test)
}

func answersOf(
	t *testing.T, kinds map[string]func(r *lockregistry.Registry) *lockregistry.Lock, name string, test func(c *caller),
) {
	t.Helper()
	for kind, pick := range kinds {
		t.Run(fmt.Sprint(name, ", ", kind), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithLease(callerLease), lockregistry.WithCommandTimeout(time.Second))
				w.Known(r)
				test(&caller{World: w, flaky: f, reg: r, lock: pick(r), other: w.Registry()})
			})
		})
	}
}

// holds makes the caller an owner of everything.
func (c *caller) holds() (err error) {
	c.owner = c.Gone(c.lock, 1, lockregistry.Lease(callerLease))
	if c.hold, err = c.reg.Acquire(c.Context(), "43", lockregistry.AtMost(callerLease)); err == nil {
		c.all, err = c.reg.AcquireAll(c.Context(), []string{"44", "45"}, lockregistry.AtMost(callerLease))
	}
	return err
}

// matches checks which sentinel errors an error matches.
func (c *caller) matches(err error, want ...error) {
	c.Helper()
	require.Equal(c, want, kit.SentinelsOf(err), "%v", err)
	if err != nil {
		require.NotContains(c, err.Error(), "\n")
		require.NotContains(c, err.Error(), "::")
	}
}

// silent makes the server answer nothing from now on.
func (c *caller) silent() { c.flaky.Fate(kit.Anything, kit.Silence) }

func done(ctx context.Context) context.Context {
	ended, end := context.WithCancel(ctx)
	end()
	return ended
}

func within(ctx context.Context, d time.Duration) context.Context {
	ends, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ends, cancel)
	return ends
}

// The errors that these tests check are all that a caller may test for.
func TestLock_AllErrorsAreChecked(t *testing.T) {
	source, err := os.ReadFile("../../errors.go")
	require.NoError(t, err)
	ours := regexp.MustCompile(`(?m)^\tErr\w+ += `).FindAll(source, -1)
	require.NotEmpty(t, ours)
	require.Len(t, kit.SentinelErrors, len(ours)+2, "and those of contexts")
}

// Each call runs with each event, and each kind of lock with both.
func TestLock_AnswersToItsOwner(t *testing.T) {
	t.Parallel()
	asItIs := func(ctx context.Context) context.Context { return ctx }
	soon := func(ctx context.Context) context.Context { return within(ctx, 300*time.Millisecond) }
	type errs = []error
	lost, unavailable := errs{lockregistry.ErrLockLost}, errs{lockregistry.ErrUnavailable}
	states := map[string]struct {
		happens                 func(c *caller)
		with                    func(ctx context.Context) context.Context
		nested, renewed, undone []error
	}{
		"nothing happens": {func(*caller) {}, asItIs, nil, nil, nil},
		"lost":            {func(c *caller) { c.Pass(2 * callerLease) }, asItIs, lost, lost, lost},
		"lost, and the context is done": {
			func(c *caller) { c.Pass(2 * callerLease) }, done,
			errs{context.Canceled}, errs{lockregistry.ErrLockLost, context.Canceled}, errs{lockregistry.ErrLockLost},
		},
		"lost, and no answer": {
			func(c *caller) { c.silent(); c.Pass(2 * callerLease) }, soon,
			lost, lost, lost,
		},
		"the key is gone": {func(c *caller) { c.Do("FLUSHALL") }, asItIs, lost, lost, lost},
		"the context is done": {
			func(*caller) {}, done, errs{context.Canceled}, errs{context.Canceled}, nil,
		},
		"no answer": {
			(*caller).silent, asItIs, unavailable, unavailable, unavailable,
		},
		"no answer before the context ends": {
			(*caller).silent, soon,
			errs{lockregistry.ErrUnavailable, context.DeadlineExceeded}, errs{lockregistry.ErrUnavailable, context.DeadlineExceeded},
			errs{lockregistry.ErrUnavailable},
		},
		"closed": {func(c *caller) { require.NoError(c, c.reg.Close()) }, asItIs, errs{lockregistry.ErrClosed}, nil, nil},
	}
	for i, name := range kit.InOrder(states) {
		s := states[name]
		for j, call := range kit.InOrder(held) {
			does := held[call]
			answersInTurn(t, i+j, name+": "+call, func(c *caller) {
				require.NoError(c, c.holds())
				s.happens(c)
				want := map[string][]error{"Lock.Renew": s.renewed, "Unlock": s.undone}
				if _, ok := want[call]; !ok {
					want[call] = s.nested
				}
				c.matches(does(s.with(c.owner), c), want[call]...)
			})
		}
		for call, does := range values {
			valueAnswers(t, name+": "+call, func(c *caller) {
				require.NoError(c, c.holds())
				s.happens(c)
				want := s.renewed
				if call == "Release" || call == "Release of several" {
					want = s.undone
				}
				c.matches(does(s.with(c.Context()), c), want...)
			})
		}
	}
}

func TestLock_AnswersToOneThatIsNotItsOwner(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"Lock.Renew", "Unlock"} {
		answers(t, call, func(c *caller) { c.matches(held[call](c.Context(), c), lockregistry.ErrNotOwner) })
	}
	for call, does := range values {
		valueAnswers(t, call, func(c *caller) {
			require.NoError(c, c.holds())
			require.NoError(c, c.hold.Release(c.Context()))
			require.NoError(c, c.all.Release(c.Context()))
			c.matches(does(c.Context(), c), lockregistry.ErrNotOwner)
		})
	}
}

// Each call runs with each event, and each kind of lock with both.
func TestLock_AnswersToOneThatWantsIt(t *testing.T) {
	t.Parallel()
	states := map[string]struct {
		happens func(c *caller)
		with    func(ctx context.Context) context.Context
		opts    []lockregistry.LockOption
		want    []error
		tried   bool // triers return false and no error instead
	}{
		"taken here": {
			happens: func(c *caller) { c.Gone(c.writer(c.reg), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.NoWait()}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken here, and the wait was over before": {
			happens: func(c *caller) { c.Gone(c.writer(c.reg), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.Wait(-time.Second)}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken elsewhere, and nothing is left to wait": {
			happens: func(c *caller) { c.Gone(c.writer(c.other), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.Wait(0)}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken here for as long as it waits": {
			happens: func(c *caller) { c.Gone(c.writer(c.reg), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.Wait(time.Second)}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken elsewhere": {
			happens: func(c *caller) { c.Gone(c.writer(c.other), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.NoWait()}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken elsewhere for as long as it waits": {
			happens: func(c *caller) { c.Gone(c.writer(c.other), 1, lockregistry.Lease(time.Hour)) },
			opts:    []lockregistry.LockOption{lockregistry.Wait(time.Second)}, want: []error{lockregistry.ErrTaken}, tried: true,
		},
		"taken elsewhere until the context ends": {
			happens: func(c *caller) { c.Gone(c.writer(c.other), 1, lockregistry.Lease(time.Hour)) },
			with:    func(ctx context.Context) context.Context { return within(ctx, time.Second) },
			opts:    []lockregistry.LockOption{lockregistry.Wait(time.Minute)}, want: []error{context.DeadlineExceeded},
		},
		"the context is done": {with: done, want: []error{context.Canceled}},
		"no answer":           {happens: (*caller).silent, want: []error{lockregistry.ErrUnavailable}},
		"no answer for as long as it waits": {
			happens: (*caller).silent, opts: []lockregistry.LockOption{lockregistry.Wait(2 * time.Second)},
			want: []error{lockregistry.ErrUnavailable},
		},
		"no answer before the context ends": {
			happens: (*caller).silent, with: func(ctx context.Context) context.Context { return within(ctx, 300*time.Millisecond) },
			want: []error{lockregistry.ErrUnavailable, context.DeadlineExceeded},
		},
		"closed": {happens: func(c *caller) { require.NoError(c, c.reg.Close()) }, want: []error{lockregistry.ErrClosed}},
		"full": {
			happens: func(c *caller) {
				require.NoError(c, c.reg.SetCapacity(1))
				c.Gone(c.reg.Obtain("another"), 1)
			},
			want: []error{lockregistry.ErrCapacity},
		},
		"something else": {
			happens: func(c *caller) { c.Do("ZADD", kit.TheKey, "1", "one") }, want: []error{lockregistry.ErrWrongType},
		},
	}
	for i, name := range kit.InOrder(states) {
		s := states[name]
		for j, call := range kit.InOrder(obtaining) {
			asks := obtaining[call]
			answersInTurn(t, i+j, name+": "+call, func(c *caller) {
				if s.happens != nil {
					s.happens(c)
				}
				ctx := c.Context()
				if s.with != nil {
					ctx = s.with(ctx)
				}
				if triers[call] && s.tried {
					ok, err := c.lock.TryLock(ctx, s.opts...)
					require.NoError(c, err)
					require.False(c, ok)
					return
				}
				c.matches(asks(ctx, c, s.opts...), s.want...)
			})
		}
	}
}

// writer returns the lock of a registry that excludes the caller's lock.
func (c *caller) writer(r *lockregistry.Registry) *lockregistry.Lock {
	if c.lock == c.reg.Obtain("42") {
		return r.Obtain("42")
	}
	return r.ReadWrite("42").Writer()
}

func TestLock_AnswersToOneThatWouldWaitForItself(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		p := w.Pair()
		w.Lock(p.Reader)
		w.Fails(p.Writer.Lock(w.Context()), lockregistry.ErrDeadlock, "lock", kit.TheKey)
		w.Unlock(p.Reader)
		r := w.Registry()
		h, err := r.Acquire(w.Context(), "42")
		require.NoError(w, err)
		for call, asks := range obtaining {
			c := &caller{World: w, reg: r, lock: r.Obtain("42")}
			c.matches(asks(h.Context(w.Context()), c), lockregistry.ErrDeadlock)
			require.NotEmpty(w, call)
		}
		w.Released(h.Release(w.Context()))
	})
}

// A wait that is over before the call takes no time.
func TestLock_WaitThatIsOver(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, -1, -time.Hour} {
		answers(t, wait.String(), func(c *caller) {
			c.Gone(c.writer(c.other), 1, lockregistry.Lease(time.Hour))
			start := time.Now()
			ok, err := c.lock.TryLock(c.Context(), lockregistry.Wait(wait))
			require.NoError(c, err)
			require.False(c, ok)
			require.ErrorIs(c, c.lock.Lock(c.Context(), lockregistry.Wait(wait)), lockregistry.ErrTaken)
			require.Equal(c, start, time.Now())
			require.NotContains(c, c.Left(), "waiters")
		})
	}
}

// Methods of a nil Hold say what is wrong, and do not panic.
func TestLock_NilHold(t *testing.T) {
	var h *lockregistry.Hold
	require.ErrorIs(t, h.Release(t.Context()), lockregistry.ErrNotOwner)
	require.EqualError(t, h.Renew(t.Context(), time.Minute),
		"lockregistry: renew: not the owner of the lock: the Hold is nil, as a failed Acquire returns it")
	require.ErrorIs(t, context.Cause(h.Context(t.Context())), lockregistry.ErrNotOwner)
	require.Zero(t, h.Remaining())
	require.Zero(t, h.Token())
	require.Zero(t, h.TokenOf("42"))
	require.Empty(t, h.Holder())
	require.Empty(t, h.Paths())
	require.Equal(t, "Hold(nil)", fmt.Sprint(h))
}

// A call reports everything that is wrong with it, on one line, as New does.
func TestLock_AllBadOptions(t *testing.T) {
	r := kit.UnusedRegistry(t)
	for op, locks := range kit.WaysToLock(r, "42") {
		kit.Refuses(t, locks(t.Context(), lockregistry.Lease(-1), lockregistry.AtLeast(0), lockregistry.NoWait(), lockregistry.Wait(1)),
			op, "orders:42", "Lease(-1ns): the duration must be positive; AtLeast(0s): the duration must be positive; NoWait and Wait: ")
	}
	_, err := r.Acquire(t.Context(), "", lockregistry.Lease(-1))
	require.EqualError(t, err, `lockregistry: acquire "orders:": Lease(-1ns): the duration must be positive; the path is empty`)
	_, err = r.AcquireAll(t.Context(), []string{"a", ""})
	require.EqualError(t, err, `lockregistry: acquire "orders:": the path is empty`)
	_, err = r.AcquireAll(t.Context(), nil)
	require.EqualError(t, err, `lockregistry: acquire "orders:": the list of paths is empty`)
}

// The error for a key of another type contains nothing about scripts.
func TestLock_WrongTypeText(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		w.Do("ZADD", kit.TheKey, "1", "one")
		for _, l := range locksOf(w.Registry(), "42") {
			if err := l.Lock(w.Context(), lockregistry.NoWait()); kit.Key(l) == kit.TheKey {
				require.EqualError(w, err, "lockregistry: lock orders:42: the key holds something other than this kind of lock")
			}
		}
	})
}

func TestOptions_LockErrors(t *testing.T) {
	for _, reason := range []error{
		lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
		context.Canceled, context.DeadlineExceeded,
	} {
		var err error = &lockregistry.LockError{Op: "lock", Key: "orders:42", Err: reason}
		require.Equal(t, "lockregistry: lock orders:42: "+reason.Error(), err.Error())
		wrapped := fmt.Errorf("charge: %w", errors.Join(errors.New("other"), err))
		require.ErrorIs(t, wrapped, reason)
		var failed *lockregistry.LockError
		require.ErrorAs(t, wrapped, &failed)
		require.Same(t, err, failed)
		for _, other := range []error{
			lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
		} {
			require.Equal(t, other == reason, errors.Is(wrapped, other), "%v is %v", reason, other) //nolint:errorlint // the very one
		}
	}
}

func TestOptions_ErrorsOfLocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 1)
		l := r.Obtain("42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		w.Fails(l.Renew(w.Context(), time.Second), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.Fails(r.Renew(w.Context(), "42", time.Second), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.Fails(r.Renew(w.Context(), "never seen", time.Second), lockregistry.ErrNotOwner, "renew", "orders:never seen")
		w.Lock(l)
		other := lockregistry.ContextWithOwner(w.Context())
		w.Fails(l.Unlock(other), lockregistry.ErrNotOwner, "unlock", "orders:42")
		w.Fails(l.Renew(other, time.Second), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.Fails(l.Lock(other, lockregistry.Wait(time.Second)), lockregistry.ErrTaken, "lock", "orders:42")
		w.Fails(r.Do(other, "42", kit.DoNothing, lockregistry.Wait(time.Second)), lockregistry.ErrTaken, "do", "orders:42")
		ok, err := l.TryLock(other, lockregistry.Wait(time.Second))
		require.NoError(w, err)
		require.False(w, ok)
		w.Fails(r.Obtain("43").Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:43")

		late, cancel := context.WithTimeout(other, time.Second)
		defer cancel()
		err = l.Lock(late)
		w.Fails(err, context.DeadlineExceeded, "lock", "orders:42")
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		_, err = l.TryLock(late)
		w.Fails(err, context.DeadlineExceeded, "trylock", "orders:42")
		w.Fails(r.Do(late, "42", kit.DoNothing), context.DeadlineExceeded, "do", "orders:42")

		w.Do("DEL", "orders:42")
		w.Fails(l.Renew(w.Context(), time.Second), lockregistry.ErrLockLost, "renew", "orders:42")
		w.Fails(l.Lock(w.Context()), lockregistry.ErrLockLost, "lock", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")

		require.NoError(w, r.Close())
		for op, locks := range kit.WaysToLock(r, "42") {
			w.Fails(locks(w.Context()), lockregistry.ErrClosed, op, "orders:42")
		}
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
	})
}

// What each call returns in each situation: the sentinel errors that it matches, and no others.

// caller is an owner of the lock "42", with everything it calls.
type caller struct {
	*kit.World
	flaky *kit.Flaky
	reg   *lockregistry.Registry
	lock  *lockregistry.Lock
	owner context.Context // holds lock
	hold  *lockregistry.Hold
	all   *lockregistry.Hold
	other *lockregistry.Registry // as in another process
}

// held are the calls of an owner.
var held = map[string]func(ctx context.Context, c *caller) error{
	"Lock":    func(ctx context.Context, c *caller) error { return c.lock.Lock(ctx) },
	"TryLock": func(ctx context.Context, c *caller) error { return c.try(c.lock.TryLock(ctx)) },
	"Do": func(ctx context.Context, c *caller) error {
		if c.lock != c.reg.Obtain("42") { // only for plain locks
			return c.lock.Lock(ctx)
		}
		return c.reg.Do(ctx, "42", func(context.Context) error { return nil })
	},
	"Lock.Renew": func(ctx context.Context, c *caller) error { return c.lock.Renew(ctx, callerLease) },
	"Unlock":     func(ctx context.Context, c *caller) error { return c.lock.Unlock(ctx) },
}

// ErrLockLost says how the lock was lost, whoever learns of it: the owner, an evicted owner, or a context.
func TestLock_LostSaysHow(t *testing.T) {
	t.Parallel()
	for how, does := range map[fault.Loss]func(c *caller){
		fault.LeaseOver: func(c *caller) { c.Pass(2 * callerLease) },
		fault.KeyGone: func(c *caller) {
			c.Do("FLUSHALL")
			_ = c.lock.Renew(c.owner, callerLease)
		},
		fault.KeyTaken: func(c *caller) {
			c.Do("FLUSHALL")
			c.takes(c.other)
			_ = c.lock.Renew(c.owner, callerLease)
		},
		fault.Forced: func(c *caller) { require.NoError(c, inspect.Of(c.reg).ForceUnlock(c.Context(), "42")) },
	} {
		for _, evicts := range []bool{false, true} {
			answers(t, fmt.Sprint(how, evicts), func(c *caller) {
				c.owner = c.Gone(c.lock, 1, lockregistry.Lease(callerLease))
				ctx := c.lock.Context(c.owner)
				does(c)
				if evicts {
					_, _ = c.lock.TryLock(c.Context())
				}
				text := "the lock was lost: " + how.String()
				require.EqualError(c, context.Cause(ctx), text)
				require.EqualError(c, c.lock.Renew(c.owner, callerLease), "lockregistry: renew orders:42: "+text)
				require.EqualError(c, context.Cause(c.lock.Context(c.owner)), text)
				if evicts {
					require.EqualError(c, c.lock.Lock(c.owner), "lockregistry: lock orders:42: "+text)
				}
				require.EqualError(c, c.lock.Unlock(c.owner), "lockregistry: unlock orders:42: "+text)
			})
		}
	}
}

// Unlock and Release that find the loss say how, too.
func TestLock_UnlockSaysHowItWasLost(t *testing.T) {
	t.Parallel()
	for how, does := range map[fault.Loss]func(c *caller){
		fault.KeyGone:  func(c *caller) { c.Do("FLUSHALL") },
		fault.KeyTaken: func(c *caller) { c.Do("FLUSHALL"); c.takes(c.other) },
	} {
		answers(t, how.String(), func(c *caller) {
			c.owner = c.Gone(c.lock, 1, lockregistry.Lease(callerLease))
			does(c)
			require.EqualError(c, c.lock.Unlock(c.owner), "lockregistry: unlock orders:42: the lock was lost: "+how.String())
		})
	}
}

// takes has another owner take the same kind of lock.
func (c *caller) takes(r *lockregistry.Registry) { c.Gone(c.writer(r), 1) }

// ErrTaken says how long the call waited, and who has the lock.
func TestLock_TakenSaysWho(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		h, err := r.Acquire(w.Context(), "42")
		require.NoError(w, err)
		for text, opt := range map[string]lockregistry.LockOption{
			"lockregistry: lock orders:42: the lock was not free: ":           lockregistry.NoWait(),
			"lockregistry: lock orders:42: the lock was not free within 1s: ": lockregistry.Wait(time.Second),
		} {
			require.Regexp(w, "^"+text+"a Hold of goroutine [0-9]+ of this process has it$", l.Lock(w.Context(), opt).Error())
		}
		w.Released(h.Release(w.Context()))
		g := w.Goroutine()
		require.NoError(w, g.Lock(l))
		require.Regexp(w, ": goroutine [0-9]+ of this process has it$", l.Lock(w.Context(), lockregistry.NoWait()).Error())
		require.Regexp(w, ": it is taken in Redis$", w.Registry().Obtain("42").Lock(w.Context(), lockregistry.NoWait()).Error())
		_, err = r.AcquireAll(w.Context(), []string{"42", "43"}, lockregistry.Wait(time.Second))
		require.Regexp(w, "within 1s: goroutine [0-9]+ of this process has it$", err.Error())
		require.NoError(w, g.Unlock(l))
		w.Gone(r.ReadWrite("42").Reader(), 1)
		require.Regexp(w, ": owner [0-9]+ of this process has it$",
			r.ReadWrite("42").Writer().Lock(w.Context(), lockregistry.NoWait()).Error())
	})
}

// A handoff does not ask Redis. Unlock notices that a key is gone once the handoff limit is over, and at once without a limit.
func TestLock_KeyGoneAtAHandoff(t *testing.T) {
	t.Parallel()
	const limit = 50 * time.Millisecond
	for name, c := range map[string]struct {
		handoff, after time.Duration
		noticed        bool
	}{
		"within the limit":  {limit, 0, false},
		"after the limit":   {limit, limit, true},
		"without a handoff": {0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				l := w.Registry(lockregistry.WithHandoff(c.handoff)).Obtain("42")
				w.Lock(l)
				g := w.Goroutine()
				has := g.Starts(l)
				w.Settle()
				w.Do("FLUSHALL")
				w.Pass(c.after)
				err := l.Unlock(w.Context())
				require.NoError(w, <-has)
				if !c.noticed {
					require.NoError(w, err)
					w.Fails(g.Unlock(l), lockregistry.ErrLockLost, "unlock", kit.TheKey) // nobody waits, so it asks Redis
					return
				}
				w.Fails(err, lockregistry.ErrLockLost, "unlock", kit.TheKey)
				require.NoError(w, g.Unlock(l))
			})
		})
	}
}
