package locktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/locktest"
)

// What fake time costs in real time, which -v prints.
func TestServer_CostOfFakeTime(t *testing.T) {
	for _, c := range []struct {
		name string
		lets time.Duration // pass
		pass func(t *testing.T, r *locktest.Registry, d time.Duration)
	}{
		{"a call that waits", time.Minute, func(t *testing.T, r *locktest.Registry, d time.Duration) {
			t.Helper()
			h, err := r.Acquire(t.Context(), "42", lockregistry.Lease(2*d))
			require.NoError(t, err)
			err = r.Do(t.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(d))
			require.ErrorIs(t, err, lockregistry.ErrTaken)
			require.NoError(t, h.Release(t.Context()))
		}},
		{"a registry that does nothing", time.Hour, func(_ *testing.T, _ *locktest.Registry, d time.Duration) { <-time.After(d) }},
	} {
		began := time.Now()
		synctest.Test(t, func(t *testing.T) { c.pass(t, locktest.New(t), c.lets) })
		t.Logf("%v of %s took %v", c.lets, c.name, time.Since(began).Round(time.Millisecond))
	}
}
