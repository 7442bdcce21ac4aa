package lease_test

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
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestLease_LossIsAnnouncedBeforeTheKeyExpires(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{50 * time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				l := w.Registry().Obtain("42")
				start := time.Now()
				w.Lock(l, lockregistry.Lease(lease))
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				require.Greater(w, end.Left, kit.DriftMargin(lease))
				require.Less(w, end.Left, 2*kit.DriftMargin(lease)+5*time.Millisecond, "and not much sooner")
				require.LessOrEqual(w, end.At.Sub(start), lease-kit.DriftMargin(lease)-time.Millisecond)

				// From here on every call says so, although the key is there.
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrLockLost)
				require.ErrorIs(w, l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost)
				require.ErrorIs(w, context.Cause(l.Context(w.Context())), lockregistry.ErrLockLost)
				require.False(w, w.Free("orders:42"))
			})
		})
	}
}

func TestLease_LossIsAnnouncedWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	for _, renewal := range []bool{false, true} {
		t.Run(map[bool]string{false: "without renewal", true: "with renewal"}[renewal], func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(9 * time.Second)}
				if renewal {
					opts = append(opts, lockregistry.WithRenewal())
				}
				r := f.Registry(opts...)
				// More locks than fit into the renewal pipelines, so that hanging pipelines would delay the report of a loss.
				paths := []string{"a", "b", "c"}
				ends := make([]<-chan kit.ContextEnd, 0, len(paths))
				for _, path := range paths {
					w.Lock(r.Obtain(path))
					ends = append(ends, w.Watch(r.Obtain(path).Context(w.Context()), "orders:"+path))
				}
				f.Fate(kit.Anything, kit.Silence)
				for _, ended := range ends {
					end := <-ended
					require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
					require.Greater(w, end.Left, kit.DriftMargin(9*time.Second))
				}
			})
		})
	}
}

// The hold ends even if nobody watches it.
func TestLease_LossWithoutAContext(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(10*time.Second))
		w.Pass(10*time.Second - kit.DriftMargin(10*time.Second) - 2*time.Millisecond)
		require.True(w, l.IsHeld())
		w.Pass(2 * time.Millisecond)
		require.False(w, l.IsHeld())
		require.False(w, w.Free("orders:42"))
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
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry()
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(10*time.Second))
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				w.Pass(9 * time.Second)
				require.NoError(w, renew(r, l, w.Context()))
				w.Pass(19 * time.Second)
				w.Unended(ended)
				require.True(w, l.IsHeld())
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				require.Greater(w, end.Left, kit.DriftMargin(20*time.Second))
			})
		})
	}
}

// A lease may also be made shorter, and then ends sooner.
func TestLease_RenewingWithAShorterLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(time.Hour))
		start := time.Now()
		ended := w.Watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), 10*time.Second))
		end := <-ended
		require.Less(w, end.At.Sub(start), 10*time.Second)
		require.Greater(w, end.Left, kit.DriftMargin(10*time.Second))
	})
}

// A renewal that the server executed but whose reply was lost may have made the lease shorter.
func TestLease_RenewingWithAShorterLeaseAndALostReply(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(time.Hour))
		ended := w.Watch(l.Context(w.Context()), "orders:42")
		f.Fates("renew", kit.CutAfter)
		require.Error(w, l.Renew(w.Context(), 10*time.Second))
		end := <-ended
		require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
		require.Greater(w, end.Left, kit.DriftMargin(10*time.Second))
	})
}

// It may still do so after a later renewal with a longer lease.
func TestLease_ARenewalThatMayArriveLateLimitsTheNextOnes(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(time.Hour))
		ended := w.Watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), time.Hour)) // the server knows the script from now on
		f.Fates("renew", kit.Silence)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.Fails(l.Renew(ctx, 10*time.Second), context.DeadlineExceeded, "renew", "orders:42", lockregistry.ErrUnavailable)
		sent := f.Sent("renew")
		f.Reconnect()
		require.NoError(w, l.Renew(w.Context(), time.Hour))
		require.Equal(w, "1", w.Arrives(sent[len(sent)-1]))
		require.Equal(w, 10*time.Second, w.Pttl("orders:42"))
		end := <-ended
		require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
		require.Greater(w, end.Left, kit.DriftMargin(10*time.Second))
	})
}

