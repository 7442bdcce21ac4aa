package shared_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// People often write a read-write lock themselves: a hash with the time at which the last reader began and the time at which
// the last writer began, each valid for a fixed time. ReadWriteLock keeps the promises of that lock: readers share, a holder
// releases only its own hold, leases end by themselves, and one key is enough, so that it works on a cluster. It does not have
// the fault of that lock, one time for all readers.

// The scripts of that lock. KEYS[1]: the hash; ARGV[1]: now; ARGV[2]: how long a reader may read; ARGV[3]: how long a writer
// may write; all in milliseconds.
const (
	homemadeRead = `
local writing = redis.call('HGET', KEYS[1], 'write')
if writing and ARGV[1] - writing <= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'read', ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1`
	homemadeWrite = `
local writing, reading = redis.call('HGET', KEYS[1], 'write'), redis.call('HGET', KEYS[1], 'read')
if writing and ARGV[1] - writing <= tonumber(ARGV[3]) then return 0 end
if reading and ARGV[1] - reading <= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'write', ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1`
	homemadeEndRead = `
if redis.call('HGET', KEYS[1], 'read') == ARGV[1] then redis.call('HDEL', KEYS[1], 'read') return 1 end
return 0`
)

// twoReaders has two readers begin, one after the other, and the second one end. It reports whether a writer gets in while the
// first one still reads.
type twoReaders struct {
	first, second func() bool
	endSecond     func() bool
	write         func() bool
}

func (c twoReaders) writerEnters(w *kit.World) bool {
	w.Helper()
	require.True(w, c.first())
	require.False(w, c.write(), "one reads")
	require.True(w, c.second(), "readers share")
	require.False(w, c.write(), "two read")
	require.True(w, c.endSecond())
	return c.write()
}

func TestReadWriteLock_OneTimeForAllReadersIsNotEnough(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		now := time.Now().UnixMilli()
		run := func(script string, at int64) func() bool {
			return func() bool {
				return w.Do("EVAL", script, "1", "home", strconv.FormatInt(at, 10), "1000", "3000") == "1"
			}
		}
		homemade := twoReaders{
			first:     run(homemadeRead, now),
			second:    run(homemadeRead, now+5),
			endSecond: run(homemadeEndRead, now+5),
			write:     run(homemadeWrite, now+10),
		}
		require.True(w, homemade.writerEnters(w), "the second reader's time has replaced the first one's")

		for name, pairs := range map[string][3]kit.Pair{
			"three processes": {w.Pair(), w.Pair(), w.Pair()},
			"one process":     func(p kit.Pair) [3]kit.Pair { return [3]kit.Pair{p, p, p} }(w.Pair()),
		} {
			first, second := w.Goroutine(), w.Goroutine()
			try := func(g *kit.Goroutine, l *lockregistry.Lock) func() bool {
				return func() bool {
					ok, err := g.Try(l)
					require.NoError(w, err)
					return ok
				}
			}
			ours := twoReaders{
				first:     try(first, pairs[0].Reader),
				second:    try(second, pairs[1].Reader),
				endSecond: func() bool { return second.Unlock(pairs[1].Reader) == nil },
				write:     try(w.Goroutine(), pairs[2].Writer),
			}
			require.False(w, ours.writerEnters(w), name)
			require.NoError(w, first.Unlock(pairs[0].Reader))
			require.True(w, w.TryElsewhere(pairs[2].Writer))
		}
	})
}

// The leases of readers end separately, and a reader cannot end another's.
func TestReadWriteLock_ReadersLeasesEndByThemselves(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		a, b, c := w.Pair(), w.Pair(), w.Pair()
		w.Lock(a.Reader, lockregistry.Lease(3*time.Second))
		w.Pass(2 * time.Second)
		w.Lock(b.Reader, lockregistry.Lease(3*time.Second))
		require.ErrorIs(w, kit.Elsewhere(func() error { return a.Reader.Unlock(w.Context()) }), lockregistry.ErrNotOwner)
		w.Pass(2 * time.Second)
		require.False(w, a.Reader.IsHeld())
		require.True(w, b.Reader.IsHeld())
		require.False(w, w.TryElsewhere(c.Writer))
		w.Pass(time.Second + 2*time.Millisecond)
		require.True(w, w.TryElsewhere(c.Writer))
	})
}

// leaseOf returns the key of the lease of a pair's reader.
func leaseOf(w *kit.World, p kit.Pair) string {
	w.Helper()
	for _, holder := range holdersOf(w, kit.TheKey) {
		if strings.HasPrefix(holder, kit.ClientID(p.Reg)+":") && !strings.HasSuffix(holder, ":write") {
			return "{" + kit.TheKey + "}:" + holder + ":rwlock_timeout:1"
		}
	}
	w.Fatal("it does not read")
	return ""
}

