package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A slow link is no outage: calls fail by their own ends only, however long a round trip takes, up to a second.

// far returns what dials the server of a world from so far away.
func (w *world) far(trip time.Duration) (dial func(context.Context) (net.Conn, error), d *redistest.Distance) {
	d = redistest.NewDistance(trip)
	return func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, w.dial) }, d
}

var trips = []time.Duration{
	time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond,
}

// eachTrip runs a test in fake time with a registry that knows how far away its server is.
func eachTrip(
	t *testing.T, test func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry),
) {
	t.Helper()
	for _, trip := range trips {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				test(w, trip, func(opts ...lockregistry.Option) *lockregistry.Registry {
					dial, _ := w.far(trip)
					r := w.registryOn(w.clientWith(dial), opts...)
					w.known(r)
					return r
				})
			})
		})
	}
}

// Calls that their contexts end before they are answered do not disturb the others, of the same paths or not.
func TestSlowLink_ShortContextsOnASlowLink(t *testing.T) {
	t.Parallel()
	for _, contended := range []bool{false, true} {
		for _, short := range []time.Duration{40 * time.Millisecond, 160 * time.Millisecond, 410 * time.Millisecond, 2 * time.Second} {
			t.Run(fmt.Sprintf("contended %v, contexts of %v", contended, short), func(t *testing.T) {
				eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
					r := registry(lockregistry.WithLease(20*time.Second), lockregistry.WithRenewal())
					w.loaded("spring") // a script that is sent for the first time takes a round trip more
					for range 32 {     // then each of the client's connections is made, which takes two round trips more
						w.lock(r.Obtain("42"))
						w.unlock(r.Obtain("42"))
					}
					end := time.Now().Add(6 * time.Second)
					var all sync.WaitGroup
					var got atomic.Int32
					for i := range 3 {
						all.Go(func() { w.unhurried(r.Obtain(strconv.Itoa(i)), trip, end, contended, &got) })
						path := "other" + strconv.Itoa(i)
						if contended {
							path = strconv.Itoa(i)
						}
						all.Go(func() { w.hurried(r.Obtain(path), short, end) })
					}
					all.Wait()
					require.Positive(w, got.Load())
					w.pass(90 * time.Second)
					w.leftNothing()
				})
			})
		}
	}
}

// unhurried locks and unlocks by calls that nothing ends.
func (w *world) unhurried(l *lockregistry.Lock, trip time.Duration, end time.Time, contended bool, got *atomic.Int32) {
	for time.Now().Before(end) {
		ctx := lockregistry.NewOwner(w.Context())
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
func (w *world) hurried(l *lockregistry.Lock, short time.Duration, end time.Time) {
	for time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(lockregistry.NewOwner(w.Context()), short)
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

// A call that could not have its answer in time sends nothing, and says nothing about the lock.
func TestSlowLink_ACallThatIsShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry()
		ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
		defer cancel()
		begun := time.Now()
		ok, err := r.Obtain("42").TryLock(ctx)
		require.False(w, ok)
		w.fails(err, lockregistry.ErrUnavailable, "trylock", theKey, context.DeadlineExceeded)
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Equal(w, trip*9/10, time.Since(begun))
		w.pass(2 * trip)
		require.Equal(w, "0", w.keys(), "nothing was sent")
	})
}

func TestSlowLink_ALeaseThatIsTooShortForTheLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		l := registry().Obtain("42")
		begun := time.Now()
		err := l.Lock(w.Context(), lockregistry.Lease(6*trip-time.Millisecond))
		require.Error(w, err)
		require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
		require.ErrorContains(w, err, "a lease of")
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Zero(w, time.Since(begun))
		w.lock(l, lockregistry.Lease(6*trip+10*time.Millisecond))
		w.unlock(l)
	})
}

// Nor is such a lease given to a hold that is there: by Renew, by a nested Lock, or when it is handed over.
func TestRenew_ALeaseThatIsTooShortForTheLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry(lockregistry.WithHandoff(time.Hour))
		l, short, enough := r.Obtain("42"), 6*trip-time.Millisecond, 7*trip
		h, err := r.AcquireAll(w.Context(), []string{"43", "44"}, lockregistry.Lease(time.Minute))
		require.NoError(w, err)
		w.lock(l, lockregistry.Lease(enough))
		begun := time.Now()
		refused := func(err error) {
			w.Helper()
			require.ErrorContains(w, err, "a lease of")
			require.ErrorContains(w, err, "a round trip to Redis takes")
			require.Empty(w, about(err))
		}
		refused(l.Renew(w.Context(), short))
		refused(l.Lock(w.Context(), lockregistry.Lease(short)))
		refused(h.Renew(w.Context(), short))
		require.Zero(w, time.Since(begun))
		require.True(w, l.IsHeld())
		handed := w.goroutine().starts(l, lockregistry.Lease(short))
		w.settle()
		w.unlock(l)
		refused(<-handed)
		require.Equal(w, uint64(1), r.Stats().HandOvers)
		w.lock(l, lockregistry.Lease(time.Minute))
		require.NoError(w, l.Renew(w.Context(), enough))
		w.unlock(l)
		w.released(h)
		w.pass(2 * trip)
		w.leftNothing()
	})
}

