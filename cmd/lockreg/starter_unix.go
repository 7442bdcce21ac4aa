//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter is a process that waits until it may become the command. So the command's process group exists, and the guard knows
// it, before the command runs. It is this program under another name:
//
//	waits ──lockreg says so──▶ is the command
//	   ├────lockreg is gone──▶ ends
//	   └────cannot be run────▶ tells why, and ends
type starter struct {
	pid int
	say *os.File // a byte makes it go on; end of file makes it end
	why *os.File // an error number, when the command cannot be run; nothing when it is the command
}

// starterName is the first word of its command line. The descriptors of its ends of the pipes follow, then the program and the
// arguments of the command.
const starterName = "command-starter"

// prepareCommand starts a starter. Its ends of the pipes keep their numbers, which were free: the command gets all files that
// lockreg was started with, such as that of "3>log", or those of make's job server.
func prepareCommand(program string, args, env []string, attr *syscall.SysProcAttr) (*starter, error) {
	self, err := myself()
	if err != nil {
		return nil, err
	}
	sayRead, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = sayRead.Close() }()
	why, whyWrite, err := os.Pipe()
	if err != nil {
		_ = say.Close()
		return nil, err
	}
	defer func() { _ = whyWrite.Close() }()
	s := &starter{say: say, why: why}
	ends := []int{int(sayRead.Fd()), int(whyWrite.Fd())}
	words := append([]string{starterName, strconv.Itoa(ends[0]), strconv.Itoa(ends[1]), program}, args...)
	for _, end := range ends { // no other goroutine starts processes
		if _, err = unix.FcntlInt(uintptr(end), unix.F_SETFD, 0); err != nil {
			break
		}
	}
	if err == nil {
		s.pid, err = syscall.ForkExec(self, words, &syscall.ProcAttr{ //nolint:gosec // this program
			Env: env, Files: []uintptr{0, 1, 2}, Sys: attr,
		})
	}
	if err != nil {
		_ = say.Close()
		_ = why.Close()
		return nil, err
	}
	return s, nil
}

// proceed makes the starter become the command, and returns once it has, or with why it cannot.
func (s *starter) proceed() error {
	_, _ = s.say.Write([]byte{1})
	_ = s.say.Close()
	defer func() { _ = s.why.Close() }()
	var number uint32
	if err := binary.Read(s.why, binary.NativeEndian, &number); errors.Is(err, io.EOF) {
		return nil
	}
	s.reap()
	return syscall.Errno(number)
}

// abandon ends the starter.
func (s *starter) abandon() {
	_ = s.say.Close()
	_ = s.why.Close()
	s.reap()
}

func (s *starter) reap() {
	for {
		if _, err := syscall.Wait4(s.pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// becomeCommand is the main function of the starter. It returns if there is no command to become.
func becomeCommand(sayEnd, whyEnd int, program string, args []string) {
	say, why := os.NewFile(uintptr(sayEnd), "say"), os.NewFile(uintptr(whyEnd), "why")
	syscall.CloseOnExec(sayEnd)
	syscall.CloseOnExec(whyEnd)
	if n, _ := say.Read(make([]byte, 1)); n == 0 {
		return
	}
	var number syscall.Errno
	if err := syscall.Exec(program, args, os.Environ()); errors.As(err, &number) { //nolint:gosec // it is the user's own
		_ = binary.Write(why, binary.NativeEndian, uint32(number))
	}
}

// attend runs a guard or a starter, if lockreg has started itself as one. It reports whether it has.
func attend(args []string) bool {
	switch {
	case len(args) == 1 && args[0] == guardName:
		guardGroup(os.Stdin)
	case len(args) > 4 && args[0] == starterName:
		say, err1 := strconv.Atoi(args[1])
		why, err2 := strconv.Atoi(args[2])
		if err1 != nil || err2 != nil {
			return false
		}
		becomeCommand(say, why, args[3], args[4:])
	default:
		return false
	}
	return true
}
