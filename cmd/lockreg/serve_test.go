package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const (
	viewToken    = "00112233445566778899aabbccddeeff"
	releaseToken = "ffeeddccbbaa99887766554433221100"
)

func tokenFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
	return name
}

// What is not safe does not start, and says what is missing before Redis is asked for anything.
func TestServeRefusesWhatIsNotSafe(t *testing.T) {
	view, release := tokenFile(t, viewToken), tokenFile(t, releaseToken)
	cert, key := certificateFiles(t)
	for _, try := range []struct{ flags, want string }{
		{"--listen 10.1.2.3:8080", "needs --tls-cert and --tls-key, or --behind-proxy"},
		{"--listen 10.1.2.3:8080 --view-token-file " + view, "needs --tls-cert and --tls-key, or --behind-proxy"},
		{"--listen 10.1.2.3:8080 --behind-proxy", "needs a token"},
		{"--listen 10.1.2.3:8080 --tls-cert " + cert + " --tls-key " + key, "needs a token"},
		{"--listen :8080 --view-token-file " + view, "needs --tls-cert"},
		{"--listen 0.0.0.0:8080 --behind-proxy --view-token-file " + view, "--host"},
		{"--listen [::]:8080 --behind-proxy --view-token-file " + view, "--host"},
		{"--listen locks.example:8080", "needs --tls-cert"},
		{"--listen localhost.evil.example:8080", "needs --tls-cert"},
		{"--behind-proxy", "needs a token"},
		{"--listen 8080", "an address and a port"},
		{"--tls-cert " + cert, "need each other"},
		{"--tls-key " + key, "need each other"},
		{"--allow-release", "needs a token for releasing"},
		{"--allow-release --view-token-file " + view, "needs a token for releasing"},
		{"--release-token-file " + release, "is for --allow-release"},
		{"--allow-release --view-token-file " + view + " --release-token-file " + view, "must differ"},
		{"--view-token-file " + tokenFile(t, "secret"), "needs 128"},
		{"--view-token-file " + tokenFile(t, ""), "is empty"},
		{"--view-token-file /nowhere", "no such file"},
		{"--view-token " + viewToken, "unknown flag"},
		{"--root locks", "slash"},
		{"--host locks.example --host locks.example:8443", `"locks.example:8443": it is a name alone`},
		{"--host [2001:db8::1]:8443", "it is a name alone"},
		{"--host https://locks.example", "it is a name alone"},
	} {
		var said bytes.Buffer
		a := &app{in: strings.NewReader(""), out: io.Discard, err: &said}
		code := a.execute(append([]string{"serve", "orders", "--url", "redis://127.0.0.1:1"}, strings.Fields(try.flags)...))
		assert.Equal(t, exitUsage, code, try.flags)
		assert.Contains(t, said.String(), try.want, try.flags)
		assert.NotContains(t, said.String(), "secret", try.flags)
	}
}

func TestServeTakesNamesAndAddresses(t *testing.T) {
	s := &serving{
		listen: "127.0.0.1:8080", root: "/", every: defaultEvery, hosts: []string{"locks.example", "2001:db8::1", "[2001:db8::1]"},
	}
	_, err := s.options()
	require.NoError(t, err)
}

func TestServeLogsJSON(t *testing.T) {
	server := redistest.Start(t)
	log := &lines{}
	a := &app{in: strings.NewReader(""), out: io.Discard, err: log, url: "redis://" + server.Addr(), layout: "spring", json: true}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- a.serve(ctx, []string{"orders"}, serving{listen: "127.0.0.1:0", root: "/", every: defaultEvery})
	}()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "serving") }, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-done)
	line, _, _ := strings.Cut(log.String(), "\n")
	require.True(t, json.Valid([]byte(line)), line)
}

func TestServeWithoutRedis(t *testing.T) {
	var said bytes.Buffer
	a := &app{in: strings.NewReader(""), out: io.Discard, err: &said}
	code := a.execute([]string{"serve", "orders", "--url", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0"})
	require.Equal(t, exitUnavailable, code)
}

// lines is a log that a test reads while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits for a line, which is written in the background.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(l.String(), text) }, time.Minute, time.Millisecond, text)
}

var servingAt = regexp.MustCompile(`url=(\S+)`)

// start serves until the test ends, and returns the address and what is logged.
func start(t *testing.T, redis string, s serving) (string, *lines) {
	t.Helper()
	s.every = defaultEvery
	return startOf(t, redis, s, "orders")
}

// startOf is start for some prefixes.
func startOf(t *testing.T, redis string, s serving, prefixes ...string) (string, *lines) {
	t.Helper()
	log := &lines{}
	a := &app{in: strings.NewReader(""), out: io.Discard, err: log, url: redis, layout: "spring"}
	if s.listen == "" {
		s.listen = "127.0.0.1:0"
	}
	if s.root == "" {
		s.root = "/"
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx, prefixes, s) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	var url string
	require.Eventually(t, func() bool {
		if found := servingAt.FindStringSubmatch(log.String()); found != nil {
			url = found[1]
		}
		return url != ""
	}, time.Minute, time.Millisecond)
	return url, log
}

func post(t *testing.T, client *http.Client, url string, body any) int {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(text))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Lockreg-Request", "1")
	answer, err := client.Do(r)
	require.NoError(t, err)
	_ = answer.Body.Close()
	return answer.StatusCode
}