// Two renewals are under way at once: nobody knows which of them the server executes last, until both are answered.
func TestLease_RenewalsThatOverlap(t *testing.T) {
	t.Parallel()
	const short, long = 10 * time.Second, 5 * time.Minute
	for name, c := range map[string]struct{ first, second time.Duration }{
		"a shorter one first":  {short, long},
		"a shorter one second": {long, short},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(long))
				require.NoError(w, l.Renew(w.Context(), long)) // the server knows the script from now on
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				f.Fates("renew", kit.SlowReply(400*time.Millisecond))
				first := w.Goroutine().Start(func() error { return r.Renew(w.Context(), "42", c.first) })
				w.Pass(200 * time.Millisecond)
				require.NoError(w, r.Renew(w.Context(), "42", c.second))
				require.NoError(w, <-first)
				require.True(w, l.IsHeld())

				// Until both are answered the shorter lease counts; the next renewal sets what it asks for.
				w.Pass(5 * time.Second)
				w.Unended(ended)
				renewed := time.Now()
				require.NoError(w, l.Renew(w.Context(), 2*long))
				w.Pass(2*long - kit.DriftMargin(2*long) - 10*time.Millisecond)
				w.Unended(ended)
				require.True(w, l.IsHeld())
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				require.Greater(w, end.Left, kit.DriftMargin(2*long))
				require.Less(w, end.At.Sub(renewed), 2*long)

				// If there is no next renewal, the shorter lease ends the hold.
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
				w.Lock(l, lockregistry.Lease(long))
				ended = w.Watch(l.Context(w.Context()), "orders:42")
				f.Fates("renew", kit.SlowReply(400*time.Millisecond))
				start := time.Now()
				first = w.Goroutine().Start(func() error { return r.Renew(w.Context(), "42", c.first) })
				w.Pass(200 * time.Millisecond)
				require.NoError(w, r.Renew(w.Context(), "42", c.second))
				require.NoError(w, <-first)
				end = <-ended
				require.Less(w, end.At.Sub(start), time.Second+short)
				require.Greater(w, end.Left, kit.DriftMargin(short))
			})
		})
	}
}

// A renewal that is refused changes nothing, but a concurrent one stays in effect.
func TestLease_ARefusedRenewalBesideAShorterOne(t *testing.T) {
	t.Parallel()
	const short = 10 * time.Second
	for name, c := range map[string]struct {
		patience time.Duration // of the call with the shorter lease
		answers  time.Duration // early enough not to be sent again, or too late
		err      error
	}{
		"answered":     {time.Hour, 400 * time.Millisecond, nil},
		"not answered": {time.Second, 2 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(time.Hour))
				require.NoError(w, l.Renew(w.Context(), time.Hour)) // the server knows the script from now on
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				f.Fates("renew", kit.SlowReply(c.answers), kit.Refused("LOADING Redis is loading the dataset in memory"))
				first := w.Goroutine().Start(func() error {
					ctx, cancel := context.WithTimeout(w.Context(), c.patience)
					defer cancel()
					return r.Renew(ctx, "42", short)
				})
				w.Pass(200 * time.Millisecond)
				require.ErrorContains(w, r.Renew(w.Context(), "42", 20*time.Second), "LOADING")
				require.ErrorIs(w, <-first, c.err)
				require.LessOrEqual(w, w.Pttl("orders:42"), short)
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				require.Greater(w, end.Left, kit.DriftMargin(short))
			})
		})
	}
}

