package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate is a self-signed certificate for 127.0.0.1, valid for an hour.
type Certificate struct {
	File, KeyFile string          // in PEM
	Pair          tls.Certificate // for a server or a client that shows it
	Roots         *x509.CertPool  // for peers that trust it
}

// NewCertificate makes a certificate with a key of its own, in files that are removed when the test ends.
func NewCertificate(tb testing.TB) Certificate {
	tb.Helper()
	public, private, err := signItself()
	if err != nil {
		tb.Fatal("redistest: a certificate: ", err)
	}
	folder := tb.TempDir()
	c := Certificate{
		File: filepath.Join(folder, "cert.pem"), KeyFile: filepath.Join(folder, "key.pem"), Roots: x509.NewCertPool(),
	}
	for name, text := range map[string][]byte{c.File: public, c.KeyFile: private} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			tb.Fatal("redistest: ", err)
		}
	}
	if c.Pair, err = tls.X509KeyPair(public, private); err != nil {
		tb.Fatal("redistest: a certificate: ", err)
	}
	c.Roots.AppendCertsFromPEM(public)
	return c
}

// Args returns the arguments of a server or a Sentinel that also listens on port, with the certificate. With --tls-auth-clients
// no it accepts clients without a certificate.
func (c Certificate) Args(port string) []string {
	return []string{"--tls-port", port, "--tls-cert-file", c.File, "--tls-key-file", c.KeyFile, "--tls-ca-cert-file", c.File}
}

// signItself returns a certificate and its key, in PEM.
func signItself() (public, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}
