// Package monitor watches the commands that a Redis server gets, so that a test can wait until another process has tried, and
// check what it sent.
package monitor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// markLimit bounds how far the server's MONITOR output may lag.
const markLimit = 30 * time.Second

// Command is one command that the server has executed.
type Command struct {
	Script bool     // called by a script, not by a client
	Words  []string // its name, in upper case, and its arguments
}

func (c Command) String() string { return fmt.Sprintf("script=%t %q", c.Script, c.Words) }

// Mentions reports whether text is one of the arguments.
func (c Command) Mentions(text string) bool {
	return slices.Contains(c.Words[1:], text)
}

// Monitor collects commands.
type Monitor struct {
	tb    testing.TB
	asker net.Conn // for the ECHO commands of marks
	marks atomic.Int64

	mu       sync.Mutex
	commands []Command
	more     chan struct{} // closed and replaced when a command is added
	err      error         // why no more commands will come
}

// Start watches the server until the test ends.
func Start(tb testing.TB, addr string) *Monitor {
	tb.Helper()
	conn, asker := dial(tb, addr), dial(tb, addr)
	m := &Monitor{tb: tb, asker: asker, more: make(chan struct{})}
	lines := bufio.NewReader(conn)
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		tb.Fatalf("monitor: %v", err)
	}
	if reply, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(reply, "+OK") {
		tb.Fatalf("monitor: the server answered %q, %v", reply, err)
	}
	var ended sync.WaitGroup
	ended.Go(func() { m.read(lines) })
	ended.Go(func() { _, _ = io.Copy(io.Discard, asker) })
	tb.Cleanup(func() {
		_ = conn.Close()
		_ = asker.Close()
		ended.Wait()
	})
	return m
}

func dial(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	conn, err := new(net.Dialer).DialContext(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatalf("monitor: %v", err)
	}
	return conn
}

func (m *Monitor) read(lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		var command Command
		if err == nil {
			command, err = parse(line)
		}
		m.mu.Lock()
		if err != nil {
			m.err = err
		} else {
			m.commands = append(m.commands, command)
		}
		close(m.more)
		m.more = make(chan struct{})
		m.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// parse reads a line such as
//
//	+1764000000.123456 [0 127.0.0.1:45678] "SET" "key" "a \"quoted\" value"
//
// where the sender of a script's command is the word lua.
func parse(line string) (Command, error) {
	head, rest, ok := strings.Cut(line, "] ")
	if !ok {
		return Command{}, fmt.Errorf("monitor: no command: %q", line)
	}
	command := Command{Script: strings.HasSuffix(head, " lua")}
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return Command{}, fmt.Errorf("monitor: no word of a command: %q", rest)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return Command{}, fmt.Errorf("monitor: no word of a command: %q", quoted)
		}
		command.Words = append(command.Words, word)
		rest = rest[len(quoted):]
	}
	if len(command.Words) == 0 {
		return Command{}, fmt.Errorf("monitor: no command: %q", line)
	}
	command.Words[0] = strings.ToUpper(command.Words[0])
	return command, nil
}

// Mark is a position in the collected commands.
type Mark int

// Mark returns the position after everything that the server has executed so far. The server's MONITOR output may lag, so Mark
// sends an ECHO and waits until it shows up there.
func (m *Monitor) Mark() Mark {
	m.tb.Helper()
	m.mu.Lock()
	before := Mark(len(m.commands))
	m.mu.Unlock()
	word := fmt.Sprintf("mark %p %d", m, m.marks.Add(1))
	if _, err := fmt.Fprintf(m.asker, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(word), word); err != nil {
		m.tb.Fatalf("monitor: %v", err)
	}
	ctx, cancel := context.WithTimeout(m.tb.Context(), markLimit)
	defer cancel()
	isMark := func(c Command) bool { return c.Mentions(word) }
	if _, err := m.Await(ctx, before, 1, isMark); err != nil {
		m.tb.Fatalf("monitor: no mark: %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return before + Mark(slices.IndexFunc(m.commands[before:], isMark)) + 1
}

// Since returns the commands after mark that match.
func (m *Monitor) Since(mark Mark, match func(Command) bool) []Command {
	found, _, _ := m.look(mark, match)
	return found
}

// Await waits until n commands after mark match, and returns them.
func (m *Monitor) Await(ctx context.Context, mark Mark, n int, match func(Command) bool) ([]Command, error) {
	for {
		found, more, err := m.look(mark, match)
		if len(found) >= n {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return found, fmt.Errorf("monitor: %d of %d commands came: %w", len(found), n, ctx.Err())
		}
	}
}

func (m *Monitor) look(mark Mark, match func(Command) bool) (found []Command, more <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, command := range m.commands[mark:] {
		if match(command) {
			found = append(found, command)
		}
	}
	return found, m.more, m.err
}
