package transport

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// replication is a command whose write counts only once enough replicas have it.
//
//	queued ──▶ sent ──answered──▶ written ──acknowledged──▶ settled
//	   │         │                   │                         ▲
//	   └─────────┴──nothing written, or time is over───────────┘
//
// WAIT counts the replicas that have all writes of its own connection, and blocks that connection. So these commands go over a
// connection that no other code uses. All that wait for it go in one pipeline, with one WAIT at the end, which also covers
// earlier writes. With a pipeline and a connection for each command, 1, 8 and 64 goroutines would take 2.0, 1.05 and 1.8 times
// as long.
type replication struct {
	call protocol.Call
	done chan struct{} // closed when it is settled

	// The mutex of the replicators guards the rest until the replication is settled.

	stage    replicationStage
	reply    Reply
	acks     int           // replicas that have the write
	answered clock.Instant // when the server answered; the wait for replicas does not make a server slow
	unsure   bool          // it is not certain that this server is the key's master
	left     bool          // see judge.left
	overdue  bool          // its time is over: the reply settles it
	asking   bool          // the slot is moving to the server
	hops     int           // how many servers have redirected it
}

type replicationStage uint8

const (
	isQueued replicationStage = iota
	isSent
	isWritten
	isSettled
)

// settle ends the replication. ReplicaErr says why the master's reply does not count; nil: it counts. The caller holds the
// mutex, as for the following methods.
func (e *replication) settle(result rueidis.RedisResult, replicaErr error) {
	if e.stage != isSettled {
		e.stage, e.reply.RedisResult, e.reply.ReplicaErr = isSettled, result, replicaErr
		close(e.done)
	}
}

func (e *replication) fail(err error) { e.settle(rueidis.NewErrorResult(err), nil) }

// count notes how many replicas have the write. Err: the connection is broken, or WAIT is not permitted.
func (e *replication) count(acks int, err error) {
	if e.stage != isWritten {
		return
	}
	if e.acks = acks; err == nil && acks < e.call.Replicas.N {
		if !e.overdue {
			return
		}
		err = fmt.Errorf("%w: %d of %d", fault.FewReplicas, acks, e.call.Replicas.N)
	}
	e.settle(e.reply.RedisResult, err)
}

// replicators has a replicator for each server, by address in a cluster, otherwise by the empty string.
type replicators struct {
	mu sync.Mutex
	of map[string]*replicator
}

// replicator sends the replications of one server.
type replicator struct {
	client  *Client
	address string
	queue   []*replication
	sender  *replicaSender // takes the queue; nil: none
	senders int            // that run, including replaced ones that have not ended
}

// replicaSender is a goroutine with its own connection, which sends what is queued until there is nothing to do. Once replaced,
// it takes nothing new, and ends when its batch is settled.
type replicaSender struct {
	*replicator
	node     *Node
	since    clock.Instant
	trusted  bool           // its connection was made after the node had become suspect
	stands   func() bool    // whether the connection may carry new commands, by the belief in its server
	leads    string         // see judge.present
	asked    clock.Instant  // see judge.left
	left     bool           // what judge.left has said; guarded by the mutex of the replicators
	database string         // the database to select; empty: none
	batch    []*replication // taken, and not settled
}

const (
	// waitSlice is how long one WAIT blocks a connection, during which no other command is sent on it. An idle server notices the
	// end up to 100 ms later.
	waitSlice = belief.Tick / 4

	// WaitAtMost is how long one WAIT takes at the server.
	WaitAtMost = waitSlice + belief.Tick

	senderFor          = belief.Connect // plus two round trips: then a sender is replaced, as it may hang, or be at a former master
	mostReplicaSenders = 16             // per server; rueidis closes a hanging connection after 12 s
	mostHops           = 4
)

