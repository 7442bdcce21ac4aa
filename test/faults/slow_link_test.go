package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Calls whose contexts end before the reply do not disturb other calls, for the same paths or others.
func TestSlowLink_ShortContextsOnASlowLink(t *testing.T) {
	t.Parallel()
	contexts := []time.Duration{40 * time.Millisecond, 160 * time.Millisecond, 410 * time.Millisecond, 2 * time.Second}
	for i, short := range contexts {
		for j, trip := range kit.RoundTrips {
			if (i+j)%2 == 1 {
				continue // each context runs with shorter and longer trips, each trip with shorter and longer contexts
			}
			contended := (i+j)/2%2 == 1 // each context and each round trip runs with both
			t.Run(fmt.Sprintf("contended %v, contexts of %v, %v", contended, short, trip), func(t *testing.T) {
				kit.AtRoundTrip(t, trip, func(w *kit.World, registry func(...lockregistry.Option) *lockregistry.Registry) {
					r := registry(lockregistry.WithLease(20*time.Second), lockregistry.WithRenewal())
					w.Loaded("spring") // the first time a script is sent, it takes one more round trip
					w.KnownWell(r)
					end := time.Now().Add(2*time.Second + 4*trip)
					var all sync.WaitGroup
					var got atomic.Int32
					for i := range 3 {
						all.Go(func() { unhurried(w, r.Obtain(strconv.Itoa(i)), trip, end, contended, &got) })
						path := "other" + strconv.Itoa(i)
						if contended {
							path = strconv.Itoa(i)
						}
						all.Go(func() { hurried(w, r.Obtain(path), short, end) })
					}
					all.Wait()
					require.Positive(w, got.Load())
					w.Pass(90 * time.Second)
					w.LeftNothing()
				})
			})
		}
	}
}

// unhurried locks and unlocks with calls without a limit.
func unhurried(w *kit.World, l *lockregistry.Lock, trip time.Duration, end time.Time, contended bool, got *atomic.Int32) {
	for time.Now().Before(end) {
		ctx := lockregistry.ContextWithOwner(w.Context())
		begun := time.Now()
		ok, err := l.TryLock(ctx)
		if err != nil || !ok && !contended || time.Since(begun) > 2*trip+100*time.Millisecond {
			w.Errorf("TryLock: %v, %v after %v", ok, err, time.Since(begun))
		}
		if ok {
			got.Add(1)
			begun = time.Now()
			if err := l.Unlock(ctx); err != nil || time.Since(begun) > 2*trip+100*time.Millisecond {
				w.Errorf("Unlock: %v after %v", err, time.Since(begun))
			}
		}
		<-time.After(50 * time.Millisecond)
	}
}

// hurried does so with contexts that end soon.
func hurried(w *kit.World, l *lockregistry.Lock, short time.Duration, end time.Time) {
	for time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(lockregistry.ContextWithOwner(w.Context()), short)
		begun := time.Now()
		err := l.Lock(ctx)
		took := time.Since(begun)
		if err == nil {
			_ = l.Unlock(ctx)
		} else if !errors.Is(err, context.DeadlineExceeded) || took != short {
			w.Errorf("Lock failed after %v: %v", took, err)
		}
		cancel()
		<-time.After(70 * time.Millisecond)
	}
}

// A call that could not get its reply in time sends nothing, and says nothing about the lock.
func TestSlowLink_ACallThatIsShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry()
		ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
		defer cancel()
		begun := time.Now()
		ok, err := r.Obtain("42").TryLock(ctx)
		require.False(w, ok)
		w.Fails(err, lockregistry.ErrUnavailable, "trylock", kit.TheKey, context.DeadlineExceeded)
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Equal(w, trip*9/10, time.Since(begun))
		w.Pass(2 * trip)
		require.Equal(w, "0", w.Keys(), "nothing was sent")
	})
}

