package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

var wakeups = map[string]lockregistry.Wakeup{
	"auto":     lockregistry.WakeupAuto,
	"pubsub":   lockregistry.WakeupPubSub,
	"tracking": lockregistry.WakeupTracking,
}

// A poll interval so long that a test which relies on it fails.
const noPoll = time.Minute

func TestWakeupAtOnce(t *testing.T) {
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				a := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
				ctx := context.Background()
				b := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
				require.NoError(w, a.Obtain("42").Lock(ctx))
				done := lockElsewhere(b.Obtain("42"), ctx)
				<-time.After(50 * time.Millisecond)
				start := time.Now()
				require.NoError(w, a.Obtain("42").Unlock(ctx))
				select {
				case err := <-done:
					require.NoError(w, err)
				case <-time.After(5 * time.Second):
					w.Fatal("nothing woke the waiter")
				}
				w.Log(time.Since(start))
			})
		})
	}
}
