package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What happens when the server or the network does not do its part.

// loading is an error that goes away by itself.
const loading = "LOADING Redis is loading the dataset in memory"

// Failures of the first attempt.

func TestFault_TheFirstFailureIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{
		"refused":    refused(loading),
		"cut":        cut,
		"lost reply": cutAfter, // the key is set
	} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				l := r.Obtain("42")
				for op, lock := range map[string]func() error{
					"lock":    func() error { return l.Lock(w.Context()) },
					"trylock": func() error { _, err := l.TryLock(w.Context()); return err },
					"do":      func() error { return r.Do(w.Context(), "42", nothing) },
				} {
					f.next("obtain", what)
					start := time.Now()
					err := lock()
					require.Error(w, err)
					var failed *lockregistry.LockError
					require.ErrorAs(w, err, &failed)
					require.Equal(w, op, failed.Op)
					require.Equal(w, what.Reply != "", strings.Contains(err.Error(), "LOADING"))
					if w.fake {
						require.Zero(w, time.Since(start))
					}
					require.False(w, l.IsHeld())
					require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrNotOwner)

					w.awaitGone("orders:42")
					if w.fake {
						require.LessOrEqual(w, time.Since(start), 101*time.Millisecond, "within a poll interval")
					}
					require.True(w, w.tryElsewhere(l), "the local half is free")
				}
			})
		})
	}
}

func TestFault_NobodyCanConnect(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		l := w.registryOn(f.client(oneConnection)).Obtain("42")
		f.Down()
		w.await("the client has noticed", func() bool {
			_, err := l.TryLock(w.Context())
			return err != nil && strings.Contains(err.Error(), "the network is down")
		})
		require.ErrorContains(w, l.Lock(w.Context()), "the network is down")
		f.Forget()
		w.await("the client has connected", func() bool { return l.Lock(w.Context()) == nil })
		w.unlock(l)
	})
}

// An abandoned grant does not block its own process even before it is removed: the next hold takes over.
func TestFault_TheNextHoldTakesAnAbandonedGrantOver(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		l := r.Obtain("42")
		f.all("release", refused(loading))
		f.next("obtain", cutAfter)
		require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		abandoned := w.do("GET", "orders:42")
		require.NotEqual(w, "(nil)", abandoned)
		var ok bool
		w.await("a connection", func() bool { // that of the last call is broken
			var err error
			ok, err = l.TryLock(w.Context(), lockregistry.Lease(time.Minute))
			return err == nil
		})
		require.True(w, ok)
		require.NotEqual(w, abandoned, w.do("GET", "orders:42"))
		require.LessOrEqual(w, w.pttl("orders:42"), time.Minute)
		require.False(w, w.tryElsewhere(w.registry().Obtain("42")))
		f.Forget()
		w.unlock(l)
		require.True(w, w.free("orders:42"))
	})
}

// Nor does it when the answer to the first, short command comes only when the wait is over: that says no more than that some key
// is there. So such a call does not say either that another owner has the lock.
func TestFault_AnAbandonedGrantIsNotAnotherOwner(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const wait = 100 * time.Millisecond
		f := w.flaky()
		r := f.registry()
		w.known(r)
		l := r.Obtain("42")
		f.all("release", refused(loading))
		f.next("obtain", cutAfter)
		require.Error(w, l.Lock(w.Context()))
		f.next("obtain", slow(wait+50*time.Millisecond))
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
		require.NoError(w, err)
		require.True(w, ok)

		other := w.registry().Obtain("43")
		w.lock(other)
		f.next("obtain", slow(wait+50*time.Millisecond))
		ok, err = r.Obtain("43").TryLock(w.Context(), lockregistry.Wait(wait))
		require.NoError(w, err)
		require.False(w, ok)
		w.unlock(other)
		f.Forget()
		w.unlock(l)
		w.leftNothing()
	})
}

