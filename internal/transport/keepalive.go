package transport

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	keepAliveEvery = lateReply        // how often a server is asked
	contendedFor   = 2 * belief.Again // how long it is asked after others have waited: the life of an untended queue
	refusedFor     = belief.Again     // after a refusal
	brokenFor      = belief.MostAgain // after a question that ends the connection, which others share
)

// keepAlive asks a server something twice a second, for three purposes.
//
// While calls wait for a message they send nothing. If the server freezes meanwhile and another one takes over, the process
// does not notice, and would believe a grant that the old server sends when it goes on. So the shard's own server is asked,
// wherever the calls' slots are by now: if it does not answer, the shard becomes suspect. The first shard of a cluster has no
// server, and asks nothing.
//
// And whether processes may try for locks without a ticket, unseen, shows in whether the server knows their scripts: see
// protocol.Foreign. A script cannot call SCRIPT, so a release says what its process knows; see Quiet. Processes that hold locks
// for which others wait need to know it, too.
//
// And whether the tickets of the waiting calls are still there, see tickets.
type keepAlive struct {
	shard   *Shard
	tickets tickets
	calls   atomic.Int32 // calls that wait for a message
	until   atomic.Int64 // an instant: until then others may wait for locks of this process
	on      atomic.Bool  // the timer runs
	quiet   atomic.Int64 // an instant: when the newest answer was asked for, if it named none of the scripts; else 0

	// The rest is guarded by on.
	asked    uint            // questions
	scripts  belief.Refusals // the question for scripts
	unlisted belief.Refusals // that for tickets
	roleless belief.Refusals // that for its role
}

// notHeard stands for: never asked.
const notHeard = clock.Instant(-time.Hour)

// KeepAlive begins to ask the server, for a call that waits for a message or must notice a silent server.
func (s *Shard) KeepAlive() {
	s.keepAlive.calls.Add(1)
	if s.Silent(notHeard) {
		s.Relearn()
	}
	s.keepAlive.begin()
}

// EndKeepAlive undoes KeepAlive.
func (s *Shard) EndKeepAlive() {
	s.Contended(s.client.Clock.Now())
	s.keepAlive.calls.Add(-1)
}

// Contended notes that others wait for a lock of this process, or did a moment ago. The question goes on for contendedFor, so no
// hold asks with its renewal. The release of a longer hold may find no answer, and leaves a window that nobody needs.
func (s *Shard) Contended(now clock.Instant) {
	s.keepAlive.until.Store(int64(now.Add(contendedFor)))
	s.keepAlive.begin()
}

// Quiet reports whether, by the newest answer asked for after since, the server knows no scripts of processes that try without
// a ticket. An answer that was lost, late or an error, or came before the connection broke or the shard was suspect, does not
// count.
func (s *Shard) Quiet(since clock.Instant) bool {
	asked := clock.Instant(s.keepAlive.quiet.Load())
	return asked != 0 && asked >= since && asked > s.LastBreak() && asked > s.belief.SilentAt() &&
		!s.IsSuspect(s.client.Clock.Now())
}

func (k *keepAlive) begin() {
	if !k.on.Load() && !k.shard.nobodys() && k.on.CompareAndSwap(false, true) {
		k.later()
	}
}

// wanted reports whether the server must be asked.
func (k *keepAlive) wanted() bool {
	return k.calls.Load() > 0 || k.shard.client.Clock.Now() < clock.Instant(k.until.Load()) && !k.shard.belief.Closed()
}

func (k *keepAlive) ask() {
	if !k.wanted() {
		// A caller notes what it wants before it reads on: so either this sees that, or the caller finds on false.
		k.on.Store(false)
		if !k.wanted() || !k.on.CompareAndSwap(false, true) {
			return
		}
	}
	s, now := k.shard, k.shard.client.Clock.Now()
	p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Silence()}
	plain := s.Address != "" // the node itself is judged; the fresh connection of a single server may be silent, too
	k.asked++
	if k.asked%verifyEach == 0 && k.verify(p, plain) {
		k.later()
		return
	}
	if k.scripts.Allowed(now) {
		k.learn(&p, plain)
	} else if !s.belief.HeardWithin(keepAliveEvery/2, now) {
		_ = s.ping(&p, plain)
	}
	k.later()
}

// learn asks which scripts the server knows. The first script is passed as a key, for the same reason as in ping.
func (k *keepAlive) learn(p *Wait, plain bool) {
	s, all := k.shard, protocol.Foreign()
	asked, role := s.client.Clock.Now(), k.asksRole()
	reply, late := k.question(p, plain, func(b rueidis.Builder) rueidis.Completed {
		return b.Arbitrary("SCRIPT", "EXISTS").Keys(all[0]).Args(all[1:]...).Build()
	})
	known, err := reply.AsIntSlice()
	if err != nil || late || len(known) != len(all) || slices.Max(known) > 0 {
		asked = 0
	}
	k.quiet.Store(int64(asked))
	switch err := reply.Error(); {
	case fault.Refusal(err):
		k.scripts.Refused(s.client.Clock.Now())
	case fault.Answered(err):
		k.scripts.Answered()
	case errors.Is(err, fault.NotSent), errors.Is(err, fault.NoAnswer), // the connection goes on
		s.ping(&Wait{Ctx: p.Ctx, Limit: p.Limit}, plain) != nil: // or the server answers nothing
		k.scripts.Unclear()
	case k.scripts.Ended(s.client.Clock.Now()) && role: // a proxy refuses SCRIPT, or HELLO
		k.roleless.Avoid(s.client.Clock.Now())
	}
}

// asksRole reports whether the server is to be asked whether it is a replica by now, behind one address: calls that wait send no
// write that would show it, see demotion.
func (k *keepAlive) asksRole() bool {
	return k.shard.client.demotion.possible && k.roleless.Allowed(k.shard.client.Clock.Now())
}

// question asks the server, and for its role, too. It reports whether the reply is late.
func (k *keepAlive) question(
	p *Wait, plain bool, what func(rueidis.Builder) rueidis.Completed,
) (reply rueidis.RedisResult, late bool) {
	s, role := k.shard, k.asksRole()
	send := withHello(what)
	if !role {
		send = func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
			return []rueidis.RedisResult{way.Do(ctx, what(way.B()))}
		}
	}
	e := s.async(p, s.places, &asyncCall{shared: plain, send: send})
	reply = e.result(0)
	late = s.judge(p, reply.Error(), e.at(s.client.Clock.Now())) != belief.Believed
	if role && len(e.results) > 1 && fault.Answered(reply.Error()) {
		k.learnRole(e.results[1], e.trusted)
	}
	return reply, late
}

// learnRole takes the reply to HELLO.
func (k *keepAlive) learnRole(hello rueidis.RedisResult, fresh bool) {
	s, now := k.shard, k.shard.client.Clock.Now()
	if fault.Refusal(hello.Error()) {
		k.roleless.Refused(now)
		return
	}
	if fault.Answered(hello.Error()) {
		k.roleless.Answered()
	}
	role, _ := roleIn(hello)
	s.act(s.belief.Said(role, fresh, now), now)
}

func (k *keepAlive) later() { time.AfterFunc(keepAliveEvery, k.ask) }
