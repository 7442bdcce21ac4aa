package lockregistry_test

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
)

// handoff is a process in fake time whose commands are seen.
type handoff struct {
	*world
	net *flaky
	reg *lockregistry.Registry
	l   *lockregistry.Lock
}

func handoffs(t *testing.T, test func(h *handoff), opts ...lockregistry.Option) {
	t.Helper()
	fakeWorld(t, func(w *world) {
		w.loaded("spring") // a script that the server does not know yet costs a second command
		f := w.flaky()
		r := f.registry(opts...)
		test(&handoff{w, f, r, r.Obtain("42")})
	})
}

// commands is how many commands were sent so far, but for those by which rueidis finds out whether connections live, and for
// records.
func (f *flaky) commands() (n int) {
	for _, c := range f.sent(anything) {
		if c.Name != "PING" && c.Name != record && !c.Pushed {
			n++
		}
	}
	return n
}

// number is that of the hold which has the key.
func (h *handoff) number() int {
	h.Helper()
	value := h.do("GET", theKey)
	require.True(h, strings.HasPrefix(value, h.reg.ClientID()+":"), value)
	n, err := strconv.Atoi(value[strings.LastIndex(value, ":")+1:])
	require.NoError(h, err)
	return n
}

// queue starts a goroutine that waits for the lock.
func (h *handoff) queue(opts ...lockregistry.LockOption) (*goroutine, <-chan error) {
	h.Helper()
	g := h.goroutine()
	result := g.starts(h.l, opts...)
	h.settle()
	h.pending(result)
	return g, result
}

// watch is the context that a goroutine's hold has.
func (g *goroutine) watch(l *lockregistry.Lock) (ctx context.Context) {
	_ = g.do(func() error {
		ctx = l.Context(context.Background())
		return nil
	})
	return ctx
}

// pass hands the lock from one goroutine to the next, which must have it when everybody waits again.
func (h *handoff) pass(from *goroutine, to <-chan error) {
	h.Helper()
	h.pending(to)
	require.NoError(h, from.unlock(h.l))
	h.settle()
	select {
	case err := <-to:
		require.NoError(h, err)
	default:
		h.Fatal("the next one does not have the lock")
	}
}

// handed tells whether the hold was passed on, or released in Redis.
func (h *handoff) handed(from *goroutine, to <-chan error) bool {
	h.Helper()
	number, releases := h.number(), h.net.count("release")
	h.pass(from, to)
	kept := h.number() == number
	require.Equal(h, kept, h.net.count("release") == releases)
	return kept
}

func (h *handoff) first(opts ...lockregistry.LockOption) *goroutine {
	h.Helper()
	g := h.goroutine()
	require.NoError(h, g.lock(h.l, opts...))
	return g
}

func TestHandOver_NeedsNoCommand(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const goroutines = 20
		g := h.first()
		number := h.number()
		queue := make([]*goroutine, 0, goroutines)
		results := make([]<-chan error, 0, goroutines)
		for range goroutines {
			next, result := h.queue()
			queue, results = append(queue, next), append(results, result)
		}
		before := h.net.commands()
		for i, next := range queue {
			for _, later := range results[i+1:] {
				h.pending(later)
			}
			h.pass(g, results[i])
			require.True(h, h.l.IsHeld())
			require.ErrorIs(h, g.unlock(h.l), lockregistry.ErrNotOwner)
			require.False(h, h.tryElsewhere(h.l))
			require.NoError(h, next.watch(h.l).Err())
			g = next
		}
		require.Equal(h, before, h.net.commands(), "no command was sent")
		require.Equal(h, number, h.number())

		// The last one releases, once.
		require.NoError(h, g.unlock(h.l))
		require.Equal(h, 1, h.net.count("release"))
		require.True(h, h.free(theKey))
		require.False(h, h.l.IsHeld())
	})
}

// A real server, and goroutines that lock and unlock as fast as they can.
func TestHandOver_OnRealServers(t *testing.T) {
	realWorlds(t, func(w *world) {
		const goroutines, rounds = 16, 200
		f := w.flaky()
		r := f.registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		w.lock(l)
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
					if err := l.Unlock(w.Context()); err != nil {
						w.Error(err)
					}
				}
			})
		}
		queued.Wait()
		w.unlock(l)
		all.Wait()
		require.Equal(w, goroutines*rounds, inside)
		// The queue may run empty now and then, and the lock is released then; it must not be the rule.
		w.Log(f.lockCommands(), "commands about locks")
		require.Less(w, f.lockCommands(), goroutines*rounds/4)
	})
}