// Whatever renewals are under way, and whatever happens to them: when the loss is reported, the key is still there.
func TestLease_RenewalsInAnyOrderAreHonest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				random := rand.New(rand.NewPCG(seed, 1))
				upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
				f := w.Flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(30 * time.Second)}
				if seed == 0 {
					opts = append(opts, lockregistry.WithRenewal())
				}
				r := w.RegistryOn(kit.Apart(f.Client()), opts...)
				l := r.Obtain("42")
				for round := range 6 {
					w.Lock(l)
					ended := w.Watch(l.Context(w.Context()), "orders:42")
					var all sync.WaitGroup
					for range 2 + random.IntN(4) {
						while, patience := upTo(9*time.Second), time.Minute
						late := make(chan struct{})
						time.AfterFunc(while, func() { close(late) })
						switch random.IntN(7) {
						case 0:
							f.Fates("renew", kit.Delivered)
						case 1:
							f.Fates("renew", kit.SlowReply(while))
						case 2:
							f.Fates("renew", kit.HeldUp(late))
						case 3: // nobody waits for the reply any more, but the server gets the command
							f.Fates("renew", kit.HeldUp(late))
							patience = while / 2
						case 4:
							f.Fates("renew", kit.SlowReply(while))
							patience = while / 2
						case 5:
							f.Fates("renew", kit.CutAfter)
						default:
							f.Fates("renew", kit.RefusedAfter(late, "LOADING Redis is loading the dataset in memory"))
						}
						ttl := []time.Duration{10 * time.Second, 15 * time.Second, 30 * time.Second}[random.IntN(3)]
						all.Go(func() {
							ctx, cancel := context.WithTimeout(w.Context(), patience)
							defer cancel()
							_ = r.Renew(ctx, "42", ttl)
						})
						w.Settle()
						w.Pass(upTo(4 * time.Second))
					}
					f.Fate("renew", kit.Cut)
					end := <-ended
					require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
					require.Positive(w, end.Left, "seed %d, round %d", seed, round)
					all.Wait()
					f.Forget()
					_ = l.Unlock(w.Context())
				}
			})
		})
	}
}

// The scheduler's own renewal does not undo a lease that the owner sets at the same time.
func TestLease_TheOwnersLeaseOutlastsTheSchedulersRenewal(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := w.RegistryOn(f.Client(kit.OneConnection), lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		l := r.Obtain("42")
		start := time.Now()
		w.Lock(l)
		w.Pass(9500 * time.Millisecond)
		f.Fates("renew", kit.SlowReply(time.Second))
		require.NoError(w, l.Renew(w.Context(), time.Hour))
		w.Pass(30*time.Minute - time.Since(start))
		require.True(w, l.IsHeld())
		leases := map[string]int{}
		for _, c := range f.Sent("renew") {
			if c.Sent.Sub(start) > 15*time.Second {
				leases[c.Args[5]]++
			}
		}
		require.NotEmpty(w, leases)
		require.Greater(w, w.Pttl("orders:42"), 30*time.Minute, leases)
		w.Unlock(l)
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
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := w.RegistryOn(kit.Apart(f.Client()), lockregistry.WithRenewal(),
					lockregistry.WithLease(6*time.Second), lockregistry.WithCommandTimeout(time.Hour))
				l := r.Obtain("42")
				w.Lock(l)
				w.Pass(3 * time.Second) // the server knows the script from now on
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				answer := make(chan struct{})
				f.Fates("renew", kit.HeldUp(answer), kit.Refused("LOADING Redis is loading the dataset in memory"))
				renewed := w.Goroutine().Start(func() error { return r.Renew(w.Context(), "42", ttl) })
				w.Pass(9 * time.Second)
				w.Unended(ended)
				w.Pending(renewed)
				close(answer)
				require.NoError(w, <-renewed)
				w.Pass(time.Minute)
				w.Unended(ended)
				w.Unlock(l)
			})
		})
	}
}

// A hold that is released while its renewal waits to be sent, or to be sent again, is not renewed.
func TestLease_WhatIsReleasedMeanwhileIsNotRenewed(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"all workers are busy": false, "the server does not know the script": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := w.RegistryOn(kit.Apart(f.Client()), lockregistry.WithRenewal(), lockregistry.WithLease(6*time.Second))
				l := r.Obtain("42")
				answer := make(chan struct{})
				if again {
					f.Fate("renew", kit.RefusedAfter(answer, "NOSCRIPT No matching script. Please use EVAL."))
				} else {
					f.Fate("renew", kit.HeldUp(answer))
					for i := range 4 { // as many pipelines as may be under way at once
						w.Lock(r.Obtain(strconv.Itoa(i)))
						w.Pass(10 * time.Millisecond)
					}
				}
				w.Lock(l)
				w.Pass(2100 * time.Millisecond)
				sent := f.Count("renew")
				w.Unlock(l)
				close(answer)
				w.Settle()
				require.Positive(w, sent)
				for _, c := range f.Sent("renew")[sent:] {
					require.NotContains(w, c.Args, "orders:42")
				}
			})
		})
	}
}

