package failover

import (
	"context"
	"crypto/x509"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// With rediss and master_set the connections to Sentinels are encrypted, too, and each certificate is checked. The ports that
// the client knows accept nothing but TLS.
func TestSentinelOverTLS(t *testing.T) {
	t.Parallel()
	certificate := redistest.NewCertificate(t)
	listening := func() (port string, args []string) {
		port = strconv.Itoa(redistest.FreePort(t))
		return port, append(certificate.Args(port), "--tls-replication", "yes", "--tls-auth-clients", "no")
	}
	at, args := listening()
	master := redistest.Start(t, args...)
	port, args := listening()
	sentinel := redistest.StartSentinel(t, args...)
	sentinel.Command(t, "SENTINEL", "MONITOR", redistest.MasterSet, "127.0.0.1", at, "1")

	open := func(scheme string, servers, sentinels *x509.CertPool) (*lockregistry.Registry, error) {
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		address := scheme + "://127.0.0.1:" + port + "?dial_timeout=10s&master_set=" + redistest.MasterSet
		return lockregistry.Open(ctx, address, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			if o.TLSConfig != nil {
				o.TLSConfig.RootCAs, o.Sentinel.TLSConfig.RootCAs = servers, sentinels
			}
		}))
	}
	registry := func() *lockregistry.Registry {
		r, err := open("rediss", certificate.Roots, certificate.Roots)
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	hold, err := registry().Acquire(t.Context(), "42", lockregistry.Wait(time.Minute))
	require.NoError(t, err)
	require.Equal(t, "1", master.Command(t, "EXISTS", "orders:42"))
	other, waits := registry(), make(chan error)
	go func() {
		_, err := other.Acquire(t.Context(), "42", lockregistry.Wait(time.Minute))
		waits <- err
	}()
	require.Eventually(t, func() bool { // it listens on a connection of its own
		return master.Command(t, "EXISTS", "orders:{orders:42}:waiters") == "1"
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, unlessLate(hold.Release(t.Context())))
	require.NoError(t, <-waits)

	for what, pools := range map[string][2]*x509.CertPool{
		"neither is trusted":      {x509.NewCertPool(), x509.NewCertPool()},
		"no Sentinel is trusted":  {certificate.Roots, x509.NewCertPool()},
		"the master is untrusted": {x509.NewCertPool(), certificate.Roots},
	} {
		_, err := open("rediss", pools[0], pools[1])
		require.ErrorContains(t, err, "its certificate is not trusted", what)
	}
	_, err = open("redis", nil, nil)
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
}
