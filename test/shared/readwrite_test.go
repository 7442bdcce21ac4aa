package shared_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

const rwChannel = "redisson_rwlock:{orders:42}"

// each runs a test for the reader and for the writer of a pair.
func each(t *testing.T, test func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock)) {
	t.Helper()
	t.Parallel()
	t.Run("reader", func(t *testing.T) { test(t, func(p kit.Pair) *lockregistry.Lock { return p.Reader }) })
	t.Run("writer", func(t *testing.T) { test(t, func(p kit.Pair) *lockregistry.Lock { return p.Writer }) })
}

// fields returns those of a hash, empty if there is none.
func fields(w *kit.World, key string) map[string]string {
	w.Helper()
	client := w.Client()
	fields, err := client.Do(context.Background(), client.B().Hgetall().Key(key).Build()).AsStrMap()
	require.NoError(w, err)
	return fields
}

// holdersOf returns the fields of a read-write lock except for its mode, in order.
func holdersOf(w *kit.World, key string) (holders []string) {
	w.Helper()
	for field := range fields(w, key) {
		if field != "mode" {
			holders = append(holders, field)
		}
	}
	slices.Sort(holders)
	return holders
}

// subscribed waits until n clients listen on a channel.
func subscribed(w *kit.World, channel string, n int) {
	w.Helper()
	w.Await("a subscription to "+channel, func() bool { return w.Subscribers(channel) >= n })
}

func TestReadWriteLock_ReadersShare(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Pair(), w.Pair()
		w.Lock(a.Reader)
		g := w.Goroutine()
		require.NoError(w, g.Lock(a.Reader))
		require.Len(w, holdersOf(w, kit.TheKey), 1, "they share one hold in Redis")
		w.Lock(b.Reader)
		require.Len(w, holdersOf(w, kit.TheKey), 2)
		for _, p := range []kit.Pair{a, b} {
			require.True(w, p.Reader.IsHeld())
			require.False(w, p.Writer.IsHeld())
			require.False(w, w.TryElsewhere(p.Writer))
			require.True(w, w.TryElsewhere(p.Reader))
		}
		w.Unlock(a.Reader)
		require.True(w, a.Reader.IsHeld())
		require.Len(w, holdersOf(w, kit.TheKey), 2, "the other one of that process reads on")
		w.Fails(a.Reader.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		require.NoError(w, g.Unlock(a.Reader))
		require.False(w, a.Reader.IsHeld())
		require.Len(w, holdersOf(w, kit.TheKey), 1)
		require.False(w, w.TryElsewhere(a.Writer), "the other process reads on")
		w.Unlock(b.Reader)
		require.True(w, w.Free(kit.TheKey))
		require.Equal(w, "0", w.Keys(), "nothing stays behind")
		require.True(w, w.TryElsewhere(a.Writer))
	})
}

func TestReadWriteLock_FromWritingToReading(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Pair(), w.Pair()
		w.Lock(a.Writer, lockregistry.Lease(time.Hour))
		w.Lock(a.Reader, lockregistry.Lease(time.Minute))
		require.Equal(w, "write", fields(w, kit.TheKey)["mode"])
		require.Len(w, holdersOf(w, kit.TheKey), 2)
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute, "reading does not make the lease shorter")
		g := w.Goroutine()
		local := g.Starts(a.Reader)
		require.False(w, w.TryElsewhere(b.Reader))
		w.Pending(local)

		w.Unlock(a.Writer)
		require.Equal(w, "read", fields(w, kit.TheKey)["mode"])
		require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute, "the lease of who reads")
		require.True(w, a.Reader.IsHeld())
		require.False(w, a.Writer.IsHeld())
		require.NoError(w, <-local)
		require.NoError(w, g.Unlock(a.Reader))
		require.True(w, w.TryElsewhere(b.Reader))
		require.False(w, w.TryElsewhere(b.Writer))
		w.Fails(a.Writer.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		w.Unlock(a.Reader)

		// The same in the other order.
		w.Lock(b.Writer)
		w.Lock(b.Reader)
		w.Unlock(b.Reader)
		require.Equal(w, "write", fields(w, kit.TheKey)["mode"])
		require.True(w, b.Writer.IsHeld())
		w.Lock(b.Reader)
		w.Unlock(b.Reader)
		w.Unlock(b.Writer)
	})
}

func TestReadWriteLock_ReadersThatAskToWrite(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		w.Lock(p.Reader)
		before := fields(w, kit.TheKey)
		start := time.Now()
		w.Fails(p.Writer.Lock(w.Context()), lockregistry.ErrDeadlock, "lock", kit.TheKey)
		ok, err := p.Writer.TryLock(w.Context(), lockregistry.Wait(time.Hour))
		require.False(w, ok)
		w.Fails(err, lockregistry.ErrDeadlock, "trylock", kit.TheKey)
		if w.Fake {
			require.Zero(w, time.Since(start), "at once")
		}
		require.Equal(w, before, fields(w, kit.TheKey))
		w.Unlock(p.Reader)
		w.Lock(p.Writer)
		w.Lock(p.Reader)
		w.Unlock(p.Writer)
		w.Fails(p.Writer.Lock(w.Context()), lockregistry.ErrDeadlock, "lock", kit.TheKey)
		w.Unlock(p.Reader)
		w.Lock(p.Writer)
		w.Unlock(p.Writer)
		require.Equal(w, 1, kit.CachedLocks(p.Reg))
	})
}

func TestReadWriteLock_Owners(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		anna, bert := lockregistry.ContextWithOwner(w.Context()), lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, p.Reader.Lock(anna))
		require.NoError(w, p.Reader.Lock(bert))
		w.Fails(p.Reader.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		w.Fails(p.Writer.Lock(anna), lockregistry.ErrDeadlock, "lock", kit.TheKey)
		require.NoError(w, kit.Elsewhere(func() error { return p.Reader.Unlock(anna) }))
		w.Fails(p.Reader.Unlock(anna), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		w.Fails(p.Reader.Renew(anna, time.Minute), lockregistry.ErrNotOwner, "renew", kit.TheKey)
		require.NoError(w, p.Reader.Renew(bert, time.Minute))
		w.Released(p.Reader.Unlock(bert))

		require.NoError(w, p.Writer.Lock(anna))
		require.NoError(w, kit.Elsewhere(func() error { return p.Reader.Lock(anna) }))
		ok, err := p.Reader.TryLock(bert)
		require.NoError(w, err)
		require.False(w, ok)
		require.NoError(w, kit.Elsewhere(func() error { return p.Writer.Unlock(anna) }))
		require.NoError(w, p.Reader.Lock(bert))
		w.Released(p.Reader.Unlock(anna))
		w.Released(p.Reader.Unlock(bert))
		require.True(w, w.Free(kit.TheKey))
	})
}

