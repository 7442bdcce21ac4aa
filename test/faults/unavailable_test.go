package faults_test

import (
	"context"
	"errors"
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

// A goroutine that waits behind another one of its process, which asks Redis, reports what that one knows.
func TestUnavailable_WaitingBehindAGoroutineDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate        kit.Fate
		unavailable bool
	}{
		"held":    {kit.Delivered, false},
		"refused": {kit.Refused(kit.Loading), true},
		"silent":  {kit.Silence, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithCommandTimeout(200*time.Millisecond))
				w.Known(r)
				l := r.Obtain("42")
				w.Do("SET", kit.TheKey, "for ever")
				asks, cancel := context.WithCancel(w.Context())
				asking := w.Goroutine().Start(func() error { return l.Lock(asks) })
				w.Settle()
				f.Fate("obtain", c.fate)
				w.Pass(time.Second)
				if c.unavailable {
					w.Do("DEL", kit.TheKey)
				}

				try, err := l.TryLock(w.Context())
				require.False(w, try)
				if c.unavailable {
					w.Unavailable(err, "trylock")
				} else {
					require.NoError(w, err)
				}

				start := time.Now()
				try, err = l.TryLock(w.Context(), lockregistry.Wait(time.Second))
				require.Equal(w, time.Second, time.Since(start))
				require.False(w, try)
				if c.unavailable {
					w.Unavailable(err, "trylock")
				} else {
					require.NoError(w, err)
				}

				err = l.Lock(w.Context(), lockregistry.Wait(time.Second))
				if c.unavailable {
					w.Unavailable(err, "lock")
				} else {
					w.Fails(err, lockregistry.ErrTaken, "lock", kit.TheKey)
				}

				ctx, stop := context.WithTimeout(w.Context(), time.Second)
				defer stop()
				err = l.Lock(ctx)
				w.Fails(err, context.DeadlineExceeded, "lock", kit.TheKey, unavailableIf(c.unavailable)...)

				cancel()
				require.ErrorIs(w, <-asking, context.Canceled)
			})
		})
	}
}

// So does one that waits behind a goroutine whose first try gets no reply: nobody is known to hold the lock.
func TestUnavailable_BehindAFirstTryThatIsNotAnswered(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		l := r.Obtain("42")
		thaw := f.Stall()
		asking := w.Goroutine().Starts(l)
		w.Settle()
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err, "the other goroutine may have the lock in a moment")
		require.False(w, ok)
		w.Pass(2 * time.Second)
		_, err = l.TryLock(w.Context())
		w.Unavailable(err, "trylock")
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		err = l.Lock(ctx)
		w.Fails(err, context.DeadlineExceeded, "lock", kit.TheKey, lockregistry.ErrUnavailable)
		w.Unavailable(<-asking, "lock")

		// Once the server answers, waiting for another goroutine's lock is no outage, however long it is held.
		thaw()
		g := w.Goroutine()
		w.Await("a connection", func() bool { return g.Lock(l) == nil })
		w.Pass(2 * time.Second)
		ok, err = l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
		require.NoError(w, g.Unlock(l))
	})
}

// Waits that end during an outage return ErrUnavailable.
func TestUnavailable_WaitsThatEndDuringAnOutage(t *testing.T) {
	t.Parallel()
	fates := map[string]kit.Fate{"refused": kit.Refused(kit.Loading), "cut": kit.Cut, "silent": kit.Silence}
	for i, name := range kit.InOrder(fates) {
		what := fates[name]
		for j, op := range kit.InOrder(kit.LockingCalls) {
			call, held := kit.LockingCalls[op], (i+j)%2 == 0 // held before: each call and each outage runs with both
			t.Run(name+"/"+op, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := f.Registry(kit.Polling, lockregistry.WithCommandTimeout(200*time.Millisecond))
					w.Known(r)
					if held {
						w.Do("SET", kit.TheKey, "for ever")
						time.AfterFunc(500*time.Millisecond, func() { f.Fate("obtain", what) })
					} else {
						f.Fate("obtain", what)
					}
					start := time.Now()
					err := call(w.Context(), r, lockregistry.Wait(2*time.Second))
					require.GreaterOrEqual(w, time.Since(start), 2*time.Second)
					require.LessOrEqual(w, time.Since(start), 2250*time.Millisecond)
					w.Unavailable(err, op)
				})
			})
		}
	}
}

