package connect

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// When a server closes a connection, rueidis knows no more than that. So the server is asked once more, without HELLO. With TLS
// the server may have said why, for instance that it asks for a certificate; but if the client writes at the same time, that
// message is lost on the way.

// wasClosed reports whether an error says that the server has closed the connection.
func wasClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// answer is what a server says to PING.
type answer struct {
	line    string // without the end; empty: nothing
	alert   error  // what it says in place of a line; nil: nothing
	noHello bool   // it has answered PING, and then closed the connection at HELLO
}

const noHello = "it answers PING, and closes the connection at HELLO: a proxy without HELLO, such as Twemproxy, " +
	"which this library cannot use"

const (
	mostAsked = 3            // servers, of several
	askLimit  = time.Second  // for each server
	unasked   = askLimit / 5 // for what a server says at once, before it is asked
	mostSaid  = 200          // bytes of a line
)

// ask asks the servers one after the other, until one says something. With Sentinels it asks the server that was dialed last.
func ask(ctx context.Context, dial dialing, last place, option *rueidis.ClientOption) (a answer) {
	if option.Sentinel.MasterSet != "" {
		return askOne(ctx, dial, last)
	}
	for i := 0; i < min(len(option.InitAddress), mostAsked) && a == (answer{}); i++ {
		a = askOne(ctx, dial, place{option.InitAddress[i], &option.Dialer, option.TLSConfig})
	}
	return a
}

func askOne(ctx context.Context, dial dialing, at place) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := dial(ctx, at.address, at.dialer, at.config)
	if err != nil {
		return a
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	from := bufio.NewReaderSize(conn, mostSaid)
	// The server may have said something and closed the connection. A write would then throw away what it said.
	_ = conn.SetReadDeadline(time.Now().Add(unasked))
	line, _, err := from.ReadLine()
	if a.alert = alertOf(err); a.alert != nil {
		return a
	}
	if len(line) == 0 {
		_ = conn.SetReadDeadline(time.Time{})
		_, _ = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		line, _, _ = from.ReadLine()
	}
	if len(line) == 0 || line[0] != '+' && line[0] != '-' {
		return a
	}
	a.line = string(line)
	_, _ = conn.Write([]byte("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n"))
	_, err = from.ReadByte()
	a.noHello = wasClosed(err) && ctx.Err() == nil
	return a
}

// explainClosed says why a server has closed the connection, if the server does. Otherwise it returns why.
func explainClosed(why error, a answer, s *secrets, o *rueidis.ClientOption) error {
	if a.alert != nil {
		return explain(a.alert, s, o)
	}
	said := strings.TrimLeft(a.line, "-")
	switch refuses := strings.HasPrefix(a.line, "-"); {
	case a.noHello && (a.line == "+PONG" || strings.HasPrefix(said, "NOAUTH")):
		return explained{noHello, fault.Lasting}
	case !refuses || s.in(said):
		return why
	case fault.Passes(strings.TrimPrefix(said, "ERR "), false):
		return explained{"it says " + said + ", and closes the connection", nil}
	case strings.HasPrefix(said, "DENIED"):
		return explained{"it says " + said + ", and closes the connection", fault.Lasting}
	default:
		return explained{"it says " + said + ", and closes the connection: perhaps it is not Redis", nil}
	}
}
