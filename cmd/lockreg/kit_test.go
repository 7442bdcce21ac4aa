package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// binary is the program under test, built once, with the race detector.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockreg-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { // for tests as another user
		panic(err)
	}
	binary = filepath.Join(dir, "lockreg")
	if out, err := exec.Command("go", "build", "-race", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v: %s", err, out)
		return 1
	}
	return m.Run()
}

// patience is for what takes milliseconds on a machine with nothing else to do, or seconds for which a command sleeps.
const patience = time.Minute

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time:", what)
		}
	}
}

// text is what a program has written so far.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

// program is lockreg while it runs.
type program struct {
	*exec.Cmd

	out, err text
	done     chan struct{}
}

// prepare is lockreg with arguments, on a server.
func prepare(url string, args ...string) *program {
	p := &program{Cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.Env = append(os.Environ(), "REDIS_URL="+url)
	p.Stdout, p.Stderr = &p.out, &p.err
	p.WaitDelay = 10 * time.Second // those that outlive it may have its output
	return p
}

func (p *program) begin(t *testing.T) *program {
	t.Helper()
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
	})
	return p
}

// code waits for the end, and returns what lockreg exits with.
func (p *program) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("%v does not end; it has said\n%s\n%s", p.Args[1:], p.out.String(), p.err.String())
	}
	status := p.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Exited(), "%v was ended by %v: %s", p.Args[1:], status.Signal(), p.err.String())
	return status.ExitStatus()
}

// says waits until the program has written something to its output.
func (p *program) says(t *testing.T, what string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v says %q", p.Args[1:], what), func() bool {
		if strings.Contains(p.out.String(), what) {
			return true
		}
		select {
		case <-p.done:
			t.Fatalf("%v has ended: %s%s", p.Args[1:], p.out.String(), p.err.String())
		default:
		}
		return false
	})
}

// lockreg runs the program to its end.
func lockreg(t *testing.T, url string, args ...string) (code int, out, err string) {
	t.Helper()
	p := prepare(url, args...).begin(t)
	code = p.code(t)
	return code, p.out.String(), p.err.String()
}

// server is a Redis and its address.
type server struct {
	*redistest.Server

	url string
}

func startServer(t *testing.T, args ...string) server {
	t.Helper()
	s := redistest.Start(t, args...)
	return server{s, "redis://" + s.Addr()}
}

func (s server) has(t *testing.T, key string) bool {
	t.Helper()
	return s.Command(t, "EXISTS", key) == "1"
}

// waiters is how many calls have a place in the queue of a path.
func (s server) waiters(t *testing.T, prefix, path string) int {
	t.Helper()
	n, err := strconv.Atoi(s.Command(t, "ZCOUNT", prefix+":{"+prefix+":"+path+"}:waiters", "0", "+inf"))
	require.NoError(t, err)
	return n
}

// alive tells whether there is a process that is no zombie.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// lines are those of a text that begin with a word, without it.
func lines(s, word string) (found []string) {
	for line := range strings.Lines(s) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), word+" "); ok {
			found = append(found, rest)
		}
	}
	return found
}
