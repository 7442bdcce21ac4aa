package lockregistry_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Where releases go to the background, and what that leaves to others.

// returnsEarly tells whether an Unlock has not waited for its removal.
func (w *world) returnsEarly(l *lockregistry.Lock) bool {
	w.Helper()
	w.lock(l)
	begun := time.Now()
	w.unlock(l)
	return time.Since(begun) == 0
}

// A service that always has several commands under way shows how far away its server is, too.
func TestBackgroundRelease_WithManyFromTheStart(t *testing.T) {
	t.Parallel()
	for _, goroutines := range []int{1, 2, 16} {
		t.Run(strconv.Itoa(goroutines), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.flakyFar(4 * time.Millisecond).registry(lockregistry.WithBackgroundRelease())
				var early atomic.Int32
				done := make([]<-chan error, goroutines)
				for i := range goroutines {
					done[i] = w.goroutine().start(func() error {
						for n := range 50 {
							if w.returnsEarly(r.Obtain(strconv.Itoa(i*1000 + n))) {
								early.Add(1)
							}
						}
						return nil
					})
				}
				for _, ended := range done {
					require.NoError(w, <-ended)
				}
				require.Greater(w, int(early.Load()), goroutines*50/2)
			})
		})
	}
}

// Another master may be further away, or nearer, than the one before.
func TestBackgroundRelease_FollowsTheWay(t *testing.T) {
	fakeWorld(t, func(w *world) {
		dial, away := w.far(100 * time.Microsecond)
		r := w.registryOn(w.clientWith(dial), lockregistry.WithBackgroundRelease())
		w.warm(r)
		l := r.Obtain("42")
		for _, far := range []bool{false, true, false} {
			if away.Set(100 * time.Microsecond); far {
				away.Set(2 * time.Millisecond)
			}
			for range 5 {
				_ = w.returnsEarly(l)
				w.pass(500 * time.Millisecond)
			}
			require.Equal(w, far, w.returnsEarly(l))
		}
	})
}

// Without a queue nothing keeps this process from having the lock for ever but the time between two of its holds: so each call
// waits for the removal. None waits for longer.
func TestBackgroundRelease_WithoutAQueue(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.lock(l)
		for range 100 {
			w.took(0, "unlock", func() { w.unlock(l) })
			w.took(2, "lock", func() { w.lock(l) })
		}
		w.unlock(l)
	}, lockregistry.WithWakeup(lockregistry.WakeupPoll))
}

// The windows in which this process leaves the key to those without a ticket are no sign that others wait: but for the time of
// the windows a section takes one round trip.
func TestBackgroundRelease_OwnWindows(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const trip, within = 5 * time.Millisecond, 5 * time.Second
		listener := w.client()
		listening, stop := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() {
			channel := listener.B().Subscribe().Channel("orders-channel:" + theKey).Build()
			done <- listener.Receive(listening, channel, func(rueidis.PubSubMessage) {})
		}()
		w.settle()
		r := w.flakyFar(trip).registry(lockregistry.WithBackgroundRelease())
		w.warm(r)
		sections, l := 0, r.Obtain("42")
		for begun := time.Now(); time.Since(begun) < within; sections++ {
			w.lock(l)
			w.unlock(l)
		}
		stop()
		require.ErrorIs(w, <-done, context.Canceled)
		require.Greater(w, sections, int(within/trip)*6/10)
	})
}