func TestReadWriteLock_ReadersHaveContextsOfTheirOwn(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		anna, bert := lockregistry.ContextWithOwner(w.Context()), lockregistry.ContextWithOwner(w.Context())
		cleo := lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, p.Reader.Lock(anna))
		require.NoError(w, p.Reader.Lock(bert))
		annas, berts := p.Reader.Context(anna), p.Reader.Context(bert)
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(p.Reader.Context(cleo)))
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(p.Writer.Context(anna)))
		w.Released(p.Reader.Unlock(anna))
		require.Equal(w, context.Canceled, context.Cause(annas))
		require.NoError(w, berts.Err())
		require.NoError(w, p.Reader.Lock(anna))
		require.Error(w, annas.Err())
		annas = p.Reader.Context(anna)
		require.NoError(w, annas.Err())
		w.Released(p.Reader.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(berts))
		require.NoError(w, annas.Err(), "the hold goes on for who has not begun it")

		w.Do("DEL", kit.TheKey)
		w.Fails(p.Reader.Renew(anna, time.Minute), lockregistry.ErrLockLost, "renew", kit.TheKey)
		require.ErrorIs(w, context.Cause(annas), lockregistry.ErrLockLost)
		w.Fails(p.Reader.Unlock(anna), lockregistry.ErrLockLost, "unlock", kit.TheKey)

		// The writer's context ends when it stops writing, although its owner still reads.
		require.NoError(w, p.Writer.Lock(bert))
		require.NoError(w, p.Reader.Lock(bert))
		writes, reads := p.Writer.Context(bert), p.Reader.Context(bert)
		w.Released(p.Writer.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(writes))
		require.NoError(w, reads.Err())
		w.Released(p.Reader.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(reads))
	})
}

func TestReadWriteLock_EveryReaderLearnsOfALoss(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 10 * time.Second
		p := w.Pair()
		readers := []*kit.Goroutine{w.Goroutine(), w.Goroutine(), w.Goroutine()}
		ends := make([]<-chan kit.ContextEnd, 0, len(readers))
		for _, g := range readers {
			require.NoError(w, g.Lock(p.Reader, lockregistry.Lease(lease)))
			ends = append(ends, w.Watch(g.Watch(p.Reader), kit.TheKey))
		}
		for _, ended := range ends {
			end := <-ended
			require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
			require.Greater(w, end.Left, kit.DriftMargin(lease), "before the key expires")
			require.Less(w, end.Left, 3*kit.DriftMargin(lease))
		}
		require.False(w, p.Reader.IsHeld())
		w.AwaitGone(kit.TheKey)
		for _, g := range readers {
			w.Fails(g.Lock(p.Reader), lockregistry.ErrLockLost, "lock", kit.TheKey)
			w.Fails(g.Unlock(p.Reader), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		}
		require.True(w, w.TryElsewhere(p.Writer))
		w.LeftNothing()
	})
}

// A reader that comes when a hold is lost gets a new one; the earlier readers have lost theirs.
func TestReadWriteLock_NobodyJoinsALostHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		g := w.Goroutine()
		require.NoError(w, g.Lock(p.Reader))
		w.Do("DEL", kit.TheKey)
		w.Fails(g.Do(func() error { return p.Reader.Renew(w.Context(), time.Minute) }), lockregistry.ErrLockLost, "renew", kit.TheKey)
		require.True(w, w.TryElsewhere(p.Reader))
		require.NoError(w, w.Goroutine().Lock(p.Reader))
		w.Fails(g.Unlock(p.Reader), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.True(w, p.Reader.IsHeld())
		require.Len(w, holdersOf(w, kit.TheKey), 1)
	})
}

// A reader that joins renews the hold, and finds that its key is gone. It gets a new hold at once.
func TestReadWriteLock_ALossFoundWhileJoining(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		g := w.Goroutine()
		require.NoError(w, g.Lock(p.Reader, lockregistry.Lease(time.Minute)))
		w.Do("DEL", kit.TheKey)
		ok, err := p.Reader.TryLock(w.Context(), lockregistry.Lease(time.Hour))
		require.NoError(w, err)
		require.True(w, ok)
		w.Fails(g.Unlock(p.Reader), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
	})
}

// A reader's lease that ends does not end one of another process: a writer gets in when the longest ends.
func TestReadWriteLock_TheLongestLeaseOfReadersCounts(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"the longest first": 0, "the longest last": 1} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				leases := []time.Duration{30 * time.Second, 10 * time.Second}
				for i := range leases {
					p := w.Pair()
					w.Lock(p.Reader, lockregistry.Lease(leases[(first+i)%2])) // and crashes
				}
				require.Len(w, holdersOf(w, kit.TheKey), 2)
				start := time.Now()
				got := w.Goroutine().Starts(w.Pair().Writer)
				w.Pass(10*time.Second + 200*time.Millisecond)
				w.Pending(got)
				require.NoError(w, <-got)
				took := time.Since(start)
				require.GreaterOrEqual(w, took, 30*time.Second)
				require.LessOrEqual(w, took, 30*time.Second+101*time.Millisecond)
			})
		})
	}
}

// The same if one unlocks: the lock then has the lease of the reader that stays.
func TestReadWriteLock_TheLeaseOfThoseWhoStay(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		short, long := w.Pair(), w.Pair()
		w.Lock(short.Reader, lockregistry.Lease(10*time.Second))
		w.Lock(long.Reader, lockregistry.Lease(time.Hour))
		w.Pass(time.Second)
		w.Unlock(long.Reader)
		require.Equal(w, 9*time.Second, w.Pttl(kit.TheKey))
		start := time.Now()
		require.NoError(w, w.Goroutine().Lock(long.Writer))
		require.InDelta(w, 9*time.Second, time.Since(start), float64(101*time.Millisecond))
	})
}

func TestReadWriteLock_Renewal(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.FakeWorld(t, func(w *kit.World) {
			l := pick(w.Pair(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)))
			other := w.Pair()
			w.Lock(l)
			ended := w.Watch(l.Context(w.Context()), kit.TheKey)
			for range 20 {
				w.Pass(time.Second)
				require.Greater(w, w.Pttl(kit.TheKey), time.Second)
				require.True(w, l.IsHeld())
			}
			w.Unended(ended)
			require.False(w, w.TryElsewhere(other.Writer))
			w.Unlock(l)
			w.LeftNothing()
			w.Pass(10 * time.Second)
			require.Equal(w, "0", w.Keys(), "renewal ends with the hold")
		})
	})
}

// Each reader renews its own lease: the lock outlives the short one, and ends with the long one.
func TestReadWriteLock_ReadersRenewTheirOwn(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		renewed, crashed := w.Pair(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)), w.Pair()
		w.Lock(renewed.Reader)
		w.Lock(crashed.Reader, lockregistry.Lease(10*time.Second))
		w.Pass(time.Minute)
		require.True(w, renewed.Reader.IsHeld())
		require.False(w, crashed.Reader.IsHeld())
		require.False(w, w.TryElsewhere(crashed.Writer))
		w.Unlock(renewed.Reader)
		require.Equal(w, "0", w.Keys(), "nobody reads with a lease any more")
		w.Fails(crashed.Reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
	})
}

