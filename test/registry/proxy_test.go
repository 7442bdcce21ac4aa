package registry_test

import (
	"net"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// proxied returns the address of a proxy in front of a server, which gives some commands another fate.
func proxied(t *testing.T, server *redistest.Server, decide func(netfault.Command) netfault.Fate) string {
	t.Helper()
	p, err := netfault.Listen(server.Addr(), func([]string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(p.Close)
	p.Decide(decide)
	return p.Addr()
}

// withoutRESP3 answers as Envoy does.
func withoutRESP3(c netfault.Command) netfault.Fate {
	if strings.HasPrefix(strings.Join(c.Args, " "), "HELLO 3") {
		return kit.Refused("NOPROTO unsupported protocol version")
	}
	return netfault.Fate{}
}

// Behind a proxy that refuses RESP3 the client of Open speaks RESP2, and the log says so. With another client the error of each
// call says what to set.
func TestOpen_WithoutRESP3(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		address := proxied(w.T, w.Server, withoutRESP3)
		log := &kit.Journal{}
		r, err := lockregistry.Open(w.Context(), "redis://"+address, "orders", log.Option())
		require.NoError(w, err)
		l := r.Obtain("42")
		w.Lock(l)
		waits := w.Goroutine().Starts(w.Registry().Obtain("42"))
		w.Await("it waits", func() bool { return w.Do("EXISTS", "orders:{orders:42}:waiters") == "1" })
		w.Unlock(l)
		require.NoError(w, <-waits)
		require.NoError(w, r.Close())
		require.Len(w, log.Lines("level=WARN", "refuses RESP3"), 1)

		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true,
		})
		require.ErrorContains(w, err, "NOPROTO")
		defer client.Close()
		other := w.RegistryOn(client)
		err = other.Obtain("42").Lock(w.Context())
		require.ErrorContains(w, err, "set AlwaysRESP2")
		require.Empty(w, kit.SentinelsOf(err), "it does not pass")
	})
}

// A proxy that asks for a password does not read the one in HELLO, and refuses all but AUTH until it has been given.
func TestOpen_WithoutRESP3AndWithAPassword(t *testing.T) {
	t.Parallel()
	kit.OnServers(t, func(t *testing.T, binary string) {
		server := redistest.StartBinary(t, binary, "--requirepass", "secret")
		address := proxied(t, server, func(c netfault.Command) netfault.Fate {
			if strings.HasPrefix(strings.Join(c.Args, " "), "HELLO 3") {
				return kit.Refused("NOAUTH Authentication required.")
			}
			return netfault.Fate{}
		})
		r, err := lockregistry.Open(t.Context(), "redis://:secret@"+address, "orders")
		require.NoError(t, err)
		l := r.Obtain("42")
		require.NoError(t, l.Lock(t.Context()))
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, r.Close())
		for credentials, says := range map[string]string{"": "the address has none", ":wrong@": "the password is wrong"} {
			_, err = lockregistry.Open(t.Context(), "redis://"+credentials+address, "orders")
			require.ErrorContains(t, err, says)
			require.Empty(t, kit.SentinelsOf(err), "it does not pass")
		}
	})
}

// A proxy such as Twemproxy closes the connection at a command that it does not know. The error is not about TLS, and is
// lasting.
func TestOpen_WithoutHello(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		address := proxied(w.T, w.Server, func(c netfault.Command) netfault.Fate {
			if c.Name == "HELLO" || c.Name == "CLIENT" {
				return netfault.Fate{Cut: netfault.CutRequest(0)}
			}
			return netfault.Fate{}
		})
		for _, more := range []string{"", "?addr=" + address, "?master_set=m"} {
			_, err := lockregistry.Open(w.Context(), "redis://"+address+more, "orders")
			require.ErrorContains(w, err, "a proxy without HELLO", more)
			require.NotContains(w, err.Error(), "TLS")
			require.Empty(w, kit.SentinelsOf(err))
		}
	})
}

// A server without room for another client says so, and so does the error, which is a passing one.
func TestOpen_TooManyClients(t *testing.T) {
	t.Parallel()
	kit.OnServers(t, func(t *testing.T, binary string) {
		server := redistest.StartBinary(t, binary, "--maxclients", "5")
		for accepted := 0; accepted < 5; { // while the connection of the server's start is being closed, one is refused
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Addr())
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			_, _ = c.Write([]byte("PING\r\n")) // a refused connection may be closed already
			reply := make([]byte, 1)
			if _, _ = c.Read(reply); reply[0] == '+' {
				accepted++
			}
		}
		for range 20 {
			_, err := lockregistry.Open(t.Context(), "redis://"+server.Addr(), "orders")
			require.ErrorContains(t, err, "max number of clients reached")
			require.NotContains(t, err.Error(), "TLS")
			require.Equal(t, []error{lockregistry.ErrUnavailable}, kit.SentinelsOf(err), err)
		}
	})
}
