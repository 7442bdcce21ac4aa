package lockregistry_test

import (
	"context"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// wordy is an error that is asked what it says, and what it is.
type wordy struct {
	err  error
	gate *gate
}

func (e wordy) Error() string {
	e.gate.pass()
	return e.err.Error()
}

func (e wordy) Unwrap() error {
	e.gate.pass()
	return e.err
}

func (e wordy) Is(error) bool {
	e.gate.pass()
	return false
}

// wordyEnd is a context that ends with such an error.
type wordyEnd struct{ gated }

func (c wordyEnd) Err() error {
	if err := c.Context.Err(); err != nil {
		return wordy{err, c.gate}
	}
	return nil
}

func (c wordyEnd) Done() <-chan struct{} { return c.Context.Done() }
func (c wordyEnd) Value(key any) any     { return c.Context.Value(key) }

// The methods of an error that a context ends with are in nobody's way.
func TestLock_BlockedErrorDisturbsNoOtherHold(t *testing.T) {
	foreignCode(t, true, func(b *bystander) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ends := wordyEnd{gated{ctx, b.gate}}
		h, err := b.reg.Acquire(context.Background(), "blocked")
		require.NoError(b, err)
		mine := h.Context(ends)
		b.do("SET", "orders:taken", "another", "PX", "100000")
		time.AfterFunc(time.Second, cancel)
		_ = b.reg.Obtain("taken").Lock(ends)
		_ = mine.Err()
		_ = h.Renew(ends, time.Minute)
		_, _ = b.reg.Obtain("taken").TryLock(ends)
		_ = b.reg.Do(ends, "free", func(context.Context) error { return nil })
		_ = h.Release(ends)
	}, nil, nil)
}

// failing is a client with a hook that, when told so, has commands for a path fail with such an error.
type failing struct {
	rueidis.Client
	gate *gate
	told *atomic.Bool
}

func (c failing) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, command)[0]
}

func (c failing) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	fail := make([]bool, len(commands))
	for i, command := range commands { // which are not to be read later
		fail[i] = c.told.Load() && slices.Contains(command.Commands(), "orders:blocked")
	}
	results := c.Client.DoMulti(ctx, commands...)
	for i := range results {
		if fail[i] {
			results[i] = rueidis.NewErrorResult(wordy{io.EOF, c.gate})
		}
	}
	return results
}

// Nor are those of one that a hook of the client returns.
func TestLock_BlockedErrorOfAHookDisturbsNoOtherHold(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(b *bystander, h *lockregistry.Hold, fail func()){
		"renewals": func(_ *bystander, _ *lockregistry.Hold, fail func()) {
			fail()
			<-time.After(10 * time.Second)
		},
		"Hold.Renew": func(_ *bystander, h *lockregistry.Hold, fail func()) {
			fail()
			_ = h.Renew(context.Background(), time.Minute)
		},
		"Hold.Release": func(_ *bystander, h *lockregistry.Hold, fail func()) {
			fail()
			_ = h.Release(context.Background())
		},
		"TryLock": func(b *bystander, h *lockregistry.Hold, fail func()) {
			require.NoError(b, h.Release(context.Background()))
			fail()
			_, _ = b.reg.Obtain("blocked").TryLock(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var told atomic.Bool
			foreignCode(t, true, func(b *bystander) {
				h, err := b.reg.Acquire(context.Background(), "blocked")
				require.NoError(b, err)
				do(b, h, func() { told.Store(true) })
			}, nil, func(c rueidis.Client, g *gate) rueidis.Client {
				told.Store(false)
				return failing{c, g, &told}
			})
		})
	}
}