// await reads a stream until it says something.
func await(t *testing.T, client *http.Client, url, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"events", nil)
	require.NoError(t, err)
	answer, err := client.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	read := bufio.NewScanner(answer.Body)
	read.Buffer(nil, 1<<20)
	for read.Scan() {
		if strings.Contains(read.Text(), want) {
			return
		}
	}
	t.Fatalf("%s is not on the stream: %v", want, read.Err())
}

// documentedUser is the command in docs/permissions.md that makes a user for something.
func documentedUser(t *testing.T, purpose string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "permissions.md"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n# "+purpose+"\n")
	require.True(t, found, purpose)
	line, _, _ := strings.Cut(after, "\n")
	require.True(t, strings.HasPrefix(line, "ACL SETUSER "), line)
	return strings.Fields(line)
}

func TestServe(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	registry, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	defer func() { _ = registry.Close() }()
	require.NoError(t, client.Do(t.Context(), client.B().Arbitrary(documentedUser(t, "releasing")...).Build()).Error())
	url, log := start(t, "redis://operator:secret@"+server.Addr(), serving{
		allowRelease: true, viewTokenFile: tokenFile(t, viewToken), releaseTokenFile: tokenFile(t, releaseToken),
	})
	require.Contains(t, log.String(), "prefix=orders")
	require.NotContains(t, log.String(), viewToken)
	require.NotContains(t, log.String(), "secret")

	_, err = registry.Acquire(t.Context(), "42")
	require.NoError(t, err)
	info, err := inspect.Of(registry).Inspect(t.Context(), "42")
	require.NoError(t, err)

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	release := map[string]string{"path": "42", "holder": info.Holders[0].Holder, "reason": "a test"}
	require.Equal(t, 401, post(t, browser, url+"release", release))
	require.Equal(t, 200, post(t, browser, url+"login", map[string]string{"token": viewToken}))
	await(t, browser, url, `"path":"42"`)
	require.Equal(t, 403, post(t, browser, url+"release", release))
	require.Equal(t, 200, post(t, browser, url+"login", map[string]string{"token": releaseToken}))
	require.Equal(t, 200, post(t, browser, url+"release", release))
	log.await(t, `path=42`)
	log.await(t, `reason="a test"`)
	info, err = inspect.Of(registry).Inspect(t.Context(), "42")
	require.NoError(t, err)
	require.Empty(t, info.Holders)

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Host = "evil.example"
	answer, err := browser.Do(r)
	require.NoError(t, err)
	_ = answer.Body.Close()
	require.Equal(t, http.StatusMisdirectedRequest, answer.StatusCode)
}

// stuckLines is a log that takes nothing more once it is stuck, as a terminal after Ctrl-S.
type stuckLines struct {
	lines

	stuck atomic.Bool
	read  chan struct{}
}

func (l *stuckLines) Write(text []byte) (int, error) {
	if l.stuck.Load() {
		<-l.read
	}
	return l.lines.Write(text)
}

// The page answers although nobody reads the log.
func TestServeLogIsNotRead(t *testing.T) {
	server := redistest.Start(t)
	log := &stuckLines{read: make(chan struct{})}
	a := &app{in: strings.NewReader(""), out: io.Discard, err: log, url: "redis://" + server.Addr(), layout: "spring"}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := serving{listen: "127.0.0.1:0", root: "/", every: defaultEvery, viewTokenFile: tokenFile(t, viewToken)}
	go func() { done <- a.serve(ctx, []string{"orders"}, s) }()
	t.Cleanup(func() {
		stop()
		close(log.read)
		require.NoError(t, <-done)
	})
	log.await(t, "url=")
	url := servingAt.FindStringSubmatch(log.String())[1]
	log.stuck.Store(true)
	client := &http.Client{Timeout: time.Minute}
	for range 2 { // the first one alone would have its answer after its line
		require.Equal(t, http.StatusUnauthorized, post(t, client, url+"login", map[string]string{"token": releaseToken}))
	}
}

