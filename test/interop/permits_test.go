package interop

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// semaphores are those of this library and of Redisson's RPermitExpirableSemaphore, on one key.
type semaphores struct {
	*testing.T
	java   *side
	prefix string
	at     *redistest.Server
	client rueidis.Client
}

// eachRedisson runs a test with each version. Its process runs on, so that the next test need not wait for it.
func eachRedisson(t *testing.T, test func(s *semaphores)) {
	t.Helper()
	t.Parallel()
	for _, lib := range redissons() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			test(semaphoresOf(t, open(t, lib, opening{prefix: prefix}), prefix))
		})
	}
}

func semaphoresOf(t *testing.T, java *side, prefix string) *semaphores {
	t.Helper()
	return semaphoresAt(t, server, java, prefix)
}

func semaphoresAt(t *testing.T, at *redistest.Server, java *side, prefix string) *semaphores {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{at.Addr()}})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &semaphores{t, java, prefix, at, client}
}

// registry is one of a Go process.
func (s *semaphores) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	s.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.at.Addr()}, DisableCache: true})
	require.NoError(s, err)
	s.Cleanup(client.Close)
	r, err := lockregistry.New(client, s.prefix, append(opts, lockregistry.WithLayout(lockregistry.LayoutRedisson))...)
	require.NoError(s, err)
	s.Cleanup(func() { _ = r.Close() })
	return r
}

func (s *semaphores) golang(n int) lockregistry.Semaphore { return s.registry().Semaphore("seat", n) }

// says is what Redisson replies.
func (s *semaphores) says(do string, more ...string) string {
	s.Helper()
	return ended(s.T, s.java.send(do, with("seat", more...))).Fields["value"]
}

// asks has a thread of Redisson's ask for permits, and waits until it sleeps.
func (s *semaphores) asks(thread string, more ...string) *peer.Call {
	s.Helper()
	on := s.java.on(thread)
	call := on.send("enter", with("seat", more...))
	require.Eventually(s, func() bool {
		sleeps := peer.Fields{"of": on.threadName(), "in": "java.util.concurrent.Semaphore"}
		reply := ended(s.T, s.java.on("other").send("sleeps", sleeps))
		return reply.Fields["value"] == "true"
	}, callLimit, 5*time.Millisecond)
	return call
}

func (s *semaphores) acquire(of lockregistry.Semaphore, opts ...lockregistry.LockOption) *lockregistry.Hold {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), callLimit)
	defer cancel()
	h, err := of.Acquire(ctx, opts...)
	require.NoError(s, err)
	return h
}

// waits has a call wait in Redis.
func (s *semaphores) waits(of lockregistry.Semaphore, opts ...lockregistry.LockOption) <-chan *lockregistry.Hold {
	s.Helper()
	queue := s.prefix + ":{" + s.prefix + ":seat}:waiters"
	tickets := func() string { return server.Command(s.T, "ZCOUNT", queue, "0", "+inf") }
	before, got := tickets(), make(chan *lockregistry.Hold, 1)
	go func() {
		h, err := of.Acquire(s.Context(), opts...)
		if err != nil {
			s.Error(err)
		}
		got <- h
	}()
	require.Eventually(s, func() bool { return tickets() != before }, callLimit, time.Millisecond)
	return got
}

// comes waits for such a call, for no longer than no timer would make it look.
func (s *semaphores) comes(call <-chan *lockregistry.Hold) *lockregistry.Hold {
	s.Helper()
	select {
	case h := <-call:
		return h
	case <-time.After(3 * time.Second):
		s.Fatal("a call in Go does not get its permits")
		return nil
	}
}

func (s *semaphores) enters(call *peer.Call) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Second)
	defer cancel()
	reply, err := call.Wait(ctx)
	require.NoError(s, err)
	require.NotEmpty(s, reply.Fields["value"])
	return reply.Fields["value"]
}

func (s *semaphores) full(of lockregistry.Semaphore) {
	s.Helper()
	h, ok, err := of.TryAcquire(s.Context())
	require.NoError(s, err)
	require.False(s, ok)
	require.Nil(s, h)
	require.Empty(s, s.says("enter", "wait", "0", "lease", "60000"))
}

