package lockregistry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

const seat = "orders:seat"

// eachLayout runs a test in such worlds with either layout.
func eachLayout(t *testing.T, worlds func(t *testing.T, test func(w *world)), test func(w *world)) {
	t.Helper()
	t.Parallel()
	for name, layout := range map[string]lockregistry.Layout{
		"spring": lockregistry.LayoutSpring, "redisson": lockregistry.LayoutRedisson,
	} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				w.layout = layout
				test(w)
			})
		})
	}
}

// redissons tells whether that is Redisson's.
func (w *world) redissons() bool { return w.layout == lockregistry.LayoutRedisson }

// permit acquires at once, or fails the test.
func (w *world) permit(s lockregistry.Semaphore, opts ...lockregistry.LockOption) *lockregistry.Hold {
	w.Helper()
	h, err := s.Acquire(w.Context(), opts...)
	require.NoError(w, err)
	return h
}

func (w *world) release(holds ...*lockregistry.Hold) {
	w.Helper()
	for _, h := range holds {
		require.NoError(w, h.Release(w.Context()))
	}
}

// full checks that nobody gets a permit now.
func (w *world) full(s lockregistry.Semaphore, opts ...lockregistry.LockOption) {
	w.Helper()
	h, ok, err := s.TryAcquire(w.Context(), opts...)
	require.NoError(w, err)
	require.False(w, ok)
	require.Nil(w, h)
}

// inside is who has permits, and how many of them, by the server.
func (w *world) inside() int {
	w.Helper()
	if w.redissons() {
		n, err := strconv.Atoi(w.do("ZCARD", "{"+seat+"}:timeout"))
		require.NoError(w, err)
		return n
	}
	n, err := strconv.Atoi(w.do("EVAL", `local used = 0
		for i, m in ipairs(redis.call('ZRANGE', KEYS[1], '0', '-1')) do
			local score = tonumber(redis.call('ZSCORE', KEYS[1], m))
			used = used + (score >= 0 and 1 or m ~= 'permits' and -score or 0)
		end
		return used`, "1", seat))
	require.NoError(w, err)
	return n
}

// seats is how many calls wait in Redis.
func (w *world) seats() int {
	n, _ := strconv.Atoi(w.do("ZCOUNT", "orders:{"+seat+"}:waiters", "0", "+inf"))
	return n
}

// waiting is a call that acquires.
type waiting struct {
	w    *world
	name string
	got  chan *lockregistry.Hold
	err  chan error
}

// asks starts a call, and waits until its ticket is there.
func (w *world) asks(name string, s lockregistry.Semaphore, opts ...lockregistry.LockOption) *waiting {
	w.Helper()
	return w.asksWith(w.Context(), name, s, opts...)
}

func (w *world) asksWith(
	ctx context.Context, name string, s lockregistry.Semaphore, opts ...lockregistry.LockOption,
) *waiting {
	w.Helper()
	before := w.seats()
	c := &waiting{w, name, make(chan *lockregistry.Hold, 1), make(chan error, 1)}
	go func() {
		h, err := s.Acquire(ctx, opts...)
		if err != nil {
			c.err <- err
			return
		}
		c.got <- h
	}()
	w.await(name+" waits", func() bool { return w.seats() == before+1 })
	return c
}

// comes waits until the call has its permits.
func (c *waiting) comes() *lockregistry.Hold {
	c.w.Helper()
	select {
	case h := <-c.got:
		return h
	case err := <-c.err:
		c.w.Fatal(c.name, ": ", err)
	case <-time.After(20 * time.Second):
		c.w.Fatal(c.name, " does not get in")
	}
	return nil
}

func (c *waiting) waits() {
	c.w.Helper()
	select {
	case <-c.got:
		c.w.Fatal(c.name, " got in")
	case err := <-c.err:
		c.w.Fatal(c.name, ": ", err)
	default:
	}
}

