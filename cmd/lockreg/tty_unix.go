//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal reports whether a file is a terminal, where a user can be asked.
func isTerminal(file *os.File) bool { return hasTerminal(int(file.Fd())) }

// widthOf returns how many characters a line of a terminal has; 0 if file is no terminal.
func widthOf(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