// doReplicated is Do for a command whose write must reach replicas. It waits for the replicas until the command's Timeout is
// over, and for the reply as p says.
func (t *Client) doReplicated(p *Wait, c *protocol.Call) Reply {
	s, began := t.Node(c.Key), t.Clock.Now()
	s.noticeStandstill()
	limit := *p // the reply comes together with WAIT's, and says nothing about the server's silence
	limit.holds, limit.FailFast = belief.Never, false
	end := s.bound(&limit, began)
	defer end.stop()
	e := &replication{call: *c, done: make(chan struct{}), reply: Reply{Sent: began}}
	over := time.NewTimer(c.Replicas.Timeout)
	defer over.Stop()
	var silent <-chan time.Time // for the server, not for its replicas
	if p.FailFast {
		limit := time.NewTimer(s.Patience() + 2*WaitAtMost) // an earlier WAIT and its own delay its reply
		defer limit.Stop()
		silent = limit.C
	}
	t.replicate(s, e)
	for waiting := true; waiting; {
		select {
		case <-e.done:
			waiting = false
		case <-over.C:
			t.replicators.giveUp(e, true, false)
		case <-silent:
			t.replicators.giveUp(e, false, true)
		case <-end.Done():
			t.replicators.giveUp(e, true, true)
		}
	}
	a := e.reply
	a.Came = t.Clock.Now()
	p.holds = WaitAtMost // the reply comes together with WAIT's
	x := exchange{Exchange: belief.Exchange{Sent: a.Sent, Came: a.Came, Trip: s.RoundTrip(), Left: e.left}}
	if e.answered != 0 {
		x.Came = e.answered
	}
	s.assess(p, x, &a)
	if a.ReplicaErr != nil || e.acks >= c.Replicas.N {
		c.Replicas.Settled(a.ReplicaErr)
	}
	return a
}

// replicate queues a command for the server of its key.
func (t *Client) replicate(s *Node, e *replication) {
	var owner topology.Owner
	switch slot := protocol.Slot(e.call.Key); {
	case t.resolver == nil:
		owner.Trusted = true
	case s.IsSuspect(t.Clock.Now()):
		owner = t.resolver.Master(slot)
	default:
		owner = t.resolver.Kept(slot)
	}
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	if t.resolver != nil && (owner.Silent || owner.Address == "") {
		e.fail(fault.NotSent)
		return
	}
	e.unsure = !owner.Trusted
	t.add(s, owner.Address, e)
}

// giveUp ends the wait for a command's replicas, if that is overdue, and the wait for its reply, if it is unanswered.
func (s *replicators) giveUp(e *replication, overdue, unanswered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.overdue = e.overdue || overdue
	switch {
	case e.stage == isQueued:
		e.fail(fault.NotSent)
	case e.stage == isSent && unanswered:
		e.fail(fault.NoAnswer)
	case overdue:
		e.count(e.acks, nil)
	}
}

// add queues a command for a server, and starts a sender if needed. The caller holds the mutex, as for begin.
func (t *Client) add(s *Node, address string, e *replication) {
	r := t.replicators.of[address]
	if r == nil {
		if t.replicators.of == nil {
			t.replicators.of = map[string]*replicator{}
		}
		r = &replicator{client: t, address: address}
		t.replicators.of[address] = r
	}
	if r.sender != nil && r.sender.stale() {
		if r.senders == mostReplicaSenders {
			e.fail(fault.NotSent)
			return
		}
		r.sender = nil
	}
	e.stage = isQueued
	r.queue = append(r.queue, e)
	r.begin(s)
}

// begin starts a sender if there is none and commands are queued.
func (r *replicator) begin(s *Node) {
	if r.sender != nil || len(r.queue) == 0 {
		return
	}
	if r.address != "" {
		s = r.client.NodeAt(r.address)
	}
	since := r.client.Clock.Now()
	known := s.Address == r.address
	trusted := known && s.IsSuspect(since)
	r.sender = &replicaSender{replicator: r, node: s, since: since, trusted: trusted, stands: func() bool {
		return !known || !s.IsSuspect(s.clock.Now()) || trusted && s.belief.Outlives(since)
	}}
	r.senders++
	go r.sender.run()
}

