package lockregistry_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// followed is a real server with a replica.
type followed struct {
	*world
	replica *redistest.Server
}

// followedWorlds runs a test on every real server that there is, with a replica.
func followedWorlds(t *testing.T, test func(w *followed)) {
	t.Helper()
	realWorlds(t, func(w *world) { test(w.followed()) })
}

func followedWorldsAlone(t *testing.T, test func(w *followed)) {
	t.Helper()
	realWorldsAlone(t, func(w *world) { test(w.followed()) })
}

func (w *world) followed() *followed {
	w.Helper()
	host, port, err := net.SplitHostPort(w.server.Addr())
	require.NoError(w, err)
	w.server.Command(w, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	f := &followed{w, redistest.StartBinary(w, w.server.Binary(), "--replicaof", host, port)}
	// The first one may come with the snapshot. The stream of commands may begin a second later.
	for _, key := range []string{"first", "second"} {
		w.do("SET", key, "1")
		w.await("the replica follows", func() bool { return f.replica.Command(w, "GET", key) == "1" })
		w.do("DEL", key)
	}
	return f
}

const acknowledging = 300 * time.Millisecond

func (w *followed) replicated(opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.registry(append([]lockregistry.Option{lockregistry.WithReplicas(1, acknowledging)}, opts...)...)
}

// slack is how much later than its time a call may end.
const slack = 100 * time.Millisecond

func TestReplicas_HaveWhatIsGranted(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		for i, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			r := w.registry(lockregistry.WithLayout(layout), lockregistry.WithReplicas(1, 5*time.Second))
			rw := r.ReadWrite("rw" + strconv.Itoa(i))
			for _, l := range []*lockregistry.Lock{r.Obtain("plain" + strconv.Itoa(i)), rw.Reader(), rw.Writer()} {
				w.lock(l)
				assert.Equal(t, "1", w.replica.Command(t, "EXISTS", l.Key()))
				w.unlock(l)
			}
		}
	})
}

// The connections that rueidis has for blocking commands have written something, and nothing since: there WAIT tells of that
// only.
func TestReplicas_ThatStop(t *testing.T) { // alone: it measures times
	followedWorldsAlone(t, func(w *followed) {
		client := w.client()
		require.NoError(t, client.Do(t.Context(), client.B().Wait().Numreplicas(1).Timeout(1000).Build()).Error())
		r := w.registryOn(client, lockregistry.WithReplicas(1, acknowledging))
		l := r.Obtain("42")
		w.lock(l)
		w.unlock(l)
		w.replica.Freeze()

		began := time.Now()
		ok, err := l.TryLock(t.Context())
		took := time.Since(began)
		assert.False(t, ok)
		w.fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		require.ErrorContains(t, err, "too few replicas have it: 0 of 1")
		assert.GreaterOrEqual(t, took, acknowledging)
		assert.Less(t, took, acknowledging+slack)
		w.awaitGone("orders:42") // it was given back

		began = time.Now()
		err = l.Lock(t.Context(), lockregistry.Wait(time.Second))
		w.fails(err, lockregistry.ErrUnavailable, "lock", "orders:42")
		assert.Less(t, time.Since(began), time.Second+500*time.Millisecond)
		w.awaitGone("orders:42")

		ctx, cancel := context.WithTimeout(t.Context(), acknowledging/3)
		defer cancel()
		err = l.Lock(ctx)
		w.fails(err, context.DeadlineExceeded, "lock", "orders:42", lockregistry.ErrUnavailable)
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		w.awaitGone("orders:42")

		waits := lockElsewhere(l, lockregistry.NewOwner(t.Context()), lockregistry.Wait(time.Minute))
		w.await("a call waits", func() bool { return w.do("EXISTS", "orders:42") == "1" })
		w.replica.Thaw()
		require.NoError(t, <-waits)
		assert.Equal(t, "1", w.replica.Command(t, "EXISTS", "orders:42"))
	})
}