// The server has lost the lease of a reader, but not its field, since another one reads. Verifying the hold finds that it is
// lost.
func TestReadWriteLock_VerifiedWithoutItsLease(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Pair(), w.Pair()
		w.Lock(b.Reader)
		w.Lock(a.Reader, lockregistry.Lease(time.Minute))
		require.Equal(w, "1", w.Do("DEL", leaseOf(w, a)))
		kit.Verify(a.Reader)
		w.Await("the loss is noticed", func() bool { return !a.Reader.IsHeld() })
		w.Fails(a.Reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.True(w, b.Reader.IsHeld())
		w.Unlock(b.Reader)
		require.True(w, w.TryElsewhere(a.Writer))
	})
}

// A reader of Redisson that renews sets the lease of the whole lock to its own. A longer lease then depends on its next
// renewal, and does not exclude writers if that fails: hence the rule in the comment of ReadWriteLock.
func TestReadWriteLock_BesideALeaseOfRedisson(t *testing.T) {
	t.Parallel()
	const theirs = 30 * time.Second
	for name, c := range map[string]struct {
		opts []lockregistry.Option
		both bool
	}{
		"default":           {nil, false},
		"Redisson, default": {[]lockregistry.Option{lockregistry.WithRedissonLayout()}, false},
		"as long":           {[]lockregistry.Option{lockregistry.WithLease(theirs)}, false},
		"longer":            {[]lockregistry.Option{lockregistry.WithLease(2 * theirs)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				reader, writer := kit.PairOf(f.Registry(c.opts...)).Reader, w.Pair().Writer
				w.Lock(reader)
				w.Do("PEXPIRE", kit.TheKey, strconv.FormatInt(theirs.Milliseconds(), 10))
				f.Down()
				beside, entered := false, false
				for range 2 * theirs / time.Second {
					w.Pass(time.Second)
					entered = w.TryElsewhere(writer)
					beside = beside || entered && reader.IsHeld()
				}
				require.True(w, entered)
				require.Equal(w, c.both, beside)
			})
		})
	}
}

// The lock does not outlive its readers, even if one of them shortens the longest lease and then crashes like the others.
func TestReadWriteLock_AShortenedLeaseEndsTheLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		a, b, c := w.Pair(), w.Pair(), w.Pair()
		w.Lock(a.Reader, lockregistry.Lease(10*time.Minute))
		w.Lock(b.Reader, lockregistry.Lease(5*time.Second))
		require.NoError(w, a.Reader.Renew(w.Context(), 2*time.Second))
		require.Equal(w, 2*time.Second, w.Pttl(leaseOf(w, a)))
		require.Equal(w, 5*time.Second, w.Pttl(kit.TheKey), "what the other one has")
		require.NoError(w, b.Reader.Renew(w.Context(), time.Second))
		require.Equal(w, 2*time.Second, w.Pttl(kit.TheKey))
		w.Pass(time.Second + time.Millisecond)
		require.True(w, a.Reader.IsHeld())
		require.False(w, w.TryElsewhere(c.Writer))
		w.Pass(time.Second)
		require.True(w, w.TryElsewhere(c.Writer))
	})
}

// The fields of crashed readers do not stay for as long as others read. Fields of Redisson's readers do: a client that stood
// still would otherwise no longer renew the lock.
func TestReadWriteLock_DeadReadersLeaveNoField(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		stays, leaves, late := w.Pair(), w.Pair(), w.Pair()
		w.Lock(stays.Reader, lockregistry.Lease(time.Hour))
		read(w, foreign, time.Second)
		for range 20 {
			w.Lock(w.Pair().Reader, lockregistry.Lease(time.Second))
		}
		w.Lock(late.Reader, lockregistry.Lease(time.Second))
		w.Pass(2 * time.Second)
		w.Lock(leaves.Reader)
		require.Len(w, holdersOf(w, kit.TheKey), 24)
		w.Unlock(leaves.Reader)
		require.Len(w, holdersOf(w, kit.TheKey), 2, "one that lives, and Redisson's")
		require.Contains(w, holdersOf(w, kit.TheKey), foreign)
		w.Fails(late.Reader.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.True(w, stays.Reader.IsHeld())
		require.False(w, w.TryElsewhere(leaves.Writer))
		w.Unlock(stays.Reader)
		require.True(w, w.TryElsewhere(leaves.Writer))
	})
}
