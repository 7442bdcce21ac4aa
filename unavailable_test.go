package lockregistry_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What calls say when Redis cannot be asked, and when they try again.

// locking are the calls that lock theKey.
var locking = map[string]func(context.Context, *lockregistry.Registry, ...lockregistry.LockOption) error{
	"lock": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		return r.Obtain("42").Lock(ctx, opts...)
	},
	"trylock": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		ok, err := r.Obtain("42").TryLock(ctx, opts...)
		if ok != (err == nil) {
			return errors.New("false without an error")
		}
		return err
	},
	"do": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		inside := false
		err := r.Do(ctx, "42", func(context.Context) error {
			inside = true
			return nil
		}, opts...)
		if inside != (err == nil) {
			return errors.Join(err, errors.New("fn ran, or did not"))
		}
		return err
	},
}

// outages are ways in which Redis does not answer, or cannot serve now.
var outages = map[string]fate{
	"cut":         cut,
	"lost reply":  cutAfter,
	"silence":     silence,
	"LOADING":     refused(loading),
	"CLUSTERDOWN": refused("CLUSTERDOWN The cluster is down"),
	"MASTERDOWN":  refused("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
	"READONLY":    refused("READONLY You can't write against a read only replica."),
	"OOM":         refused("OOM command not allowed when used memory > 'maxmemory'."),
	"in a script": refused("ERR Error running script (call to f_1): @user_script:1: -LOADING Redis is loading the dataset"),
	"late":        slow(4 * time.Second), // so long that its lease is almost over
}

// lasting are answers that the next call gets too.
var lasting = map[string]fate{
	"NOPERM":    refused("NOPERM this user has no permissions to run the 'set' command"),
	"NOAUTH":    refused("NOAUTH Authentication required."),
	"WRONGTYPE": refused("WRONGTYPE Operation against a key holding the wrong kind of value"),
	"unknown":   refused("ERR unknown command 'EVALSHA'"),
}

func TestUnavailable_Calls(t *testing.T) {
	t.Parallel()
	test := func(name string, what fate, unavailable bool) {
		for op, call := range locking {
			t.Run(name+"/"+op, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r := f.registry(lockregistry.WithLease(4 * time.Second))
					w.known(r)
					f.all("obtain", what)
					err := call(w.Context(), r)
					if unavailable {
						w.unavailable(err, op)
					} else {
						require.Error(w, err)
						require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
					}
					require.Equal(w, name == "WRONGTYPE", errors.Is(err, lockregistry.ErrWrongType))
					require.False(w, r.Obtain("42").IsHeld())
				})
			})
		}
		t.Run(name+"/unlock and renew", func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.known(r)
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(10*time.Second))
				f.all("renew", what)
				f.all("release", what)
				renewing := l.Renew(w.Context(), 10*time.Second)
				unlocking := l.Unlock(w.Context())
				switch {
				case unavailable:
					w.unavailable(renewing, "renew")
					w.unavailable(unlocking, "unlock")
				case name == "WRONGTYPE": // so the key is not the hold's
					w.fails(renewing, lockregistry.ErrLockLost, "renew", theKey)
					w.fails(unlocking, lockregistry.ErrLockLost, "unlock", theKey)
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
	for name, what := range outages {
		test(name, what, true)
	}
	for name, what := range lasting {
		test(name, what, false)
	}
}

func TestUnavailable_WithoutAConnection(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		held := r.Obtain("43")
		w.lock(held)
		f.Down()
		w.settle()
		for op, call := range locking {
			for range 5 { // each connection of the client breaks once
				w.unavailable(call(w.Context(), r), op)
			}
		}
		require.ErrorIs(w, held.Renew(w.Context(), time.Minute), lockregistry.ErrUnavailable)
		require.ErrorIs(w, held.Unlock(w.Context()), lockregistry.ErrUnavailable)
	})
}

