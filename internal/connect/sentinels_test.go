package connect_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
)

// A connection to a Sentinel has the user, the limits and the encryption of Sentinels, not those of servers, and dials as the
// client does.
func TestSentinels(t *testing.T) {
	encrypted := &tls.Config{ServerName: "sentinel"}
	refused := errors.New("refused")
	of := rueidis.ClientOption{
		InitAddress: []string{"a:1", "b:2"}, Username: "u", Password: "p", ClientName: "n", SelectDB: 3, AlwaysRESP2: true,
		Dialer: net.Dialer{Timeout: time.Hour}, TLSConfig: &tls.Config{ServerName: "server"}, ConnWriteTimeout: time.Minute,
		DialFn: func(string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, refused },
		Sentinel: rueidis.SentinelOption{
			MasterSet: "main", Username: "su", Password: "sp", ClientName: "sn", TLSConfig: encrypted,
			Dialer: net.Dialer{Timeout: time.Second},
		},
	}
	o := connect.Sentinels(&of)
	require.Equal(t, of.InitAddress, o.InitAddress)
	require.Equal(t, []string{"su", "sp", "sn"}, []string{o.Username, o.Password, o.ClientName})
	require.Equal(t, time.Second, o.Dialer.Timeout)
	require.Equal(t, time.Minute, o.ConnWriteTimeout)
	require.Same(t, encrypted, o.TLSConfig)
	require.Zero(t, o.SelectDB)
	require.True(t, o.AlwaysRESP2 && o.ForceSingleClient && o.DisableCache)
	require.Zero(t, o.Sentinel, "it is a client of one server")
	_, err := o.DialCtxFn(context.Background(), "a:1", &o.Dialer, nil)
	require.ErrorIs(t, err, refused)
}
