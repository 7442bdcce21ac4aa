package transport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// Behind a proxy that dials anew for each command every look meets another connection. The looks end all the same.
func TestDemotion_LooksThatMeetNewConnectionsOnly(t *testing.T) {
	var looks atomic.Int64
	server := greets(t, func() (role string, connection int64) { return "master", looks.Add(1) })
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server}, ForceSingleClient: true, DisableCache: true, AlwaysRESP2: true,
	})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	defer way.Close()
	s := way.First
	s.act(s.belief.Redirected(way.Clock.Now()), 0)
	require.True(t, s.IsSuspect(way.Clock.Now()))
	looks.Store(0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.closeOld()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.Fail(t, "it looks for ever")
	}
	require.False(t, s.IsSuspect(way.Clock.Now()))
	require.LessOrEqual(t, looks.Load(), int64(1024+8), "the fresh connection, and new ones, are greeted, too")
}

// greets returns the address of a server that answers HELLO with a role and the number of a connection, and everything else
// with OK.
func greets(t *testing.T, hello func() (role string, connection int64)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewReader(conn); ; {
					words, err := command(lines)
					if err != nil {
						return
					}
					reply := "+OK\r\n"
					if words[0] == "HELLO" {
						role, id := hello()
						reply = fmt.Sprintf("*4\r\n$4\r\nrole\r\n$%d\r\n%s\r\n$2\r\nid\r\n:%d\r\n", len(role), role, id)
					}
					_, _ = io.WriteString(conn, reply)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().String()
}

// command reads a command.
func command(lines *bufio.Reader) (words []string, err error) {
	for i, n := 0, 1; i < n && err == nil; i++ {
		var line string
		if line, err = lines.ReadString('\n'); err != nil {
			return nil, err
		}
		line = strings.TrimSpace(line)
		switch line[0] {
		case '*':
			n, err = strconv.Atoi(line[1:])
			n = 2*n + 1
		case '$':
		default:
			words = append(words, line)
		}
	}
	return words, err
}
