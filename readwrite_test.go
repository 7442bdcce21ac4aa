package lockregistry_test

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
)

const rwChannel = "redisson_rwlock:{orders:42}"

// pair is a reader and its writer, as one process has them.
type pair struct {
	reg            *lockregistry.Registry
	reader, writer *lockregistry.Lock
}

func pairOf(r *lockregistry.Registry) pair {
	rw := r.ReadWrite("42")
	return pair{r, rw.Reader(), rw.Writer()}
}

func (w *world) pair(opts ...lockregistry.Option) pair {
	w.Helper()
	return pairOf(w.registry(opts...))
}

// each runs a test for the reader and for the writer of a pair.
func each(t *testing.T, test func(t *testing.T, pick func(pair) *lockregistry.Lock)) {
	t.Helper()
	t.Parallel()
	t.Run("reader", func(t *testing.T) { test(t, func(p pair) *lockregistry.Lock { return p.reader }) })
	t.Run("writer", func(t *testing.T) { test(t, func(p pair) *lockregistry.Lock { return p.writer }) })
}

// fields are those of a hash, empty when there is none.
func (w *world) fields(key string) map[string]string {
	w.Helper()
	client := w.client()
	fields, err := client.Do(context.Background(), client.B().Hgetall().Key(key).Build()).AsStrMap()
	require.NoError(w, err)
	return fields
}

// holdersOf are the fields of a read-write lock but for its mode, in order.
func (w *world) holdersOf(key string) (holders []string) {
	w.Helper()
	for field := range w.fields(key) {
		if field != "mode" {
			holders = append(holders, field)
		}
	}
	slices.Sort(holders)
	return holders
}

// loaded has the server know the scripts of a format, so that each call is one command.
func (w *world) loaded(format string) {
	w.Helper()
	for name, body := range sources() {
		if strings.HasPrefix(name, format) {
			w.do("SCRIPT", "LOAD", body)
		}
	}
}

// subscribed waits until somebody listens on a channel.
func (w *world) subscribed(channel string, n int) {
	w.Helper()
	w.await("a subscription to "+channel, func() bool { return w.subscribers(channel) >= n })
}

// Sharing and excluding.

func TestReadWriteLock_ReadersShare(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := w.pair(), w.pair()
		w.lock(a.reader)
		g := w.goroutine()
		require.NoError(w, g.lock(a.reader))
		require.Len(w, w.holdersOf(theKey), 1, "they share one hold in Redis")
		w.lock(b.reader)
		require.Len(w, w.holdersOf(theKey), 2)
		for _, p := range []pair{a, b} {
			require.True(w, p.reader.IsHeld())
			require.False(w, p.writer.IsHeld())
			require.False(w, w.tryElsewhere(p.writer))
			require.True(w, w.tryElsewhere(p.reader))
		}
		w.unlock(a.reader)
		require.True(w, a.reader.IsHeld())
		require.Len(w, w.holdersOf(theKey), 2, "the other one of that process reads on")
		w.fails(a.reader.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
		require.NoError(w, g.unlock(a.reader))
		require.False(w, a.reader.IsHeld())
		require.Len(w, w.holdersOf(theKey), 1)
		require.False(w, w.tryElsewhere(a.writer), "the other process reads on")
		w.unlock(b.reader)
		require.True(w, w.free(theKey))
		require.Equal(w, "0", w.keys(), "nothing stays behind")
		require.True(w, w.tryElsewhere(a.writer))
	})
}

func TestReadWriteLock_AWriterExcludesAll(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := w.pair(), w.pair()
		w.lock(a.writer)
		require.True(w, a.writer.IsHeld())
		require.False(w, a.reader.IsHeld())
		for _, p := range []pair{a, b} {
			require.False(w, w.tryElsewhere(p.reader))
			require.False(w, w.tryElsewhere(p.writer))
			ok, err := w.goroutine().try(p.reader, lockregistry.Wait(20*time.Millisecond))
			require.NoError(w, err)
			require.False(w, ok)
			w.fails(w.goroutine().lock(p.writer, lockregistry.Wait(20*time.Millisecond)), lockregistry.ErrTaken, "lock", theKey)
			w.fails(w.goroutine().unlock(p.writer), lockregistry.ErrNotOwner, "unlock", theKey)
			w.fails(w.goroutine().unlock(p.reader), lockregistry.ErrNotOwner, "unlock", theKey)
		}
		w.unlock(a.writer)
		w.await("nothing is left", func() bool { return w.left() == "" }) // the tickets of those who gave up go in the background
		require.True(w, w.tryElsewhere(b.writer))
		require.True(w, w.tryElsewhere(a.reader))
	})
}

func TestReadWriteLock_LocksNest(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		worlds(t, func(w *world) {
			p, other := w.pair(), w.pair()
			l := pick(p)
			w.lock(l, lockregistry.Lease(10*time.Second))
			holders := w.holdersOf(theKey)
			w.lock(l)
			w.lock(l, lockregistry.Lease(time.Minute))
			require.Equal(w, holders, w.holdersOf(theKey))
			require.InDelta(w, time.Minute, w.pttl(theKey), float64(2*time.Second), "the lease is refreshed")
			ok, err := l.TryLock(w.Context())
			require.NoError(w, err)
			require.True(w, ok)
			for range 3 {
				w.unlock(l)
				require.True(w, l.IsHeld())
				require.False(w, w.tryElsewhere(other.writer))
			}
			w.unlock(l)
			require.True(w, w.free(theKey))
			w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
		})
	})
}

func TestReadWriteLock_FromWritingToReading(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := w.pair(), w.pair()
		w.lock(a.writer, lockregistry.Lease(time.Hour))
		w.lock(a.reader, lockregistry.Lease(time.Minute))
		require.Equal(w, "write", w.fields(theKey)["mode"])
		require.Len(w, w.holdersOf(theKey), 2)
		require.Greater(w, w.pttl(theKey), 59*time.Minute, "reading does not make the lease shorter")
		g := w.goroutine()
		local := g.starts(a.reader)
		require.False(w, w.tryElsewhere(b.reader))
		w.pending(local)

		w.unlock(a.writer)
		require.Equal(w, "read", w.fields(theKey)["mode"])
		require.LessOrEqual(w, w.pttl(theKey), time.Minute, "the lease of who reads")
		require.True(w, a.reader.IsHeld())
		require.False(w, a.writer.IsHeld())
		require.NoError(w, <-local)
		require.NoError(w, g.unlock(a.reader))
		require.True(w, w.tryElsewhere(b.reader))
		require.False(w, w.tryElsewhere(b.writer))
		w.fails(a.writer.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
		w.unlock(a.reader)

		// And in the other order.
		w.lock(b.writer)
		w.lock(b.reader)
		w.unlock(b.reader)
		require.Equal(w, "write", w.fields(theKey)["mode"])
		require.True(w, b.writer.IsHeld())
		w.lock(b.reader)
		w.unlock(b.reader)
		w.unlock(b.writer)
	})
}

