package transport

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// fewReplicasError is that too few have acknowledged a write in time. The master has it.
type fewReplicasError struct {
	acknowledged, wanted int
}

func (f fewReplicasError) Error() string {
	return fmt.Sprintf("too few replicas have it: %d of %d", f.acknowledged, f.wanted)
}

// replication is a command whose write counts once replicas have it.
//
//	waiting ──▶ sent ──answered──▶ written ──acknowledged──▶ settled
//	   │          │                   │                         ▲
//	   └──────────┴──nothing written, or time is over───────────┘
//
// WAIT counts the replicas that have what its own connection has written, and keeps that connection from everything else. So
// the commands to a server go over a connection that no other code uses, all that are there at once in one pipeline, with a
// WAIT behind them. What has been written before on that connection counts with it.
type replication struct {
	call protocol.Call
	done chan struct{} // closed when it is settled

	// The mutex of the replicators guards the rest, until it is settled.

	state      replicationState
	result     rueidis.RedisResult
	replicaErr error         // why what the server has done does not count
	acks       int           // replicas that have it
	sent       clock.Instant // when the pipeline was
	answered   clock.Instant // when the server had answered
	unsure     bool          // that this server is the master of the key is not certain
	trusted    bool          // on a way that was made since the shard is suspect
	overdue    bool          // its time is over: it is settled with the reply
	bySource   bool          // the server does not know the script
	asking     bool          // the slot is on its way to the server
	hops       int           // servers that said that another one has the key
}

type replicationState uint8

const (
	isWaiting replicationState = iota // for its pipeline
	isSent
	isWritten
	isSettled
)

// settle ends it. The caller holds the mutex, as that of what follows.
func (e *replication) settle(result rueidis.RedisResult, replicaErr error) {
	if e.state != isSettled {
		e.state, e.result, e.replicaErr = isSettled, result, replicaErr
		close(e.done)
	}
}

func (e *replication) fail(err error) { e.settle(rueidis.NewErrorResult(err), nil) }

// count takes in how many replicas have what was written.
func (e *replication) count(acks int, err error) {
	if e.state != isWritten {
		return
	}
	e.acks = acks
	switch {
	case err != nil: // the connection is broken, or WAIT is not permitted
		e.settle(e.result, err)
	case acks >= e.call.Replicas.N:
		e.settle(e.result, nil)
	case e.overdue:
		e.settle(e.result, fewReplicasError{acks, e.call.Replicas.N})
	}
}

// replicators send such commands, one for each server: it is named by its address in a cluster, else by nothing.
type replicators struct {
	mu sync.Mutex
	of map[string]*replicator
}

// replicator is the way to one server.
type replicator struct {
	client  *Client
	address string
	queue   []*replication
	sender  *replicaSender // takes what is queued; nil: there is none
	senders int            // with those that were replaced and have not ended
}

// replicaSender is a goroutine with a connection of its own, which sends what is queued until there is nothing left to do. When
// another one has replaced it, it takes nothing new, and ends when what it has written is settled.
type replicaSender struct {
	*replicator
	shard   *Shard
	since   clock.Instant
	trusted bool // its connection was made since the shard is suspect

	database string // to be selected on it; empty: none
	commands rueidis.Commands
	of       []*replication // whose each of the commands is; nil: its own
	batch    []*replication // that it has taken, and are not settled
}

const (
	// waitSlice is how long one WAIT blocks a connection. Meanwhile no new command is sent on it. A server that has nothing
	// else to do notices the end 100 ms later.
	waitSlice = 25 * time.Millisecond

	// WaitAtMost is how long the server takes with it.
	WaitAtMost = waitSlice + 100*time.Millisecond

	senderFor          = time.Second // and two round trips, until it is replaced: it may hang, or its replicas have another master
	mostReplicaSenders = 16          // to a server; rueidis closes a connection that hangs after 12 s
	mostHops           = 4
)

// doReplicated is do for a command whose write replicas must have. When the server has done it and too few have, the reply
// says why in short. It waits for them as long as it is told, and for the reply as any command.
//
//go:noinline
func (t *Client) doReplicated(p *Wait, c *protocol.Call) (a Reply) {
	s, began := t.Shard(c.Key), t.Clock.Now()
	end := t.bound(p, began, nil)
	defer end.stop()
	e := &replication{call: *c, done: make(chan struct{}), sent: began}
	over := time.NewTimer(c.Replicas.Timeout)
	defer over.Stop()
	t.replicate(s, e)
	for waiting := true; waiting; {
		select {
		case <-e.done:
			waiting = false
		case <-over.C:
			t.replicators.expire(e, nil)
		case <-end.Done():
			t.replicators.expire(e, fault.NoAnswer)
		}
	}
	a = Reply{RedisResult: e.result, Sent: e.sent, Came: t.Clock.Now(), Fresh: e.trusted, ReplicaErr: e.replicaErr}
	err := a.Error()
	came := a.Came
	if e.answered != 0 { // to wait for replicas is no sign of a slow server
		came = e.answered
	}
	p.holds = WaitAtMost // the reply comes with that of WAIT
	a.Late = s.judge(p, err, exchange{sent: e.sent, came: came, trip: s.RoundTrip()})
	a.Doubtful = a.Late && s.IsSuspect(a.Came)
	a.Cut = p.cut(err)
	switch {
	case e.replicaErr != nil:
		c.Replicas.Told(e.replicaErr)
	case e.acks >= c.Replicas.N:
		c.Replicas.Told(nil)
	}
	return a
}

