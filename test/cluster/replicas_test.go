package cluster_test

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestReplicas_HaveWhatIsGranted(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		for i, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			r := w.Registry(kit.WithLayout(layout), lockregistry.WithReplicas(1, 5*time.Second))
			rw := r.ReadWrite("rw" + strconv.Itoa(i))
			for _, l := range []*lockregistry.Lock{r.Obtain("plain" + strconv.Itoa(i)), rw.Reader(), rw.Writer()} {
				w.Lock(l)
				assert.Equal(w, "1", w.Replica.Command(w, "EXISTS", kit.Key(l)))
				w.Unlock(l)
			}
		}
	})
}

// If the client has no connection left, that is no sign of a silent server, and concerns no registry without the option.
func TestReplicas_WithoutAConnection(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		taken, giveBack := client.Dedicate()
		require.NoError(w, taken.Do(w.Context(), taken.B().Arbitrary("PING").Build()).Error())
		r := w.RegistryOn(client, lockregistry.WithReplicas(1, 200*time.Millisecond))
		without := w.RegistryOn(client)
		for began := time.Now(); time.Since(began) < 1500*time.Millisecond; {
			_, err := r.Obtain("42").TryLock(w.Context())
			w.Fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		}
		// The connection is only there once it was given back.
		require.NoError(w, without.Do(w.Context(), "43", func(context.Context) error { return nil }))
		giveBack()
		require.NoError(w, r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(10*time.Second)))
	})
}

// Replicas acknowledge locks with fencing tokens, even those granted by another process's release, and several paths at once.
func TestReplicas_WithFencingAndSeveralPaths(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated(lockregistry.WithFencing())
		other, err := w.Registry(lockregistry.WithFencing()).Acquire(w.Context(), "a")
		require.NoError(w, err)
		held := make(chan *lockregistry.Hold, 1)
		go func() {
			h, err := r.Acquire(w.Context(), "a")
			assert.NoError(w, err)
			held <- h
		}()
		w.Await("there is a ticket", func() bool { return r.Stats().Tickets == 1 })
		w.Released(other.Release(w.Context()))
		first := <-held
		require.Greater(w, first.Token(), other.Token())
		assert.Equal(w, "1", w.Replica.Command(w, "EXISTS", "orders:a"))
		w.Released(first.Release(w.Context()))

		both, err := r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		require.Greater(w, both.Token(), first.Token())
		assert.Equal(w, "2", w.Replica.Command(w, "EXISTS", "orders:a", "orders:b"))
		w.Released(both.Release(w.Context()))
		w.Replica.Freeze()
		_, err = r.AcquireAll(w.Context(), []string{"a", "b"}, lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		w.AwaitGone("orders:a")
		w.AwaitGone("orders:b")
		w.Replica.Thaw()
	})
}

// Without the right to WAIT nothing is locked, and nothing is left.
func TestReplicas_WithoutPermission(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		w.Do("ACL", "SETUSER", "app", "on", ">secret", "resetchannels", "~*", "&*", "+@all", "-wait")
		client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
		r := w.RegistryOn(client, lockregistry.WithReplicas(1, kit.ReplicaWait))
		err := r.Obtain("42").Lock(w.Context(), lockregistry.Wait(10*time.Second))
		require.ErrorContains(w, err, "NOPERM")
		require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
		w.AwaitGone("orders:42")
	})
}

// On a server without replicas nobody acknowledges anything, and nothing is locked.
func TestReplicas_NoReplicas(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithReplicas(1, 50*time.Millisecond))
		_, err := r.Obtain("42").TryLock(w.Context())
		w.Fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		err = r.Do(w.Context(), "42", func(context.Context) error { panic("locked") }, lockregistry.Wait(500*time.Millisecond))
		w.Fails(err, lockregistry.ErrUnavailable, "do", "orders:42")
		w.AwaitGone("orders:42")
	})
}

// Calls work when the server has forgotten its scripts.
func TestReplicas_AndForgottenScripts(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated()
		h, err := r.Acquire(w.Context(), "42", lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		w.Await("the replica has the renewal", func() bool {
			w.Do("SCRIPT", "FLUSH")
			err := h.Renew(w.Context(), time.Minute)
			if !errors.Is(err, fault.FewReplicas) && !kit.TookLong(err) { // on a busy machine
				require.NoError(w, err)
			}
			return err == nil
		})
		w.Released(h.Release(w.Context()))

		w.Do("SCRIPT", "FLUSH")
		w.Replica.Freeze()
		defer w.Replica.Thaw()
		r = w.Registry(lockregistry.WithReplicas(1, 20*time.Millisecond)) // no time to send it twice
		w.Await("the master has it", func() bool {                        // within 20 ms, which a busy machine may exceed
			_, err = r.Obtain("42").TryLock(w.Context())
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
			return strings.Contains(err.Error(), "too few replicas")
		})
	})
}