// Holds are renewed and unlocked.
func TestSlowLink_RenewalOnASlowLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		lease := max(6*trip+10*time.Millisecond, 100*time.Millisecond)
		r := registry(lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.lock(l, lockregistry.Lease(lease))
		alive := l.Context(w.Context())
		w.pass(20 * lease)
		require.NoError(w, alive.Err())
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.unlock(l)
		w.pass(2 * trip)
		w.leftNothing()
	})
}

// withQueues makes miniredis one in whose queues calls wait. It lets no connection that has subscribed run a script, as the
// one does that proves that messages arrive. Nobody listens to releases, as where the server tells of changes: so they leave
// no short windows.
func (w *world) withQueues() {
	w.mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		switch {
		case cmd == "EVAL" && len(args) == 6 && args[2] == "NUMSUB":
			told := w.mini.Publish(args[4], args[5])
			c.Block(func(out *server.Writer) {
				out.WriteLen(2)
				out.WriteInt(told)
				out.WriteInt(told)
			})
			return true
		case cmd == "PUBLISH" && strings.HasPrefix(args[0], "orders-channel:"):
			c.WriteInt(0)
			return true
		default:
			return false
		}
	})
}

// The lock goes from process to process.
func TestSlowLink_OnASlowLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		const processes, each = 3, 4
		w.withQueues()
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
					ctx := lockregistry.NewOwner(w.Context())
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
					if err := l.Unlock(ctx); err != nil {
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

// A way that becomes long is learned within a few round trips; calls that wait get through meanwhile. None is slow after that,
// also when the client's own connections are used again, of which it has not made all yet.
func TestSlowLink_ALinkThatBecomesSlow(t *testing.T) {
	t.Parallel()
	several := func(o *rueidis.ClientOption) { o.PipelineMultiplex = 2 }
	for _, trip := range trips {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, d := w.far(time.Millisecond)
				r := w.registryOn(w.clientWith(dial, several), lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
				w.known(r)
				held := r.Obtain("held")
				w.lock(held)
				alive := held.Context(w.Context())
				d.Set(trip)
				begun := time.Now()
				l := r.Obtain("42")
				w.lock(l, lockregistry.Wait(time.Minute))
				require.Less(w, time.Since(begun), 4*time.Second+6*trip)
				w.unlock(l)
				for range 2 {
					for range 20 {
						begun = time.Now()
						ok, err := l.TryLock(w.Context())
						require.NoError(w, err)
						require.True(w, ok)
						w.unlock(l)
						require.Less(w, time.Since(begun), 4*trip+100*time.Millisecond)
					}
					w.pass(time.Minute)
				}
				require.NoError(w, alive.Err())
				w.unlock(held)
			})
		})
	}
}

// Calls that are under way when the way becomes long are late, and are confirmed.
func TestLock_UnderWayWhenTheLinkBecomesSlow(t *testing.T) {
	t.Parallel()
	for _, trip := range append(slices.Clone(trips), 300*time.Millisecond, 600*time.Millisecond, 800*time.Millisecond) {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, d := w.far(time.Millisecond)
				r := w.registryOn(w.clientWith(dial), lockregistry.WithLease(30*time.Second))
				w.known(r)
				d.Set(trip)
				start := time.Now()
				var all sync.WaitGroup
				for i := range 40 {
					l := r.Obtain(strconv.Itoa(i))
					all.Go(func() {
						w.pass(time.Duration(i) * 50 * time.Millisecond)
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

// A call that does not wait, behind a goroutine whose first try takes long for the first time, learns that the lock is taken: an
// answer that is not late is no outage.
func TestTryLock_BehindAFirstTryWhenTheLinkBecomesSlow(t *testing.T) {
	for _, trip := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, d := w.far(time.Millisecond)
				// Each command goes over a connection by chance: one that is not there yet would be made over the slow link.
				r := w.registryOn(w.clientWith(dial, oneConnection), lockregistry.WithLease(30*time.Second))
				w.known(r)
				l, g := r.Obtain("42"), w.goroutine()
				d.Set(trip)
				w.takenUntilLocked(l, g, trip/20)
			})
		})
	}
}

