package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
)

// How long calls take while the server says nothing, and what becomes of their keys.

// freeze makes the server execute and answer nothing until thaw: then it goes on with what it was sent meanwhile.
func (f *flaky) freeze() (thaw func()) {
	until := make(chan struct{})
	f.all(anything, heldUp(until))
	thaw = sync.OnceFunc(func() { close(until) })
	f.w.Cleanup(thaw)
	return thaw
}

// known makes everything known about the server that a registry asks for once, and its scripts to it.
func (w *world) known(r *lockregistry.Registry) {
	w.Helper()
	l := r.Obtain("known")
	for range 2 {
		w.lock(l)
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.unlock(l)
	}
}

// unavailable checks that an error says that Redis could not be asked, and nothing else.
func (w *world) unavailable(err error, op string) {
	w.Helper()
	w.fails(err, lockregistry.ErrUnavailable, op, theKey)
	for _, other := range []error{
		context.Canceled, context.DeadlineExceeded, lockregistry.ErrTaken, lockregistry.ErrLockLost, lockregistry.ErrNotOwner,
	} {
		require.NotErrorIs(w, err, other)
	}
}

// A hold that is known to be lost is nobody's to wait for.
func TestSilence_UnlockOfALostHoldOnASilentServer(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Minute
	for name, announced := range map[string]bool{"announced": true, "by the clock only": false} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.known(r)
				l := r.Obtain("42")
				w.lock(l, lockregistry.Lease(lease))
				if announced {
					ctx := l.Context(w.Context())
					<-ctx.Done()
				} else {
					w.pass(lease - margin(lease))
				}
				thaw := f.freeze()
				start := time.Now()
				w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
				require.Zero(w, time.Since(start))
				require.Greater(w, w.pttl(theKey), 5*time.Second, "a process sees the end of a lease early")
				w.pass(2 * time.Second)
				require.False(w, w.free(theKey))
				thaw()
				start = time.Now()
				w.awaitGone(theKey)
				require.LessOrEqual(w, time.Since(start), time.Second, "removed in the background")
			})
		})
	}
}

func TestSilence_UnlockOnASilentServer(t *testing.T) {
	t.Parallel()
	contexts := map[string]struct {
		ends time.Duration // after Unlock begins; negative: it does not
		took time.Duration
	}{
		"that never ends":         {-1, time.Second},
		"that is done":            {0, 100 * time.Millisecond},
		"that ends meanwhile":     {300 * time.Millisecond, 400 * time.Millisecond},
		"that ends shortly after": {50 * time.Millisecond, 150 * time.Millisecond},
		"that ends late":          {950 * time.Millisecond, time.Second},
	}
	for name, c := range contexts {
		for _, known := range []bool{true, false} {
			for _, lost := range []bool{true, false} {
				t.Run(fmt.Sprintf("context %s, server known: %v, commands lost: %v", name, known, lost), func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := f.registry()
						if known {
							w.known(r)
						}
						l := r.Obtain("42")
						w.lock(l, lockregistry.Lease(time.Hour))
						thaw := f.reconnect
						if lost {
							f.all(anything, silence)
						} else {
							thaw = f.freeze()
						}
						ctx, cancel := context.WithCancel(w.Context())
						defer cancel()
						if c.ends == 0 {
							cancel()
						} else if c.ends > 0 {
							time.AfterFunc(c.ends, cancel)
						}
						start := time.Now()
						err := l.Unlock(ctx)
						if known {
							require.Equal(w, c.took, time.Since(start))
						} else { // its version is asked for first
							require.LessOrEqual(w, time.Since(start), c.took)
							require.GreaterOrEqual(w, time.Since(start), min(c.took, max(c.ends, 100*time.Millisecond)))
						}
						w.unavailable(err, "unlock")
						require.False(w, l.IsHeld())
						w.pass(3 * time.Second)
						require.False(w, w.free(theKey))
						thaw()
						start = time.Now()
						w.awaitGone(theKey)
						require.LessOrEqual(w, time.Since(start), time.Second+50*time.Millisecond, "it goes on in the background")
					})
				})
			}
		}
	}
}