// stale reports whether new commands must go another way.
func (s *replicaSender) stale() bool {
	return s.left || !s.stands() || s.since.Until(s.client.Clock.Now()) >= s.node.RoundTrip().Plus(senderFor)
}

func (s *replicaSender) run() {
	conn := s.connect()
	if conn != nil {
		tick := time.AfterFunc(belief.Tick, s.tick) // mutant: left behind a lost connection
		for s.send(conn) {
		}
		tick.Stop()
	}
	s.ends(conn != nil)
	switch {
	case conn == nil:
	case s.node.IsSuspect(s.client.Clock.Now()): // it may lead to a former master, and nobody looks at the pool again
		conn.end()
	default:
		conn.giveBack(s.node.RoundTrip().Plus(belief.Silence))
	}
}

// ends has another sender take what is queued, if this one was connected; otherwise those commands fail.
func (s *replicaSender) ends(connected bool) {
	s.client.replicators.mu.Lock()
	defer s.client.replicators.mu.Unlock()
	s.senders--
	if s.sender != s {
		return
	}
	s.sender = nil
	for ; !connected && len(s.queue) > 0; s.queue = s.queue[1:] {
		s.queue[0].fail(fault.NotSent)
	}
	s.begin(s.node)
}

// relieve has another sender take what is queued, if this one no longer may. The caller holds the mutex.
func (s *replicaSender) relieve() {
	if s.sender == s && s.stale() && s.senders < mostReplicaSenders { // mutant: queued behind a stale sender
		s.sender = nil
		s.begin(s.node)
	}
}

// tick relieves a sender that waits for a reply, which may never come, until another one has taken its place.
func (s *replicaSender) tick() {
	s.client.replicators.mu.Lock()
	defer s.client.replicators.mu.Unlock()
	if s.relieve(); s.sender == s {
		time.AfterFunc(belief.Tick, s.tick)
	}
}

// connect gets a connection that no other code uses; while the node is suspect, one made since then.
func (s *replicaSender) connect() *dedicated {
	t := s.client
	s.leads, s.asked = s.node.present(), t.Clock.Now()
	switch {
	case s.trusted && t.watched() && !s.vouched():
		return nil
	case s.trusted:
		return s.node.dials.dial(wanted{})
	case s.address == "": // a cluster has one database
		var known bool
		if s.database, known = t.database(belief.Connect); !known { // mutant: replicated in another database
			return nil
		}
	}
	return s.node.dials.dial(wanted{from: func() rueidis.Client { return t.serverAt(s.address) }})
}

// vouched waits until the node's server is believed, and reports whether it is.
func (s *replicaSender) vouched() bool {
	fresh, none := s.node.fresh.get(func() bool {
		return s.since.Until(s.client.Clock.Now()) >= s.node.RoundTrip().Plus(senderFor)
	})
	if fresh != nil {
		s.leads, s.asked = fresh.Address, fresh.Asked
	}
	return fresh != nil || none
}

// take prepares a pipeline: the queued commands, and a WAIT for all that was written. Of has the replication of each command,
// or nil. Commands is nil if nothing is left to do on this connection.
func (s *replicaSender) take(b rueidis.Builder) (commands rueidis.Commands, of []*replication) {
	s.client.replicators.mu.Lock()
	defer s.client.replicators.mu.Unlock()
	now := s.client.Clock.Now() // before it checks whether its connection stands, as in queue.take
	if s.sender == s && !s.stale() {
		s.batch, s.queue = append(s.batch, s.queue...), nil
	}
	s.relieve()
	barred := s.node.belief.Barred()
	s.batch = slices.DeleteFunc(s.batch, func(e *replication) bool {
		if barred && e.stage == isQueued && e.call.DropIfAbandoned {
			e.fail(fault.NotSent)
		}
		return e.stage == isSettled
	})
	if len(s.batch) == 0 {
		return nil, nil
	}
	push := func(command rueidis.Completed, e *replication) {
		commands, of = append(commands, command), append(of, e)
	}
	if s.database != "" { // a pooled connection may have another database selected
		push(b.Arbitrary("SELECT").Args(s.database).Build(), nil)
		s.database = ""
	}
	n, slice := 1, waitSlice
	for _, e := range s.batch {
		n, slice = max(n, e.call.Replicas.N), min(slice, e.call.Replicas.Timeout)
		if e.stage == isWritten {
			continue
		}
		e.stage, e.reply.Sent, e.reply.Fresh = isSent, now, s.trusted && !e.unsure
		if e.asking {
			push(b.Arbitrary("ASKING").Build(), nil)
		}
		push(e.call.Command(b, false), e)
	}
	push(b.Arbitrary("WAIT").Args(strconv.Itoa(n), strconv.FormatInt(slice.Milliseconds(), 10)).Build(), nil)
	return commands, of
}