// Several prefixes are on one page, each lock at its own address, on one client and in one pass of SCAN.
func TestServeSeveralPrefixes(t *testing.T) {
	server := redistest.Start(t)
	for _, key := range []string{"shop:42", "stock:42", "stock:a b"} {
		server.Command(t, "SET", key, "6b1cd0ab-2f5e-4e4a-9c5e-9d1d3f7a0b52", "PX", "60000") // as Spring writes it
	}
	url, log := startOf(t, "redis://"+server.Addr(), serving{metrics: true, every: span(time.Hour)}, "shop", "stock", "mail")
	require.Contains(t, log.String(), `prefix="shop stock mail"`)
	require.Contains(t, log.String(), `no lock has the prefix \"mail\"`, "a hint for each")
	await(t, http.DefaultClient, url, `"id":"stock/a%20b"`)
	get := func(path string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	code, text := get("lock?prefix=stock&path=a+b")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `"key":"stock:a b"`)
	code, text = get("lock?prefix=shop&path=a+b")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `"lock":null`)
	code, text = get("lock?prefix=other&path=42")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, text, "this page shows shop, stock, mail")
	require.Eventually(t, func() bool {
		_, text := get("metrics")
		return strings.Contains(text, `holds{lockregistry_prefix="stock"} 2`) &&
			strings.Contains(text, `up{lockregistry_prefix="mail"} 1`)
	}, time.Minute, time.Millisecond)
	require.Less(t, strings.Count(server.Command(t, "CLIENT", "LIST", "TYPE", "NORMAL"), "name=lockreg "), 3, "one client")
}

// With --record Redis is looked at while nobody looks at the page, and those who come later see it.
func TestServeRecords(t *testing.T) {
	server := redistest.Start(t)
	server.Command(t, "SET", "orders:42", "6b1cd0ab-2f5e-4e4a-9c5e-9d1d3f7a0b52", "PX", "60000")
	url, _ := start(t, "redis://"+server.Addr(), serving{record: true})
	calls := regexp.MustCompile(`cmdstat_scan:calls=\d+`)
	scans := func() string { return calls.FindString(server.Command(t, "INFO", "commandstats")) }
	for range 2 { // before the second look the first one has ended
		before := scans()
		require.Eventually(t, func() bool { return scans() != before }, 2*time.Minute, 10*time.Millisecond)
	}
	require.Contains(t, hello(t, url), `"history":[[`)

	other, _ := start(t, "redis://"+server.Addr(), serving{})
	require.Contains(t, hello(t, other), `"history":[]`)
}

// hello is the first that a stream says.
func hello(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"events", nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	read := bufio.NewReader(answer.Body)
	_, err = read.ReadString('\n')
	require.NoError(t, err)
	data, err := read.ReadString('\n')
	require.NoError(t, err)
	return data
}

func TestServeRefusesPrefixes(t *testing.T) {
	var many []string
	for i := range 33 {
		many = append(many, fmt.Sprint("p", i))
	}
	for want, args := range map[string][]string{
		"write: lockreg serve PREFIX...":                   {},
		"a prefix is empty":                                {"shop", ""},
		`the prefix "shop" is given twice`:                 {"shop", "stock", "shop"},
		"33 prefixes are given: the page shows 32 at most": many,
		"unknown flag: --recor: did you mean record?":      {"shop", "--recor"},
	} {
		var said bytes.Buffer
		a := &app{in: strings.NewReader(""), out: io.Discard, err: &said}
		code := a.execute(append([]string{"serve", "--url", "redis://127.0.0.1:1"}, args...))
		require.Equal(t, exitUsage, code, want)
		require.Contains(t, said.String(), want)
	}
}

// Without --allow-release a user that cannot write is enough, and nobody releases anything, whatever the token in the
// environment.
func TestServeWithoutTheRightToWrite(t *testing.T) {
	t.Setenv(releaseTokenVariable, releaseToken)
	server := redistest.Start(t)
	admin, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer admin.Close()
	registry, err := lockregistry.New(admin, "orders")
	require.NoError(t, err)
	defer func() { _ = registry.Close() }()
	_, err = registry.Acquire(t.Context(), "42")
	require.NoError(t, err)
	require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary(documentedUser(t, "viewing")...).Build()).Error())

	url, log := start(t, "redis://viewer:secret@"+server.Addr(), serving{})
	require.NotContains(t, log.String(), "secret")
	await(t, http.DefaultClient, url, `"path":"42"`)
	require.Equal(t, 404, post(t, http.DefaultClient, url+"login", map[string]string{"token": releaseToken}))
	info, err := inspect.Of(registry).Inspect(t.Context(), "42")
	require.NoError(t, err)
	release := map[string]string{"path": "42", "holder": info.Holders[0].Holder}
	require.Equal(t, 403, post(t, http.DefaultClient, url+"release", release))
}