// The lease counts from before the command was sent, since the server may have executed it at once.
func TestLease_TheLeaseCountsFromTheSendingOfTheCommand(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		f.Fates("obtain", kit.SlowReply(400*time.Millisecond))
		w.Lock(l, lockregistry.Lease(10*time.Second))
		require.Equal(w, 9600*time.Millisecond, w.Pttl("orders:42"))
		end := <-w.Watch(l.Context(w.Context()), "orders:42")
		require.Greater(w, end.Left, kit.DriftMargin(10*time.Second))

		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.Lock(l, lockregistry.Lease(10*time.Second))
		ended := w.Watch(l.Context(w.Context()), "orders:42")
		require.NoError(w, l.Renew(w.Context(), 10*time.Second)) // the server knows the script from now on
		f.Fates("renew", kit.SlowReply(400*time.Millisecond))
		require.NoError(w, l.Renew(w.Context(), 5*time.Second))
		end = <-ended
		require.Greater(w, end.Left, kit.DriftMargin(5*time.Second))
	})
}

// The age of the registry, and of others on its client, makes no difference.
func TestLease_TheLeaseCountsForRegistriesOfAnyAge(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		client := w.Client()
		for range 3 {
			l := w.RegistryOn(client).Obtain("42")
			w.Lock(l, lockregistry.Lease(10*time.Second))
			end := <-w.Watch(l.Context(w.Context()), kit.TheKey)
			require.GreaterOrEqual(w, end.Left, kit.DriftMargin(10*time.Second))
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
			w.Pass(time.Hour)
		}
	})
}

func TestLease_AGrantThatArrivesAfterItsLeaseIsNone(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithLease(time.Second), lockregistry.WithCommandTimeout(time.Minute))
		l := r.Obtain("42")
		f.Fates("obtain", kit.SlowReply(995*time.Millisecond)) // within the margin
		f.Fates("renew", kit.SlowReply(995*time.Millisecond))
		ok, err := l.TryLock(w.Context())
		require.False(w, ok)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.False(w, l.IsHeld())
		w.Settle()
		require.True(w, w.Free("orders:42"), "what is left of it is removed")

		f.Fates("obtain", kit.SlowReply(2*time.Second))
		require.Error(w, l.Lock(w.Context()))
		require.True(w, w.Free("orders:42"))
		require.True(w, w.TryElsewhere(l))
	})
}

// While it waits, a call tries again after a grant that arrived too late.
func TestLease_AWaiterTriesAgainAfterALateGrant(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithLease(time.Second), kit.Polling, lockregistry.WithCommandTimeout(time.Minute)).Obtain("42")
		w.Do("SET", "orders:42", uuid.NewString(), "PX", "350")
		locked := w.Goroutine().Starts(l)
		w.Settle()
		w.Pass(340 * time.Millisecond)
		f.Fates("obtain", kit.SlowReply(2*time.Second))
		w.Settle()
		start := time.Now()
		require.NoError(w, <-locked)
		require.GreaterOrEqual(w, time.Since(start), 2*time.Second)
		require.True(w, l.IsHeld())
		require.Greater(w, w.Pttl("orders:42"), 900*time.Millisecond)
	})
}

// Renewal in the background.

func TestLease_RenewalEachThirdOfTheLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		standard, custom := r.Obtain("standard"), r.Obtain("custom")
		start := time.Now()
		w.Lock(standard)
		w.Lock(custom, lockregistry.Lease(12*time.Second))
		ends := []<-chan kit.ContextEnd{
			w.Watch(standard.Context(w.Context()), "orders:standard"), w.Watch(custom.Context(w.Context()), "orders:custom"),
		}
		w.Pass(61 * time.Second)
		times := map[string][]int{}
		for _, c := range f.Sent("renew") {
			after := c.Sent.Sub(start)
			require.Zero(w, after%time.Second)
			times[c.Args[3]] = append(times[c.Args[3]], int(after/time.Second))
		}
		require.Equal(w, []int{10, 20, 30, 40, 50, 60}, slices.Compact(times["orders:standard"]))
		require.Equal(w, []int{4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60}, slices.Compact(times["orders:custom"]))
		require.Equal(w, 29*time.Second, w.Pttl("orders:standard"), "with the lease that it had")
		require.Equal(w, 11*time.Second, w.Pttl("orders:custom"))
		require.True(w, standard.IsHeld())
		require.True(w, custom.IsHeld())
		for _, ended := range ends {
			w.Unended(ended)
		}
		w.Unlock(standard)
		w.Unlock(custom)
	})
}