// send sends a pipeline, and reports false if there was nothing to send. After a WAIT that returns at once it pauses before the
// next. It passes no context that can end, see dedicated.ask: so there is nothing to unsubscribe when the connection goes back to
// the pool, see giveBack.
func (s *replicaSender) send(client rueidis.DedicatedClient) bool {
	commands, of := s.take(client.B())
	if commands == nil {
		return false
	}
	t := s.client
	began := t.Clock.Now()
	p := Wait{Ctx: t.ctx, Limit: s.node.RoundTrip().Plus(senderFor), holds: WaitAtMost}
	end := s.node.bound(&p, began)                               // it notices a silent server
	results := client.DoMulti(context.Background(), commands...) // mutant: other connection
	end.stop()
	acks, err := results[len(results)-1].AsInt64()
	if !fault.Answered(err) && t.resolver != nil {
		t.resolver.Forget()
	}
	left := s.node.left(s.leads, s.asked)
	t.replicators.mu.Lock()
	s.left = s.left || left
	for _, e := range s.batch {
		if e.stage != isSettled {
			e.left = s.left
		}
	}
	for i, result := range results {
		if e := of[i]; e != nil && e.stage != isSettled { // otherwise its caller has given up
			s.takeIn(e, result)
		}
	}
	s.batch = slices.DeleteFunc(s.batch, func(e *replication) bool { return e.stage == isQueued }) // another sender may take them
	pending := false
	for _, e := range s.batch {
		e.count(int(acks), err)
		pending = pending || e.stage == isWritten
	}
	t.replicators.mu.Unlock()
	if rest := waitSlice - began.Until(t.Clock.Now()); pending && rest > 0 {
		<-time.After(rest)
	}
	return true
}

// takeIn handles the reply to a command of the batch. The caller holds the mutex.
func (s *replicaSender) takeIn(e *replication, result rueidis.RedisResult) {
	err := result.Error()
	if fault.Answered(err) {
		e.answered = s.client.Clock.Now()
	}
	switch {
	case e.call.Again(result):
		s.client.add(s.node, s.address, e) // this connection may lead to a former master
	case fault.Elsewhere(err) && e.hops < mostHops:
		e.stage = isQueued
		go s.client.redirect(e, result)
	case e.call.Wrote(&e.call, result):
		e.reply.RedisResult, e.stage = result, isWritten
	default:
		e.settle(result, nil)
	}
}

// redirect sends a command to the node that the asked node has named.
func (t *Client) redirect(e *replication, result rueidis.RedisResult) {
	reply, _ := rueidis.IsRedisErr(result.Error())
	address, moved := reply.IsMoved()
	if !moved {
		address, _ = reply.IsAsk()
	}
	t.resolver.Forget()
	s, key := t.Node(e.call.Key), e.call.Key
	if t.redis.Nodes()[address] == nil { // the client asks for the new topology
		p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Plus(askLimit)}
		s.Ask(&p, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
			return way.Do(ctx, way.B().Pttl().Key(key).Build())
		})
	}
	known := t.redis.Nodes()[address] != nil // not under the mutex: a wrapper may block
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	switch {
	case e.stage == isSettled:
	case !known:
		e.settle(result, nil)
	default:
		e.hops++
		e.asking = !moved
		t.add(s, address, e)
	}
}