// A script that the server does not know is not sent again for a call that has given up. The removal of what it may have got
// would come first, and when the registry is closed that is the last one.
func TestFault_WhoHasGivenUpDoesNotTryOnceMore(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(w *world, r *lockregistry.Registry) error{
		"one": func(w *world, r *lockregistry.Registry) error {
			_, err := r.Obtain("42").TryLock(w.Context(), lockregistry.Wait(time.Second))
			return err
		},
		"several": func(w *world, r *lockregistry.Registry) error {
			_, err := r.AcquireAll(w.Context(), []string{"42", "43"}, lockregistry.Wait(time.Second))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.do("SET", "orders:42", "another's")
				answer := make(chan struct{})
				if name == "one" {
					f.next("obtain", delivered) // a SET
				}
				f.all("obtain", refusedAfter(answer, "NOSCRIPT No matching script. Please use EVAL."))
				given := w.goroutine().start(func() error { return lock(w, r) })
				w.settle()
				require.Positive(w, f.count("obtain"))
				w.pass(5 * time.Second)
				require.ErrorIs(w, <-given, lockregistry.ErrUnavailable)
				sent := f.count("obtain")
				close(answer)
				w.settle()
				require.Equal(w, sent, f.count("obtain"))
			})
		})
	}
}

// Failures while waiting.

func TestFault_PassingFailuresWhileWaiting(t *testing.T) {
	t.Parallel()
	failures := map[string]fate{"cut": cut, "lost reply": cutAfter}
	for _, text := range []string{
		loading,
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
		failures[strings.Fields(text)[0]] = refused(text)
	}
	for name, what := range failures {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(polling).Obtain("42")
				w.do("SET", "orders:42", "for ever")
				locked := w.goroutine().starts(l)
				w.settle()
				f.all("obtain", what)
				tries := f.count("obtain")
				w.pass(time.Second + 50*time.Millisecond)
				w.pending(locked)
				// Pauses of 50, 100, 200, 400, 800 ms and then a second, each up to a quarter shorter.
				require.InDelta(w, 5, f.count("obtain")-tries, 1, "with a backoff")
				w.do("DEL", "orders:42")
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
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(polling).Obtain("42")
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l, lockregistry.Wait(time.Second))
		w.settle()
		f.all("obtain", refused(loading))
		err := <-locked
		require.ErrorContains(w, err, "LOADING", "nobody knows whether somebody else has the lock")
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		f.Forget()
		w.do("DEL", "orders:42")
		require.True(w, w.tryElsewhere(l))
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
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(polling).Obtain("42")
				w.do("SET", "orders:42", "for ever")
				locked := w.goroutine().starts(l)
				w.settle()
				f.all("obtain", refused(text))
				start := time.Now()
				err := <-locked
				if strings.HasPrefix(text, "WRONGTYPE") { // which callers are told in words of their own
					require.ErrorIs(w, err, lockregistry.ErrWrongType)
				} else {
					require.ErrorContains(w, err, strings.TrimPrefix(text, "ERR "))
				}
				require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
				f.Forget()
				w.do("DEL", "orders:42")
				require.True(w, w.tryElsewhere(l))
			})
		})
	}
}

func TestFault_TheClientIsClosedWhileWaiting(t *testing.T) {
	fakeWorld(t, func(w *world) {
		client := w.client()
		l := w.registryOn(client).Obtain("42")
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l)
		w.settle()
		client.Close()
		start := time.Now()
		w.fails(<-locked, rueidis.ErrClosing, "lock", "orders:42", lockregistry.ErrUnavailable)
		require.InDelta(w, time.Second, time.Since(start), float64(time.Second), "rueidis says so in passing, too")
		w.fails(l.Lock(w.Context()), rueidis.ErrClosing, "lock", "orders:42", lockregistry.ErrUnavailable)
	})
}

// awaitScript waits until the server has been asked to run a script, as by a call that waits.
func (w *world) awaitScript() {
	w.Helper()
	w.await("a script", func() bool { return strings.Contains(w.do("INFO", "commandstats"), "evalsha") })
}

func TestFault_TheServerRestartsWhileWaiting(t *testing.T) {
	realWorlds(t, func(w *world) {
		l, held := w.registry().Obtain("42"), w.registry().Obtain("held")
		w.lock(held)
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l)
		w.awaitScript()
		w.server.Stop()
		w.pending(locked)
		w.server.Restart(w)
		require.NoError(w, <-locked)
		require.True(w, l.IsHeld())
		require.False(w, w.tryElsewhere(w.registry().Obtain("42")))

		// What was held is not any more: its key is gone.
		w.await("the client has noticed", func() bool {
			return errors.Is(held.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
		})
		require.ErrorIs(w, held.Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

func TestFault_ScriptsAreForgotten(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*brief)).Obtain("42")
		w.lock(l)
		require.NoError(w, l.Renew(w.Context(), 3*brief))
		w.do("SCRIPT", "FLUSH")
		renewals := f.count("renew")
		w.await("renewals by the scheduler", func() bool { return f.count("renew") >= renewals+3 })
		require.True(w, l.IsHeld())
		w.do("SCRIPT", "FLUSH")
		w.lock(l)
		w.unlock(l)
		w.do("SCRIPT", "FLUSH")
		w.unlock(l)
		require.True(w, w.free("orders:42"))

		w.do("SET", "orders:42", "for ever")
		tries := f.count("obtain")
		locked := w.goroutine().starts(l)
		w.await("the waiter has asked Redis", func() bool { return f.count("obtain") >= tries+2 })
		w.do("SCRIPT", "FLUSH")
		w.do("DEL", "orders:42")
		require.NoError(w, <-locked)
	})
}

