package queue

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Settings are how the calls of a registry go about it.
type Settings struct {
	Cluster   bool               // the client's keys are in slots
	Limit     time.Duration      // of a command
	Usual     bool               // that is the default, to which two round trips are added
	Poll      time.Duration      // the poll interval
	StandBack time.Duration      // for how long others have the lock to themselves, where there is no queue
	Replicas  *protocol.Replicas // nil: holds count at once
}

// CommandWait is how long a command of the registry waits for its answer.
func (s *Settings) CommandWait(ctx context.Context, l *transport.Shard) transport.Wait {
	if s.Usual {
		return transport.Wait{Ctx: ctx, Limit: l.Plus(s.Limit), Near: s.Limit}
	}
	return transport.Wait{Ctx: ctx, Limit: s.Limit}
}

// grants tells whether there is something to acknowledge.
func grants(c *protocol.Call, result rueidis.RedisResult) bool {
	s, err := c.Decode(result)
	return err == nil && s.Granted
}

// Renews is that for a renewal.
func Renews(_ *protocol.Call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// Demand has replicas have what a call writes, if the registry wants that. Wrote tells whether it has written.
func (s *Settings) Demand(c *protocol.Call, wrote func(*protocol.Call, rueidis.RedisResult) bool) {
	if s.Replicas != nil {
		c.Replicas, c.Wrote = s.Replicas, wrote
	}
}

// acknowledging is how long a renewal may wait for replicas.
func (s *Settings) acknowledging() time.Duration {
	if s.Replicas == nil {
		return 0
	}
	return clock.Plus(s.Replicas.Timeout, transport.WaitAtMost)
}
