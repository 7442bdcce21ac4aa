package netfault

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

const (
	three = "*2\r\n$4\r\nECHO\r\n$1\r\na\r\n*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n*2\r\n$4\r\nECHO\r\n$1\r\nb\r\n"
	a, b  = "$1\r\na\r\n", "$1\r\nb\r\n"
)

// proxied runs a test in fake time with a proxy to a server, and a connection through it.
func proxied(t *testing.T, test func(t *testing.T, m *miniredis.Miniredis, p *Proxy, c net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		defer m.Close()
		p := New(func(context.Context) (net.Conn, error) { return m.Dial() }, Named(nil))
		defer p.Close()
		c, err := p.Dial(t.Context())
		require.NoError(t, err)
		test(t, m, p, c)
	})
}

// hears returns what a connection says until it breaks, which it does after a minute.
func hears(t *testing.T, p *Proxy, c net.Conn) string {
	t.Helper()
	time.AfterFunc(time.Minute, p.CutAll)
	said, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(said)
}

// TestFate gives fates to the second of three commands that are sent at once.
func TestFate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate  Fate
		heard string
		n     string
	}{
		"delivered":     {Fate{}, a + ":1\r\n" + b, "1"},
		"late":          {Fate{Delay: time.Second, Linger: time.Second}, a + ":1\r\n" + b, "1"},
		"lost":          {Fate{Lost: true}, a + b, ""},
		"made up":       {Fate{Lost: true, Reply: ":7\r\n"}, a + ":7\r\n" + b, ""},
		"made up, late": {Fate{Lost: true, Reply: ":7\r\n", Linger: time.Second}, a + ":7\r\n" + b, ""},
		"mute":          {Fate{Mute: true}, a, "1"},
		"silence":       {Fate{Lost: true, Mute: true}, a, ""},
		"cut":           {Fate{Cut: CutRequest(0)}, a, ""},
		"cut in it":     {Fate{Cut: CutRequest(-1)}, a, ""},
		"cut behind it": {Fate{Cut: CutRequest(End)}, a, "1"},
		"cut before :1": {Fate{Cut: CutReply(0)}, a, "1"},
		"cut in :1":     {Fate{Cut: CutReply(1)}, a + ":", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxied(t, func(t *testing.T, m *miniredis.Miniredis, p *Proxy, conn net.Conn) {
				p.Next(Match{Name: "INCR"}, c.fate)
				p.All(Match{Name: "ECHO"}, Fate{Linger: time.Millisecond}) // earlier commands are still under way
				go func() { _, _ = io.WriteString(conn, three) }()
				heard := hears(t, p, conn)
				if c.fate.Cut.InRequest() { // the cut overtakes the first reply
					require.Contains(t, []string{c.heard, ""}, heard)
				} else {
					require.Equal(t, c.heard, heard)
				}
				synctest.Wait()
				n, _ := m.Get("n")
				require.Equal(t, c.n, n)
			})
		})
	}
}

// TestHold expects a command that is held back to arrive even when its client is gone.
func TestHold(t *testing.T) {
	t.Parallel()
	proxied(t, func(t *testing.T, m *miniredis.Miniredis, p *Proxy, conn net.Conn) {
		h := Hold(true)
		p.Next(Match{Name: "INCR"}, Fate{Held: h})
		go func() { _, _ = io.WriteString(conn, three) }()
		<-h.Arrived()
		_, _ = io.ReadAll(conn)
		require.Equal(t, ":1", h.Deliver())
		n, err := m.Get("n")
		require.NoError(t, err)
		require.Equal(t, "1", n)
	})
}

// TestRules expects Next to go before All, and a later All before an earlier one. A pushed message has the fate of its name.
func TestRules(t *testing.T) {
	t.Parallel()
	p := New(nil, Named(map[string]string{"body": "write_obtain"}))
	reply := func(c Command) string { return p.fate(c, nil).Reply }
	obtain := p.sent([]string{"EVAL", "body", "1", "key", "value", "check"})
	require.Equal(t, "write_obtain key value", obtain.String())
	require.Equal(t, obtain.Name, p.sent([]string{"EVALSHA", "02083f4579e08a612425c0c1a17ee47add783b94", "1", "key", "value"}).Name)
	p.All(Match{Name: "write"}, Fate{Reply: "write"})
	require.Equal(t, "write", reply(obtain))
	p.All(Match{}, Fate{Reply: "any"})
	require.Equal(t, "any", reply(obtain))
	p.Next(Match{Name: "write_obtain", Key: "other"}, Fate{Reply: "other"})
	p.Next(Match{Asks: "check"}, Fate{Reply: "first"}, Fate{Reply: "second"})
	require.Equal(t, []string{"first", "second", "any"}, []string{reply(obtain), reply(obtain), reply(obtain)})
	granted := push([]byte(">3\r\n$7\r\nmessage\r\n$9\r\nx-channel\r\n$9\r\ng 2 1 key\r\n"))
	require.Equal(t, "grant", granted.Name)
	require.Empty(t, reply(granted))
	p.All(Match{Name: "grant"}, Fate{Reply: "grant"})
	require.Equal(t, "grant", reply(granted))
	require.Len(t, p.Seen(Match{Name: "write"}), 5)
}