// A reader whose lease is over learns of it, although readers of another process have kept the lock: its own part is gone.
func TestReadWriteLock_AReaderWhoseLeaseEndedBesideOthers(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		w.Loaded("readwrite")
		f := w.Flaky()
		short, long := kit.PairOf(f.Registry()), w.Pair()
		for _, first := range []kit.Pair{short, long} {
			second := map[kit.Pair]kit.Pair{short: long, long: short}[first]
			for _, p := range []kit.Pair{first, second} {
				w.Lock(p.Reader, lockregistry.Lease(map[kit.Pair]time.Duration{short: time.Minute, long: time.Hour}[p]))
			}
			holders := holdersOf(w, kit.TheKey)
			require.Len(w, holders, 2)
			var own string
			for _, holder := range holders {
				if strings.HasPrefix(holder, kit.ClientID(short.Reg)+":") {
					own = holder
				}
			}
			lease := "{orders:42}:" + own + ":rwlock_timeout:1"
			require.NoError(w, w.Answer(func() error { return short.Reader.Renew(w.Context(), time.Second) }))
			renewals := scriptsSent(f, "readwrite_read_renew")
			w.AwaitGone(lease)

			// A late renewal does not bring it back.
			require.Equal(w, "0", w.Arrives(renewals[len(renewals)-1]))
			require.True(w, w.Free(lease))

			w.Fails(short.Reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
			require.False(w, short.Reader.IsHeld())
			w.Await("nothing stays behind", func() bool { return len(holdersOf(w, kit.TheKey)) == 1 })
			require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
			require.True(w, long.Reader.IsHeld())
			require.False(w, w.TryElsewhere(short.Writer))
			w.Unlock(long.Reader)
			w.LeftNothing()
		}

		// The same for an owner that also writes.
		p := w.Pair()
		w.Lock(p.Writer)
		w.Lock(p.Reader, lockregistry.Lease(500*time.Millisecond))
		w.Await("its lease to read is over", func() bool { return w.Keys() == "1" })
		w.Fails(p.Reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		w.Await("nothing stays behind", func() bool { return len(holdersOf(w, kit.TheKey)) == 1 })
		w.Unlock(p.Writer)
		w.LeftNothing()
	})
}

func TestReadWriteLock_Renew(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.Worlds(t, func(w *kit.World) {
			l := pick(w.Pair())
			w.Fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", kit.TheKey)
			w.Lock(l)
			for _, ttl := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
				began := time.Now()
				require.NoError(w, l.Renew(w.Context(), ttl))
				hasLease(w, kit.TheKey, ttl, began) // longer and shorter
			}
			require.ErrorContains(w, l.Renew(w.Context(), time.Microsecond), "at least 2ms")
			w.Do("DEL", kit.TheKey)
			w.Fails(l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost, "renew", kit.TheKey)
			require.True(w, w.Free(kit.TheKey), "renewal revives nothing")
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		})
	})
}

// A shorter lease of one reader never cuts another's.
func TestReadWriteLock_RenewingCutsNobodysLease(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Pair(), w.Pair()
		w.Lock(a.Reader, lockregistry.Lease(time.Hour))
		w.Lock(b.Reader, lockregistry.Lease(time.Minute))
		require.NoError(w, b.Reader.Renew(w.Context(), 30*time.Second))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		w.Unlock(b.Reader)
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		w.Unlock(a.Reader)

		w.Lock(a.Writer, lockregistry.Lease(time.Minute))
		w.Lock(a.Reader, lockregistry.Lease(time.Hour))
		require.NoError(w, a.Writer.Renew(w.Context(), 30*time.Second))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		w.Unlock(a.Writer)
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		w.Unlock(a.Reader)
	})
}

// Several readers of one process share a hold: none of them makes its lease shorter than the others count on.
func TestReadWriteLock_SharersNeverGetAShorterLease(t *testing.T) {
	const long = 10 * time.Minute
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		g := w.Goroutine()
		require.NoError(w, g.Lock(p.Reader, lockregistry.Lease(long)))
		w.Lock(p.Reader, lockregistry.Lease(time.Second))
		ctx := g.Watch(p.Reader)
		left := func() time.Duration {
			w.Helper()
			require.Len(w, holdersOf(w, kit.TheKey), 1)
			began := time.Now()
			own := w.Pttl("{orders:42}:" + holdersOf(w, kit.TheKey)[0] + ":rwlock_timeout:1")
			require.InDelta(w, own, w.Pttl(kit.TheKey), float64(2*time.Second+time.Since(began)))
			return own
		}
		w.Lock(p.Reader, lockregistry.Lease(time.Second))
		require.Greater(w, left(), long-time.Minute, "locking again")
		require.NoError(w, p.Reader.Renew(w.Context(), time.Second))
		require.Greater(w, left(), long-time.Minute, "renewing")
		require.NoError(w, p.Reader.Renew(w.Context(), 3*long))
		require.Greater(w, left(), 3*long-time.Minute, "renewing for longer")
		require.NoError(w, g.Do(func() error { return p.Reader.Renew(w.Context(), long) }))
		require.Greater(w, left(), 3*long-time.Minute)
		if w.Fake {
			w.Pass(2 * long)
			require.True(w, p.Reader.IsHeld())
			require.NoError(w, p.Reader.Renew(w.Context(), time.Second))
			require.Equal(w, 3*long, left(), "as long as it was, from now")
		}
		require.NoError(w, ctx.Err())
		w.Unlock(p.Reader)
		w.Unlock(p.Reader)

		// A reader that is alone may set any lease, but not by a nested call.
		require.NoError(w, g.Do(func() error { return p.Reader.Renew(w.Context(), time.Minute) }))
		require.LessOrEqual(w, left(), time.Minute)
		require.NoError(w, g.Lock(p.Reader, lockregistry.Lease(30*time.Second)))
		require.Greater(w, left(), 30*time.Second)
		require.NoError(w, g.Do(func() error { return p.Reader.Renew(w.Context(), 30*time.Second) }))
		require.LessOrEqual(w, left(), 30*time.Second)
		require.NoError(w, g.Unlock(p.Reader))
		require.NoError(w, ctx.Err())
		require.NoError(w, g.Unlock(p.Reader))
	})
}

// A reader that joins with a longer lease lengthens the hold's lease.
func TestReadWriteLock_JoiningWithALongerLease(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		g := w.Goroutine()
		require.NoError(w, g.Lock(p.Reader, lockregistry.Lease(time.Minute)))
		holders := holdersOf(w, kit.TheKey)
		w.Lock(p.Reader, lockregistry.Lease(time.Hour))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		require.NoError(w, w.Goroutine().Lock(p.Reader, lockregistry.Lease(time.Second)))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		require.Equal(w, holders, holdersOf(w, kit.TheKey))
	})
	t.Run("nine tenths are left", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			p, ttl := w.Pair(), lockregistry.Lease(time.Minute)
			g := w.Goroutine()
			require.NoError(w, g.Lock(p.Reader, ttl))
			w.Pass(3 * time.Second)
			w.Lock(p.Reader, ttl)
			require.LessOrEqual(w, w.Pttl(kit.TheKey), 57*time.Second, "more than nine tenths are left")
			w.Pass(4 * time.Second)
			require.NoError(w, w.Goroutine().Lock(p.Reader, ttl))
			require.Equal(w, time.Minute, w.Pttl(kit.TheKey))
		})
	})
}

