package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes lockreg the parent of processes whose own one has ended, as it is of all as process 1. So their ends are
// seen at once, and they do not stay as zombies, which would count as processes of the group, where process 1 does not reap.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// stopMyself stops lockreg, and returns when it was told to go on. The signal is for this thread, so that it has stopped before
// the call returns.
func stopMyself() {
	runtime.LockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
	runtime.UnlockOSThread()
}

// endWithParent has the kernel kill the process that is started when lockreg ends: also when the guard was killed, too. It kills
// that one alone, not its group, and a program with the set-user-ID bit escapes it. It counts as lockreg's end when the thread
// ends that has started the process: so this one belongs to the caller from now on.
func endWithParent(attr *syscall.SysProcAttr) {
	runtime.LockOSThread()
	attr.Pdeathsig = unix.SIGKILL
}

// nameProcess gives this process the name that ps and pkill know it by.
func nameProcess(name string) {
	text, err := unix.BytePtrFromString(name)
	if err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0) //nolint:gosec // as the call wants it
	}
}