// takenUntilLocked has a goroutine lock, and checks that a call that does not wait learns meanwhile that the lock is taken.
func (w *world) takenUntilLocked(l *lockregistry.Lock, g *goroutine, pause time.Duration) {
	w.Helper()
	begun, locked := time.Now(), g.starts(l)
	for w.settle(); len(locked) == 0; w.pass(pause) {
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err, "after %v", time.Since(begun))
		require.False(w, ok)
	}
	require.NoError(w, <-locked)
	require.NoError(w, g.unlock(l))
}

// So does one at the start, when it is not known how far away the server is.
func TestTryLock_BehindAFirstTryAtTheStart(t *testing.T) {
	for _, trip := range []time.Duration{150 * time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, _ := w.far(trip)
				l, g := w.registryOn(w.clientWith(dial, oneConnection)).Obtain("42"), w.goroutine()
				w.takenUntilLocked(l, g, trip/20)
			})
		})
	}
}

// Nor is it one when the other goroutine's Unlock has given up waiting, because its own context ended: until its answer would be
// late, others learn that the lock is taken, and then that it is free. One that fails fast waits on.
func TestTryLock_BehindAnUnlockThatHasGivenUp(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{150 * time.Millisecond, 200 * time.Millisecond, 350 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			behindAnUnlock(t, func(w *world, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
				d.Set(trip)
				unlocks()
				begun := time.Now()
				for got := false; !got; w.pass(trip / 20) {
					ok, err := l.TryLock(w.Context())
					require.NoError(w, err, "after %v", time.Since(begun))
					require.Less(w, time.Since(begun), 3*trip)
					got = ok
				}
				w.unlock(l)
			})
		})
		t.Run(trip.String()+", FailFast", func(t *testing.T) {
			behindAnUnlock(t, func(w *world, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
				d.Set(trip)
				locked := w.goroutine().starts(l, fast...)
				w.settle()
				unlocks()
				require.NoError(w, <-locked)
			})
		})
	}
	t.Run("silent", func(t *testing.T) {
		behindAnUnlock(t, func(w *world, l *lockregistry.Lock, d *redistest.Distance, unlocks func()) {
			d.Set(time.Minute)
			begun := time.Now()
			unlocks()
			for w.pass(time.Millisecond); time.Since(begun) < 500*time.Millisecond; w.pass(10 * time.Millisecond) {
				ok, err := l.TryLock(w.Context())
				require.NoError(w, err, "after %v", time.Since(begun))
				require.False(w, ok)
			}
			w.pass(10 * time.Millisecond)
			_, err := l.TryLock(w.Context())
			w.unavailable(err, "trylock")
			w.unavailable(l.Lock(w.Context(), fast...), "lock")
			require.Less(w, time.Since(begun), 700*time.Millisecond)
			d.Set(time.Millisecond)
			w.pass(3 * time.Minute)
		})
	})
}

// behindAnUnlock runs a test in fake time with a lock of another goroutine, whose Unlock returns before it is answered when the
// server is farther away than before.
func behindAnUnlock(t *testing.T, test func(w *world, l *lockregistry.Lock, d *redistest.Distance, unlocks func())) {
	t.Helper()
	fakeWorld(t, func(w *world) {
		dial, d := w.far(time.Millisecond)
		r := w.registryOn(w.clientWith(dial), lockregistry.WithHandoff(0), lockregistry.WithLease(30*time.Second))
		w.known(r)
		for range 32 { // then each of the client's connections is made
			w.lock(r.Obtain("43"))
			w.unlock(r.Obtain("43"))
		}
		l, g := r.Obtain("42"), w.goroutine()
		require.NoError(w, g.lock(l))
		test(w, l, d, func() {
			w.Helper()
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			w.unavailable(g.do(func() error { return l.Unlock(ctx) }), "unlock")
		})
	})
}

// lateWorld runs a test in fake time with a registry that has just learned how near its server is.
func lateWorld(t *testing.T, test func(w *world, f *flaky, r *lockregistry.Registry)) {
	t.Helper()
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		test(w, f, r)
	})
}

