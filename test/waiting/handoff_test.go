package waiting_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// handoff is a process in fake time whose commands are recorded.
type handoff struct {
	*kit.World
	net *kit.Flaky
	reg *lockregistry.Registry
	l   *lockregistry.Lock
}

func handoffs(t *testing.T, test func(h *handoff), opts ...lockregistry.Option) {
	t.Helper()
	kit.FakeWorld(t, func(w *kit.World) {
		w.Loaded("spring") // a script that the server does not know yet costs a second command
		f := w.Flaky()
		r := f.Registry(opts...)
		test(&handoff{w, f, r, r.Obtain("42")})
	})
}

// number returns the number of the hold that has the key.
func (h *handoff) number() int {
	h.Helper()
	value := h.Do("GET", kit.TheKey)
	require.True(h, strings.HasPrefix(value, kit.ClientID(h.reg)+":"), value)
	n, err := strconv.Atoi(value[strings.LastIndex(value, ":")+1:])
	require.NoError(h, err)
	return n
}

// queue starts a goroutine that waits for the lock.
func (h *handoff) queue(opts ...lockregistry.LockOption) (*kit.Goroutine, <-chan error) {
	h.Helper()
	g := h.Goroutine()
	result := g.Starts(h.l, opts...)
	h.Settle()
	h.Pending(result)
	return g, result
}

// pass hands the lock from one goroutine to the next, which must have it when everybody waits again.
func (h *handoff) pass(from *kit.Goroutine, to <-chan error) {
	h.Helper()
	h.Pending(to)
	require.NoError(h, from.Unlock(h.l))
	h.Settle()
	select {
	case err := <-to:
		require.NoError(h, err)
	default:
		h.Fatal("the next one does not have the lock")
	}
}

// handed hands the lock over, and reports whether the hold stayed, without a release in Redis.
func (h *handoff) handed(from *kit.Goroutine, to <-chan error) bool {
	h.Helper()
	number, releases := h.number(), h.net.Count("release")
	h.pass(from, to)
	kept := h.number() == number
	require.Equal(h, kept, h.net.Count("release") == releases)
	return kept
}

func (h *handoff) first(opts ...lockregistry.LockOption) *kit.Goroutine {
	h.Helper()
	g := h.Goroutine()
	require.NoError(h, g.Lock(h.l, opts...))
	return g
}

func TestHandoff_NeedsNoCommand(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const goroutines = 20
		g := h.first()
		number := h.number()
		queue := make([]*kit.Goroutine, 0, goroutines)
		results := make([]<-chan error, 0, goroutines)
		for range goroutines {
			next, result := h.queue()
			queue, results = append(queue, next), append(results, result)
		}
		before := h.net.Commands()
		for i, next := range queue {
			for _, later := range results[i+1:] {
				h.Pending(later)
			}
			h.pass(g, results[i])
			require.True(h, h.l.IsHeld())
			require.ErrorIs(h, g.Unlock(h.l), lockregistry.ErrNotOwner)
			require.False(h, h.TryElsewhere(h.l))
			require.NoError(h, next.Watch(h.l).Err())
			g = next
		}
		require.Equal(h, before, h.net.Commands(), "no command was sent")
		require.Equal(h, number, h.number())

		// The last one releases, once.
		require.NoError(h, g.Unlock(h.l))
		require.Equal(h, 1, h.net.Count("release"))
		require.True(h, h.Free(kit.TheKey))
		require.False(h, h.l.IsHeld())
	})
}

// On a real server, goroutines lock and unlock as fast as they can.
func TestHandoff_OnRealServers(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const goroutines, rounds = 16, 200
		f := w.Flaky()
		r := f.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.Lock(l)
		var all sync.WaitGroup
		var queued sync.WaitGroup
		inside := 0
		for range goroutines {
			queued.Add(1)
			all.Go(func() {
				queued.Done()
				for range rounds {
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					inside++
					if err := w.UnlessLate(l.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
		queued.Wait()
		w.Unlock(l)
		all.Wait()
		require.Equal(w, goroutines*rounds, inside)
		// The queue may run empty now and then, and then the lock is released; that must not be the rule.
		w.Log(f.LockCommands(), "commands about locks")
		require.Less(w, f.LockCommands(), goroutines*rounds/4)
	})
}

func TestHandoff_InOrderOfArrival(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const goroutines = 50
		g := h.first()
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() {
				if err := h.l.Lock(h.Context()); err != nil {
					h.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				h.Pass(7 * time.Millisecond) // so that some are handed the lock, and others have to obtain it
				if err := h.l.Unlock(h.Context()); err != nil {
					h.Error(err)
				}
			})
			h.Settle()
		}
		require.NoError(h, g.Unlock(h.l))
		all.Wait()
		for i, who := range order {
			require.Equal(h, i, who)
		}
		require.Greater(h, h.net.Count("release"), 2, "the limit was reached, too")
	})
}