// Each side sees what the other one has.
func TestPermits_SeeEachOther(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		require.Equal(s, "true", s.says("beginpermits", "n", "3"))
		g := s.golang(3)
		one, java := s.acquire(g), s.says("enter", "lease", "60000")
		require.Equal(s, "1 3", s.says("permits"))
		two := s.acquire(g)
		s.full(g)
		require.Equal(s, "0 3", s.says("permits"))
		require.Equal(s, "1", s.says("leave", "ids", java))
		require.Equal(s, "0", s.says("leave", "ids", java))
		java = s.says("enter", "lease", "60000")
		s.full(g)
		require.NoError(s, one.Release(s.Context()))
		require.NoError(s, two.Renew(s.Context(), time.Hour))
		require.Equal(s, "true", s.says("extend", "ids", java, "lease", "3600000"))
		require.Equal(s, "1 3", s.says("permits"))

		info, err := s.registry().Inspect(s.Context(), "seat")
		require.NoError(s, err)
		require.Equal(s, 3, info.Permits)
		require.Equal(s, lockregistry.LayoutRedisson, info.Layout)
		require.Equal(s, 2, info.HolderCount)
		holders := []string{info.Holders[0].Holder, info.Holders[1].Holder}
		require.ElementsMatch(s, []string{two.Holder(), java}, holders)
		require.NoError(s, s.registry().ForceUnlockHolder(s.Context(), "seat", java))
		require.ErrorIs(s, s.registry().ForceUnlockHolder(s.Context(), "seat", java), lockregistry.ErrNotOwner)
		require.Equal(s, "0", s.says("leave", "ids", java))
		require.NoError(s, two.Release(s.Context()))
		require.Equal(s, "3 3", s.says("permits"))
	})
}

// Go sets the number where Redisson has not, and Redisson takes it as its own.
func TestPermits_GoSetsTheNumber(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		g := s.golang(2)
		h := s.acquire(g)
		require.Equal(s, "false", s.says("beginpermits", "n", "5"))
		require.Equal(s, "1 2", s.says("permits"))
		require.NoError(s, g.SetPermits(s.Context(), 4))
		require.Equal(s, "3 4", s.says("permits"))
		require.NoError(s, h.Release(s.Context()))
		require.Equal(s, "4 4", s.says("permits"))
	})
}

// What Go releases wakes those of Redisson that sleep, as many as there are permits.
func TestPermits_GoWakesJava(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		g := s.golang(3)
		one, large := s.acquire(g, lockregistry.Lease(time.Hour)), s.acquire(g, lockregistry.Lease(time.Hour), lockregistry.Permits(2))
		first := s.asks("first", "lease", "60000")
		require.NoError(s, one.Release(s.Context()))
		ids := s.enters(first)
		second, third := s.asks("second", "lease", "60000"), s.asks("third", "lease", "60000")
		require.NoError(s, large.Release(s.Context()))
		ids += " " + s.enters(second) + " " + s.enters(third)
		s.full(g)
		require.Equal(s, "3", s.says("leave", "ids", ids))

		one = s.acquire(g, lockregistry.Lease(time.Hour), lockregistry.Permits(3))
		first = s.asks("first", "lease", "60000")
		require.NoError(s, g.SetPermits(s.Context(), 4))
		s.enters(first)
		require.NoError(s, one.Release(s.Context()))
	})
}

// What Redisson releases, one or several at a time, is Go's as soon as it is free.
func TestPermits_JavaLetsGoIn(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		g := s.golang(3)
		require.Equal(s, "true", s.says("beginpermits", "n", "3"))
		ids := strings.Fields(s.says("enter", "n", "3", "lease", "3600000"))
		require.Len(s, ids, 3)
		first := s.waits(g)
		require.Equal(s, "1", s.says("leave", "ids", ids[0]))
		one := s.comes(first)
		large, small := s.waits(g, lockregistry.Permits(2)), s.waits(g)
		require.NoError(s, one.Release(s.Context()))
		require.Equal(s, "2", s.says("leave", "ids", ids[1]+" "+ids[2]))
		require.NoError(s, s.comes(large).Release(s.Context()))
		require.NoError(s, s.comes(small).Release(s.Context()))
		require.Equal(s, "3 3", s.says("permits"))
	})
}

