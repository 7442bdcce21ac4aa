package main

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A renewed certificate that cannot be read yet is read once it can be, although its files have not been written since. The log
// says once that it cannot.
func TestServeReadsTheCertificateOnceItMay(t *testing.T) {
	cert, key := certificateFiles(t)
	var log lines
	c, err := newCertificate(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	get := func() []byte {
		c.looked = time.Time{} // as after a second
		found, err := c.get(nil)
		require.NoError(t, err)
		return found.Certificate[0]
	}
	first := get()
	newCert, newKey := certificateFiles(t)
	require.NoError(t, os.Chmod(newKey, 0o644))
	require.NoError(t, os.Rename(newCert, cert))
	require.NoError(t, os.Rename(newKey, key))
	require.Equal(t, first, get())
	require.Contains(t, log.String(), "is open to others")
	require.Equal(t, first, get())
	require.Equal(t, 1, strings.Count(log.String(), "still using the old one"))

	require.NoError(t, os.Chmod(key, 0o600))
	require.NotEqual(t, first, get())
	require.Contains(t, log.String(), "was reloaded")
	before := log.String()
	get()
	require.Equal(t, before, log.String())
}
