//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans: only Linux has it.
func adoptOrphans() {}

// stopMyself stops lockreg, and returns when it was told to go on.
func stopMyself() { _ = unix.Kill(unix.Getpid(), unix.SIGSTOP) }

// endWithParent: only Linux has it. The guard alone ends the command elsewhere.
func endWithParent(*syscall.SysProcAttr) {}

// nameProcess: elsewhere the command line alone is the name.
func nameProcess(string) {}
