package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// untilSignal returns a context that ends when a user interrupts lockreg, for a command that has something to say then, and the
// exit code for that: 128 and the number of the signal; 0: there was none. A second signal ends lockreg at once.
func untilSignal(parent context.Context) (ctx context.Context, code func() int, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var number atomic.Int32
	go func() {
		select {
		case s := <-signals:
			if known, ok := s.(syscall.Signal); ok {
				number.Store(128 + int32(known)) //nolint:gosec // there are few
			}
			cancel()
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() int { return int(number.Load()) }, cancel
}
