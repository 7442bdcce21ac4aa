// Package transport sends commands. A call waits for its reply in bounded time, and learns whether the reply can be believed.
package transport

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// Client sends the commands of all registries on one client. It sees to it that nothing a server does keeps a caller for
// longer than the caller wants, and it tells which answers can be believed.
//
// Rueidis does not see to the first: a command waits for room in the queue of its connection, and for a connection that is
// being made, without a look at its context. So each shard is in one of three states:
//
//	healthy   it has just been heard from, by a reply or a message. A caller sends its command itself.
//	idle  nothing has been heard for a while, so the next command may hang. It gets a goroutine of its own, for which the
//	       caller waits no longer than it wants. The number of these goroutines is limited; without a place no command is
//	       sent. When many commands come at once, all but the first few wait a moment for the shard to be healthy again.
//	suspect   a command was not answered in its time, or so late that a failover may have happened meanwhile. As idle, and
//	       commands go another way; see below.
//
//	healthy ──time──▶ idle ──answer──▶ healthy
//	   └─────────────┴──late or no reply──▶ suspect ──time without any──▶ idle
//
// An answer that comes late may come from a master that was frozen and deposed, and then went on with what was queued for it.
// Until it is demoted it answers everything, as a master, on the connections that it has. So what comes late is not believed,
// and while a shard is suspect its commands go over a connection made since, and over no other: the client's address, or its
// Sentinels, lead that one to the new master. Where the server has been slow all the time, answers on that connection are
// believed although they take long. In a cluster, commands on a suspect shard go over one to the node that most nodes say is
// the master; see topology.Resolver. There a connection that breaks makes the shard suspect, too.
//
// On a healthy shard of a single server, commands that come one at a time go over a connection of their own, see ownConn, and
// where there are many at a time, they go together, see batcher. Both are dropped when the shard becomes suspect.
//
// A process that sends nothing while the master is frozen cannot know that there was a failover. What it asks the old
// master afterwards, on a connection that it has kept, is answered in time and believed. While calls wait it sends something:
// see KeepAlive.
type Client struct {
	redis    rueidis.Client
	Clock    clock.Clock
	routes   atomic.Pointer[routes]
	First    *Shard             // of a single server the only one; of a cluster that of slots whose master nobody knows
	resolver *topology.Resolver // of a cluster
	// ctx never ends, but rueidis does not know that: for a context that cannot end it reads a connection only while a command
	// is under way, and so finds out with the next command that the connection was closed.
	ctx context.Context
	// ignoresContexts is that the client has ignored one, as it does with DisableAutoPipelining: every command gets a goroutine.
	ignoresContexts atomic.Bool
	watchdog        watchdog
	pipelines       chan struct{}
	// selected is the database of the client's shared connections; nil: it is not known yet.
	selected  atomic.Pointer[string]
	abandoned abandonedCalls

	replicators replicators
}

// cacheLine keeps what every command writes away from what every command reads.
type cacheLine [64]byte

// freshConn connection is a connection made while the shard is suspect.
type freshConn struct {
	rueidis.DedicatedClient
	since  clock.Instant
	broken atomic.Bool
}

const (
	healthyFor    = 10 * time.Millisecond // after a reply or a message
	heardAgain    = healthyFor / 8        // a reply so soon after another one is not worth noting
	manyReplies   = 32
	tooSoon       = 100 * time.Millisecond // who waits no longer than this learns nothing from it
	suspectFor    = 30 * time.Second       // after a late or missing one; see below // mutant: trusted too soon
	mostDirect    = 640                    // a connection's queue has room for 1 024 by default
	mostAsync     = 256
	mostRunning   = 8                    // with so many under way on an idle shard, others wait for news of them
	newsWait      = 5 * time.Millisecond // for so long
	mostPipelines = 64                   // pipelines that have a goroutine

	lateReply  = 500 * time.Millisecond // from then and two round trips on a reply is late; see trip
	poolWait   = 6 * time.Second        // longer than it takes to connect, or to fail to
	freshWait  = time.Second            // how long making such a connection may take, and six round trips
	mostMaking = 8                      // goroutines that make one
	mostUnfit  = 1024                   // old connections in the client's pool, by default

	notHeard = clock.Instant(-time.Hour) // when the newest reply came, if there is none
)

// A shard is suspect for longer than a deposed master can answer on the client's own connections. Rueidis breaks those that
// have been silent for its ConnWriteTimeout, 10 s by default, which it notices within 2 s; so a master that comes back to them
// was frozen for 12 s at most. Sentinel demotes it 8 to 10 s later.

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