// That a lock is taken is asked again when a server said so late, unless a more thorough try follows anyway.
func TestLock_TakenByALateAnswer(t *testing.T) {
	t.Parallel()
	for name, this := range map[string]struct {
		fates []fate
		tries int
		call  func(w *world, r *lockregistry.Registry) error
	}{
		"TryLock":                {[]fate{delivered, slow(late)}, 3, (*world).findsTaken},
		"TryLock, the first try": {[]fate{slow(late)}, 2, (*world).findsTaken},
		"AcquireAll": {[]fate{slow(late)}, 2, func(w *world, r *lockregistry.Registry) error {
			_, err := r.AcquireAll(w.Context(), []string{"41", "42"}, lockregistry.NoWait())
			w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lateWorld(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				other := w.registry().Obtain("42")
				w.lock(other, lockregistry.Lease(time.Hour))
				require.NoError(w, this.call(w, r)) // so that the server knows the script
				w.known(r)
				before := f.count("obtain")
				f.next("obtain", this.fates...)
				start := time.Now()
				require.NoError(w, this.call(w, r))
				require.Equal(w, late, time.Since(start))
				require.Equal(w, this.tries, f.count("obtain")-before)
				require.True(w, w.free("orders:41"))
				w.unlock(other)
			})
		})
	}
}

func (w *world) findsTaken(r *lockregistry.Registry) error {
	ok, err := r.Obtain("42").TryLock(w.Context())
	require.False(w, ok)
	return err
}

// So is what a server granted late.
func TestAcquireAll_ALateGrantIsConfirmed(t *testing.T) {
	lateWorld(t, func(w *world, f *flaky, r *lockregistry.Registry) {
		renewals := f.count("renew")
		f.next("obtain", slow(late))
		start := time.Now()
		h, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait(), lockregistry.Lease(10*time.Second))
		require.NoError(w, err)
		require.Equal(w, late, time.Since(start))
		require.Equal(w, 2, f.count("renew")-renewals)
		require.Equal(w, 10*time.Second, w.pttl("orders:a"), "it counts from then")
		w.released(h)
		w.awaitGone("orders:a")
		w.awaitGone("orders:b")
	})
}

// One that is not confirmed is none, of neither.
func TestAcquireAll_ALateGrantThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{
		"the key is another's": {Lost: true, Reply: ":0\r\n"}, "no answer": silence, "refused": refused(loading),
	} {
		t.Run(name, func(t *testing.T) {
			lateWorld(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				f.next("obtain", slow(late))
				f.next("renew", what)
				_, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait(), lockregistry.Lease(time.Hour))
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				w.awaitGone("orders:a")
				w.awaitGone("orders:b")
			})
		})
	}
}

// The time of a call whose context ends while it confirms is over: its error says so.
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
			lateWorld(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				f.next("obtain", slow(late))
				f.all("renew", silence)
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				start := time.Now()
				err := call(ctx, r)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				require.Equal(w, time.Second, time.Since(start))
				w.awaitGone("orders:a")
				w.awaitGone("orders:b")
			})
		})
	}
}

// A call that could not have its answer in time sends nothing.
func TestAcquireAll_ShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		r := registry()
		for _, opts := range [][]lockregistry.LockOption{nil, {lockregistry.NoWait()}} {
			ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
			begun := time.Now()
			_, err := r.AcquireAll(ctx, []string{"42", "43"}, opts...)
			w.fails(err, lockregistry.ErrUnavailable, "acquire", theKey, context.DeadlineExceeded)
			require.ErrorContains(w, err, "a round trip to Redis takes")
			require.Equal(w, trip*9/10, time.Since(begun))
			cancel()
		}
		w.pass(2 * trip)
		require.Equal(w, "0", w.keys(), "nothing was sent")
	})
}

func TestRenew_ShorterThanARoundTrip(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		l := registry().Obtain("42")
		w.lock(l, lockregistry.Lease(time.Minute))
		ctx, cancel := context.WithTimeout(w.Context(), trip*9/10)
		defer cancel()
		begun := time.Now()
		err := l.Renew(ctx, time.Hour)
		w.fails(err, lockregistry.ErrUnavailable, "renew", theKey, context.DeadlineExceeded)
		require.ErrorContains(w, err, "a round trip to Redis takes")
		require.Equal(w, trip*9/10, time.Since(begun))
		w.pass(2 * trip)
		require.Less(w, w.pttl(theKey), time.Minute, "nothing was sent")
		require.True(w, l.IsHeld())
		w.unlock(l)
	})
}

// Renew goes on asking for as long as answers are late.
func TestRenew_WhenTheLinkBecomesSlow(t *testing.T) {
	t.Parallel()
	for _, trip := range trips {
		t.Run(trip.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, d := w.far(time.Millisecond)
				r := w.registryOn(w.clientWith(dial))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(time.Minute))
				d.Set(trip)
				require.NoError(w, l.Renew(w.Context(), time.Hour))
				require.Greater(w, w.pttl(theKey), time.Minute)
				w.pass(time.Minute)
				w.unlock(l)
			})
		})
	}
}