// Each owner has its own loss signal: it ends when that owner no longer has the hold, whatever happens to the hold.
func TestHandoff_ContextsAtHandoff(t *testing.T) {
	handoffs(t, func(h *handoff) {
		a := h.first()
		outer, inner := a.Watch(h.l), a.Watch(h.l)
		b, has := h.queue()
		require.NoError(h, outer.Err())
		h.pass(a, has)
		for _, ctx := range []context.Context{outer, inner} {
			require.ErrorIs(h, ctx.Err(), context.Canceled)
			require.Equal(h, context.Canceled, context.Cause(ctx), "given back, not lost")
		}
		require.ErrorIs(h, context.Cause(a.Watch(h.l)), lockregistry.ErrNotOwner)

		ctx := b.Watch(h.l)
		require.NoError(h, ctx.Err())
		c, has := h.queue()
		h.pass(b, has)
		require.Equal(h, context.Canceled, context.Cause(ctx))

		// c has the lease that began with a's lock, and learns of its loss before the key can expire.
		ctx = c.Watch(h.l)
		expiry := h.Pttl(kit.TheKey)
		start := time.Now()
		<-ctx.Done()
		require.Less(h, time.Since(start), expiry)
		require.Greater(h, time.Since(start), expiry*9/10)
		require.ErrorIs(h, context.Cause(ctx), lockregistry.ErrLockLost)
		require.Equal(h, context.Canceled, context.Cause(outer))
		h.Pass(expiry)
		require.ErrorIs(h, c.Unlock(h.l), lockregistry.ErrLockLost)
	})
}

func TestHandoff_ContextAtHandoffOfNestedLocks(t *testing.T) {
	handoffs(t, func(h *handoff) {
		a := h.first()
		require.NoError(h, a.Lock(h.l))
		ctx := a.Watch(h.l)
		_, has := h.queue()
		require.NoError(h, a.Unlock(h.l)) // not the last one
		h.Settle()
		h.Pending(has)
		require.NoError(h, ctx.Err())
		h.pass(a, has)
		require.Equal(h, context.Canceled, context.Cause(ctx))
	})
}

func TestHandoff_EndsWithTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 250 * time.Millisecond
	for name, c := range map[string]struct {
		options []lockregistry.Option
		limit   time.Duration
	}{
		"as told":              {[]lockregistry.Option{lockregistry.WithHandoff(limit)}, limit},
		"by default":           {nil, 100 * time.Millisecond},
		"a long poll interval": {[]lockregistry.Option{lockregistry.WithPollInterval(time.Hour)}, 100 * time.Millisecond},
		"renewed": {[]lockregistry.Option{
			lockregistry.WithHandoff(limit), lockregistry.WithRenewal(), lockregistry.WithLease(300 * time.Millisecond),
		}, limit},
	} {
		t.Run(name, func(t *testing.T) {
			handoffs(t, func(h *handoff) {
				g := h.first()
				step := c.limit / 5
				for held := step; ; held += step {
					next, has := h.queue()
					h.Pass(step)
					if held < c.limit {
						require.True(h, h.handed(g, has), "held for %v", held)
						g = next
						continue
					}
					// The limit is over: others may have the lock.
					require.Equal(h, c.limit, held)
					number := h.number()
					require.NoError(h, g.Unlock(h.l))
					require.NoError(h, <-has)
					require.Greater(h, h.number(), number)
					g = next

					// From here the limit counts anew.
					_, has = h.queue()
					require.True(h, h.handed(g, has))
					return
				}
			}, c.options...)
		})
	}
}