// replicate hands a command to the replicator of the server that has its key.
func (t *Client) replicate(s *Shard, e *replication) {
	var owner topology.Owner
	suspect := s.IsSuspect(t.Clock.Now())
	switch slot := protocol.Slot(e.call.Key); {
	case t.resolver == nil:
	case suspect:
		owner = t.resolver.Master(slot)
	default:
		owner = t.resolver.Usual(slot)
	}
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	if t.resolver != nil && (owner.Silent || owner.Address == "") {
		e.fail(fault.NotSent)
		return
	}
	e.unsure = t.resolver != nil && !owner.Trusted
	t.replicators.at(t, owner.Address).add(s, e)
}

// expire is for when the time of replicas is over, or, with an error for it, when the caller waits for no reply any longer.
func (s *replicators) expire(e *replication, unanswered error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.overdue = true
	switch {
	case e.state == isWaiting:
		e.fail(fault.NotSent)
	case e.state == isSent && unanswered != nil:
		e.fail(unanswered)
	default:
		e.count(e.acks, nil)
	}
}

// at returns the replicator of a server. The caller holds the mutex, as that of add and begin.
func (s *replicators) at(t *Client, address string) *replicator {
	r := s.of[address]
	if r == nil {
		if s.of == nil {
			s.of = map[string]*replicator{}
		}
		r = &replicator{client: t, address: address}
		s.of[address] = r
	}
	return r
}

// add queues a command, and sees to it that there is a sender for it.
func (r *replicator) add(s *Shard, e *replication) {
	if r.sender != nil && r.sender.stale() {
		if r.senders == mostReplicaSenders {
			e.fail(fault.NotSent)
			return
		}
		r.sender = nil
	}
	e.state = isWaiting
	r.queue = append(r.queue, e)
	r.begin(s)
}

// begin starts a sender where there is none and something is queued.
func (r *replicator) begin(s *Shard) {
	if r.sender == nil && len(r.queue) > 0 {
		if r.address != "" {
			s = r.client.ShardAt(r.address)
		}
		now := r.client.Clock.Now()
		r.sender = &replicaSender{replicator: r, shard: s, since: now, trusted: s.Address == r.address && s.IsSuspect(now)}
		r.senders++
		go r.sender.run()
	}
}

// stale tells whether what comes is to go another way.
func (s *replicaSender) stale() bool {
	now := s.client.Clock.Now()
	deposed := !s.trusted && s.shard.Address == s.address && s.shard.IsSuspect(now)
	return deposed || s.since.Until(now) >= s.shard.RoundTrip().Plus(senderFor)
}

func (s *replicaSender) run() {
	mu := &s.client.replicators.mu
	client, release := s.connect()
	if client != nil {
		for s.take(client) {
			s.send(client)
		}
		release()
	}
	mu.Lock()
	defer mu.Unlock()
	s.senders--
	if s.sender != s {
		return
	}
	s.sender = nil
	for ; client == nil && len(s.queue) > 0; s.queue = s.queue[1:] {
		s.queue[0].fail(fault.NotSent)
	}
	s.begin(s.shard)
}

// connect gets a connection that no other code uses; while the shard is suspect, one made since. It may hang. What
// it gets after that may lead to a master that is none any more, and is not used.
func (s *replicaSender) connect() (client rueidis.DedicatedClient, release func()) {
	t := s.client
	switch {
	case s.trusted:
		if client = s.shard.dedicate(s.since); client != nil {
			release = client.Close
		}
	case s.address == "":
		s.database = t.database()
		client, release = t.redis.Dedicate()
	case t.redis.Nodes()[s.address] != nil: // a cluster has one database
		client, release = t.redis.Nodes()[s.address].Dedicate()
	}
	if client != nil && s.since.Until(t.Clock.Now()) >= s.shard.RoundTrip().Connect() {
		go client.Close()
		return nil, nil
	}
	return client, release
}

func (s *replicaSender) push(command rueidis.Completed, of *replication) {
	s.commands, s.of = append(s.commands, command), append(s.of, of)
}