// A reader without a lease of its own is renewed, also in Spring's layout: otherwise renewals of Java readers would cut it. A
// writer, which only its owner renews, has the registry's lease, like a plain lock.
func TestReadWriteLock_ReadersAreRenewedByDefault(t *testing.T) {
	t.Parallel()
	const lease = 9 * time.Second
	ttl := []lockregistry.LockOption{lockregistry.Lease(lease)}
	for name, c := range map[string]struct {
		pick func(kit.Pair) *lockregistry.Lock
		lock []lockregistry.LockOption
		ends bool
	}{
		"reader":              {func(p kit.Pair) *lockregistry.Lock { return p.Reader }, nil, false},
		"reader with a lease": {func(p kit.Pair) *lockregistry.Lock { return p.Reader }, ttl, true},
		"writer":              {func(p kit.Pair) *lockregistry.Lock { return p.Writer }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				l := c.pick(w.Pair(lockregistry.WithLease(lease)))
				w.Lock(l, c.lock...)
				require.Equal(w, lease, w.Pttl(kit.TheKey))
				w.Pass(10 * lease)
				require.Equal(w, !c.ends, l.IsHeld())
				if c.ends {
					w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
				} else {
					w.Unlock(l)
				}
				require.True(w, w.Free(kit.TheKey))
			})
		})
	}
}

// Readers that join a renewed hold need no command of their own. A reader that joins a hold that would end has it renewed.
func TestReadWriteLock_JoiningReadersAreRenewed(t *testing.T) {
	const lease = 9 * time.Second
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		p := kit.PairOf(f.Registry(lockregistry.WithLease(lease)))
		w.Lock(p.Reader)
		w.Pass(lease/3 - time.Second)
		before := f.Count("read")
		second, third := w.Goroutine(), w.Goroutine()
		require.NoError(w, second.Lock(p.Reader))
		require.NoError(w, third.Lock(p.Reader, lockregistry.Lease(time.Second)))
		require.Equal(w, before, f.Count("read"))
		w.Unlock(p.Reader)
		require.NoError(w, second.Unlock(p.Reader))
		w.Pass(10 * lease)
		require.NoError(w, third.Unlock(p.Reader), "those who have left do not end the renewal")

		require.NoError(w, third.Lock(p.Reader, lockregistry.Lease(lease)))
		w.Pass(lease / 3)
		w.Lock(p.Reader)
		require.Equal(w, lease, w.Pttl(kit.TheKey))
		w.Pass(10 * lease)
		w.Unlock(p.Reader)
		require.NoError(w, third.Unlock(p.Reader))
		require.True(w, w.Free(kit.TheKey))
	})
}

// Readers overlap at random: none of them is told that it lost the lock, and writers get in between.
func TestReadWriteLock_ReadersComeAndGo(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const goroutines, rounds = 8, 500
		p := w.Pair(lockregistry.WithHandoff(time.Millisecond))
		writer := w.Pair(lockregistry.WithHandoff(time.Millisecond)).Writer
		var reading, writing atomic.Int32
		var all sync.WaitGroup
		do := func(l *lockregistry.Lock, mine, others *atomic.Int32, most int32) {
			if err := w.Answer(func() error { return l.Lock(w.Context()) }); err != nil {
				w.Error("lock:", err)
				return
			}
			if n := mine.Add(1); most > 0 && n > most || others.Load() > 0 {
				w.Error("not excluded")
			}
			mine.Add(-1)
			if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
				w.Error("unlock:", err)
			}
		}
		for range goroutines {
			all.Go(func() {
				for range rounds {
					do(p.Reader, &reading, &writing, 0)
				}
			})
		}
		for _, l := range []*lockregistry.Lock{writer, p.Writer} {
			all.Go(func() {
				for range 5 {
					do(l, &writing, &reading, 1)
				}
			})
		}
		all.Wait()
		w.AwaitGone(kit.TheKey)
		w.LeftNothing()
	})
}

func readerOf(p kit.Pair) *lockregistry.Lock { return p.Reader }

func writerOf(p kit.Pair) *lockregistry.Lock { return p.Writer }

func TestReadWriteLock_WakeUps(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		held, wanted func(kit.Pair) *lockregistry.Lock
	}{
		"reader to writer": {readerOf, writerOf},
		"writer to reader": {writerOf, readerOf},
		"writer to writer": {writerOf, writerOf},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				for mode, wakeup := range kit.Wakeups {
					if mode == "tracking" && w.Fake {
						continue // miniredis has none
					}
					holder, waiter := kit.PairOf(w.Waker(wakeup)), kit.PairOf(w.Waker(wakeup))
					w.Lock(change.held(holder))
					tracked := w.Tracked()
					got := w.Goroutine().Starts(change.wanted(waiter))
					if mode == "pubsub" || w.Fake {
						subscribed(w, rwChannel, 1)
					} else {
						w.Await("the key is tracked", func() bool { return w.Tracked() > tracked })
					}
					if w.Fake {
						w.Settle()
					}
					w.Pending(got)
					start := time.Now()
					w.Unlock(change.held(holder))
					w.Takes(start, got)
					w.Do("FLUSHALL")
					w.Await("nobody listens any more", func() bool {
						require.NoError(w, waiter.Reg.Close())
						return w.Subscribers(rwChannel) == 0
					})
				}
			})
		})
	}
}

// The last of several readers wakes the writer, and a downgrade wakes readers.
func TestReadWriteLock_WhoWakesWhom(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := kit.PairOf(w.Waker(kit.WakeupPubSub)), kit.PairOf(w.Waker(kit.WakeupPubSub))
		c := kit.PairOf(w.Waker(kit.WakeupPubSub))
		w.Lock(a.Reader)
		w.Lock(b.Reader)
		got := w.Goroutine().Starts(c.Writer)
		subscribed(w, rwChannel, 1)
		w.Unlock(a.Reader)
		require.False(w, w.TryElsewhere(a.Writer))
		w.Pending(got)
		start := time.Now()
		w.Unlock(b.Reader)
		w.Takes(start, got)
		w.Do("FLUSHALL")
		w.Await("nobody listens any more", func() bool {
			require.NoError(w, c.Reg.Close())
			return w.Subscribers(rwChannel) == 0
		})

		w.Lock(a.Writer)
		reading := w.Goroutine().Starts(b.Reader)
		subscribed(w, rwChannel, 1)
		w.Lock(a.Reader)
		w.Pending(reading)
		start = time.Now()
		w.Unlock(a.Writer)
		w.Takes(start, reading)
		require.True(w, a.Reader.IsHeld())
	})
}

