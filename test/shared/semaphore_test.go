package shared_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// full checks that nobody can get a permit now.
func full(w *kit.World, s *lockregistry.Semaphore, opts ...lockregistry.SemaphoreOption) {
	w.Helper()
	require.NoError(w, w.Answer(func() error {
		h, ok, err := kit.TryAcquire(w.Context(), s, opts...)
		require.False(w, ok)
		require.Nil(w, h)
		return err
	}))
}

func awaitWaiting(c *kit.Waiting) {
	c.W.Helper()
	select {
	case <-c.Got:
		c.W.Fatal(c.Name, " got in")
	case err := <-c.Err:
		c.W.Fatal(c.Name, ": ", err)
	default:
	}
}

func TestSemaphore(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Registry().Semaphore("seat", 2), w.Registry().Semaphore("seat", 2)
		first, second := w.Permit(a), w.Permit(b)
		require.Equal(w, 2, w.Inside())
		full(w, a)
		full(w, b)
		_, err := a.Acquire(w.Context(), lockregistry.NoWait())
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.SeatKey)
		_, err = b.Acquire(w.Context(), lockregistry.Wait(time.Second))
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.SeatKey)

		w.Release(first)
		w.Fails(first.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.SeatKey)
		third := w.Permit(b)
		full(w, a)
		require.NoError(w, second.Renew(w.Context(), time.Hour))
		require.Greater(w, second.Remaining(), 59*time.Minute)
		require.Greater(w, w.Pttl(kit.SeatKey), 59*time.Minute, "the key lives as long as the longest lease")
		w.Release(second, third)
		require.Zero(w, w.Inside())
		require.Equal(w, 0, w.Seats())
	})
}

func TestSemaphore_Do(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		s := w.Registry().Semaphore("seat", 1)
		failure := errors.New("any")
		err := s.Do(w.Context(), func(ctx context.Context) error {
			require.Equal(w, 1, w.Inside())
			require.NoError(w, ctx.Err())
			full(w, s)
			return failure
		})
		require.Equal(w, failure, err)
		require.Zero(w, w.Inside())
		require.Panics(w, func() { _ = s.Do(w.Context(), func(context.Context) error { panic("any") }) })
		require.Zero(w, w.Inside())
		require.ErrorContains(w, s.Do(w.Context(), nil), "do orders:seat: the function is nil")
	})
}

func TestSemaphore_BadInput(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		s, most := r.Semaphore("seat", 3), math.MaxInt32
		for want, call := range map[string]func() error{
			"acquire orders:seat: 0 permits: a semaphore has at least one": func() error {
				_, err := r.Semaphore("seat", 0).Acquire(w.Context())
				return err
			},
			"acquire orders:seat: Permits(0): the number must be positive": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.Permits(0))
				return err
			},
			"acquire orders:seat: a semaphore of 3 permits never has as many as 4": func() error {
				_, _, err := kit.TryAcquire(w.Context(), s, lockregistry.Permits(4))
				return err
			},
			"acquire orders:seat: NoWait and Wait: a call cannot have both": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.NoWait(), lockregistry.Wait(time.Second))
				return err
			},
			`acquire "orders:": the path is empty`: func() error {
				_, err := r.Semaphore("", 1).Acquire(w.Context())
				return err
			},
			"acquire orders:seat: 2147483648 permits: a semaphore has 2147483647 at most": func() error {
				_, err := r.Semaphore("seat", most+1).Acquire(w.Context())
				return err
			},
			"acquire orders:seat: Permits(2147483648): the number must be at most 2147483647": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.Permits(most+1))
				return err
			},
			"setpermits orders:seat: 0 permits: a semaphore has at least one": func() error {
				return s.SetPermits(w.Context(), 0)
			},
		} {
			err := call()
			require.ErrorContains(w, err, want)
			require.Empty(w, kit.SentinelsOf(err), want)
		}
		_, err := s.Acquire(nil) //nolint:staticcheck // that is what is wrong
		require.ErrorContains(w, err, "the context is nil")
		require.Equal(w, "0", w.Keys())
	})
}