// A frozen replica delays no call without the option, on the same client or not, and no answer that needs no replica.
func TestReplicas_DelayNobodyElse(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		client := w.client()
		r := w.registryOn(client, lockregistry.WithReplicas(1, time.Minute), lockregistry.WithCommandTimeout(time.Minute))
		without := w.registryOn(client)
		held := without.Obtain("held")
		w.lock(held)
		w.replica.Freeze()
		var waiting sync.WaitGroup
		var ended atomic.Int32
		ctx, cancel := context.WithCancel(w.Context())
		for i := range 20 {
			waiting.Go(func() {
				_, _ = r.Obtain("with" + strconv.Itoa(i)).TryLock(ctx)
				ended.Add(1)
			})
		}
		w.await("calls wait", func() bool { return w.do("EXISTS", "orders:with19") == "1" })

		for i := range 100 {
			l := without.Obtain("without" + strconv.Itoa(i))
			w.lock(l)
			w.unlock(l)
		}
		ok, err := r.Obtain("held").TryLock(w.Context())
		require.NoError(w, err)
		assert.False(w, ok, "somebody else has it")
		assert.Zero(w, ended.Load(), "all this was done while the others waited for their replica")
		cancel()
		waiting.Wait()
		w.replica.Thaw()
		w.unlock(held)
	})
}

func TestReplicas_ManyCallsWithReplicas(t *testing.T) { // alone: it measures times
	followedWorldsAlone(t, func(w *followed) {
		const (
			calls  = 2000
			enough = 1500 * time.Millisecond // if one call waited for another, that took two seconds
		)
		all := func(r *lockregistry.Registry, each func(l *lockregistry.Lock)) (longest time.Duration) {
			var running sync.WaitGroup
			var mu sync.Mutex
			for i := range calls {
				l := r.Obtain(strconv.Itoa(i))
				running.Go(func() {
					began := time.Now()
					each(l)
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, took)
				})
			}
			running.Wait()
			return longest
		}
		took := all(w.registry(lockregistry.WithReplicas(1, 5*time.Second)), func(l *lockregistry.Lock) {
			if ok, err := l.TryLock(t.Context()); assert.NoError(t, err) && assert.True(t, ok) {
				// On a busy machine an answer may take longer than Unlock waits for it.
				if err := l.Unlock(t.Context()); err != nil {
					assert.ErrorIs(t, err, lockregistry.ErrUnavailable)
				}
			}
		})
		t.Logf("with a replica that answers the longest call took %v", took)
		w.replica.Freeze()
		r := w.registry(lockregistry.WithReplicas(1, time.Second))
		best := time.Hour // of five rounds: the machine may be busy with other things
		for range 5 {
			took = all(r, func(l *lockregistry.Lock) {
				_, err := l.TryLock(t.Context())
				assert.ErrorIs(t, err, lockregistry.ErrUnavailable)
			})
			t.Logf("with one that does not %v", took)
			if best = min(best, took); best < enough {
				break
			}
		}
		assert.Less(t, best, enough)
		w.replica.Thaw()
		w.leftNothingSoon()
	})
}

func (w *world) leftNothingSoon() {
	w.Helper()
	w.await("nothing is left", func() bool { return w.keys() == "0" })
}

