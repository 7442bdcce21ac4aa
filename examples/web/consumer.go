package web

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry"
)

// message is what a queue delivers, again and again until it is acknowledged.
type message interface {
	Key() string
	Ack(ctx context.Context) error
	Later(ctx context.Context, after time.Duration) error // deliver it again, to any consumer
}

// consumer handles messages, those of a key one at a time in all processes.
type consumer struct {
	locks *lockregistry.Registry
	work  func(ctx context.Context, m message) error // finds what an earlier delivery has done
}

// run is one of a process's workers. It returns when ctx ends or messages is closed. Messages that are not acknowledged by then
// are delivered again.
func (c *consumer) run(ctx context.Context, messages <-chan message) {
	for {
		select {
		case <-ctx.Done():
			return
		case m, open := <-messages:
			if !open {
				return
			}
			err := c.handle(ctx, m)
			switch {
			case err == nil:
			case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, lockregistry.ErrClosed): // first: it may match several
				slog.ErrorContext(ctx, "no locks", "key", m.Key(), "error", err)
				select { // the next message would fail, too, and use up its deliveries
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			case errors.Is(err, lockregistry.ErrTaken): // it will be redelivered: neither retry at once nor block a worker
			default:
				slog.ErrorContext(ctx, "a message failed", "key", m.Key(), "error", err)
			}
		}
	}
}

// handle works on a message under the lock of its key, and acknowledges it before the lock is released.
func (c *consumer) handle(ctx context.Context, m message) error {
	acknowledged := false
	err := c.locks.Do(ctx, "customer:"+m.Key(), func(held context.Context) error {
		if err := c.work(held, m); err != nil {
			return err
		}
		if held.Err() != nil { // the lock is lost: do not acknowledge, so that the message is redelivered
			return context.Cause(held)
		}
		err := m.Ack(held)
		acknowledged = err == nil
		return err
	}, lockregistry.NoWait())
	if err == nil || acknowledged {
		return err
	}
	return errors.Join(err, m.Later(context.WithoutCancel(ctx), 5*time.Second))
}
