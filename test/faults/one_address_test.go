package faults_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// address leads new connections to a master, and leaves old ones where they are, as a Kubernetes Service or a proxy does. There
// is a second server, the replica.
type address struct {
	*netfault.Proxy
	t               *testing.T
	master, replica *redistest.Server
}

func newAddress(t *testing.T) *address {
	t.Helper()
	const atOnce = "--repl-diskless-sync-delay"
	a := &address{t: t, master: redistest.Start(t, atOnce, "0"), replica: redistest.Start(t, atOnce, "0")}
	a.replicate(a.replica, a.master)
	a.await("the replica has the data", func() bool {
		return strings.Contains(a.replica.Command(t, "INFO", "replication"), "master_link_status:up")
	})
	proxy, err := netfault.Listen(a.master.Addr(), func(args []string) string {
		switch {
		case args[0] == "QUIT":
			return quits
		case args[0] != "HELLO":
			return ""
		case len(args) == 1:
			return asksRole
		default:
			return connects
		}
	})
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	a.Proxy = proxy
	return a
}

// The names of the clients' commands.
const (
	connects = "connects"
	asksRole = "asks for the role"
	quits    = "quits"
)

func (a *address) count(name string) int { return len(a.Seen(netfault.Match{Name: name})) }

func (a *address) replicate(replica, master *redistest.Server) {
	a.t.Helper()
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(a.t, err)
	replica.Command(a.t, "REPLICAOF", host, port)
}

// promote makes the replica the master, and the master its replica. The address leads to the new master only later.
func (a *address) promote() { a.promoteThen(func() {}) }

// moves does the same, but the address leads to the new master as soon as it is one: it never leads to a replica.
func (a *address) moves() { a.promoteThen(func() { a.Lead(a.replica.Addr()) }) }

func (a *address) promoteThen(lead func()) {
	a.t.Helper()
	a.replica.Command(a.t, "REPLICAOF", "NO", "ONE")
	lead()
	a.replicate(a.master, a.replica)
	a.master, a.replica = a.replica, a.master
}

func (a *address) await(what string, happened func() bool) {
	a.t.Helper()
	require.True(a.t, redistest.Await(20*time.Second, happened), what)
}

// awaitNoOld is await for what shows once the old connections are used. A busy machine may make the old master seem silent just
// when the address moves: then commands go over a fresh connection for half a minute, and no reply shows where the other
// connections lead.
func (a *address) awaitNoOld(what string, happened func() bool) {
	a.t.Helper()
	require.True(a.t, redistest.Await(50*time.Second, happened), what)
}

// registry makes a registry on the address.
type registry func(opts ...lockregistry.Option) *lockregistry.Registry

// ways are the clients: the one that Open makes, with one connection for commands, and clients with one, two and four.
func (a *address) ways() map[string]registry {
	a.t.Helper()
	all := map[string]registry{"Open": func(opts ...lockregistry.Option) *lockregistry.Registry {
		r, err := lockregistry.Open(a.t.Context(), "redis://"+a.Addr(), "orders", opts...)
		require.NoError(a.t, err)
		a.t.Cleanup(func() { require.NoError(a.t, r.Close()) })
		return r
	}}
	for name, multiplex := range map[string]int{"one wire": -1, "two wires": 1, "four wires": 2} {
		all[name] = func(opts ...lockregistry.Option) *lockregistry.Registry {
			client, err := kit.NewClient(rueidis.ClientOption{
				InitAddress: []string{a.Addr()}, ForceSingleClient: true, DisableCache: true, PipelineMultiplex: multiplex,
			})
			require.NoError(a.t, err)
			a.t.Cleanup(client.Close)
			_, back := client.Dedicate() // two connections that something else has used
			_, back2 := client.Dedicate()
			back()
			back2()
			return kit.OpenOn(a.t, client, opts...)
		}
	}
	return all
}

// twoWays runs a test with the client that Open makes and with another one, each on its own servers. Together the tests cover
// all clients.
func twoWays(t *testing.T, another string, test func(t *testing.T, a *address, open registry)) {
	t.Helper()
	t.Parallel()
	for _, name := range []string{"Open", another} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAddress(t)
			test(t, a, a.ways()[name])
		})
	}
}

// warm has a registry send enough commands for all its connections to have been made.
func warm(t *testing.T, r *lockregistry.Registry) {
	t.Helper()
	for i := range 100 {
		section(t, r, fmt.Sprint("warm", i))
	}
}

// section returns how long an empty section of a path took. It repeats a call that fails because its reply was late on a busy
// machine; no call may fail for another reason.
func section(t *testing.T, r *lockregistry.Registry, path string) (took time.Duration) {
	t.Helper()
	const patience = 20 * time.Second
	for first := time.Now(); ; {
		began := time.Now()
		err := r.Do(t.Context(), path, func(context.Context) error { return nil })
		late := kit.TookLong(err) || err != nil && time.Since(began) >= time.Second // there was no time left for another try
		if late && time.Since(first) < patience {
			continue
		}
		require.NoError(t, err)
		return time.Since(began)
	}
}

// soon is half a second and two round trips, with ten times as much for a busy machine. Without the fix a call would take as
// long as a connection may live.
const soon = 5 * time.Second

