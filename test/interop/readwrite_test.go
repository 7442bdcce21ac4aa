package interop

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// What a read-write lock promises in addition to what its write lock promises as a lock, for which there are the contractPairs.

// change is a handoff from one kind of lock to another.
type change struct {
	name     string
	from, to func(*side) *side
}

var changes = []change{
	{"read to write", (*side).reader, (*side).writer},
	{"write to read", (*side).writer, (*side).reader},
	{"write to write", (*side).writer, (*side).writer},
}

// timeouts are the keys in which the lock keeps the leases of its readers.
func (s *side) timeouts(t *testing.T, path string) []string {
	t.Helper()
	return strings.Fields(server.Command(t, "KEYS", "{"+s.key(path)+"}:*:rwlock_timeout:*"))
}

// requireFree checks that a read-write lock has left nothing behind. A call that has just given up may have been granted the
// lock at that moment: then it releases the lock.
func requireFree(t *testing.T, s *side, path string) {
	t.Helper()
	free := func() bool {
		return server.Command(t, "EXISTS", s.key(path)) == "0" && len(s.timeouts(t, path)) == 0
	}
	require.Eventually(t, free, soon, time.Millisecond, "something is left of %s", s.key(path))
}

// requireReading checks that the lock lets readers in and no writer, on any side.
func requireReading(t *testing.T, path string, sides ...*side) {
	t.Helper()
	for _, s := range sides {
		require.False(t, s.writer().on("a writer").tryLock(t, path), "%s got to write", s.name)
		require.False(t, s.writer().on("a writer").tryLock(t, path, "wait", "50"), "%s got to write", s.name)
		s.reader().on("a reader").lock(t, path)
		s.reader().on("a reader").unlock(t, path)
	}
}

// requireWriting checks that the lock lets nobody in, on any side.
func requireWriting(t *testing.T, path string, sides ...*side) {
	t.Helper()
	for _, s := range sides {
		require.False(t, s.writer().on("a writer").tryLock(t, path), "%s got to write", s.name)
		require.False(t, s.reader().on("a reader").tryLock(t, path), "%s got to read", s.name)
		require.False(t, s.reader().on("a reader").tryLock(t, path, "wait", "50"), "%s got to read", s.name)
	}
}

// requireSoonAfter checks that a waiter gets the lock soon after its release.
func requireSoonAfter(t *testing.T, release peer.Reply, waiting *peer.Call) {
	t.Helper()
	got := ended(t, waiting)
	require.False(t, got.End.Before(release.Begin), "locked at %v, unlocked only at %v", got.End, release.Begin)
	require.Less(t, got.End.Sub(release.Begin), soon, "the waiter did not learn of the release")
}

// trio is three processes: the holder's, the waiter's, and another one of the waiter's library, whose waiting the first two do
// not see locally.
func trio(t *testing.T, r roles, o opening) (holder, waiter, third *side) {
	t.Helper()
	return open(t, r.holder, o), open(t, r.waiter, o), openOn(t, peers.get(t, r.waiter, 2), r.waiter, o)
}

func TestReadersShareAndWritersExclude(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			one, other, third := trio(t, r, opening{prefix: uniquePrefix()})
			requireReads := func() { t.Helper(); requireReading(t, "path", one, other, third) }

			require.True(t, one.reader().tryLock(t, "path"))
			require.True(t, other.reader().tryLock(t, "path"))
			other.reader().on("second").lock(t, "path")
			requireReads()
			one.reader().unlock(t, "path")
			requireReads()
			other.reader().unlock(t, "path")
			requireReads()
			other.reader().on("second").unlock(t, "path")
			requireFree(t, one, "path")

			for _, s := range []*side{one, other} {
				require.True(t, s.writer().tryLock(t, "path"))
				requireWriting(t, "path", one, other, third)
				s.writer().unlock(t, "path")
				requireFree(t, one, "path")
			}
		})
	}
}

func TestReadWriteReentry(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			one, other := open(t, r.holder, opening{prefix: prefix}), open(t, r.waiter, opening{prefix: prefix})

			for range 3 {
				one.reader().lock(t, "path")
			}
			other.reader().lock(t, "path")
			for range 3 {
				requireReading(t, "path", one, other)
				one.reader().unlock(t, "path")
			}
			require.Len(t, other.timeouts(t, "path"), 1, "the first reader left something behind")
			other.reader().unlock(t, "path")
			requireFree(t, one, "path")

			// Both kinds nested in each other, writing outside.
			one.writer().lock(t, "path")
			one.reader().lock(t, "path")
			one.writer().lock(t, "path")
			one.reader().lock(t, "path")
			for _, inner := range []*side{one.reader(), one.writer(), one.reader(), one.writer()} {
				requireWriting(t, "path", other)
				inner.unlock(t, "path")
			}
			requireFree(t, one, "path")
		})
	}
}

