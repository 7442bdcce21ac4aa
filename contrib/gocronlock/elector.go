package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

// ErrNotLeader makes gocron skip a job on this node: another node leads, or none does.
var ErrNotLeader = errors.New("this node does not lead")

// Elector is a [gocron.Elector], for [gocron.WithDistributedElector]: one node runs all jobs until it stops or fails. Make it
// with [NewElector], and run [Elector.Run] in a goroutine. It is safe for use by many goroutines.
type Elector struct{ candidate *leader.Candidate }

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes an Elector, with a candidate of package leader for the role. It takes the options of [leader.New], and fails
// as leader.New does: when r is nil, role is empty, or an option is out of bounds. It does not talk to Redis.
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

// Run campaigns for the role and keeps it until ctx ends or the registry is closed. Then it returns the reason, see
// [leader.Candidate.Run]. It blocks, so run it in a goroutine. Once it has returned, this node no longer campaigns.
//
// Gocron asks whether this node leads before each run, not during it. So stop in this order; otherwise other nodes run jobs while
// this one is still running some:
//
//  1. Shut the scheduler down. It waits for jobs, but only for the time of [gocron.WithStopTimeout], 10 s by default. If it
//     returns an error, jobs still run: do not go on to step 2 before they have ended.
//  2. End ctx.
func (e *Elector) Run(ctx context.Context) error { return e.candidate.Run(ctx) }

// Yield ends the leadership for a while, see [leader.Candidate.Yield].
func (e *Elector) Yield() { e.candidate.Yield() }

// IsLeader returns nil when this node leads, and [ErrNotLeader] when it does not. It does not ask Redis, see
// [leader.Candidate.IsLeader], and ignores the context.
func (e *Elector) IsLeader(context.Context) error {
	if e.candidate.IsLeader() {
		return nil
	}
	return ErrNotLeader
}