func TestHandoff_NeedsHalfALease(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const lease = 10 * time.Second
		for left, kept := range map[time.Duration]bool{
			lease:                          true,
			lease/2 + 200*time.Millisecond: true, // a hold counts on a little less than Redis
			lease / 2:                      false,
			lease / 10:                     false,
		} {
			g := h.first(lockregistry.Lease(lease))
			next, has := h.queue(lockregistry.Lease(lease))
			h.Pass(lease - left)
			number := h.number()
			require.NoError(h, g.Unlock(h.l))
			require.NoError(h, <-has)
			require.Equal(h, kept, h.number() == number, "%v left", left)
			if !kept {
				require.Equal(h, lease, h.Pttl(kit.TheKey), "obtained anew")
			}
			require.NoError(h, next.Unlock(h.l))
		}
	}, lockregistry.WithHandoff(time.Hour))
}

func TestHandoff_NoHandoffOfALostLock(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(h *handoff, owner *kit.Goroutine){
		"the lease is over":        func(h *handoff, _ *kit.Goroutine) { h.Pass(61 * time.Second) },
		"the lease is almost over": func(h *handoff, _ *kit.Goroutine) { h.Pass(60*time.Second - time.Millisecond) },
		"a renewal found no key": func(h *handoff, owner *kit.Goroutine) {
			h.Do("DEL", kit.TheKey)
			require.ErrorIs(h, owner.Do(func() error { return h.l.Renew(h.Context(), time.Minute) }), lockregistry.ErrLockLost)
		},
		"another lock found no key": func(h *handoff, owner *kit.Goroutine) {
			h.Do("DEL", kit.TheKey)
			require.ErrorIs(h, owner.Lock(h.l), lockregistry.ErrLockLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			handoffs(t, func(h *handoff) {
				g := h.first()
				ctx := g.Watch(h.l)
				next, has := h.queue()
				obtains := h.net.Count("obtain")
				lose(h, g)
				h.Settle()
				require.ErrorIs(h, context.Cause(ctx), lockregistry.ErrLockLost)
				require.NoError(h, <-has, "the next one does not wait for an owner that lost the lock")
				require.Greater(h, h.net.Count("obtain"), obtains, "obtained anew")
				number := h.number()
				require.Greater(h, number, 1)
				require.ErrorIs(h, g.Unlock(h.l), lockregistry.ErrLockLost)
				require.ErrorIs(h, g.Unlock(h.l), lockregistry.ErrNotOwner)
				require.Equal(h, number, h.number())
				require.NoError(h, next.Watch(h.l).Err())
				require.NoError(h, next.Unlock(h.l))
			}, lockregistry.WithHandoff(time.Hour))
		})
	}
}

func TestHandoff_ToWhoWantsALongerLease(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const lease = 10 * time.Second
		for wanted, kept := range map[time.Duration]bool{
			time.Second:              false, // the crash of its owner would block everybody for too long
			lease - 4*time.Second:    false,
			lease - 3*time.Second:    true,
			lease:                    true,
			lease + time.Millisecond: false,
			time.Hour:                false,
		} {
			g := h.first(lockregistry.Lease(lease))
			next, has := h.queue(lockregistry.Lease(wanted))
			require.Equal(h, kept, h.handed(g, has), "%v", wanted)
			if !kept {
				require.Equal(h, wanted, h.Pttl(kit.TheKey))
			}
			require.NoError(h, next.Unlock(h.l))
		}

		// The same without a lease: then the call asks for the registry's lease.
		g := h.first(lockregistry.Lease(lease))
		next, has := h.queue()
		require.False(h, h.handed(g, has))
		require.Equal(h, time.Minute, h.Pttl(kit.TheKey))

		// A renewal by the owner makes longer leases fit, or no longer fit.
		after, has := h.queue(lockregistry.Lease(time.Hour))
		require.NoError(h, next.Do(func() error { return h.l.Renew(h.Context(), time.Hour) }))
		require.True(h, h.handed(next, has))
		last, has := h.queue()
		require.NoError(h, after.Do(func() error { return h.l.Renew(h.Context(), time.Second) }))
		require.False(h, h.handed(after, has))

		// A waiter at the head of the queue with a longer lease is not overtaken by one with a shorter lease.
		more, gotMore := h.queue(lockregistry.Lease(time.Hour))
		_, gotLess := h.queue(lockregistry.Lease(time.Second))
		require.False(h, h.handed(last, gotMore))
		h.Pending(gotLess)
		require.False(h, h.handed(more, gotLess))
	}, lockregistry.WithHandoff(time.Hour))
}