func TestSlowLink_ALeaseThatIsTooShortForTheLink(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		l := registry().Obtain("42")
		begun := time.Now()
		err := l.Lock(w.Context(), lockregistry.Lease(6*trip-time.Millisecond))
		require.Error(w, err)
		require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
		require.ErrorContains(w, err, "a lease of")
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Zero(w, time.Since(begun))
		w.Lock(l, lockregistry.Lease(6*trip+10*time.Millisecond))
		w.Unlock(l)
	})
}

// Nor does a hold get such a lease by Renew, by a nested Lock, or when it is handed over.
func TestRenew_ALeaseThatIsTooShortForTheLink(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry(lockregistry.WithHandoff(time.Hour))
		l, short, enough := r.Obtain("42"), 6*trip-time.Millisecond, 7*trip
		h, err := r.AcquireAll(w.Context(), []string{"43", "44"}, lockregistry.Lease(time.Minute))
		require.NoError(w, err)
		w.Lock(l, lockregistry.Lease(enough))
		begun := time.Now()
		refused := func(err error) {
			w.Helper()
			require.ErrorContains(w, err, "a lease of")
			require.ErrorContains(w, err, "a round trip to Redis takes")
			require.Empty(w, kit.SentinelsOf(err))
		}
		refused(l.Renew(w.Context(), short))
		refused(l.Lock(w.Context(), lockregistry.Lease(short)))
		refused(h.Renew(w.Context(), short))
		require.Zero(w, time.Since(begun))
		require.True(w, l.IsHeld())
		handed := w.Goroutine().Starts(l, lockregistry.Lease(short))
		w.Settle()
		w.Unlock(l)
		refused(<-handed)
		require.Equal(w, uint64(1), r.Stats().Handoffs)
		w.Lock(l, lockregistry.Lease(time.Minute))
		require.NoError(w, l.Renew(w.Context(), enough))
		w.Unlock(l)
		w.Release(h)
		w.Pass(2 * trip)
		w.LeftNothing()
	})
}

// On a slow link holds are renewed and unlocked.
func TestSlowLink_RenewalOnASlowLink(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		lease := max(6*trip+10*time.Millisecond, 100*time.Millisecond)
		r := registry(lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(lease))
		alive := l.Context(w.Context())
		w.Pass(20 * lease)
		require.NoError(w, alive.Err())
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.Unlock(l)
		w.Pass(2 * trip)
		w.LeftNothing()
	})
}

// On a slow link the lock goes from process to process.
func TestSlowLink_OnASlowLink(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		const processes, each = 3, 4
		w.WithQueues()
		var inside, entered atomic.Int32
		var all sync.WaitGroup
		locks := make([]*lockregistry.Lock, processes)
		for i := range locks {
			locks[i] = registry(lockregistry.WithLease(30*time.Second), lockregistry.WithRenewal()).Obtain("42")
		}
		begun := time.Now()
		for _, l := range locks {
			all.Go(func() {
				for range each {
					ctx := lockregistry.ContextWithOwner(w.Context())
					if err := l.Lock(ctx); err != nil {
						w.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						w.Error("two are inside")
					}
					<-time.After(10 * time.Millisecond)
					inside.Add(-1)
					entered.Add(1)
					if err := w.UnlessLate(l.Unlock(ctx)); err != nil {
						w.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.EqualValues(w, processes*each, entered.Load())
		w.Logf("%v a section at %v", time.Since(begun)/(processes*each), trip)
	})
}

// When the round trip becomes long, the library learns that within a few round trips; waiting calls get through meanwhile. No
// call is slow after that. A client that has not made all its connections yet may make one more later: such a call takes two
// more round trips, which is not taken for silence.
func TestSlowLink_ALinkThatBecomesSlow(t *testing.T) {
	t.Parallel()
	// The longest trip whose commands are not late, and the longest of all. Finding a client with one connection takes most of the
	// time.
	for _, trip := range []time.Duration{400 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				d, r := halfConnected(w)
				held := r.Obtain("held")
				w.Lock(held)
				alive := held.Context(w.Context())
				d.Set(trip)
				begun := time.Now()
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Wait(time.Minute))
				require.Less(w, time.Since(begun), 4*time.Second+6*trip)
				if err := l.Unlock(w.Context()); err != nil { // it waits for a second, and may need a connection
					w.Unavailable(err, "unlock")
				}
				w.Lock(l, lockregistry.Wait(time.Minute))
				if err := l.Unlock(w.Context()); err != nil {
					w.Unavailable(err, "unlock")
				}
				w.Pass(4 * trip) // until a late removal is over
				for range 2 {
					for range 20 {
						begun = time.Now()
						ok, err := l.TryLock(w.Context())
						require.NoError(w, err)
						require.True(w, ok)
						w.Unlock(l)
						require.Less(w, time.Since(begun), 4*trip+100*time.Millisecond)
					}
					w.Pass(time.Minute)
				}
				require.NoError(w, alive.Err())
				w.Unlock(held)
			})
		})
	}
}

