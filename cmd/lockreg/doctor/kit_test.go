package doctor_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A client that asks for the nodes of a cluster again waits for a moment before, closed or not.
func TestMain(m *testing.M) { goleak.VerifyTestMain(redistest.Patient{M: m, Leaks: leaks}, outlives) }

// When a client of a cluster has asked for the slots, a goroutine of rueidis sleeps for up to a second.
var outlives = goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")

func leaks() error { return goleak.Find(outlives) }

// patience is how long a test waits for what must come to be.
const patience = 2 * time.Minute

// healthy starts a server with which nothing is wrong.
func healthy(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	return redistest.Start(t, append([]string{"--appendonly", "yes"}, args...)...)
}

// option is that of a client with which nothing is wrong.
func option(addresses ...string) rueidis.ClientOption {
	timeouts := net.Dialer{Timeout: 5 * time.Second, KeepAlive: time.Second}
	return rueidis.ClientOption{
		InitAddress: addresses, DisableCache: true, Dialer: timeouts, ConnWriteTimeout: 10 * time.Second,
		ClusterOption: rueidis.ClusterOption{ShardsRefreshInterval: time.Second},
	}
}

func dial(t *testing.T, o rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// examine checks what an option leads to.
func examine(t *testing.T, o rueidis.ClientOption, change ...func(*doctor.Options)) doctor.Report {
	t.Helper()
	client, err := rueidis.NewClient(o)
	require.NoError(t, err)
	defer client.Close()
	opts := doctor.Options{Prefix: "orders", Client: &o}
	for _, c := range change {
		c(&opts)
	}
	report, err := doctor.Check(t.Context(), client, opts)
	require.NoError(t, err)
	return report
}

// findings are those of an id that are worse than OK; of all ids if that is empty. How long the server took for its answers is no
// finding on a machine that is busy, unless it is asked for.
func findings(r doctor.Report, id string) (all []doctor.Finding) {
	for _, f := range r.Findings {
		if f.Severity != doctor.OK && (f.ID == id || id == "" && f.ID != "latency") {
			all = append(all, f)
		}
	}
	return all
}

// has is the one finding of an id.
func has(t *testing.T, r doctor.Report, id string, severity doctor.Severity) doctor.Finding {
	t.Helper()
	all := findings(r, id)
	require.Len(t, all, 1, "%s in %+v", id, r.Findings)
	f := all[0]
	require.Equal(t, severity, f.Severity, "%+v", f)
	require.NotEmpty(t, f.Seen)
	require.NotEmpty(t, f.Why)
	require.NotEmpty(t, f.Do)
	return f
}

// hasNot tells that a check was made and found nothing.
func hasNot(t *testing.T, r doctor.Report, id string) {
	t.Helper()
	require.Empty(t, findings(r, id))
	for _, f := range r.Findings {
		if f.ID == id {
			return
		}
	}
	require.Fail(t, "no such check", "%s in %+v", id, r.Findings)
}

// follow enters the commands of a finding, as redis-cli would read them.
func follow(t *testing.T, s *redistest.Server, f doctor.Finding) {
	t.Helper()
	require.NotEmpty(t, f.Commands, "%+v", f)
	for _, command := range f.Commands {
		_, err := s.Do(words(t, command)...)
		if err != nil && strings.Contains(f.Do, "refuses a pattern") && !strings.Contains(command, "+") {
			require.ErrorContains(t, err, "after the * pattern")
			continue
		}
		require.NoError(t, err, command)
	}
}

// words splits a line as redis-cli does.
func words(t *testing.T, text string) (all []string) {
	t.Helper()
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if text[0] != '"' {
			word, rest, _ := strings.Cut(text, " ")
			all, text = append(all, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(text)
		require.NoError(t, err, text)
		word, err := strconv.Unquote(quoted)
		require.NoError(t, err, text)
		all, text = append(all, word), text[len(quoted):]
	}
	return all
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); <-time.After(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "not in time: %s", what)
	}
}

// awaitFindings waits until there are some of an id, or none.
func awaitFindings(t *testing.T, some bool, id string, look func() doctor.Report) (r doctor.Report) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		r = look()
		found := findings(r, id)
		if (len(found) > 0) == some {
			return r
		}
		require.True(t, time.Now().Before(deadline), "not in time: %q %+v", id, found)
	}
}

// through has a client's connections lead through a wrapper.
func through(o rueidis.ClientOption, wrap func(net.Conn) net.Conn) rueidis.ClientOption {
	o.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
	return o
}

// slow is a connection on which TIME takes longer.
type slow struct {
	net.Conn
	by func() time.Duration
}

func (s slow) Write(b []byte) (int, error) {
	if bytes.HasSuffix(b, []byte("\r\nTIME\r\n")) {
		<-time.After(s.by())
	}
	return s.Conn.Write(b)
}

// pretending is a connection to a server that tells something else of itself: texts of the same length.
type pretending struct {
	net.Conn
	is, says string
}

func (p pretending) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	copy(b[:n], bytes.ReplaceAll(b[:n], []byte(p.is), []byte(p.says)))
	return n, err
}

// breaking is a connection that ends when a text is sent over it.
type breaking struct {
	net.Conn
	at string
}

func (c breaking) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.at)) {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}