func TestLease_RenewalEndsWithTheHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := w.RegistryOn(f.Client(kit.Unasked), lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		l, next := r.Obtain("42"), r.Obtain("next")
		w.Lock(l)
		w.Pass(10500 * time.Millisecond)
		w.Unlock(l)
		renewals := f.Count("renew")
		require.Positive(w, renewals)
		w.Pass(time.Hour)
		require.Equal(w, renewals, f.Count("renew"))

		// Nor does renewal resume for a hold that is lost, or while others hold the key.
		w.Lock(next)
		w.Do("SET", "orders:next", uuid.NewString(), "PX", "60000")
		require.ErrorIs(w, (<-w.Watch(next.Context(w.Context()), "orders:next")).Cause, lockregistry.ErrLockLost)
		renewals = f.Count("renew")
		w.Pass(time.Minute)
		require.Equal(w, renewals, f.Count("renew"))
		require.True(w, w.Free("orders:next"))
	})
}

func TestLease_RenewalEndsWithTheRegistry(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		w.Lock(r.Obtain("42"))
		w.Pass(10500 * time.Millisecond)
		renewals := f.Count("renew")
		require.NoError(w, r.Close())
		w.Pass(3 * time.Second)
		require.Equal(w, renewals, f.Count("renew"))
		require.True(w, w.Free("orders:42"), "left to its lease")
	})
}

func TestLease_ReentryAddsNoRenewal(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)).Obtain("42")
		for range 5 {
			w.Lock(l)
		}
		before := f.Count("renew")
		w.Pass(30 * time.Second)
		// One renewal a second. The first one may be sent twice, because the server does not know the script yet.
		require.LessOrEqual(w, f.Count("renew")-before, 31)
		require.GreaterOrEqual(w, f.Count("renew")-before, 29)
		for range 4 {
			w.Unlock(l)
		}
		before = f.Count("renew")
		w.Pass(30 * time.Second)
		require.InDelta(w, 30, f.Count("renew")-before, 1)
		require.True(w, l.IsHeld())
		w.Unlock(l)
	})
}

// A renewal that is under way when the lock is released must not affect the next hold.
func TestLease_ALateRenewalDoesNotTouchTheNextHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(30*time.Second))
		f.Fate("renew", kit.Silence)
		w.Pass(11 * time.Second) // one was sent, on a connection that is dead from here on
		late := f.Sent("renew")
		require.NotEmpty(w, late)
		f.Reconnect()
		w.Unlock(l)
		require.True(w, w.Free("orders:42"))
		require.Equal(w, "0", w.Arrives(late[0]))
		require.True(w, w.Free("orders:42"))

		w.Lock(l, lockregistry.Lease(20*time.Second))
		require.Equal(w, "-1", w.Arrives(late[0]))
		require.Equal(w, 20*time.Second, w.Pttl("orders:42"))
		w.Unlock(l)
		other := w.Registry().Obtain("42")
		w.Lock(other, lockregistry.Lease(20*time.Second))
		require.Equal(w, "-1", w.Arrives(late[0]))
		require.Equal(w, 20*time.Second, w.Pttl("orders:42"))
	})
}

