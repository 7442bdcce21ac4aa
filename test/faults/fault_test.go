package faults_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Failures of the first attempt.

func TestFault_TheFirstFailureIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{
		"refused":    kit.Refused(kit.Loading),
		"cut":        kit.Cut,
		"lost reply": kit.CutAfter, // the key is set
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				l := r.Obtain("42")
				for op, lock := range map[string]func() error{
					"lock":    func() error { return l.Lock(w.Context()) },
					"trylock": func() error { _, err := l.TryLock(w.Context()); return err },
					"do":      func() error { return r.Do(w.Context(), "42", kit.DoNothing) },
				} {
					f.Fates("obtain", what)
					start := time.Now()
					err := lock()
					require.Error(w, err)
					var failed *lockregistry.LockError
					require.ErrorAs(w, err, &failed)
					require.Equal(w, op, failed.Op)
					require.Equal(w, what.Reply != "", strings.Contains(err.Error(), "LOADING"))
					if w.Fake {
						require.Zero(w, time.Since(start))
					}
					require.False(w, l.IsHeld())
					require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrNotOwner)

					w.AwaitGone("orders:42")
					if w.Fake {
						require.LessOrEqual(w, time.Since(start), 101*time.Millisecond, "within a poll interval")
					}
					require.True(w, w.TryElsewhere(l), "the local half is free")
				}
			})
		})
	}
}

func TestFault_NobodyCanConnect(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := w.RegistryOn(f.Client(kit.OneConnection)).Obtain("42")
		f.Down()
		w.Await("the client has noticed", func() bool {
			_, err := l.TryLock(w.Context())
			return err != nil && strings.Contains(err.Error(), "the network is down")
		})
		require.ErrorContains(w, l.Lock(w.Context()), "the network is down")
		f.Forget()
		w.Await("the client has connected", func() bool { return l.Lock(w.Context()) == nil })
		w.Unlock(l)
	})
}

// An abandoned grant does not block its own process, even before it is removed: the next hold takes it over.
func TestFault_TheNextHoldTakesAnAbandonedGrantOver(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		f.Fate("release", kit.Refused(kit.Loading))
		f.Fates("obtain", kit.CutAfter)
		require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		abandoned := w.Do("GET", "orders:42")
		require.NotEqual(w, "(nil)", abandoned)
		var ok bool
		w.Await("a connection", func() bool { // the connection of the last call is broken
			var err error
			ok, err = l.TryLock(w.Context(), lockregistry.Lease(time.Minute))
			return err == nil
		})
		require.True(w, ok)
		require.NotEqual(w, abandoned, w.Do("GET", "orders:42"))
		require.LessOrEqual(w, w.Pttl("orders:42"), time.Minute)
		require.False(w, w.TryElsewhere(w.Registry().Obtain("42")))
		f.Forget()
		w.Unlock(l)
		w.IsFree("orders:42")
	})
}

// Nor does it block when the reply to the first, short command comes only after the wait: that reply says only that the key
// exists. So such a call does not say that another owner has the lock, either.
func TestFault_AnAbandonedGrantIsNotAnotherOwner(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const wait = 100 * time.Millisecond
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		l := r.Obtain("42")
		f.Fate("release", kit.Refused(kit.Loading))
		f.Fates("obtain", kit.CutAfter)
		require.Error(w, l.Lock(w.Context()))
		f.Fates("obtain", kit.SlowReply(wait+50*time.Millisecond))
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
		require.NoError(w, err)
		require.True(w, ok)

		other := w.Registry().Obtain("43")
		w.Lock(other)
		f.Fates("obtain", kit.SlowReply(wait+50*time.Millisecond))
		ok, err = r.Obtain("43").TryLock(w.Context(), lockregistry.Wait(wait))
		require.NoError(w, err)
		require.False(w, ok)
		w.Unlock(other)
		f.Forget()
		w.Unlock(l)
		w.LeftNothing()
	})
}