func TestSemaphore(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		a, b := w.registry().Semaphore("seat", 2), w.registry().Semaphore("seat", 2)
		first, second := w.permit(a), w.permit(b)
		require.Equal(w, 2, w.inside())
		w.full(a)
		w.full(b)
		_, err := a.Acquire(w.Context(), lockregistry.NoWait())
		w.fails(err, lockregistry.ErrTaken, "acquire", seat)
		_, err = b.Acquire(w.Context(), lockregistry.Wait(20*time.Millisecond))
		w.fails(err, lockregistry.ErrTaken, "acquire", seat)

		w.release(first)
		w.fails(first.Release(w.Context()), lockregistry.ErrNotOwner, "release", seat)
		third := w.permit(b)
		w.full(a)
		require.NoError(w, second.Renew(w.Context(), time.Hour))
		require.Greater(w, second.Remaining(), 59*time.Minute)
		if !w.redissons() {
			require.Greater(w, w.pttl(seat), 59*time.Minute, "the key lives as long as the longest lease")
		}
		w.release(second, third)
		require.Zero(w, w.inside())
		require.Equal(w, 0, w.seats())
	})
}

func TestSemaphore_Do(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		s := w.registry().Semaphore("seat", 1)
		failure := errors.New("any")
		err := s.Do(w.Context(), func(ctx context.Context) error {
			require.Equal(w, 1, w.inside())
			require.NoError(w, ctx.Err())
			w.full(s)
			return failure
		})
		require.Equal(w, failure, err)
		require.Zero(w, w.inside())
		require.Panics(w, func() { _ = s.Do(w.Context(), func(context.Context) error { panic("any") }) })
		require.Zero(w, w.inside())
		require.ErrorContains(w, s.Do(w.Context(), nil), "do orders:seat: the function is nil")
	})
}

func TestSemaphore_BadInput(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
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
			"tryacquire orders:seat: a semaphore of 3 permits never has as many as 4": func() error {
				_, _, err := s.TryAcquire(w.Context(), lockregistry.Permits(4))
				return err
			},
			"acquire orders:seat: AtLeast: it is for plain locks only": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.AtLeast(time.Second))
				return err
			},
			"acquire orders:seat: NoWait and Wait: a call cannot have both": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.NoWait(), lockregistry.Wait(time.Second))
				return err
			},
			"lock orders:seat: Permits: it is for semaphores only": func() error {
				return r.Obtain("seat").Lock(w.Context(), lockregistry.Permits(1))
			},
			`acquire "orders:": the path is empty`: func() error {
				_, err := r.Semaphore("", 1).Acquire(w.Context())
				return err
			},
			"acquire orders:seat: 2147483648 permits: a semaphore has 2147483647 at most": func() error {
				_, err := r.Semaphore("seat", most+1).Acquire(w.Context())
				return err
			},
			"acquire orders:seat: Permits(2147483648): the number must be 2147483647 at most": func() error {
				_, err := s.Acquire(w.Context(), lockregistry.Permits(most+1))
				return err
			},
			"setpermits orders:seat: 0 permits: a semaphore has at least one": func() error {
				return s.SetPermits(w.Context(), 0)
			},
		} {
			err := call()
			require.ErrorContains(w, err, want)
			require.Empty(w, about(err), want)
		}
		_, err := s.Acquire(nil) //nolint:staticcheck // that is what is wrong
		require.ErrorContains(w, err, "the context is nil")
		require.Equal(w, "0", w.keys())
		s = w.registry(lockregistry.WithLayout(lockregistry.LayoutRedisson)).Semaphore("seat", 3000)
		_, err = s.Acquire(w.Context(), lockregistry.Permits(1001))
		require.ErrorContains(w, err, "acquire orders:seat: Permits(1001): with LayoutRedisson the number must be 1000 at most")
		require.Equal(w, "0", w.keys())
		w.release(w.permit(s, lockregistry.Permits(1000)))
	})
}

