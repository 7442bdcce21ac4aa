//go:build unix

package redistest

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// watch starts a watchdog that kills the server and removes its directory when this program dies without calling Stop, as a
// test does at its timeout. The watchdog waits on a pipe whose other end this program holds, so the operating system wakes it.
// It ignores the signals of an interrupted terminal, which would otherwise leave a frozen server behind.
func (s *Server) watch() error {
	watchdog := exec.Command("sh", "-c", `trap "" HUP INT TERM; read -r _; kill -9 "$1"; rm -rf "$2"`,
		"sh", strconv.Itoa(s.process.Process.Pid), s.dir)
	lifeline, err := watchdog.StdinPipe()
	if err != nil {
		return err
	}
	if err := watchdog.Start(); err != nil {
		return err
	}
	s.watchdog, s.lifeline = watchdog, lifeline
	return nil
}

// exited reports whether a child of this program has ended.
func exited(pid int) bool {
	var status syscall.WaitStatus
	ended, err := wait(pid, &status, syscall.WNOHANG)
	return ended == pid || errors.Is(err, syscall.ECHILD)
}

// freeze stops a process. The signal alone is not enough: the process may run on
// for a moment after it was sent, and answer one command too many.
func freeze(process *os.Process) error {
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := wait(process.Pid, &status, syscall.WUNTRACED); err != nil {
		return err
	}
	if !status.Stopped() {
		return errors.New("the process has ended")
	}
	return nil
}

func thaw(process *os.Process) error { return process.Signal(syscall.SIGCONT) }

// wait is wait4, repeated when a signal to this program interrupts it.
func wait(pid int, status *syscall.WaitStatus, options int) (int, error) {
	for {
		ended, err := syscall.Wait4(pid, status, options, nil)
		if !errors.Is(err, syscall.EINTR) {
			return ended, err
		}
	}
}

// lockByte locks a byte of a file, and reports false if another program has locked it. Where files cannot be locked it reports
// true.
func lockByte(file *os.File, at int) bool {
	err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(at), Len: 1})
	return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES)
}

func unlockByte(file *os.File, at int) {
	_ = syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_UNLCK, Start: int64(at), Len: 1})
}