// A script that the server does not know is not sent again for a call that has given up. Otherwise the removal of what it may
// have got would come first, and once the registry is closed no other removal follows.
func TestFault_WhoHasGivenUpDoesNotTryOnceMore(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(w *kit.World, r *lockregistry.Registry) error{
		"one": func(w *kit.World, r *lockregistry.Registry) error {
			_, err := r.Obtain("42").TryLock(w.Context(), lockregistry.Wait(time.Second))
			return err
		},
		"several": func(w *kit.World, r *lockregistry.Registry) error {
			_, err := r.AcquireAll(w.Context(), []string{"42", "43"}, lockregistry.Wait(time.Second))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Do("SET", "orders:42", "another's")
				answer := make(chan struct{})
				if name == "one" {
					f.Fates("obtain", kit.Delivered) // a SET
				}
				f.Fate("obtain", kit.RefusedAfter(answer, "NOSCRIPT No matching script. Please use EVAL."))
				given := w.Goroutine().Start(func() error { return lock(w, r) })
				w.Settle()
				require.Positive(w, f.Count("obtain"))
				w.Pass(5 * time.Second)
				require.ErrorIs(w, <-given, lockregistry.ErrUnavailable)
				sent := f.Count("obtain")
				close(answer)
				w.Settle()
				require.Equal(w, sent, f.Count("obtain"))
			})
		})
	}
}

// Failures while waiting.

func TestFault_PassingFailuresWhileWaiting(t *testing.T) {
	t.Parallel()
	failures := map[string]kit.Fate{"cut": kit.Cut, "lost reply": kit.CutAfter}
	for _, text := range []string{
		kit.Loading,
		"READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"NOREPLICAS Not enough good replicas to write.",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"ERR max number of clients reached",
	} {
		failures[strings.Fields(text)[0]] = kit.Refused(text)
	}
	for name, what := range failures {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(kit.Polling).Obtain("42")
				w.Do("SET", "orders:42", "for ever")
				locked := w.Goroutine().Starts(l)
				w.Settle()
				f.Fate("obtain", what)
				tries := f.Count("obtain")
				w.Pass(time.Second + 50*time.Millisecond)
				w.Pending(locked)
				// Pauses of 50, 100, 200, 400, 800 ms and then a second, each up to a quarter shorter.
				require.InDelta(w, 5, f.Count("obtain")-tries, 1, "with a backoff")
				w.Do("DEL", "orders:42")
				f.Forget()
				start := time.Now()
				require.NoError(w, <-locked)
				require.LessOrEqual(w, time.Since(start), time.Second)
				require.True(w, l.IsHeld())
			})
		})
	}
}

func TestFault_FailuresUntilTheWaitIsOver(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(kit.Polling).Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		locked := w.Goroutine().Starts(l, lockregistry.Wait(time.Second))
		w.Settle()
		f.Fate("obtain", kit.Refused(kit.Loading))
		err := <-locked
		require.ErrorContains(w, err, "LOADING", "nobody knows whether somebody else has the lock")
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		f.Forget()
		w.Do("DEL", "orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}

func TestFault_LastingFailuresWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"NOAUTH Authentication required.",
		"ERR unknown command 'EVALSHA'",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
	} {
		t.Run(strings.Fields(text)[0], func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(kit.Polling).Obtain("42")
				w.Do("SET", "orders:42", "for ever")
				locked := w.Goroutine().Starts(l)
				w.Settle()
				f.Fate("obtain", kit.Refused(text))
				start := time.Now()
				err := <-locked
				if strings.HasPrefix(text, "WRONGTYPE") { // callers are told of this one in other words
					require.ErrorIs(w, err, lockregistry.ErrWrongType)
				} else {
					require.ErrorContains(w, err, strings.TrimPrefix(text, "ERR "))
				}
				require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
				f.Forget()
				w.Do("DEL", "orders:42")
				require.True(w, w.TryElsewhere(l))
			})
		})
	}
}

func TestFault_TheClientIsClosedWhileWaiting(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		client := w.Client()
		l := w.RegistryOn(client).Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		locked := w.Goroutine().Starts(l)
		w.Settle()
		client.Close()
		start := time.Now()
		w.Fails(<-locked, rueidis.ErrClosing, "lock", "orders:42", lockregistry.ErrUnavailable)
		require.InDelta(w, time.Second, time.Since(start), float64(time.Second), "rueidis says so in passing, too")
		w.Fails(l.Lock(w.Context()), rueidis.ErrClosing, "lock", "orders:42", lockregistry.ErrUnavailable)
	})
}