// A key of another kind is not changed, and a lock does not take a semaphore's key.
func TestSemaphore_WrongType(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		s := r.Semaphore("seat", 1)
		for _, made := range [][]string{
			{"SET", kit.SeatKey, "any"}, {"HSET", kit.SeatKey, "any", "1"}, {"ZADD", kit.SeatKey, "1", "any"},
		} {
			w.Do(made...)
			_, err := s.Acquire(w.Context())
			w.Fails(err, lockregistry.ErrWrongType, "acquire", kit.SeatKey)
			_, _, err = kit.TryAcquire(w.Context(), s)
			w.Fails(err, lockregistry.ErrWrongType, "acquire", kit.SeatKey)
			w.Fails(s.SetPermits(w.Context(), 2), lockregistry.ErrWrongType, "setpermits", kit.SeatKey)
			require.Equal(w, "1", w.Do("EXISTS", kit.SeatKey))
			w.Do("DEL", kit.SeatKey)
		}
		h := w.Permit(s)
		_, err := r.Obtain("seat").TryLock(w.Context())
		w.Fails(err, lockregistry.ErrWrongType, "trylock", kit.SeatKey)
		w.Release(h)
	})
}

// Permits whose lease is over go to others. Their holder has learned of that before, and cannot end another's hold.
func TestSemaphore_LeaseIsOver(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Registry().Semaphore("seat", 1), w.Registry().Semaphore("seat", 1)
		lost := w.Permit(a, lockregistry.AtMost(time.Second))
		ctx := lost.Context(w.Context())
		next := w.Permit(b)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, "before the next one is in")
		require.Zero(w, lost.Remaining())
		w.Fails(lost.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", kit.SeatKey)
		w.Fails(lost.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		require.Equal(w, 1, w.Inside())
		full(w, a)
		w.Release(next)
	})
}

// A hold is renewed in the background for as long as it is held.
func TestSemaphore_Renewal(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		s := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)).Semaphore("seat", 2)
		h := w.Permit(s)
		w.Pass(time.Minute)
		require.Equal(w, 1, w.Inside())
		require.Greater(w, h.Remaining(), time.Second)
		w.Release(h)
		big := w.Permit(s, lockregistry.Permits(2))
		w.Pass(time.Minute)
		require.Equal(w, 2, w.Inside())
		full(w, s)
		w.Release(big)
		require.Zero(w, w.Inside())
		w.Pass(20 * time.Second)
		require.Equal(w, "0", w.Keys(), "nothing is left")
	})
}

func TestSemaphore_Token(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		s := w.Registry(lockregistry.WithFencing()).Semaphore("seat", 2)
		first, second := w.Permit(s), w.Permit(s)
		require.Positive(w, first.Token())
		require.Greater(w, second.Token(), first.Token())
		token, ok := lockregistry.TokenFrom(second.Context(w.Context()))
		require.True(w, ok)
		require.Equal(w, second.Token(), token)
		w.Release(first, second)
	})
}

// The first call says how many permits there are, until the number is set, or nobody has had a permit for one lease.
func TestSemaphore_Number(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		var log strings.Builder
		lines := lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil)))
		a, r := w.Registry().Semaphore("seat", 1), w.Registry(lines)
		b := r.Semaphore("seat", 2)
		first := w.Permit(a, lockregistry.Lease(2*time.Second))
		full(w, b)
		full(w, b)
		w.Release(first)
		w.Await("the key is gone", func() bool { return w.Free(kit.SeatKey) })
		one, two := w.Permit(b), w.Permit(b)
		full(w, a)
		w.Release(one, two)

		require.NoError(w, a.SetPermits(w.Context(), 3))
		holds := []*lockregistry.Hold{w.Permit(a), w.Permit(b), w.Permit(b)}
		full(w, a)
		require.Equal(w, time.Duration(-1), w.Pttl(kit.SeatKey), "it stays")
		require.NoError(w, b.SetPermits(w.Context(), 2))
		w.Release(holds[0])
		full(w, a)
		w.Release(holds[1])
		holds[1] = w.Permit(b)
		full(w, a)
		w.Release(holds[1:]...)
		require.NoError(w, r.Close())
		require.Equal(w, 1, strings.Count(log.String(), "permits=1 named=2"), log.String())
		require.Equal(w, 1, strings.Count(log.String(), "permits=3 named=2"), log.String())
		require.NotContains(w, log.String(), "named=1")
	})
}

