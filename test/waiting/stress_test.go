package waiting_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Registries, as processes would have them, and goroutines all add one to the same counter, in two steps that only a lock
// makes one.
func TestStress_NoUpdateIsLost(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"default":         nil,
		"polling":         {kit.Polling},
		"without handoff": {lockregistry.WithHandoff(0)},
		"renewal":         {lockregistry.WithRenewal(), lockregistry.WithLease(10 * time.Second)},
		"small cache":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const registries, goroutines, rounds = 4, 6, 12
				client := w.Client()
				read := func() int {
					n, err := client.Do(w.Context(), client.B().Get().Key("counter").Build()).AsInt64()
					if err != nil {
						w.Error(err)
					}
					return int(n)
				}
				write := func(n int) {
					set := client.B().Set().Key("counter").Value(strconv.Itoa(n)).Build()
					if err := client.Do(w.Context(), set).Error(); err != nil {
						w.Error(err)
					}
				}
				write(0)
				var all sync.WaitGroup
				for range registries {
					r := w.Registry(append([]lockregistry.Option{lockregistry.WithPollInterval(2 * time.Millisecond)}, opts...)...)
					if name == "small cache" {
						kit.Capped(r, 1)
					}
					for range goroutines {
						all.Go(func() {
							for range rounds {
								if err := r.Do(w.Context(), "42", func(context.Context) error {
									write(read() + 1)
									return nil
								}); err != nil {
									w.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.Equal(w, registries*goroutines*rounds, read())
				require.True(w, w.Free("orders:42"))
			})
		})
	}
}

// Calls of all kinds at random, with contexts that end at any time, on a network that fails: whoever is told that it has
// the lock has it alone, and in the end nothing is left.
func TestStress_Alone(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const registries, goroutines, rounds = 3, 4, 30
		var inside atomic.Int32
		var acquired, failed atomic.Int32
		flakies := make([]*kit.Flaky, 0, registries)
		var all sync.WaitGroup
		for i := range registries {
			f := w.Flaky()
			flakies = append(flakies, f)
			r := kit.Capped(f.Registry(lockregistry.WithLease(5*time.Second)), 1+i)
			for g := range goroutines {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), uint64(g)))
					upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(random.Int64N(int64(d))) }
					for range rounds {
						<-time.After(upTo(50 * time.Millisecond))
						if random.IntN(4) == 0 {
							fates := []kit.Fate{kit.Cut, kit.CutAfter, kit.Refused(kit.Loading), kit.SlowReply(upTo(200 * time.Millisecond))}
							f.Fates([]string{"obtain", "release", "renew"}[random.IntN(3)], fates[random.IntN(len(fates))])
						}
						ctx := w.Context()
						if random.IntN(2) == 0 {
							ctx = lockregistry.ContextWithOwner(ctx)
						}
						locking, cancel := context.WithTimeout(ctx, upTo(2*time.Second))
						l := r.Obtain("42")
						err := l.Lock(locking)
						cancel()
						r.Obtain(strconv.Itoa(random.IntN(5)))
						if err != nil {
							failed.Add(1)
							continue
						}
						held := l.Context(ctx)
						if n := inside.Add(1); n != 1 && held.Err() == nil {
							w.Errorf("%d at once", n)
						}
						acquired.Add(1)
						select {
						case <-time.After(upTo(50 * time.Millisecond)):
						case <-held.Done():
						}
						inside.Add(-1)
						unlocking, cancel := context.WithTimeout(ctx, upTo(100*time.Millisecond))
						if random.IntN(4) == 0 {
							cancel()
						}
						err = l.Unlock(unlocking)
						cancel()
						if errors.Is(err, lockregistry.ErrNotOwner) {
							w.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		w.Logf("%d acquired, %d failed", acquired.Load(), failed.Load())
		require.Greater(w, acquired.Load(), int32(50))
		for _, f := range flakies {
			f.Forget()
		}
		start := time.Now()
		w.AwaitGone("orders:42")
		require.LessOrEqual(w, time.Since(start), time.Second)
	})
}