// A program may close its client right after the registry, while a first try is under way.
func TestFault_TheClientIsClosedWithTheRegistry(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(kit.LockingCalls)
	calls["acquire all"] = func(ctx context.Context, r *lockregistry.Registry, _ ...lockregistry.LockOption) error {
		_, err := r.AcquireAll(ctx, []string{"42", "43"})
		return err
	}
	for op, call := range calls {
		t.Run(op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				client := f.Client(kit.Unasked)
				r := w.RegistryOn(client)
				w.Known(r)
				f.Stall()
				result := make(chan error, 1)
				go func() { result <- call(w.Context(), r) }()
				w.Settle()
				require.NoError(w, r.Close())
				client.Close()
				err := <-result
				require.ErrorIs(w, err, lockregistry.ErrClosed)
				require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
			})
		})
	}
}

// startsToWait has another goroutine lock, and returns once it waits.
func startsToWait(w *kit.World, r *lockregistry.Registry) <-chan error {
	w.Helper()
	locked := w.Goroutine().Starts(r.Obtain("42"))
	w.Await("it waits", func() bool { return r.Stats().Tickets == 1 })
	return locked
}

func TestFault_TheServerRestartsWhileWaiting(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, held := w.Registry(), w.Registry().Obtain("held")
		l := r.Obtain("42")
		w.Lock(held)
		w.Do("SET", "orders:42", "for ever")
		locked := startsToWait(w, r)
		w.Server.Stop()
		w.Pending(locked)
		w.Server.Restart(w)
		require.NoError(w, <-locked)
		require.True(w, l.IsHeld())
		require.False(w, w.TryElsewhere(w.Registry().Obtain("42")))

		// The earlier hold is lost: its key is gone.
		w.Await("the client has noticed", func() bool {
			return errors.Is(held.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
		})
		require.ErrorIs(w, held.Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

func TestFault_ScriptsAreForgotten(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		const lease = 4 * time.Second
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease)).Obtain("42")
		w.Lock(l)
		require.NoError(w, w.Answer(func() error { return l.Renew(w.Context(), lease) }))
		w.Do("SCRIPT", "FLUSH")
		renewals := f.Count("renew")
		w.Await("renewals by the scheduler", func() bool { return f.Count("renew") >= renewals+3 })
		require.True(w, l.IsHeld())
		w.Do("SCRIPT", "FLUSH")
		w.Lock(l)
		w.Unlock(l)
		w.Do("SCRIPT", "FLUSH")
		w.Unlock(l)
		w.IsFree("orders:42")

		w.Do("SET", "orders:42", "for ever")
		tries := f.Count("obtain")
		locked := w.Goroutine().Starts(l)
		w.Await("the waiter has asked Redis", func() bool { return f.Count("obtain") >= tries+2 })
		w.Do("SCRIPT", "FLUSH")
		w.Do("DEL", "orders:42")
		require.NoError(w, <-locked)
	})
}

func TestFault_ConnectionsAreKilled(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(5*time.Second)).Obtain("42")
		kill := func() {
			w.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			w.Do("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
		}
		w.Do("SET", "orders:42", "for ever")
		locked := w.Goroutine().Starts(l)
		w.Listening(kit.WakeupAuto, 1, 1)
		for range 3 {
			tries := f.Count("obtain")
			kill()
			w.Await("the waiter asks Redis", func() bool { return f.Count("obtain") > tries })
		}
		w.Pending(locked)
		w.Do("DEL", "orders:42")
		require.NoError(w, <-locked)
		ended := l.Context(w.Context())
		require.ErrorIs(w, context.Cause(ended), lockregistry.ErrNotOwner, "another goroutine's")
		for range 3 {
			renewals := f.Count("renew")
			w.Await("a renewal", func() bool { return f.Count("renew") > renewals })
			kill()
		}
		require.True(w, l.IsHeld())
	})
}