func TestReadWriteLock_WaitsEnd(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.Worlds(t, func(w *kit.World) {
			holder := w.Pair()
			w.Lock(holder.Writer)
			for name, l := range map[string]*lockregistry.Lock{"here": pick(holder), "elsewhere": pick(w.Pair())} {
				ok, err := w.Goroutine().Try(l, lockregistry.Wait(time.Second)) // within which the server answers
				require.NoError(w, err, name)
				require.False(w, ok)
				ctx, cancel := context.WithTimeoutCause(w.Context(), 30*time.Millisecond, errors.New("bored"))
				err = kit.Elsewhere(func() error { return l.Lock(ctx) })
				cancel()
				if w.Fake {
					w.Fails(err, context.DeadlineExceeded, "lock", kit.TheKey)
				} else { // the server may not have answered by then
					require.ErrorIs(w, err, context.DeadlineExceeded)
				}
				require.ErrorContains(w, err, "bored")
			}
			require.Len(w, holdersOf(w, kit.TheKey), 1)
			w.Unlock(holder.Writer)
			w.LeftNothing()

			p := w.Pair()
			w.Lock(holder.Writer)
			waiting := w.Goroutine().Starts(pick(p))
			require.NoError(w, p.Reg.Close())
			w.Fails(<-waiting, lockregistry.ErrClosed, "lock", kit.TheKey)
			w.Fails(pick(p).Lock(w.Context()), lockregistry.ErrClosed, "lock", kit.TheKey)
			w.Unlock(holder.Writer)
		})
	})
}

func TestReadWriteLock_HoldsOfAClosedRegistry(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		g := w.Goroutine()
		require.NoError(w, g.Lock(p.Reader))
		w.Lock(p.Reader)
		ctx := p.Reader.Context(w.Context())
		require.NoError(w, p.Reg.Close())
		require.Equal(w, lockregistry.ErrClosed, context.Cause(ctx))
		w.Unlock(p.Reader)
		require.NoError(w, g.Unlock(p.Reader))
		w.LeftNothing()
	})
}

func TestReadWriteLock_AWriterExcludesAll(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Pair(), w.Pair()
		w.Lock(a.Writer)
		require.True(w, a.Writer.IsHeld())
		require.False(w, a.Reader.IsHeld())
		for _, p := range []kit.Pair{a, b} {
			require.False(w, w.TryElsewhere(p.Reader))
			require.False(w, w.TryElsewhere(p.Writer))
			ok, err := w.Goroutine().Try(p.Reader, lockregistry.Wait(time.Second))
			require.NoError(w, err)
			require.False(w, ok)
			w.Fails(w.Goroutine().Lock(p.Writer, lockregistry.Wait(time.Second)), lockregistry.ErrTaken, "lock", kit.TheKey)
			w.Fails(w.Goroutine().Unlock(p.Writer), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
			w.Fails(w.Goroutine().Unlock(p.Reader), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		}
		w.Unlock(a.Writer)
		w.Await("nothing is left", func() bool { return w.Left() == "" }) // tickets of calls that gave up are removed in the background
		require.True(w, w.TryElsewhere(b.Writer))
		require.True(w, w.TryElsewhere(a.Reader))
	})
}

func TestReadWriteLock_LocksNest(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.Worlds(t, func(w *kit.World) {
			p, other := w.Pair(), w.Pair()
			l := pick(p)
			w.Lock(l, lockregistry.Lease(10*time.Second))
			holders := holdersOf(w, kit.TheKey)
			w.Lock(l)
			began := time.Now()
			w.Lock(l, lockregistry.Lease(time.Minute))
			require.Equal(w, holders, holdersOf(w, kit.TheKey))
			hasLease(w, kit.TheKey, time.Minute, began) // it is refreshed
			ok, err := l.TryLock(w.Context())
			require.NoError(w, err)
			require.True(w, ok)
			for range 3 {
				w.Unlock(l)
				require.True(w, l.IsHeld())
				require.False(w, w.TryElsewhere(other.Writer))
			}
			w.Unlock(l)
			require.True(w, w.Free(kit.TheKey))
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
		})
	})
}

// A writer hands the lock over within its process, without Redis.
func TestReadWriteLock_WritersHandoff(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.Loaded("readwrite")
		f := w.Flaky()
		p := kit.PairOf(f.Registry())
		w.Lock(p.Writer)
		ctx := p.Writer.Context(w.Context())
		g, reader := w.Goroutine(), w.Goroutine()
		next := g.Starts(p.Writer)
		w.Settle()
		last := reader.Starts(p.Reader)
		w.Settle()
		before, holders := f.Commands(), holdersOf(w, kit.TheKey)
		w.Unlock(p.Writer)
		require.NoError(w, <-next)
		require.Equal(w, context.Canceled, context.Cause(ctx))
		require.Equal(w, before, f.Commands())
		require.Equal(w, holders, holdersOf(w, kit.TheKey))
		w.Pending(last)
		require.NoError(w, g.Unlock(p.Writer))
		require.NoError(w, <-last)
		require.NotEqual(w, holders, holdersOf(w, kit.TheKey))
		require.NoError(w, reader.Unlock(p.Reader))

		// It does not hand it to a call with a longer lease, or after the limit.
		w.Lock(p.Writer)
		next = g.Starts(p.Writer, lockregistry.Lease(2*time.Hour))
		w.Settle()
		holders = holdersOf(w, kit.TheKey)
		w.Unlock(p.Writer)
		require.NoError(w, <-next)
		require.NotEqual(w, holders, holdersOf(w, kit.TheKey))
		next = w.Goroutine().Starts(p.Writer)
		w.Pass(101 * time.Millisecond)
		holders = holdersOf(w, kit.TheKey)
		require.NoError(w, g.Unlock(p.Writer))
		require.NoError(w, <-next)
		require.NotEqual(w, holders, holdersOf(w, kit.TheKey))
	})
}

// Readers of one process overlap without end, on a server without a queue. A writer in another process soon gets its turn, and
// one that only polls gets it within two seconds.
func TestReadWriteLock_ReadersLetAWriterElsewhereIn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []lockregistry.Option
		limit time.Duration
	}{
		"by default": {nil, 450 * time.Millisecond},
		"polling":    {[]lockregistry.Option{kit.Polling}, 2 * time.Second},
		"sooner":     {[]lockregistry.Option{lockregistry.WithHandoff(30 * time.Millisecond)}, 450 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				p, other := w.Pair(c.opts...), w.Pair(c.opts...)
				stop := make(chan struct{})
				var all sync.WaitGroup
				var sections atomic.Int32
				for i := range 4 {
					all.Go(func() {
						w.Pass(time.Duration(i) * 5 * time.Millisecond)
						for {
							if err := p.Reader.Lock(w.Context()); err != nil {
								w.Error(err)
								return
							}
							w.Pass(20 * time.Millisecond)
							sections.Add(1)
							if err := w.UnlessLate(p.Reader.Unlock(w.Context())); err != nil {
								w.Error(err)
							}
							select {
							case <-stop:
								return
							default:
							}
						}
					})
				}
				for range 5 {
					w.Pass(3 * time.Millisecond)
					start := time.Now()
					w.Lock(other.Writer)
					require.LessOrEqual(w, time.Since(start), c.limit)
					w.Unlock(other.Writer)
				}
				close(stop)
				all.Wait()
				require.Greater(w, sections.Load(), int32(8), "they do read meanwhile")
			})
		})
	}
}