// A call with Wait ignores a passing failure of its first try; one without returns it at once.
func TestUnavailable_WaitTriesAgain(t *testing.T) {
	t.Parallel()
	for i, name := range kit.InOrder(outages) {
		what := outages[name]
		op, call := kit.Turn(kit.LockingCalls, i)
		t.Run(name+"/"+op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				tries := f.Count("obtain")
				f.Fates("obtain", what)
				require.NoError(w, call(w.Context(), r, lockregistry.Wait(30*time.Second)))
				require.Greater(w, f.Count("obtain"), tries)

				if l := r.Obtain("42"); op != "do" {
					w.Unlock(l)
				}
				if what.Linger > 0 || what.Mute {
					return
				}
				f.Fates("obtain", what)
				start := time.Now()
				w.Unavailable(call(w.Context(), r), op)
				require.Zero(w, time.Since(start))
			})
		})
	}
	for name, what := range lasting {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				f.Fates("obtain", what)
				start := time.Now()
				require.Error(w, r.Obtain("42").Lock(w.Context(), lockregistry.Wait(30*time.Second)))
				require.Zero(w, time.Since(start), "it does not pass")
			})
		})
	}
}

// A call that has queued in its process for a while already waits when its first try fails.
func TestUnavailable_AFirstTryAfterQueueing(t *testing.T) {
	t.Parallel()
	for name, what := range outages {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(lockregistry.WithHandoff(0))
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l)
				locked := w.Goroutine().Starts(l)
				w.Settle()
				f.Fates("obtain", what)
				w.Unlock(l)
				require.NoError(w, <-locked)
			})
		})
	}
}

// closing is a client that answers some commands by saying that it is closed, although it has executed them, as rueidis does
// for commands on a connection that it replaces.
type closing struct {
	rueidis.Client
	left atomic.Int32 // how many more such commands
}

func (c *closing) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	result := c.Client.Do(ctx, command)
	if c.left.Add(-1) >= 0 {
		return rueidis.NewErrorResult(rueidis.ErrClosing)
	}
	return result
}

func TestUnavailable_TheClientIsClosedInPassing(t *testing.T) {
	t.Parallel()
	for op, call := range kit.LockingCalls {
		t.Run(op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				client := &closing{Client: w.Client()}
				r := w.RegistryOn(client)
				w.Known(r)

				// A call that waits tries again.
				client.left.Store(3)
				start := time.Now()
				require.NoError(w, call(w.Context(), r, lockregistry.Wait(30*time.Second)))
				require.LessOrEqual(w, time.Since(start), 350*time.Millisecond)
				if op != "do" {
					w.Unlock(r.Obtain("42"))
				}
				require.True(w, w.Free(kit.TheKey))

				// A call that does not wait fails, and leaves nothing behind.
				client.left.Store(1)
				w.Unavailable(call(w.Context(), r, lockregistry.Lease(time.Hour)), op)
				w.AwaitGone(kit.TheKey)

				// When the client stays closed, trying again is no use.
				client.left.Store(1 << 30)
				start = time.Now()
				err := call(w.Context(), r, lockregistry.Wait(30*time.Second))
				w.Fails(err, rueidis.ErrClosing, op, kit.TheKey, lockregistry.ErrUnavailable)
				require.GreaterOrEqual(w, time.Since(start), time.Second)
				require.LessOrEqual(w, time.Since(start), 2*time.Second)
				require.NotErrorIs(w, err, lockregistry.ErrTaken)
				client.left.Store(0)
				w.AwaitGone(kit.TheKey)
			})
		})
	}
}

