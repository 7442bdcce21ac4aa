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

// Once all name a successor, the connections of a client that uses the former master to Sentinels end, so that it asks them
// again: those to servers do not, and not while one names the former master still.
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
	all[1].change(func() { all[1].answer = stands("b", heir) })
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	require.Zero(t, w.prompter.at, "one still names the former master")
	all[2].change(func() { all[2].answer = stands("c", heir) })
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	for _, conn := range []net.Conn{followed, discovered} {
		_ = conn.SetReadDeadline(time.Now().Add(patience)) // it may have ended
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	}
	_, err := io.WriteString(toServer, array(bulk("PING")))
	require.NoError(t, err)
	_, err = io.ReadFull(toServer, make([]byte, len("+PONG\r\n")))
	require.NoError(t, err)

	at := w.prompter.at
	require.Equal(t, Replaced, w.Ask(former, patience, patience))
	require.Equal(t, at, w.prompter.at, "not again so soon")
	require.Equal(t, Vouched, w.Ask(heir, patience, patience))
	_, err = w.Tracked(func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, io.EOF })(
		t.Context(), all[0].address(), nil, nil)
	require.ErrorIs(t, err, io.EOF)
}

func TestOutdated(t *testing.T) {
	for name, c := range map[string]struct {
		using   string
		answers []Answer
		want    bool
	}{
		"nobody":                {former, nil, false},
		"all name the one used": {heir, []Answer{stands("a", heir), stands("b", heir), stands("c", heir)}, false},
		"all name another":      {former, []Answer{stands("a", heir), stands("b", heir), stands("c", heir)}, true},
		"two of three do":       {former, []Answer{stands("a", heir), stands("b", heir)}, true},
		"one of three does":     {former, []Answer{stands("a", heir)}, false},
		"not all do":            {former, []Answer{stands("a", heir), stands("b", heir), stands("c", former)}, false},
		"and two find it down":  {former, []Answer{stands("a", heir, foundDown), stands("b", heir, foundDown)}, false},
	} {
		require.Equal(t, c.want, outdated(c.using, c.answers), name)
	}
}