// With a context that is done, Unlock tells what it knows after 100 ms, or as soon as it knows.
func TestSilence_UnlockWithADoneContextTellsWhatItKnows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers, took time.Duration
		gone          bool // before
		err           error
	}{
		"removed":             {60 * time.Millisecond, 60 * time.Millisecond, false, nil},
		"lost":                {60 * time.Millisecond, 60 * time.Millisecond, true, lockregistry.ErrLockLost},
		"no answer in time":   {140 * time.Millisecond, 100 * time.Millisecond, false, lockregistry.ErrUnavailable},
		"nobody knows a loss": {140 * time.Millisecond, 100 * time.Millisecond, true, lockregistry.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				if c.gone {
					w.do("DEL", theKey)
				}
				f.all("release", slow(c.answers))
				ctx, cancel := context.WithCancel(w.Context())
				cancel()
				start := time.Now()
				err := l.Unlock(ctx)
				require.Equal(w, c.took, time.Since(start))
				if c.err == nil {
					require.NoError(w, err)
					require.True(w, w.free(theKey))
				} else {
					w.fails(err, c.err, "unlock", theKey)
				}
				require.NotErrorIs(w, err, context.Canceled)
			})
		})
	}
}

// A program that is told to end unlocks with a context that is done, and is gone when Unlock returns. The registry has never
// unlocked before, so it has yet to ask the server for its version.
func TestSilence_UnlockAtTheEndOfAProgram(t *testing.T) { // alone: Unlock waits for 100 ms then
	realWorldsAlone(t, func(w *world) {
		for range 20 {
			l := w.registry().Obtain("42")
			ctx, cancel := context.WithCancel(w.Context())
			require.NoError(w, l.Lock(ctx))
			cancel()
			require.NoError(w, l.Unlock(ctx))
			require.True(w, w.free(theKey), "at once")
		}
	})
}

// limitedClient fails for a limit of its own, as rueidis does when a connection is silent.
type limitedClient struct {
	rueidis.Client
	fails atomic.Bool
}

func (c *limitedClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if c.fails.Load() {
		return rueidis.NewErrorResult(context.DeadlineExceeded)
	}
	return c.Client.Do(ctx, command)
}

func (c *limitedClient) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	if c.fails.Load() {
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(context.DeadlineExceeded)}, len(commands))
	}
	return c.Client.DoMulti(ctx, commands...)
}

// That is not the end of the caller's context.
func TestSilence_UnlockWhenTheClientHasALimit(t *testing.T) {
	fakeWorld(t, func(w *world) {
		c := &limitedClient{Client: w.client()}
		l := w.registryOn(c).Obtain("42")
		w.lock(l)
		c.fails.Store(true)
		w.unavailable(l.Unlock(w.Context()), "unlock")
	})
}

func TestSilence_DoOnASilentServer(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"known server": true, "unknown server": false} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				if known {
					w.known(r)
				}
				ctx, cancel := context.WithTimeout(w.Context(), 300*time.Millisecond)
				defer cancel()
				failed := errors.New("out of paper")
				var thaw func()
				var returned time.Time
				err := r.Do(ctx, "42", func(ctx context.Context) error {
					thaw = f.freeze()
					<-ctx.Done()
					w.pass(5 * time.Second) // however long fn takes
					returned = time.Now()
					return failed
				})
				require.Equal(w, time.Second, time.Since(returned))
				require.ErrorIs(w, err, failed)
				w.unavailable(err, "unlock")
				require.False(w, w.free(theKey))
				thaw()
				w.awaitGone(theKey)
			})
		})
	}
}