func TestHandOver_InOrderOfArrival(t *testing.T) {
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
				h.world.pass(7 * time.Millisecond) // so that some are handed the lock, and some have to obtain it
				if err := h.l.Unlock(h.Context()); err != nil {
					h.Error(err)
				}
			})
			h.settle()
		}
		require.NoError(h, g.unlock(h.l))
		all.Wait()
		for i, who := range order {
			require.Equal(h, i, who)
		}
		require.Greater(h, h.net.count("release"), 2, "the limit was reached, too")
	})
}

// Each owner has a loss signal of its own: it ends with its own possession, whatever becomes of the hold.
func TestHandOver_ContextsAtHandOver(t *testing.T) {
	handoffs(t, func(h *handoff) {
		a := h.first()
		outer, inner := a.watch(h.l), a.watch(h.l)
		b, has := h.queue()
		require.NoError(h, outer.Err())
		h.pass(a, has)
		for _, ctx := range []context.Context{outer, inner} {
			require.ErrorIs(h, ctx.Err(), context.Canceled)
			require.Equal(h, context.Canceled, context.Cause(ctx), "given back, not lost")
		}
		require.ErrorIs(h, context.Cause(a.watch(h.l)), lockregistry.ErrNotOwner)

		ctx := b.watch(h.l)
		require.NoError(h, ctx.Err())
		c, has := h.queue()
		h.pass(b, has)
		require.Equal(h, context.Canceled, context.Cause(ctx))

		// The lease that began with a's lock is c's, and so is its loss, before the key can expire.
		ctx = c.watch(h.l)
		expiry := h.pttl(theKey)
		start := time.Now()
		<-ctx.Done()
		require.Less(h, time.Since(start), expiry)
		require.Greater(h, time.Since(start), expiry*9/10)
		require.ErrorIs(h, context.Cause(ctx), lockregistry.ErrLockLost)
		require.Equal(h, context.Canceled, context.Cause(outer))
		h.world.pass(expiry)
		require.ErrorIs(h, c.unlock(h.l), lockregistry.ErrLockLost)
	})
}

func TestHandOver_ContextAtHandOverOfNestedLocks(t *testing.T) {
	handoffs(t, func(h *handoff) {
		a := h.first()
		require.NoError(h, a.lock(h.l))
		ctx := a.watch(h.l)
		_, has := h.queue()
		require.NoError(h, a.unlock(h.l)) // not the last one
		h.settle()
		h.pending(has)
		require.NoError(h, ctx.Err())
		h.pass(a, has)
		require.Equal(h, context.Canceled, context.Cause(ctx))
	})
}

func TestHandOver_EndsWithTheLimit(t *testing.T) {
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
					h.world.pass(step)
					if held < c.limit {
						require.True(h, h.handed(g, has), "held for %v", held)
						g = next
						continue
					}
					// It is time to let others have the lock.
					require.Equal(h, c.limit, held)
					number := h.number()
					require.NoError(h, g.unlock(h.l))
					require.NoError(h, <-has)
					require.Greater(h, h.number(), number)
					g = next

					// The limit counts anew from here.
					_, has = h.queue()
					require.True(h, h.handed(g, has))
					return
				}
			}, c.options...)
		})
	}
}

func TestHandOver_NeedsHalfALease(t *testing.T) {
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
			h.world.pass(lease - left)
			number := h.number()
			require.NoError(h, g.unlock(h.l))
			require.NoError(h, <-has)
			require.Equal(h, kept, h.number() == number, "%v left", left)
			if !kept {
				require.Equal(h, lease, h.pttl(theKey), "obtained anew")
			}
			require.NoError(h, next.unlock(h.l))
		}
	}, lockregistry.WithHandoff(time.Hour))
}

func TestHandOver_NoHandOverOfALostLock(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(h *handoff, owner *goroutine){
		"the lease is over":        func(h *handoff, _ *goroutine) { h.world.pass(61 * time.Second) },
		"the lease is almost over": func(h *handoff, _ *goroutine) { h.world.pass(60*time.Second - time.Millisecond) },
		"a renewal found no key": func(h *handoff, owner *goroutine) {
			h.do("DEL", theKey)
			require.ErrorIs(h, owner.do(func() error { return h.l.Renew(h.Context(), time.Minute) }), lockregistry.ErrLockLost)
		},
		"another lock found no key": func(h *handoff, owner *goroutine) {
			h.do("DEL", theKey)
			require.ErrorIs(h, owner.lock(h.l), lockregistry.ErrLockLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			handoffs(t, func(h *handoff) {
				g := h.first()
				ctx := g.watch(h.l)
				next, has := h.queue()
				obtains := h.net.count("obtain")
				lose(h, g)
				h.settle()
				require.ErrorIs(h, context.Cause(ctx), lockregistry.ErrLockLost)
				require.NoError(h, <-has, "the next one does not wait for an owner that lost the lock")
				require.Greater(h, h.net.count("obtain"), obtains, "obtained anew")
				number := h.number()
				require.Greater(h, number, 1)
				require.ErrorIs(h, g.unlock(h.l), lockregistry.ErrLockLost)
				require.ErrorIs(h, g.unlock(h.l), lockregistry.ErrNotOwner)
				require.Equal(h, number, h.number())
				require.NoError(h, next.watch(h.l).Err())
				require.NoError(h, next.unlock(h.l))
			}, lockregistry.WithHandoff(time.Hour))
		})
	}
}

