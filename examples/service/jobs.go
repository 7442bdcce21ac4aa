package main

import (
	"context"
	"errors"
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
		if err := s.billOnce(ctx, every); err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "billing failed", "error", err)
		}
	}
}

// billOnce bills unless another process does so, or has done so for this night: its clock may be a little earlier or later.
func (s *Service) billOnce(ctx context.Context, every time.Duration) error {
	err := s.Locks.Do(ctx, "nightly", s.bill, lockregistry.NoWait(), lockregistry.AtLeast(every/2))
	if errors.Is(err, lockregistry.ErrTimeout) {
		return nil
	}
	return err
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
		case <-ctx.Done(): // this process stops, or it leads no longer
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
