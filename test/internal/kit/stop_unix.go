//go:build unix

package kit

import (
	"errors"
	"os"
	"syscall"
)

// Stop stops a child process, and returns once it has really stopped.
func Stop(child *os.Process) error {
	if err := child.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(child.Pid, &status, syscall.WUNTRACED, nil); err != nil {
		return err
	}
	if !status.Stopped() {
		return errors.New("it has ended")
	}
	return nil
}

// Continue resumes a stopped process.
func Continue(child *os.Process) error { return child.Signal(syscall.SIGCONT) }
