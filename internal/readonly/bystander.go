package readonly

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Bystander returns a Reader for a prefix that belongs to no registry. A command ends with the context of its call, or when no
// answer comes within limit, besides the time that the trip to the server takes.
func Bystander(client rueidis.Client, prefix string, limit time.Duration) *Reader {
	t, cluster := transport.New(client), client.Mode() == rueidis.ClientModeCluster
	return &Reader{
		Prefix: prefix, Sharded: (&protocol.Config{Cluster: cluster}).Sharded(), Cluster: cluster,
		Clock: t.Clock, Client: client, Transport: t, Calls: calls{limit},
	}
}

// calls are those of a Bystander.
type calls struct{ limit time.Duration }

func (c calls) CommandWait(ctx context.Context, s *transport.Node) transport.Wait {
	return transport.Wait{Ctx: ctx, Limit: s.Plus(c.limit), Near: c.limit}
}

func (calls) Stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	return nil
}