// A renewal that too few have is none: the hold is lost when the lease is over that they know of.
func TestReplicas_RenewalsNeedReplicas(t *testing.T) {
	const lease = 2 * time.Second
	followedWorlds(t, func(w *followed) {
		r := w.replicated(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		lost, kept := r.Obtain("lost"), r.Obtain("kept")
		owner := lockregistry.NewOwner(t.Context())
		w.lock(kept)
		w.unlock(kept)
		require.NoError(t, lost.Lock(owner))
		inside := lost.Context(owner)
		w.replica.Freeze()
		began := time.Now()
		err := lost.Renew(owner, time.Minute)
		w.fails(err, lockregistry.ErrUnavailable, "renew", "orders:lost")
		require.ErrorContains(t, err, "too few replicas")
		assert.Greater(t, w.pttl("orders:lost"), lease, "the master has it")
		<-inside.Done()
		require.ErrorIs(t, context.Cause(inside), lockregistry.ErrLockLost)
		assert.Less(t, time.Since(began), lease)
		require.ErrorIs(t, lost.Unlock(owner), lockregistry.ErrLockLost)

		w.replica.Thaw()
		require.NoError(t, kept.Lock(owner, lockregistry.Wait(time.Minute)))
		inside = kept.Context(owner)
		w.replica.Freeze()
		w.await("a renewal that too few have", func() bool { return w.pttl("orders:kept") > lease*9/10 })
		w.replica.Thaw()
		w.await("the lease is extended", func() bool {
			require.NoError(t, context.Cause(inside))
			return w.replica.Command(t, "EXISTS", "orders:kept") == "1" && time.Since(began) > 3*lease
		})
		require.NoError(t, kept.Unlock(owner))
	})
}

// A shorter lease than the running one counts, although too few have it.
func TestReplicas_ShorterRenewalWithoutReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.replicated()
		h, err := r.Acquire(t.Context(), "42")
		require.NoError(t, err)
		w.replica.Freeze()
		require.ErrorIs(t, h.Renew(t.Context(), 5*time.Second), lockregistry.ErrUnavailable)
		assert.LessOrEqual(t, h.Remaining(), 5*time.Second)
		assert.Greater(t, h.Remaining(), 3*time.Second)
		w.replica.Thaw()
		require.NoError(t, h.Renew(t.Context(), time.Minute))
		assert.Greater(t, h.Remaining(), 50*time.Second)
		require.NoError(t, h.Release(t.Context()))
	})
}

// Who is granted the lock by another process's release writes something of its own, which replicas acknowledge.
func TestReplicas_GrantsNeedReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		giver, taker := w.registry(), w.replicated()
		for _, l := range []*lockregistry.Lock{taker.Obtain("42"), taker.ReadWrite("rw").Writer(), taker.ReadWrite("rw2").Reader()} {
			from := giver.Obtain(l.Path())
			if l.Path() != "42" {
				from = giver.ReadWrite(l.Path()).Writer()
			}
			queue := "orders:{" + l.Key() + "}:waiters"
			for round, frozen := range []bool{false, true} {
				owner := lockregistry.NewOwner(t.Context())
				w.lock(from)
				waits := lockElsewhere(l, owner, lockregistry.Wait(time.Minute))
				w.await("there is a ticket", func() bool { return w.do("ZCOUNT", queue, "0", "+inf") == "1" })
				if frozen {
					w.replica.Freeze()
				}
				w.unlock(from)
				if frozen {
					select {
					case err := <-waits:
						t.Fatalf("round %d: granted by the master alone: %v", round, err)
					case <-time.After(2 * acknowledging):
					}
					w.replica.Thaw()
				}
				require.NoError(t, <-waits)
				assert.Equal(t, "1", w.replica.Command(t, "EXISTS", l.Key()))
				require.NoError(t, l.Unlock(owner))
			}
		}
	})
}

// The same for who finds out by looking.
func TestReplicas_GrantsThatAreFoundNeedReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		l, owner := w.replicated().Obtain("42"), lockregistry.NewOwner(t.Context())
		h, err := w.registry().Acquire(t.Context(), "42")
		require.NoError(t, err)
		waits := lockElsewhere(l, owner, lockregistry.Wait(time.Minute))
		w.await("the call is told of changes of the key", func() bool {
			return strings.Contains(w.do("INFO", "stats"), "tracking_total_keys:1\r")
		})
		w.replica.Freeze()
		w.do("EVAL", `local ticket = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '+inf')[1]
			redis.call('ZREM', KEYS[2], ticket)
			redis.call('SET', KEYS[1], string.match(ticket, '^[^|]*'), 'PX', 60000)`, "2", "orders:42", "orders:{orders:42}:waiters")
		select {
		case err := <-waits:
			t.Fatal("granted by the master alone: ", err)
		case <-time.After(2 * acknowledging):
		}
		w.replica.Thaw()
		require.NoError(t, <-waits)
		assert.Equal(t, "1", w.replica.Command(t, "EXISTS", "orders:42"))
		require.NoError(t, l.Unlock(owner))
		require.ErrorIs(t, h.Release(t.Context()), lockregistry.ErrLockLost)
	})
}

