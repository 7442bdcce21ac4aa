package failover

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// rediss with master_set encrypts the connections to Sentinels, too, and each certificate is checked. The ports that the client
// knows take nothing but TLS.
func TestSentinelOverTLS(t *testing.T) {
	t.Parallel()
	folder, roots := certificates(t)
	listening := func() (port string, args []string) {
		port = strconv.Itoa(redistest.FreePort())
		return port, []string{
			"--tls-port", port, "--tls-replication", "yes", "--tls-auth-clients", "no",
			"--tls-cert-file", filepath.Join(folder, "cert"), "--tls-key-file", filepath.Join(folder, "key"),
			"--tls-ca-cert-file", filepath.Join(folder, "cert"),
		}
	}
	at, args := listening()
	master := redistest.Start(t, args...)
	port, args := listening()
	sentinel := redistest.StartSentinel(t, args...)
	sentinel.Command(t, "SENTINEL", "MONITOR", redistest.MasterSet, "127.0.0.1", at, "1")

	open := func(scheme string, servers, sentinels *x509.CertPool) (*lockregistry.Registry, error) {
		ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
		defer end()
		address := scheme + "://127.0.0.1:" + port + "?dial_timeout=1s&master_set=" + redistest.MasterSet
		return lockregistry.Open(ctx, address, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			if o.TLSConfig != nil {
				o.TLSConfig.RootCAs, o.Sentinel.TLSConfig.RootCAs = servers, sentinels
			}
		}))
	}
	registry := func() *lockregistry.Registry {
		r, err := open("rediss", roots, roots)
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	hold, err := registry().Acquire(t.Context(), "42")
	require.NoError(t, err)
	require.Equal(t, "1", master.Command(t, "EXISTS", "orders:42"))
	other, waits := registry(), make(chan error)
	go func() {
		_, err := other.Acquire(t.Context(), "42")
		waits <- err
	}()
	require.Eventually(t, func() bool { // it listens on a connection of its own
		return master.Command(t, "EXISTS", "orders:{orders:42}:waiters") == "1"
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, hold.Release(t.Context()))
	require.NoError(t, <-waits)

	for what, pools := range map[string][2]*x509.CertPool{
		"neither is trusted":      {x509.NewCertPool(), x509.NewCertPool()},
		"no Sentinel is trusted":  {roots, x509.NewCertPool()},
		"the master is untrusted": {x509.NewCertPool(), roots},
	} {
		_, err := open("rediss", pools[0], pools[1])
		require.ErrorContains(t, err, "its certificate is not trusted", what)
	}
	_, err = open("redis", nil, nil)
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
}

// certificates makes a folder with a certificate for 127.0.0.1, which signs itself, and its key.
func certificates(t *testing.T) (folder string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	folder, roots = t.TempDir(), x509.NewCertPool()
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: public}, "key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600))
	}
	certificate, err := x509.ParseCertificate(public)
	require.NoError(t, err)
	roots.AddCert(certificate)
	return folder, roots
}
