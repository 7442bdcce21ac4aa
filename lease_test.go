package lockregistry_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Leases are honest: what this process believes about a hold is true in Redis. All of it in fake time, so that instants
// can be compared.

// ending is what a test learns about the end of a context.
type ending struct {
	at    time.Time
	cause error
	left  time.Duration // of the key's lease at that moment
}

// watch reports the end of a context, if it comes before the end of the test.
func (w *world) watch(ctx context.Context, key string) <-chan ending {
	w.Helper()
	ended := make(chan ending, 1)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		ended <- ending{time.Now(), context.Cause(ctx), w.pttl(key)}
	})
	w.Cleanup(func() {
		if !stop() {
			<-done
		}
	})
	return ended
}

func (w *world) unended(e <-chan ending) {
	w.Helper()
	w.settle()
	select {
	case end := <-e:
		w.Fatalf("announced too soon: %+v", end)
	default:
	}
}

// The margin is for clocks that run at different rates, by up to 1 %.
func margin(lease time.Duration) time.Duration { return lease / 100 }

func TestLease_LossIsAnnouncedBeforeTheKeyExpires(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{50 * time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				l := w.registry().Obtain("42")
				start := time.Now()
				w.lock(l, lockregistry.Lease(lease))
				ended := w.watch(l.Context(w.Context()), "orders:42")
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				require.Greater(w, end.left, margin(lease))
				require.Less(w, end.left, 2*margin(lease)+5*time.Millisecond, "and not much sooner")
				require.LessOrEqual(w, end.at.Sub(start), lease-margin(lease)-time.Millisecond)

				// From now on every call says so, although the key is there.
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrLockLost)
				require.ErrorIs(w, l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost)
				require.ErrorIs(w, context.Cause(l.Context(w.Context())), lockregistry.ErrLockLost)
				require.False(w, w.free("orders:42"))
			})
		})
	}
}

func TestLease_LossIsAnnouncedWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	for _, renewal := range []bool{false, true} {
		t.Run(map[bool]string{false: "without renewal", true: "with renewal"}[renewal], func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(9 * time.Second)}
				if renewal {
					opts = append(opts, lockregistry.WithRenewal())
				}
				r := f.registry(opts...)
				// More locks than renewals go in one pipeline, so that hanging pipelines would delay announcements.
				paths := []string{"a", "b", "c"}
				ends := make([]<-chan ending, 0, len(paths))
				for _, path := range paths {
					w.lock(r.Obtain(path))
					ends = append(ends, w.watch(r.Obtain(path).Context(w.Context()), "orders:"+path))
				}
				f.all(anything, silence)
				for _, ended := range ends {
					end := <-ended
					require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
					require.Greater(w, end.left, margin(9*time.Second))
				}
			})
		})
	}
}

// Nobody watches: the hold ends all the same.
func TestLease_LossWithoutAContext(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(10*time.Second))
		w.pass(10*time.Second - margin(10*time.Second) - 2*time.Millisecond)
		require.True(w, l.IsHeld())
		w.pass(2 * time.Millisecond)
		require.False(w, l.IsHeld())
		require.False(w, w.free("orders:42"))
	})
}

func TestLease_RenewingPutsTheAnnouncementOff(t *testing.T) {
	t.Parallel()
	for name, renew := range map[string]func(r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) error{
		"lock": func(_ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) error {
			return l.Renew(ctx, 20*time.Second)
		},
		"registry": func(r *lockregistry.Registry, _ *lockregistry.Lock, ctx context.Context) error {
			return r.Renew(ctx, "42", 20*time.Second)
		},
		"re-entry": func(_ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) error {
			return l.Lock(ctx, lockregistry.Lease(20*time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.registry()
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(10*time.Second))
				ended := w.watch(l.Context(w.Context()), "orders:42")
				w.pass(9 * time.Second)
				require.NoError(w, renew(r, l, w.Context()))
				w.pass(19 * time.Second)
				w.unended(ended)
				require.True(w, l.IsHeld())
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				require.Greater(w, end.left, margin(20*time.Second))
			})
		})
	}
}

// A lease may also be made shorter, and is over sooner then.
func TestLease_RenewingWithAShorterLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(time.Hour))
		start := time.Now()
		ended := w.watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), 10*time.Second))
		end := <-ended
		require.Less(w, end.at.Sub(start), 10*time.Second)
		require.Greater(w, end.left, margin(10*time.Second))
	})
}

