//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal tells whether a file is a terminal, and somebody can be asked there.
func isTerminal(file *os.File) bool { return hasTerminal(int(file.Fd())) }

// widthOf is how many characters a line of a terminal has; 0 for what is none.
func widthOf(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
