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

// Reply is the outcome of a command.
type Reply struct {
	rueidis.RedisResult
	Sent, Came clock.Instant     // by the registry's clock; if the server answered, it executed the command in between
	Late       bool              // it came so late that it must be confirmed
	Doubtful   bool              // confirm it by a command on a fresh connection
	Fresh      bool              // it came on a fresh connection
	Cut        bool              // there is no reply, because the caller's context ended
	ReadBack   protocol.ReadBack // of a call that reads back
	ReplicaErr error             // why the master's reply does not count: too few replicas have the write, see WithReplicas
	elsewhere  bool              // a replica refused it, at the end of an older connection: the address may lead elsewhere now
}

// Confirmed decodes the reply to a renewal or a removal, see [protocol.Confirmed]. If too few replicas have the
// write, it has failed.
func (r Reply) Confirmed() (n int64, err error) {
	if n, err = protocol.Confirmed(r.RedisResult); err == nil {
		err = r.ReplicaErr // mutant: short renewal
	}
	return n, err
}

// Confirmed sends a write whose reply is a number. Unknown: the write may have been executed, or may still be, whatever err is.
func (t *Client) Confirmed(p *Wait, c *protocol.Call) (n int64, unknown bool, err error) {
	reply := t.Do(p, c)
	if n, err = protocol.Confirmed(reply.RedisResult); err == nil {
		err = reply.Error() // a key of another type
	}
	unknown = reply.Cut || reply.Late || fault.OutcomeUnknown(err)
	if err == nil && reply.Late { // perhaps from a former master
		err = fault.Late
	}
	return n, unknown, p.Explain(reply.Cut, err)
}

// Wait is how long a caller waits for a reply: until Grace after its context's end, and no longer than Limit.
type Wait struct {
	Ctx      context.Context
	Since    clock.Instant // from when Limit counts, and Grace if ctx has ended by then; 0: now
	Limit    time.Duration
	Near     time.Duration // Limit without its round trips, which may become longer; 0: Limit does not depend on them
	Grace    time.Duration // how long it waits after the end of ctx, which is noticed up to 100 ms late, see bound.begin
	Lease    time.Duration // the lease that the reply is about, see RoundTrip.Late; 0: none
	holds    time.Duration // how long the command itself may block at the server
	Obtains  bool          // it may obtain a lock, and its reply says whether it did
	FailFast bool          // it ends soon after any command found the server silent; not while replicas are waited for
	probes   clock.Instant // it probes for a command that was sent then and given up; 0: it is no probe
	Observer Observer      // told of a command that takes long; nil: none
}

// Observer is told when a command has had no reply for a while, and then when the reply comes or its caller waits no longer. It
// must not block.
type Observer interface {
	Unanswered(since clock.Instant)
	Answered(since clock.Instant)
}

// from returns the rest of a wait for a command that is sent once more: its limit counts from the first time.
func (p *Wait) from(sent clock.Instant) Wait {
	rest := *p
	if rest.Since == 0 {
		rest.Since = sent
	}
	return rest
}

// Left returns how much time is left to a call that is about to send a command.
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

// Again reports whether a call asks once more if its reply came late, perhaps from a former master. It does while it has time
// left and its context has not ended.
func (p *Wait) Again(c clock.Clock) bool { return p.Left(c) > 0 && p.Ctx.Err() == nil }

// Explain returns the error of a call whose command ended with err; nil if it succeeded. Cut: there is no reply because the
// caller's context ended.
func (p *Wait) Explain(cut bool, err error) error {
	if cut {
		return fault.Explain(fault.Ended(p.Ctx), fault.AsUnavailable(fault.NoAnswer))
	}
	return fault.Classify(err)
}

// cut reports whether there is no reply because the caller's context ended.
func (p *Wait) cut(err error) bool {
	return err != nil && p.Grace == 0 && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent)) && p.Ctx.Err() != nil
}