// A renewal that the server executed but whose reply was lost may have made the lease shorter.
func TestLease_RenewingWithAShorterLeaseAndALostReply(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(time.Hour))
		ended := w.watch(l.Context(w.Context()), "orders:42")
		f.next("renew", cutAfter)
		require.Error(w, l.Renew(w.Context(), 10*time.Second))
		end := <-ended
		require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
		require.Greater(w, end.left, margin(10*time.Second))
	})
}

// And it may do so yet, after a later renewal with a longer lease.
func TestLease_ARenewalThatMayArriveLateLimitsTheNextOnes(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l, lockregistry.Lease(time.Hour))
		ended := w.watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), time.Hour)) // the server knows the script from now on
		f.next("renew", silence)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.fails(l.Renew(ctx, 10*time.Second), context.DeadlineExceeded, "renew", "orders:42", lockregistry.ErrUnavailable)
		sent := f.sent("renew")
		f.reconnect()
		require.NoError(w, l.Renew(w.Context(), time.Hour))
		require.Equal(w, "1", w.arrives(sent[len(sent)-1]))
		require.Equal(w, 10*time.Second, w.pttl("orders:42"))
		end := <-ended
		require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
		require.Greater(w, end.left, margin(10*time.Second))
	})
}

// Two renewals under way at once: nobody knows which of them the server executes last, until both are answered.
func TestLease_RenewalsThatOverlap(t *testing.T) {
	t.Parallel()
	const short, long = 10 * time.Second, 5 * time.Minute
	for name, c := range map[string]struct{ first, second time.Duration }{
		"a shorter one first":  {short, long},
		"a shorter one second": {long, short},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(long))
				require.NoError(w, l.Renew(w.Context(), long)) // the server knows the script from now on
				ended := w.watch(l.Context(w.Context()), "orders:42")
				f.next("renew", slow(400*time.Millisecond))
				first := w.goroutine().start(func() error { return r.Renew(w.Context(), "42", c.first) })
				w.pass(200 * time.Millisecond)
				require.NoError(w, r.Renew(w.Context(), "42", c.second))
				require.NoError(w, <-first)
				require.True(w, l.IsHeld())

				// Until then the shorter one counts; from the next one on what is asked for.
				w.pass(5 * time.Second)
				w.unended(ended)
				renewed := time.Now()
				require.NoError(w, l.Renew(w.Context(), 2*long))
				w.pass(2*long - margin(2*long) - 10*time.Millisecond)
				w.unended(ended)
				require.True(w, l.IsHeld())
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				require.Greater(w, end.left, margin(2*long))
				require.Less(w, end.at.Sub(renewed), 2*long)

				// And if there is no next one.
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
				w.lock(l, lockregistry.Lease(long))
				ended = w.watch(l.Context(w.Context()), "orders:42")
				f.next("renew", slow(400*time.Millisecond))
				start := time.Now()
				first = w.goroutine().start(func() error { return r.Renew(w.Context(), "42", c.first) })
				w.pass(200 * time.Millisecond)
				require.NoError(w, r.Renew(w.Context(), "42", c.second))
				require.NoError(w, <-first)
				end = <-ended
				require.Less(w, end.at.Sub(start), time.Second+short)
				require.Greater(w, end.left, margin(short))
			})
		})
	}
}

// A renewal that is refused changes nothing, but what another one has done at the same time stays done.
func TestLease_ARefusedRenewalBesideAShorterOne(t *testing.T) {
	t.Parallel()
	const short = 10 * time.Second
	for name, c := range map[string]struct {
		patience time.Duration // of the shorter one
		answers  time.Duration // so soon that it need not be sent again, or too late
		err      error
	}{
		"answered":     {time.Hour, 400 * time.Millisecond, nil},
		"not answered": {time.Second, 2 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(time.Hour))
				require.NoError(w, l.Renew(w.Context(), time.Hour)) // the server knows the script from now on
				ended := w.watch(l.Context(w.Context()), "orders:42")
				f.next("renew", slow(c.answers), refused("LOADING Redis is loading the dataset in memory"))
				first := w.goroutine().start(func() error {
					ctx, cancel := context.WithTimeout(w.Context(), c.patience)
					defer cancel()
					return r.Renew(ctx, "42", short)
				})
				w.pass(200 * time.Millisecond)
				require.ErrorContains(w, r.Renew(w.Context(), "42", 20*time.Second), "LOADING")
				require.ErrorIs(w, <-first, c.err)
				require.LessOrEqual(w, w.pttl("orders:42"), short)
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				require.Greater(w, end.left, margin(short))
			})
		})
	}
}

