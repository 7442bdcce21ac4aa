package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// commandLimit bounds one command, so that a frozen server cannot hang a test.
const commandLimit = 10 * time.Second

// ReplyError is an error that the server replied with, such as "NOAUTH ...".
type ReplyError string

func (e ReplyError) Error() string { return string(e) }

// Do runs one command on its own connection and returns the reply as text: "(nil)" for a null, an array with one element per
// line. An error reply is returned as a ReplyError.
func (s *Server) Do(args ...string) (reply string, err error) {
	c, err := s.connect()
	if err != nil {
		return "", err
	}
	defer func() { _ = c.conn.Close() }()
	return c.do(args...)
}

// Connection is a connection to a server, for a test that sends it many commands one after the other.
type Connection struct {
	tb     testing.TB
	server *Server
	conn   net.Conn
	reader *bufio.Reader
}

// Connect makes a connection. It is closed when the test ends.
func (s *Server) Connect(tb testing.TB) *Connection {
	tb.Helper()
	c, err := s.connect()
	if err != nil {
		tb.Fatalf("redistest: a connection to %s: %v", s.Addr(), err)
	}
	tb.Cleanup(func() { _ = c.conn.Close() })
	c.tb = tb
	return c
}

// Command is [Server.Command] over this connection.
func (c *Connection) Command(args ...string) string {
	c.tb.Helper()
	reply, err := c.do(args...)
	if err != nil {
		c.tb.Fatalf("redistest: %s on %s: %v", strings.Join(args, " "), c.server.Addr(), err)
	}
	return reply
}

func (s *Server) connect() (*Connection, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), commandLimit)
	if err != nil {
		return nil, err
	}
	c := &Connection{server: s, conn: conn, reader: bufio.NewReader(conn)}
	if s.password != "" {
		if _, err := c.do("AUTH", s.password); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return c, nil
}

func (c *Connection) do(args ...string) (string, error) {
	if err := c.conn.SetDeadline(time.Now().Add(commandLimit)); err != nil {
		return "", err
	}
	return call(c.conn, c.reader, args...)
}

// Command is Do for a test: it fails the test on any error, an error reply
// included, so that a mistyped command is not taken for one that worked.
func (s *Server) Command(tb testing.TB, args ...string) string {
	tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		tb.Fatalf("redistest: %s on %s: %v", strings.Join(args, " "), s.Addr(), err)
	}
	return reply
}

// Version returns the version of Redis that the server says it is, or is
// compatible with.
func (s *Server) Version(tb testing.TB) string {
	tb.Helper()
	version := field(s.Command(tb, "INFO", "server"), "redis_version")
	if version == "" {
		tb.Fatalf("redistest: %s on %s tells no redis_version in INFO", s.binary, s.Addr())
	}
	return version
}

// field returns the value of a "name:value" line, or "".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && key == name {
			return value
		}
	}
	return ""
}

// call writes a command in the Redis serialization protocol, version 2, and
// reads the reply.
func call(writer io.Writer, reader *bufio.Reader, args ...string) (string, error) {
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(writer, request.String()); err != nil {
		return "", err
	}
	return readReply(reader)
}

func readReply(reader *bufio.Reader) (string, error) {
	line, err := reader.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("empty line where a reply should start")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", ReplyError(rest)
	case '$', '*':
	default:
		return "", fmt.Errorf("reply of unknown kind %q", line)
	}
	size, err := strconv.Atoi(rest)
	if err != nil {
		return "", fmt.Errorf("reply %q has no length: %w", line, err)
	}
	if size < 0 {
		return "(nil)", nil
	}
	if kind == '*' {
		return readElements(reader, size)
	}
	bulk := make([]byte, size+len("\r\n"))
	if _, err := io.ReadFull(reader, bulk); err != nil {
		return "", err
	}
	return string(bulk[:size]), nil
}

// readElements reads the elements of an array. An error among them is text like
// any other, so that the rest is still read.
func readElements(reader *bufio.Reader, size int) (string, error) {
	elements := make([]string, size)
	for i := range elements {
		element, err := readReply(reader)
		var refused ReplyError
		if errors.As(err, &refused) {
			element = refused.Error()
		} else if err != nil {
			return "", err
		}
		elements[i] = element
	}
	return strings.Join(elements, "\n"), nil
}