// The message of a grant that was found comes while replicas are waited for, which may take longer than such messages do.
func TestReplicas_GrantsThatAreFoundAndToldMeanwhile(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.registry(lockregistry.WithReplicas(1, 4*time.Second))
		l, owner := r.Obtain("42"), lockregistry.NewOwner(t.Context())
		w.do("SET", "orders:42", "java", "PX", "600000")
		waits := lockElsewhere(l, owner, lockregistry.Wait(time.Minute))
		w.await("the call is told of changes of the key", func() bool {
			return r.Stats().Tickets == 1 && strings.Contains(w.do("INFO", "stats"), "tracking_total_keys:1\r")
		})
		w.replica.Freeze()
		w.do("EVAL", `local ticket = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '+inf')[1]
			redis.call('ZREM', KEYS[2], ticket)
			redis.call('SET', KEYS[1], string.match(ticket, '^[^|]*'), 'PX', 3600000)`, "2", "orders:42", "orders:{orders:42}:waiters")
		w.await("it is found, and renewed", func() bool { return w.pttl("orders:42") <= time.Minute })
		value := w.do("GET", "orders:42")
		colon := strings.LastIndexByte(value, ':')
		w.do("PUBLISH", "orders-channel@"+value[:colon], "g "+value[colon+1:]+" 1000 orders:42")
		<-time.After(1500 * time.Millisecond)
		w.replica.Thaw()
		require.NoError(t, <-waits)
		require.NoError(t, l.Unlock(owner), "its own message is no other grant")
	})
}

// From one goroutine to the next the lock goes without a word of the replicas.
func TestReplicas_NeedsNoReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.replicated(lockregistry.WithHandoff(time.Minute))
		l, owner := r.Obtain("42"), lockregistry.NewOwner(t.Context())
		w.lock(l)
		next := lockElsewhere(l, owner)
		w.await("the other one waits", func() bool { return lockregistry.Contended(l) })
		w.replica.Freeze()
		w.unlock(l)
		require.NoError(t, <-next)
		require.NoError(t, l.Unlock(owner))
		w.replica.Thaw()
	})
}

// The client has no connection to give: that is no sign of a silent server, and concerns nobody without the option.
func TestReplicas_WithoutAConnection(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		client := w.clientWith(w.dial, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		taken, giveBack := client.Dedicate()
		require.NoError(t, taken.Do(t.Context(), taken.B().Arbitrary("PING").Build()).Error())
		r := w.registryOn(client, lockregistry.WithReplicas(1, 200*time.Millisecond))
		without := w.registryOn(client)
		for began := time.Now(); time.Since(began) < 1500*time.Millisecond; {
			_, err := r.Obtain("42").TryLock(t.Context())
			w.fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		}
		// The connection is not there before it is given back.
		require.NoError(t, without.Do(t.Context(), "43", func(context.Context) error { return nil }))
		giveBack()
		require.NoError(t, r.Do(t.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(10*time.Second)))
	})
}

