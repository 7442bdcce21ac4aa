package kit

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// UnusedClient returns a client for tests that never talk to Redis.
func UnusedClient(tb testing.TB) rueidis.Client {
	tb.Helper()
	m := miniredis.RunT(tb)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{m.Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return client
}

// UnusedRegistry returns a registry for tests that never get as far as Redis.
func UnusedRegistry(t *testing.T, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	return OpenOn(t, UnusedClient(t), opts...)
}

// Complains checks that an error names this package and contains all of these texts.
func Complains(t *testing.T, err error, says ...string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, strings.HasPrefix(err.Error(), "lockregistry: "), err.Error())
	for _, s := range says {
		require.ErrorContains(t, err, s)
	}
}

// Shutdown starts Shutdown of a registry, and returns once it has begun.
func Shutdown(w *World, r *lockregistry.Registry) (done <-chan error, cancel context.CancelCauseFunc) {
	w.Helper()
	ctx, cancel := context.WithCancelCause(w.Context())
	w.Cleanup(func() { cancel(nil) })
	result := make(chan error, 1)
	go func() { result <- r.Shutdown(ctx) }()
	w.Await("it shuts down", func() bool { return Draining(r) })
	return result, cancel
}

// Polling is for tests that count polls or measure when they occur.
var Polling = lockregistry.WithPolling()

// ShortLease is for tests that wait for the lease to end: long enough for a grant on a busy machine.
const ShortLease = 500 * time.Millisecond

// FailFastOptions make a call wait for other owners, but not for the server.
var FailFastOptions = []lockregistry.LockOption{lockregistry.Wait(time.Hour), lockregistry.FailFast()}

// DoNothing is a section of Do.
func DoNothing(context.Context) error { return nil }

// WaysToLock are all the ways to lock.
func WaysToLock(r *lockregistry.Registry, path string) map[string]func(context.Context, ...lockregistry.LockOption) error {
	l := r.Obtain(path)
	return map[string]func(context.Context, ...lockregistry.LockOption) error{
		"lock": l.Lock,
		"trylock": func(ctx context.Context, opts ...lockregistry.LockOption) error {
			ok, err := l.TryLock(ctx, opts...)
			if ok {
				return errors.New("it locked")
			}
			return err
		},
		"do": func(ctx context.Context, opts ...lockregistry.LockOption) error {
			return r.Do(ctx, path, func(context.Context) error { return errors.New("it ran") }, opts...)
		},
	}
}

// Refuses checks that an error is the *LockError of an operation, that it says why, and that it matches none of the errors with
// another meaning.
func Refuses(t *testing.T, err error, op, key, why string) {
	t.Helper()
	Complains(t, err, why)
	var failed *lockregistry.LockError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, op, failed.Op)
	require.Equal(t, key, failed.Key)
	require.ErrorContains(t, failed.Err, why)
	require.Equal(t, failed.Err, errors.Unwrap(failed))
	if strings.HasSuffix(key, ":") {
		key = strconv.Quote(key)
	}
	require.Equal(t, "lockregistry: "+op+" "+key+": "+failed.Err.Error(), err.Error())
	for _, other := range []error{
		lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
	} {
		require.NotErrorIs(t, err, other)
	}
}

// As returns options of locks as options of type O. The options must fit every call that acquires.
func As[O any](opts []lockregistry.LockOption) (others []O) {
	for _, o := range opts {
		others = append(others, o.(O)) //nolint:forcetypeassert // a panic says which option does not fit
	}
	return others
}