// When a context ends, the last try that ended decides whether the error also says that Redis could not be asked.
func TestUnavailable_ContextsThatEndDuringAnOutage(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond // of a command
	wait := []lockregistry.LockOption{lockregistry.Wait(time.Hour)}
	for name, c := range map[string]struct {
		held        bool
		before      fate // for the first second
		after       fate // for the last one
		opts        []lockregistry.LockOption
		unavailable bool
	}{
		"silent from the start":  {before: silence, after: silence, unavailable: true, opts: wait},
		"refused from the start": {before: refused(loading), after: refused(loading), unavailable: true, opts: wait},
		"held all the time":      {held: true},
		"held, then silent":      {held: true, after: silence, unavailable: true},
		"held, then refused":     {held: true, after: refused(loading), unavailable: true},
		"held, then cut":         {held: true, after: cut, unavailable: true},
		"refused, then held":     {held: true, before: refused(loading), opts: wait},
		"cut, then held":         {held: true, before: cut, opts: wait},
	} {
		for op, call := range locking {
			if op == "trylock" && len(c.opts) == 0 {
				c.opts = wait
			}
			t.Run(name+"/"+op, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r := f.registry(polling, lockregistry.WithCommandTimeout(limit))
					w.known(r)
					if c.held {
						w.do("SET", theKey, "for ever")
					}
					f.all("obtain", c.before)
					time.AfterFunc(time.Second, func() { f.all("obtain", c.after) })
					ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
					defer cancel()
					start := time.Now()
					err := call(ctx, r, c.opts...)
					require.Equal(w, 2*time.Second, time.Since(start))
					var also []error
					if c.unavailable {
						also = []error{lockregistry.ErrUnavailable}
					}
					w.fails(err, context.DeadlineExceeded, op, theKey, also...)
				})
			})
		}
	}
}

// A try that has not ended says nothing: the one before does, when there is one.
func TestUnavailable_ContextsThatEndBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"the first try": false, "after another one": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling)
				w.known(r)
				freeze := func() { f.freeze() }
				if held {
					w.do("SET", theKey, "for ever")
					time.AfterFunc(time.Second, freeze)
				} else {
					freeze()
				}
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				start := time.Now()
				err := r.Obtain("42").Lock(ctx)
				require.Equal(w, 2*time.Second, time.Since(start))
				w.fails(err, context.DeadlineExceeded, "lock", theKey, unavailableIf(!held)...)
			})
		})
	}
}

// A goroutine that waits behind another one of its process, which asks Redis, says what that one knows.
func TestUnavailable_WaitingBehindAGoroutineDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate        fate
		unavailable bool
	}{
		"held":    {delivered, false},
		"refused": {refused(loading), true},
		"silent":  {silence, true},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling, lockregistry.WithCommandTimeout(200*time.Millisecond))
				w.known(r)
				l := r.Obtain("42")
				w.do("SET", theKey, "for ever")
				asks, cancel := context.WithCancel(w.Context())
				asking := w.goroutine().start(func() error { return l.Lock(asks) })
				w.settle()
				f.all("obtain", c.fate)
				w.pass(time.Second)
				if c.unavailable {
					w.do("DEL", theKey)
				}

				try, err := l.TryLock(w.Context())
				require.False(w, try)
				if c.unavailable {
					w.unavailable(err, "trylock")
				} else {
					require.NoError(w, err)
				}

				start := time.Now()
				try, err = l.TryLock(w.Context(), lockregistry.Wait(time.Second))
				require.Equal(w, time.Second, time.Since(start))
				require.False(w, try)
				if c.unavailable {
					w.unavailable(err, "trylock")
				} else {
					require.NoError(w, err)
				}

				err = l.Lock(w.Context(), lockregistry.Wait(time.Second))
				if c.unavailable {
					w.unavailable(err, "lock")
				} else {
					w.fails(err, lockregistry.ErrTaken, "lock", theKey)
				}

				ctx, stop := context.WithTimeout(w.Context(), time.Second)
				defer stop()
				err = l.Lock(ctx)
				w.fails(err, context.DeadlineExceeded, "lock", theKey, unavailableIf(c.unavailable)...)

				cancel()
				require.ErrorIs(w, <-asking, context.Canceled)
			})
		})
	}
}

// So does one that waits behind a goroutine whose first try is not answered: nobody is known to hold the lock.
func TestUnavailable_BehindAFirstTryThatIsNotAnswered(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		l := r.Obtain("42")
		thaw := f.freeze()
		asking := w.goroutine().starts(l)
		w.settle()
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err, "the other goroutine may have the lock in a moment")
		require.False(w, ok)
		w.pass(2 * time.Second)
		_, err = l.TryLock(w.Context())
		w.unavailable(err, "trylock")
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		err = l.Lock(ctx)
		w.fails(err, context.DeadlineExceeded, "lock", theKey, lockregistry.ErrUnavailable)
		w.unavailable(<-asking, "lock")

		// Once the server answers, another goroutine's lock is no outage, however long it is held.
		thaw()
		g := w.goroutine()
		w.await("a connection", func() bool { return g.lock(l) == nil })
		w.pass(2 * time.Second)
		ok, err = l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
		require.NoError(w, g.unlock(l))
	})
}