// A key that is something else is not touched, and a lock does not take a semaphore's.
func TestSemaphore_WrongType(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		s := r.Semaphore("seat", 1)
		for _, made := range [][]string{{"SET", seat, "any"}, {"HSET", seat, "any", "1"}, {"ZADD", seat, "1", "any"}} {
			w.do(made...)
			_, err := s.Acquire(w.Context())
			w.fails(err, lockregistry.ErrWrongType, "acquire", seat)
			_, _, err = s.TryAcquire(w.Context())
			w.fails(err, lockregistry.ErrWrongType, "tryacquire", seat)
			w.fails(s.SetPermits(w.Context(), 2), lockregistry.ErrWrongType, "setpermits", seat)
			require.Equal(w, "1", w.do("EXISTS", seat))
			w.do("DEL", seat)
		}
		h := w.permit(s)
		_, err := r.Obtain("seat").TryLock(w.Context())
		w.fails(err, lockregistry.ErrWrongType, "trylock", seat)
		w.release(h)
	})
}

// A lease that is over is given on. Its holder has heard of that before, and can end nobody else's.
func TestSemaphore_LeaseIsOver(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		a, b := w.registry().Semaphore("seat", 1), w.registry().Semaphore("seat", 1)
		lost := w.permit(a, lockregistry.AtMost(time.Second))
		ctx := lost.Context(w.Context())
		next := w.permit(b)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, "before the next one is in")
		require.Zero(w, lost.Remaining())
		w.fails(lost.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", seat)
		w.fails(lost.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		require.Equal(w, 1, w.inside())
		w.full(a)
		w.release(next)
	})
}

// A hold is renewed for as long as it is held, in the background.
func TestSemaphore_Renewal(t *testing.T) {
	eachLayout(t, fakeWorld, func(w *world) {
		s := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)).Semaphore("seat", 2)
		h := w.permit(s)
		w.pass(time.Minute)
		require.Equal(w, 1, w.inside())
		require.Greater(w, h.Remaining(), time.Second)
		w.release(h)
		big := w.permit(s, lockregistry.Permits(2))
		w.pass(time.Minute)
		require.Equal(w, 2, w.inside())
		w.full(s)
		w.release(big)
		require.Zero(w, w.inside())
		w.pass(20 * time.Second)
		if !w.redissons() {
			require.Equal(w, "0", w.keys(), "nothing is left")
		}
	})
}

func TestSemaphore_Token(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		s := w.registry(lockregistry.WithFencing()).Semaphore("seat", 2)
		first, second := w.permit(s), w.permit(s)
		require.Positive(w, first.Token())
		require.Greater(w, second.Token(), first.Token())
		token, ok := lockregistry.TokenFrom(second.Context(w.Context()))
		require.True(w, ok)
		require.Equal(w, second.Token(), token)
		w.release(first, second)
	})
}

// The first call says how many permits there are, until they were set, or nobody has had any for a lease.
func TestSemaphore_Number(t *testing.T) {
	worlds(t, func(w *world) {
		var log strings.Builder
		lines := lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil)))
		a, r := w.registry().Semaphore("seat", 1), w.registry(lines)
		b := r.Semaphore("seat", 2)
		first := w.permit(a, lockregistry.Lease(2*time.Second))
		w.full(b)
		w.full(b)
		w.release(first)
		w.await("the key is gone", func() bool { return w.free(seat) })
		one, two := w.permit(b), w.permit(b)
		w.full(a)
		w.release(one, two)

		require.NoError(w, a.SetPermits(w.Context(), 3))
		holds := []*lockregistry.Hold{w.permit(a), w.permit(b), w.permit(b)}
		w.full(a)
		require.Equal(w, time.Duration(-1), w.pttl(seat), "it stays")
		require.NoError(w, b.SetPermits(w.Context(), 2))
		w.release(holds[0])
		w.full(a)
		w.release(holds[1])
		holds[1] = w.permit(b)
		w.full(a)
		w.release(holds[1:]...)
		require.NoError(w, r.Close())
		require.Equal(w, 1, strings.Count(log.String(), "permits=1 named=2"), log.String())
		require.Equal(w, 1, strings.Count(log.String(), "permits=3 named=2"), log.String())
		require.NotContains(w, log.String(), "named=1")
	})
}

