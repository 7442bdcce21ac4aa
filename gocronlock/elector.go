package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

// ErrNotLeader is why gocron does not run a job here: another node leads, or none.
var ErrNotLeader = errors.New("this node does not lead")

// Elector is a gocron.Elector, for gocron.WithDistributedElector: one node runs all jobs, until it ends or fails. Make it
// with [NewElector], and keep [Elector.Run] running. It is safe for use by many goroutines.
type Elector struct{ candidate *leader.Candidate }

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes an Elector, with a candidate of package leader for the role. Options are those of [leader.New]. It does
// not talk to Redis. It fails when r is nil, role is empty, or an option is out of its bounds.
func NewElector(r *lockregistry.Registry, role string, opts ...leader.Option) (*Elector, error) {
	c, err := leader.New(r, role, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}, opts...)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: elector: %w", err)
	}
	return &Elector{c}, nil
}

// Run campaigns for the role, and keeps it, until ctx ends or the registry is closed, and returns why: see
// [leader.Candidate.Run]. It needs a goroutine. Nothing is retried after it has returned.
//
// Gocron asks before each run, not during it. So that no node runs jobs while this one finishes its own, shut the scheduler
// down first, which waits for them, and end ctx then.
func (e *Elector) Run(ctx context.Context) error { return e.candidate.Run(ctx) }

// Yield ends the leadership for a while, see [leader.Candidate.Yield].
func (e *Elector) Yield() { e.candidate.Yield() }

// IsLeader returns nil when this node leads, and [ErrNotLeader] when it does not. It does not ask Redis: it compares times,
// see [leader.Candidate.IsLeader]. The context is of no use to it.
func (e *Elector) IsLeader(context.Context) error {
	if e.candidate.IsLeader() {
		return nil
	}
	return ErrNotLeader
}