// A wait that ends during an outage.
func TestUnavailable_WaitsThatEndDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{
		"refused": refused(loading), "cut": cut, "silent": silence,
	} {
		for op, call := range locking {
			for _, held := range []bool{true, false} { // before
				t.Run(name+"/"+op, func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := f.registry(polling, lockregistry.WithCommandTimeout(200*time.Millisecond))
						w.known(r)
						if held {
							w.do("SET", theKey, "for ever")
							time.AfterFunc(500*time.Millisecond, func() { f.all("obtain", what) })
						} else {
							f.all("obtain", what)
						}
						start := time.Now()
						err := call(w.Context(), r, lockregistry.Wait(2*time.Second))
						require.GreaterOrEqual(w, time.Since(start), 2*time.Second)
						require.LessOrEqual(w, time.Since(start), 2250*time.Millisecond)
						w.unavailable(err, op)
					})
				})
			}
		}
	}
}

// A call with Wait makes nothing of a first try that fails in passing; one without is told of it at once.
func TestUnavailable_WaitTriesAgain(t *testing.T) {
	t.Parallel()
	for name, what := range outages {
		for op, call := range locking {
			t.Run(name+"/"+op, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r := f.registry()
					w.known(r)
					tries := f.count("obtain")
					f.next("obtain", what)
					require.NoError(w, call(w.Context(), r, lockregistry.Wait(30*time.Second)))
					require.Greater(w, f.count("obtain"), tries)

					if l := r.Obtain("42"); op != "do" {
						w.unlock(l)
					}
					if what.Linger > 0 || what.Mute {
						return
					}
					f.next("obtain", what)
					start := time.Now()
					w.unavailable(call(w.Context(), r), op)
					require.Zero(w, time.Since(start))
				})
			})
		}
	}
	for name, what := range lasting {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.known(r)
				f.next("obtain", what)
				start := time.Now()
				require.Error(w, r.Obtain("42").Lock(w.Context(), lockregistry.Wait(30*time.Second)))
				require.Zero(w, time.Since(start), "it does not pass")
			})
		})
	}
}

// A call that has queued in its process for a while waits already when its first try fails.
func TestUnavailable_AFirstTryAfterQueueing(t *testing.T) {
	t.Parallel()
	for name, what := range outages {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(lockregistry.WithHandoff(0))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				locked := w.goroutine().starts(l)
				w.settle()
				f.next("obtain", what)
				w.unlock(l)
				require.NoError(w, <-locked)
			})
		})
	}
}

// closing is a client that says of some commands that it is closed, although it has executed them, as rueidis does of those
// on a connection that it replaces.
type closing struct {
	rueidis.Client
	left atomic.Int32 // how many more
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
	for op, call := range locking {
		t.Run(op, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				client := &closing{Client: w.client()}
				r := w.registryOn(client)
				w.known(r)

				// A call that waits tries again.
				client.left.Store(3)
				start := time.Now()
				require.NoError(w, call(w.Context(), r, lockregistry.Wait(30*time.Second)))
				require.LessOrEqual(w, time.Since(start), 350*time.Millisecond)
				if op != "do" {
					w.unlock(r.Obtain("42"))
				}
				require.True(w, w.free(theKey))

				// Another one does not, and leaves nothing behind.
				client.left.Store(1)
				w.unavailable(call(w.Context(), r, lockregistry.Lease(time.Hour)), op)
				w.awaitGone(theKey)

				// When the client stays closed there is no use in it.
				client.left.Store(1 << 30)
				start = time.Now()
				err := call(w.Context(), r, lockregistry.Wait(30*time.Second))
				w.fails(err, rueidis.ErrClosing, op, theKey, lockregistry.ErrUnavailable)
				require.GreaterOrEqual(w, time.Since(start), time.Second)
				require.LessOrEqual(w, time.Since(start), 2*time.Second)
				require.NotErrorIs(w, err, lockregistry.ErrTaken)
				client.left.Store(0)
				w.awaitGone(theKey)
			})
		})
	}
}

// unavailableIf is what an error is about as well, if so.
func unavailableIf(so bool) []error {
	if so {
		return []error{lockregistry.ErrUnavailable}
	}
	return nil
}