func TestReadWriteLock_ReadersThatAskToWrite(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		w.lock(p.reader)
		before := w.fields(theKey)
		start := time.Now()
		w.fails(p.writer.Lock(w.Context()), lockregistry.ErrUpgrade, "lock", theKey)
		ok, err := p.writer.TryLock(w.Context(), lockregistry.Wait(time.Hour))
		require.False(w, ok)
		w.fails(err, lockregistry.ErrUpgrade, "trylock", theKey)
		if w.fake {
			require.Zero(w, time.Since(start), "at once")
		}
		require.Equal(w, before, w.fields(theKey))
		w.unlock(p.reader)
		w.lock(p.writer)
		w.lock(p.reader)
		w.unlock(p.writer)
		w.fails(p.writer.Lock(w.Context()), lockregistry.ErrUpgrade, "lock", theKey)
		w.unlock(p.reader)
		w.lock(p.writer)
		w.unlock(p.writer)
		require.Equal(w, 1, p.reg.Len())
	})
}

func TestReadWriteLock_Owners(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		anna, bert := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
		require.NoError(w, p.reader.Lock(anna))
		require.NoError(w, p.reader.Lock(bert))
		w.fails(p.reader.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
		w.fails(p.writer.Lock(anna), lockregistry.ErrUpgrade, "lock", theKey)
		require.NoError(w, elsewhere(func() error { return p.reader.Unlock(anna) }))
		w.fails(p.reader.Unlock(anna), lockregistry.ErrNotOwner, "unlock", theKey)
		w.fails(p.reader.Renew(anna, time.Minute), lockregistry.ErrNotOwner, "renew", theKey)
		require.NoError(w, p.reader.Renew(bert, time.Minute))
		require.NoError(w, p.reader.Unlock(bert))

		require.NoError(w, p.writer.Lock(anna))
		require.NoError(w, elsewhere(func() error { return p.reader.Lock(anna) }))
		ok, err := p.reader.TryLock(bert)
		require.NoError(w, err)
		require.False(w, ok)
		require.NoError(w, elsewhere(func() error { return p.writer.Unlock(anna) }))
		require.NoError(w, p.reader.Lock(bert))
		require.NoError(w, p.reader.Unlock(anna))
		require.NoError(w, p.reader.Unlock(bert))
		require.True(w, w.free(theKey))
	})
}

// Contexts, leases, renewal and loss.

func TestReadWriteLock_ReadersHaveContextsOfTheirOwn(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		anna, bert, cleo := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
		require.NoError(w, p.reader.Lock(anna))
		require.NoError(w, p.reader.Lock(bert))
		annas, berts := p.reader.Context(anna), p.reader.Context(bert)
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(p.reader.Context(cleo)))
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(p.writer.Context(anna)))
		require.NoError(w, p.reader.Unlock(anna))
		require.Equal(w, context.Canceled, context.Cause(annas))
		require.NoError(w, berts.Err())
		require.NoError(w, p.reader.Lock(anna))
		require.Error(w, annas.Err())
		annas = p.reader.Context(anna)
		require.NoError(w, annas.Err())
		require.NoError(w, p.reader.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(berts))
		require.NoError(w, annas.Err(), "the hold goes on for who has not begun it")

		w.do("DEL", theKey)
		w.fails(p.reader.Renew(anna, time.Minute), lockregistry.ErrLockLost, "renew", theKey)
		require.ErrorIs(w, context.Cause(annas), lockregistry.ErrLockLost)
		w.fails(p.reader.Unlock(anna), lockregistry.ErrLockLost, "unlock", theKey)

		// The writer's ends with the writing, though its owner reads on.
		require.NoError(w, p.writer.Lock(bert))
		require.NoError(w, p.reader.Lock(bert))
		writes, reads := p.writer.Context(bert), p.reader.Context(bert)
		require.NoError(w, p.writer.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(writes))
		require.NoError(w, reads.Err())
		require.NoError(w, p.reader.Unlock(bert))
		require.Equal(w, context.Canceled, context.Cause(reads))
	})
}

func TestReadWriteLock_EveryReaderLearnsOfALoss(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 10 * time.Second
		p := w.pair()
		readers := []*goroutine{w.goroutine(), w.goroutine(), w.goroutine()}
		ends := make([]<-chan ending, 0, len(readers))
		for _, g := range readers {
			require.NoError(w, g.lock(p.reader, lockregistry.Lease(lease)))
			ends = append(ends, w.watch(g.watch(p.reader), theKey))
		}
		for _, ended := range ends {
			end := <-ended
			require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
			require.Greater(w, end.left, margin(lease), "before the key expires")
			require.Less(w, end.left, 3*margin(lease))
		}
		require.False(w, p.reader.IsHeld())
		w.awaitGone(theKey)
		for _, g := range readers {
			w.fails(g.lock(p.reader), lockregistry.ErrLockLost, "lock", theKey)
			w.fails(g.unlock(p.reader), lockregistry.ErrLockLost, "unlock", theKey)
		}
		require.True(w, w.tryElsewhere(p.writer))
		w.leftNothing()
	})
}

// A reader that comes to a hold that is lost gets a new one, and the others are out.
func TestReadWriteLock_NobodyJoinsALostHold(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		g := w.goroutine()
		require.NoError(w, g.lock(p.reader))
		w.do("DEL", theKey)
		w.fails(g.do(func() error { return p.reader.Renew(w.Context(), time.Minute) }), lockregistry.ErrLockLost, "renew", theKey)
		require.True(w, w.tryElsewhere(p.reader))
		require.NoError(w, w.goroutine().lock(p.reader))
		w.fails(g.unlock(p.reader), lockregistry.ErrLockLost, "unlock", theKey)
		require.True(w, p.reader.IsHeld())
		require.Len(w, w.holdersOf(theKey), 1)
	})
}

