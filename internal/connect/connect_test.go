package connect_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func openAt(ctx context.Context, t *testing.T, address string) (rueidis.Client, error) {
	t.Helper()
	option, err := connect.Parse(address)
	require.NoError(t, err)
	opened, err := connect.Open(ctx, address, option)
	return opened.Client, err
}

func TestOpen(t *testing.T) {
	t.Parallel()
	free, secured := redistest.Start(t), redistest.Start(t, "--requirepass", "correct")
	for address, want := range map[string]string{
		"redis://app:secret@" + secured.Addr():                   "to redis://" + secured.Addr() + ": the user or",
		"redis://:secret@" + secured.Addr():                      "the user or the password is wrong",
		"redis://secret@" + secured.Addr():                       "the user or the password is wrong",
		"redis://" + secured.Addr():                              "asks for a password, but the address has none",
		"redis://:secret@127.0.0.1:1":                            "cannot connect to redis://127.0.0.1:1: nothing listens there",
		"redis://:secret@no.such.host.invalid":                   "to redis://no.such.host.invalid: the name of the host is not known",
		"redis://secret.invalid":                                 "to redis://***: the name of the host is not known",
		"rediss://:secret@" + free.Addr() + "?dial_timeout=1s":   "it does not speak TLS",
		"redis://:secret@" + free.Addr() + "/9999":               "index is out of range",
		"unix://:secret@/no/such/socket":                         "no such file",
		"redis://:secret@" + silent(t) + "?dial_timeout=1s":      "no answer in time",
		"redis://u:secret@" + greeting(t, "+OK POP3 ready\r\n"):  "it closes the connection: perhaps it is not Redis, or needs TLS",
		"redis://:secret@" + greeting(t, "-ERR busy\r\n"):        "not Redis",
		"redis://:secret@" + greeting(t, ""):                     "it closes the connection: perhaps it is not Redis",
		"redis://:secret@" + greeting(t, "* OK IMAP4 ready\r\n"): "what answers there is not Redis",
		"redis://u:secret@" + repeating(t, "-ERR no HELLO\r\n"):  "no HELLO",
	} {
		client, err := openAt(context.Background(), t, address)
		require.ErrorContains(t, err, want)
		require.Nil(t, client)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, address := range []string{"redis://" + free.Addr(), "redis://:correct@" + secured.Addr() + "/3"} {
		client, err := openAt(context.Background(), t, address)
		require.NoError(t, err)
		require.NoError(t, client.Do(context.Background(), client.B().Ping().Build()).Error())
		client.Close()
	}
}

// greeting is the address of a server that says something first, and closes the connection at the first command.
func greeting(t *testing.T, banner string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(banner))
			_, _ = c.Read(make([]byte, 4096))
			_ = c.Close()
		}
	}()
	return listener.Addr().String()
}

// The end of the context ends the wait for a silent server, and the connections that were begun are closed.
func TestOpen_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	client, err := openAt(ended, t, "redis://"+silent(t))
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, client)
}

// A client that is given up leaves nothing behind, although a server may never answer, and the limits are long. The cases are a
// single server, the nodes of a cluster, Sentinels, and a cluster where another node has answered.
func TestOpen_LeavesNothing(t *testing.T) { //nolint:paralleltest // it looks for goroutines
	answers := redistest.Start(t).Addr()
	before := goleak.IgnoreCurrent()
	const limits = "dial_timeout=1h&write_timeout=1h"
	for name, parameters := range map[string]string{
		"single":          "?" + limits,
		"cluster":         "?addr=" + silent(t) + "&" + limits,
		"sentinels":       "?master_set=m&addr=" + silent(t) + "&" + limits,
		"another answers": "?addr=" + answers + "&" + limits,
	} {
		t.Run(name, func(t *testing.T) {
			var open atomic.Int32
			server := served(t, func(conn net.Conn) {
				open.Add(1)
				defer open.Add(-1)
				_, _ = io.Copy(io.Discard, conn)
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			address := "redis://:secret@" + server + parameters
			option, err := connect.Parse(address)
			require.NoError(t, err)
			go func() {
				opened, err := connect.Open(ctx, address, option)
				assert.Nil(t, opened.Client)
				ended <- err
			}()
			if name != "another answers" { // which ends it
				eventually(t, "it has connected", func() bool { return open.Load() == 1 })
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
			} else {
				require.ErrorContains(t, <-ended, "cluster support disabled")
			}
			cancel()
			eventually(t, "no connection", func() bool { return open.Load() == 0 })
		})
	}
	var left error
	eventually(t, "no goroutine", func() bool {
		left = goleak.Find(before, goleak.IgnoreAnyFunction("github.com/lockregistry/lockregistry/internal/connect_test.served.func2"))
		return left == nil
	})
}

// A client that has connected stays connected when the context ends later, and can connect anew.
func TestOpen_OutlivesTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	client, err := openAt(ctx, t, "redis://"+redistest.Start(t).Addr())
	require.NoError(t, err)
	defer client.Close()
	cancel()
	require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error())
	require.NoError(t, client.Dedicated(func(own rueidis.DedicatedClient) error {
		return own.Do(t.Context(), own.B().Ping().Build()).Error()
	}))
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time:", what)
		}
	}
}

// silent is the address of a server that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	return served(t, func(net.Conn) {})
}

// repeating is the address of a server that gives the same reply to each command.
func repeating(t *testing.T, reply string) string {
	t.Helper()
	return served(t, func(conn net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(strings.Repeat(reply, strings.Count(string(buffer[:n]), "*"))))
		}
	})
}

func served(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go serve(conn)
		}
	}()
	return socket.Addr().String()
}