// locked is a writer behind a mutex, so that nobody reads while it writes.
type locked struct {
	mu sync.Mutex
	to io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// Replies are lost: no permit is lost, and none is given twice.
func TestSemaphore_LostReplies(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		s, other := f.Registry().Semaphore("seat", 2), w.Registry().Semaphore("seat", 2)
		for _, what := range []kit.Fate{kit.CutAfter, kit.Cut, kit.Refused(kit.Loading)} {
			f.Fates("obtain", what)
			h, err := s.Acquire(w.Context())
			require.Error(w, err)
			require.Nil(w, h)
			w.Await("it is removed", func() bool { return w.Inside() == 0 })

			f.Fates("obtain", what)
			h, err = s.Acquire(w.Context(), lockregistry.Wait(10*time.Second), lockregistry.Permits(2))
			require.NoError(w, err)
			require.Equal(w, 2, w.Inside(), "it is asked for once more, not two times")
			full(w, other)
			f.Fates("renew", what)
			_ = h.Renew(w.Context(), time.Hour)
			require.Equal(w, 2, w.Inside())
			f.Fates("release", what)
			_ = h.Release(w.Context())
			w.Await("it is released", func() bool { return w.Inside() == 0 })
		}
	})
}

// Late commands change nothing for later holds.
func TestSemaphore_LateCommands(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		s, other := f.Registry().Semaphore("seat", 2), w.Registry().Semaphore("seat", 2)
		h := w.Permit(s)
		require.NoError(w, h.Renew(w.Context(), time.Minute))
		w.Release(h)
		now := []*lockregistry.Hold{w.Permit(other), w.Permit(other)}
		require.Equal(w, "0", w.Arrives(f.Sent("renew")[0]))
		require.Equal(w, "0", w.Arrives(f.Sent("release")[0]))
		require.NotEqual(w, "(nil)", w.Arrives(f.Sent("obtain")[0]))
		require.Equal(w, 2, w.Inside())
		for _, h := range now {
			require.NoError(w, h.Renew(w.Context(), time.Minute))
		}
		w.Release(now...)
	})
}

// Holds whose leases have ended without a release are forgotten, whether or not the program keeps them.
func TestSemaphore_LapsedHoldsAreForgotten(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		s := r.Semaphore("seat", 1_000_000)
		kept := []*lockregistry.Hold{w.Permit(s, lockregistry.Lease(time.Hour))}
		for range 5 {
			for range 100 {
				kept = append(kept, w.Permit(s, lockregistry.AtMost(time.Second)))
			}
			w.Pass(2 * time.Second)
			require.Equal(w, 1, kit.SemaphoreCalls(r))
			require.Equal(w, 1, r.Stats().Holds)
		}
		for range 64 {
			w.Permit(s, lockregistry.AtMost(time.Second))
		}
		w.Released(kept[0].Release(w.Context()))
		w.Fails(kept[1].Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
	})
}

// A closed registry, or one that shuts down, gives no more permits.
func TestSemaphore_Closed(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		s := r.Semaphore("seat", 2)
		h := w.Permit(s)
		shut := make(chan error, 1)
		go func() { shut <- r.Shutdown(w.Context()) }()
		w.Await("it shuts down", func() bool { return kit.Draining(r) })
		w.Pending(shut)
		second := w.Permit(s) // of an owner that already has one
		w.Release(h, second)
		require.NoError(w, <-shut)
		_, err := s.Acquire(w.Context())
		w.Fails(err, lockregistry.ErrClosed, "acquire", kit.SeatKey)
		w.Fails(s.SetPermits(w.Context(), 3), lockregistry.ErrClosed, "setpermits", kit.SeatKey)
		require.Equal(w, "-2", w.Do("ZSCORE", kit.SeatKey, "permits"))
	})
}