// A reader that joins renews the hold, and finds that its key is gone. It gets a new one at once.
func TestReadWriteLock_ALossFoundWhileJoining(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		g := w.goroutine()
		require.NoError(w, g.lock(p.reader, lockregistry.Lease(time.Minute)))
		w.do("DEL", theKey)
		ok, err := p.reader.TryLock(w.Context(), lockregistry.Lease(time.Hour))
		require.NoError(w, err)
		require.True(w, ok)
		w.fails(g.unlock(p.reader), lockregistry.ErrLockLost, "unlock", theKey)
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
	})
}

// A reader whose lease ends does not end that of another process: the writer gets in when the longest ends.
func TestReadWriteLock_TheLongestLeaseOfReadersCounts(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"the longest first": 0, "the longest last": 1} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				leases := []time.Duration{30 * time.Second, 10 * time.Second}
				for i := range leases {
					p := w.pair()
					w.lock(p.reader, lockregistry.Lease(leases[(first+i)%2])) // and crashes
				}
				require.Len(w, w.holdersOf(theKey), 2)
				start := time.Now()
				got := w.goroutine().starts(w.pair().writer)
				w.pass(10*time.Second + 200*time.Millisecond)
				w.pending(got)
				require.NoError(w, <-got)
				took := time.Since(start)
				require.GreaterOrEqual(w, took, 30*time.Second)
				require.LessOrEqual(w, took, 30*time.Second+101*time.Millisecond)
			})
		})
	}
}

// The same with one that unlocks: the lease of the lock becomes that of who stays.
func TestReadWriteLock_TheLeaseOfThoseWhoStay(t *testing.T) {
	fakeWorld(t, func(w *world) {
		short, long := w.pair(), w.pair()
		w.lock(short.reader, lockregistry.Lease(10*time.Second))
		w.lock(long.reader, lockregistry.Lease(time.Hour))
		w.pass(time.Second)
		w.unlock(long.reader)
		require.Equal(w, 9*time.Second, w.pttl(theKey))
		start := time.Now()
		require.NoError(w, w.goroutine().lock(long.writer))
		require.InDelta(w, 9*time.Second, time.Since(start), float64(101*time.Millisecond))
	})
}

func TestReadWriteLock_Renewal(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		fakeWorld(t, func(w *world) {
			l := pick(w.pair(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)))
			other := w.pair()
			w.lock(l)
			ended := w.watch(l.Context(w.Context()), theKey)
			for range 20 {
				w.pass(time.Second)
				require.Greater(w, w.pttl(theKey), time.Second)
				require.True(w, l.IsHeld())
			}
			w.unended(ended)
			require.False(w, w.tryElsewhere(other.writer))
			w.unlock(l)
			w.leftNothing()
			w.pass(10 * time.Second)
			require.Equal(w, "0", w.keys(), "renewal ends with the hold")
		})
	})
}

// Each reader renews its own lease: the lock outlives the short one, and goes with the long one.
func TestReadWriteLock_ReadersRenewTheirOwn(t *testing.T) {
	fakeWorld(t, func(w *world) {
		renewed, crashed := w.pair(lockregistry.WithRenewal(), lockregistry.WithLease(3*time.Second)), w.pair()
		w.lock(renewed.reader)
		w.lock(crashed.reader, lockregistry.Lease(10*time.Second))
		w.pass(time.Minute)
		require.True(w, renewed.reader.IsHeld())
		require.False(w, crashed.reader.IsHeld())
		require.False(w, w.tryElsewhere(crashed.writer))
		w.unlock(renewed.reader)
		require.Equal(w, "0", w.keys(), "nobody reads with a lease any more")
		w.fails(crashed.reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
	})
}

// A reader whose lease is over is told, though readers of another process have kept the lock: its own part is gone.
func TestReadWriteLock_AReaderWhoseLeaseEndedBesideOthers(t *testing.T) {
	worlds(t, func(w *world) {
		w.loaded("readwrite")
		f := w.flaky()
		short, long := pairOf(f.registry()), w.pair()
		for _, first := range []pair{short, long} {
			second := map[pair]pair{short: long, long: short}[first]
			for _, p := range []pair{first, second} {
				w.lock(p.reader, lockregistry.Lease(map[pair]time.Duration{short: time.Second, long: time.Hour}[p]))
			}
			holders := w.holdersOf(theKey)
			require.Len(w, holders, 2)
			var own string
			for _, holder := range holders {
				if strings.HasPrefix(holder, short.reg.ClientID()+":") {
					own = holder
				}
			}
			lease := "{orders:42}:" + own + ":rwlock_timeout:1"
			require.NoError(w, short.reader.Renew(w.Context(), time.Second))
			renewals := f.scriptsSent("readwrite_read_renew")
			w.awaitGone(lease)

			// A renewal that comes late does not bring it back.
			require.Equal(w, "0", w.arrives(renewals[len(renewals)-1]))
			require.True(w, w.free(lease))

			w.fails(short.reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
			require.False(w, short.reader.IsHeld())
			w.await("nothing stays behind", func() bool { return len(w.holdersOf(theKey)) == 1 })
			require.Greater(w, w.pttl(theKey), 59*time.Minute)
			require.True(w, long.reader.IsHeld())
			require.False(w, w.tryElsewhere(short.writer))
			w.unlock(long.reader)
			w.leftNothing()
		}

		// The same for one who also writes.
		p := w.pair()
		w.lock(p.writer)
		w.lock(p.reader, lockregistry.Lease(500*time.Millisecond))
		w.await("its lease to read is over", func() bool { return w.keys() == "1" })
		w.fails(p.reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
		w.await("nothing stays behind", func() bool { return len(w.holdersOf(theKey)) == 1 })
		w.unlock(p.writer)
		w.leftNothing()
	})
}

func TestReadWriteLock_Renew(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		worlds(t, func(w *world) {
			l := pick(w.pair())
			w.fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", theKey)
			w.lock(l)
			for _, ttl := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
				require.NoError(w, l.Renew(w.Context(), ttl))
				require.InDelta(w, ttl, w.pttl(theKey), float64(2*time.Second), "longer and shorter")
			}
			require.ErrorContains(w, l.Renew(w.Context(), time.Microsecond), "at least 2ms")
			w.do("DEL", theKey)
			w.fails(l.Renew(w.Context(), time.Hour), lockregistry.ErrLockLost, "renew", theKey)
			require.True(w, w.free(theKey), "renewal revives nothing")
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
		})
	})
}