// Nobody reads what is written meanwhile.
type locked struct {
	mu sync.Mutex
	to io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// Replies are lost: no permit is, and none is given twice.
func TestSemaphore_LostReplies(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		f := w.flaky()
		s, other := f.registry().Semaphore("seat", 2), w.registry().Semaphore("seat", 2)
		for _, what := range []fate{cutAfter, cut, refused(loading)} {
			f.next("obtain", what)
			h, err := s.Acquire(w.Context())
			require.Error(w, err)
			require.Nil(w, h)
			w.await("it is removed", func() bool { return w.inside() == 0 })

			f.next("obtain", what)
			h, err = s.Acquire(w.Context(), lockregistry.Wait(10*time.Second), lockregistry.Permits(2))
			require.NoError(w, err)
			require.Equal(w, 2, w.inside(), "it is asked for once more, not two times")
			w.full(other)
			f.next("renew", what)
			_ = h.Renew(w.Context(), time.Hour)
			require.Equal(w, 2, w.inside())
			f.next("release", what)
			_ = h.Release(w.Context())
			w.await("it is released", func() bool { return w.inside() == 0 })
		}
	})
}

// Commands that arrive late change nothing for those who came after.
func TestSemaphore_LateCommands(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		f := w.flaky()
		s, other := f.registry().Semaphore("seat", 2), w.registry().Semaphore("seat", 2)
		h := w.permit(s)
		require.NoError(w, h.Renew(w.Context(), time.Minute))
		w.release(h)
		now := []*lockregistry.Hold{w.permit(other), w.permit(other)}
		require.Equal(w, "0", w.arrives(f.sent("renew")[0]))
		require.Equal(w, "0", w.arrives(f.sent("release")[0]))
		require.NotEqual(w, "(nil)", w.arrives(f.sent("obtain")[0]))
		require.Equal(w, 2, w.inside())
		for _, h := range now {
			require.NoError(w, h.Renew(w.Context(), time.Minute))
		}
		w.release(now...)
	})
}

// Holds whose leases are over without a release are known no longer, be they kept or not.
func TestSemaphore_LapsedHoldsAreForgotten(t *testing.T) {
	eachLayout(t, fakeWorld, func(w *world) {
		r := w.registry()
		s := r.Semaphore("seat", 1_000_000)
		kept := []*lockregistry.Hold{w.permit(s, lockregistry.Lease(time.Hour))}
		for range 5 {
			for range 100 {
				kept = append(kept, w.permit(s, lockregistry.AtMost(time.Second)))
			}
			w.pass(2 * time.Second)
			require.Equal(w, 1, lockregistry.Calls(r))
			require.Equal(w, 1, r.Stats().Holds)
		}
		for range 64 {
			w.permit(s, lockregistry.AtMost(time.Second))
		}
		require.NoError(w, kept[0].Release(w.Context()))
		w.fails(kept[1].Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
	})
}

// A registry that is closed, or shuts down, has nothing more to do with permits.
func TestSemaphore_Closed(t *testing.T) {
	eachLayout(t, worlds, func(w *world) {
		r := w.registry()
		s := r.Semaphore("seat", 2)
		h := w.permit(s)
		shut := make(chan error, 1)
		go func() { shut <- r.Shutdown(w.Context()) }()
		w.await("it shuts down", func() bool { return lockregistry.Draining(r) })
		w.pending(shut)
		second := w.permit(s) // of an owner that has one
		w.release(h, second)
		require.NoError(w, <-shut)
		_, err := s.Acquire(w.Context())
		w.fails(err, lockregistry.ErrClosed, "acquire", seat)
		w.fails(s.SetPermits(w.Context(), 3), lockregistry.ErrClosed, "setpermits", seat)
		if !w.redissons() {
			require.Equal(w, "-2", w.do("ZSCORE", seat, "permits"))
		}
	})
}
