package connect_test

import (
	"crypto/tls"
	"strconv"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// opensTLS opens a client with TLS that trusts a certificate, and closes it.
func opensTLS(t *testing.T, address string, trusts redistest.Certificate, change func(o *rueidis.ClientOption)) error {
	t.Helper()
	option, err := connect.Parse(address)
	require.NoError(t, err)
	option.TLSConfig.RootCAs = trusts.Roots
	change(&option)
	o, err := connect.OpenMaster(t.Context(), address, option)
	if err == nil {
		o.Client.Close()
	}
	return err
}

// shows returns an option that makes a client show certificates to servers.
func shows(certificates ...redistest.Certificate) func(o *rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		for _, c := range certificates {
			o.TLSConfig.Certificates = append(o.TLSConfig.Certificates, c.Pair)
		}
	}
}

const needsCertificate = "it asks for a certificate of the client: set TLSConfig.Certificates in the options of the client, " +
	"as with WithClientOption: remote error: tls: certificate required"

// A server asks for a certificate of the client, as Redis does by default. With TLS 1.3 it says so only when the client has
// begun to write, and then closes the connection, so the message may be lost.
func TestOpen_AServerThatAsksForACertificate(t *testing.T) {
	t.Parallel()
	own, other, port := redistest.NewCertificate(t), redistest.NewCertificate(t), strconv.Itoa(redistest.FreePort(t))
	redistest.Start(t, own.Args(port)...)
	address := "rediss://127.0.0.1:" + port
	for range 20 {
		err := opensTLS(t, address, own, shows())
		require.EqualError(t, err, "cannot connect to "+address+": "+needsCertificate)
		require.ErrorIs(t, fault.Classify(err), fault.Unavailable)
	}
	require.ErrorContains(t, opensTLS(t, address, own, func(o *rueidis.ClientOption) { o.TLSConfig.MaxVersion = tls.VersionTLS12 }),
		": it refuses the connection; perhaps it asks for a certificate of the client: ")
	for range 20 {
		require.ErrorContains(t, opensTLS(t, address, own, shows(other)), ": it does not trust the certificate of the client: ")
	}
	require.ErrorContains(t, opensTLS(t, address, other, shows(own)), ": its certificate is not trusted: ")
	require.NoError(t, opensTLS(t, address, own, shows(own)))

	_, err := openAt(t.Context(), t, "redis://127.0.0.1:"+port)
	require.ErrorContains(t, err, "it closes the connection: perhaps it is not Redis, or needs TLS: write rediss://")
}

// The same with Sentinels. The error says whether it is about a Sentinel or a server; each is asked in its own way.
func TestOpen_SentinelsAndCertificates(t *testing.T) {
	t.Parallel()
	own, at := redistest.NewCertificate(t), strconv.Itoa(redistest.FreePort(t))
	redistest.Start(t, own.Args(at)...)
	port := strconv.Itoa(redistest.FreePort(t))
	s := redistest.StartSentinel(t, append(own.Args(port), "--tls-replication", "yes")...)
	s.Command(t, "SENTINEL", "MONITOR", "main", "127.0.0.1", at, "1")
	open := func(to string, change func(o *rueidis.ClientOption)) error {
		return opensTLS(t, to+"?master_set=main", own, change)
	}
	for range 20 {
		err := open("rediss://127.0.0.1:"+port, func(o *rueidis.ClientOption) {
			o.Sentinel.TLSConfig.RootCAs = own.Roots
			shows(own)(o)
		})
		require.ErrorContains(t, err, "cannot connect to rediss://127.0.0.1:"+port+": it asks for a certificate of the client: ")
		require.ErrorContains(t, err, "for Sentinels those of Sentinel.TLSConfig")

		err = open("rediss://"+s.Addr(), func(o *rueidis.ClientOption) { o.Sentinel.TLSConfig = nil })
		require.ErrorContains(t, err, "cannot connect to rediss://"+s.Addr()+", where a Sentinel names 127.0.0.1:"+at+
			": it asks for a certificate of the client: ")
	}
	require.NoError(t, open("rediss://"+s.Addr(), func(o *rueidis.ClientOption) {
		o.Sentinel.TLSConfig = nil
		shows(own)(o)
	}))
}