// An Unlock that is under way has more time when other calls find that the way has become longer.
func TestUnlock_WhenTheLinkBecomesSlow(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const trip = 330 * time.Millisecond
		dial, d := w.far(time.Millisecond)
		r := w.registryOn(w.clientWith(dial))
		w.known(r)
		l, other := r.Obtain("42"), r.Obtain("43")
		w.lock(l, lockregistry.Lease(900*time.Millisecond)) // an answer after a third of it is late
		d.Set(trip)
		begun := time.Now()
		learns := w.goroutine().start(func() error {
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
		w.unlock(l)
		require.Greater(w, time.Since(begun), time.Second+10*time.Millisecond)
		require.NoError(w, <-learns)
	})
}

// A command has two round trips more than by default; no longer than its caller has set.
func TestSlowLink_LimitOfACommand(t *testing.T) {
	t.Parallel()
	const set = 7 * time.Second
	for _, trip := range trips {
		for limit, opts := range map[time.Duration][]lockregistry.Option{
			5*time.Second + 2*trip: nil, set: {lockregistry.WithCommandTimeout(set)},
		} {
			t.Run(fmt.Sprint(trip, " ", limit), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					dial, d := w.far(trip)
					r := w.registryOn(w.clientWith(dial), opts...)
					for range 32 { // then each of the client's connections is made
						w.known(r)
					}
					d.Set(2 * time.Minute)
					defer func() {
						d.Set(0)
						w.pass(2 * time.Minute)
					}()
					begun := time.Now()
					w.unavailable(r.Obtain("42").Lock(w.Context()), "lock")
					require.Equal(w, limit, time.Since(begun))
				})
			})
		}
	}
}

// Errors say when a server is farther away than is supported.
func TestLock_AServerThatIsTooFarAway(t *testing.T) {
	fakeWorld(t, func(w *world) {
		dial, d := w.far(time.Millisecond)
		r := w.registryOn(w.clientWith(dial), lockregistry.WithCommandTimeout(2*time.Second))
		w.known(r)
		l := r.Obtain("42")
		const text = "; a round trip to Redis takes 1s or more, which is not supported"
		d.Set(3 * time.Second)
		_, err := l.TryLock(w.Context())
		w.unavailable(err, "trylock")
		require.NotContains(w, err.Error(), text, "it is not known yet")
		w.pass(15 * time.Second)
		_, err = l.TryLock(w.Context())
		w.unavailable(err, "trylock")
		require.ErrorContains(w, err, text)
		d.Set(time.Millisecond)
		w.pass(3 * time.Minute)
		w.known(r)
		d.Set(time.Minute)
		_, err = l.TryLock(w.Context())
		w.unavailable(err, "trylock")
		require.NotContains(w, err.Error(), text, "it is silent")
		d.Set(time.Millisecond)
		w.pass(3 * time.Minute)
	})
}

// The connection for wake-ups is made on a slow link, and calls that wait are woken over it.
func TestWakeup_OnASlowLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		poll := lockregistry.WithPollInterval(time.Hour)
		held, l := registry(poll).Obtain("42"), registry(poll).Obtain("42")
		w.lock(held, lockregistry.Lease(10*time.Minute))
		locked := w.goroutine().starts(l)
		w.pass(20 * trip)
		w.pending(locked)
		begun := time.Now()
		w.unlock(held)
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(begun), 3*trip+100*time.Millisecond)
	})
}

// One that is not made in time is given up, and the next one is made.
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
			fakeWorld(t, func(w *world) {
				const trip = 100 * time.Millisecond
				near, _ := w.far(trip)
				var hangs atomic.Bool
				poll := lockregistry.WithPollInterval(time.Hour)
				held, r := w.registry(poll).Obtain("42"), w.registryOn(w.clientWith(func(ctx context.Context) (net.Conn, error) {
					if hangs.CompareAndSwap(true, false) {
						return hang(ctx)
					}
					return near(ctx)
				}), poll)
				w.known(r)
				w.lock(held, lockregistry.Lease(10*time.Minute))
				hangs.Store(true)
				locked := w.goroutine().starts(r.Obtain("42"))
				w.pass(time.Second + 20*trip)
				w.pending(locked)
				require.False(w, hangs.Load())
				begun := time.Now()
				w.unlock(held)
				require.NoError(w, <-locked)
				require.LessOrEqual(w, time.Since(begun), 3*trip+100*time.Millisecond)
			})
		})
	}
}