func TestReadWriteWaiterWakesAtOnce(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			watch := monitor.Start(t, server.Addr())
			prefix := uniquePrefix()
			for _, name := range oddNames {
				prefix := name.prefix + prefix
				holder := open(t, r.holder, opening{prefix: prefix})
				waiter := open(t, r.waiter, opening{prefix: prefix, unhurried: true})
				for _, c := range changes {
					got, released := handoff(t, watch, c.from(holder), c.to(waiter), name.path)
					require.Less(t, got.Sub(released), soon, "%s: no wake-up for %q", c.name, holder.key(name.path))
					requireKey(t, holder.key(name.path), false)
				}
			}
		})
	}
}

func TestWriterFollowsLastReaderAndReadersFollowWriter(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		for _, lastIsHolder := range []bool{false, true} {
			t.Run(r.String()+map[bool]string{true: ", holder last", false: ", holder first"}[lastIsHolder], func(t *testing.T) {
				t.Parallel()
				holder, waiter, third := trio(t, r, opening{prefix: uniquePrefix(), unhurried: true})
				watch := monitor.Start(t, server.Addr())
				first, last := holder, third
				if lastIsHolder {
					first, last = third, holder
				}

				first.reader().lock(t, "path")
				last.reader().lock(t, "path")
				last.reader().on("second").lock(t, "path")
				waiting := waiter.writer().startWaiting(t, watch, "path")
				first.reader().unlock(t, "path")
				last.reader().on("second").unlock(t, "path")
				requireWaiting(t, waiting)
				requireSoonAfter(t, last.reader().unlock(t, "path"), waiting)

				readers := []*side{holder.reader(), third.reader(), last.reader().on("second")}
				calls := make([]*peer.Call, 0, len(readers))
				for n, reader := range readers {
					if n == 2 && reader.module == "" { // it waits behind the other reader of its process, not for Redis
						calls = append(calls, reader.startLock("path"))
					} else {
						calls = append(calls, reader.startWaiting(t, watch, "path"))
					}
					// A release by Redisson needs sleeping threads. A release by Go may miss one thread of a process, but not two.
					if waiter.sleepsIn != "" || n == 0 {
						reader.awaitSleep(t)
					}
				}
				for _, call := range calls {
					requireWaiting(t, call)
				}
				release := waiter.writer().unlock(t, "path")
				for _, call := range calls {
					requireSoonAfter(t, release, call)
				}
				require.False(t, waiter.writer().tryLock(t, "path"))
				for _, reader := range readers {
					reader.unlock(t, "path")
				}
				requireFree(t, holder, "path")
			})
		}
	}
}

// Each reader has its own lease: a lease that ends, or is released, neither ends another's nor outlives it.
func TestReaderLeaseEndsAlone(t *testing.T) {
	const (
		shortLease = 4 * time.Second // a busy machine may keep a process waiting for some seconds
		longLease  = time.Minute
	)
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		for _, shortFirst := range []bool{true, false} {
			t.Run(r.String()+map[bool]string{true: ", short first", false: ", long first"}[shortFirst], func(t *testing.T) {
				t.Parallel()
				one, other, third := trio(t, r, opening{prefix: uniquePrefix(), unhurried: true})
				watch := monitor.Start(t, server.Addr())
				short, long := one.reader(), other.reader()
				begin := func(s *side, lease time.Duration) { s.lock(t, "path", "lease", peer.InMillis(lease)) }

				// Once the long lease is released, only the short one counts.
				begin(short, 2*shortLease)
				begin(long, longLease)
				require.Greater(t, pttl(t, short.key("path")), longLease/2)
				long.unlock(t, "path")
				require.LessOrEqual(t, pttl(t, short.key("path")), 2*shortLease)
				short.unlock(t, "path")
				requireFree(t, one, "path")

				if shortFirst {
					begin(short, shortLease)
					begin(long, longLease)
				} else {
					begin(long, longLease)
					begin(short, shortLease)
				}
				over := func() bool { return len(short.timeouts(t, "path")) == 1 }
				require.Eventually(t, over, callLimit, 10*time.Millisecond)
				require.Greater(t, pttl(t, short.key("path")), longLease/2)
				requireReading(t, "path", other, third)
				waiting := third.writer().startWaiting(t, watch, "path")
				_, err := short.do(t, "unlock", with("path"))
				if short.module == "" {
					requireFailure(t, short.lateUnlock, err)
				} else { // Redisson does not say so: the lock was read all the time, so nobody can have written
					require.NoError(t, err)
				}
				require.Greater(t, pttl(t, short.key("path")), longLease/2)
				requireWaiting(t, waiting)
				requireSoonAfter(t, long.unlock(t, "path"), waiting)
				third.writer().unlock(t, "path")
				requireFree(t, one, "path")
			})
		}
	}
}

