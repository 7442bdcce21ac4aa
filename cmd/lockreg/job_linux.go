package main

import (
	"runtime"

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