// A failover: for a while the server is a replica, which accepts no writes.
func TestFault_TheServerIsReadOnlyForAWhile(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Do("SET", "orders:42", "for ever")
		locked := startsToWait(w, r)
		w.Do("SET", "orders:42", "for a while", "PX", "5000") // the server is a replica when this expires
		w.Do("REPLICAOF", "127.0.0.1", "1")
		w.AwaitGone("orders:42")
		// The waiter looks, and learns that nothing can be written. Before version 7 it learns that the lock is taken: scripts on a
		// replica still see an expired key until the master removes it.
		tries := w.Executed("evalsha")
		w.Await("a try in vain", func() bool { return w.Executed("evalsha") > tries })
		w.Pending(locked)
		w.Do("REPLICAOF", "NO", "ONE")
		require.NoError(w, <-locked)
	})
}

func TestFault_WithoutPermission(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		for _, rules := range [][]string{{"-set"}, {"resetkeys", "~invoices:*"}} {
			l := w.RegistryOn(w.User(rules...)).Obtain("42")
			require.ErrorContains(w, l.Lock(w.Context()), "NOPERM", rules)
			_, err := l.TryLock(w.Context())
			require.ErrorContains(w, err, "NOPERM")
			require.ErrorContains(w, err, "orders:42")
			require.True(w, w.Free("orders:42"))
		}

		// The user's rights are taken away while a call waits.
		l := w.RegistryOn(w.User()).Obtain("42")
		name := "user" + strconv.Itoa(len(strings.Fields(w.Do("ACL", "USERS")))-1)
		w.Do("SET", "orders:42", "for ever")
		locked := w.Goroutine().Starts(l)
		w.Do("ACL", "SETUSER", name, "-evalsha", "-eval", "-set")
		require.ErrorContains(w, <-locked, "NOPERM")
	})
}

// Permissions that are merely useful may be missing.
func TestFault_WithoutPermissionsThatCanBeDoneWithout(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		for _, rules := range [][]string{
			{"-info"}, {"-unlink"}, {"-info", "-unlink"}, {"resetchannels"}, {"-publish"}, {"-subscribe"}, {"-client"},
			{"-info", "-unlink", "resetchannels", "-publish", "-subscribe", "-client"},
		} {
			l := w.RegistryOn(w.User(rules...)).Obtain("42")
			w.Lock(l)
			require.NoError(w, w.UnlessLate(l.Unlock(w.Context())), rules)
			w.AwaitGone("orders:42")

			w.Do("SET", "orders:42", "for ever")
			locked := w.Goroutine().Start(func() error {
				return errors.Join(l.Lock(w.Context()), w.UnlessLate(l.Unlock(w.Context())))
			})
			w.Pending(locked)
			w.Do("DEL", "orders:42")
			require.NoError(w, <-locked, rules)
			require.True(w, w.Free("orders:42"), rules)
		}
	})
}

// The command with which keys are removed.

func TestFault_TheServerIsAskedOnceForItsVersion(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		client := f.Client()
		for range 2 {
			r := w.RegistryOn(client)
			for range 3 {
				w.Lock(r.Obtain("42"))
				w.Unlock(r.Obtain("42"))
			}
		}
		if w.Fake {
			require.Equal(w, 1, f.Count("INFO"))
		} else { // a release does not wait long for the reply: on a busy machine the next one asks again
			require.Positive(w, f.Count("INFO"))
			releases := f.Sent("release")
			require.NotContains(w, releases[len(releases)-1].Args, "DEL")
			require.Contains(w, w.Do("INFO", "commandstats"), "cmdstat_unlink")
		}
	})
}

func TestFault_InfoIsOfNoUse(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]kit.Fate{
		"forbidden":  kit.Refused("NOPERM this user has no permissions to run the 'info' command"),
		"unknown":    kit.Refused("ERR unknown command 'INFO'"),
		"empty":      {Lost: true, Reply: "$0\r\n\r\n"},
		"null":       {Lost: true, Reply: "_\r\n"},
		"garbled":    {Lost: true, Reply: "$12\r\nredis_versio\r\n"},
		"a number":   {Lost: true, Reply: ":7\r\n"},
		"an array":   {Lost: true, Reply: "*1\r\n$1\r\nx\r\n"},
		"very old":   {Lost: true, Reply: "$20\r\nredis_version:2.8.24\r\n"},
		"no version": {Lost: true, Reply: "$14\r\nredis_version:\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				f.Fate("INFO", answer)
				l := f.Registry().Obtain("42")
				for range 3 {
					w.Lock(l)
					w.Unlock(l)
					require.True(w, w.Free("orders:42"))
				}
				require.Equal(w, 1, f.Count("INFO"), "an answer is an answer")
				for _, c := range f.Sent("release") {
					require.Contains(w, c.Args, "DEL")
				}
			})
		})
	}
}

