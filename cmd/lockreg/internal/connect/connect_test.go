package connect_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/connect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                          "no address of Redis: give --url, or set REDIS_URL",
		"localhost:6379":            "has no scheme",
		"http://localhost":          `the unknown scheme "http"`,
		"redis://:se/cret@host":     "cannot be read",
		"redis://:se%cret@host":     "cannot be read",
		"redis://host/secret/other": "cannot be read",
		"redis://user:12#cret@host": "cannot be read",
		"redis://user:12?cret@host": "cannot be read",
		"redis://:12/3?cret@host":   "cannot be read",
	} {
		_, err := connect.Parse(url)
		require.ErrorIs(t, err, connect.ErrURL, url)
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "cret")
	}
	option, err := connect.Parse("rediss://app:secret@host/2?dial_timeout=1s&client_name=me")
	require.NoError(t, err)
	assert.Equal(t, []string{"host:6379"}, option.InitAddress)
	assert.Equal(t, "me", option.ClientName)
	assert.Equal(t, time.Second, option.Dialer.Timeout)
	assert.True(t, option.DisableCache)
	option, err = connect.Parse("redis://host")
	require.NoError(t, err)
	assert.Equal(t, "lockreg", option.ClientName)
	assert.Equal(t, 5*time.Second, option.Dialer.Timeout)
	assert.Equal(t, 5*time.Second, option.ConnWriteTimeout)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	open, secured := redistest.Start(t), redistest.Start(t, "--requirepass", "correct")
	for url, want := range map[string]string{
		"redis://app:secret@" + secured.Addr():                 "to redis://app:***@" + secured.Addr() + ": the user or",
		"redis://:secret@" + secured.Addr():                    "the user or the password is wrong",
		"redis://" + secured.Addr():                            "asks for a password, and the address has none",
		"redis://:secret@127.0.0.1:1":                          "cannot connect to redis://127.0.0.1:1: nothing listens there",
		"redis://:secret@no.such.host.invalid":                 "the name of the host is not known",
		"rediss://:secret@" + open.Addr() + "?dial_timeout=1s": "it does not speak TLS",
		"redis://:secret@" + open.Addr() + "/9999":             "index is out of range",
		"unix://:secret@/no/such/socket":                       "no such file",
		"redis://:secret@" + silent(t) + "?write_timeout=1s":   "no answer in time",
	} {
		client, err := connect.Open(context.Background(), url)
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, connect.ErrURL)
		assert.Nil(t, client)
		assert.NotContains(t, err.Error(), "secret")
	}
	for _, url := range []string{"redis://" + open.Addr(), "redis://:correct@" + secured.Addr() + "/3"} {
		client, err := connect.Open(context.Background(), url)
		require.NoError(t, err)
		require.NoError(t, client.Do(context.Background(), client.B().Ping().Build()).Error())
		client.Close()
	}

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := connect.Open(ended, "redis://"+silent(t))
	require.ErrorIs(t, err, context.Canceled)
}

// silent is the address of one who listens and never answers.
func silent(t *testing.T) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	return socket.Addr().String()
}