// A command has a limit of its own.
func TestSilence_CommandsHaveALimit(t *testing.T) {
	t.Parallel()
	const brief, long = 700 * time.Millisecond, 8 * time.Second
	limits := map[string]struct {
		limit   time.Duration
		options []lockregistry.Option
	}{
		"default":                          {5 * time.Second, nil},
		"a third of a short lease":         {2 * time.Second, []lockregistry.Option{lockregistry.WithLease(6 * time.Second)}},
		"no longer for a long lease":       {5 * time.Second, []lockregistry.Option{lockregistry.WithLease(time.Hour)}},
		"the watchdog's":                   {5 * time.Second, []lockregistry.Option{redisson}},
		"option":                           {brief, []lockregistry.Option{lockregistry.WithCommandTimeout(brief)}},
		"option longer than the default's": {long, []lockregistry.Option{lockregistry.WithCommandTimeout(long)}},
	}
	calls := map[string]func(r *lockregistry.Registry) error{
		"lock": func(r *lockregistry.Registry) error { return r.Obtain("42").Lock(context.Background()) },
		"trylock": func(r *lockregistry.Registry) error {
			_, err := r.Obtain("42").TryLock(context.Background())
			return err
		},
		"do":    func(r *lockregistry.Registry) error { return r.Do(context.Background(), "42", nothing) },
		"renew": func(r *lockregistry.Registry) error { return r.Obtain("42").Renew(context.Background(), time.Minute) },
	}
	for name, c := range limits {
		for op, call := range calls {
			for _, pipelining := range []bool{true, false} { // whether the connection was just in use
				t.Run(fmt.Sprint(name, "/", op, "/", pipelining), func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := w.registryOn(f.client(oneConnection), c.options...)
						w.known(r)
						if op == "renew" {
							w.lock(r.Obtain("42"), lockregistry.Lease(time.Minute))
						}
						if !pipelining {
							w.pass(time.Second)
						}
						thaw := f.freeze()
						start := time.Now()
						err := call(r)
						require.Equal(w, c.limit, time.Since(start))
						w.unavailable(err, op)
						thaw()
						if op != "renew" {
							w.settle()
							w.awaitGone(theKey)
							w.lock(r.Obtain("42"))
						}
						w.unlock(r.Obtain("42"))
					})
				})
			}
		}
	}
}

// The limit of a command does not end its connection: others use it.
func TestSilence_ALimitDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"another command is under way": false, "none is yet": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				client := f.client(oneConnection)
				r := w.registryOn(client, lockregistry.WithCommandTimeout(time.Second), polling)
				w.known(r)
				w.do("SET", "another", "answer")
				thaw := f.freeze()
				before := f.Links()
				if alone { // rueidis sends a command in another way then
					_, err := r.Obtain("42").TryLock(context.Background())
					w.unavailable(err, "trylock")
				}
				answer := w.goroutine().start(func() error {
					said := said(client, "GET", "another")
					if said != "answer" {
						return errors.New(said)
					}
					return nil
				})
				w.settle()
				_, err := r.Obtain("42").TryLock(context.Background(), lockregistry.Wait(2*time.Second))
				w.unavailable(err, "trylock")
				ctx, cancel := context.WithTimeout(w.Context(), 200*time.Millisecond)
				defer cancel()
				require.ErrorIs(w, r.Obtain("42").Lock(ctx), context.DeadlineExceeded)
				w.pending(answer)
				thaw()
				require.NoError(w, <-answer)
				after := f.Links()
				for _, l := range before {
					require.True(w, slices.Contains(after, l), "it is still open")
				}
			})
		})
	}
}

