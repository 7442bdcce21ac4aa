package gopeer

import (
	"context"
	"fmt"
	"strconv"

	"github.com/lockregistry/lockregistry/leader"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// campaign is a running candidate.
type campaign struct {
	*leader.Candidate

	stop  context.CancelFunc
	ended chan struct{}
}

// elect carries out a request about the leadership of a role.
func (r *registry) elect(ctx context.Context, command, role string) (peer.Fields, error) {
	switch command {
	case "campaign":
		return nil, r.campaign(role)
	case "leader":
		who, err := leader.Current(ctx, r.Registry, role)
		return peer.Fields{"value": who}, err
	}
	r.mu.Lock()
	c := r.campaigns[role]
	r.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("nobody campaigns for %q", role)
	}
	switch command {
	case "leads":
		return peer.Fields{"value": strconv.FormatBool(c.IsLeader())}, nil
	case "giveup":
		c.Yield()
	default:
		c.stop()
		<-c.ended
	}
	return peer.Fields{}, nil
}

func (r *registry) campaign(role string) error {
	candidate, err := leader.New(r.Registry, role, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &campaign{candidate, stop, make(chan struct{})}
	r.mu.Lock()
	r.campaigns[role] = c
	r.mu.Unlock()
	go func() {
		defer close(c.ended)
		_ = candidate.Run(ctx)
	}()
	return nil
}
