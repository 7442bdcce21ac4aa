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
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
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

func watching(t *testing.T, server string) *redistest.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(server)
	require.NoError(t, err)
	s := redistest.StartSentinel(t)
	s.Command(t, "SENTINEL", "MONITOR", "main", host, port, "1")
	return s
}

func openMaster(ctx context.Context, t *testing.T, address string) error {
	t.Helper()
	option, err := connect.Parse(address)
	require.NoError(t, err)
	_, err = connect.OpenMaster(ctx, address, option)
	require.Error(t, err)
	return err
}

// A Sentinel answers, but cannot hold locks: the address lacks the name of the master. The same happens if several Sentinels
// are taken for a cluster.
func TestOpenMaster_ASentinelWithoutTheMaster(t *testing.T) {
	t.Parallel()
	s := watching(t, "127.0.0.1:1")
	err := openMaster(t.Context(), t, "redis://"+s.Addr())
	require.EqualError(t, err, "cannot connect to redis://"+s.Addr()+
		": it is a Sentinel: name the master that it watches, as in redis://host:26379?master_set=NAME")
	require.NotErrorIs(t, fault.Classify(err), fault.Unavailable)
	err = openMaster(t.Context(), t, "redis://"+s.Addr()+"?addr="+s.Addr())
	require.ErrorContains(t, err, ": several addresses are those of a cluster, or, with master_set=NAME, of Sentinels: unknown ")
	require.NotErrorIs(t, fault.Classify(err), fault.Unavailable)
}

// Sentinels may name a server that can be reached only from where they are. The error names this server, since the Sentinel's
// own address is right.
func TestOpen_AServerThatSentinelsName(t *testing.T) {
	t.Parallel()
	s := watching(t, "127.0.0.1:1")
	address := "redis://" + s.Addr() + "?master_set=main"
	err := openMaster(t.Context(), t, address)
	require.EqualError(t, err, "cannot connect to redis://"+s.Addr()+", where a Sentinel names 127.0.0.1:1: nothing listens there")
	require.ErrorIs(t, fault.Classify(err), fault.Unavailable)

	hangs := silent(t)
	s = watching(t, hangs)
	ctx, end := context.WithCancel(t.Context())
	option, err := connect.Parse("redis://" + s.Addr() + "?master_set=main")
	require.NoError(t, err)
	option.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if to == hangs {
			end()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return d.DialContext(ctx, "tcp", to)
	}
	_, err = connect.Open(ctx, "redis://"+s.Addr()+"?master_set=main", option)
	require.EqualError(t, err, "cannot connect to redis://"+s.Addr()+", where a Sentinel names "+hangs+": context canceled")
}

// The password of the address is not for Sentinels.
func TestOpen_ASentinelWithAPassword(t *testing.T) {
	t.Parallel()
	s := watching(t, redistest.Start(t, "--requirepass", "s3cret").Addr())
	s.Command(t, "ACL", "SETUSER", "default", "resetpass", ">other")
	err := openMaster(t.Context(), t, "redis://:s3cret@"+s.Addr()+"?master_set=main")
	require.EqualError(t, err, "cannot connect to redis://"+s.Addr()+": a server or a Sentinel asks for a password: "+
		"that of the address is for servers, that for Sentinels is Sentinel.Password in the options of the client, "+
		"for lockreg LOCKREG_SENTINEL_PASSWORD")
}
