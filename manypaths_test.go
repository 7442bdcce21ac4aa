package lockregistry_test

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Goroutines enough for their commands to go together lock a path each, and now and then one that another shares, while the
// server forgets its scripts and closes connections. Nobody is inside with another, and nothing is left behind.
func TestLock_ManyPathsAtOnce(t *testing.T) {
	realWorlds(t, func(w *world) {
		const goroutines, shared, rounds = 200, 20, 15
		client := w.client()
		registries := []*lockregistry.Registry{w.registryOn(client), w.registryOn(client)}
		var inside [shared]atomic.Int32
		var all, began sync.WaitGroup
		began.Add(goroutines)
		var failed atomic.Int32
		for g := range goroutines {
			r := registries[g%len(registries)]
			own, other := r.Obtain("own"+strconv.Itoa(g)), r.Obtain("shared"+strconv.Itoa(g/2%shared))
			all.Go(func() {
				for n := range rounds {
					l, crowd := own, (*atomic.Int32)(nil)
					if n%10 == g%10 {
						l, crowd = other, &inside[g/2%shared]
					}
					err := l.Lock(w.Context())
					if err == nil {
						if crowd != nil && crowd.Add(1) != 1 {
							w.Error("two are inside")
						}
						if crowd != nil {
							crowd.Add(-1)
						}
						err = l.Unlock(w.Context())
					}
					if err != nil {
						failed.Add(1)
						if !errors.Is(err, lockregistry.ErrUnavailable) {
							w.Error(err)
						}
					}
					if n == 0 {
						began.Done()
					}
				}
			})
		}
		began.Wait()
		w.do("SCRIPT", "FLUSH")
		w.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		w.do("SCRIPT", "FLUSH")
		all.Wait()
		w.Logf("%d calls failed", failed.Load())
		require.Less(w, failed.Load(), int32(goroutines*rounds/2))
		w.await("no lock is left", func() bool {
			return w.do("EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "orders:[os]*") == "0"
		})
	})
}
