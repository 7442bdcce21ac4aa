package transport

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Reply is what became of a command.
type Reply struct {
	rueidis.RedisResult
	Sent, Came clock.Instant // on the registry's clock; the server executed the command in between, if it answered
	Late       bool          // it came so late that it must be checked
	Doubtful   bool          // and by a command on a way that was chosen since
	Fresh      bool          // it came on such a way
	Cut        bool          // there is none, because the caller's context ended
	ReplicaErr error         // why what the server has done does not count: too few replicas have it, see WithReplicas
}

// Confirmed decodes the reply to a renewal or a removal, see [protocol.Confirmed]. What too few replicas have has failed.
func (r Reply) Confirmed() (n int64, err error) {
	if n, err = protocol.Confirmed(r.RedisResult); err == nil {
		err = r.ReplicaErr // mutant: short renewal
	}
	return n, err
}

// Wait is how long a caller waits for a reply: until a while after its context's end, and no longer than
// Limit.
type Wait struct {
	Ctx      context.Context
	Since    clock.Instant // from when on the limit counts, and the grace when ctx has ended by then; 0: from now on
	Limit    time.Duration
	Near     time.Duration // that limit without the time for the way, which may turn out longer; 0: it does not depend on it
	Grace    time.Duration // how long after the end of ctx, to within 100 ms: that may be noticed late, see bound.begin
	Lease    time.Duration // that the reply is about, see RoundTrip.Late; 0: it is about none
	holds    time.Duration // for so long the command itself may wait at the server
	Obtains  bool          // it may make somebody the owner of a lock, and says whether it has
	probes   clock.Instant // it is sent because another command was given up, which was sent then; 0: it is not
	Observer Observer      // told of the command once it has taken a while; nil: nobody wants to know
}

// Observer is told when a command that was sent at some time has had no reply for a while, and, if so, when it has one, or its
// caller waits no longer. It must not block.
type Observer interface {
	Unanswered(since clock.Instant)
	Answered(since clock.Instant)
}

// Left is how much of its time a call has left that is about to send a command.
func (p *Wait) Left(c clock.Clock) time.Duration {
	now, left := c.Now(), p.Limit
	if p.Since != 0 {
		left = now.Until(p.Since.Add(p.Limit))
	}
	if deadline, ok := p.Ctx.Deadline(); ok {
		left = min(left, now.Until(c.At(deadline)))
	}
	return left
}

// Again tells whether a call asks once more whose reply came late, from a master that is none any more perhaps: while it has time
// left, and its caller waits.
func (p *Wait) Again(c clock.Clock) bool { return p.Left(c) > 0 && p.Ctx.Err() == nil }

// Explain is why a call fails whose command ended with err, if it does. Cut tells that there is no reply because the caller's
// context ended.
func (p *Wait) Explain(cut bool, err error) error {
	if cut {
		return fault.Explain(fault.Ended(p.Ctx), fault.AsUnavailable(fault.NoAnswer))
	}
	return fault.Classify(err)
}

// exchange is when a command was sent and answered.
type exchange struct {
	sent, came clock.Instant
	trip       RoundTrip // what was known of the way before the reply
	excused    bool      // see bound.excuses
	trusted    bool      // it came on a way that was chosen since the shard is suspect
}

// cut tells whether there is no reply because the caller's context ended.
func (p *Wait) cut(err error) bool {
	return err != nil && p.Grace == 0 && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent)) && p.Ctx.Err() != nil
}