// halfConnected returns a registry that knows how near its server is, whose client has made one of its two connections, and
// what moves the server away. Commands choose a connection at random: if both were used, it starts again.
func halfConnected(w *kit.World) (*redistest.Distance, *lockregistry.Registry) {
	w.Helper()
	w.Loaded("spring")
	two := func(o *rueidis.ClientOption) { o.PipelineMultiplex = 1 }
	for range 1000 {
		var made atomic.Int32
		dial, d := w.Far(time.Millisecond)
		client := w.ClientWith(func(ctx context.Context) (net.Conn, error) {
			made.Add(1)
			return dial(ctx)
		}, two)
		r := w.RegistryOn(client, lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		l := r.Obtain("known")
		w.Lock(l)
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.Unlock(l)
		if made.Load() == 1 {
			return d, r
		}
		require.NoError(w, r.Close())
		client.Close()
	}
	w.Fatal("each client has made all connections")
	return nil, nil
}

// Calls that are under way when the round trip becomes long are late, and are confirmed.
func TestLock_UnderWayWhenTheLinkBecomesSlow(t *testing.T) {
	t.Parallel()
	for _, trip := range append(slices.Clone(kit.RoundTrips), 300*time.Millisecond, 600*time.Millisecond, 800*time.Millisecond) {
		t.Run(trip.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, d := w.Far(time.Millisecond)
				r := w.RegistryOn(w.ClientWith(dial), lockregistry.WithLease(30*time.Second))
				w.Known(r)
				d.Set(trip)
				start := time.Now()
				var all sync.WaitGroup
				for i := range 40 {
					l := r.Obtain(strconv.Itoa(i))
					all.Go(func() {
						w.Pass(time.Duration(i) * 50 * time.Millisecond)
						begun := time.Now()
						if ok, err := l.TryLock(w.Context()); err != nil || !ok {
							w.Errorf("TryLock: %v, %v from %v to %v", ok, err, begun.Sub(start), time.Since(start))
						}
					})
				}
				all.Wait()
				w.Logf("after %v", time.Since(start))
			})
		})
	}
}

// A call that does not wait comes behind a goroutine whose first try suddenly takes long. It learns that the lock is taken: a
// reply that is not late is no outage.
func TestTryLock_BehindAFirstTryWhenTheLinkBecomesSlow(t *testing.T) {
	for _, trip := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, d := w.Far(time.Millisecond)
				// Each command chooses a connection at random: a missing one would be made over the slow link.
				r := w.RegistryOn(w.ClientWith(dial, kit.OneConnection), lockregistry.WithLease(30*time.Second))
				w.Known(r)
				l, g := r.Obtain("42"), w.Goroutine()
				d.Set(trip)
				takenUntilLocked(w, l, g, trip/20)
			})
		})
	}
}

// takenUntilLocked has a goroutine lock, and checks that until then a call that does not wait learns that the lock is taken.
func takenUntilLocked(w *kit.World, l *lockregistry.Lock, g *kit.Goroutine, pause time.Duration) {
	w.Helper()
	begun, locked := time.Now(), g.Starts(l)
	for w.Settle(); len(locked) == 0; w.Pass(pause) {
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err, "after %v", time.Since(begun))
		require.False(w, ok)
	}
	require.NoError(w, <-locked)
	require.NoError(w, g.Unlock(l))
}