func TestHandOver_ToWhoWantsALongerLease(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const lease = 10 * time.Second
		for wanted, kept := range map[time.Duration]bool{
			time.Second:              false, // the crash of its owner would keep everybody out for too long
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
				require.Equal(h, wanted, h.pttl(theKey))
			}
			require.NoError(h, next.unlock(h.l))
		}

		// Also without a lease: what it asks for is then the registry's lease.
		g := h.first(lockregistry.Lease(lease))
		next, has := h.queue()
		require.False(h, h.handed(g, has))
		require.Equal(h, time.Minute, h.pttl(theKey))

		// A renewal by the owner makes room for longer ones, or takes it.
		after, has := h.queue(lockregistry.Lease(time.Hour))
		require.NoError(h, next.do(func() error { return h.l.Renew(h.Context(), time.Hour) }))
		require.True(h, h.handed(next, has))
		last, has := h.queue()
		require.NoError(h, after.do(func() error { return h.l.Renew(h.Context(), time.Second) }))
		require.False(h, h.handed(after, has))

		// Who wants more at the head of the queue is not overtaken by who would take less.
		more, gotMore := h.queue(lockregistry.Lease(time.Hour))
		_, gotLess := h.queue(lockregistry.Lease(time.Second))
		require.False(h, h.handed(last, gotMore))
		h.pending(gotLess)
		require.False(h, h.handed(more, gotLess))
	}, lockregistry.WithHandoff(time.Hour))
}

func TestHandOver_TurnedOff(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		for range 5 {
			next, has := h.queue()
			require.False(h, h.handed(g, has))
			g = next
		}
		require.Equal(h, 5, h.net.count("release"))
	}, lockregistry.WithHandoff(0))
}

func TestHandOver_RenewalGoesOnAcrossHandOver(t *testing.T) {
	const lease = 3 * time.Second
	handoffs(t, func(h *handoff) {
		g := h.first()
		number := h.number()
		for range 20 {
			next, has := h.queue()
			h.world.pass(700 * time.Millisecond)
			require.GreaterOrEqual(h, h.pttl(theKey), lease/2)
			require.True(h, h.handed(g, has))
			g = next
		}
		require.Equal(h, number, h.number())
		held := 20 * 700 * time.Millisecond
		renewals := h.net.count("renew")
		require.InDelta(h, int(held/(lease/3)), renewals, 1, "one renewal each third of the lease, however many owners there were")
		require.Equal(h, 1, h.net.count("obtain"))

		// It ends with the last one.
		require.NoError(h, g.unlock(h.l))
		renewals = h.net.count("renew")
		h.world.pass(2 * lease)
		require.Equal(h, renewals, h.net.count("renew"))
	}, lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
}

// A waiter that gives up at the very moment at which the lock is handed to it has it or does not; there is no third way.
func TestHandOver_GivingUpAtHandOver(t *testing.T) {
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
					const rounds = 100
					got := 0
					for round := range rounds {
						h.l = h.reg.Obtain(strconv.Itoa(round))
						g := h.first()
						ctx, cancel := context.WithCancel(h.Context())
						waiter := h.goroutine()
						result := waiter.start(func() error { return h.l.Lock(ctx, give.wait...) })
						h.settle()
						var later *goroutine
						hasLater := make(<-chan error)
						if round%2 == 0 {
							later, hasLater = h.queue()
						}

						// Both at the same moment, in no order.
						unlocked := g.start(func() error {
							<-time.After(time.Second)
							return h.l.Unlock(h.Context())
						})
						if give.cancel {
							time.AfterFunc(time.Second, cancel)
						}
						err := <-result
						require.NoError(h, <-unlocked)
						h.settle()
						if err == nil {
							got++
							h.pending(hasLater)
							require.True(h, h.l.IsHeld())
							require.NoError(h, waiter.unlock(h.l))
						} else {
							require.ErrorIs(h, err, give.err)
							require.ErrorIs(h, waiter.unlock(h.l), lockregistry.ErrNotOwner)
						}
						h.settle()
						if later != nil {
							require.NoError(h, <-hasLater, "whoever comes next has the lock")
							require.NoError(h, later.unlock(h.l))
						}
						require.True(h, h.free(h.l.Key()))
						require.False(h, h.l.IsHeld())
						cancel()
					}
					h.Logf("%d of %d got the lock", got, rounds)
				}, lockregistry.WithHandoff(limit))
			})
		}
	}
}