func TestLateUnlockOfReaderIsTold(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder := open(t, r.holder, opening{prefix: prefix, lease: time.Second})
			waiter := open(t, r.waiter, opening{prefix: prefix})

			locked := holder.reader().lockToExpire(t, "path")
			got := waiter.writer().lock(t, "path")
			require.GreaterOrEqual(t, got.End.Sub(locked.Begin), holder.lease, "locked before the lease was over")
			_, err := holder.reader().do(t, "unlock", with("path"))
			requireFailure(t, holder.lateUnlock, err)
			requireWriting(t, "path", holder)
			waiter.writer().unlock(t, "path")
			requireFree(t, holder, "path")

			holder.reader().lockToExpire(t, "path")
			gone := func() bool { return server.Command(t, "EXISTS", holder.key("path")) == "0" }
			require.Eventually(t, gone, callLimit, 10*time.Millisecond)
			_, err = holder.reader().do(t, "unlock", with("path"))
			requireLate(t, holder.reader(), err)
			requireFree(t, holder, "path")
		})
	}
}

func TestReadersAreRenewed(t *testing.T) {
	const lease = 4 * time.Second // a busy machine may keep a process waiting for some seconds between two renewals
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			one, other, _ := trio(t, r, opening{prefix: prefix, lease: lease, renewal: true})
			writer := openOn(t, peers.get(t, r.waiter, 2), r.waiter, opening{prefix: prefix}).writer()

			one.reader().lock(t, "path")
			require.False(t, writer.tryLock(t, "path", "wait", peer.InMillis(lease+lease/4)))
			other.reader().lock(t, "path")
			require.False(t, writer.tryLock(t, "path", "wait", peer.InMillis(lease+lease/4)))
			one.reader().unlock(t, "path")
			require.False(t, writer.tryLock(t, "path", "wait", peer.InMillis(lease+lease/4)))
			require.Len(t, other.timeouts(t, "path"), 1)
			other.reader().unlock(t, "path")
			requireFree(t, one, "path")
			require.True(t, writer.tryLock(t, "path"))
			// If a renewal outlived its hold, the writer's key would show it.
			require.Greater(t, pttl(t, writer.key("path")), lease)
			writer.unlock(t, "path")
		})
	}
}

func TestDowngrade(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(readWritePairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			one, other, third := trio(t, r, opening{prefix: uniquePrefix(), unhurried: true})
			watch := monitor.Start(t, server.Addr())

			one.writer().lock(t, "path")
			one.reader().lock(t, "path")
			requireWriting(t, "path", one, other)
			reading := other.reader().startWaiting(t, watch, "path")
			writing := third.writer().startWaiting(t, watch, "path")
			release := one.writer().unlock(t, "path")
			// Redisson publishes nothing here, so Go has to see that the key changes.
			requireSoonAfter(t, release, reading)
			requireWaiting(t, writing)
			requireReading(t, "path", one, other)
			one.reader().unlock(t, "path")
			requireWaiting(t, writing)
			requireSoonAfter(t, other.reader().unlock(t, "path"), writing)
			third.writer().unlock(t, "path")
			requireFree(t, one, "path")
		})
	}
}

// A reader that asks to write would wait for itself forever. Go refuses, even with readers in Java beside it.
func TestUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	for _, p := range readWritePairs() {
		t.Run(p.golang.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			golang, java := open(t, p.golang, opening{prefix: prefix}), open(t, p.java, opening{prefix: prefix})

			golang.reader().lock(t, "path")
			for _, alone := range []bool{true, false} {
				if !alone {
					java.reader().lock(t, "path")
				}
				for _, command := range []string{"lock", "trylock"} {
					_, err := golang.writer().do(t, command, with("path"))
					requireFailure(t, peer.RemoteError{Class: "ErrDeadlock", Message: "unlock the reader first"}, err)
				}
			}
			requireReading(t, "path", golang, java)
			golang.reader().unlock(t, "path")
			requireReading(t, "path", golang, java)
			java.reader().unlock(t, "path")
			requireFree(t, golang, "path")
		})
	}
}

