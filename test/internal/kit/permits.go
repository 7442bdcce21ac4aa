package kit

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// SeatKey is the key of the semaphore "seat".
const SeatKey = "orders:seat"

// Permit acquires a permit at once, or fails the test.
func (w *World) Permit(s *lockregistry.Semaphore, opts ...lockregistry.SemaphoreOption) *lockregistry.Hold {
	w.Helper()
	var h *lockregistry.Hold
	w.obtains(func() (err error) {
		h, err = s.Acquire(w.Context(), opts...)
		return err
	})
	return h
}

// Release releases holds.
func (w *World) Release(holds ...*lockregistry.Hold) {
	w.Helper()
	for _, h := range holds {
		w.Released(h.Release(w.Context()))
	}
}

// Inside returns how many permits are held, according to the server.
func (w *World) Inside() int {
	w.Helper()
	n, err := strconv.Atoi(w.Do("EVAL", `local used = 0
		for i, m in ipairs(redis.call('ZRANGE', KEYS[1], '0', '-1')) do
			local score = tonumber(redis.call('ZSCORE', KEYS[1], m))
			used = used + (score >= 0 and 1 or m ~= 'permits' and -score or 0)
		end
		return used`, "1", SeatKey))
	require.NoError(w, err)
	return n
}

// Seats returns how many calls wait in Redis.
func (w *World) Seats() int {
	n, _ := strconv.Atoi(w.Do("ZCOUNT", "orders:{"+SeatKey+"}:waiters", "0", "+inf"))
	return n
}

// Waiting is a waiting call for permits.
type Waiting struct {
	W    *World
	Name string
	Got  chan *lockregistry.Hold
	Err  chan error
}

// Asks starts a call, and waits until it has its ticket.
func (w *World) Asks(name string, s *lockregistry.Semaphore, opts ...lockregistry.SemaphoreOption) *Waiting {
	w.Helper()
	return w.AsksWith(w.Context(), name, s, opts...)
}

// AsksWith is Asks with a context.
func (w *World) AsksWith(
	ctx context.Context, name string, s *lockregistry.Semaphore, opts ...lockregistry.SemaphoreOption,
) *Waiting {
	w.Helper()
	before := w.Seats()
	c := &Waiting{w, name, make(chan *lockregistry.Hold, 1), make(chan error, 1)}
	go func() {
		h, err := s.Acquire(ctx, opts...)
		if err != nil {
			c.Err <- err
			return
		}
		c.Got <- h
	}()
	w.Await(name+" waits", func() bool { return w.Seats() == before+1 })
	return c
}

// Comes waits until the call has its permits.
func (c *Waiting) Comes() *lockregistry.Hold {
	c.W.Helper()
	select {
	case h := <-c.Got:
		return h
	case err := <-c.Err:
		c.W.Fatal(c.Name, ": ", err)
	case <-time.After(20 * time.Second):
		c.W.Fatal(c.Name, " does not get in")
	}
	return nil
}

// TryAcquire acquires without waiting, or for as long as a Wait among the options allows. It reports false if there was no
// permit.
func TryAcquire(
	ctx context.Context, s *lockregistry.Semaphore, opts ...lockregistry.SemaphoreOption,
) (*lockregistry.Hold, bool, error) {
	h, err := s.Acquire(ctx, append([]lockregistry.SemaphoreOption{lockregistry.NoWait()}, opts...)...)
	if errors.Is(err, lockregistry.ErrTaken) {
		return nil, false, nil
	}
	return h, err == nil, err
}
