package connect_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func open(ctx context.Context, t *testing.T, address string) (rueidis.Client, error) {
	t.Helper()
	option, err := connect.Parse(address)
	require.NoError(t, err)
	return connect.Open(ctx, connect.Show(address), option)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	free, secured := redistest.Start(t), redistest.Start(t, "--requirepass", "correct")
	for address, want := range map[string]string{
		"redis://app:secret@" + secured.Addr():                  "to redis://app:***@" + secured.Addr() + ": the user or",
		"redis://:secret@" + secured.Addr():                     "the user or the password is wrong",
		"redis://secret@" + secured.Addr():                      "the user or the password is wrong",
		"redis://" + secured.Addr():                             "asks for a password, and the address has none",
		"redis://:secret@127.0.0.1:1":                           "cannot connect to redis://127.0.0.1:1: nothing listens there",
		"redis://:secret@no.such.host.invalid":                  "the name of the host is not known",
		"rediss://:secret@" + free.Addr() + "?dial_timeout=1s":  "it does not speak TLS",
		"redis://:secret@" + free.Addr() + "/9999":              "index is out of range",
		"unix://:secret@/no/such/socket":                        "no such file",
		"redis://:secret@" + silent(t) + "?dial_timeout=1s":     "no answer in time",
		"redis://u:secret@" + repeating(t, "-ERR no HELLO\r\n"): "no HELLO",
	} {
		client, err := open(context.Background(), t, address)
		require.ErrorContains(t, err, want)
		require.Nil(t, client)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, address := range []string{"redis://" + free.Addr(), "redis://:correct@" + secured.Addr() + "/3"} {
		client, err := open(context.Background(), t, address)
		require.NoError(t, err)
		require.NoError(t, client.Do(context.Background(), client.B().Ping().Build()).Error())
		client.Close()
	}
}

// The context ends the waiting for a server that is silent, and what was begun is closed.
func TestOpen_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	client, err := open(ended, t, "redis://"+silent(t))
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, client)
}

// A server may repeat the command that it does not know, with the password in it. Neither the text nor what it wraps has it.
func TestOpen_ErrorThatRepeatsThePassword(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"u:s3cret", ":s3cret", "s3cret"} {
		client, err := open(context.Background(), t, "redis://"+user+"@"+
			repeating(t, "-ERR no command with args beginning with: `AUTH` `s3cret`\r\n"))
		require.ErrorContains(t, err, "not shown")
		require.Nil(t, client)
		var reply *rueidis.RedisError
		require.NotErrorAs(t, err, &reply)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// silent is the address of one who listens and never answers.
func silent(t *testing.T) string {
	t.Helper()
	return served(t, func(net.Conn) {})
}

// repeating is the address of one who gives the same reply to each command.
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