// The same at the start, when the round trip is not known.
func TestTryLock_BehindAFirstTryAtTheStart(t *testing.T) {
	for _, trip := range []time.Duration{150 * time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, _ := w.Far(trip)
				l, g := w.RegistryOn(w.ClientWith(dial, kit.OneConnection)).Obtain("42"), w.Goroutine()
				takenUntilLocked(w, l, g, trip/20)
			})
		})
	}
}

// The same when the other goroutine's Unlock has given up because its own context ended: until its reply would be late, others
// learn that the lock is taken, and then that it is free. A call that fails fast keeps waiting.
func TestTryLock_BehindAnUnlockThatHasGivenUp(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{150 * time.Millisecond, 200 * time.Millisecond, 350 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			behindAnUnlock(t, func(w *kit.World, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
				d.Set(trip)
				unlocks()
				begun := time.Now()
				for got := false; !got; w.Pass(trip / 20) {
					ok, err := l.TryLock(w.Context())
					require.NoError(w, err, "after %v", time.Since(begun))
					require.Less(w, time.Since(begun), 3*trip)
					got = ok
				}
				w.Unlock(l)
			})
		})
		t.Run(trip.String()+", FailFast", func(t *testing.T) {
			behindAnUnlock(t, func(w *kit.World, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
				d.Set(trip)
				locked := w.Goroutine().Starts(l, kit.FailFastOptions...)
				w.Settle()
				unlocks()
				require.NoError(w, <-locked)
			})
		})
	}
	t.Run("silent", func(t *testing.T) {
		behindAnUnlock(t, func(w *kit.World, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
			d.Set(time.Minute)
			begun := time.Now()
			unlocks()
			for w.Pass(time.Millisecond); time.Since(begun) < 500*time.Millisecond; w.Pass(10 * time.Millisecond) {
				ok, err := l.TryLock(w.Context())
				require.NoError(w, err, "after %v", time.Since(begun))
				require.False(w, ok)
			}
			w.Pass(10 * time.Millisecond)
			_, err := l.TryLock(w.Context())
			w.Unavailable(err, "trylock")
			w.Unavailable(l.Lock(w.Context(), kit.FailFastOptions...), "lock")
			require.Less(w, time.Since(begun), 700*time.Millisecond)
			d.Set(time.Millisecond)
			w.Pass(3 * time.Minute)
		})
	})
}

// behindAnUnlock runs a test in fake time with a lock of another goroutine, whose Unlock returns before its reply once the
// server is farther away.
func behindAnUnlock(t *testing.T, test func(w *kit.World, l *lockregistry.Lock, d *redistest.Distance, unlocks func())) {
	t.Helper()
	kit.FakeWorld(t, func(w *kit.World) {
		dial, d := w.Far(time.Millisecond)
		client := w.ClientWith(dial)
		w.Connected(client)
		r := w.RegistryOn(client, lockregistry.WithHandoff(0), lockregistry.WithLease(30*time.Second))
		w.KnownWell(r)
		l, g := r.Obtain("42"), w.Goroutine()
		require.NoError(w, g.Lock(l))
		test(w, l, d, func() {
			w.Helper()
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			w.Unavailable(g.Do(func() error { return l.Unlock(ctx) }), "unlock")
		})
	})
}

// lateWorld runs a test in fake time with a registry that has just learned how near its server is.
func lateWorld(t *testing.T, test func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry)) {
	t.Helper()
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		test(w, f, r)
	})
}