// A shorter lease of one never cuts that of another.
func TestReadWriteLock_RenewingCutsNobodysLease(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := w.pair(), w.pair()
		w.lock(a.reader, lockregistry.Lease(time.Hour))
		w.lock(b.reader, lockregistry.Lease(time.Minute))
		require.NoError(w, b.reader.Renew(w.Context(), time.Second))
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		w.unlock(b.reader)
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		w.unlock(a.reader)

		w.lock(a.writer, lockregistry.Lease(time.Minute))
		w.lock(a.reader, lockregistry.Lease(time.Hour))
		require.NoError(w, a.writer.Renew(w.Context(), time.Second))
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		w.unlock(a.writer)
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		w.unlock(a.reader)
	})
}

// Several readers of one process share a hold: none of them makes its lease shorter than what the others count on.
func TestReadWriteLock_SharersNeverGetAShorterLease(t *testing.T) {
	const long = 10 * time.Minute
	worlds(t, func(w *world) {
		p := w.pair()
		g := w.goroutine()
		require.NoError(w, g.lock(p.reader, lockregistry.Lease(long)))
		w.lock(p.reader, lockregistry.Lease(time.Second))
		ctx := g.watch(p.reader)
		left := func() time.Duration {
			w.Helper()
			require.Len(w, w.holdersOf(theKey), 1)
			own := w.pttl("{orders:42}:" + w.holdersOf(theKey)[0] + ":rwlock_timeout:1")
			require.InDelta(w, own, w.pttl(theKey), float64(2*time.Second))
			return own
		}
		w.lock(p.reader, lockregistry.Lease(time.Second))
		require.Greater(w, left(), long-time.Minute, "locking again")
		require.NoError(w, p.reader.Renew(w.Context(), time.Second))
		require.Greater(w, left(), long-time.Minute, "renewing")
		require.NoError(w, p.reader.Renew(w.Context(), 3*long))
		require.Greater(w, left(), 3*long-time.Minute, "renewing for longer")
		require.NoError(w, g.do(func() error { return p.reader.Renew(w.Context(), long) }))
		require.Greater(w, left(), 3*long-time.Minute)
		if w.fake {
			w.pass(2 * long)
			require.True(w, p.reader.IsHeld())
			require.NoError(w, p.reader.Renew(w.Context(), time.Second))
			require.Equal(w, 3*long, left(), "as long as it was, from now")
		}
		require.NoError(w, ctx.Err())
		w.unlock(p.reader)
		w.unlock(p.reader)

		// Who is alone sets what it wants.
		require.NoError(w, g.do(func() error { return p.reader.Renew(w.Context(), time.Minute) }))
		require.LessOrEqual(w, left(), time.Minute)
		require.NoError(w, g.lock(p.reader, lockregistry.Lease(30*time.Second)))
		require.LessOrEqual(w, left(), 30*time.Second)
		require.NoError(w, g.unlock(p.reader))
		require.NoError(w, ctx.Err())
		require.NoError(w, g.unlock(p.reader))
	})
}

// One who joins with a longer lease makes that of the hold longer.
func TestReadWriteLock_JoiningWithALongerLease(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		g := w.goroutine()
		require.NoError(w, g.lock(p.reader, lockregistry.Lease(time.Minute)))
		holders := w.holdersOf(theKey)
		w.lock(p.reader, lockregistry.Lease(time.Hour))
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		require.NoError(w, w.goroutine().lock(p.reader, lockregistry.Lease(time.Second)))
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		require.Equal(w, holders, w.holdersOf(theKey))
	})
	t.Run("nine tenths are left", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			p, ttl := w.pair(), lockregistry.Lease(time.Minute)
			g := w.goroutine()
			require.NoError(w, g.lock(p.reader, ttl))
			w.pass(3 * time.Second)
			w.lock(p.reader, ttl)
			require.LessOrEqual(w, w.pttl(theKey), 57*time.Second, "more than nine tenths are left")
			w.pass(4 * time.Second)
			require.NoError(w, w.goroutine().lock(p.reader, ttl))
			require.Equal(w, time.Minute, w.pttl(theKey))
		})
	})
}

// A reader without a lease of its own is renewed, in Spring's layout too: the renewals of Java readers would cut it. A
// writer, whom nobody renews but its owner, has the registry's lease, as a plain lock.
func TestReadWriteLock_ReadersAreRenewedByDefault(t *testing.T) {
	t.Parallel()
	const lease = 9 * time.Second
	ttl := []lockregistry.LockOption{lockregistry.Lease(lease)}
	for name, c := range map[string]struct {
		pick func(pair) *lockregistry.Lock
		lock []lockregistry.LockOption
		ends bool
	}{
		"reader":              {func(p pair) *lockregistry.Lock { return p.reader }, nil, false},
		"reader with a lease": {func(p pair) *lockregistry.Lock { return p.reader }, ttl, true},
		"writer":              {func(p pair) *lockregistry.Lock { return p.writer }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				l := c.pick(w.pair(lockregistry.WithLease(lease)))
				w.lock(l, c.lock...)
				require.Equal(w, lease, w.pttl(theKey))
				w.pass(10 * lease)
				require.Equal(w, !c.ends, l.IsHeld())
				if c.ends {
					w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
				} else {
					w.unlock(l)
				}
				require.True(w, w.free(theKey))
			})
		})
	}
}

// Readers who join a hold that is renewed need no command of their own. One who joins a hold that would end has it renewed.
func TestReadWriteLock_JoiningReadersAreRenewed(t *testing.T) {
	const lease = 9 * time.Second
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		p := pairOf(f.registry(lockregistry.WithLease(lease)))
		w.lock(p.reader)
		w.pass(lease/3 - time.Second)
		before := f.count("read")
		second, third := w.goroutine(), w.goroutine()
		require.NoError(w, second.lock(p.reader))
		require.NoError(w, third.lock(p.reader, lockregistry.Lease(time.Second)))
		require.Equal(w, before, f.count("read"))
		w.unlock(p.reader)
		require.NoError(w, second.unlock(p.reader))
		w.pass(10 * lease)
		require.NoError(w, third.unlock(p.reader), "those who have left do not end the renewal")

		require.NoError(w, third.lock(p.reader, lockregistry.Lease(lease)))
		w.pass(lease / 3)
		w.lock(p.reader)
		require.Equal(w, lease, w.pttl(theKey))
		w.pass(10 * lease)
		w.unlock(p.reader)
		require.NoError(w, third.unlock(p.reader))
		require.True(w, w.free(theKey))
	})
}