func TestFault_ConnectionsAreKilled(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*brief)).Obtain("42")
		kill := func() {
			w.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			w.do("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
		}
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l)
		w.listening(lockregistry.WakeupAuto, 1, 1)
		for range 3 {
			tries := f.count("obtain")
			kill()
			w.await("the waiter asks Redis", func() bool { return f.count("obtain") > tries })
		}
		w.pending(locked)
		w.do("DEL", "orders:42")
		require.NoError(w, <-locked)
		ended := l.Context(w.Context())
		require.ErrorIs(w, context.Cause(ended), lockregistry.ErrNotOwner, "another goroutine's")
		for range 3 {
			renewals := f.count("renew")
			w.await("a renewal", func() bool { return f.count("renew") > renewals })
			kill()
		}
		require.True(w, l.IsHeld())
	})
}

// A failover: for a while the server is a replica, which writes nothing.
func TestFault_TheServerIsReadOnlyForAWhile(t *testing.T) {
	realWorlds(t, func(w *world) {
		l := w.registry().Obtain("42")
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l)
		w.awaitScript()
		w.do("SET", "orders:42", "for a while", "PX", "50")
		w.do("REPLICAOF", "127.0.0.1", "1")
		w.awaitGone("orders:42")
		// The waiter looks, and is told that nothing can be written, or, before version 7, that the lock is taken: scripts on a
		// replica see a key there until the master removes it, also when its time is over.
		tries := w.executed("evalsha")
		w.await("a try in vain", func() bool { return w.executed("evalsha") > tries })
		w.pending(locked)
		w.do("REPLICAOF", "NO", "ONE")
		require.NoError(w, <-locked)
	})
}

// Permissions.

// user makes a user with these rules and returns a client that is one.
func (w *world) user(rules ...string) rueidis.Client {
	w.Helper()
	name := fmt.Sprintf("user%d", len(strings.Fields(w.do("ACL", "USERS"))))
	w.do(append([]string{"ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all"}, rules...)...)
	return w.clientWith(w.dial, func(o *rueidis.ClientOption) {
		o.Username, o.Password = name, "secret"
		o.DisableCache = slices.Contains(rules, "-client") // rueidis needs CLIENT for its cache
	})
}

func TestFault_WithoutPermission(t *testing.T) {
	realWorlds(t, func(w *world) {
		for _, rules := range [][]string{{"-set"}, {"resetkeys", "~invoices:*"}} {
			l := w.registryOn(w.user(rules...)).Obtain("42")
			require.ErrorContains(w, l.Lock(w.Context()), "NOPERM", rules)
			_, err := l.TryLock(w.Context())
			require.ErrorContains(w, err, "NOPERM")
			require.ErrorContains(w, err, "orders:42")
			require.True(w, w.free("orders:42"))
		}

		// When it is taken from a user who waits.
		l := w.registryOn(w.user()).Obtain("42")
		name := "user" + strconv.Itoa(len(strings.Fields(w.do("ACL", "USERS")))-1)
		w.do("SET", "orders:42", "for ever")
		locked := w.goroutine().starts(l)
		w.do("ACL", "SETUSER", name, "-evalsha", "-eval", "-set")
		require.ErrorContains(w, <-locked, "NOPERM")
	})
}

