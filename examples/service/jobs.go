package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry"
)

// Nightly bills each time that the clock strikes: at midnight (UTC) when every is a day. All processes run it, and one bills.
//
// After an error it tries again, but not for longer than a tenth of the period: Once keeps the path for nine tenths, so the path
// is free at the next strike.
func (s *Service) Nightly(ctx context.Context, every time.Duration) error {
	for {
		strike := time.Now().Truncate(every).Add(every)
		for next := strike; next.Before(strike.Add(every / 10)); next = time.Now().Add(min(every/20, time.Minute)) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Until(next)):
			}
			if s.night(ctx, every) {
				break
			}
		}
	}
}

// night bills unless another process does, or has done so. It reports whether the night needs no further call.
func (s *Service) night(ctx context.Context, every time.Duration) bool {
	billed := false // an error may come after that, such as a lost lock
	// The clocks of other processes may be a little earlier or later: they find the job done.
	_, err := s.Locks.Once(ctx, "nightly", every, func(ctx context.Context) error {
		err := s.bill(ctx)
		billed = err == nil
		return err
	}, lockregistry.RetryOnError())
	if err != nil && ctx.Err() == nil {
		slog.ErrorContext(ctx, "billing failed", "billed", billed, "error", err)
	}
	return err == nil || billed
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
