package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

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

// The client's own limit is not taken for the end of the caller's context.
func TestSilence_UnlockWhenTheClientHasALimit(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		c := &limitedClient{Client: w.Client()}
		l := w.RegistryOn(c).Obtain("42")
		w.Lock(l)
		c.fails.Store(true)
		w.Unavailable(l.Unlock(w.Context()), "unlock")
	})
}

func TestSilence_DoOnASilentServer(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"known server": true, "unknown server": false} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				if known {
					w.Known(r)
				}
				ctx, cancel := context.WithTimeout(w.Context(), 300*time.Millisecond)
				defer cancel()
				failed := errors.New("out of paper")
				var thaw func()
				var returned time.Time
				err := r.Do(ctx, "42", func(ctx context.Context) error {
					thaw = f.Stall()
					<-ctx.Done()
					w.Pass(5 * time.Second) // however long fn takes
					returned = time.Now()
					return failed
				})
				require.Equal(w, time.Second, time.Since(returned))
				require.ErrorIs(w, err, failed)
				w.Unavailable(err, "unlock")
				require.False(w, w.Free(kit.TheKey))
				thaw()
				w.AwaitGone(kit.TheKey)
			})
		})
	}
}

// Commands have a limit of their own.
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
		"the watchdog's":                   {5 * time.Second, []lockregistry.Option{kit.Redisson}},
		"option":                           {brief, []lockregistry.Option{lockregistry.WithCommandTimeout(brief)}},
		"option longer than the default's": {long, []lockregistry.Option{lockregistry.WithCommandTimeout(long)}},
	}
	calls := map[string]func(r *lockregistry.Registry) error{
		"lock": func(r *lockregistry.Registry) error { return r.Obtain("42").Lock(context.Background()) },
		"trylock": func(r *lockregistry.Registry) error {
			_, err := r.Obtain("42").TryLock(context.Background())
			return err
		},
		"do":    func(r *lockregistry.Registry) error { return r.Do(context.Background(), "42", kit.DoNothing) },
		"renew": func(r *lockregistry.Registry) error { return r.Obtain("42").Renew(context.Background(), time.Minute) },
	}
	for i, name := range kit.InOrder(limits) {
		c := limits[name]
		for j, op := range kit.InOrder(calls) {
			call, pipelining := calls[op], (i+j)%2 == 0 // whether the connection was just in use; each call and each limit runs with both
			t.Run(fmt.Sprint(name, "/", op, "/", pipelining), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := w.RegistryOn(f.Client(kit.OneConnection), c.options...)
					w.Known(r)
					if op == "renew" {
						w.Lock(r.Obtain("42"), lockregistry.Lease(time.Minute))
					}
					if !pipelining {
						w.Pass(time.Second)
					}
					thaw := f.Stall()
					start := time.Now()
					err := call(r)
					require.Equal(w, c.limit, time.Since(start))
					w.Unavailable(err, op)
					thaw()
					if op != "renew" {
						w.Settle()
						w.AwaitGone(kit.TheKey)
						w.Lock(r.Obtain("42"))
					}
					w.Unlock(r.Obtain("42"))
				})
			})
		}
	}
}

// The limit of a command does not end its connection, which others use.
func TestSilence_ALimitDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"another command is under way": false, "none is yet": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				client := f.Client(kit.OneConnection)
				r := w.RegistryOn(client, lockregistry.WithCommandTimeout(time.Second), kit.Polling)
				w.Known(r)
				w.Do("SET", "another", "answer")
				thaw := f.Stall()
				before := f.Links()
				if alone { // rueidis then sends a command in another way
					_, err := r.Obtain("42").TryLock(context.Background())
					w.Unavailable(err, "trylock")
				}
				answer := w.Goroutine().Start(func() error {
					said := kit.Reply(client, "GET", "another")
					if said != "answer" {
						return errors.New(said)
					}
					return nil
				})
				w.Settle()
				_, err := r.Obtain("42").TryLock(context.Background(), lockregistry.Wait(2*time.Second))
				w.Unavailable(err, "trylock")
				ctx, cancel := context.WithTimeout(w.Context(), 200*time.Millisecond)
				defer cancel()
				require.ErrorIs(w, r.Obtain("42").Lock(ctx), context.DeadlineExceeded)
				w.Pending(answer)
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

// Only a reply ends the report of an outage, and silence is not reported as a refusal.
func TestSilence_NoFalseAllClear(t *testing.T) {
	const silent, refuses, again = "Redis does not answer", "Redis refuses", "accepts renewals and removals again"
	kit.FakeWorld(t, func(w *kit.World) {
		log := &kit.Journal{}
		logged := func(text string) int {
			w.Settle()
			return len(log.Lines(text))
		}
		f := w.Flaky()
		r := f.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second))
		w.Known(r)
		lost := r.Obtain("42")
		w.Lock(lost)
		thaw := f.Stall()
		ctx := lost.Context(w.Context())
		w.Pass(2500 * time.Millisecond)
		require.Equal(w, 1, logged(silent))
		<-ctx.Done()
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		w.Pass(5 * time.Second)
		require.Equal(w, 1, logged("lock lost"))
		require.Zero(w, logged(again))
		require.Zero(w, logged(refuses))

		thaw()
		w.Await("a connection", func() bool { return r.Obtain("43").Lock(w.Context()) == nil })
		w.Pass(2 * time.Second)
		require.Equal(w, 1, logged(again))
		require.Zero(w, logged(refuses))
		f.Fate("renew", kit.Refused(kit.Loading))
		w.Pass(time.Second)
		require.Equal(w, 1, logged(refuses))
		require.Equal(w, 1, logged(silent))
	})
}