// If a server was late to say that a lock is taken, it is asked again, unless a more thorough try follows anyway.
func TestLock_TakenByALateAnswer(t *testing.T) {
	t.Parallel()
	for name, this := range map[string]struct {
		fates []kit.Fate
		tries int
		call  func(w *kit.World, r *lockregistry.Registry) error
	}{
		"TryLock":                {[]kit.Fate{kit.Delivered, kit.SlowReply(kit.LateAfter)}, 3, (*kit.World).FindsTaken},
		"TryLock, the first try": {[]kit.Fate{kit.SlowReply(kit.LateAfter)}, 2, (*kit.World).FindsTaken},
		"AcquireAll": {[]kit.Fate{kit.SlowReply(kit.LateAfter)}, 2, func(w *kit.World, r *lockregistry.Registry) error {
			_, err := r.AcquireAll(w.Context(), []string{"41", "42"}, lockregistry.NoWait())
			w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lateWorld(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				other := w.Registry().Obtain("42")
				w.Lock(other, lockregistry.Lease(time.Hour))
				require.NoError(w, this.call(w, r)) // so that the server knows the script
				w.Known(r)
				before := f.Count("obtain")
				f.Fates("obtain", this.fates...)
				start := time.Now()
				require.NoError(w, this.call(w, r))
				require.Equal(w, kit.LateAfter, time.Since(start))
				require.Equal(w, this.tries, f.Count("obtain")-before)
				require.True(w, w.Free("orders:41"))
				w.Unlock(other)
			})
		})
	}
}

// A call that does not wait may get the lock after a late reply that it was taken. Then nothing that it has sent is removed.
func TestLock_FreeAfterALateAnswer(t *testing.T) {
	lateWorld(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
		other := w.Registry().Obtain("42")
		w.Lock(other, lockregistry.Lease(time.Hour))
		require.NoError(w, w.FindsTaken(r)) // so that the server knows the script
		w.Known(r)
		f.Fates("obtain", kit.Delivered, kit.SlowReply(kit.LateAfter))
		ctx := lockregistry.ContextWithOwner(w.Context())
		got := make(chan error)
		go func() {
			ok, err := r.Obtain("42").TryLock(ctx, lockregistry.Lease(time.Hour))
			if err == nil && !ok {
				err = lockregistry.ErrTaken
			}
			got <- err
		}()
		w.Pass(kit.LateAfter / 2)
		w.Unlock(other)
		require.NoError(w, <-got)
		w.Pass(time.Minute)
		require.False(w, w.Free(kit.TheKey), "it is held")
		w.Released(r.Obtain("42").Unlock(ctx))
	})
}

// AcquireAll also confirms what a server granted late.
func TestAcquireAll_ALateGrantIsConfirmed(t *testing.T) {
	lateWorld(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
		renewals := f.Count("renew")
		f.Fates("obtain", kit.SlowReply(kit.LateAfter))
		start := time.Now()
		h, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait(), lockregistry.Lease(10*time.Second))
		require.NoError(w, err)
		require.Equal(w, kit.LateAfter, time.Since(start))
		require.Equal(w, 2, f.Count("renew")-renewals)
		require.Equal(w, 10*time.Second, w.Pttl("orders:a"), "it counts from then")
		w.Release(h)
		w.AwaitGone("orders:a")
		w.AwaitGone("orders:b")
	})
}

// If the confirmation fails, it has none of the paths.
func TestAcquireAll_ALateGrantThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{
		"the key is another's": {Lost: true, Reply: ":0\r\n"}, "no answer": kit.Silence, "refused": kit.Refused(kit.Loading),
	} {
		t.Run(name, func(t *testing.T) {
			lateWorld(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				f.Fates("obtain", kit.SlowReply(kit.LateAfter))
				f.Fates("renew", what)
				_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait(), lockregistry.Lease(time.Hour))
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				w.AwaitGone("orders:a")
				w.AwaitGone("orders:b")
			})
		})
	}
}

// If a call's context ends while it confirms, its time is over, and the error says so.
func TestAcquireAll_EndsWhileItConfirms(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *lockregistry.Registry) error{
		"AcquireAll": func(ctx context.Context, r *lockregistry.Registry) error {
			_, err := r.AcquireAll(ctx, []string{"a", "b"}, lockregistry.NoWait())
			return err
		},
		"TryLock": func(ctx context.Context, r *lockregistry.Registry) error {
			_, err := r.Obtain("a").TryLock(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			lateWorld(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				f.Fates("obtain", kit.SlowReply(kit.LateAfter))
				f.Fate("renew", kit.Silence)
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				start := time.Now()
				err := call(ctx, r)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				require.Equal(w, time.Second, time.Since(start))
				w.AwaitGone("orders:a")
				w.AwaitGone("orders:b")
			})
		})
	}
}

