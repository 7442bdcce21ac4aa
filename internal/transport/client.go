package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// Client sends the commands of all registries on one client. It limits every wait to what the caller allows, whatever the server
// does, and says which replies can be trusted; see package belief. The package comment draws the path of a command.
type Client struct {
	redis    rueidis.Client
	mode     rueidis.ClientMode
	Clock    clock.Clock
	routes   atomic.Pointer[routes]
	First    *Node              // the only one of a single server; on a cluster the node of slots whose master is not known
	resolver *topology.Resolver // of a cluster
	// ctx never ends, but rueidis must not know that: with a context that cannot end it reads a connection only while a command is
	// under way, and notices a closed connection only at the next command.
	ctx *bound // never begun, so it never ends
	// ignoresCtx: the client has ignored the end of a context, as it does while other commands of the program fill the queue of its
	// connection. Then all commands go through the queue.
	ignoresCtx atomic.Bool
	pool       *pool
	abandoned  atomic.Int32 // see AwaitAbandoned
	closing    closing

	replicators replicators
	vouching    vouching
	demotion    demotion
}

// New makes a Client. It asks the client for its mode, which may block in a wrapper.
func New(client rueidis.Client) *Client {
	t := &Client{redis: client, Clock: clock.New(), pool: &pool{}, mode: client.Mode()}
	t.ctx = &bound{done: make(chan struct{})}
	all := &routes{}
	if t.mode == rueidis.ClientModeCluster {
		all.of = &[protocol.Slots]uint16{}
		t.pool.one = true
		t.pool.selected.Store(new(string))
		away := func() time.Duration { return t.Farthest().RoundTrip().Plus(0) }
		t.resolver = topology.NewResolver(t.ctx, client, t.Clock, t.remap, away)
	}
	t.First = newNode(t, "")
	all.nodes = []*Node{t.First}
	t.routes.Store(all)
	return t
}

// Close is called when no registry is open any more. Holds of closed registries can still be released.
func (t *Client) Close() {
	if w := t.vouching.watch.Load(); w != nil {
		t.vouching.over.Store(true)
		(*w).Close()
	}
	for _, s := range t.endRoutes() {
		s.close()
	}
}

// AwaitAbandoned waits, for limit at most, until all obtaining commands whose callers have given up are answered. It comes
// before the last removals of a registry that is closed. Otherwise:
//
//	1  the removal of such a command's grant is sent
//	2  the command itself is sent, and granted
//	3  nothing removes the grant any more: it lasts for its whole lease
//
// Commands that their callers sent through the client are not counted, since rueidis does not say when it has the reply to one
// that was given up. On a single server their removals follow them over the same connection.
func (t *Client) AwaitAbandoned(limit time.Duration) {
	for end := t.Clock.Now().Add(limit); t.abandoned.Load() > 0 && t.Clock.Now() < end; {
		<-time.After(limit / 100)
	}
}

// RoundTrip returns the round trip to the master of a key.
func (t *Client) RoundTrip(key string) RoundTrip { return t.Node(key).RoundTrip() }

// Do sends a command and waits for the reply as p says. Without a reply its error is fault.NoAnswer or fault.NotSent.
func (t *Client) Do(p *Wait, c *protocol.Call) (a Reply) {
	a = t.send(p, c)
	for tries := 1; a.elsewhere && tries < mostRefused; tries++ { // over a fresh connection, see demotion
		rest := p.from(a.Sent)
		if rest.Left(t.Clock) <= 0 {
			break
		}
		a = t.send(&rest, c)
	}
	return a
}

func (t *Client) send(p *Wait, c *protocol.Call) (a Reply) {
	if c.Replicas != nil {
		return t.doReplicated(p, c)
	}
	s := t.Node(c.Key)
	a.Sent = t.Clock.Now()
	end, used, direct := s.enter(a.Sent)
	if !direct {
		s.doQueued(p, c, end, a.Sent, &a)
		return a
	}
	if w := s.own.take(p, c, a.Sent, used); w != nil {
		s.doOwn(w, p, c, end, &a)
		return a
	}
	if s.gather(used) && !c.ReadsBack() {
		s.doQueued(p, c, end, a.Sent, &a)
		return a
	}
	if unsent := s.doDirect(p, c, end, &a); unsent {
		rest := p.from(a.Sent)
		end, _ = s.bounds.take()
		s.doQueued(&rest, c, end, t.Clock.Now(), &a)
	}
	return a
}

// doDirect is Do for a caller that sends through the client. Unsent: it must be sent once more, see doQueued.
func (s *Node) doDirect(p *Wait, c *protocol.Call, end *bound, a *Reply) (unsent bool) {
	t := s.client
	defer s.bounds.free(end) // mutant: panic keeps a place
	s.bounds.begin(end, p, a.Sent, nil)
	a.RedisResult = c.Send(end, t.redis)
	a.ReadBack = c.ReadBack()
	ended := clock.Instant(end.ended.Load())
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	unanswered := errors.Is(a.Error(), fault.NoAnswer)
	unsent = unanswered && !end.over()
	end.stop()
	if unsent {
		return true
	}
	if ended != 0 && ended.Until(a.Came) >= tooSoon && !unanswered { // a reply that comes sooner after the end is a coincidence
		t.ignoresCtx.Store(true)
	}
	s.takeIn(p, excused, a)
	return false
}

// Greeted notes how long the server took to greet the client's connection. All: the client needs no other one for commands. On
// a cluster that says nothing about other nodes.
func (t *Client) Greeted(took time.Duration, all bool) {
	if t.resolver != nil {
		return
	}
	t.First.belief.Greet(took)
	if all {
		t.First.belief.WarmedUp()
	}
}

// Closed reports whether the client is closed. A closed client fails a PING at once, without asking a server. On an open client
// the PING may hang, so there is one at a time, and all callers meanwhile share its answer. The answer may be from just before
// the client was closed; callers ask again.
func (t *Client) Closed() bool {
	c := &t.closing
	c.mu.Lock()
	if c.answered == nil {
		c.answered = make(chan struct{})
		go func() {
			c.closed.Store(errors.Is(t.redis.Do(t.ctx, t.redis.B().Ping().Build().ToPipe()).Error(), rueidis.ErrClosing))
			c.mu.Lock()
			defer c.mu.Unlock()
			close(c.answered)
			c.answered = nil
		}()
	}
	answered := c.answered
	c.mu.Unlock()
	return clock.Await(answered, askLimit) && c.closed.Load()
}

// closing is a question whether the client is closed.
type closing struct {
	mu       sync.Mutex
	answered chan struct{} // closed with the answer; nil: nobody asks
	closed   atomic.Bool   // the answer
}

// askLimit is how long a call waits for the reply to an optional question.
const askLimit = belief.Tick

// Question asks a server something that concerns no key.
type Question func(context.Context, rueidis.CoreClient) rueidis.RedisResult

// Ask asks any server of a cluster.
func (t *Client) Ask(question Question) rueidis.RedisResult {
	reply, _ := t.First.Ask(&Wait{Ctx: context.Background(), Limit: t.First.RoundTrip().Plus(askLimit)}, question)
	return reply
}

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
	probes   clock.Instant // it probes for a command that was sent then and given up; 0: it is not a probe
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

// Over reports whether a command that was sent at Since would have been given up by now, or nearly so.
func (p *Wait) Over(c clock.Clock) bool {
	return c.Now() >= p.Since.Add(p.Limit-min(belief.Tick, p.Limit/4))
}

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