// While no writer waits, readers that share a hold without end, with long and short sections, delay no new reader.
func TestReadWriteLock_ReadersAreNotHeldBackWithoutAWriter(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		p := w.Pair()
		w.Lock(p.Reader)
		holders := holdersOf(w, kit.TheKey)
		g := w.Goroutine()
		var all []time.Duration
		for start, turns := time.Now(), 1; time.Since(start) < 4*time.Second; turns++ {
			<-time.After(time.Duration(turns%40) * time.Millisecond)
			asked := time.Now()
			require.NoError(w, g.Lock(p.Reader))
			all = append(all, time.Since(asked))
			require.NoError(w, g.Unlock(p.Reader))
		}
		if w.Fake {
			require.Zero(w, slices.Max(all))
		} else {
			w.Within(50*time.Millisecond, all)
		}
		require.Equal(w, holders, holdersOf(w, kit.TheKey))
	})
}

func TestReadWriteLock_LocksInTheCache(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 1)
		rw := r.ReadWrite("42")
		require.Same(w, rw, r.ReadWrite("42"))
		require.Same(w, rw.Reader(), r.ReadWrite("42").Reader())
		require.Equal(w, kit.TheKey, kit.Key(rw.Reader()))
		require.Equal(w, "42", rw.Writer().Path())
		require.Equal(w, 1, kit.CachedLocks(r))
		plain := r.Obtain("42")
		require.Equal(w, 1, kit.CachedLocks(r), "the plain lock of the path is another thing")

		// A lock in use stays in the cache. Objects outside of it still work, and are the same lock.
		again := r.ReadWrite("42")
		require.NotSame(w, rw, again)
		w.Lock(again.Reader())
		require.Equal(w, 0, r.ExpireUnusedOlderThan(0))
		require.True(w, rw.Reader().IsHeld())
		require.False(w, w.TryElsewhere(rw.Writer()))
		require.True(w, w.TryElsewhere(rw.Reader()))
		w.Fails(rw.Writer().Lock(w.Context()), lockregistry.ErrDeadlock, "lock", kit.TheKey)
		w.Fails(plain.Lock(w.Context()), lockregistry.ErrCapacity, "lock", kit.TheKey)
		w.Fails(r.ReadWrite("43").Reader().Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:43")
		w.Unlock(rw.Reader())

		// Here the last use ends with the reader, after the writer's.
		w.Lock(rw.Writer())
		w.Lock(rw.Reader())
		w.Unlock(rw.Writer())
		require.Equal(w, 0, r.ExpireUnusedOlderThan(0))
		w.Unlock(rw.Reader())
		w.Await("it is no longer in use", func() bool { return r.ExpireUnusedOlderThan(0) == 1 }) // at once, unless the reply is late
		require.Equal(w, 0, kit.CachedLocks(r))
		w.Lock(rw.Reader())
		require.True(w, r.ReadWrite("42").Reader().IsHeld())
		w.Unlock(r.ReadWrite("42").Reader())
	})
}

// However often the locks are dropped from the cache, each path has one state.
func TestReadWriteLock_EvictionAllowsNoTwoWriters(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 2)
		var all sync.WaitGroup
		var readers, writers [3]atomic.Int32
		for i := range 12 {
			dice := rand.New(rand.NewPCG(3, uint64(i)))
			all.Go(func() {
				for range 40 {
					n := dice.IntN(3)
					rw := r.ReadWrite(strconv.Itoa(n))
					l, mine, write := rw.Reader(), &readers[n], dice.IntN(3) == 0
					if write {
						l, mine = rw.Writer(), &writers[n]
					}
					err := l.Lock(w.Context())
					if errors.Is(err, lockregistry.ErrCapacity) {
						continue
					}
					if err != nil {
						w.Error(err)
						return
					}
					mine.Add(1)
					if writers[n].Load() > 1 || writers[n].Load() > 0 && readers[n].Load() > 0 {
						w.Error("not excluded")
					}
					w.Pass(time.Duration(dice.IntN(5)) * time.Millisecond)
					mine.Add(-1)
					if err := w.UnlessLate(l.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.LessOrEqual(w, kit.CachedLocks(r), 2)
		require.Equal(w, 2, r.ExpireUnusedOlderThan(0))
		w.LeftNothing()
	})
}

func TestReadWriteLock_BadInput(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.FakeWorld(t, func(w *kit.World) {
			r := w.Registry()
			rw := r.ReadWrite("")
			l := pick(kit.Pair{Reg: r, Reader: rw.Reader(), Writer: rw.Writer()})
			kit.Refuses(w.T, l.Lock(w.Context()), "lock", "orders:", "the path is empty")
			kit.Refuses(w.T, l.Unlock(w.Context()), "unlock", "orders:", "the path is empty")
			l = pick(kit.PairOf(r))
			kit.Refuses(w.T, l.Lock(nil), "lock", kit.TheKey, "the context is nil") //nolint:staticcheck // on purpose
			kit.Refuses(w.T, l.Lock(w.Context(), lockregistry.Lease(0)), "lock", kit.TheKey, "Lease(0s)")
			cancelled, cancel := context.WithCancel(w.Context())
			cancel()
			w.Fails(l.Lock(cancelled), context.Canceled, "lock", kit.TheKey)
			w.LeftNothing()
			require.False(w, l.IsHeld())
		})
	})
}

func TestReadWriteLock_OtherKindsOfLocks(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		spring, redisson := w.Registry(), w.Registry(lockregistry.WithRedissonLayout())
		put := map[string]func(){
			"spring":   func() { w.Do("SET", kit.TheKey, "somebody", "PX", "60000") },
			"redisson": func() { w.Do("HSET", kit.TheKey, "uuid:1", "1"); w.Do("PEXPIRE", kit.TheKey, "60000") },
			"read": func() {
				w.Do("HSET", kit.TheKey, "mode", "read", "uuid:1", "1")
				w.Do("PEXPIRE", kit.TheKey, "60000")
			},
			"list": func() { w.Do("RPUSH", kit.TheKey, "a", "b") },
		}
		locks := map[string]*lockregistry.Lock{
			"spring":   spring.Obtain("42"),
			"redisson": redisson.Obtain("42"),
			"read":     spring.ReadWrite("42").Reader(),
			"write":    redisson.ReadWrite("42").Writer(),
		}
		for there, put := range put {
			put()
			dump := func() string {
				switch there {
				case "list":
					return w.Do("LRANGE", kit.TheKey, "0", "-1")
				case "spring":
					return w.Do("GET", kit.TheKey)
				default:
					return fmt.Sprint(fields(w, kit.TheKey))
				}
			}
			before := dump()
			for kind, l := range locks {
				if kind == there || there == "read" && kind == "write" {
					continue
				}
				err := l.Lock(w.Context())
				w.Fails(err, lockregistry.ErrWrongType, "lock", kit.TheKey)
				require.ErrorContains(w, err, "something other than this kind of lock", "%s for %s", there, kind)
				_, err = l.TryLock(w.Context(), lockregistry.Wait(time.Hour))
				w.Fails(err, lockregistry.ErrWrongType, "trylock", kit.TheKey)
				ok, err := l.TryLock(w.Context())
				require.False(w, ok)
				w.Fails(err, lockregistry.ErrWrongType, "trylock", kit.TheKey)
				require.Equal(w, before, dump())
				require.False(w, l.IsHeld())
				if there != "list" {
					require.Greater(w, w.Pttl(kit.TheKey), 30*time.Second)
				}
				require.Equal(w, "1", w.Keys())
			}
			w.Do("DEL", kit.TheKey)
			for _, l := range locks { // the local half is free
				require.True(w, w.TryElsewhere(l))
			}
		}
	})
}

