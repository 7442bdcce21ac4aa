//go:build unix

package main_test

import (
	"os"
	"os/signal"
	"syscall"
)

// What the tests were started without, as by nohup, what they start would be without, too.
func init() { //nolint:gochecknoinits // TestMain is in a file for all systems
	for _, sig := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