// What is nice to have may be forbidden.
func TestFault_WithoutPermissionsThatCanBeDoneWithout(t *testing.T) {
	realWorlds(t, func(w *world) {
		for _, rules := range [][]string{
			{"-info"}, {"-unlink"}, {"-info", "-unlink"}, {"resetchannels"}, {"-publish"}, {"-subscribe"}, {"-client"},
			{"-info", "-unlink", "resetchannels", "-publish", "-subscribe", "-client"},
		} {
			l := w.registryOn(w.user(rules...)).Obtain("42")
			w.lock(l)
			require.NoError(w, l.Unlock(w.Context()), rules)
			require.True(w, w.free("orders:42"), rules)

			w.do("SET", "orders:42", "for ever")
			locked := w.goroutine().start(func() error { return errors.Join(l.Lock(w.Context()), l.Unlock(w.Context())) })
			w.pending(locked)
			w.do("DEL", "orders:42")
			require.NoError(w, <-locked, rules)
			require.True(w, w.free("orders:42"), rules)
		}
	})
}

// The command that removes keys.

func TestFault_TheServerIsAskedOnceForItsVersion(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		client := f.client()
		for range 2 {
			r := w.registryOn(client)
			for range 3 {
				w.lock(r.Obtain("42"))
				w.unlock(r.Obtain("42"))
			}
		}
		require.Equal(w, 1, f.count("INFO"))
		if w.server != nil {
			require.NotContains(w, f.sent("release")[0].Args, "DEL")
			require.Contains(w, w.do("INFO", "commandstats"), "cmdstat_unlink")
		}
	})
}

func TestFault_InfoIsOfNoUse(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]fate{
		"forbidden":  refused("NOPERM this user has no permissions to run the 'info' command"),
		"unknown":    refused("ERR unknown command 'INFO'"),
		"empty":      {Lost: true, Reply: "$0\r\n\r\n"},
		"null":       {Lost: true, Reply: "_\r\n"},
		"garbled":    {Lost: true, Reply: "$12\r\nredis_versio\r\n"},
		"a number":   {Lost: true, Reply: ":7\r\n"},
		"an array":   {Lost: true, Reply: "*1\r\n$1\r\nx\r\n"},
		"very old":   {Lost: true, Reply: "$20\r\nredis_version:2.8.24\r\n"},
		"no version": {Lost: true, Reply: "$14\r\nredis_version:\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				f.all("INFO", answer)
				l := f.registry().Obtain("42")
				for range 3 {
					w.lock(l)
					w.unlock(l)
					require.True(w, w.free("orders:42"))
				}
				require.Equal(w, 1, f.count("INFO"), "an answer is an answer")
				for _, c := range f.sent("release") {
					require.Contains(w, c.Args, "DEL")
				}
			})
		})
	}
}

func TestFault_InfoIsAskedAgainAfterAFailure(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l)
		f.all("INFO", cut)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_ = l.Unlock(ctx)
		f.Forget()
		w.awaitGone("orders:42")
		f.all("INFO", fate{Lost: true, Reply: "$19\r\nredis_version:7.2.4\r\n"})
		w.settle()
		w.lock(l)
		w.unlock(l)
		released := f.sent("release")
		require.Contains(w, released[0].Args, "DEL")
		require.NotContains(w, released[len(released)-1].Args, "DEL")
	})
}

// Removals whose outcome is unknown.

func TestFault_TheReplyToARemovalIsLost(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"executed": cutAfter, "not executed": cut} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				f := w.flaky()
				l := f.registry().Obtain("42")
				w.lock(l, lockregistry.Lease(time.Hour))
				f.next("release", what)
				w.unlock(l) // the registry makes sure within the time that Unlock waits
				require.False(w, l.IsHeld())
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrNotOwner)
				start := time.Now()
				w.lock(l)
				if w.fake {
					require.LessOrEqual(w, time.Since(start), 200*time.Millisecond)
				}
				w.unlock(l)
				require.True(w, w.free("orders:42"))
			})
		})
	}
}

// Until the removal is confirmed, nobody of this process gets the local half.
func TestFault_TheLocalHalfWaitsForTheRemoval(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithHandoff(0)).Obtain("42")
		w.lock(l, lockregistry.Lease(20*time.Second))
		f.all("release", refused(loading))
		require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
		tries := f.count("obtain")
		locked := w.goroutine().starts(l)
		w.pass(10 * time.Second)
		w.pending(locked)
		require.Equal(w, tries, f.count("obtain"))
		require.Greater(w, f.count("release"), 9, "it is tried every second at least")
		f.Forget()
		start := time.Now()
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(start), time.Second)
	})
}