// A server that answers everything but writes for a while, as in a planned failover (CLIENT PAUSE), is waited for: connections
// that are given up meanwhile do not mean that the client was closed.
func TestUnavailable_WritesArePaused(t *testing.T) {
	t.Parallel()
	for op, call := range kit.LockingCalls {
		t.Run(op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				goesOn := make(chan struct{})
				f.Fate("obtain", kit.HeldUp(goesOn))
				ended := make(chan error, 1)
				w.Goroutine().Start(func() error {
					ended <- call(w.Context(), r, lockregistry.Wait(40*time.Second))
					return nil
				})
				<-time.After(25 * time.Second)
				w.Pending(ended)
				f.Forget()
				close(goesOn)
				require.NoError(w, <-ended)
			})
		})
	}
}

// unavailableIf returns what an error also matches, if so.
func unavailableIf(so bool) []error {
	if so {
		return []error{lockregistry.ErrUnavailable}
	}
	return nil
}

// outages are ways in which Redis does not answer, or cannot serve now.
var outages = map[string]kit.Fate{
	"cut":         kit.Cut,
	"lost reply":  kit.CutAfter,
	"silence":     kit.Silence,
	"LOADING":     kit.Refused(kit.Loading),
	"CLUSTERDOWN": kit.Refused("CLUSTERDOWN The cluster is down"),
	"MASTERDOWN":  kit.Refused("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
	"READONLY":    kit.Refused("READONLY You can't write against a read only replica."),
	"OOM":         kit.Refused("OOM command not allowed when used memory > 'maxmemory'."),
	"in a script": kit.Refused("ERR Error running script (call to f_1): @user_script:1: -LOADING Redis is loading the dataset"),
	"reads only":  kit.Refused("ERR Script attempted to execute a write command while the cluster is down and readonly script: 1f"),
	"late":        kit.SlowReply(4 * time.Second), // so late that the lease is almost over
}

// lasting are refusals that the next call would get, too.
var lasting = map[string]kit.Fate{
	"NOPERM":    kit.Refused("NOPERM this user has no permissions to run the 'set' command"),
	"NOAUTH":    kit.Refused("NOAUTH Authentication required."),
	"WRONGTYPE": kit.Refused("WRONGTYPE Operation against a key holding the wrong kind of value"),
	"unknown":   kit.Refused("ERR unknown command 'EVALSHA'"),
}

// Each outage runs with one of the calls that lock, and each call with several outages.
func TestUnavailable_Calls(t *testing.T) {
	t.Parallel()
	test := func(number int, name string, what kit.Fate, unavailable bool) {
		op, call := kit.Turn(kit.LockingCalls, number)
		t.Run(name+"/"+op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(lockregistry.WithLease(4 * time.Second))
				w.Known(r)
				f.Fate("obtain", what)
				err := call(w.Context(), r)
				if unavailable {
					w.Unavailable(err, op)
				} else {
					require.Error(w, err)
					require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
				}
				require.Equal(w, name == "WRONGTYPE", errors.Is(err, lockregistry.ErrWrongType))
				require.False(w, r.Obtain("42").IsHeld())
			})
		})
		t.Run(name+"/unlock and renew", func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(10*time.Second))
				f.Fate("renew", what)
				f.Fate("release", what)
				renewing := l.Renew(w.Context(), 10*time.Second)
				unlocking := l.Unlock(w.Context())
				switch {
				case unavailable:
					w.Unavailable(renewing, "renew")
					w.Unavailable(unlocking, "unlock")
				case name == "WRONGTYPE": // the key is not the hold's
					w.Fails(renewing, lockregistry.ErrLockLost, "renew", kit.TheKey)
					w.Fails(unlocking, lockregistry.ErrLockLost, "unlock", kit.TheKey)
				default:
					text := strings.TrimSpace(strings.TrimPrefix(what.Reply[1:], "ERR "))
					require.ErrorContains(w, renewing, text)
					require.NotErrorIs(w, renewing, lockregistry.ErrUnavailable)
					require.ErrorContains(w, unlocking, text)
					require.NotErrorIs(w, unlocking, lockregistry.ErrUnavailable)
				}
			})
		})
	}
	for i, name := range kit.InOrder(outages) {
		test(i+1, name, outages[name], true)
	}
	for i, name := range kit.InOrder(lasting) {
		test(i+1, name, lasting[name], false)
	}
}

