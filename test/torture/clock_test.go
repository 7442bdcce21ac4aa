package torture

import "golang.org/x/sys/unix"

// now is a moment in nanoseconds on a clock that never jumps and that all processes of a machine share, so that what
// several of them saw can be put into one order.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // no system that has the clock refuses it
	}
	return t.Nano()
}