func TestHandoff_TurnedOff(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		for range 5 {
			next, has := h.queue()
			require.False(h, h.handed(g, has))
			g = next
		}
		require.Equal(h, 5, h.net.Count("release"))
	}, lockregistry.WithHandoff(0))
}

func TestHandoff_RenewalGoesOnAcrossHandoff(t *testing.T) {
	const lease = 3 * time.Second
	handoffs(t, func(h *handoff) {
		g := h.first()
		number := h.number()
		for range 20 {
			next, has := h.queue()
			h.Pass(700 * time.Millisecond)
			require.GreaterOrEqual(h, h.Pttl(kit.TheKey), lease/2)
			require.True(h, h.handed(g, has))
			g = next
		}
		require.Equal(h, number, h.number())
		held := 20 * 700 * time.Millisecond
		renewals := h.net.Count("renew")
		require.InDelta(h, int(held/(lease/3)), renewals, 1, "one renewal each third of the lease, however many owners there were")
		require.Equal(h, 1, h.net.Count("obtain"))

		// The handoffs end with the last one.
		require.NoError(h, g.Unlock(h.l))
		renewals = h.net.Count("renew")
		h.Pass(2 * lease)
		require.Equal(h, renewals, h.net.Count("renew"))
	}, lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
}

// A waiter that gives up at the very moment when it is handed the lock either has it or does not.
func TestHandoff_GivingUpAtHandoff(t *testing.T) {
	t.Parallel()
	for _, limit := range []time.Duration{time.Hour, 0} {
		for name, give := range map[string]struct {
			wait   []lockregistry.LockOption
			cancel bool
			err    error
		}{
			"cancelled": {nil, true, context.Canceled},
			"timed out": {[]lockregistry.LockOption{lockregistry.Wait(time.Second)}, false, lockregistry.ErrTaken},
		} {
			t.Run(name+", handoff "+limit.String(), func(t *testing.T) {
				handoffs(t, func(h *handoff) {
					const rounds = 40
					got := 0
					for round := range rounds {
						h.l = h.reg.Obtain(strconv.Itoa(round))
						g := h.first()
						ctx, cancel := context.WithCancel(h.Context())
						waiter := h.Goroutine()
						result := waiter.Start(func() error { return h.l.Lock(ctx, give.wait...) })
						h.Settle()
						var later *kit.Goroutine
						hasLater := make(<-chan error)
						if round%2 == 0 {
							later, hasLater = h.queue()
						}

						// Both at the same moment, in any order.
						unlocked := g.Start(func() error {
							<-time.After(time.Second)
							return h.l.Unlock(h.Context())
						})
						if give.cancel {
							time.AfterFunc(time.Second, cancel)
						}
						err := <-result
						require.NoError(h, <-unlocked)
						h.Settle()
						if err == nil {
							got++
							h.Pending(hasLater)
							require.True(h, h.l.IsHeld())
							require.NoError(h, waiter.Unlock(h.l))
						} else {
							require.ErrorIs(h, err, give.err)
							require.ErrorIs(h, waiter.Unlock(h.l), lockregistry.ErrNotOwner)
						}
						h.Settle()
						if later != nil {
							require.NoError(h, <-hasLater, "whoever comes next has the lock")
							require.NoError(h, later.Unlock(h.l))
						}
						require.True(h, h.Free(kit.Key(h.l)))
						require.False(h, h.l.IsHeld())
						cancel()
					}
					h.Logf("%d of %d got the lock", got, rounds)
				}, lockregistry.WithHandoff(limit))
			})
		}
	}
}

// Two goroutines of one owner are both handed the lock, and both have to release it.
func TestHandoff_TwinsAtHandoff(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		same := lockregistry.ContextWithOwner(h.Context())
		one := kit.LockElsewhere(h.l, same)
		h.Settle()
		next, between := h.queue()
		other := kit.LockElsewhere(h.l, same)
		h.Settle()
		number := h.number()
		h.pass(g, one)
		h.Settle()
		require.NoError(h, <-other, "its owner has the lock, so who waited between them does not come first")
		h.Pending(between)
		require.Equal(h, number, h.number())
		ctx := h.l.Context(same)
		require.NoError(h, ctx.Err())

		require.NoError(h, h.l.Unlock(same))
		h.Settle()
		h.Pending(between)
		require.NoError(h, ctx.Err())
		require.NoError(h, h.l.Unlock(same))
		h.Settle()
		require.NoError(h, <-between)
		require.Equal(h, context.Canceled, context.Cause(ctx))
		require.ErrorIs(h, h.l.Unlock(same), lockregistry.ErrNotOwner)
		require.Equal(h, number, h.number())
		require.NoError(h, next.Unlock(h.l))
		require.True(h, h.Free(kit.TheKey))
	}, lockregistry.WithHandoff(time.Hour))
}