func TestKilledReadersAndWriters(t *testing.T) {
	const (
		lease = 6 * time.Second
		grace = 3 * time.Second // for a busy machine
	)
	t.Parallel()
	// For processes that take long to start, one way to renew locks is enough.
	pairs := slices.DeleteFunc(long(readWritePairs()), func(p pair) bool { return !p.golang.watchdog })
	for _, r := range bothWays(pairs, always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			doomed := start(t, "doomed "+r.holder.name, r.holder)
			// Redisson's renewals give the whole lock their own lease, so all leases must be the same.
			o := opening{prefix: prefix, lease: lease, renewal: true}
			victim := openOn(t, doomed, r.holder, o)
			one, other, third := trio(t, r, o)
			watch := monitor.Start(t, server.Addr())

			victim.reader().lock(t, "alone")
			victim.reader().lock(t, "shared")
			other.reader().lock(t, "shared")
			victim.writer().lock(t, "written")
			alone := third.writer().startWaiting(t, watch, "alone")
			shared := third.writer().on("second").startWaiting(t, watch, "shared")
			written := []*peer.Call{
				other.reader().on("third").startWaiting(t, watch, "written"),
				one.reader().on("third").startWaiting(t, watch, "written"),
			}
			killed := time.Now()
			require.NoError(t, doomed.Kill())
			for _, call := range append(written, alone) {
				require.Less(t, ended(t, call).End.Sub(killed), lease+grace)
			}
			// The dead reader's lease is over, and the living one's goes on. If the living reader's renewals are for all readers, they
			// keep the dead one's lease, too, which then ends one lease after the last renewal.
			if !other.cutsReaders {
				require.Eventually(t, func() bool { return len(other.timeouts(t, "shared")) == 1 }, callLimit, 10*time.Millisecond)
			}
			requireReading(t, "shared", one, other)
			requireWaiting(t, shared)
			requireSoonAfter(t, other.reader().unlock(t, "shared"), shared)

			third.writer().unlock(t, "alone")
			third.writer().on("second").unlock(t, "shared")
			other.reader().on("third").unlock(t, "written")
			one.reader().on("third").unlock(t, "written")
			for _, path := range []string{"alone", "shared", "written"} {
				requireFree(t, one, path)
			}
		})
	}
}

// If Java holds a path with another kind of lock, nothing is changed, and the error says why.
func TestOtherKindIsLeftAlone(t *testing.T) {
	t.Parallel()
	spring, redisson := golang("auto"), inRedissonsFormat(golang("auto"))
	wrongType := peer.RemoteError{Class: "ErrWrongType", Message: "something other than this kind of lock"}
	for _, c := range []struct {
		name         string
		java, golang library
		held         string   // kind of lock
		asked        []string // kinds
	}{
		{"plain lock of Redisson", redissonRow, redisson, "", []string{"read", "write"}},
		{"plain lock of Redisson, Spring's format", redissonRow, spring, "", []string{"", "read", "write"}},
		{"reader of Redisson", redissonRow, redisson, "read", []string{""}},
		{"writer of Redisson", redissonRow, redisson, "write", []string{""}},
		{"writer of Redisson, Spring's format", redissonRow, spring, "write", []string{""}},
		{"lock of Spring", springs[0], redisson, "", []string{"", "read", "write"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			c.java.kind = c.held
			java := open(t, c.java, opening{prefix: prefix})
			java.lock(t, "path")
			before, leases := server.Command(t, "DUMP", java.key("path")), java.timeouts(t, "path")
			for _, kind := range c.asked {
				c.golang.kind = kind
				asking := open(t, c.golang, opening{prefix: prefix})
				for command, fields := range map[string]peer.Fields{
					"lock":    with("path"),
					"trylock": with("path", "wait", "200"),
				} {
					_, err := asking.do(t, command, fields)
					requireFailure(t, wrongType, err)
				}
				require.Equal(t, before, server.Command(t, "DUMP", java.key("path")))
				require.Equal(t, leases, java.timeouts(t, "path"))
			}
			java.unlock(t, "path")
			requireKey(t, java.key("path"), false)
		})
	}
}

// Threads of two Go processes read without a pause between them. Redisson's writer has no ticket, but it listens, and gets its
// turn.
func TestRedissonWritesWhileGoReadersComeAndGo(t *testing.T) {
	t.Parallel()
	for _, p := range readWritePairs() {
		t.Run(p.golang.name+" and "+p.java.name, func(t *testing.T) {
			t.Parallel()
			o := opening{prefix: uniquePrefix(), lease: 10 * time.Second, renewal: true}
			stop := make(chan struct{})
			var all sync.WaitGroup
			for n := range 2 {
				s := openOn(t, peers.get(t, p.golang, n+1), p.golang, o)
				for thread := range 3 {
					reader := s.reader().on(fmt.Sprint("reader ", thread))
					all.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(time.Millisecond):
							}
							_, err := reader.do(t, "lock", with("path"))
							if err != nil {
								t.Error(err)
								return
							}
							<-time.After(time.Duration(10+rand.IntN(10)) * time.Millisecond)
							_, err = reader.do(t, "unlock", with("path"))
							assert.NoError(t, err)
						}
					})
				}
			}
			writer := open(t, p.java, o).writer()
			for range 4 {
				began := time.Now()
				writer.lock(t, "path")
				assert.Less(t, time.Since(began), 10*time.Second, "readers never leave it free")
				writer.unlock(t, "path")
				<-time.After(300 * time.Millisecond)
			}
			close(stop)
			all.Wait()
		})
	}
}