// The number is lowered below what is held: nobody loses a permit, and none is given until fewer are held.
func TestPermits_LoweredBelowWhatIsHeld(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		g := s.golang(3)
		holds := []*lockregistry.Hold{s.acquire(g), s.acquire(g)}
		java := s.says("enter", "lease", "60000")
		s.says("setpermits", "n", "1")
		require.Equal(s, "-2 1", s.says("permits"))
		s.full(g)
		waiting := s.asks("waiting", "lease", "60000")
		require.NoError(s, holds[0].Release(s.Context()))
		require.Equal(s, "-1 1", s.says("permits"))
		s.full(g)
		require.NoError(s, holds[1].Renew(s.Context(), time.Minute))
		require.NoError(s, holds[1].Release(s.Context()))
		require.Equal(s, "0 1", s.says("permits"))
		s.full(g)
		require.Equal(s, "1", s.says("leave", "ids", java))
		java = s.enters(waiting)
		s.full(g)
		require.NoError(s, g.SetPermits(s.Context(), 2))
		h := s.acquire(g)
		s.full(g)
		require.Equal(s, "1", s.says("leave", "ids", java))
		require.NoError(s, h.Release(s.Context()))
		require.Equal(s, "2 2", s.says("permits"))
	})
}

// Redisson's scripts fail when more permits are over than Lua unpacks. Go's do not, and Redisson's work then.
func TestPermits_ManyAreOver(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		key := s.prefix + ":seat"
		server.Command(s.T, "EVAL", `redis.call('SET', KEYS[1], 1)
			for i = 1, 9000 do redis.call('ZADD', KEYS[2], i, string.format('%016d', i)) end`, "2", key, "{"+key+"}:timeout")
		_, err := s.java.do(s.T, "permits", with("seat"))
		require.ErrorContains(s, err, "too many results to unpack")
		h := s.acquire(s.golang(9001))
		require.Equal(s, "9000 9001", s.says("permits"))
		require.NoError(s, h.Release(s.Context()))
	})
}

// A permit without a lease, as Redisson has them by default, is held until somebody ends it.
func TestPermits_WithoutALease(t *testing.T) {
	eachRedisson(t, func(s *semaphores) {
		g := s.golang(1)
		require.Equal(s, "true", s.says("beginpermits", "n", "1"))
		java := s.says("enter")
		s.full(g)
		waiting := s.waits(g)
		info, err := s.registry().Inspect(s.Context(), "seat")
		require.NoError(s, err)
		require.Negative(s, info.Holders[0].Lease)
		require.Equal(s, java, info.Holders[0].Holder)
		require.NoError(s, s.registry().ForceUnlock(s.Context(), "seat"))
		h := s.comes(waiting)
		require.Equal(s, "0", s.says("leave", "ids", java))
		require.NoError(s, h.Release(s.Context()))
		require.Equal(s, "1 1", s.says("permits"))
	})
}

// What a process of Redisson had that has died is Go's when its lease is over, and a third of Go's, for Java's clock.
func TestPermits_DeadJava(t *testing.T) {
	t.Parallel()
	const lease, margin = 3 * time.Second, time.Second
	doomed := start(t, "doomed, with a permit", redissonRow)
	prefix := uniquePrefix()
	s := semaphoresOf(t, openOn(t, doomed, redissonRow, opening{prefix: prefix}), prefix)
	g := s.registry(lockregistry.WithLease(lease)).Semaphore("seat", 1)
	require.Equal(t, "true", s.says("beginpermits", "n", "1"))
	began := time.Now()
	require.NotEmpty(t, s.says("enter", "lease", peer.InMillis(lease)))
	entered := time.Now()
	require.NoError(t, doomed.Kill())
	got, other := s.waits(g), s.golang(1)
	for time.Since(began) < lease+margin-300*time.Millisecond {
		_, ok, err := other.TryAcquire(t.Context(), lockregistry.Lease(lease))
		require.NoError(t, err)
		require.False(t, ok)
		require.Empty(t, got)
		<-time.After(100 * time.Millisecond)
	}
	select {
	case h := <-got:
		require.Less(t, time.Since(entered), lease+margin+soon)
		require.NoError(t, h.Release(t.Context()))
	case <-time.After(callLimit):
		require.Fail(t, "a call in Go does not get the permit")
	}
	require.Equal(t, "1", server.Command(t, "GET", prefix+":seat"))
}

