package sentinel

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A client uses the former master, and most Sentinels name a successor. Then its connections to Sentinels end, so that it asks
// them again; its connections to servers do not end. Until it uses the successor, it gets no connection to a Sentinel that
// still names the former master, or does not answer.
func TestWatch_PromptsAClientThatLags(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	server := newFake(t, "server")
	dial := w.Tracked(w.option.DialCtxFn)
	open := func(f *fake) net.Conn {
		conn, err := dial(t.Context(), f.address(), &net.Dialer{}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	followed, left, toServer := open(all[0]), open(all[0]), open(server)
	require.NoError(t, left.Close())
	w.hearsAll(t, all)
	discovered := open(all[2])
	require.Len(t, w.prompter.conns, 2)

	leads := Answer{Who: "a", Names: heir, Watches: former, Flags: []string{"master", agreedDown, replacing}, Others: 2}
	all[0].change(func() { all[0].answer = leads })
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	require.Zero(t, w.prompter.at, "most still name the former master")
	all[1].change(func() { all[1].answer = stands("b", heir) })
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	_, err := dial(t.Context(), all[2].address(), &net.Dialer{}, nil)
	require.ErrorIs(t, err, errBarred)
	open(all[0])
	open(server)
	for _, conn := range []net.Conn{followed, discovered} {
		_ = conn.SetReadDeadline(time.Now().Add(patience)) // it may have ended
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	}
	_, err = io.WriteString(toServer, array(bulk("PING")))
	require.NoError(t, err)
	_, err = io.ReadFull(toServer, make([]byte, len("+PONG\r\n")))
	require.NoError(t, err)

	at := w.prompter.at
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	require.Equal(t, at, w.prompter.at, "not again so soon")
	unheard := "192.0.2.1:26379"
	w.handle(func(c *council) []act {
		c.members[unheard] = &member{state: resting}
		return nil
	})
	_, err = dial(t.Context(), unheard, &net.Dialer{Timeout: patience}, nil)
	require.ErrorIs(t, err, errBarred)
	require.Equal(t, Disputed, w.Ask(heir, patience, patience))
	open(all[2])
	_, err = w.Tracked(func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, io.EOF })(
		t.Context(), all[0].address(), nil, nil)
	require.ErrorIs(t, err, io.EOF)
}

// When a Sentinel publishes that it has found another one, rueidis dials a wrong address, which is repaired.
func TestWatch_TrackedDialsWhatASentinelHasFound(t *testing.T) {
	w := New(withRESP3("10.0.0.1:26379"), "main")
	t.Cleanup(w.Close)
	var dialed string
	dial := w.Tracked(func(_ context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		dialed = address
		return nil, io.EOF
	})
	for message, address := range map[string]string{
		"10.0.0.9:26379":                        "10.0.0.9:26379",
		"10.0.0.9:26379 @ main 10.0.0.1 6379":   "10.0.0.9:26379",
		"[2001:db8::9]:26379 @ main ::1 6379":   "[2001:db8::9]:26379",
		"sentinel.example:26379 @ main db 6379": "sentinel.example:26379",
	} {
		_, err := dial(t.Context(), message, &net.Dialer{}, nil)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, address, dialed)
	}
}

func TestSuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		using   string
		answers []Answer
		want    string
		by      []string
	}{
		"nobody":                {using: former},
		"all name the one used": {using: heir, answers: []Answer{stands("a", heir), stands("b", heir), stands("c", heir)}},
		"all name another": {
			former, []Answer{stands("a", heir), stands("b", heir), stands("c", heir)}, heir,
			[]string{"a:26379", "b:26379", "c:26379"},
		},
		"two of three do":     {former, []Answer{stands("a", heir), stands("b", heir)}, heir, []string{"a:26379", "b:26379"}},
		"one of three does":   {using: former, answers: []Answer{stands("a", heir)}},
		"one, and two do not": {using: former, answers: []Answer{stands("a", heir), stands("b", former), stands("c", former)}},
		"two do, and one lags": {
			former, []Answer{stands("c", former), stands("a", heir), stands("b", heir)}, heir, []string{"a:26379", "b:26379"},
		},
		"and two find it down": {using: former, answers: []Answer{stands("a", heir, foundDown), stands("b", heir, foundDown)}},
	} {
		successor, by := successor(c.using, c.answers)
		require.Equal(t, c.want, successor, name)
		require.Equal(t, c.by, by, name)
	}
}