// A call that could not get its reply in time sends nothing.
func TestAcquireAll_ShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry()
		for _, opts := range [][]lockregistry.AcquireOption{nil, {lockregistry.NoWait()}} {
			ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
			begun := time.Now()
			_, err := r.AcquireAll(ctx, []string{"42", "43"}, opts...)
			w.Fails(err, lockregistry.ErrUnavailable, "acquire", kit.TheKey, context.DeadlineExceeded)
			require.ErrorContains(w, err, "a round trip to Redis takes")
			require.Equal(w, trip*9/10, time.Since(begun))
			cancel()
		}
		w.Pass(2 * trip)
		require.Equal(w, "0", w.Keys(), "nothing was sent")
	})
}

func TestRenew_ShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		l := registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(time.Minute))
		ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
		defer cancel()
		begun := time.Now()
		err := l.Renew(ctx, time.Hour)
		w.Fails(err, lockregistry.ErrUnavailable, "renew", kit.TheKey, context.DeadlineExceeded)
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Equal(w, trip*9/10, time.Since(begun))
		w.Pass(2 * trip)
		require.Less(w, w.Pttl(kit.TheKey), time.Minute, "nothing was sent")
		require.True(w, l.IsHeld())
		w.Unlock(l)
	})
}

// A lock that is unlocked while Renew waits for its context to end was not lost.
func TestRenew_UnlockBeforeItsEnd(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		l, owner := registry().Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, l.Lock(owner))
		ctx, cancel := context.WithTimeout(owner, trip*9/10)
		defer cancel()
		renewed := w.Goroutine().Start(func() error { return l.Renew(ctx, time.Hour) })
		w.Settle()
		require.NoError(w, l.Unlock(owner))
		w.Fails(<-renewed, lockregistry.ErrNotOwner, "renew", kit.TheKey, context.DeadlineExceeded)
	})
}

// Renew keeps asking for as long as replies are late.
func TestRenew_WhenTheLinkBecomesSlow(t *testing.T) {
	t.Parallel()
	for _, trip := range kit.RoundTrips {
		t.Run(trip.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, d := w.Far(time.Millisecond)
				r := w.RegistryOn(w.ClientWith(dial))
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(time.Minute))
				d.Set(trip)
				require.NoError(w, l.Renew(w.Context(), time.Hour))
				require.Greater(w, w.Pttl(kit.TheKey), time.Minute)
				w.Pass(time.Minute)
				w.Unlock(l)
			})
		})
	}
}

// Calls that are not sent because the server is far away notice when it is near again.
func TestLock_AServerThatIsNearAgain(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(w *kit.World, l *lockregistry.Lock) error{
		"a lease that is too short": func(w *kit.World, l *lockregistry.Lock) error {
			_, err := l.TryLock(w.Context(), lockregistry.Lease(time.Second))
			return err
		},
		"a context that is too short": func(w *kit.World, l *lockregistry.Lock) error {
			ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.TryLock(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, d := w.Far(300 * time.Millisecond)
				r := w.RegistryOn(w.ClientWith(dial))
				w.Known(r)
				l := r.Obtain("42")
				require.Error(w, try(w, l))
				require.Error(w, try(w, l))
				d.Set(time.Millisecond)
				begun := time.Now()
				for try(w, l) != nil {
					require.Less(w, time.Since(begun), 2*time.Second)
					w.Pass(10 * time.Millisecond)
				}
				w.Unlock(l)
			})
		})
	}
}

