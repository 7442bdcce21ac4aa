//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guard is a process that kills the command's group when lockreg dies, since the lock is no longer renewed. It notices that by
// its standard input, whose other end only lockreg has.
type guard struct {
	pipe  *os.File // nil: process 1 needs none, since the kernel kills all others when it ends
	pid   int
	began time.Time
	gone  bool
	told  bool // that it is gone and no other one could be started
}

// guardName is the whole command line of a guard. Nothing of it says lockreg: a pattern that finds lockreg must not find both.
const guardName = "process-group-guard"

// startGuard starts one.
func startGuard() (*guard, error) {
	if os.Getpid() == 1 {
		return &guard{}, nil
	}
	self, err := myself()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.Command(self) //nolint:gosec,noctx // this program; it outlives everything
	cmd.Args = []string{guardName}
	cmd.Env = withoutRedis(os.Environ())
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of the terminal
	if err := cmd.Start(); err != nil {
		_ = write.Close()
		return nil, err
	}
	return &guard{pipe: write, pid: cmd.Process.Pid, began: time.Now()}, nil
}

// myself is a name of this program that can be run.
func myself() (string, error) {
	const self = "/proc/self/exe" // this very program, also when its file was replaced meanwhile
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// watch names the group. Once it is in the pipe the guard acts on it, also when lockreg ends at once.
func (g *guard) watch(group int) {
	if g.pipe != nil {
		_, _ = fmt.Fprintln(g.pipe, group)
	}
}

// dismiss ends the guard: the group is over. Its number may name another one soon.
func (g *guard) dismiss() {
	if g.pipe != nil {
		_, _ = fmt.Fprintln(g.pipe, 0)
		_ = g.pipe.Close()
	}
}

// changed handles the guard's status from a wait, and reports whether the guard is gone.
func (g *guard) changed(status syscall.WaitStatus) bool {
	if status.Stopped() { // a stopped guard would notice nothing
		_ = unix.Kill(g.pid, unix.SIGKILL)
	}
	g.gone = status.Exited() || status.Signaled()
	return g.gone
}

func (g *guard) age() time.Duration { return time.Since(g.began) }

// guardGroup is the main function of the guard.
func guardGroup(in io.Reader) {
	nameProcess(guardName)
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if group := lastGroup(in); group > 1 {
		_ = unix.Kill(-group, unix.SIGKILL)
	}
}

// lastGroup reads until lockreg is gone, and returns the group that it named last.
func lastGroup(in io.Reader) (group int) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		group, _ = strconv.Atoi(strings.TrimSpace(lines.Text()))
	}
	return group
}