// The server renews, but its reply arrives after the hold was lost: it stays lost.
func TestLease_ALateRenewalDoesNotReviveALostHold(t *testing.T) {
	t.Parallel()
	for _, byItself := range []bool{true, false} {
		t.Run(map[bool]string{true: "scheduled", false: "called"}[byItself], func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				opts := []lockregistry.Option{lockregistry.WithLease(3 * time.Second), lockregistry.WithCommandTimeout(time.Minute)}
				if byItself {
					opts = append(opts, lockregistry.WithRenewal())
				}
				l := f.Registry(opts...).Obtain("42")
				w.Lock(l)
				require.NoError(w, l.Renew(w.Context(), 3*time.Second)) // the server knows the script from now on
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				if byItself {
					f.Fate("renew", kit.SlowReply(2500*time.Millisecond))
				} else {
					f.Fates("renew", kit.SlowReply(2500*time.Millisecond))
				}
				w.Pass(time.Second - time.Millisecond)
				if !byItself {
					require.ErrorIs(w, l.Renew(w.Context(), 10*time.Second), lockregistry.ErrLockLost)
				}
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				w.Pass(2 * time.Second)
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Lock(w.Context()), lockregistry.ErrLockLost)
				renewals := f.Count("renew")
				w.Pass(time.Minute)
				require.Equal(w, renewals, f.Count("renew"))
			})
		})
	}
}

func TestLease_RenewalOutlastsFailures(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]kit.Fate{
		"loading":    kit.Refused("LOADING Redis is loading the dataset in memory"),
		"readonly":   kit.Refused("READONLY You can't write against a read only replica."),
		"cut":        kit.Cut,
		"lost reply": kit.CutAfter,
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(9*time.Second)).Obtain("42")
				w.Lock(l)
				ended := w.Watch(l.Context(w.Context()), "orders:42")
				for range 3 {
					f.Fate("renew", failing)
					w.Pass(5 * time.Second)
					f.Forget()
					w.Pass(time.Minute)
				}
				w.Unended(ended)
				require.True(w, l.IsHeld())
				require.Greater(w, w.Pttl("orders:42"), 5*time.Second)
				w.Unlock(l)

				// If they last too long, the loss is reported in time.
				w.Lock(l)
				ended = w.Watch(l.Context(w.Context()), "orders:42")
				f.Fate("renew", failing)
				end := <-ended
				require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
				require.Greater(w, end.Left, kit.DriftMargin(9*time.Second))
				f.Forget()
				w.Pass(time.Minute)
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
			})
		})
	}
}

// While Redis is silent, a renewal waits for its reply as long as the client does; later renewals must go on.
func TestLease_RenewalAfterASilence(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(time.Minute)).Obtain("42")
		w.Lock(l)
		ended := w.Watch(l.Context(w.Context()), "orders:42")
		f.Fate("renew", kit.Silence)
		w.Pass(25 * time.Second)
		f.Forget()
		w.Pass(5 * time.Minute)
		w.Unended(ended)
		require.True(w, l.IsHeld())
		w.Unlock(l)
	})
}

// Many locks are renewed together, and each in time.
func TestLease_RenewalOfManyLocks(t *testing.T) {
	kit.FakeWorldAlone(t, func(w *kit.World) {
		const locks = 200
		r := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(9*time.Second))
		goroutines := runtime.NumGoroutine()
		for i := range locks {
			w.Lock(r.Obtain(strconv.Itoa(i)))
		}
		w.Pass(20 * time.Second)
		require.Less(w, runtime.NumGoroutine()-goroutines, 20)
		for i := range locks {
			l := r.Obtain(strconv.Itoa(i))
			require.True(w, l.IsHeld())
			require.Greater(w, w.Pttl(kit.Key(l)), 5*time.Second)
			w.Unlock(l)
		}
		require.Equal(w, "0", w.Keys())
	})
}

// The holder has died silently. A waiter gets the lock when the lease is over.
func TestLease_ALockOutlivesItsHolderForALeaseAtMost(t *testing.T) {
	t.Parallel()
	for _, mode := range []kit.Wakeup{kit.WakeupPoll, kit.WakeupAuto} {
		t.Run(strconv.Itoa(int(mode)), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				const lease, poll = 5 * time.Second, 100 * time.Millisecond
				crashing := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
				l := w.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(poll)).Obtain("42")
				w.Lock(crashing.Obtain("42"))
				locked := w.Goroutine().Starts(l)
				w.Pass(13 * time.Second)
				w.Pending(locked)
				require.NoError(w, crashing.Close()) // no renewal any more, and nobody unlocks
				left := w.Pttl("orders:42")
				start := time.Now()
				require.NoError(w, <-locked)
				require.GreaterOrEqual(w, time.Since(start), left)
				require.LessOrEqual(w, time.Since(start), left+poll)
			})
		})
	}
}