func TestFault_InfoIsAskedAgainAfterAFailure(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l)
		f.Fate("INFO", kit.Cut)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_ = l.Unlock(ctx)
		f.Forget()
		w.AwaitGone("orders:42")
		f.Fate("INFO", kit.Fate{Lost: true, Reply: "$19\r\nredis_version:7.2.4\r\n"})
		w.Settle()
		w.Lock(l)
		w.Unlock(l)
		released := f.Sent("release")
		require.Contains(w, released[0].Args, "DEL")
		require.NotContains(w, released[len(released)-1].Args, "DEL")
	})
}

// Removals whose outcome is unknown.

func TestFault_TheReplyToARemovalIsLost(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{"executed": kit.CutAfter, "not executed": kit.Cut} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry().Obtain("42")
				w.Lock(l, lockregistry.Lease(time.Hour))
				f.Fates("release", what)
				w.Unlock(l) // the registry makes sure while Unlock still waits
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrNotOwner)
				start := time.Now()
				w.Lock(l)
				if w.Fake {
					require.LessOrEqual(w, time.Since(start), 200*time.Millisecond)
				}
				w.Unlock(l)
				w.IsFree("orders:42")
			})
		})
	}
}

// Until the removal is confirmed, no other call of this process gets the lock.
func TestFault_TheLocalHalfWaitsForTheRemoval(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithHandoff(0)).Obtain("42")
		w.Lock(l, lockregistry.Lease(20*time.Second))
		f.Fate("release", kit.Refused(kit.Loading))
		require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
		tries := f.Count("obtain")
		locked := w.Goroutine().Starts(l)
		w.Pass(10 * time.Second)
		w.Pending(locked)
		require.Equal(w, tries, f.Count("obtain"))
		require.Greater(w, f.Count("release"), 9, "it is tried every second at least")
		f.Forget()
		start := time.Now()
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(start), time.Second)
	})
}

// If it is never confirmed, they wait until the lease ends.
func TestFault_TheLocalHalfWaitsNoLongerThanTheLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithHandoff(0)).Obtain("42")
		start := time.Now()
		w.Lock(l, lockregistry.Lease(20*time.Second))
		f.Fate("release", kit.Refused(kit.Loading))
		require.Error(w, l.Unlock(w.Context()))
		require.NoError(w, w.Goroutine().Lock(l))
		require.GreaterOrEqual(w, time.Since(start), 20*time.Second)
		require.LessOrEqual(w, time.Since(start), 22*time.Second)
	})
}

// lateRemoval leaves a lock with a removal that is still under way. The hold's key is gone all the same.
func lateRemoval(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) kit.Command {
	w.Helper()
	w.Lock(l)
	w.Unlock(l) // the server knows the script from here on
	w.Lock(l)
	before := len(f.Sent("release"))
	f.Fate("release", kit.Silence)
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
	late := f.Sent("release")[before:]
	require.NotEmpty(w, late)
	f.Reconnect()
	w.AwaitGone("orders:42")
	w.Pass(time.Second)
	return late[0]
}

func TestFault_ALateRemovalDoesNotTouchTheNextHold(t *testing.T) {
	t.Parallel()
	for _, here := range []bool{true, false} {
		t.Run(map[bool]string{true: "of this process", false: "of another"}[here], func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry().Obtain("42")
				late := lateRemoval(w, f, l)
				next := l
				if !here {
					next = w.Registry().Obtain("42")
				}
				w.Lock(next, lockregistry.Lease(30*time.Second))
				value := w.Do("GET", "orders:42")
				require.Equal(w, "-1", w.Arrives(late))
				require.Equal(w, value, w.Do("GET", "orders:42"))
				w.Lock(next)
				require.Equal(w, "-1", w.Arrives(late))
				require.Equal(w, 30*time.Second, w.Pttl("orders:42"))
				w.Unlock(next)
				w.Unlock(next)
				require.Equal(w, "0", w.Arrives(late))
			})
		})
	}
}