// A handoff wakes no other process, which gets the lock at once when the handoffs are over.
func TestHandoff_WakesNoOtherProcess(t *testing.T) {
	handoffs(t, func(h *handoff) {
		net := h.Flaky()
		other := net.Registry(lockregistry.WithPollInterval(kit.NoPoll)).Obtain("42")
		g := h.first()
		elsewhere := kit.LockElsewhere(other, h.Context())
		next, has := h.queue()
		tries := net.Count("obtain")
		h.pass(g, has)
		h.Pending(elsewhere)
		require.Equal(h, tries, net.Count("obtain"))
		require.NoError(h, next.Unlock(h.l))
		h.Settle()
		require.NoError(h, <-elsewhere)
	}, lockregistry.WithHandoff(time.Hour))
}

// Do hands over, too, and fn's context belongs to that call alone.
func TestHandoff_DoHandsOver(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const calls = 10
		causes := make([]error, calls)
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				var mine context.Context
				err := h.reg.Do(h.Context(), "42", func(ctx context.Context) error {
					mine = ctx
					h.Pass(time.Millisecond)
					return ctx.Err()
				})
				if causes[i] = context.Cause(mine); err != nil {
					causes[i] = err
				}
			})
		}
		all.Wait()
		for _, err := range causes {
			require.Equal(h, context.Canceled, err)
		}
		require.Equal(h, 1, h.net.Count("release"))
	})
}

// If the hold is lost while it is handed over, the next owner obtains one of its own.
func TestHandoff_LostDuringHandoff(t *testing.T) {
	t.Parallel()
	losses := map[string]func(w *kit.World, r *lockregistry.Registry){
		"removed by force": func(w *kit.World, r *lockregistry.Registry) {
			require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
		},
		"the lease is over": func(w *kit.World, _ *lockregistry.Registry) { w.Pass(time.Minute) },
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry(lockregistry.WithHandoff(time.Hour))
				l := r.Obtain("42")
				w.Lock(l)
				ctx := l.Context(w.Context())
				g := w.Goroutine()
				next := g.Starts(l)
				w.Settle()
				require.True(w, kit.Handoff(l, func() { lose(w, r) }))
				require.Equal(w, context.Canceled, context.Cause(ctx))
				require.NoError(w, <-next)
				require.True(w, l.IsHeld())
				require.NoError(w, g.Unlock(l))
				require.True(w, w.Free("orders:42"))
			})
		})
	}
}

// When the next owner wakes up, the hold may be gone, and yet another owner may have the lock.
func TestHandoff_ForceUnlockDuringHandoff(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const holds = 3000
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		var sections, forced sync.WaitGroup
		done := make(chan struct{})
		for range 8 {
			sections.Go(func() {
				for range holds / 8 {
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					err := w.UnlessLate(l.Unlock(w.Context()))
					if err != nil && !errors.Is(err, lockregistry.ErrLockLost) {
						w.Error(err)
					}
				}
			})
		}
		forced.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if err := inspect.Of(r).ForceUnlock(w.Context(), "42"); err != nil {
						w.Error(err)
					}
				}
			}
		})
		sections.Wait()
		close(done)
		forced.Wait()
		require.False(w, l.IsHeld())
		w.Lock(l)
		w.Unlock(l)
	})
}
