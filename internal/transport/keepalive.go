package transport

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// keepAliveEvery is how often a shard is heard from while calls sleep.
const keepAliveEvery = lateReply

// KeepAlive is for a call that waits for a message. A process that sends nothing while its server is frozen does not know that
// another one has taken over, and would believe the grant that the first one, which goes on, tells it then. So the shard's own
// server is asked now and then, wherever the slots of those calls are by now: one that does not answer makes the shard
// suspect. The first shard of a cluster is no server's, and asks nothing.
func (s *Shard) KeepAlive() {
	s.waiting.Add(1)
	if !s.keeping.Load() && !s.nobodys() && s.keeping.CompareAndSwap(false, true) {
		s.keepAliveLater()
	}
}

// EndKeepAlive is for when such a call has ended.
func (s *Shard) EndKeepAlive() { s.waiting.Add(-1) }

func (s *Shard) keepAlive() {
	if s.waiting.Load() == 0 {
		s.keeping.Store(false)
		if s.waiting.Load() == 0 || !s.keeping.CompareAndSwap(false, true) {
			return
		}
	}
	if clock.Instant(s.heard.Load()).Until(s.client.Clock.Now()) >= keepAliveEvery/2 {
		p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Silence()}
		_ = s.ping(&p, s.Address != "") // it is judged there; the fresh connection of a single server may be silent, too
	}
	s.keepAliveLater()
}

func (s *Shard) keepAliveLater() { time.AfterFunc(keepAliveEvery, s.keepAlive) }
