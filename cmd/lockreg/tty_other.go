//go:build !unix

package main

import "os"

// isTerminal reports whether a file is a terminal, where a user can be asked.
func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// widthOf is how many characters a line of a terminal has; 0: not known.
func widthOf(*os.File) int { return 0 }