// A server becomes so slow that a hold's lease is too short for it. A call that is handed the hold gives it back. It waits for
// that no longer than for a reply under way when its time is over, and no observer is told that it had the lock.
func TestLock_HandedOverForTooShortALease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const (
			trip  = 300 * time.Millisecond
			lease = 1500 * time.Millisecond // five round trips, and six are needed
			wait  = 200 * time.Millisecond
		)
		dial, d := w.Far(time.Millisecond)
		o := w.Witness()
		r := w.RegistryOn(w.ClientWith(dial), o.Option(), lockregistry.WithHandoff(time.Hour))
		w.Known(r)
		l, other := r.Obtain("42"), r.Obtain("other")
		h := w.Acquires(l, lockregistry.Lease(lease))
		d.Set(trip)
		w.Lock(other)
		w.Unlock(other)
		require.NoError(w, h.Renew(w.Context(), lease))
		for len(o.Released) > 0 {
			<-o.Released
		}
		result := make(chan error, 1)
		begun := time.Now()
		go func() { result <- l.Lock(w.Context(), lockregistry.Lease(lease), lockregistry.Wait(wait)) }()
		w.Pass(wait - time.Millisecond)
		d.Set(5 * time.Second)
		w.Release(h)
		require.ErrorContains(w, <-result, "a lease of 1.5s is too short")
		require.LessOrEqual(w, time.Since(begun), wait+250*time.Millisecond+2*trip)
		require.Equal(w, observe.EndHandedOver, (<-o.Released).How)
		require.Empty(w, o.Released)
	})
}

// A handoff takes as long as its round trips, whatever the waiting call does when the lock is released: half of one to the
// server, half of one for the message, one for what the call asks at that moment, and one to lengthen the lease.
func TestSlowLink_GrantsFromFarAwayAreTaken(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		w.WithQueues()
		a, b := registry(lockregistry.WithRenewal()), registry(lockregistry.WithRenewal())
		w.Known(a)
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				first, second := lockregistry.ContextWithOwner(w.Context()), lockregistry.ContextWithOwner(w.Context())
				path := "path " + strconv.Itoa(i)
				mine, other := a.Obtain(path), b.Obtain(path)
				if err := mine.Lock(first); err != nil {
					w.Error(err)
					return
				}
				waits := make(chan error, 1)
				var entered time.Time
				go func() {
					err := other.Lock(second)
					entered = time.Now()
					waits <- err
				}()
				<-time.After(8*trip + time.Duration(i)*trip/8)
				released := time.Now()
				if err := mine.Unlock(first); err != nil {
					w.Error(err)
				}
				if err := <-waits; err != nil || entered.Sub(released) > 3*trip+20*time.Millisecond {
					w.Errorf("path %d: %v after %v", i, err, entered.Sub(released))
				}
				<-time.After(9 * time.Second)
				if err := other.Unlock(second); err != nil {
					w.Errorf("path %d: %v", i, err)
				}
			})
		}
		all.Wait()
		w.Pass(2 * trip)
		w.LeftNothing()
	})
}

// An Unlock that is under way has more time if other calls find that the round trip has become longer.
func TestUnlock_WhenTheLinkBecomesSlow(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const trip = 330 * time.Millisecond
		dial, d := w.Far(time.Millisecond)
		r := w.RegistryOn(w.ClientWith(dial))
		w.Known(r)
		l, other := r.Obtain("42"), r.Obtain("43")
		w.Lock(l, lockregistry.Lease(900*time.Millisecond)) // a reply after a third of it is late
		d.Set(trip)
		begun := time.Now()
		learns := w.Goroutine().Start(func() error {
			for ctx := w.Context(); time.Since(begun) < 3*trip; {
				if err := other.Lock(ctx); err != nil {
					return err
				}
				if err := other.Unlock(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		w.Unlock(l)
		require.Greater(w, time.Since(begun), time.Second+10*time.Millisecond)
		require.NoError(w, <-learns)
	})
}

// A command may take two round trips longer by default, but no longer than its caller has set.
func TestSlowLink_LimitOfACommand(t *testing.T) {
	t.Parallel()
	const set = 7 * time.Second
	for _, trip := range []time.Duration{kit.RoundTrips[0], kit.RoundTrips[len(kit.RoundTrips)-1]} {
		for limit, opts := range map[time.Duration][]lockregistry.Option{
			5*time.Second + 2*trip: nil,
			set:                    {lockregistry.WithCommandTimeout(set)}, // whatever the round trip
		} {
			t.Run(fmt.Sprint(trip, " ", limit), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					dial, d := w.Far(trip)
					client := w.ClientWith(dial)
					w.Connected(client)
					r := w.RegistryOn(client, opts...)
					w.KnownWell(r)
					d.Set(20 * time.Second)
					defer func() {
						d.Set(0)
						w.Pass(20 * time.Second)
					}()
					begun := time.Now()
					w.Unavailable(r.Obtain("42").Lock(w.Context()), "lock")
					require.Equal(w, limit, time.Since(begun))
				})
			})
		}
	}
}