// Locks with fencing tokens, granted by another process's release too, and several paths at once.
func TestReplicas_WithFencingAndSeveralPaths(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.replicated(lockregistry.WithFencing())
		other, err := w.registry(lockregistry.WithFencing()).Acquire(t.Context(), "a")
		require.NoError(t, err)
		held := make(chan *lockregistry.Hold, 1)
		go func() {
			h, err := r.Acquire(t.Context(), "a")
			assert.NoError(t, err)
			held <- h
		}()
		w.await("there is a ticket", func() bool { return r.Stats().Tickets == 1 })
		require.NoError(t, other.Release(t.Context()))
		first := <-held
		require.Greater(t, first.Token(), other.Token())
		assert.Equal(t, "1", w.replica.Command(t, "EXISTS", "orders:a"))
		require.NoError(t, first.Release(t.Context()))

		both, err := r.AcquireAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.Greater(t, both.Token(), first.Token())
		assert.Equal(t, "2", w.replica.Command(t, "EXISTS", "orders:a", "orders:b"))
		require.NoError(t, both.Release(t.Context()))
		w.replica.Freeze()
		_, err = r.AcquireAll(t.Context(), []string{"a", "b"}, lockregistry.NoWait())
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		w.awaitGone("orders:a")
		w.awaitGone("orders:b")
		w.replica.Thaw()
	})
}

// Without the right to WAIT nothing is locked, and nothing is left.
func TestReplicas_WithoutPermission(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		w.do("ACL", "SETUSER", "app", "on", ">secret", "resetchannels", "~*", "&*", "+@all", "-wait")
		client := w.clientWith(w.dial, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
		r := w.registryOn(client, lockregistry.WithReplicas(1, acknowledging))
		err := r.Obtain("42").Lock(t.Context(), lockregistry.Wait(10*time.Second))
		require.ErrorContains(t, err, "NOPERM")
		require.NotErrorIs(t, err, lockregistry.ErrUnavailable)
		w.awaitGone("orders:42")
	})
}

// On a server without replicas the master has nothing to wait for, and nothing is locked.
func TestReplicas_NoReplicas(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithReplicas(1, 50*time.Millisecond))
		_, err := r.Obtain("42").TryLock(w.Context())
		w.fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		err = r.Do(w.Context(), "42", func(context.Context) error { panic("locked") }, lockregistry.Wait(500*time.Millisecond))
		w.fails(err, lockregistry.ErrUnavailable, "do", "orders:42")
		w.awaitGone("orders:42")
	})
}

// The server forgets its scripts.
func TestReplicas_AndForgottenScripts(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.replicated()
		h, err := r.Acquire(t.Context(), "42")
		require.NoError(t, err)
		w.do("SCRIPT", "FLUSH")
		require.NoError(t, h.Renew(t.Context(), time.Minute))
		require.NoError(t, h.Release(t.Context()))

		w.do("SCRIPT", "FLUSH")
		w.replica.Freeze()
		defer w.replica.Thaw()
		r = w.registry(lockregistry.WithReplicas(1, 20*time.Millisecond)) // no time to send it twice
		w.await("the master has it", func() bool {                        // within 20 ms, which a busy machine does not always keep
			_, err = r.Obtain("42").TryLock(t.Context())
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
			return strings.Contains(err.Error(), "too few replicas")
		})
	})
}

// That no call has enough replicas is logged once it has lasted for a while, and so is its end.
func TestReplicas_ShortageIsLogged(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var log journal
		r := w.registry(log.option(), lockregistry.WithReplicas(1, 50*time.Millisecond))
		try := func(wait time.Duration) {
			_, err := r.Acquire(w.Context(), "42", lockregistry.Wait(wait))
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		}
		try(2 * time.Second)
		lockregistry.Acknowledged(r)
		try(2 * time.Second)
		w.settle()
		require.Empty(w, log.lines("replicas"), "it has not lasted")
		try(2 * time.Second)
		w.settle()
		require.Len(w, log.lines("too few replicas acknowledge locks", "0 of 1"), 1)
		lockregistry.Acknowledged(r)
		lockregistry.Acknowledged(r)
		w.settle()
		require.Len(w, log.lines("replicas acknowledge locks again"), 1)
	})
}
