package kit

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// FencedLock is a kind of lock whose holds have fencing tokens.
type FencedLock struct {
	Name, Counter string
	Shows         string // the command that shows the holder
	Obtains       string // the name that [Flaky] gives to the script that obtains
	Opts          []lockregistry.Option
	Of            func(r *lockregistry.Registry, path string) *lockregistry.Lock
}

// FencedLocks returns all of them, with the keys of their counters for the path 42.
func FencedLocks() []FencedLock {
	plain := (*lockregistry.Registry).Obtain
	writer := func(r *lockregistry.Registry, path string) *lockregistry.Lock { return r.ReadWrite(path).Writer() }
	redisson := []lockregistry.Option{lockregistry.WithRedissonLayout()}
	return []FencedLock{
		{"spring", "orders:{orders:42}:fencing", "GET", "obtain", nil, plain},
		{"redisson", "redisson_lock_token:{orders:42}", "HKEYS", "obtain", redisson, plain},
		{"writer", "orders:{orders:42}:fencing", "HKEYS", "write_obtain", nil, writer},
		{"redisson writer", "orders:{orders:42}:fencing", "HKEYS", "write_obtain", redisson, writer},
	}
}

// Lock returns a lock of 42, in a process of its own.
func (f FencedLock) Lock(w *World, opts ...lockregistry.Option) *lockregistry.Lock {
	w.Helper()
	opts = slices.Concat(f.Opts, []lockregistry.Option{lockregistry.WithFencing()}, opts)
	return f.Of(w.Registry(opts...), "42")
}

// TokenIn returns the token in a context, 0 if there is none.
func (w *World) TokenIn(ctx context.Context) uint64 {
	w.Helper()
	token, ok := lockregistry.TokenFrom(ctx)
	require.Equal(w, token > 0, ok)
	return token
}

// Resource refuses a token that is older than one it has seen, as the resource behind a lock should.
type Resource struct{ newest, Refused atomic.Uint64 }

// Write is a write by a holder with this token.
func (r *Resource) Write(token uint64) {
	for {
		newest := r.newest.Load()
		if token <= newest {
			r.Refused.Add(1)
			return
		}
		if r.newest.CompareAndSwap(newest, token) {
			return
		}
	}
}
