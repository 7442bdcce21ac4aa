package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// keepAliveEvery is how often a shard is heard from while calls wait.
const keepAliveEvery = lateReply

// keepAlive has a server asked whether it is there, while calls wait for a message and send nothing: see Client. It is the
// shard's own server that is asked, wherever the slots of those calls are by now.
type keepAlive struct {
	shard *Shard
	calls atomic.Int32
	on    atomic.Bool // a timer runs that asks for them
}

// KeepAlive is for a call that waits for a message.
func (s *Shard) KeepAlive() {
	k := &s.keepAlive
	k.calls.Add(1)
	if !k.on.Load() && !s.nobodys() && k.on.CompareAndSwap(false, true) {
		k.later()
	}
}

// EndKeepAlive is for when such a call has ended.
func (s *Shard) EndKeepAlive() { s.keepAlive.calls.Add(-1) }

func (k *keepAlive) ask() {
	if k.calls.Load() == 0 {
		k.on.Store(false)
		if k.calls.Load() == 0 || !k.on.CompareAndSwap(false, true) {
			return
		}
	}
	s := k.shard
	if clock.Instant(s.heard.Load()).Until(s.client.Clock.Now()) >= keepAliveEvery/2 {
		p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Silence()}
		_ = s.ping(&p, s.Address != "") // it is judged there; the fresh connection of a single server may be silent, too
	}
	k.later()
}

func (k *keepAlive) later() { time.AfterFunc(keepAliveEvery, k.ask) }
