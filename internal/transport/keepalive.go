package transport

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	keepAliveEvery = lateReply       // how often a server is asked
	contendedFor   = 2 * time.Minute // after others have waited it is asked on: as long as queues live that nobody looks after
	refusedFor     = time.Minute     // not asked again for what it has refused: its log would be full of that
	brokenFor      = time.Hour       // nor for what ends the connection: that costs all who use it
)

// keepAlive has a server asked something twice a second, for two purposes.
//
// While calls wait for a message they send nothing. A process that sends nothing while its server is frozen does not know that
// another one has taken over, and would believe the grant that the first one, which goes on, tells it then. It is the shard's own
// server that is asked, wherever the slots of those calls are by now: one that does not answer makes the shard suspect. The first
// shard of a cluster is no server's, and asks nothing.
//
// And whether anybody may try for locks without a ticket, whom nobody sees, the server tells by whether it knows the scripts of
// such processes: see protocol.Foreign. SCRIPT cannot be called by a script, so a release says what is known by then; see Quiet.
// Processes that hold locks for which others wait need to know it, too.
type keepAlive struct {
	shard *Shard
	calls atomic.Int32  // that wait for a message
	until atomic.Int64  // an instant: until when others may wait for locks of this process
	on    atomic.Bool   // a timer runs that asks
	again clock.Instant // not before is it asked for scripts; guarded by on
	ended int           // how often in a row that ended the connection, and a PING was answered; guarded by on
	quiet atomic.Int64  // an instant: when it was asked for the newest answer, if that knew none of the scripts; else 0
}

// KeepAlive is for a call that waits for a message, or is to notice that the server is silent.
func (s *Shard) KeepAlive() {
	s.keepAlive.calls.Add(1)
	if s.Silent(notHeard) {
		s.Relearn()
	}
	s.keepAlive.begin()
}

// EndKeepAlive is for when such a call has ended.
func (s *Shard) EndKeepAlive() {
	s.Contended(s.client.Clock.Now())
	s.keepAlive.calls.Add(-1)
}

// Contended notes that others wait for a lock of this process, or did a moment ago.
func (s *Shard) Contended(now clock.Instant) {
	s.keepAlive.until.Store(int64(now.Add(contendedFor)))
	s.keepAlive.begin()
}

// Quiet reports whether the server is known to have no scripts of those who try without a ticket, by the newest answer, if it was
// asked since some time. An answer that was lost or late, or was an error, or came before the connection broke or the shard was
// suspect, tells nothing.
func (s *Shard) Quiet(since clock.Instant) bool {
	asked := clock.Instant(s.keepAlive.quiet.Load())
	return asked != 0 && asked >= since && asked > s.LastBreak() && asked > clock.Instant(s.silentAt.Load()) &&
		!s.IsSuspect(s.client.Clock.Now())
}

func (k *keepAlive) begin() {
	if !k.on.Load() && !k.shard.nobodys() && k.on.CompareAndSwap(false, true) {
		k.later()
	}
}

// wanted tells whether the server is to be asked.
func (k *keepAlive) wanted() bool {
	return k.calls.Load() > 0 || k.shard.client.Clock.Now() < clock.Instant(k.until.Load()) && !k.shard.closed.Load()
}

func (k *keepAlive) ask() {
	if !k.wanted() {
		k.on.Store(false)
		if !k.wanted() || !k.on.CompareAndSwap(false, true) {
			return
		}
	}
	s, now := k.shard, k.shard.client.Clock.Now()
	p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Silence()}
	plain := s.Address != "" // it is judged there; the fresh connection of a single server may be silent, too
	if now >= k.again {
		k.learn(&p, plain)
	} else if clock.Instant(s.heard.Load()).Until(now) >= keepAliveEvery/2 {
		_ = s.ping(&p, plain)
	}
	k.later()
}

// learn asks which scripts the server knows. The first one is given as if it were a key, for the reason of ping.
func (k *keepAlive) learn(p *Wait, plain bool) {
	s, all := k.shard, protocol.Foreign()
	asked := s.client.Clock.Now()
	reply, late := s.question(p, plain, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().Arbitrary("SCRIPT", "EXISTS").Keys(all[0]).Args(all[1:]...).Build())
	})
	known, err := reply.AsIntSlice()
	if err != nil || late || len(known) != len(all) || slices.Max(known) > 0 {
		asked = 0
	}
	k.quiet.Store(int64(asked))
	switch err := reply.Error(); {
	case fault.Refusal(err):
		k.again, k.ended = s.client.Clock.Now().Add(refusedFor), 0
	case fault.Answered(err), errors.Is(err, fault.NotSent), errors.Is(err, fault.NoAnswer): // the connection has not ended
		k.ended = 0
	case s.ping(&Wait{Ctx: p.Ctx, Limit: p.Limit}, plain) != nil: // it answers nothing
		k.ended = 0
	case k.ended == 0: // that happens
		k.ended++
	default: // so a proxy refuses it
		k.again, k.ended = s.client.Clock.Now().Add(brokenFor), 0
	}
}

func (k *keepAlive) later() { time.AfterFunc(keepAliveEvery, k.ask) }
