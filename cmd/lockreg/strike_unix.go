//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// strike is the signal that has ended the command, or the wait for the lock; 0: none has.
type strike struct {
	signal syscall.Signal
	group  bool // the command had the terminal, whose user's keys send signals to the command's group alone
}

// pass ends, after Ctrl-C, what has started lockreg, too: a script must not go on with the line after lockreg. The shell
// of a script ends only if it has got the signal, and if lockreg dies of it: bash goes on after an exit code, also after 130.
func (s strike) pass() {
	target := os.Getpid()
	if s.group {
		target = 0
	}
	switch {
	case s.signal == unix.SIGQUIT && s.group:
		signal.Ignore(unix.SIGQUIT) // lockreg would die with all its goroutines on the screen
		_ = unix.Kill(0, unix.SIGQUIT)
	case s.signal == unix.SIGINT && os.Getpid() != 1: // process 1 cannot die of a signal
		signal.Reset(unix.SIGINT)
		_ = unix.Kill(target, unix.SIGINT)
		time.Sleep(time.Second) // another thread may get it; it may have been ignored when lockreg was started
	}
}