func TestServeOverTLS(t *testing.T) {
	server := redistest.Start(t)
	cert, key := certificateFiles(t)
	t.Setenv(viewTokenVariable, viewToken)
	url, _ := start(t, "redis://"+server.Addr(), serving{cert: cert, key: key, root: "/locks/"})
	require.True(t, strings.HasPrefix(url, "https://") && strings.HasSuffix(url, "/locks/"), url)
	roots := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer browser.CloseIdleConnections()
	require.Equal(t, 200, post(t, browser, url+"login", map[string]string{"token": viewToken}))
	await(t, browser, url, "event: tick")

	// A certificate that was renewed meanwhile is shown to the next connection.
	newCert, newKey := certificateFiles(t)
	require.NoError(t, os.Rename(newKey, key))
	require.NoError(t, os.Rename(newCert, cert))
	text, err = os.ReadFile(cert)
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	require.Eventually(t, func() bool {
		c, err := dialer.DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/locks/"))
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		return bytes.Equal(block.Bytes, c.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw)
	}, time.Minute, 10*time.Millisecond)
}

// A file with a secret is for its owner, and perhaps a group.
func TestServeRefusesSecretsThatOthersCanRead(t *testing.T) {
	cert, key := certificateFiles(t)
	view := tokenFile(t, viewToken)
	try := func(file string, mode os.FileMode) (said string) {
		require.NoError(t, os.Chmod(file, mode))
		defer func() { require.NoError(t, os.Chmod(file, 0o600)) }()
		var text bytes.Buffer
		a := &app{in: strings.NewReader(""), out: io.Discard, err: &text}
		code := a.execute([]string{
			"serve", "orders", "--url", "redis://127.0.0.1:1", "--view-token-file", view, "--tls-cert", cert, "--tls-key", key,
		})
		require.Contains(t, []int{exitUsage, exitUnavailable}, code, text.String())
		require.NotContains(t, text.String(), viewToken)
		return text.String()
	}
	for _, file := range []string{view, key} {
		for _, mode := range []os.FileMode{0o644, 0o604, 0o602, 0o620, 0o666} {
			require.Contains(t, try(file, mode), "is open to others")
		}
		for _, mode := range []os.FileMode{0o600, 0o400, 0o640, 0o440} {
			require.Contains(t, try(file, mode), "nothing listens there", "it comes as far as to Redis")
		}
	}
	require.NotContains(t, try(cert, 0o644), "is open to others", "it is no secret")
}

// The certificate is renewed while the page is served.
func TestServeReadsTheCertificateAgain(t *testing.T) {
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
	require.Equal(t, first, get())
	require.Empty(t, log.String())

	newCert, newKey := certificateFiles(t)
	require.NoError(t, os.Rename(newKey, key))
	require.Equal(t, first, get(), "half of it is there")
	require.Contains(t, log.String(), "still using the old one")
	require.NoError(t, os.Rename(newCert, cert))
	second := get()
	require.NotEqual(t, first, second)
	require.Contains(t, log.String(), "was reloaded")
	require.NoError(t, os.Remove(cert))
	require.Equal(t, second, get())

	// Not each connection looks.
	_, third := certificateFiles(t)
	require.NoError(t, os.Rename(third, key))
	before := log.String()
	_, err = c.get(nil)
	require.NoError(t, err)
	require.Equal(t, before, log.String())
}

// Behind a proxy the cookie is for HTTPS alone, and the page is there under the proxy's name.
func TestServeBehindAProxy(t *testing.T) {
	server := redistest.Start(t)
	view := tokenFile(t, viewToken)
	for _, proxy := range []bool{true, false} {
		url, _ := start(t, "redis://"+server.Addr(), serving{viewTokenFile: view, behindProxy: proxy, hosts: []string{"locks.example"}})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"login", strings.NewReader(`{"token":"`+viewToken+`"}`))
		require.NoError(t, err)
		r.Host = "locks.example"
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Lockreg-Request", "1")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		_ = answer.Body.Close()
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Len(t, answer.Cookies(), 1)
		require.Equal(t, proxy, answer.Cookies()[0].Secure)
	}
}

// Whoever begins a request and does not go on is not waited for.
func TestServeDoesNotWaitForHeaders(t *testing.T) {
	server := redistest.Start(t)
	url, _ := start(t, "redis://"+server.Addr(), serving{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.Trim(strings.TrimPrefix(url, "http:"), "/"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err, "the server ends the connection")
}

// certificateFiles are files with a certificate for 127.0.0.1 and its key.
func certificateFiles(t *testing.T) (cert, key string) {
	t.Helper()
	c := redistest.NewCertificate(t)
	return c.File, c.KeyFile
}