// Readers that overlap by chance: none of them is told that it lost the lock, and writers come in between.
func TestReadWriteLock_ReadersComeAndGo(t *testing.T) {
	worlds(t, func(w *world) {
		const goroutines, rounds = 8, 500
		p := w.pair(lockregistry.WithHandoff(time.Millisecond))
		writer := w.pair(lockregistry.WithHandoff(time.Millisecond)).writer
		var reading, writing atomic.Int32
		var all sync.WaitGroup
		do := func(l *lockregistry.Lock, mine, others *atomic.Int32, most int32) {
			if err := l.Lock(w.Context()); err != nil {
				w.Error("lock:", err)
				return
			}
			if n := mine.Add(1); most > 0 && n > most || others.Load() > 0 {
				w.Error("not excluded")
			}
			mine.Add(-1)
			if err := l.Unlock(w.Context()); err != nil {
				w.Error("unlock:", err)
			}
		}
		for range goroutines {
			all.Go(func() {
				for range rounds {
					do(p.reader, &reading, &writing, 0)
				}
			})
		}
		for _, l := range []*lockregistry.Lock{writer, p.writer} {
			all.Go(func() {
				for range 5 {
					do(l, &writing, &reading, 1)
				}
			})
		}
		all.Wait()
		w.awaitGone(theKey)
		w.leftNothing()
	})
}

// Waiting.

func TestReadWriteLock_WakeUps(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct{ held, wanted func(pair) *lockregistry.Lock }{
		"reader to writer": {func(p pair) *lockregistry.Lock { return p.reader }, func(p pair) *lockregistry.Lock { return p.writer }},
		"writer to reader": {func(p pair) *lockregistry.Lock { return p.writer }, func(p pair) *lockregistry.Lock { return p.reader }},
		"writer to writer": {func(p pair) *lockregistry.Lock { return p.writer }, func(p pair) *lockregistry.Lock { return p.writer }},
	} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				for mode, wakeup := range wakeups {
					if mode == "tracking" && w.fake {
						continue // miniredis has none
					}
					holder, waiter := pairOf(w.waker(wakeup)), pairOf(w.waker(wakeup))
					w.lock(change.held(holder))
					tracked := w.tracked()
					got := w.goroutine().starts(change.wanted(waiter))
					if mode == "pubsub" || w.fake {
						w.subscribed(rwChannel, 1)
					} else {
						w.await("the key is tracked", func() bool { return w.tracked() > tracked })
					}
					if w.fake {
						w.settle()
					}
					w.pending(got)
					start := time.Now()
					w.unlock(change.held(holder))
					w.takes(start, got)
					w.do("FLUSHALL")
					w.await("nobody listens any more", func() bool {
						require.NoError(w, waiter.reg.Close())
						return w.subscribers(rwChannel) == 0
					})
				}
			})
		})
	}
}

// The last of several readers wakes the writer, and a downgrade wakes readers.
func TestReadWriteLock_WhoWakesWhom(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := pairOf(w.waker(lockregistry.WakeupPubSub)), pairOf(w.waker(lockregistry.WakeupPubSub))
		c := pairOf(w.waker(lockregistry.WakeupPubSub))
		w.lock(a.reader)
		w.lock(b.reader)
		got := w.goroutine().starts(c.writer)
		w.subscribed(rwChannel, 1)
		w.unlock(a.reader)
		require.False(w, w.tryElsewhere(a.writer))
		w.pending(got)
		start := time.Now()
		w.unlock(b.reader)
		w.takes(start, got)
		w.do("FLUSHALL")

		w.lock(a.writer)
		reading := w.goroutine().starts(b.reader)
		w.subscribed(rwChannel, 2)
		w.lock(a.reader)
		w.pending(reading)
		start = time.Now()
		w.unlock(a.writer)
		w.takes(start, reading)
		require.True(w, a.reader.IsHeld())
	})
}

func TestReadWriteLock_WaitsEnd(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		worlds(t, func(w *world) {
			holder := w.pair()
			w.lock(holder.writer)
			for name, l := range map[string]*lockregistry.Lock{"here": pick(holder), "elsewhere": pick(w.pair())} {
				ok, err := w.goroutine().try(l, lockregistry.Wait(30*time.Millisecond))
				require.NoError(w, err, name)
				require.False(w, ok)
				ctx, cancel := context.WithTimeoutCause(w.Context(), 30*time.Millisecond, errors.New("bored"))
				err = elsewhere(func() error { return l.Lock(ctx) })
				cancel()
				if w.fake {
					w.fails(err, context.DeadlineExceeded, "lock", theKey)
				} else { // the server may not have answered by then
					require.ErrorIs(w, err, context.DeadlineExceeded)
				}
				require.ErrorContains(w, err, "bored")
			}
			require.Len(w, w.holdersOf(theKey), 1)
			w.unlock(holder.writer)
			w.leftNothing()

			// Close.
			p := w.pair()
			w.lock(holder.writer)
			waiting := w.goroutine().starts(pick(p))
			require.NoError(w, p.reg.Close())
			w.fails(<-waiting, lockregistry.ErrClosed, "lock", theKey)
			w.fails(pick(p).Lock(w.Context()), lockregistry.ErrClosed, "lock", theKey)
			w.unlock(holder.writer)
		})
	})
}

func TestReadWriteLock_HoldsOfAClosedRegistry(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		g := w.goroutine()
		require.NoError(w, g.lock(p.reader))
		w.lock(p.reader)
		ctx := p.reader.Context(w.Context())
		require.NoError(w, p.reg.Close())
		require.Equal(w, lockregistry.ErrClosed, context.Cause(ctx))
		w.unlock(p.reader)
		require.NoError(w, g.unlock(p.reader))
		w.leftNothing()
	})
}