// Whatever renewals are under way at once, and whatever becomes of them: when the loss is announced, the key is there.
func TestLease_RenewalsInAnyOrderAreHonest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				random := rand.New(rand.NewPCG(seed, 1))
				upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
				f := w.flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(30 * time.Second)}
				if seed%4 == 0 {
					opts = append(opts, lockregistry.WithRenewal())
				}
				r := w.registryOn(f.client(ownConnections), opts...)
				l := r.Obtain("42")
				for round := range 12 {
					w.lock(l)
					ended := w.watch(l.Context(w.Context()), "orders:42")
					var all sync.WaitGroup
					for range 2 + random.IntN(4) {
						while, patience := upTo(9*time.Second), time.Minute
						late := make(chan struct{})
						time.AfterFunc(while, func() { close(late) })
						switch random.IntN(7) {
						case 0:
							f.next("renew", delivered)
						case 1:
							f.next("renew", slow(while))
						case 2:
							f.next("renew", heldUp(late))
						case 3: // nobody waits for the answer any more, but the server gets it
							f.next("renew", heldUp(late))
							patience = while / 2
						case 4:
							f.next("renew", slow(while))
							patience = while / 2
						case 5:
							f.next("renew", cutAfter)
						default:
							f.next("renew", refusedAfter(late, "LOADING Redis is loading the dataset in memory"))
						}
						ttl := []time.Duration{10 * time.Second, 15 * time.Second, 30 * time.Second}[random.IntN(3)]
						all.Go(func() {
							ctx, cancel := context.WithTimeout(w.Context(), patience)
							defer cancel()
							_ = r.Renew(ctx, "42", ttl)
						})
						w.settle()
						w.pass(upTo(4 * time.Second))
					}
					f.all("renew", cut)
					end := <-ended
					require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
					require.Positive(w, end.left, "seed %d, round %d", seed, round)
					all.Wait()
					f.Forget()
					_ = l.Unlock(w.Context())
				}
			})
		})
	}
}

// The scheduler's own renewal does not take back the lease that the owner asks for at the same time.
func TestLease_TheOwnersLeaseOutlastsTheSchedulersRenewal(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := w.registryOn(f.client(oneConnection), lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		l := r.Obtain("42")
		start := time.Now()
		w.lock(l)
		w.pass(9500 * time.Millisecond)
		f.next("renew", slow(time.Second))
		require.NoError(w, l.Renew(w.Context(), time.Hour))
		w.pass(30*time.Minute - time.Since(start))
		require.True(w, l.IsHeld())
		leases := map[string]int{}
		for _, c := range f.sent("renew") {
			if c.Sent.Sub(start) > 15*time.Second {
				leases[c.Args[5]]++
			}
		}
		require.NotEmpty(w, leases)
		require.Greater(w, w.pttl("orders:42"), 30*time.Minute, leases)
		w.unlock(l)
	})
}

// A renewal by the owner that hangs does not keep the scheduler from renewing.
func TestLease_TheSchedulerGoesOnBesideARenewalThatHangs(t *testing.T) {
	t.Parallel()
	for name, ttl := range map[string]time.Duration{
		"as long":                         6 * time.Second,
		"shorter":                         3 * time.Second,
		"over before the next renewal is": 900 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := w.registryOn(f.client(ownConnections), lockregistry.WithRenewal(),
					lockregistry.WithLease(6*time.Second), lockregistry.WithCommandTimeout(time.Hour))
				l := r.Obtain("42")
				w.lock(l)
				w.pass(3 * time.Second) // the server knows the script from now on
				ended := w.watch(l.Context(w.Context()), "orders:42")
				answer := make(chan struct{})
				f.next("renew", heldUp(answer), refused("LOADING Redis is loading the dataset in memory"))
				renewed := w.goroutine().start(func() error { return r.Renew(w.Context(), "42", ttl) })
				w.pass(9 * time.Second)
				w.unended(ended)
				w.pending(renewed)
				close(answer)
				require.NoError(w, <-renewed)
				w.pass(time.Minute)
				w.unended(ended)
				w.unlock(l)
			})
		})
	}
}