// When it never is, the end of the lease has to do.
func TestFault_TheLocalHalfWaitsNoLongerThanTheLease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(lockregistry.WithHandoff(0)).Obtain("42")
		start := time.Now()
		w.lock(l, lockregistry.Lease(20*time.Second))
		f.all("release", refused(loading))
		require.Error(w, l.Unlock(w.Context()))
		require.NoError(w, w.goroutine().lock(l))
		require.GreaterOrEqual(w, time.Since(start), 20*time.Second)
		require.LessOrEqual(w, time.Since(start), 22*time.Second)
	})
}

// lateRemoval leaves a lock with a removal that is still on its way. The hold's key is gone all the same.
func lateRemoval(w *world, f *flaky, l *lockregistry.Lock) command {
	w.Helper()
	w.lock(l)
	w.unlock(l) // the server knows the script from now on
	w.lock(l)
	before := len(f.sent("release"))
	f.all("release", silence)
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	require.ErrorIs(w, l.Unlock(ctx), lockregistry.ErrUnavailable)
	late := f.sent("release")[before:]
	require.NotEmpty(w, late)
	f.reconnect()
	w.awaitGone("orders:42")
	w.pass(time.Second)
	return late[0]
}

func TestFault_ALateRemovalDoesNotTouchTheNextHold(t *testing.T) {
	t.Parallel()
	for _, here := range []bool{true, false} {
		t.Run(map[bool]string{true: "of this process", false: "of another"}[here], func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry().Obtain("42")
				late := lateRemoval(w, f, l)
				next := l
				if !here {
					next = w.registry().Obtain("42")
				}
				w.lock(next, lockregistry.Lease(30*time.Second))
				value := w.do("GET", "orders:42")
				theirs := map[bool]string{true: "-2", false: "-1"}[here]
				require.Equal(w, theirs, w.arrives(late))
				require.Equal(w, value, w.do("GET", "orders:42"))
				w.lock(next)
				require.Equal(w, theirs, w.arrives(late))
				require.Equal(w, 30*time.Second, w.pttl("orders:42"))
				w.unlock(next)
				w.unlock(next)
				require.Equal(w, "0", w.arrives(late))
			})
		})
	}
}

// Grants whose outcome is unknown.

func TestFault_ALateGrantIsRemoved(t *testing.T) {
	t.Parallel()
	for name, waiting := range map[string]bool{"first attempt": false, "later attempt": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(polling).Obtain("42")
				if waiting {
					w.do("SET", "orders:42", "for ever")
					f.next("obtain", delivered, delivered)
				}
				f.all("obtain", silence)
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				err := l.Lock(ctx, lockregistry.Lease(time.Hour))
				require.ErrorIs(w, err, context.DeadlineExceeded)
				require.Equal(w, !waiting, errors.Is(err, lockregistry.ErrUnavailable), "one that was answered: another owner has it")
				sent := f.sent("obtain")
				late := sent[len(sent)-1]
				require.Equal(w, waiting, late.Args[0] != "SET")
				f.reconnect()
				w.do("DEL", "orders:42")
				w.pass(5*time.Second + 12*time.Millisecond) // not when it is looked for

				arrives := func(within time.Duration) {
					w.Helper()
					w.arrives(late)
					require.False(w, w.free("orders:42"))
					start := time.Now()
					w.awaitGone("orders:42")
					require.LessOrEqual(w, time.Since(start), within)
				}
				arrives(101 * time.Millisecond)
				w.pass(30*time.Second + 34*time.Millisecond)
				arrives(10 * time.Second)

				// It must not overwrite a later hold, of this process or of another.
				for _, next := range []*lockregistry.Lock{l, w.registry().Obtain("42")} {
					w.lock(next, lockregistry.Lease(time.Minute))
					value := w.do("GET", "orders:42")
					w.arrives(late)
					require.Equal(w, value, w.do("GET", "orders:42"))
					require.Equal(w, time.Minute, w.pttl("orders:42"))
					w.pass(10 * time.Second)
					require.Equal(w, value, w.do("GET", "orders:42"))
					w.unlock(next)
				}
			})
		})
	}
}

// A waiter whose grant was executed, but whose reply was lost, has the lock at its next attempt.
func TestFault_AWaiterMakesALostGrantGood(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(polling).Obtain("42")
		w.do("SET", "orders:42", uuid.NewString(), "PX", "450")
		locked := w.goroutine().starts(l)
		w.settle()
		w.pass(420 * time.Millisecond)
		f.next("obtain", cutAfter)
		start := time.Now()
		require.NoError(w, <-locked)
		require.LessOrEqual(w, time.Since(start), 240*time.Millisecond)
		require.True(w, l.IsHeld())
	})
}