// take readies a pipeline: what is queued, and a WAIT for that and for what was written before. It reports false when there is
// nothing left to do on this connection.
func (s *replicaSender) take(client rueidis.DedicatedClient) bool {
	s.client.replicators.mu.Lock()
	defer s.client.replicators.mu.Unlock()
	if s.sender == s && !s.stale() {
		s.batch, s.queue = append(s.batch, s.queue...), nil
	}
	s.batch = slices.DeleteFunc(s.batch, func(e *replication) bool { return e.state == isSettled })
	s.commands = make(rueidis.Commands, 0, 2*len(s.batch)+2) // rueidis may read those before still, when the connection has broken
	s.of = s.of[:0]
	if s.database != "" { // what comes from the client's pool may have another one selected
		s.push(client.B().Arbitrary("SELECT").Args(s.database).Build(), nil)
		s.database = ""
	}
	n, slice, now := 1, waitSlice, s.client.Clock.Now()
	for _, e := range s.batch {
		n, slice = max(n, e.call.Replicas.N), min(slice, e.call.Replicas.Timeout)
		if e.state == isWritten {
			continue
		}
		e.state, e.sent, e.trusted = isSent, now, s.trusted && !e.unsure
		if e.asking {
			s.push(client.B().Arbitrary("ASKING").Build(), nil)
		}
		if e.bySource {
			s.push(e.call.BySource(client.B()), e)
		} else {
			s.push(e.call.Command(client.B(), false), e)
		}
	}
	s.push(client.B().Arbitrary("WAIT").Args(strconv.Itoa(n), strconv.FormatInt(slice.Milliseconds(), 10)).Build(), nil)
	return len(s.batch) > 0
}

// send sends what was readied. A server that does not wait is asked again after a while.
func (s *replicaSender) send(client rueidis.DedicatedClient) {
	t := s.client
	began := t.Clock.Now()
	p := Wait{Ctx: t.ctx, Limit: s.shard.RoundTrip().Plus(senderFor), holds: WaitAtMost}
	end := s.shard.bound(&p, began, nil)            // it notices that the server is silent
	results := client.DoMulti(t.ctx, s.commands...) // mutant: other connection
	end.stop()
	acks, err := results[len(results)-1].AsInt64()
	if !fault.Answered(err) && t.resolver != nil {
		t.resolver.Forget()
	}
	t.replicators.mu.Lock()
	for i, result := range results {
		if e := s.of[i]; e != nil && e.state != isSettled { // else its caller has not waited
			s.takeIn(e, result)
		}
	}
	s.batch = slices.DeleteFunc(s.batch, func(e *replication) bool { return e.state == isWaiting }) // another one may take it
	pending := false
	for _, e := range s.batch {
		e.count(int(acks), err)
		pending = pending || e.state == isWritten
	}
	t.replicators.mu.Unlock()
	if rest := waitSlice - began.Until(t.Clock.Now()); pending && rest > 0 {
		<-time.After(rest)
	}
}

// takeIn takes in the reply to a command of the batch. The caller holds the mutex.
func (s *replicaSender) takeIn(e *replication, result rueidis.RedisResult) {
	err := result.Error()
	if fault.Answered(err) {
		e.answered = s.client.Clock.Now()
	}
	switch {
	case protocol.NoScript(err) && e.call.Script != nil && !e.bySource:
		e.bySource = true
		s.add(s.shard, e)
	case fault.Elsewhere(err) && e.hops < mostHops:
		e.state = isWaiting
		go s.client.redirect(e, result)
	case e.call.Wrote(&e.call, result):
		e.result, e.state = result, isWritten
	default:
		e.settle(result, nil)
	}
}

// redirect sends a command to the node of a cluster that has the key by the word of the one that was asked.
func (t *Client) redirect(e *replication, result rueidis.RedisResult) {
	reply, _ := rueidis.IsRedisErr(result.Error())
	address, moved := reply.IsMoved()
	if !moved {
		address, _ = reply.IsAsk()
	}
	t.resolver.Forget()
	s := t.Shard(e.call.Key)
	if t.redis.Nodes()[address] == nil { // the client has it shown to itself
		key := e.call.Key
		p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Plus(askLimit)}
		ask := func(ctx context.Context, _ rueidis.CoreClient) []rueidis.RedisResult {
			return []rueidis.RedisResult{t.redis.Do(ctx, t.redis.B().Pttl().Key(key).Build())}
		}
		s.async(&p, s.places, &asyncCall{key: key, send: ask})
	}
	known := t.redis.Nodes()[address] != nil // not under the mutex: a wrapper's may block
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	switch {
	case e.state == isSettled:
	case !known:
		e.settle(result, nil)
	default:
		e.hops++
		e.asking = !moved
		t.replicators.at(t, address).add(s, e)
	}
}