// A writer hands the lock to the next one of its process, without Redis.
func TestReadWriteLock_WritersHandOver(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.loaded("readwrite")
		f := w.flaky()
		p := pairOf(f.registry())
		w.lock(p.writer)
		ctx := p.writer.Context(w.Context())
		g, reader := w.goroutine(), w.goroutine()
		next := g.starts(p.writer)
		w.settle()
		last := reader.starts(p.reader)
		w.settle()
		before, holders := f.commands(), w.holdersOf(theKey)
		w.unlock(p.writer)
		require.NoError(w, <-next)
		require.Equal(w, context.Canceled, context.Cause(ctx))
		require.Equal(w, before, f.commands())
		require.Equal(w, holders, w.holdersOf(theKey))
		w.pending(last)
		require.NoError(w, g.unlock(p.writer))
		require.NoError(w, <-last)
		require.NotEqual(w, holders, w.holdersOf(theKey))
		require.NoError(w, reader.unlock(p.reader))

		// Not to one who asks for a longer lease, and not after the limit.
		w.lock(p.writer)
		next = g.starts(p.writer, lockregistry.Lease(2*time.Hour))
		w.settle()
		holders = w.holdersOf(theKey)
		w.unlock(p.writer)
		require.NoError(w, <-next)
		require.NotEqual(w, holders, w.holdersOf(theKey))
		next = w.goroutine().starts(p.writer)
		w.pass(101 * time.Millisecond)
		holders = w.holdersOf(theKey)
		require.NoError(w, g.unlock(p.writer))
		require.NoError(w, <-next)
		require.NotEqual(w, holders, w.holdersOf(theKey))
	})
}

// Readers of one process overlap without end, on a server without a queue. A writer elsewhere gets its turn soon, and one that
// only polls within two seconds.
func TestReadWriteLock_ReadersLetAWriterElsewhereIn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []lockregistry.Option
		limit time.Duration
	}{
		"by default": {nil, 450 * time.Millisecond},
		"polling":    {[]lockregistry.Option{polling}, 2 * time.Second},
		"sooner":     {[]lockregistry.Option{lockregistry.WithHandoff(30 * time.Millisecond)}, 450 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				p, other := w.pair(c.opts...), w.pair(c.opts...)
				stop := make(chan struct{})
				var all sync.WaitGroup
				var sections atomic.Int32
				for i := range 4 {
					all.Go(func() {
						w.pass(time.Duration(i) * 5 * time.Millisecond)
						for {
							if err := p.reader.Lock(w.Context()); err != nil {
								w.Error(err)
								return
							}
							w.pass(20 * time.Millisecond)
							sections.Add(1)
							if err := p.reader.Unlock(w.Context()); err != nil {
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
					w.pass(3 * time.Millisecond)
					start := time.Now()
					w.lock(other.writer)
					require.LessOrEqual(w, time.Since(start), c.limit)
					w.unlock(other.writer)
				}
				close(stop)
				all.Wait()
				require.Greater(w, sections.Load(), int32(8), "they do read meanwhile")
			})
		})
	}
}

// Readers that are shared without end, by long sections and short ones, keep nobody out who comes to read, while no writer waits.
func TestReadWriteLock_ReadersAreNotHeldBackWithoutAWriter(t *testing.T) {
	worlds(t, func(w *world) {
		p := w.pair()
		w.lock(p.reader)
		holders := w.holdersOf(theKey)
		g, limit := w.goroutine(), 90*time.Millisecond
		if w.fake {
			limit = 1
		}
		for start, turns := time.Now(), 1; time.Since(start) < 4*time.Second; turns++ {
			<-time.After(time.Duration(turns%40) * time.Millisecond)
			asked := time.Now()
			require.NoError(w, g.lock(p.reader))
			require.Less(w, time.Since(asked), limit)
			require.NoError(w, g.unlock(p.reader))
		}
		require.Equal(w, holders, w.holdersOf(theKey))
	})
}

// The registry's cache.

func TestReadWriteLock_LocksInTheCache(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(1))
		rw := r.ReadWrite("42")
		require.Same(w, rw, r.ReadWrite("42"))
		require.Same(w, rw.Reader(), r.ReadWrite("42").Reader())
		require.Equal(w, theKey, rw.Reader().Key())
		require.Equal(w, "42", rw.Writer().Path())
		require.Equal(w, 1, r.Len())
		plain := r.Obtain("42")
		require.Equal(w, 1, r.Len(), "the plain lock of the path is another thing")

		// In use, it stays; what is outside works still, and is the same lock.
		again := r.ReadWrite("42")
		require.NotSame(w, rw, again)
		w.lock(again.Reader())
		require.Equal(w, 0, r.ExpireUnusedOlderThan(0))
		require.True(w, rw.Reader().IsHeld())
		require.False(w, w.tryElsewhere(rw.Writer()))
		require.True(w, w.tryElsewhere(rw.Reader()))
		w.fails(rw.Writer().Lock(w.Context()), lockregistry.ErrUpgrade, "lock", theKey)
		w.fails(plain.Lock(w.Context()), lockregistry.ErrCapacity, "lock", theKey)
		w.fails(r.ReadWrite("43").Reader().Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:43")
		w.unlock(rw.Reader())

		// The last use ends with the reader, after the writer's.
		w.lock(rw.Writer())
		w.lock(rw.Reader())
		w.unlock(rw.Writer())
		require.Equal(w, 0, r.ExpireUnusedOlderThan(0))
		w.unlock(rw.Reader())
		require.Equal(w, 1, r.ExpireUnusedOlderThan(0))
		require.Equal(w, 0, r.Len())
		w.lock(rw.Reader())
		require.True(w, r.ReadWrite("42").Reader().IsHeld())
		w.unlock(r.ReadWrite("42").Reader())
	})
}

// However often the locks are dropped, there is one state per path.
func TestReadWriteLock_EvictionAllowsNoTwoWriters(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithCapacity(2))
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
					w.pass(time.Duration(dice.IntN(5)) * time.Millisecond)
					mine.Add(-1)
					if err := l.Unlock(w.Context()); err != nil {
						w.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.LessOrEqual(w, r.Len(), 2)
		require.Equal(w, 2, r.ExpireUnusedOlderThan(0))
		w.leftNothing()
	})
}

