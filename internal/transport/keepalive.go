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
	keepAliveEvery = belief.Silence   // how often a server is asked
	contendedFor   = 2 * belief.Again // how long it is asked after others have waited: the life of an untended queue
)

// keepAlive asks a server something twice a second, for three purposes.
//
// First, it notices a frozen server. While calls wait for a message they send nothing. If the server froze meanwhile and
// another one took over, the process would not notice, and would trust a grant that the old server sends when it resumes. So it
// asks the node's own server, wherever the calls' slots are by now. If that does not answer, the node becomes suspect. The
// first node of a cluster has no server, and asks nothing.
//
// Second, it learns whether processes may be trying for locks without a ticket, which nothing else shows: then the server knows
// their scripts, see protocol.Foreign. A script cannot call SCRIPT, so a release tells its script what the process knows, see
// Quiet. Processes that hold locks for which others wait need to know it, too.
//
// Third, it checks that the tickets of the waiting calls are still there, see tickets.
type keepAlive struct {
	judge   *judge
	inquire func(sending) outcome // nil: there is no server to ask
	tickets tickets
	calls   atomic.Int32 // calls that wait for a message
	until   atomic.Int64 // an instant: until then others may wait for locks of this process
	on      atomic.Bool  // the timer runs
	quiet   atomic.Int64 // an instant: when the newest answer was asked for, if it named none of the scripts; otherwise 0

	// The rest is guarded by on.
	asked    uint            // how many questions so far
	repeats  bool            // the next question is for a ticket, since the last one for a ticket had no answer
	scripts  belief.Refusals // of the question for scripts
	unlisted belief.Refusals // of the question for a ticket
	roleless belief.Refusals // of the question for the server's role
}

// KeepAlive begins to ask the server, for a call that waits for a message or must notice a silent server.
func (s *Node) KeepAlive() {
	s.keepAlive.calls.Add(1)
	if s.Silent(clock.LongAgo) { // it may answer again by now, but counts as silent until it has been asked
		s.Relearn() // mutant: silent server not asked at once
	}
	s.keepAlive.begin()
}

// EndKeepAlive undoes KeepAlive.
func (s *Node) EndKeepAlive() {
	s.Contended(s.clock.Now())
	s.keepAlive.calls.Add(-1)
}

// Contended notes that others wait for a lock of this process, or did a moment ago. From now on the server is asked questions
// for contendedFor, but not by the renewals of holds. So the release of a hold that lasts longer may find no answer, and then
// leaves a barging window that nobody needs.
func (s *Node) Contended(now clock.Instant) {
	s.keepAlive.until.Store(int64(now.Add(contendedFor)))
	s.keepAlive.begin()
}

// Quiet reports whether the server knows no scripts of processes that try without a ticket. The newest answer says so, if it was
// asked for after since. It does not count if it was lost, late or an error, or is older than the last broken connection or the
// last suspicion.
func (s *Node) Quiet(since clock.Instant) bool {
	asked := clock.Instant(s.keepAlive.quiet.Load())
	return asked != 0 && asked >= since && asked > s.LastBreak() && asked > s.belief.SilentAt() &&
		!s.IsSuspect(s.clock.Now())
}

// stayAlive asks the server. On a cluster it uses the node's own connections, so that the answer is about this node. On a
// suspect single server it uses the fresh connection, which may be silent, too.
func (s *Node) stayAlive(questions sending) outcome {
	return s.inquire(&Wait{Ctx: context.Background(), Limit: s.RoundTrip().Silence()}, s.Address != "", questions)
}

func (k *keepAlive) begin() {
	if !k.on.Load() && k.inquire != nil && k.on.CompareAndSwap(false, true) {
		time.AfterFunc(keepAliveEvery, k.ask)
	}
}

// wanted reports whether the server must be asked.
func (k *keepAlive) wanted() bool {
	return k.calls.Load() > 0 || k.judge.clock.Now() < clock.Instant(k.until.Load()) && !k.judge.belief.Closed()
}

func (k *keepAlive) ask() {
	if !k.wanted() {
		// A caller stores what it wants, and then loads the flag on. This goroutine clears the flag, and then loads what is wanted. So
		// either it sees what the caller wants, or the caller finds the flag false and starts the timer.
		k.on.Store(false)
		if !k.wanted() || !k.on.CompareAndSwap(false, true) {
			return
		}
	}
	defer time.AfterFunc(keepAliveEvery, k.ask)
	k.asked++
	if k.asked%verifyEach == 0 && k.verify() {
		return
	}
	switch {
	case k.scripts.Allowed(k.judge.clock.Now()):
		k.learn()
	case k.asksRole(): // a replica answers questions, too: an answer does not show that the server is the master
		if reply, _ := k.question(ping); outcomeOf(reply.Error()) == belief.Broken && k.inquire(single(ping)).result(0).Error() == nil {
			k.roleless.Ended(k.judge.clock.Now()) // a proxy refuses HELLO
		}
	default:
		k.inquire(single(ping))
	}
}

// learn asks which scripts the server knows. The first script is passed as a key, for the same reason as in ping.
func (k *keepAlive) learn() {
	asked, role, all := k.judge.clock.Now(), k.asksRole(), protocol.Foreign()
	reply, late := k.question(func(b rueidis.Builder) rueidis.Completed {
		return b.Arbitrary("SCRIPT", "EXISTS").Keys(all[0]).Args(all[1:]...).Build().ToPipe()
	})
	known, err := reply.AsIntSlice()
	if err != nil || late || len(known) != len(all) || slices.Max(known) > 0 {
		asked = 0
	}
	k.quiet.Store(int64(asked))
	switch err := reply.Error(); {
	case fault.Refusal(err):
		k.scripts.Refused(k.judge.clock.Now())
	case fault.Answered(err):
		k.scripts.Answered()
	case errors.Is(err, fault.NotSent), errors.Is(err, fault.NoAnswer), // the connection goes on
		k.inquire(single(ping)).result(0).Error() != nil: // or the server answers nothing
		k.scripts.Unclear()
	case k.scripts.Ended(k.judge.clock.Now()) && role: // a proxy refuses SCRIPT, or HELLO
		k.roleless.Avoid(k.judge.clock.Now())
	}
}

// asksRole reports whether to ask if the server behind the client's only address has become a replica. Waiting calls send no
// write that would show it, see demotion.
func (k *keepAlive) asksRole() bool { return k.judge.roles && k.roleless.Allowed(k.judge.clock.Now()) }

// question asks the server something, and also for its role where asksRole says so. It reports whether the reply is late.
func (k *keepAlive) question(what func(rueidis.Builder) rueidis.Completed) (reply rueidis.RedisResult, late bool) {
	role := k.asksRole()
	send := single(what)
	if role {
		send = withHello(what)
	}
	came := k.inquire(send)
	reply = came.result(0)
	if role && len(came.results) > 1 && fault.Answered(reply.Error()) {
		k.learnRole(came.results[1], came.Trusted)
	}
	return reply, came.late
}

// learnRole takes the reply to HELLO, on a fresh connection or not.
func (k *keepAlive) learnRole(hello rueidis.RedisResult, fresh bool) {
	switch err := hello.Error(); {
	case fault.Refusal(err):
		k.roleless.Refused(k.judge.clock.Now())
		return
	case fault.Answered(err):
		k.roleless.Answered()
	case outcomeOf(err) == belief.Broken: // a proxy refuses HELLO, and has answered what came before
		k.roleless.Ended(k.judge.clock.Now())
	}
	role, _ := roleIn(hello)
	now := k.judge.clock.Now()
	k.judge.act(k.judge.belief.Said(role, fresh, now), now)
}
