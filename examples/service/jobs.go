package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry"
)

// Nightly bills each time that the clock strikes: at midnight (UTC) when every is a day. All processes run it, and one bills.
func (s *Service) Nightly(ctx context.Context, every time.Duration) error {
	for {
		next := time.Now().Truncate(every).Add(every)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(next)):
		}
		// The clocks of other processes may be a little earlier or later: they find the job done.
		if _, err := s.Locks.Once(ctx, "nightly", every, s.bill, lockregistry.RetryOnError()); err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "billing failed", "error", err)
		}
	}
}

// bill is the nightly job. It takes much longer than this in a real service.
func (s *Service) bill(ctx context.Context) error {
	nights, err := s.Store.Get(ctx, "nights")
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "billed", "night", nights+1)
	return s.Store.Set(ctx, "nights", nights+1)
}

// Dispatch is the singleton: one process at a time does it, until ctx ends.
func (s *Service) Dispatch(ctx context.Context) error {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done(): // this process stops, or no longer leads
			return ctx.Err()
		case <-every.C:
		}
		dispatched, err := s.Store.Get(ctx, "dispatched")
		if err == nil {
			err = s.Store.Set(ctx, "dispatched", dispatched+1)
		}
		if err != nil {
			return err // another process may have more luck
		}
	}
}