// A server that takes no writes still answers removals that find nothing. That does not end the report of its refusals.
func TestQueue_RefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"NOREPLICAS", "MISCONF"} {
		t.Run(fault, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				f := w.Flaky()
				r := f.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(4500*time.Millisecond))
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l)
				goOn := make(chan struct{})
				f.Fates("obtain", kit.HeldUp(goOn)) // its removal is tried again and again
				ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
				defer cancel()
				require.Error(w, r.Obtain("43").Lock(ctx))
				close(goOn)
				const again = "accepts renewals and removals again"
				removals := f.Count("release")
				w.Await("there is nothing left to remove", func() bool {
					return f.Count("release") > removals+3 && len(log.Lines("; retrying")) == len(log.Lines(again))
				})
				before := len(log.Lines(again))
				ends := kit.PassingFaults[fault](w)
				w.Await("the log says so", func() bool { return len(log.Lines("refuses renewals or removals", fault)) > 0 })
				removals = f.Count("release")
				require.Never(w, func() bool { return len(log.Lines(again)) > before }, 400*time.Millisecond, time.Millisecond)
				w.Await("removals that find nothing", func() bool { return f.Count("release") > removals })
				require.Len(w, log.Lines(again), before)
				require.Len(w, log.Lines("; retrying"), before+1)
				ends()
				w.Await("the log says that it is over", func() bool { return len(log.Lines(again)) == before+1 })
				require.NoError(w, r.Close())
			})
		})
	}
}

// Unlock does not wait for a hold that is known to be lost.
func TestSilence_UnlockOfALostHoldOnASilentServer(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Minute
	for name, announced := range map[string]bool{"announced": true, "by the clock only": false} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l, lockregistry.Lease(lease))
				if announced {
					ctx := l.Context(w.Context())
					<-ctx.Done()
				} else {
					w.Pass(lease - kit.DriftMargin(lease))
				}
				thaw := f.Stall()
				start := time.Now()
				w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
				require.Zero(w, time.Since(start))
				require.Greater(w, w.Pttl(kit.TheKey), 5*time.Second, "a process sees the end of a lease early")
				w.Pass(2 * time.Second)
				require.False(w, w.Free(kit.TheKey))
				thaw()
				start = time.Now()
				w.AwaitGone(kit.TheKey)
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
	for i, name := range kit.InOrder(contexts) {
		c := contexts[name]
		for j, known := range []bool{true, false} {
			lost := (i+j)%2 == 0 // each context runs with both, and so do known and unknown servers
			t.Run(fmt.Sprintf("context %s, server known: %v, commands lost: %v", name, known, lost), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := f.Registry()
					if known {
						w.Known(r)
					}
					l := r.Obtain("42")
					w.Lock(l, lockregistry.Lease(time.Hour))
					thaw := f.Reconnect
					if lost {
						f.Fate(kit.Anything, kit.Silence)
					} else {
						thaw = f.Stall()
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
					} else { // the server is first asked for its version
						require.LessOrEqual(w, time.Since(start), c.took)
						require.GreaterOrEqual(w, time.Since(start), min(c.took, max(c.ends, 100*time.Millisecond)))
					}
					w.Unavailable(err, "unlock")
					require.False(w, l.IsHeld())
					w.Pass(3 * time.Second)
					require.False(w, w.Free(kit.TheKey))
					thaw()
					start = time.Now()
					w.AwaitGone(kit.TheKey)
					require.LessOrEqual(w, time.Since(start), time.Second+50*time.Millisecond, "it goes on in the background")
				})
			})
		}
	}
}

// With a context that is done, Unlock returns what it knows after 100 ms, or earlier if it knows all.
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
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l)
				if c.gone {
					w.Do("DEL", kit.TheKey)
				}
				f.Fate("release", kit.SlowReply(c.answers))
				ctx, cancel := context.WithCancel(w.Context())
				cancel()
				start := time.Now()
				err := l.Unlock(ctx)
				require.Equal(w, c.took, time.Since(start))
				if c.err == nil {
					require.NoError(w, err)
					require.True(w, w.Free(kit.TheKey))
				} else {
					w.Fails(err, c.err, "unlock", kit.TheKey)
				}
				require.NotErrorIs(w, err, context.Canceled)
			})
		})
	}
}

// limitedClient fails at a limit of its own, as rueidis does when a connection is silent.
type limitedClient struct {
	rueidis.Client
	fails atomic.Bool
}
