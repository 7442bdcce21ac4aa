//go:build linux

package main_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fullPipe is an output that nobody reads, and that takes nothing more, as a terminal after Ctrl-S.
func fullPipe(t *testing.T) (write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = read.Close()
		_ = write.Close()
	})
	size, err := unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	require.NoError(t, err)
	_, err = write.Write(make([]byte, size))
	require.NoError(t, err)
	return write
}

// Where nobody takes what lockreg says, the command gets TERM and KILL all the same.
func TestRunLogIsNotRead(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "9s", "--grace", "300ms", "shop", "a", "--", "sh", "-c", stubborn)
	p.Stderr = fullPipe(t)
	p.begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	s.Freeze()
	eventually(t, "all are killed", func() bool { return !slices.ContainsFunc(lines(p.out.String(), "pid"), alive) })
}
