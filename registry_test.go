package lockregistry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLockAndUnlock(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		require.NoError(w, l.Lock(w.Context()))
		require.True(w, l.IsHeld())
		require.Equal(w, r.ClientID()+":1", w.do("GET", "orders:42"))
		require.False(w, w.tryElsewhere(l))
		require.NoError(w, l.Unlock(w.Context()))
		require.False(w, l.IsHeld())
		require.Equal(w, "0", w.do("EXISTS", "orders:42"))
		require.True(w, w.tryElsewhere(l))
	})
}
