//go:build unix

package main

import "os"

// isTerminal tells whether a file is a terminal, and somebody can be asked there.
func isTerminal(file *os.File) bool { return hasTerminal(int(file.Fd())) }