// When no call has had enough replicas for a while, the log says so once, and once when that is over.
func TestReplicas_ShortageIsLogged(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var log kit.Journal
		r := w.Registry(log.Option(), lockregistry.WithReplicas(1, 50*time.Millisecond))
		try := func(wait time.Duration) {
			_, err := r.Acquire(w.Context(), "42", lockregistry.Wait(wait))
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		}
		try(2 * time.Second)
		kit.AcknowledgeWrites(r)
		try(2 * time.Second)
		w.Settle()
		require.Empty(w, log.Lines("replicas"), "it has not lasted")
		try(2 * time.Second)
		w.Settle()
		require.Len(w, log.Lines("too few replicas acknowledge locks", "0 of 1"), 1)
		kit.AcknowledgeWrites(r)
		kit.AcknowledgeWrites(r)
		w.Settle()
		require.Len(w, log.Lines("replicas acknowledge locks again"), 1)
	})
}

// A frozen replica delays no call without the option, on the same client or not, and no reply that needs no replica.
func TestReplicas_DelayNobodyElse(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		client := w.Client()
		r := w.RegistryOn(client, lockregistry.WithReplicas(1, time.Minute), lockregistry.WithCommandTimeout(time.Minute))
		without := w.RegistryOn(client)
		held := without.Obtain("held")
		w.Lock(held)
		w.Replica.Freeze()
		var waiting sync.WaitGroup
		var ended atomic.Int32
		ctx, cancel := context.WithCancel(w.Context())
		for i := range 20 {
			waiting.Go(func() {
				_, _ = r.Obtain("with" + strconv.Itoa(i)).TryLock(ctx)
				ended.Add(1)
			})
		}
		w.Await("calls wait", func() bool { return w.Do("EXISTS", "orders:with19") == "1" })

		for i := range 100 {
			l := without.Obtain("without" + strconv.Itoa(i))
			w.Lock(l)
			w.Unlock(l)
		}
		ok, err := r.Obtain("held").TryLock(w.Context())
		require.NoError(w, err)
		assert.False(w, ok, "somebody else has it")
		assert.Zero(w, ended.Load(), "all this was done while the others waited for their replica")
		cancel()
		waiting.Wait()
		w.Replica.Thaw()
		w.Unlock(held)
	})
}

// A renewal that too few replicas have does not count: the hold is lost at the end of the lease that they know.
func TestReplicas_RenewalsNeedReplicas(t *testing.T) {
	const lease = 4 * time.Second
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		lost, kept := r.Obtain("lost"), r.Obtain("kept")
		owner := lockregistry.ContextWithOwner(w.Context())
		w.Lock(kept, lockregistry.Wait(time.Minute))
		w.Unlock(kept)
		require.NoError(w, lost.Lock(owner, lockregistry.Wait(time.Minute)))
		inside := lost.Context(owner)
		w.Replica.Freeze()
		began := time.Now()
		err := lost.Renew(owner, time.Minute) // the master has it
		w.Fails(err, lockregistry.ErrUnavailable, "renew", "orders:lost")
		require.ErrorContains(w, err, "too few replicas")
		<-inside.Done()
		require.ErrorIs(w, context.Cause(inside), lockregistry.ErrLockLost)
		assert.Less(w, time.Since(began), lease+kit.AtOnce)
		require.ErrorIs(w, lost.Unlock(owner), lockregistry.ErrLockLost)

		w.Replica.Thaw()
		require.NoError(w, kept.Lock(owner, lockregistry.Wait(time.Minute)))
		inside = kept.Context(owner)
		w.Replica.Freeze()
		w.Await("a renewal that too few have", func() bool { return w.Pttl("orders:kept") > lease*9/10 })
		w.Replica.Thaw()
		w.Await("the lease is extended", func() bool {
			require.NoError(w, context.Cause(inside))
			return w.Replica.Command(w, "EXISTS", "orders:kept") == "1" && time.Since(began) > 3*lease
		})
		w.Released(kept.Unlock(owner))
	})
}

// A renewal to a shorter lease counts, even if too few replicas have it.
func TestReplicas_ShorterRenewalWithoutReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated()
		h, err := r.Acquire(w.Context(), "42", lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		w.Replica.Freeze()
		require.ErrorIs(w, h.Renew(w.Context(), 20*time.Second), lockregistry.ErrUnavailable)
		assert.LessOrEqual(w, h.Remaining(), 20*time.Second)
		assert.Greater(w, h.Remaining(), 10*time.Second)
		w.Replica.Thaw()
		w.Await("the replica has the renewal", func() bool { return h.Renew(w.Context(), time.Minute) == nil })
		assert.Greater(w, h.Remaining(), 50*time.Second)
		w.Released(h.Release(w.Context()))
	})
}