// When the address leads to another master, calls continue there, and none fails. A hold is renewed there, and a waiting call
// gets the lock as soon as it is free.
func TestOneAddress_ANewMaster(t *testing.T) {
	twoWays(t, "four wires", func(t *testing.T, a *address, open registry) {
		const lease = 2 * soon // so that a busy machine loses no hold in the meantime
		locks, other := open(lockregistry.WithLease(lease)), open(lockregistry.WithLease(lease))
		warm(t, locks)
		warm(t, other)
		hold, err := locks.Acquire(t.Context(), "held")
		require.NoError(t, err)
		lost := hold.Context(t.Context())
		waited := make(chan error, 1)
		go func() {
			next, err := other.Acquire(t.Context(), "held")
			if err == nil {
				err = kit.UnlessLate(next.Release(t.Context()))
			}
			waited <- err
		}()
		a.await("it waits", func() bool { return a.replica.Command(t, "EXISTS", "orders:{orders:held}:waiters") == "1" })

		a.moves()
		for i := range 100 {
			require.Less(t, section(t, locks, fmt.Sprint("after", i)), soon)
		}
		renewed := func() bool {
			left, err := strconv.Atoi(a.master.Command(t, "PTTL", "orders:held"))
			return err == nil && left > int((lease*9/10).Milliseconds())
		}
		a.await("the lease runs on", func() bool { return !renewed() })
		a.await("it is renewed", renewed)
		require.NoError(t, lost.Err())
		released := time.Now()
		require.NoError(t, kit.UnlessLate(hold.Release(t.Context())))
		require.NoError(t, <-waited)
		require.Less(t, time.Since(released), soon)

		i := 0
		a.awaitNoOld("no old connection is left", func() bool {
			i++
			section(t, locks, fmt.Sprint("later", i))
			section(t, other, fmt.Sprint("later", i))
			return strings.Count(a.replica.Command(t, "CLIENT", "LIST", "TYPE", "normal"), "id=") == 1 // the connection that asks
		})
	})
}

// After a silence, commands go over a fresh connection, which stays with the old master, too, when the address moves. A call
// that the old master refuses does not fail: it is sent over a newer connection.
func TestOneAddress_ANewMasterAfterASilence(t *testing.T) {
	twoWays(t, "two wires", func(t *testing.T, a *address, open registry) {
		locks := open()
		warm(t, locks)
		a.master.Freeze()
		require.ErrorIs(t, locks.Do(t.Context(), "silent", func(context.Context) error { return nil }), lockregistry.ErrUnavailable)
		a.master.Thaw()
		for i := range 10 {
			section(t, locks, fmt.Sprint("before", i))
		}
		for range 3 {
			a.moves()
			for i := range 10 {
				require.Less(t, section(t, locks, fmt.Sprint("after", i)), soon)
			}
		}
	})
}

// While the address leads to a replica, calls fail. Few connections are made, and no existing one is closed. Half a second
// after the address leads to a master, calls succeed.
func TestOneAddress_AReplica(t *testing.T) {
	twoWays(t, "one wire", func(t *testing.T, a *address, open registry) {
		locks := open()
		warm(t, locks)
		a.promote()
		before := a.count(connects)
		const lasts = 2 * time.Second
		failed := 0
		for began := time.Now(); time.Since(began) < lasts; failed++ {
			err := locks.Do(t.Context(), "42", func(context.Context) error { return nil })
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
			if !kit.TookLong(err) {
				require.ErrorContains(t, err, "READONLY")
			}
		}
		made := a.count(connects) - before
		t.Log(failed, "calls failed,", made, "connections made")
		require.Less(t, made, 20)
		require.Empty(t, a.Seen(netfault.Match{Name: quits}))

		a.Lead(a.master.Addr())
		for led := time.Now(); locks.Do(t.Context(), "42", func(context.Context) error { return nil }) != nil; {
			require.Less(t, time.Since(led), soon)
		}
	})
}

// A waiting call moves to the new master although it has no reason to write, and hears nothing from the old one, which is
// nobody's replica. So it gets a lock that is free there.
func TestOneAddress_AWaitingCallMoves(t *testing.T) {
	twoWays(t, "two wires", func(t *testing.T, a *address, open registry) {
		locks, other := open(), open()
		hold, err := locks.Acquire(t.Context(), "held")
		require.NoError(t, err)
		waited := make(chan error, 1)
		go func() {
			next, err := other.Acquire(t.Context(), "held")
			if err == nil {
				err = kit.UnlessLate(next.Release(t.Context()))
			}
			waited <- err
		}()
		a.await("it waits", func() bool { return a.replica.Command(t, "EXISTS", "orders:{orders:held}:waiters") == "1" })
		a.await("the master has said that it is one", func() bool { return a.count(asksRole) > 1 })
		a.promote()
		a.replica.Command(t, "REPLICAOF", "127.0.0.1", "1")
		a.Lead(a.master.Addr())
		a.awaitNoOld("it listens at the new master", func() bool {
			return strings.Contains(a.master.Command(t, "PUBSUB", "CHANNELS"), "orders-channel@")
		})
		released := time.Now()
		require.NoError(t, kit.UnlessLate(hold.Release(t.Context())))
		require.NoError(t, <-waited)
		require.Less(t, time.Since(released), soon)
	})
}