// What is released while its renewal waits to be sent, or to be sent once more, is not renewed.
func TestLease_WhatIsReleasedMeanwhileIsNotRenewed(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"all workers are busy": false, "the server does not know the script": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := w.registryOn(f.client(ownConnections), lockregistry.WithRenewal(), lockregistry.WithLease(6*time.Second))
				l := r.Obtain("42")
				answer := make(chan struct{})
				if again {
					f.all("renew", refusedAfter(answer, "NOSCRIPT No matching script. Please use EVAL."))
				} else {
					f.all("renew", heldUp(answer))
					for i := range 4 { // as many pipelines as may be under way
						w.lock(r.Obtain(strconv.Itoa(i)))
						w.pass(10 * time.Millisecond)
					}
				}
				w.lock(l)
				w.pass(2100 * time.Millisecond)
				sent := f.count("renew")
				w.unlock(l)
				close(answer)
				w.settle()
				require.Positive(w, sent)
				for _, c := range f.sent("renew")[sent:] {
					require.NotContains(w, c.Args, "orders:42")
				}
			})
		})
	}
}

// The lease counts from before the command was sent, since the server may have executed it at once.
func TestLease_TheLeaseCountsFromTheSendingOfTheCommand(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		f.next("obtain", slow(400*time.Millisecond))
		w.lock(l, lockregistry.Lease(10*time.Second))
		require.Equal(w, 9600*time.Millisecond, w.pttl("orders:42"))
		end := <-w.watch(l.Context(w.Context()), "orders:42")
		require.Greater(w, end.left, margin(10*time.Second))

		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.lock(l, lockregistry.Lease(10*time.Second))
		ended := w.watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), 10*time.Second)) // the server knows the script from now on
		f.next("renew", slow(400*time.Millisecond))
		require.NoError(w, l.Renew(w.Context(), 5*time.Second))
		end = <-ended
		require.Greater(w, end.left, margin(5*time.Second))
	})
}

// Neither does it matter when the registry was made, nor which others use its client.
func TestLease_TheLeaseCountsForRegistriesOfAnyAge(t *testing.T) {
	fakeWorld(t, func(w *world) {
		client := w.client()
		for range 3 {
			l := w.registryOn(client).Obtain("42")
			w.lock(l, lockregistry.Lease(10*time.Second))
			end := <-w.watch(l.Context(w.Context()), theKey)
			require.GreaterOrEqual(w, end.left, margin(10*time.Second))
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
			w.pass(time.Hour)
		}
	})
}

func TestLease_AGrantThatArrivesAfterItsLeaseIsNone(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithLease(time.Second), lockregistry.WithCommandTimeout(time.Minute))
		l := r.Obtain("42")
		f.next("obtain", slow(995*time.Millisecond)) // within the margin
		f.next("renew", slow(995*time.Millisecond))
		ok, err := l.TryLock(w.Context())
		require.False(w, ok)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.False(w, l.IsHeld())
		w.settle()
		require.True(w, w.free("orders:42"), "what is left of it is removed")

		f.next("obtain", slow(2*time.Second))
		require.Error(w, l.Lock(w.Context()))
		require.True(w, w.free("orders:42"))
		require.True(w, w.tryElsewhere(l))
	})
}

// While it waits, a call tries again after such a grant.
func TestLease_AWaiterTriesAgainAfterALateGrant(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithLease(time.Second), polling, lockregistry.WithCommandTimeout(time.Minute)).Obtain("42")
		w.do("SET", "orders:42", uuid.NewString(), "PX", "350")
		locked := w.goroutine().starts(l)
		w.settle()
		w.pass(340 * time.Millisecond)
		f.next("obtain", slow(2*time.Second))
		w.settle()
		start := time.Now()
		require.NoError(w, <-locked)
		require.GreaterOrEqual(w, time.Since(start), 2*time.Second)
		require.True(w, l.IsHeld())
		require.Greater(w, w.pttl("orders:42"), 900*time.Millisecond)
	})
}

// Renewal by itself.

func TestLease_RenewalEachThirdOfTheLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		standard, custom := r.Obtain("standard"), r.Obtain("custom")
		start := time.Now()
		w.lock(standard)
		w.lock(custom, lockregistry.Lease(12*time.Second))
		ends := []<-chan ending{
			w.watch(standard.Context(w.Context()), "orders:standard"), w.watch(custom.Context(w.Context()), "orders:custom"),
		}
		w.pass(61 * time.Second)
		times := map[string][]int{}
		for _, c := range f.sent("renew") {
			after := c.Sent.Sub(start)
			require.Zero(w, after%time.Second)
			times[c.Args[3]] = append(times[c.Args[3]], int(after/time.Second))
		}
		require.Equal(w, []int{10, 20, 30, 40, 50, 60}, slices.Compact(times["orders:standard"]))
		require.Equal(w, []int{4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60}, slices.Compact(times["orders:custom"]))
		require.Equal(w, 29*time.Second, w.pttl("orders:standard"), "with the lease that it had")
		require.Equal(w, 11*time.Second, w.pttl("orders:custom"))
		require.True(w, standard.IsHeld())
		require.True(w, custom.IsHeld())
		for _, ended := range ends {
			w.unended(ended)
		}
		w.unlock(standard)
		w.unlock(custom)
	})
}

func TestLease_RenewalEndsWithTheHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		l, next := r.Obtain("42"), r.Obtain("next")
		w.lock(l)
		w.pass(10500 * time.Millisecond)
		w.unlock(l)
		renewals := f.count("renew")
		require.Positive(w, renewals)
		w.pass(time.Hour)
		require.Equal(w, renewals, f.count("renew"))

		// Nor does it come back for a hold that is lost, or while others hold the key.
		w.lock(next)
		w.do("SET", "orders:next", uuid.NewString(), "PX", "60000")
		require.ErrorIs(w, (<-w.watch(next.Context(w.Context()), "orders:next")).cause, lockregistry.ErrLockLost)
		renewals = f.count("renew")
		w.pass(time.Minute)
		require.Equal(w, renewals, f.count("renew"))
		require.True(w, w.free("orders:next"))
	})
}

func TestLease_RenewalEndsWithTheRegistry(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		w.lock(r.Obtain("42"))
		w.pass(10500 * time.Millisecond)
		renewals := f.count("renew")
		require.NoError(w, r.Close())
		w.pass(3 * time.Second)
		require.Equal(w, renewals, f.count("renew"))
		require.True(w, w.free("orders:42"), "left to its lease")
	})
}

func TestLease_ReentryAddsNoRenewal(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)).Obtain("42")
		for range 5 {
			w.lock(l)
		}
		before := f.count("renew")
		w.pass(30 * time.Second)
		// One renewal a second; the first one may be sent twice, because the server does not know the script yet.
		require.LessOrEqual(w, f.count("renew")-before, 31)
		require.GreaterOrEqual(w, f.count("renew")-before, 29)
		for range 4 {
			w.unlock(l)
		}
		before = f.count("renew")
		w.pass(30 * time.Second)
		require.InDelta(w, 30, f.count("renew")-before, 1)
		require.True(w, l.IsHeld())
		w.unlock(l)
	})
}

// A renewal that is on its way when the lock is released must do nothing to the next hold.
func TestLease_ALateRenewalDoesNotTouchTheNextHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.lock(l, lockregistry.Lease(30*time.Second))
		f.all("renew", silence)
		w.pass(11 * time.Second) // one was sent, on a connection that is dead from now on
		late := f.sent("renew")
		require.NotEmpty(w, late)
		f.reconnect()
		w.unlock(l)
		require.True(w, w.free("orders:42"))
		require.Equal(w, "0", w.arrives(late[0]))
		require.True(w, w.free("orders:42"))

		w.lock(l, lockregistry.Lease(20*time.Second))
		require.Equal(w, "-1", w.arrives(late[0]))
		require.Equal(w, 20*time.Second, w.pttl("orders:42"))
		w.unlock(l)
		other := w.registry().Obtain("42")
		w.lock(other, lockregistry.Lease(20*time.Second))
		require.Equal(w, "-1", w.arrives(late[0]))
		require.Equal(w, 20*time.Second, w.pttl("orders:42"))
	})
}

