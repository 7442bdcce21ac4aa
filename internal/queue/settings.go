package queue

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Settings are the settings of a registry's calls.
type Settings struct {
	Cluster      bool               // the client is a cluster's
	Limit        time.Duration      // of a command
	DefaultLimit bool               // Limit is the default, to which two round trips are added
	Poll         time.Duration      // the poll interval
	Replicas     *protocol.Replicas // nil: holds count at once
}

// CommandWait returns how long a command of the registry waits for its reply.
func (s *Settings) CommandWait(ctx context.Context, l *transport.Shard) transport.Wait {
	if s.DefaultLimit {
		return transport.Wait{Ctx: ctx, Limit: l.Plus(s.Limit), Near: s.Limit}
	}
	return transport.Wait{Ctx: ctx, Limit: s.Limit}
}

// grants reports whether a reply is a grant, which replicas must acknowledge.
func grants(c *protocol.Call, result rueidis.RedisResult) bool {
	s, err := c.Decode(result)
	return err == nil && s.Granted
}

// Renews is grants for a renewal.
func Renews(_ *protocol.Call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// Demand makes a call wait for replicas, if the registry has WithReplicas. Wrote reports whether the call has written.
func (s *Settings) Demand(c *protocol.Call, wrote func(*protocol.Call, rueidis.RedisResult) bool) {
	if s.Replicas != nil {
		c.Replicas, c.Wrote = s.Replicas, wrote
	}
}

// acknowledging returns how long a renewal may wait for replicas.
func (s *Settings) acknowledging() time.Duration {
	if s.Replicas == nil {
		return 0
	}
	return clock.Plus(s.Replicas.Timeout, transport.WaitAtMost)
}