// If the key becomes something else while the lock is held, the hold is lost, and the key stays as it is.
func TestReadWriteLock_KeyOverwritten(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.Worlds(t, func(w *kit.World) {
			l := pick(w.Pair())
			for _, value := range []string{"string", "plain lock"} {
				w.Lock(l)
				w.Do("DEL", kit.TheKey)
				if value == "string" {
					w.Do("SET", kit.TheKey, "somebody")
				} else {
					w.Do("HSET", kit.TheKey, "uuid:1", "1")
				}
				w.Fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", kit.TheKey)
				w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
				require.Equal(w, "1", w.Do("EXISTS", kit.TheKey))
				w.Do("FLUSHALL")
			}
		})
	})
}

// scriptsSent returns the calls of a script of read-write locks.
func scriptsSent(f *kit.Flaky, name string) (found []kit.Command) {
	for _, c := range slices.Concat(f.Sent("read"), f.Sent("write")) {
		if c.Args[1] == kit.Sources()[name] || c.Args[1] == kit.Digest(kit.Sources()[name]) {
			found = append(found, c)
		}
	}
	return found
}

func TestReadWriteLock_AbandonedReadWriteGrantsAreRemoved(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.Worlds(t, func(w *kit.World) {
			w.Loaded("readwrite")
			foreign := w.Pair()
			f := w.Flaky()
			p := kit.PairOf(f.Registry())
			l := pick(p)
			name := map[bool]string{true: "read", false: "write"}[l == p.Reader]
			f.Fates(name+"_obtain", kit.CutAfter)
			require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
			require.False(w, l.IsHeld())
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
			w.AwaitGone(kit.TheKey)
			w.LeftNothing()
			require.True(w, w.TryElsewhere(foreign.Writer))

			// The same beside readers of another process, whose hold is not affected.
			if name == "read" {
				w.Lock(foreign.Reader, lockregistry.Lease(time.Minute))
				holders := holdersOf(w, kit.TheKey)
				w.Await("a connection", func() bool {
					f.Fates(name+"_obtain", kit.CutAfter)
					return l.Lock(w.Context(), lockregistry.Lease(time.Hour)) != nil && len(holdersOf(w, kit.TheKey)) == 2
				})
				w.Await("the grant is removed", func() bool { return slices.Equal(holders, holdersOf(w, kit.TheKey)) })
				require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute)
				w.Unlock(foreign.Reader)
				w.LeftNothing()
			}
		})
	})
}

// An abandoned grant that is not removed yet does not keep its own process out.
func TestReadWriteLock_AbandonedReadWriteGrantsAreTakenOver(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"read", "write"} {
		for _, second := range []string{"read", "write"} {
			t.Run(first+" then "+second, func(t *testing.T) {
				kit.Worlds(t, func(w *kit.World) {
					w.Loaded("readwrite")
					f := w.Flaky()
					p, other := kit.PairOf(f.Registry()), w.Pair()
					locks := map[string]*lockregistry.Lock{"read": p.Reader, "write": p.Writer}
					f.Fates(first+"_obtain", kit.CutAfter)
					require.Error(w, locks[first].Lock(w.Context(), lockregistry.Lease(time.Hour)))
					abandoned := scriptsSent(f, "readwrite_"+first+"_obtain")[0]
					w.AwaitGone(kit.TheKey)
					w.Arrives(abandoned) // as if it had not been removed yet
					w.Lock(locks[second], lockregistry.Lease(time.Minute))
					require.Equal(w, second, fields(w, kit.TheKey)["mode"])
					if first == "write" || second == "write" {
						require.Len(w, holdersOf(w, kit.TheKey), 1, "the abandoned one is gone")
						require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute)
					}
					require.False(w, w.TryElsewhere(other.Writer))
					w.Unlock(locks[second])
					w.AwaitGone(kit.TheKey)
					w.LeftNothing()
				})
			})
		}
	}
}

// A writer whose process has an abandoned read grant, for an hour, waits for other readers only as long as their leases last.
func TestReadWriteLock_AnAbandonedGrantMakesNoLeaseLonger(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.Loaded("readwrite")
		f := w.Flaky()
		p, other := kit.PairOf(f.Registry()), w.Pair()
		w.Lock(other.Reader, lockregistry.Lease(5*time.Second)) // and crashes
		f.Fates("read_obtain", kit.CutAfter)
		f.Fate("read", kit.Refused(kit.Loading)) // so that it is not removed in the background
		require.Error(w, p.Reader.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		start := time.Now()
		w.Lock(p.Writer)
		require.InDelta(w, 5*time.Second, time.Since(start), float64(300*time.Millisecond))
		f.Forget()
		w.Unlock(p.Writer)
		w.LeftNothing()
	})
}

// Late commands change nothing for later holds.
func TestReadWriteLock_LateReadWriteCommands(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		w.Loaded("readwrite")
		f := w.Flaky()
		p, other := kit.PairOf(f.Registry()), w.Pair()
		w.Lock(p.Reader)
		w.Unlock(p.Reader)
		w.Lock(p.Writer)
		w.Unlock(p.Writer)
		require.NoError(w, p.Reader.Lock(w.Context()))
		require.NoError(w, p.Reader.Renew(w.Context(), time.Minute))
		w.Unlock(p.Reader)
		sent := map[string]kit.Command{}
		for _, kind := range []string{"read", "write"} {
			for _, what := range []string{"obtain", "release", "renew"} {
				if cs := scriptsSent(f, "readwrite_"+kind+"_"+what); len(cs) > 0 {
					sent[kind+" "+what] = cs[0]
				}
			}
		}
		require.Len(w, sent, 5)

		held := map[string]*lockregistry.Lock{"a reader": p.Reader, "a writer": p.Writer, "another's reader": other.Reader}
		for who, l := range held {
			for what, c := range sent {
				if who != "a writer" && what == "read obtain" {
					continue // it may read as well, and is removed like any abandoned grant
				}
				w.Lock(l, lockregistry.Lease(time.Minute))
				before, began, lease := fields(w, kit.TheKey), time.Now(), w.Pttl(kit.TheKey)
				w.Arrives(c)
				require.Equal(w, before, fields(w, kit.TheKey), "%s late, with %s", what, who)
				hasLease(w, kit.TheKey, lease, began)
				require.NoError(w, l.Renew(w.Context(), time.Minute))
				w.Unlock(l)
				require.Equal(w, "0", w.Keys(), "%s late, with %s", what, who)
			}
		}
		// Nobody holds the lock: late removals and renewals do nothing.
		for what, c := range sent {
			if !strings.HasSuffix(what, "obtain") {
				w.Arrives(c)
				require.Equal(w, "0", w.Keys(), what)
			}
		}
	})
}