func TestUnavailable_WithoutAConnection(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		held := r.Obtain("43")
		w.Lock(held)
		f.Down()
		w.Settle()
		for op, call := range kit.LockingCalls {
			for range 5 { // each connection of the client breaks once
				w.Unavailable(call(w.Context(), r), op)
			}
		}
		require.ErrorIs(w, held.Renew(w.Context(), time.Minute), lockregistry.ErrUnavailable)
		require.ErrorIs(w, held.Unlock(w.Context()), lockregistry.ErrUnavailable)
	})
}

// When a context ends, the last try that ended decides whether the error also says that Redis could not be reached.
func TestUnavailable_ContextsThatEndDuringAnOutage(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond // of a command
	wait := []lockregistry.LockOption{lockregistry.Wait(time.Hour)}
	ends := map[string]struct {
		held        bool
		before      kit.Fate // for the first second
		after       kit.Fate // for the last one
		opts        []lockregistry.LockOption
		unavailable bool
	}{
		"silent from the start":  {before: kit.Silence, after: kit.Silence, unavailable: true, opts: wait},
		"refused from the start": {before: kit.Refused(kit.Loading), after: kit.Refused(kit.Loading), unavailable: true, opts: wait},
		"held all the time":      {held: true},
		"held, then silent":      {held: true, after: kit.Silence, unavailable: true},
		"held, then refused":     {held: true, after: kit.Refused(kit.Loading), unavailable: true},
		"held, then cut":         {held: true, after: kit.Cut, unavailable: true},
		"refused, then held":     {held: true, before: kit.Refused(kit.Loading), opts: wait},
		"cut, then held":         {held: true, before: kit.Cut, opts: wait},
	}
	for i, name := range kit.InOrder(ends) {
		c := ends[name]
		op, call := kit.Turn(kit.LockingCalls, i)
		if op == "trylock" && len(c.opts) == 0 {
			c.opts = wait
		}
		t.Run(name+"/"+op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithCommandTimeout(limit))
				w.Known(r)
				if c.held {
					w.Do("SET", kit.TheKey, "for ever")
				}
				f.Fate("obtain", c.before)
				time.AfterFunc(time.Second, func() { f.Fate("obtain", c.after) })
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				start := time.Now()
				err := call(ctx, r, c.opts...)
				require.Equal(w, 2*time.Second, time.Since(start))
				w.Fails(err, context.DeadlineExceeded, op, kit.TheKey, unavailableIf(c.unavailable)...)
			})
		})
	}
}

// A try that has not ended does not count: the one before it does, if there is one.
func TestUnavailable_ContextsThatEndBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"the first try": false, "after another one": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling)
				w.Known(r)
				freeze := func() { f.Stall() }
				if held {
					w.Do("SET", kit.TheKey, "for ever")
					time.AfterFunc(time.Second, freeze)
				} else {
					freeze()
				}
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				start := time.Now()
				err := r.Obtain("42").Lock(ctx)
				require.Equal(w, 2*time.Second, time.Since(start))
				w.Fails(err, context.DeadlineExceeded, "lock", kit.TheKey, unavailableIf(!held)...)
			})
		})
	}
}

// A client that is to send commands one at a time does not make calls wait for a silent server after their contexts have ended:
// the library's commands share connections all the same.
func TestUnavailable_WithDisableAutoPipelining(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := w.RegistryOn(f.Client(kit.Unasked, func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }), kit.Polling)
		w.KnownWell(r)
		f.Stall()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
				defer cancel()
				began := time.Now()
				_, err := r.Acquire(ctx, strconv.Itoa(i))
				if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second+10*time.Millisecond {
					w.Errorf("%v after %v", err, took)
				}
			})
		}
		all.Wait()
	})
}
