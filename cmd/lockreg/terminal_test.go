//go:build linux

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// session is an interactive shell on a terminal of its own.
type session struct {
	*program

	keys *os.File
}

func startSession(t *testing.T, url string) *session {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &program{Cmd: exec.Command("bash", "--norc", "--noprofile", "--noediting", "-i"), done: make(chan struct{})}
	p.Env = append(os.Environ(), "REDIS_URL="+url, "LOCKREG="+binary, "PS1=prompt$((1+1))> ", "HISTFILE=")
	p.Stdin, p.Stdout, p.Stderr = screen, screen, screen
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.begin(t)
	require.NoError(t, screen.Close())
	t.Cleanup(func() { _ = keys.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			_, _ = p.out.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	s := &session{p, keys}
	s.says(t, "prompt2>")
	return s
}

func (s *session) press(t *testing.T, keys string) {
	t.Helper()
	_, err := s.keys.WriteString(keys)
	require.NoError(t, err)
}

// after waits until something is said after the last time that it was said.
func (s *session) after(t *testing.T, keys, what string) {
	t.Helper()
	before := strings.Count(s.out.String(), what)
	s.press(t, keys)
	eventually(t, fmt.Sprintf("%q is said for %q", what, keys), func() bool {
		return strings.Count(s.out.String(), what) > before
	})
}

// What is run has the terminal: its user's keys, and the shell's job control.
func TestRunTerminal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG run shop a -- sh -c 'echo rea''dy; while read x; do echo got-$x; done'\n", "ready")
	shell.after(t, "one\n", "got-one")
	value := s.Command(t, "GET", "shop:a")

	// Ctrl-Z stops the command and lockreg, fg has both go on.
	shell.after(t, "\x1a", "Stopped")
	shell.after(t, "echo free-$((20+3))\n", "free-23")
	shell.after(t, "fg\ntwo\n", "got-two")
	assert.Equal(t, value, s.Command(t, "GET", "shop:a"))

	// A signal that stops lockreg itself.
	shell.after(t, "\x1a", "Stopped")
	shell.after(t, "bg\nkill -TSTP %1; while ! jobs | grep Stop''ped; do sleep 0.05; done\n", "Stopped")
	shell.after(t, "fg\nthree\n", "got-three")

	// Ctrl-C is for the command.
	shell.after(t, "\x03", "prompt2>")
	shell.after(t, "echo code-$?\n", "code-130")
	assert.False(t, s.has(t, "shop:a"))

	// In a pipeline the command is given the terminal when it asks for it, and the shell has it back afterwards.
	shell.after(t, "$LOCKREG run shop a -- sh -c 'echo rea''dy; read x; echo got-$x' | cat\n", "ready")
	shell.after(t, "four\n", "got-four")
	shell.after(t, "echo code-$((40+2))\n", "code-42")

	// In the background it waits for the terminal, and gets it with lockreg.
	shell.after(t, "$LOCKREG run shop a -- sh -c 'echo rea''dy; read x; echo got-$x' &\n", "ready")
	shell.after(t, "fg\nfive\n", "got-five")
}

// Ctrl-C ends the script that has started lockreg, whether or not the command has the terminal.
func TestRunTerminalInScript(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	shell := startSession(t, s.url)
	script := filepath.Join(t.TempDir(), "script")
	write := func(text string) {
		require.NoError(t, os.WriteFile(script, []byte(text+"\necho went-on-$?\n"), 0o600))
	}
	const command = "$LOCKREG run shop a -- sh -c 'echo ready >/dev/tty; exec sleep 60'"
	for _, run := range []string{command, command + " </dev/null"} {
		write(run)
		for _, sh := range []string{"bash", "dash"} {
			shell.after(t, sh+" "+script+"\n", "ready")
			shell.after(t, "\x03", "prompt2>")
			assert.NotContains(t, shell.out.String(), "went-on", "%s: %s", sh, run)
			eventually(t, "the lock is free", func() bool { return !s.has(t, "shop:a") })
		}
	}

	// So does Ctrl-\, but with bash, which ignores it.
	write(command)
	shell.after(t, "dash "+script+"\n", "ready")
	shell.after(t, "\x1c", "prompt2>")
	assert.NotContains(t, shell.out.String(), "went-on")

	// A command that ends with a code of its own has dealt with the key.
	write("$LOCKREG run shop a -- sh -c 'trap \"exit 3\" INT; echo ready; while :; do sleep 0.05; done'")
	shell.after(t, "bash "+script+"\n", "ready")
	shell.after(t, "\x03", "went-on-3")

	// While lockreg waits for the lock.
	s.Command(t, "SET", "shop:a", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11", "PX", "600000")
	write("$LOCKREG run shop a -- echo ready")
	shell.press(t, "bash "+script+"\n")
	eventually(t, "it waits", func() bool { return s.waiters(t, "shop", "a") == 1 })
	shell.after(t, "\x03", "prompt2>")
	assert.Equal(t, 1, strings.Count(shell.out.String(), "went-on"))
}

// The lock is lost while all is stopped. What goes on then is only the end.
func TestRunTerminalLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG run shop a -- sh -c 'trap \"echo got-TE''RM; exit 1\" TERM; "+
		"echo rea''dy; while :; do read x; echo got-$x; done'\n", "ready")
	shell.after(t, "\x1a", "Stopped")
	s.Command(t, "DEL", "shop:a")
	shell.after(t, "fg\n", "got-TERM")
	shell.after(t, "\necho code-$?\n", "code-70")
	assert.NotContains(t, shell.out.String(), "got-\r")
}

// A terminal that stops what writes to it in the background does not stop lockreg, which is there while the command has the
// terminal: the command is ended in time.
func TestRunTerminalThatStopsWriters(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	shell := startSession(t, s.url)
	shell.after(t, "stty tostop; $LOCKREG run --lease 9s --grace 300ms shop a -- sh -c 'trap \"\" TERM; echo rea''dy; "+
		"while :; do sleep 0.05; done'\n", "ready")
	s.Freeze()
	shell.after(t, "", "prompt2>")
	shell.after(t, "echo code-$?\n", "code-70")
}

// A release that is interrupted leaves a line that says so: it may take place all the same.
func TestReleaseInterrupted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:a", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11", "PX", "600000")
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG release shop a --reason 'it hangs'\n", "[y/N]")
	s.Freeze()
	shell.press(t, "y\n")
	eventually(t, "the command has arrived", func() bool { return unread(t, s.Addr()) })
	shell.after(t, "\x03", "result=unknown")
	assert.Contains(t, shell.out.String(), `reason="it hangs"`)
	shell.after(t, "echo code-$?\n", "code-130")
}

// unread reports whether a frozen server has got a script to run: more than what a client asks to see whether it answers.
func unread(t *testing.T, address string) bool {
	t.Helper()
	const script = 100
	all, err := os.ReadFile("/proc/net/tcp")
	require.NoError(t, err)
	_, port, _ := strings.Cut(address, ":")
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	for line := range strings.Lines(string(all)) {
		fields := strings.Fields(line) // number, local address, remote one, state, what is yet to be sent and to be read
		if len(fields) < 5 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			continue
		}
		_, queued, _ := strings.Cut(fields[4], ":")
		if n, err := strconv.ParseInt(queued, 16, 64); err == nil && n >= script {
			return true
		}
	}
	return false
}