// Two goroutines that act as one owner are both handed the lock, and both have to give it back.
func TestHandOver_TwinsAtHandOver(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		same := lockregistry.NewOwner(h.Context())
		one := lockElsewhere(h.l, same)
		h.settle()
		next, between := h.queue()
		other := lockElsewhere(h.l, same)
		h.settle()
		number := h.number()
		h.pass(g, one)
		h.settle()
		require.NoError(h, <-other, "its owner has the lock, so who waited between them does not come first")
		h.pending(between)
		require.Equal(h, number, h.number())
		ctx := h.l.Context(same)
		require.NoError(h, ctx.Err())

		require.NoError(h, h.l.Unlock(same))
		h.settle()
		h.pending(between)
		require.NoError(h, ctx.Err())
		require.NoError(h, h.l.Unlock(same))
		h.settle()
		require.NoError(h, <-between)
		require.Equal(h, context.Canceled, context.Cause(ctx))
		require.ErrorIs(h, h.l.Unlock(same), lockregistry.ErrNotOwner)
		require.Equal(h, number, h.number())
		require.NoError(h, next.unlock(h.l))
		require.True(h, h.free(theKey))
	}, lockregistry.WithHandoff(time.Hour))
}

// Another process is not woken by a hand-over, and gets the lock at once when it is over.
func TestHandOver_WakesNoOtherProcess(t *testing.T) {
	handoffs(t, func(h *handoff) {
		net := h.flaky()
		other := net.registry(lockregistry.WithPollInterval(noPoll)).Obtain("42")
		g := h.first()
		elsewhere := lockElsewhere(other, h.Context())
		next, has := h.queue()
		tries := net.count("obtain")
		h.pass(g, has)
		h.pending(elsewhere)
		require.Equal(h, tries, net.count("obtain"))
		require.NoError(h, next.unlock(h.l))
		h.settle()
		require.NoError(h, <-elsewhere)
	}, lockregistry.WithHandoff(time.Hour))
}

// Do hands over too, and fn's context is its own.
func TestHandOver_DoHandsOver(t *testing.T) {
	handoffs(t, func(h *handoff) {
		const calls = 10
		causes := make([]error, calls)
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				var mine context.Context
				err := h.reg.Do(h.Context(), "42", func(ctx context.Context) error {
					mine = ctx
					h.world.pass(time.Millisecond)
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
		require.Equal(h, 1, h.net.count("release"))
	})
}

// A hold that is lost while it is handed over is nobody's: the next owner obtains one of its own.
func TestHandOver_LostDuringHandOver(t *testing.T) {
	t.Parallel()
	losses := map[string]func(w *world, r *lockregistry.Registry){
		"removed by force":  func(w *world, r *lockregistry.Registry) { require.NoError(w, r.ForceUnlock(w.Context(), "42")) },
		"the lease is over": func(w *world, _ *lockregistry.Registry) { w.pass(time.Minute) },
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.registry(lockregistry.WithHandoff(time.Hour))
				l := r.Obtain("42")
				w.lock(l)
				ctx := l.Context(w.Context())
				g := w.goroutine()
				next := g.starts(l)
				w.settle()
				require.True(w, lockregistry.HandOver(l, func() { lose(w, r) }))
				require.Equal(w, context.Canceled, context.Cause(ctx))
				require.NoError(w, <-next)
				require.True(w, l.IsHeld())
				require.NoError(w, g.unlock(l))
				require.True(w, w.free("orders:42"))
			})
		})
	}
}

// The next owner may find, when it wakes up, that the hold is gone, and that yet another one has the lock.
func TestHandOver_ForceUnlockDuringHandOver(t *testing.T) {
	realWorlds(t, func(w *world) {
		const holds = 3000
		r := w.registry(lockregistry.WithHandoff(time.Hour))
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
					if err := l.Unlock(w.Context()); err != nil && !errors.Is(err, lockregistry.ErrLockLost) {
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
					if err := r.ForceUnlock(w.Context(), "42"); err != nil {
						w.Error(err)
					}
				}
			}
		})
		sections.Wait()
		close(done)
		forced.Wait()
		require.False(w, l.IsHeld())
		w.lock(l)
		w.unlock(l)
	})
}