// A removal that is not confirmed continues in the background, and nobody of this process gets in before it succeeds.
func TestReadWriteLock_RemovalInTheBackground(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.FakeWorld(t, func(w *kit.World) {
			w.Loaded("readwrite")
			f := w.Flaky()
			p := kit.PairOf(f.Registry())
			l := pick(p)
			w.Lock(l)
			next := w.Goroutine().Starts(p.Writer)
			w.Settle()
			f.Fate(map[bool]string{true: "read", false: "write"}[l == p.Reader], kit.Refused(kit.Loading))
			if l == p.Writer {
				w.Pass(time.Second) // longer than the handoff limit
			}
			require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
			require.False(w, l.IsHeld())
			w.Pass(5 * time.Second)
			w.Pending(next)
			f.Forget()
			require.NoError(w, <-next)
			require.Len(w, holdersOf(w, kit.TheKey), 1)
		})
	})
}

// With a context that is done, the removal of a read hold continues in the background. Its owner, which writes, reads again.
func TestReadWriteLock_AWriterReadsAgainWhileItsRemovalIsUnderWay(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.Loaded("readwrite")
		f := w.Flaky()
		p := kit.PairOf(f.Registry())
		w.Lock(p.Writer)
		w.Lock(p.Reader)
		other := w.Goroutine().Starts(p.Writer)
		w.Settle()
		done, cancel := context.WithCancel(w.Context())
		cancel()
		w.Released(p.Reader.Unlock(done))
		again, stop := context.WithTimeout(w.Context(), time.Minute)
		defer stop()
		require.NoError(w, p.Reader.Lock(again))
		w.Pending(other)
		w.Unlock(p.Writer)
		w.Unlock(p.Reader)
		require.NoError(w, <-other)
	})
}

// A user that may not touch the keys of leases cannot read, and leaves nothing behind forever.
func TestReadWriteLock_ReadersWithoutPermission(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		p := kit.PairOf(w.RegistryOn(w.User("resetkeys", "~orders:*")))
		require.Regexp(w, "access at least one of the keys|No permissions to access a key|lacks a key pattern for {orders:42}:",
			p.Reader.Lock(w.Context()))
		w.LeftNothing()
		w.Lock(p.Writer)
		w.Unlock(p.Writer)
	})
}

// Readers that try at the same time while the server is silent learn that together. None of them asks the server for as long
// again.
func TestReadWriteLock_ReadersThatTryWhileTheServerIsSilent(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const timeout = 3 * time.Second
		f := w.Flaky()
		r := f.Registry(lockregistry.WithCommandTimeout(timeout))
		w.Known(r)
		l := r.ReadWrite("42").Reader()
		calls := map[string]func() error{
			"trylock": func() error {
				ok, err := l.TryLock(w.Context())
				if ok {
					return errors.New("it has the lock")
				}
				return err
			},
			"lock": func() error { return l.Lock(w.Context(), lockregistry.NoWait()) },
			"do":   func() error { return l.Do(w.Context(), kit.DoNothing, lockregistry.NoWait()) },
			"acquire": func() error {
				_, err := l.Acquire(w.Context(), lockregistry.NoWait())
				return err
			},
		}
		f.Stall()
		failed, took := map[string]<-chan error{}, make(chan time.Duration, len(calls))
		for op, call := range calls {
			failed[op] = w.Goroutine().Start(func() error {
				began := time.Now()
				defer func() { took <- time.Since(began) }()
				return call()
			})
			w.Pass(200 * time.Millisecond)
		}
		for op := range calls {
			w.Unavailable(<-failed[op], op)
			require.Less(w, <-took, timeout+time.Second/2)
		}
		f.ReconnectNow()
		w.Pass(time.Minute)
		w.LeftNothing()
	})
}

// A reader that waits for another reader's reply asks the server itself if that reader gives up early.
func TestReadWriteLock_AReaderThatTriesBehindOneWithAShortContext(t *testing.T) {
	for _, timeout := range []time.Duration{3 * time.Second, 100 * time.Millisecond} {
		t.Run(timeout.String(), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(lockregistry.WithCommandTimeout(timeout))
				w.Known(r)
				l := r.ReadWrite("42").Reader()
				thaw := f.Stall()
				short, cancel := context.WithTimeout(w.Context(), timeout/5)
				defer cancel()
				gaveUp := w.Goroutine().Start(func() error { return l.Lock(short, lockregistry.NoWait()) })
				w.Pass(timeout / 50)
				reader := w.Goroutine()
				locked := reader.Start(func() error { return l.Lock(w.Context(), lockregistry.NoWait()) })
				require.ErrorIs(w, <-gaveUp, context.DeadlineExceeded)
				w.Pass(timeout / 10)
				thaw()
				require.NoError(w, <-locked)
				require.NoError(w, reader.Unlock(l))
				w.Pass(time.Minute)
				w.LeftNothing()
			})
		})
	}
}

// Two goroutines that try to read at the same moment both succeed.
func TestReadWriteLock_ReadersThatTryAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		taken bool // by a writer elsewhere
		waits bool // the first one waits, and another one, too
	}{
		"free":             {false, false},
		"free, two wait":   {false, true},
		"taken":            {true, false},
		"taken, two wait ": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				w.Loaded("readwrite")
				other := w.Pair()
				if c.taken {
					w.Lock(other.Writer)
				}
				f := w.Flaky()
				p := kit.PairOf(f.Registry())
				until := make(chan struct{})
				f.Fates("read", kit.HeldUp(until))
				var first, second <-chan error
				outcome := make(chan bool, 3)
				try := func() {
					g := w.Goroutine()
					go func() {
						ok, err := g.Try(p.Reader)
						if err != nil {
							w.Error(err)
						}
						outcome <- ok
					}()
				}
				if c.waits {
					first = w.Goroutine().Starts(p.Reader)
				} else {
					try()
				}
				w.Settle()
				if c.waits {
					second = w.Goroutine().Starts(p.Reader)
					w.Settle()
				}
				try()
				try()
				w.Settle()
				require.Empty(w, outcome, "the answer is under way")
				close(until)
				start := time.Now()
				for range 2 {
					require.Equal(w, !c.taken, <-outcome)
				}
				if first == nil {
					require.Equal(w, !c.taken, <-outcome)
				}
				require.Zero(w, time.Since(start))
				if c.taken {
					require.Len(w, holdersOf(w, kit.TheKey), 1)
					w.Unlock(other.Writer)
				}
				if first != nil {
					require.NoError(w, <-first)
					require.NoError(w, <-second)
				}
			})
		})
	}
}
