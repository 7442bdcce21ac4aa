package kit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Relay is a proxy in front of several servers of a fake world, like Envoy and Twemproxy: it sends each command to one of them,
// chosen by its first key. It speaks version 2 of the protocol, and knows neither subscriptions nor HELLO, CLIENT and WAIT.
type Relay struct {
	Servers []*World
	Tags    bool         // keys with the same hash tag are on the same server; otherwise the whole key decides
	Refuses string       // the error for a command whose keys are on several servers; empty: the first key decides
	Refused atomic.Int64 // how many commands got that error
	Sent    atomic.Int64 // how many were sent to a server

	serving sync.WaitGroup
}

// way is a relay's connection to a server, for one client.
type way struct {
	net.Conn
	replies *bufio.Reader
}

// Relay makes a relay in front of the server of this fake world and another one.
func (w *World) Relay(tags bool, refuses string) *Relay {
	w.Helper()
	r := &Relay{Servers: []*World{w, fakeServer(w.T)}, Tags: tags, Refuses: refuses}
	w.Cleanup(r.serving.Wait) // clients are closed first
	return r
}

// Home returns the server that a key belongs to.
func (r *Relay) Home(key string) *World {
	if r.Tags {
		key = protocol.HashTag(key)
	}
	sum := uint32(2166136261) // FNV-1a, as good as what real proxies use
	for _, c := range []byte(key) {
		sum = (sum ^ uint32(c)) * 16777619
	}
	return r.Servers[sum>>16%uint32(len(r.Servers))]
}

// Registry returns a registry with the prefix orders behind the relay, closed at the end of the test.
func (r *Relay) Registry(opts ...lockregistry.Option) *lockregistry.Registry {
	w := r.Servers[0]
	w.Helper()
	return w.RegistryOn(w.ClientWith(r.dial, OneConnection, Pipelining, Unasked, func(o *rueidis.ClientOption) {
		o.AlwaysRESP2 = true
	}), opts...)
}

func (r *Relay) dial(context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	r.serving.Go(func() { r.serve(server) })
	return client, nil
}

// serve relays the commands of a client, one after the other.
func (r *Relay) serve(client net.Conn) {
	ways := map[*World]*way{}
	defer func() {
		_ = client.Close()
		for _, w := range ways {
			_ = w.Close()
		}
	}()
	for from := bufio.NewReader(client); ; {
		args, err := readArray(from)
		if err != nil {
			return
		}
		reply, err := r.relay(ways, args)
		if err != nil {
			return
		}
		if _, err = client.Write(reply); err != nil {
			return
		}
	}
}

// relay returns the reply to a command.
func (r *Relay) relay(ways map[*World]*way, args []string) (reply []byte, err error) {
	keys, known := keysOf(args)
	if !known {
		return fmt.Appendf(nil, "-ERR unknown command '%s'\r\n", args[0]), nil
	}
	to := r.Servers[0]
	if len(keys) > 0 {
		to = r.Home(keys[0])
	}
	elsewhere := func(key string) bool { return r.Home(key) != to }
	if r.Refuses != "" && slices.ContainsFunc(keys, elsewhere) {
		r.Refused.Add(1)
		return []byte("-" + r.Refuses + "\r\n"), nil
	}
	over := ways[to]
	if over == nil {
		conn, err := to.Dial(to.Context())
		if err != nil {
			return nil, err
		}
		over = &way{conn, bufio.NewReader(conn)}
		ways[to] = over
	}
	r.Sent.Add(1)
	command := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		command = fmt.Appendf(command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := over.Write(command); err != nil {
		return nil, err
	}
	return appendReply(nil, over.replies)
}

// keysOf returns the keys of a command that a relay knows.
func keysOf(args []string) (keys []string, known bool) {
	switch strings.ToUpper(args[0]) {
	case "PING", "INFO", "SCRIPT", "COMMAND", "SELECT":
		return nil, true
	case "GET", "SET", "PTTL", "TTL", "EXISTS", "HEXISTS", "UNLINK", "DEL", "PEXPIRE", "TYPE", "HGETALL", "ZRANGE":
		return args[1:2], true
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO":
		n, err := strconv.Atoi(args[2])
		if err != nil || len(args) < 3+n {
			return nil, false
		}
		return args[3 : 3+n], true
	default:
		return nil, false
	}
}

var errNoArray = errors.New("no command")

func readArray(from *bufio.Reader) (args []string, err error) {
	n, err := readLength(from, '*')
	for range n {
		var size int
		if size, err = readLength(from, '$'); err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(from, text); err != nil {
			return nil, err
		}
		args = append(args, string(text[:size]))
	}
	if err == nil && len(args) == 0 {
		err = errNoArray
	}
	return args, err
}

func readLength(from *bufio.Reader, kind byte) (int, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, errNoArray
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func appendReply(raw []byte, from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadBytes('\n')
	raw = append(raw, line...)
	if err != nil || line[0] != '$' && line[0] != '*' {
		return raw, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch {
	case err != nil || n < 0:
		return raw, err
	case line[0] == '$':
		text := make([]byte, n+2)
		_, err = io.ReadFull(from, text)
		return append(raw, text...), err
	}
	for range n {
		if raw, err = appendReply(raw, from); err != nil {
			return raw, err
		}
	}
	return raw, nil
}
