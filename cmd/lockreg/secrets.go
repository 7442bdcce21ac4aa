package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// token reads a token from a file or the environment; empty: neither has one.
func token(flag, file, variable string) (string, error) {
	if file == "" {
		return os.Getenv(variable), nil
	}
	text, err := readSecret(file)
	if err != nil {
		return "", usage("%s: %w", flag, err)
	}
	found := strings.TrimRight(string(text), "\r\n")
	if found == "" {
		return "", usage("%s: %s is empty", flag, file)
	}
	return found, nil
}

const mostSecret = 1 << 20

// readSecret reads a file that others must not read or write, nor its group write. Its group may read it, as the keys of
// certificates often are for one group of servers.
func readSecret(name string) ([]byte, error) {
	const others = 0o026
	file, err := os.Open(name) //nolint:gosec // the user of the program chooses the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&others != 0 && runtime.GOOS != "windows" { // which has other rights
		return nil, fmt.Errorf("%s is open to others, with the mode %04o: chmod o-rwx,g-w", name, mode.Perm())
	}
	return io.ReadAll(io.LimitReader(file, mostSecret))
}

// certificate is the page's certificate. It is read again when its files have changed, since certificates are renewed while the
// page is served.
type certificate struct {
	cert, key string
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]
	looking   atomic.Bool // a goroutine looks at the files, and owns the following fields
	looked    time.Time
	seen      [2]os.FileInfo
	unread    bool // they have changed, and could not be read yet
}

const lookAtFiles = time.Second // so seldom at most

func newCertificate(cert, key string, log *slog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log, looked: time.Now()}
	c.changed()
	return c, c.read()
}

// get returns the certificate for a connection. When a new one cannot be read, the old one stays.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.looking.CompareAndSwap(false, true) {
		if now := time.Now(); now.Sub(c.looked) >= lookAtFiles {
			c.looked = now
			c.look()
		}
		c.looking.Store(false)
	}
	return c.current.Load(), nil
}

// look reads the files if they have changed, or could not be read at the last look: what is wrong with them, such as their mode,
// may be mended without a change that shows.
func (c *certificate) look() {
	changed := c.changed()
	if !changed && !c.unread {
		return
	}
	err := c.read()
	c.unread = err != nil
	switch {
	case err == nil:
		c.log.Info("the certificate has changed and was reloaded", "file", c.cert)
	case changed:
		c.log.Error("the certificate has changed but cannot be read: still using the old one", "error", err)
	}
}

// changed reports whether a file was replaced or written since the last look.
func (c *certificate) changed() (changed bool) {
	for i, name := range []string{c.cert, c.key} {
		now, err := os.Stat(name)
		if err != nil {
			continue // it is being replaced, perhaps
		}
		before := c.seen[i]
		if before == nil || !os.SameFile(before, now) || !before.ModTime().Equal(now.ModTime()) || before.Size() != now.Size() {
			c.seen[i], changed = now, true
		}
	}
	return changed
}

func (c *certificate) read() error {
	chain, err := os.ReadFile(c.cert)
	if err != nil {
		return err
	}
	secret, err := readSecret(c.key)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(chain, secret)
	if err == nil {
		c.current.Store(&pair)
	}
	return err
}