// The server renews, but its reply comes when the hold is lost already: it stays lost.
func TestLease_ALateRenewalDoesNotReviveALostHold(t *testing.T) {
	t.Parallel()
	for _, byItself := range []bool{true, false} {
		t.Run(map[bool]string{true: "scheduled", false: "called"}[byItself], func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(3 * time.Second), lockregistry.WithCommandTimeout(time.Minute)}
				if byItself {
					opts = append(opts, lockregistry.WithRenewal())
				}
				l := f.registry(opts...).Obtain("42")
				w.lock(l)
				require.NoError(w, l.Renew(w.Context(), 3*time.Second)) // the server knows the script from now on
				ended := w.watch(l.Context(w.Context()), "orders:42")
				if byItself {
					f.all("renew", slow(2500*time.Millisecond))
				} else {
					f.next("renew", slow(2500*time.Millisecond))
				}
				w.pass(time.Second - time.Millisecond)
				if !byItself {
					require.ErrorIs(w, l.Renew(w.Context(), 10*time.Second), lockregistry.ErrLockLost)
				}
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				w.pass(2 * time.Second)
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrLockLost)
				renewals := f.count("renew")
				w.pass(time.Minute)
				require.Equal(w, renewals, f.count("renew"))
			})
		})
	}
}

func TestLease_RenewalOutlastsFailures(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]fate{
		"loading":    refused("LOADING Redis is loading the dataset in memory"),
		"readonly":   refused("READONLY You can't write against a read only replica."),
		"cut":        cut,
		"lost reply": cutAfter,
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(9*time.Second)).Obtain("42")
				w.lock(l)
				ended := w.watch(l.Context(w.Context()), "orders:42")
				for range 3 {
					f.all("renew", failing)
					w.pass(5 * time.Second)
					f.Forget()
					w.pass(time.Minute)
				}
				w.unended(ended)
				require.True(w, l.IsHeld())
				require.Greater(w, w.pttl("orders:42"), 5*time.Second)
				w.unlock(l)

				// When they last too long, the loss is announced in time.
				w.lock(l)
				ended = w.watch(l.Context(w.Context()), "orders:42")
				f.all("renew", failing)
				end := <-ended
				require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
				require.Greater(w, end.left, margin(9*time.Second))
				f.Forget()
				w.pass(time.Minute)
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
			})
		})
	}
}

// While Redis is silent a renewal waits for its reply for as long as the client does; the others must go on.
func TestLease_RenewalAfterASilence(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(time.Minute)).Obtain("42")
		w.lock(l)
		ended := w.watch(l.Context(w.Context()), "orders:42")
		f.all("renew", silence)
		w.pass(25 * time.Second)
		f.Forget()
		w.pass(5 * time.Minute)
		w.unended(ended)
		require.True(w, l.IsHeld())
		w.unlock(l)
	})
}

// Many locks are renewed together, and each in time.
func TestLease_RenewalOfManyLocks(t *testing.T) {
	fakeWorldAlone(t, func(w *world) {
		const locks = 600
		r := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(9*time.Second))
		goroutines := runtime.NumGoroutine()
		for i := range locks {
			w.lock(r.Obtain(strconv.Itoa(i)))
		}
		w.pass(20 * time.Second)
		require.Less(w, runtime.NumGoroutine()-goroutines, 20)
		for i := range locks {
			l := r.Obtain(strconv.Itoa(i))
			require.True(w, l.IsHeld())
			require.Greater(w, w.pttl(l.Key()), 5*time.Second)
			w.unlock(l)
		}
		require.Equal(w, "0", w.keys())
	})
}

// The holder is gone without a word. Who waits gets the lock when the lease is over.
func TestLease_ALockOutlivesItsHolderForALeaseAtMost(t *testing.T) {
	t.Parallel()
	for _, mode := range []lockregistry.Wakeup{lockregistry.WakeupPoll, lockregistry.WakeupAuto} {
		t.Run(strconv.Itoa(int(mode)), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				const lease, poll = 5 * time.Second, 100 * time.Millisecond
				crashing := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
				l := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll)).Obtain("42")
				w.lock(crashing.Obtain("42"))
				locked := w.goroutine().starts(l)
				w.pass(13 * time.Second)
				w.pending(locked)
				require.NoError(w, crashing.Close()) // no renewal any more, and nobody unlocks
				left := w.pttl("orders:42")
				start := time.Now()
				require.NoError(w, <-locked)
				require.GreaterOrEqual(w, time.Since(start), left)
				require.LessOrEqual(w, time.Since(start), left+poll)
			})
		})
	}
}