// A server that never replies.

// oneConnection makes a client use the same connection for all commands but those that block or subscribe.
func oneConnection(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

func TestFault_CancelWhileTheServerIsSilent(t *testing.T) {
	t.Parallel()
	contexts := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"no deadline": context.WithCancel,
		"far deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	}
	// How the client uses its connection decides how it waits for a reply.
	connections := map[string]func(w *world, f *flaky, l *lockregistry.Lock){
		"pipelining": func(w *world, _ *flaky, l *lockregistry.Lock) { require.True(w, w.tryElsewhere(l)) },
		"idle":       func(*world, *flaky, *lockregistry.Lock) {},
		"connecting": func(w *world, f *flaky, l *lockregistry.Lock) {
			require.True(w, w.tryElsewhere(l))
			f.reconnect()
			w.pass(20 * time.Millisecond) // just after an answer nobody expects that
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
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := w.registryOn(f.client(oneConnection))
						connect(w, f, r.Obtain("another"))
						l := r.Obtain("42")
						if op == "renew" || op == "unlock" {
							require.NoError(w, l.Lock(context.Background()))
							connect(w, f, r.Obtain("another"))
						}
						f.all(anything, silence)
						ctx, cancel := derive(w.Context())
						time.AfterFunc(time.Second, cancel)
						start := time.Now()
						err := call(ctx, l)
						took := time.Since(start)
						f.reconnect()
						require.ErrorIs(w, err, lockregistry.ErrUnavailable)
						if op == "unlock" {
							require.NotErrorIs(w, err, context.Canceled)
						} else {
							require.ErrorIs(w, err, context.Canceled)
						}
						require.Equal(w, time.Second, took)
						if op != "renew" {
							w.awaitGone("orders:42")
						}
					})
				})
			}
		}
	}
}

// The connection for wake-ups hangs: the wait that a call was given ends all the same.
func TestFault_TheConnectionForWakeupsIsSilent(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]fate{
		"at once":           {silence},
		"when it is in use": {delivered, silence},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(lockregistry.WithPollInterval(time.Minute)).Obtain("42")
				w.do("SET", "orders:42", "for ever")
				f.next("SUBSCRIBE", fates...)
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
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		paths := []string{"a", "b", "c"}
		locked := make([]<-chan error, 0, len(paths))
		f.next("SUBSCRIBE", delivered, slow(time.Second)) // the first one is for no path in particular
		for _, path := range paths {
			w.do("SET", "orders:"+path, "for ever")
			locked = append(locked, w.goroutine().starts(r.Obtain(path)))
			w.settle()
			w.pass(10 * time.Millisecond)
		}
		w.pass(3 * time.Second)
		for i, path := range paths {
			w.pending(locked[i])
			w.do("DEL", "orders:"+path)
			start := time.Now()
			require.NoError(w, <-locked[i])
			require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
		}
	})
}

// A server of another kind: nothing that this library sends changes anything else.
func TestFault_OnlyTheKeyIsTouched(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		l := f.registry().Obtain("42")
		w.lock(l)
		w.lock(l)
		w.unlock(l)
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		w.unlock(l)
		require.Equal(w, "0", w.keys())
		for _, name := range []string{"obtain", "renew", "release"} {
			for _, c := range f.sent(name) {
				require.True(w, slices.Contains(c.Args, "orders:42"), c.Args)
			}
		}
	})
}

// The wait counts from the first command on, and for the confirmation of a late grant.
func TestFault_ASilentServerDoesNotOutlastTheWait(t *testing.T) {
	t.Parallel()
	silent := map[string]func(w *world, f *flaky){
		"at the first try": func(_ *world, f *flaky) { f.all("obtain", silence) },
		"at the confirmation": func(w *world, f *flaky) {
			w.do("SET", "orders:42", "for ever")
			time.AfterFunc(50*time.Millisecond, func() { w.do("DEL", "orders:42") })
			f.next("obtain", delivered, delivered, delivered, slow(900*time.Millisecond))
			f.all("renew", silence)
		},
	}
	for name, silence := range silent {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				l := f.registry(polling).Obtain("42")
				w.lock(l)
				w.unlock(l) // the server knows the scripts from now on
				silence(w, f)
				start := time.Now()
				err := l.Lock(w.Context(), lockregistry.Wait(time.Second))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.NotErrorIs(w, err, lockregistry.ErrTaken)
				f.reconnect()
			})
		})
	}
}
