//go:build !unix

package main

import "os"

// isTerminal tells whether a file is a terminal, and somebody can be asked there.
func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
