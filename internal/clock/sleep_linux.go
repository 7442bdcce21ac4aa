package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// suspended returns for how long the machine was suspended since it has booted: by how much the clock that goes on then is ahead
// of the one that stands still. Setting the wall clock does not change it. A hypervisor that stops a machine does not tell it.
func suspended(time.Duration) time.Duration {
	const monotonic, boottime = 1, 7 // CLOCK_MONOTONIC, CLOCK_BOOTTIME
	return read(boottime) - read(monotonic)
}

func read(clock uintptr) time.Duration {
	var t syscall.Timespec
	//nolint:gosec // the standard library has no other way
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0
	}
	return time.Duration(t.Nano())
}
