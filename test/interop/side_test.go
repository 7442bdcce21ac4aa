package interop

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

var opened atomic.Int64

// side is a registry of one library in a process of its own, used by one of its threads with one kind of lock.
type side struct {
	library

	peer     *peer.Peer
	prefix   string
	registry string
	lease    time.Duration
	thread   string
	kind     string // of lock, as in library
}

// reader is the same thread with the read locks of the registry's read-write locks.
func (s *side) reader() *side { return s.of("read") }

// writer is the same with the write locks.
func (s *side) writer() *side { return s.of("write") }

// of is the same thread with another kind of lock.
func (s *side) of(kind string) *side { return s.with(func(c *side) { c.kind = kind }) }

// on is another thread.
func (s *side) on(thread string) *side { return s.with(func(c *side) { c.thread = thread }) }

func (s *side) with(change func(*side)) *side {
	changed := *s
	change(&changed)
	return &changed
}

// opening says how a registry is configured. The zero value leaves everything to the library.
type opening struct {
	prefix    string
	lease     time.Duration
	renewal   bool
	eager     bool
	unhurried bool
	at        *redistest.Server // nil: the one that the tests share
}

// open opens a registry on the library's shared process, until the test ends.
func open(t *testing.T, lib library, o opening) *side {
	t.Helper()
	return openOn(t, peers.get(t, lib, 1), lib, o)
}

func openOn(t *testing.T, p *peer.Peer, lib library, o opening) *side {
	t.Helper()
	s := &side{
		library:  lib,
		peer:     p,
		prefix:   o.prefix,
		registry: fmt.Sprintf("r%d", opened.Add(1)),
		lease:    o.lease,
		thread:   "main",
		kind:     lib.kind,
	}
	at := o.at
	if at == nil {
		at = server
	}
	fields := peer.Fields{"port": port(t, at), "prefix": o.prefix}
	maps.Copy(fields, lib.settings)
	if o.lease != 0 {
		fields["lease"] = peer.InMillis(o.lease)
	}
	if o.renewal && !lib.watchdog {
		fields["renewal"] = "true"
	}
	if o.eager {
		maps.Copy(fields, lib.eager)
	}
	if o.unhurried {
		maps.Copy(fields, lib.unhurried)
	}
	_, err := s.do(t, "open", fields)
	require.NoError(t, err)
	t.Cleanup(func() {
		// The test may have killed the process; a lock that is still held is left to its lease.
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		_, _ = s.peer.Do(ctx, "main", "close", peer.Fields{"registry": s.registry})
	})
	return s
}

// uniquePrefix returns a prefix that no other test uses.
func uniquePrefix() string { return "interop" + strconv.FormatInt(opened.Add(1), 10) }

func (s *side) key(path string) string { return s.prefix + ":" + path }

// do has the thread carry out a command on this registry.
func (s *side) do(t *testing.T, command string, fields peer.Fields) (peer.Reply, error) {
	t.Helper()
	return wait(t, s.send(command, fields))
}

// send makes the thread's name unique to the registry, so that tests that share a process do not wait for each other.
func (s *side) send(command string, fields peer.Fields) *peer.Call {
	all := peer.Fields{"registry": s.registry}
	if s.kind != "" {
		all["kind"] = s.kind
	}
	maps.Copy(all, fields)
	return s.peer.Send(s.threadName(), command, all)
}

func (s *side) threadName() string { return s.registry + " " + s.thread }

// wait waits for a call that should end soon.
func wait(t *testing.T, call *peer.Call) (peer.Reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	return call.Wait(ctx)
}

// ended is wait for a call that should succeed.
func ended(t *testing.T, call *peer.Call) peer.Reply {
	t.Helper()
	reply, err := wait(t, call)
	require.NoError(t, err)
	return reply
}

// with adds fields to the path that a command is about.
func with(path string, more ...string) peer.Fields {
	fields := peer.Fields{"path": path}
	for i := 0; i < len(more); i += 2 {
		fields[more[i]] = more[i+1]
	}
	return fields
}

func (s *side) lock(t *testing.T, path string, more ...string) peer.Reply {
	t.Helper()
	return ended(t, s.startLock(path, more...))
}

func (s *side) startLock(path string, more ...string) *peer.Call {
	return s.send("lock", with(path, more...))
}

