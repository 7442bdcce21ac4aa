//go:build !race

package alone_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func followedWorldsAlone(t *testing.T, test func(w *kit.ReplicatedWorld)) {
	t.Helper()
	kit.RealWorldsAlone(t, func(w *kit.World) { test(w.WithReplica()) })
}

// slack is how much later than its limit a call may end.
const slack = 100 * time.Millisecond

// Calls notice that a replica has stopped. WAIT reports only on writes of its own connection, and rueidis runs it on
// connections for blocking commands, which have written before and nothing since.
func TestReplicas_ThatStop(t *testing.T) { // alone: it measures times
	followedWorldsAlone(t, func(w *kit.ReplicatedWorld) {
		client := w.Client()
		require.NoError(w, client.Do(w.Context(), client.B().Wait().Numreplicas(1).Timeout(1000).Build()).Error())
		r := w.RegistryOn(client, lockregistry.WithReplicas(1, kit.ReplicaWait))
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Wait(time.Minute))
		w.Unlock(l)
		w.Replica.Freeze()

		took := make([]time.Duration, 5)
		for i := range took {
			began := time.Now()
			ok, err := l.TryLock(w.Context())
			took[i] = time.Since(began)
			assert.False(w, ok)
			w.Fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
			require.ErrorContains(w, err, "too few replicas have the lock: 0 of 1")
			assert.GreaterOrEqual(w, took[i], kit.ReplicaWait)
			w.AwaitGone("orders:42") // it was released
		}
		assert.Less(w, slices.Min(took), kit.ReplicaWait+slack)

		began := time.Now()
		err := l.Lock(w.Context(), lockregistry.Wait(time.Second))
		w.Fails(err, lockregistry.ErrUnavailable, "lock", "orders:42")
		assert.Less(w, time.Since(began), time.Second+kit.AtOnce)
		w.AwaitGone("orders:42")

		ctx, cancel := context.WithTimeout(w.Context(), kit.ReplicaWait/3)
		defer cancel()
		err = l.Lock(ctx)
		w.Fails(err, context.DeadlineExceeded, "lock", "orders:42", lockregistry.ErrUnavailable)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		w.AwaitGone("orders:42")

		waits := kit.LockElsewhere(l, lockregistry.ContextWithOwner(w.Context()), lockregistry.Wait(time.Minute))
		w.Await("a call waits", func() bool { return w.Do("EXISTS", "orders:42") == "1" })
		w.Replica.Thaw()
		require.NoError(w, <-waits)
		assert.Equal(w, "1", w.Replica.Command(w, "EXISTS", "orders:42"))
	})
}

func TestReplicas_ManyCallsWithReplicas(t *testing.T) { // alone: it measures times
	followedWorldsAlone(t, func(w *kit.ReplicatedWorld) {
		const (
			calls  = 2000
			enough = 1500 * time.Millisecond // if calls waited for each other, that would take two seconds
		)
		all := func(r *lockregistry.Registry, each func(l *lockregistry.Lock)) (longest time.Duration) {
			var running sync.WaitGroup
			var mu sync.Mutex
			for i := range calls {
				l := r.Obtain(strconv.Itoa(i))
				running.Go(func() {
					began := time.Now()
					each(l)
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, took)
				})
			}
			running.Wait()
			return longest
		}
		took := all(w.Registry(lockregistry.WithReplicas(1, 5*time.Second)), func(l *lockregistry.Lock) {
			var ok bool
			err := w.Answer(func() (err error) {
				ok, err = l.TryLock(w.Context())
				return err
			})
			if assert.NoError(w, err) && assert.True(w, ok) {
				// On a busy machine a reply may take longer than Unlock waits for it.
				if err := l.Unlock(w.Context()); err != nil {
					assert.ErrorIs(w, err, lockregistry.ErrUnavailable)
				}
			}
		})
		w.Logf("with a replica that answers the longest call took %v", took)
		w.Replica.Freeze()
		r := w.Registry(lockregistry.WithReplicas(1, time.Second))
		best := time.Hour // of five rounds: the machine may be busy with other things
		for range 5 {
			took = all(r, func(l *lockregistry.Lock) {
				_, err := l.TryLock(w.Context())
				assert.ErrorIs(w, err, lockregistry.ErrUnavailable)
			})
			w.Logf("with one that does not %v", took)
			if best = min(best, took); best < enough {
				break
			}
		}
		assert.Less(w, best, enough)
		w.Replica.Thaw()
		w.LeftNothingSoon()
	})
}