func TestReadWriteLock_BadInput(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		fakeWorld(t, func(w *world) {
			r := w.registry()
			rw := r.ReadWrite("")
			l := pick(pair{r, rw.Reader(), rw.Writer()})
			refuses(w.T, l.Lock(w.Context()), "lock", "orders:", "the path is empty")
			refuses(w.T, l.Unlock(w.Context()), "unlock", "orders:", "the path is empty")
			l = pick(pairOf(r))
			refuses(w.T, l.Lock(nil), "lock", theKey, "the context is nil") //nolint:staticcheck // on purpose
			refuses(w.T, l.Lock(w.Context(), lockregistry.Lease(0)), "lock", theKey, "Lease(0s)")
			cancelled, cancel := context.WithCancel(w.Context())
			cancel()
			w.fails(l.Lock(cancelled), context.Canceled, "lock", theKey)
			w.leftNothing()
			require.False(w, l.IsHeld())
		})
	})
}

// Another kind of lock, or none at all.

func TestReadWriteLock_OtherKindsOfLocks(t *testing.T) {
	worlds(t, func(w *world) {
		spring, redisson := w.registry(), w.registry(lockregistry.WithLayout(lockregistry.LayoutRedisson))
		put := map[string]func(){
			"spring":   func() { w.do("SET", theKey, "somebody", "PX", "60000") },
			"redisson": func() { w.do("HSET", theKey, "uuid:1", "1"); w.do("PEXPIRE", theKey, "60000") },
			"read": func() {
				w.do("HSET", theKey, "mode", "read", "uuid:1", "1")
				w.do("PEXPIRE", theKey, "60000")
			},
			"list": func() { w.do("RPUSH", theKey, "a", "b") },
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
					return w.do("LRANGE", theKey, "0", "-1")
				case "spring":
					return w.do("GET", theKey)
				default:
					return fmt.Sprint(w.fields(theKey))
				}
			}
			before := dump()
			for kind, l := range locks {
				if kind == there || there == "read" && kind == "write" {
					continue
				}
				err := l.Lock(w.Context())
				w.fails(err, lockregistry.ErrWrongType, "lock", theKey)
				require.ErrorContains(w, err, "something other than this kind of lock", "%s for %s", there, kind)
				_, err = l.TryLock(w.Context(), lockregistry.Wait(time.Hour))
				w.fails(err, lockregistry.ErrWrongType, "trylock", theKey)
				ok, err := l.TryLock(w.Context())
				require.False(w, ok)
				w.fails(err, lockregistry.ErrWrongType, "trylock", theKey)
				require.Equal(w, before, dump())
				require.False(w, l.IsHeld())
				if there != "list" {
					require.Greater(w, w.pttl(theKey), 30*time.Second)
				}
				require.Equal(w, "1", w.keys())
			}
			w.do("DEL", theKey)
			for _, l := range locks { // the local half is free
				require.True(w, w.tryElsewhere(l))
			}
		}
	})
}

// While a lock is held its key becomes something else: that is a loss, and what is there stays.
func TestReadWriteLock_KeyOverwritten(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		worlds(t, func(w *world) {
			l := pick(w.pair())
			for _, value := range []string{"string", "plain lock"} {
				w.lock(l)
				w.do("DEL", theKey)
				if value == "string" {
					w.do("SET", theKey, "somebody")
				} else {
					w.do("HSET", theKey, "uuid:1", "1")
				}
				w.fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", theKey)
				w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
				require.Equal(w, "1", w.do("EXISTS", theKey))
				w.do("FLUSHALL")
			}
		})
	})
}

// Replies that are lost.

// scriptsSent are the calls of a script of read-write locks.
func (f *flaky) scriptsSent(name string) (found []command) {
	for _, c := range slices.Concat(f.sent("read"), f.sent("write")) {
		if c.Args[1] == sources()[name] || c.Args[1] == digest(sources()[name]) {
			found = append(found, c)
		}
	}
	return found
}

func TestReadWriteLock_AbandonedReadWriteGrantsAreRemoved(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		worlds(t, func(w *world) {
			w.loaded("readwrite")
			foreign := w.pair()
			f := w.flaky()
			p := pairOf(f.registry())
			l := pick(p)
			name := map[bool]string{true: "read", false: "write"}[l == p.reader]
			f.next(name, cutAfter)
			require.Error(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)))
			require.False(w, l.IsHeld())
			w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
			w.awaitGone(theKey)
			w.leftNothing()
			require.True(w, w.tryElsewhere(foreign.writer))

			// Next to readers of another process, whose hold is not touched.
			if name == "read" {
				w.lock(foreign.reader, lockregistry.Lease(time.Minute))
				holders := w.holdersOf(theKey)
				w.await("a connection", func() bool {
					f.next(name, cutAfter)
					return l.Lock(w.Context(), lockregistry.Lease(time.Hour)) != nil && len(w.holdersOf(theKey)) == 2
				})
				w.await("the grant is removed", func() bool { return slices.Equal(holders, w.holdersOf(theKey)) })
				require.LessOrEqual(w, w.pttl(theKey), time.Minute)
				w.unlock(foreign.reader)
				w.leftNothing()
			}
		})
	})
}

// Before it is removed, it does not keep its own process out.
func TestReadWriteLock_AbandonedReadWriteGrantsAreTakenOver(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"read", "write"} {
		for _, second := range []string{"read", "write"} {
			t.Run(first+" then "+second, func(t *testing.T) {
				worlds(t, func(w *world) {
					w.loaded("readwrite")
					f := w.flaky()
					p, other := pairOf(f.registry()), w.pair()
					locks := map[string]*lockregistry.Lock{"read": p.reader, "write": p.writer}
					f.next(first, cutAfter)
					require.Error(w, locks[first].Lock(w.Context(), lockregistry.Lease(time.Hour)))
					abandoned := f.scriptsSent("readwrite_" + first + "_obtain")[0]
					w.awaitGone(theKey)
					w.arrives(abandoned) // as if it had not been removed yet
					w.lock(locks[second], lockregistry.Lease(time.Minute))
					require.Equal(w, second, w.fields(theKey)["mode"])
					if first == "write" || second == "write" {
						require.Len(w, w.holdersOf(theKey), 1, "the abandoned one is gone")
						require.LessOrEqual(w, w.pttl(theKey), time.Minute)
					}
					require.False(w, w.tryElsewhere(other.writer))
					w.unlock(locks[second])
					w.awaitGone(theKey)
					w.leftNothing()
				})
			})
		}
	}
}