// Wait is how long a caller waits for a reply: until a while after its context's end, and for no longer than the
// bound.
type Wait struct {
	Ctx      context.Context
	Since    clock.Instant // from when on the limit counts, and the grace when ctx has ended by then; 0: from now on
	Limit    time.Duration
	Near     time.Duration // that limit without the time for the way, which may turn out longer; 0: it does not depend on it
	Grace    time.Duration // how long after the end of ctx
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

// endless is a context that could end and never does.
type endless struct {
	context.Context
	done chan struct{}
}

func (l endless) Done() <-chan struct{} { return l.done }

// New is the client of a client, whose mode it asks for: a wrapper's may block.
func New(client rueidis.Client) *Client {
	t := &Client{redis: client, Clock: clock.New(), pipelines: make(chan struct{}, mostPipelines)}
	t.ctx = endless{context.Background(), make(chan struct{})}
	t.First = newShard(t, "")
	all := &routes{shards: []*Shard{t.First}}
	if client.Mode() == rueidis.ClientModeCluster {
		all.of = &[protocol.Slots]uint16{}
		away := func() time.Duration { return t.Farthest().RoundTrip().Plus(0) }
		t.resolver = topology.NewResolver(t.ctx, client, t.Clock, t.reroute, away)
	}
	t.routes.Store(all)
	t.watchdog.begin(t)
	return t
}

// Close is for when no registry needs the client any more. It goes on working for what they still unlock.
func (t *Client) Close() {
	for _, s := range t.Shards() {
		s.close()
	}
}

// Do sends a command and waits for the reply as p says. Without one its error is fault.NoAnswer, or
// fault.NotSent.
func (t *Client) Do(p *Wait, c *protocol.Call) (a Reply) {
	if c.Replicas != nil {
		return t.doReplicated(p, c)
	}
	s := t.Shard(c.Key)
	a.Sent = t.Clock.Now()
	end := s.enter(a.Sent)
	if end == nil && s.running.Load() >= mostRunning && s.awaitNews(a.Sent) {
		a.Sent = t.Clock.Now()
		end = s.enter(a.Sent)
	}
	if end == nil {
		s.doAsync(p, c, &a)
		return a
	}
	if w := s.takeOwn(p, c, a.Sent, end); w != nil {
		s.doOwn(w, p, c, end, &a)
		return a
	}
	if b := s.batcher(end); b != nil {
		s.doBatched(b, p, c, end, &a)
		return a
	}
	end.begin(p, a.Sent, nil)
	a.RedisResult = c.Send(end, t.redis)
	overdue := end.overdue()
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	if over := end.stop(); !over && errors.Is(a.Error(), fault.NoAnswer) {
		// Another command's limit has ended while the client made a connection for both, and this one was not sent.
		rest := *p
		if rest.Since == 0 {
			rest.Since = a.Sent
		}
		s.doAsync(&rest, c, &a)
		return a
	}
	if overdue && !errors.Is(a.Error(), fault.NoAnswer) {
		t.ignoresContexts.Store(true)
	}
	s.takeIn(p, excused, &a)
	return a
}

// takeIn completes the reply to a command that its caller has sent, which has just come.
func (s *Shard) takeIn(p *Wait, excused bool, a *Reply) {
	err := a.Error()
	x := exchange{sent: a.Sent, came: a.Came, trip: s.RoundTrip(), excused: excused}
	if fault.Answered(err) && !excused {
		s.estimate.sample(a.Sent, a.Came)
	}
	a.Late = s.judge(p, err, x)
	a.Doubtful = a.Late && s.IsSuspect(a.Came)
	a.Cut = p.cut(err)
}

// exchange is when a command was sent and answered.
type exchange struct {
	sent, came clock.Instant
	trip       RoundTrip // what was known of the way before the reply
	excused    bool      // see bound.excuses
}

// cut tells whether there is no reply because the caller's context ended.
func (p *Wait) cut(err error) bool {
	return err != nil && p.Grace == 0 && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent)) && p.Ctx.Err() != nil
}

// Within waits for the outcome of another command for as long as p says. When no time is left it does not: a command that is
// answered at this very moment was sent after the end of the time, and whether it is stuck behind the one before depends on the
// connection that it got.
func (t *Client) Within(p *Wait, outcome <-chan bool) bool {
	now := t.Clock.Now()
	end := t.watchdog.bound(p, now, nil)
	defer end.stop()
	if end.left(now) == 0 {
		return false
	}
	select {
	case good := <-outcome:
		return good
	case <-end.Done():
		return false
	}
}

// askLimit is how long a call waits for the reply to a question without which it can go on.
const askLimit = 100 * time.Millisecond

// Question asks a server something that is about no key.
type Question func(context.Context, rueidis.CoreClient) rueidis.RedisResult

// Ask asks any server of a cluster.
func (t *Client) Ask(question Question) rueidis.RedisResult {
	reply, _ := t.First.Ask(&Wait{Ctx: context.Background(), Limit: t.First.RoundTrip().Plus(askLimit)}, question)
	return reply
}

// Ask asks the server of the shard, and tells whether there is no reply because the caller's context ended.
func (s *Shard) Ask(p *Wait, question Question) (reply rueidis.RedisResult, cut bool) {
	reply = s.async(p, s.places, &asyncCall{send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{question(ctx, way)}
	}}).result(0)
	return reply, p.cut(reply.Error())
}