// Eight thousand calls on a frozen server, far more than a queue of rueidis has room for, all come back when their contexts
// end.
func TestSilence_ManyCallsOnAFrozenServer(t *testing.T) {
	calls := 8000
	if raced() && !large() {
		calls = 3000
	}
	const limit, late = 200 * time.Millisecond, 500 * time.Millisecond
	best := time.Hour // of three servers: the machine may be busy with other things
	for range 3 {
		server := redistest.Start(t)
		w := realWorld(t, server)
		r := w.registry()
		var warm sync.WaitGroup
		for i := range 500 {
			warm.Go(func() {
				if l := r.Obtain(fmt.Sprint("warm", i)); l.Lock(w.Context()) == nil {
					_ = l.Unlock(w.Context())
				}
			})
		}
		warm.Wait()
		server.Freeze()
		w.Cleanup(server.Thaw)
		goroutines := runtime.NumGoroutine()
		took := make([]time.Duration, calls) // after its context's end
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), limit)
				defer cancel()
				ok, err := r.Obtain(strconv.Itoa(i)).TryLock(ctx)
				end, _ := ctx.Deadline()
				took[i] = time.Since(end)
				if ok || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lockregistry.ErrUnavailable) {
					w.Error(ok, err)
				}
			})
		}
		all.Wait()
		require.Less(w, runtime.NumGoroutine(), goroutines+1000)
		w.Logf("the last one %v after its context's end", slices.Max(took))
		if best = min(best, slices.Max(took)); best < late {
			break
		}
	}
	require.Less(t, best, late)
}

// Only an answer is an all-clear, and a server that says nothing refuses nothing.
func TestSilence_NoFalseAllClear(t *testing.T) {
	const silent, refuses, again = "Redis does not answer", "Redis refuses", "takes renewals and removals again"
	fakeWorld(t, func(w *world) {
		log := &journal{}
		logged := func(text string) int {
			w.settle()
			return len(log.lines(text))
		}
		f := w.flaky()
		r := f.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		w.known(r)
		lost := r.Obtain("42")
		w.lock(lost)
		thaw := f.freeze()
		ctx := lost.Context(w.Context())
		w.pass(2500 * time.Millisecond)
		require.Equal(w, 1, logged(silent))
		<-ctx.Done()
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		w.pass(5 * time.Second)
		require.Equal(w, 1, logged("lock lost"))
		require.Zero(w, logged(again))
		require.Zero(w, logged(refuses))

		thaw()
		w.await("a connection", func() bool { return r.Obtain("43").Lock(w.Context()) == nil })
		w.pass(2 * time.Second)
		require.Equal(w, 1, logged(again))
		require.Zero(w, logged(refuses))
		f.all("renew", refused(loading))
		w.pass(time.Second)
		require.Equal(w, 1, logged(refuses))
		require.Equal(w, 1, logged(silent))
	})
}

// While a server takes no writes it says yes to removals that find nothing. That is no all-clear.
func TestQueue_RefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"NOREPLICAS", "MISCONF"} {
		t.Run(fault, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var log journal
				f := w.flaky()
				r := f.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(4500*time.Millisecond))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				goOn := make(chan struct{})
				f.next("obtain", heldUp(goOn)) // its removal is tried again and again
				ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
				defer cancel()
				require.Error(w, r.Obtain("43").Lock(ctx))
				close(goOn)
				const again = "takes renewals and removals again"
				removals := f.count("release")
				w.await("there is nothing left to remove", func() bool {
					return f.count("release") > removals+3 && len(log.lines("are tried again")) == len(log.lines(again))
				})
				before := len(log.lines(again))
				ends := passingFaults[fault](w)
				w.await("the log says so", func() bool { return len(log.lines("refuses renewals or removals", fault)) > 0 })
				removals = f.count("release")
				require.Never(w, func() bool { return len(log.lines(again)) > before }, 400*time.Millisecond, time.Millisecond)
				require.Greater(w, f.count("release"), removals, "removals that find nothing")
				require.Len(w, log.lines("are tried again"), before+1)
				ends()
				w.await("the log says that it is over", func() bool { return len(log.lines(again)) == before+1 })
				require.NoError(w, r.Close())
			})
		})
	}
}
