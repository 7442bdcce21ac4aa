//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
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

// starterName is the first word of its command line; the program and the arguments of the command follow.
const starterName = "command-starter"

// The starter's ends of the pipes.
const (
	sayDescriptor = 3
	whyDescriptor = 4
)

// prepareCommand starts a starter.
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
	words := append([]string{starterName, program}, args...)
	s.pid, err = syscall.ForkExec(self, words, &syscall.ProcAttr{ //nolint:gosec // this program
		Env: env, Files: []uintptr{0, 1, 2, sayRead.Fd(), whyWrite.Fd()}, Sys: attr,
	})
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
func becomeCommand(program string, args []string) {
	say, why := os.NewFile(sayDescriptor, "say"), os.NewFile(whyDescriptor, "why")
	syscall.CloseOnExec(sayDescriptor)
	syscall.CloseOnExec(whyDescriptor)
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
	case len(args) > 2 && args[0] == starterName:
		becomeCommand(args[1], args[2:])
	default:
		return false
	}
	return true
}
