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

// stopMyself stops lockreg, and returns when it is continued. The signal goes to this thread, so that it stops before the call
// returns.
func stopMyself() {
	runtime.LockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
	runtime.UnlockOSThread()
}

// endWithParent makes the kernel kill the started process when lockreg ends, even if the guard was killed, too. It kills only
// that process, not its group, and not a program with the set-user-ID bit. The kernel watches the thread that has started the
// process: so this thread is locked to the caller's goroutine from now on.
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
