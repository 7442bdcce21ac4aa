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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// guard is a process that kills the command's group when lockreg is gone without a word: nobody renews the lock any more. It
// learns that from its standard input, whose other end nobody but lockreg has.
type guard struct {
	pipe *os.File
	pid  int
}

const guardCommandName = "guard-a-group"

// startGuard starts one. Process 1 needs none: when it ends the kernel kills all others.
func startGuard() (*guard, error) {
	if os.Getpid() == 1 {
		return &guard{}, nil
	}
	self := "/proc/self/exe" // this very program, also when its file was replaced meanwhile
	if _, err := os.Stat(self); err != nil {
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.Command(self, guardCommandName) //nolint:noctx // it outlives everything
	cmd.Args[0] = os.Args[0]
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of the terminal
	if err := cmd.Start(); err != nil {
		_ = write.Close()
		return nil, err
	}
	return &guard{pipe: write, pid: cmd.Process.Pid}, nil
}

// watch names the group.
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

// guardCommand is what the guard runs. It is for lockreg alone.
func (a *app) guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    guardCommandName,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
			if group := lastGroup(a.in); group > 1 {
				return unix.Kill(-group, unix.SIGKILL)
			}
			return nil
		},
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
