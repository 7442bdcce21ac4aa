//go:build unix

package main_test

import (
	"os"
	"os/signal"
	"syscall"
)

// What the tests were started without, as by nohup, what they start would be without, too.
func init() {
	for _, sig := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