// Grants whose outcome is unknown.

func TestFault_ALateGrantIsRemoved(t *testing.T) {
	t.Parallel()
	for name, waiting := range map[string]bool{"first attempt": false, "later attempt": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(kit.Polling).Obtain("42")
				if waiting {
					w.Do("SET", "orders:42", "for ever")
					f.Fates("obtain", kit.Delivered, kit.Delivered)
				}
				f.Fate("obtain", kit.Silence)
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				err := l.Lock(ctx, lockregistry.Lease(time.Hour))
				require.ErrorIs(w, err, context.DeadlineExceeded)
				require.Equal(w, !waiting, errors.Is(err, lockregistry.ErrUnavailable), "one that was answered: another owner has it")
				sent := f.Sent("obtain")
				late := sent[len(sent)-1]
				require.Equal(w, waiting, late.Args[0] != "SET")
				f.Reconnect()
				w.Do("DEL", "orders:42")
				w.Pass(5*time.Second + 12*time.Millisecond) // between the times at which it is looked for

				arrives := func(within time.Duration) {
					w.Helper()
					w.Arrives(late)
					require.False(w, w.Free("orders:42"))
					start := time.Now()
					w.AwaitGone("orders:42")
					require.LessOrEqual(w, time.Since(start), within)
				}
				arrives(101 * time.Millisecond)
				w.Pass(30*time.Second + 34*time.Millisecond)
				arrives(10 * time.Second)

				// It must not overwrite a later hold, of this process or another.
				for _, next := range []*lockregistry.Lock{l, w.Registry().Obtain("42")} {
					w.Lock(next, lockregistry.Lease(time.Minute))
					value := w.Do("GET", "orders:42")
					w.Arrives(late)
					require.Equal(w, value, w.Do("GET", "orders:42"))
					require.Equal(w, time.Minute, w.Pttl("orders:42"))
					w.Pass(10 * time.Second)
					require.Equal(w, value, w.Do("GET", "orders:42"))
					w.Unlock(next)
				}
			})
		})
	}
}

// A waiter whose grant was executed, but whose reply was lost, gets the lock at its next attempt.
func TestFault_AWaiterMakesALostGrantGood(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(kit.Polling).Obtain("42")
		w.Do("SET", "orders:42", uuid.NewString(), "PX", "450")
		locked := w.Goroutine().Starts(l)
		w.Settle()
		w.Pass(420 * time.Millisecond)
		f.Fates("obtain", kit.CutAfter)
		start := time.Now()
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(start), 240*time.Millisecond)
		require.True(w, l.IsHeld())
	})
}

func TestFault_CancelWhileTheServerIsSilent(t *testing.T) {
	t.Parallel()
	contexts := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"no deadline": context.WithCancel,
		"far deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	}
	// The client waits for replies in different ways.
	connections := map[string]func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock){
		"pipelining": func(w *kit.World, _ *kit.Flaky, l *lockregistry.Lock) { require.True(w, w.TryElsewhere(l)) },
		"idle":       func(*kit.World, *kit.Flaky, *lockregistry.Lock) {},
		"connecting": func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
			require.True(w, w.TryElsewhere(l))
			f.Reconnect()
			w.Pass(20 * time.Millisecond) // just after a reply, a connection need not prove that it lives
		},
	}
	calls := map[string]func(ctx context.Context, l *lockregistry.Lock) error{
		"lock":    func(ctx context.Context, l *lockregistry.Lock) error { return l.Lock(ctx) },
		"trylock": func(ctx context.Context, l *lockregistry.Lock) error { _, err := l.TryLock(ctx); return err },
		"renew":   func(ctx context.Context, l *lockregistry.Lock) error { return l.Renew(ctx, time.Minute) },
		"unlock":  func(ctx context.Context, l *lockregistry.Lock) error { return l.Unlock(ctx) },
	}
	for how, derive := range contexts {
		for state, connect := range connections {
			for op, call := range calls {
				t.Run(strings.Join([]string{how, state, op}, "/"), func(t *testing.T) {
					kit.FakeWorld(t, func(w *kit.World) {
						f := w.Flaky()
						r := w.RegistryOn(f.Client(kit.OneConnection))
						connect(w, f, r.Obtain("another"))
						l := r.Obtain("42")
						if op == "renew" || op == "unlock" {
							require.NoError(w, l.Lock(context.Background()))
							connect(w, f, r.Obtain("another"))
						}
						f.Fate(kit.Anything, kit.Silence)
						ctx, cancel := derive(w.Context())
						time.AfterFunc(time.Second, cancel)
						start := time.Now()
						err := call(ctx, l)
						took := time.Since(start)
						f.Reconnect()
						require.ErrorIs(w, err, lockregistry.ErrUnavailable)
						if op == "unlock" {
							require.NotErrorIs(w, err, context.Canceled)
						} else {
							require.ErrorIs(w, err, context.Canceled)
						}
						require.Equal(w, time.Second, took)
						if op != "renew" {
							w.AwaitGone("orders:42")
						}
					})
				})
			}
		}
	}
}

