package waiting_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Registries, as several processes would have them, and goroutines all add one to the same counter, in two steps that only a
// lock makes atomic. The second step is refused if the lock has another hold by then. That may happen only if the owner learns
// that its lease was over, as on a very busy machine.
func TestStress_NoUpdateIsLost(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"default":     nil,
		"polling":     {kit.Polling},
		"small cache": nil,
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const registries, goroutines, rounds = 4, 6, 12
				count := counter{w, w.Client()}
				var all sync.WaitGroup
				var want atomic.Int64
				for range registries {
					r := w.Registry(append([]lockregistry.Option{lockregistry.WithPollInterval(2 * time.Millisecond)}, opts...)...)
					if name == "small cache" {
						kit.Capped(r, 1)
					}
					for range goroutines {
						all.Go(func() {
							for range rounds {
								written := false
								err := r.Do(w.Context(), "42", func(context.Context) error {
									written = count.add()
									return nil
								})
								if written {
									want.Add(1)
								}
								if err != nil && !kit.TookLong(err) && !kit.LeaseOver(err) || err == nil && !written {
									w.Error("written:", written, err)
								}
							}
						})
					}
				}
				all.Wait()
				value, _ := count.read()
				require.Equal(w, want.Load(), value)
				w.AwaitGone(kit.TheKey)
			})
		})
	}
}

// counter is a number in Redis that a lock protects.
type counter struct {
	*kit.World
	client rueidis.Client
}

func (c counter) read() (value int64, holder string) {
	reply, err := c.client.Do(c.Context(), c.client.B().Mget().Key("{orders:42}:counter", kit.TheKey).Build()).AsStrSlice()
	if err != nil {
		c.Error(err)
		return 0, ""
	}
	value, _ = strconv.ParseInt(reply[0], 10, 64) // at first there is none
	return value, strings.TrimSuffix(reply[1], "+")
}

// add adds one, in two steps, unless another hold has the lock by the second step.
func (c counter) add() bool {
	const script = `local holder = redis.call('GET', KEYS[2])
		if not holder or string.gsub(holder, '%+$', '') ~= ARGV[2] then return 0 end
		redis.call('SET', KEYS[1], ARGV[1])
		return 1`
	value, holder := c.read()
	written, err := c.client.Do(c.Context(), c.client.B().Eval().Script(script).Numkeys(2).Key("{orders:42}:counter", kit.TheKey).
		Arg(strconv.FormatInt(value+1, 10), holder).Build()).AsBool()
	if err != nil {
		c.Error(err)
	}
	return written
}

// Calls of all kinds at random, with contexts that end at any time, on a network that fails: a caller that is told that it has
// the lock has it alone, and in the end nothing is left.
func TestStress_Alone(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const registries, goroutines, rounds = 3, 4, 15
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