// crowd has both sides enter all the time, and counts in Redis how many are inside.
func (s *semaphores) crowd(number, each int, lasts, lease time.Duration) {
	s.Helper()
	const threads, goroutines = 3, 3
	require.Equal(s, "true", s.says("beginpermits", "n", strconv.Itoa(number)))
	counter, javasEach := s.prefix+" inside", each
	if s.java.dozes { // who asks for several at once sleeps until as many were released since
		javasEach = 1
	}
	var calls []*peer.Call
	for i := range threads {
		calls = append(calls, s.java.on(fmt.Sprint("crowd ", i)).send("crowd", with("seat", "for", peer.InMillis(lasts),
			"lease", peer.InMillis(lease), "work", "1", "most", strconv.Itoa(number), "n", strconv.Itoa(javasEach), "counter", counter)))
	}
	var entered atomic.Int32
	var all sync.WaitGroup
	until := time.Now().Add(lasts)
	add := func(n int) (inside int64) {
		inside, err := s.client.Do(context.Background(), s.client.B().Incrby().Key(counter).Increment(int64(n)).Build()).AsInt64()
		if err != nil {
			s.Error(err)
		}
		return inside
	}
	for range 2 {
		g := s.registry(lockregistry.WithLease(lease)).Semaphore("seat", number)
		for i := range goroutines {
			all.Go(func() {
				for round := i; time.Now().Before(until); round++ {
					n := 1 + round%each
					h, err := g.Acquire(s.Context(), lockregistry.Permits(n), lockregistry.Wait(callLimit))
					if err != nil {
						s.Error(err)
						return
					}
					if inside := add(n); inside > int64(number) {
						s.Errorf("%d are inside", inside)
					}
					<-time.After(time.Millisecond)
					add(-n)
					if err := h.Release(s.Context()); err != nil {
						s.Error(err)
					}
					entered.Add(1)
				}
			})
		}
	}
	all.Wait()
	javas := 0
	for _, call := range calls {
		n, err := strconv.Atoi(ended(s.T, call).Fields["value"])
		require.NoError(s, err)
		javas += n
	}
	s.Logf("Go was in %d times, Java %d times", entered.Load(), javas)
	require.Greater(s, entered.Load(), int32(3))
	require.Greater(s, javas, 3)
	require.Equal(s, fmt.Sprint(number, " ", number), s.says("permits"))
}

// Both sides together are never more than there are permits, and neither keeps the other one out.
func TestPermits_NeverMoreThanThereAre(t *testing.T) {
	for _, c := range []struct{ number, each int }{{1, 1}, {2, 1}, {4, 3}} {
		t.Run(fmt.Sprintf("%d, %d at once", c.number, c.each), func(t *testing.T) {
			eachRedisson(t, func(s *semaphores) { s.crowd(c.number, c.each, 4*time.Second, 30*time.Second) })
		})
	}
}

// A process of Redisson has a clock that is ahead, or behind, by nearly a third of the lease: it takes nobody's permit, and
// nobody takes its.
func TestPermits_WrongClock(t *testing.T) {
	t.Parallel()
	const lease = 9 * time.Second
	const most = lease/3 - 300*time.Millisecond
	const lasts = lease + lease/3 // of a hold with a bound: its last renewals are shorter than a lease
	for name, ahead := range map[string]time.Duration{"ahead": most, "behind": -most} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong, err := project.StartWrong("wrong clock, "+name, redissonRow.module,
				"org/redisson/RedissonPermitExpirableSemaphore", t.TempDir(), ahead)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, wrong.Close()) })
			prefix := uniquePrefix()
			s := semaphoresOf(t, openOn(t, wrong, redissonRow, opening{prefix: prefix}), prefix)
			s.crowd(2, 1, 4*time.Second, lease)
			g := s.registry(lockregistry.WithLease(lease)).Semaphore("seat", 2)
			java := s.says("enter", "lease", peer.InMillis(lasts))
			require.NotEmpty(t, java)
			for lasting := s.acquire(g, lockregistry.AtMost(lasts)); lasting.Remaining() > 300*time.Millisecond; {
				s.full(g)
				<-time.After(100 * time.Millisecond)
			}
		})
	}
}