// The connection for wake-ups hangs: the call's wait ends in time all the same.
func TestFault_TheConnectionForWakeupsIsSilent(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]kit.Fate{
		"at once":           {kit.Silence},
		"when it is in use": {kit.Delivered, kit.Silence},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(lockregistry.WithPollInterval(time.Minute)).Obtain("42")
				w.Do("SET", "orders:42", "for ever")
				f.Fates("SUBSCRIBE", fates...)
				for range 2 {
					start := time.Now()
					ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Second))
					require.NoError(w, err)
					require.False(w, ok)
					require.Equal(w, time.Second, time.Since(start))
				}
			})
		})
	}
}

// The server takes longer to arm wake-ups than the waiters sleep.
func TestFault_TheConnectionForWakeupsIsSlow(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		paths := []string{"a", "b", "c"}
		locked := make([]<-chan error, 0, len(paths))
		f.Fates("SUBSCRIBE", kit.Delivered, kit.SlowReply(time.Second)) // the first one is for no particular path
		for _, path := range paths {
			w.Do("SET", "orders:"+path, "for ever")
			locked = append(locked, w.Goroutine().Starts(r.Obtain(path)))
			w.Settle()
			w.Pass(10 * time.Millisecond)
		}
		w.Pass(3 * time.Second)
		for i, path := range paths {
			w.Pending(locked[i])
			w.Do("DEL", "orders:"+path)
			start := time.Now()
			require.NoError(w, <-locked[i])
			require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
		}
	})
}

// For servers with other data: nothing that this library sends changes anything but its own keys.
func TestFault_OnlyTheKeyIsTouched(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l)
		w.Lock(l)
		w.Unlock(l)
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.Unlock(l)
		w.LeftNothingSoon()
		for _, name := range []string{"obtain", "renew", "release"} {
			for _, c := range f.Sent(name) {
				require.True(w, slices.Contains(c.Args, "orders:42"), c.Args)
			}
		}
	})
}

// The wait counts from the first command on, and includes the confirmation of a late grant.
func TestFault_ASilentServerDoesNotOutlastTheWait(t *testing.T) {
	t.Parallel()
	silent := map[string]func(w *kit.World, f *kit.Flaky){
		"at the first try": func(_ *kit.World, f *kit.Flaky) { f.Fate("obtain", kit.Silence) },
		"at the confirmation": func(w *kit.World, f *kit.Flaky) {
			w.Do("SET", "orders:42", "for ever")
			time.AfterFunc(50*time.Millisecond, func() { w.Do("DEL", "orders:42") })
			f.Fates("obtain", kit.Delivered, kit.Delivered, kit.Delivered, kit.SlowReply(900*time.Millisecond))
			f.Fate("renew", kit.Silence)
		},
	}
	for name, silence := range silent {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(kit.Polling).Obtain("42")
				w.Lock(l)
				w.Unlock(l) // the server knows the scripts from here on
				silence(w, f)
				start := time.Now()
				err := l.Lock(w.Context(), lockregistry.Wait(time.Second))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.NotErrorIs(w, err, lockregistry.ErrTaken)
				f.Reconnect()
			})
		})
	}
}