// lockToExpire takes a lock for the registry's lease. Nothing renews it.
func (s *side) lockToExpire(t *testing.T, path string) peer.Reply {
	t.Helper()
	if s.leases {
		return s.lock(t, path, "lease", peer.InMillis(s.lease))
	}
	return s.lock(t, path)
}

func (s *side) tryLock(t *testing.T, path string, more ...string) bool {
	t.Helper()
	return ended(t, s.send("trylock", with(path, more...))).Fields["value"] == "true"
}

func (s *side) unlock(t *testing.T, path string) peer.Reply {
	t.Helper()
	return ended(t, s.send("unlock", with(path)))
}

// requireFailure fails the test unless err is the known failure of the library.
func requireFailure(t *testing.T, known peer.RemoteError, err error) {
	t.Helper()
	var failure *peer.RemoteError
	require.ErrorAs(t, err, &failure)
	require.Equal(t, known.Class, failure.Class, failure.Message)
	require.Contains(t, failure.Message, known.Message)
}

// startWaiting makes a side wait for a held lock. It returns once the side has seen that it must wait, and has its place among
// the waiters.
func (s *side) startWaiting(t *testing.T, watch *monitor.Monitor, path string) *peer.Call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	mark := watch.Mark()
	call := s.startLock(path)
	_, err := watch.Await(ctx, mark, s.tries, func(c monitor.Command) bool {
		return strings.HasPrefix(c.Words[0], "EVAL") && c.Mentions(s.key(path)) && (!s.queues || c.Mentions("enqueue"))
	})
	require.NoError(t, err, "the waiter never asked Redis")
	requireWaiting(t, call)
	return call
}

// awaitSleep waits until the thread sleeps, where that matters, see library.sleepsIn.
func (s *side) awaitSleep(t *testing.T) {
	t.Helper()
	if s.sleepsIn == "" {
		return
	}
	watcher := s.on("watcher of " + s.thread)
	sleeps := func() bool {
		reply, err := wait(t, watcher.send("sleeps", peer.Fields{"of": s.threadName(), "in": s.sleepsIn}))
		return err == nil && reply.Fields["value"] == "true"
	}
	require.Eventually(t, sleeps, callLimit, time.Millisecond, "the waiter never slept")
}

// requireWaiting checks that a waiter still waits.
func requireWaiting(t *testing.T, waiting *peer.Call) {
	t.Helper()
	select {
	case <-waiting.Done():
		_, err := wait(t, waiting)
		require.Failf(t, "the waiter does not wait", "error: %v", err)
	default:
	}
}

// awaitKey waits until somebody holds the lock.
func awaitKey(t *testing.T, key string) {
	t.Helper()
	held := func() bool { return server.Command(t, "EXISTS", key) == "1" }
	require.Eventually(t, held, callLimit, time.Millisecond, "nobody locked %s", key)
}

// requireKey checks whether the lock's key is in Redis.
func requireKey(t *testing.T, key string, there bool) {
	t.Helper()
	want := map[bool]string{true: "1", false: "0"}[there]
	require.Equal(t, want, server.Command(t, "EXISTS", key), "EXISTS %s", key)
}

// pttl returns what is left of a lease.
func pttl(t *testing.T, key string) time.Duration {
	t.Helper()
	millis, err := strconv.Atoi(server.Command(t, "PTTL", key))
	require.NoError(t, err)
	return time.Duration(millis) * time.Millisecond
}

// roles are the two sides of a test.
type roles struct{ holder, waiter library }

func (r roles) String() string { return r.holder.name + " then " + r.waiter.name }

// bothWays makes either side of each pair the holder, if that suits the libraries.
func bothWays(pairs []pair, suits func(roles) bool) (all []roles) {
	for _, p := range pairs {
		for _, r := range []roles{{p.golang, p.java}, {p.java, p.golang}} {
			if suits(r) {
				all = append(all, r)
			}
		}
	}
	return all
}

func always(roles) bool { return true }

func holderTakesLeases(r roles) bool { return r.holder.leases }

func holderRenewsByItself(r roles) bool { return r.holder.renewal }

// holderIsNew is for tests that kill the holder. A JVM takes long to start, and the format tests show what each version leaves
// behind: so only the newest ones are killed, unless -all is set.
func holderIsNew(r roles) bool {
	return r.holder.module == "" || *all || r.holder.module == peer.Spring71 || r.holder.module == peer.Redisson
}