// A writer whose process has an abandoned grant to read, for an hour, waits for the readers of others no longer than
// for their leases.
func TestReadWriteLock_AnAbandonedGrantMakesNoLeaseLonger(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.loaded("readwrite")
		f := w.flaky()
		p, other := pairOf(f.registry()), w.pair()
		w.lock(other.reader, lockregistry.Lease(5*time.Second)) // and crashes
		f.next("read", cutAfter)
		f.all("read", refused(loading)) // so that it is not removed in the background
		require.Error(w, p.reader.Lock(w.Context(), lockregistry.Lease(time.Hour)))
		require.Greater(w, w.pttl(theKey), 59*time.Minute)
		start := time.Now()
		w.lock(p.writer)
		require.InDelta(w, 5*time.Second, time.Since(start), float64(300*time.Millisecond))
		f.Forget()
		w.unlock(p.writer)
		w.leftNothing()
	})
}

// Commands that come late change nothing for holds that came after them.
func TestReadWriteLock_LateReadWriteCommands(t *testing.T) {
	worlds(t, func(w *world) {
		w.loaded("readwrite")
		f := w.flaky()
		p, other := pairOf(f.registry()), w.pair()
		w.lock(p.reader)
		w.unlock(p.reader)
		w.lock(p.writer)
		w.unlock(p.writer)
		require.NoError(w, p.reader.Lock(w.Context()))
		require.NoError(w, p.reader.Renew(w.Context(), time.Minute))
		w.unlock(p.reader)
		sent := map[string]command{}
		for _, kind := range []string{"read", "write"} {
			for _, what := range []string{"obtain", "release", "renew"} {
				if cs := f.scriptsSent("readwrite_" + kind + "_" + what); len(cs) > 0 {
					sent[kind+" "+what] = cs[0]
				}
			}
		}
		require.Len(w, sent, 5)

		held := map[string]*lockregistry.Lock{"a reader": p.reader, "a writer": p.writer, "another's reader": other.reader}
		for who, l := range held {
			for what, c := range sent {
				if who != "a writer" && what == "read obtain" {
					continue // it may read beside, and is removed like any abandoned grant
				}
				w.lock(l, lockregistry.Lease(time.Minute))
				before, lease := w.fields(theKey), w.pttl(theKey)
				w.arrives(c)
				require.Equal(w, before, w.fields(theKey), "%s late, with %s", what, who)
				require.InDelta(w, lease, w.pttl(theKey), float64(2*time.Second))
				require.NoError(w, l.Renew(w.Context(), time.Minute))
				w.unlock(l)
				require.Equal(w, "0", w.keys(), "%s late, with %s", what, who)
			}
		}
		// Nobody holds the lock: late removals and renewals do nothing.
		for what, c := range sent {
			if !strings.HasSuffix(what, "obtain") {
				w.arrives(c)
				require.Equal(w, "0", w.keys(), what)
			}
		}
	})
}

// The removal is not confirmed: it goes on in the background, and nobody of this process is let in before.
func TestReadWriteLock_RemovalInTheBackground(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		fakeWorld(t, func(w *world) {
			w.loaded("readwrite")
			f := w.flaky()
			p := pairOf(f.registry())
			l := pick(p)
			w.lock(l)
			next := w.goroutine().starts(p.writer)
			w.settle()
			f.all(map[bool]string{true: "read", false: "write"}[l == p.reader], refused(loading))
			if l == p.writer {
				w.pass(time.Second) // longer than the handoff limit
			}
			require.ErrorContains(w, l.Unlock(w.Context()), "LOADING")
			require.False(w, l.IsHeld())
			w.pass(5 * time.Second)
			w.pending(next)
			f.Forget()
			require.NoError(w, <-next)
			require.Len(w, w.holdersOf(theKey), 1)
		})
	})
}

// With a context that is done the removal of a read hold goes on in the background. Its owner writes and reads again.
func TestReadWriteLock_AWriterReadsAgainWhileItsRemovalIsUnderWay(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.loaded("readwrite")
		f := w.flaky()
		p := pairOf(f.registry())
		w.lock(p.writer)
		w.lock(p.reader)
		other := w.goroutine().starts(p.writer)
		w.settle()
		done, cancel := context.WithCancel(w.Context())
		cancel()
		require.NoError(w, p.reader.Unlock(done))
		again, stop := context.WithTimeout(w.Context(), time.Minute)
		defer stop()
		require.NoError(w, p.reader.Lock(again))
		w.pending(other)
		w.unlock(p.writer)
		w.unlock(p.reader)
		require.NoError(w, <-other)
	})
}

// A user who may not touch the keys of leases cannot read, and leaves nothing that would stay for ever.
func TestReadWriteLock_ReadersWithoutPermission(t *testing.T) {
	realWorlds(t, func(w *world) {
		p := pairOf(w.registryOn(w.user("resetkeys", "~orders:*")))
		require.Regexp(w, "access at least one of the keys|No permissions to access a key", p.reader.Lock(w.Context()))
		w.leftNothing()
		w.lock(p.writer)
		w.unlock(p.writer)
	})
}

// Two goroutines that try to read at the same moment both may.
func TestReadWriteLock_ReadersThatTryAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		taken bool // by a writer elsewhere
		waits bool // who asks first
	}{
		"free":              {false, false},
		"free, one waits":   {false, true},
		"taken":             {true, false},
		"taken, one waits ": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.loaded("readwrite")
				other := w.pair()
				if c.taken {
					w.lock(other.writer)
				}
				f := w.flaky()
				p := pairOf(f.registry())
				until := make(chan struct{})
				f.next("read", heldUp(until))
				var first <-chan error
				outcome := make(chan bool, 3)
				try := func() {
					g := w.goroutine()
					go func() {
						ok, err := g.try(p.reader)
						if err != nil {
							w.Error(err)
						}
						outcome <- ok
					}()
				}
				if c.waits {
					first = w.goroutine().starts(p.reader)
				} else {
					try()
				}
				w.settle()
				try()
				try()
				w.settle()
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
					require.Len(w, w.holdersOf(theKey), 1)
					w.unlock(other.writer)
				}
				if first != nil {
					require.NoError(w, <-first)
				}
			})
		})
	}
}