// Errors say that a server is farther away than is supported.
func TestLock_AServerThatIsTooFarAway(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		dial, d := w.Far(time.Millisecond)
		r := w.RegistryOn(w.ClientWith(dial), lockregistry.WithCommandTimeout(2*time.Second))
		w.Known(r)
		l := r.Obtain("42")
		const text = "; a round trip to Redis takes 1s or more, which is not supported"
		d.Set(3 * time.Second)
		_, err := l.TryLock(w.Context())
		w.Unavailable(err, "trylock")
		require.NotContains(w, err.Error(), text, "it is not known yet")
		w.Pass(15 * time.Second)
		_, err = l.TryLock(w.Context())
		w.Unavailable(err, "trylock")
		require.ErrorContains(w, err, text)
		d.Set(time.Millisecond)
		w.Pass(3 * time.Minute)
		w.Known(r)
		d.Set(time.Minute)
		_, err = l.TryLock(w.Context())
		w.Unavailable(err, "trylock")
		require.NotContains(w, err.Error(), text, "it is silent")
		d.Set(time.Millisecond)
		w.Pass(3 * time.Minute)
	})
}

// The connection for wake-ups can be made on a slow link, and wakes waiting calls.
func TestWakeup_OnASlowLink(t *testing.T) {
	t.Parallel()
	kit.EachRoundTrip(t, func(w *kit.World, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		poll := lockregistry.WithPollInterval(time.Hour)
		held, l := registry(poll).Obtain("42"), registry(poll).Obtain("42")
		w.Lock(held, lockregistry.Lease(10*time.Minute))
		locked := w.Goroutine().Starts(l)
		w.Pass(20 * trip)
		w.Pending(locked)
		begun := time.Now()
		w.Unlock(held)
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(begun), 3*trip+100*time.Millisecond)
	})
}

// A connection that is not made in time is given up, and the next one is made.
func TestWakeup_AConnectionThatIsNotMade(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(context.Context) (net.Conn, error){
		"it is not accepted": func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, context.DeadlineExceeded
		},
		"HELLO is not answered": func(context.Context) (net.Conn, error) {
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			return client, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				const trip = 100 * time.Millisecond
				near, _ := w.Far(trip)
				var hangs atomic.Bool
				poll := lockregistry.WithPollInterval(time.Hour)
				held, r := w.Registry(poll).Obtain("42"), w.RegistryOn(w.ClientWith(func(ctx context.Context) (net.Conn, error) {
					if hangs.CompareAndSwap(true, false) {
						return hang(ctx)
					}
					return near(ctx)
				}), poll)
				w.Known(r)
				w.Lock(held, lockregistry.Lease(10*time.Minute))
				hangs.Store(true)
				locked := w.Goroutine().Starts(r.Obtain("42"))
				w.Pass(time.Second + 20*trip)
				w.Pending(locked)
				require.False(w, hangs.Load())
				begun := time.Now()
				w.Unlock(held)
				require.NoError(w, <-locked)
				require.LessOrEqual(w, time.Since(begun), 3*trip+100*time.Millisecond)
			})
		})
	}
}
