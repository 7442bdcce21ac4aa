package lockregistry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

func TestDoValue(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		double := func(ctx context.Context) (int, error) {
			require.True(w, r.Obtain("42").IsHeld())
			nested, err := lockregistry.DoValue(ctx, r, "42", func(context.Context) (int, error) { return 21, nil })
			return 2 * nested, err
		}
		value, err := lockregistry.DoValue(w.Context(), r, "42", double, lockregistry.NoWait())
		require.NoError(w, err)
		require.Equal(w, 42, value)

		enough := errors.New("enough")
		text, err := lockregistry.DoValue(w.Context(), r, "42", func(context.Context) (string, error) { return "half", enough })
		require.Equal(w, enough, err)
		require.Equal(w, "half", text)
		require.PanicsWithValue(w, "fn", func() {
			_, _ = lockregistry.DoValue(w.Context(), r, "42", func(context.Context) (any, error) { panic("fn") })
		})
		w.leftNothing()
	})
}

// The work was done, and its value is worth something, although the lock was lost meanwhile.
func TestDoValue_WhenUnlockingFails(t *testing.T) {
	fakeWorld(t, func(w *world) {
		value, err := lockregistry.DoValue(w.Context(), w.registry(), "42", func(context.Context) (int, error) {
			w.pass(time.Second)
			return 42, nil
		}, lockregistry.AtMost(time.Second))
		w.fails(err, lockregistry.ErrLockLost, "unlock", theKey)
		require.Equal(w, 42, value)
	})
}

func TestDoValue_ThatDoesNotRun(t *testing.T) {
	r := unusedRegistry(t)
	runs := func(context.Context) (int, error) { return 42, nil }
	value, err := lockregistry.DoValue(t.Context(), r, "42", runs, lockregistry.Lease(-1))
	refuses(t, err, "do", "orders:42", "Lease(-1ns)")
	require.Zero(t, value)
	_, err = lockregistry.DoValue[int](t.Context(), r, "42", nil)
	refuses(t, err, "do", "orders:42", "the function is nil")
	_, err = lockregistry.DoValue(t.Context(), nil, "42", runs)
	complains(t, err, "the registry is nil")
	h := r.Obtain("42").IsHeld()
	require.False(t, h)
}