// A call that is granted the lock by another process's release writes something of its own, which replicas acknowledge.
func TestReplicas_GrantsNeedReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		giver, taker := w.Registry(), w.Replicated()
		for _, l := range []*lockregistry.Lock{taker.Obtain("42"), taker.ReadWrite("rw").Writer(), taker.ReadWrite("rw2").Reader()} {
			from := giver.Obtain(l.Path())
			if l.Path() != "42" {
				from = giver.ReadWrite(l.Path()).Writer()
			}
			queue := "orders:{" + kit.Key(l) + "}:waiters"
			for round, frozen := range []bool{false, true} {
				owner := lockregistry.ContextWithOwner(w.Context())
				w.Lock(from)
				waits := kit.LockElsewhere(l, owner, lockregistry.Wait(time.Minute))
				w.Await("there is a ticket", func() bool { return w.Do("ZCOUNT", queue, "0", "+inf") == "1" })
				if frozen {
					w.Replica.Freeze()
				}
				w.Unlock(from)
				if frozen {
					select {
					case err := <-waits:
						w.Fatalf("round %d: granted by the master alone: %v", round, err)
					case <-time.After(2 * kit.ReplicaWait):
					}
					w.Replica.Thaw()
				}
				require.NoError(w, <-waits)
				assert.Equal(w, "1", w.Replica.Command(w, "EXISTS", kit.Key(l)))
				w.Released(l.Unlock(owner))
			}
		}
	})
}

// The same for a call that finds out about its grant by looking.
func TestReplicas_GrantsThatAreFoundNeedReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		l, owner := w.Replicated().Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		h, err := w.Registry().Acquire(w.Context(), "42")
		require.NoError(w, err)
		waits := kit.LockElsewhere(l, owner, lockregistry.Wait(time.Minute))
		w.Await("the call is told of changes of the key", func() bool {
			return strings.Contains(w.Do("INFO", "stats"), "tracking_total_keys:1\r")
		})
		w.Replica.Freeze()
		w.Do("EVAL", `local ticket = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '+inf')[1]
			redis.call('ZREM', KEYS[2], ticket)
			redis.call('SET', KEYS[1], string.match(ticket, '^[^|]*'), 'PX', 60000)`, "2", "orders:42", "orders:{orders:42}:waiters")
		select {
		case err := <-waits:
			w.Fatal("granted by the master alone: ", err)
		case <-time.After(2 * kit.ReplicaWait):
		}
		w.Replica.Thaw()
		require.NoError(w, <-waits)
		assert.Equal(w, "1", w.Replica.Command(w, "EXISTS", "orders:42"))
		w.Released(l.Unlock(owner))
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
	})
}

// A call finds its grant by looking. The message about it comes while the call waits for replicas, which may take longer than
// such messages do.
func TestReplicas_GrantsThatAreFoundAndToldMeanwhile(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Registry(lockregistry.WithReplicas(1, 4*time.Second))
		l, owner := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		w.Do("SET", "orders:42", "java", "PX", "600000")
		waits := kit.LockElsewhere(l, owner, lockregistry.Wait(time.Minute))
		w.Await("the call is told of changes of the key", func() bool {
			return r.Stats().Tickets == 1 && strings.Contains(w.Do("INFO", "stats"), "tracking_total_keys:1\r")
		})
		w.Replica.Freeze()
		w.Do("EVAL", `local ticket = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '+inf')[1]
			redis.call('ZREM', KEYS[2], ticket)
			redis.call('SET', KEYS[1], string.match(ticket, '^[^|]*'), 'PX', 3600000)`, "2", "orders:42", "orders:{orders:42}:waiters")
		w.Await("it is found, and renewed", func() bool { return w.Pttl("orders:42") <= time.Minute })
		value := w.Do("GET", "orders:42")
		colon := strings.LastIndexByte(value, ':')
		w.Do("PUBLISH", "orders-channel@"+value[:colon], "g "+value[colon+1:]+" 1000 orders:42")
		<-time.After(1500 * time.Millisecond)
		w.Replica.Thaw()
		require.NoError(w, <-waits)
		require.NoError(w, l.Unlock(owner), "its own message is no other grant")
	})
}

// A handoff within the process needs no acknowledgement of replicas.
func TestReplicas_NeedsNoReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated(lockregistry.WithHandoff(time.Minute))
		l, owner := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		w.Lock(l, lockregistry.Wait(time.Minute))
		next := kit.LockElsewhere(l, owner)
		w.Await("the other one waits", func() bool { return kit.Contended(l) })
		w.Replica.Freeze()
		w.Unlock(l)
		require.NoError(w, <-next)
		w.Released(l.Unlock(owner))
		w.Replica.Thaw()
	})
}
