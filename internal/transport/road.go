package transport

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// task says what an entry of a queue is about. If it has send, it sends a question, or several commands, by itself.
type task struct {
	send  sending // nil: a command that goes with others
	key   string  // the key that it is about; empty: none
	plain bool    // over the node's own connections, even if it is suspect. It waits in no queue
}

// sending sends commands.
type sending func(context.Context, rueidis.CoreClient) []rueidis.RedisResult

func single(what func(rueidis.Builder) rueidis.Completed) sending {
	return func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{way.Do(ctx, what(way.B()))}
	}
}

// outcome is the result of a task.
type outcome struct {
	exchange
	to      *judge // of the node to which it was sent
	results []rueidis.RedisResult
	err     error // why there are no results
	late    bool  // of questions, see Node.inquire
}

func (o outcome) result(i int) rueidis.RedisResult {
	if o.err != nil {
		return rueidis.NewErrorResult(o.err)
	}
	return o.results[i]
}

// road is where a driver sends what it takes.
type road struct {
	way     rueidis.CoreClient
	fresh   *freshConn    // nil: the client's own connections
	most    int           // commands in a pipeline
	suspect bool          // it was chosen for a suspect node
	asks    bool          // for each command the nodes of a cluster are asked for its master
	astray  bool          // it leads to another server than the nodes name, see topology.Resolver.Way
	leads   string        // see judge.present; only for a suspect node, and not on a cluster
	asked   clock.Instant // see judge.left
	taken   clock.Instant // when the driver took what it sends; see queue.take

	one [1]rueidis.RedisResult // memory for a single reply
}

// choose finds the road for the queue: the client's own connections; on a suspect node a fresh one, or, in a cluster, to the
// master that the nodes name.
func (s *Node) choose(over func() bool) (r road, ok bool) {
	t, now := s.client, s.client.Clock.Now()
	r = road{way: t.redis, most: s.inPipeline()}
	switch {
	case !s.IsSuspect(now):
		if s.hasNoServer() {
			t.resolver.Hear(topology.FreshFor)
		}
		return r, true
	case t.resolver != nil:
		r.suspect, r.asks, r.most = true, true, 1
		return r, true
	}
	r.suspect, r.leads, r.asked = true, s.present(), now
	fresh, none := s.fresh.get(over)
	if fresh != nil {
		r.way, r.fresh = fresh, fresh // mutant: silent connection kept
		r.leads, r.asked = fresh.Address, fresh.Asked
	}
	return r, fresh != nil || none
}

// stands reports whether a road that was chosen before may be used. A command may have been found unanswered on its fresh
// connection, which is about to be given up for that.
func (s *Node) stands(r *road) bool {
	return s.IsSuspect(s.clock.Now()) == r.suspect && (r.fresh == nil || s.fresh.stands(r.fresh))
}

// carry sends what a driver has taken, and answers it.
func (s *Node) carry(r *road, of []*entry) {
	t, first := s.client, of[0]
	for _, e := range of {
		e.end.to.Store(&s.judge)
		e.exchange = exchange{Exchange: belief.Exchange{Sent: r.taken, Trusted: r.fresh != nil}}
		if r.fresh != nil {
			e.made = r.fresh.Since
		}
		if s.hasNoServer() && e.key != "" {
			e.end.to.Store(&t.Node(e.key).judge)
		}
	}
	asks := r.asks && first.key != ""
	if asks && !s.resolve(r, first) { // such a road carries one command at a time
		first.answer(errNotSent)
		return
	}
	for _, e := range of {
		e.Trip = e.end.to.Load().RoundTrip()
		if !e.end.firstSent.CompareAndSwap(0, int64(e.Sent)) { // it is sent again
			e.Sent = clock.Instant(e.end.firstSent.Load())
		}
	}
	results := s.deliver(r, of)
	if err := results[0].Error(); asks && (!fault.Answered(err) || fault.Elsewhere(err)) {
		t.resolver.Forget()
		if fault.Elsewhere(err) && (first.send == nil || first.obtains()) && (!first.obtains() || !first.gone()) {
			first.Trusted = false                        // that connection may be an old one
			results = s.deliver(&road{way: t.redis}, of) // the client finds the right node
		}
	}
	// A reply that is late because this process stood still says nothing about the round trip.
	now, end := t.Clock.Now(), first.end
	if fault.Answered(results[0].Error()) && end.alarm.Holds == 0 && !r.astray && !end.excuses(first.Sent, now) {
		end.to.Load().belief.Sample(first.Sent, now)
	}
	left := r.astray || r.suspect && !r.asks && s.left(r.leads, r.asked) // mutant: left server believed
	for i, e := range of {
		e.Left = left
		e.answer(results[i])
	}
}

// deliver sends commands together, or what one task sends. Commands go over the shared connections, unless the client avoids
// those: pooled ones may be in any state, see ownConn.
func (s *Node) deliver(r *road, of []*entry) (results []rueidis.RedisResult) {
	ctx := s.client.ctx
	switch e := of[0]; {
	case e.send != nil:
		e.results = e.send(ctx, r.way)
		results = e.results
	case len(of) == 1:
		results = r.one[:]
		results[0] = r.way.Do(ctx, e.command)
	default:
		// Not reused memory: when a connection breaks, rueidis may return while it still reads the commands.
		commands := make([]rueidis.Completed, len(of))
		for i, e := range of {
			commands[i] = e.command
		}
		results = r.way.DoMulti(ctx, commands...)
	}
	if r.fresh != nil {
		s.used(r.fresh, results)
	}
	return results
}

// used notes the results of commands on the fresh connection.
func (s *Node) used(fresh *freshConn, results []rueidis.RedisResult) {
	if slices.ContainsFunc(results, protocol.RefusedByReplica) && s.roles {
		s.fresh.refused(fresh)
	}
	if fault.Answered(results[0].Error()) {
		return
	}
	fresh.broken.Store(true)
	for i, result := range results {
		// These errors say that this package has closed the connection, not that the client is closed.
		if err := result.Error(); errors.Is(err, rueidis.ErrClosing) || errors.Is(err, rueidis.ErrDedicatedClientRecycled) {
			results[i] = rueidis.NewErrorResult(fault.NoAnswer)
		}
	}
}

// carryPlain sends a task over the node's own connections.
func (s *Node) carryPlain(e *entry) {
	if node := s.server(); node != nil { // a wrapper may block
		s.carry(&road{way: node, taken: s.client.Clock.Now()}, []*entry{e})
		return
	}
	e.answer(errNotSent) // the answer of another node would say nothing about it
}

// resolve points a road to the master that the nodes of a cluster name for a command's key, and notes that master's Node. If
// the Node is suspect, the road is its fresh connection, since the master's address may lead to another server by now. It
// reports false if there is no road now, or the caller has left, or nothing is obtained there any more.
func (s *Node) resolve(r *road, e *entry) (found bool) {
	t, slot := s.client, protocol.Slot(e.key)
	if e.send == nil {
		e.command = e.command.Pin() // it may be sent twice
	}
	for of := s; !e.gone(); {
		way, owner, ok := t.resolver.Way(slot)
		if !ok {
			return false
		}
		if owner.Address != "" {
			of = t.NodeAt(owner.Address)
			e.end.to.Store(&of.judge)
		}
		// The time is noted before the node and its connection are looked at, as in queue.take.
		r.way, r.astray, e.Sent, e.Trusted = way, owner.Astray, t.Clock.Now(), owner.Trusted
		var fresh *freshConn
		none := !owner.Trusted || of.Address != owner.Address || !of.IsSuspect(e.Sent)
		if !none {
			fresh, none = of.fresh.get(func() bool {
				now := t.resolver.Master(slot)
				return e.gone() || now.Silent || now.Address != owner.Address
			})
			e.Sent, e.Trusted = t.Clock.Now(), fresh != nil
		}
		switch {
		case e.obtains() && of.belief.Barred(): // mutant: obtained when closed, elsewhere
			return false
		case fresh == nil && none:
			return !e.gone()
		case fresh != nil && of.fresh.stands(fresh):
			r.way, r.fresh = fresh, fresh
			return !e.gone()
		}
	}
	return false
}

// await passes a task on to a driver, or sends a plain one in a goroutine of its own, and waits for the outcome.
func (s *Node) await(p *Wait, of task) outcome {
	t := s.client
	began := t.Clock.Now()
	s.noticeStandstill()
	end := &bound{done: make(chan struct{}), judge: &s.judge}
	e := end.enter(of)
	end.begin(p, began, nil, false)
	defer end.stop()
	if of.plain {
		end.stage.Store(taken)
		go s.carryPlain(e)
	} else {
		s.queue.add(e)
	}
	reply := e.await()
	o := s.outcome(e, began, &reply)
	if o.results == nil {
		o.err = reply.Error()
	}
	return o
}

// outcome returns what came of a command: a reply, or the end of its bound.
func (s *Node) outcome(e *entry, began clock.Instant, reply *rueidis.RedisResult) (o outcome) {
	if e.end.over() && errors.Is(reply.Error(), fault.NoAnswer) {
		if !s.queue.leave(e) {
			*reply = errNotSent
		}
		o.Sent, o.Came, o.to = began, s.clock.Now(), &s.judge
		return o
	}
	o = outcome{exchange: e.exchange, to: e.end.to.Load(), results: e.results}
	o.Came = s.clock.Now()
	o.Excused = e.end.excuses(o.Sent, o.Came)
	return o
}

// doQueued is Do through the queue. The caller has taken end, and not begun it. It sends a command again in two cases:
//
//   - The command was not executed, for instance since the server does not know the script.
//   - The client was making a connection for another caller, for which the command waited, too. That caller left, and the
//     client returned that caller's error for both.
func (s *Node) doQueued(p *Wait, c *protocol.Call, end *bound, began clock.Instant, a *Reply) {
	defer s.bounds.free(end)
	s.own.interrupt() // not one at a time, or after a pause; see take
	of := task{key: c.Key}
	if c.ReadsBack() { // several commands, which stay together
		kept := *c // its caller may have left when it is sent
		c = &kept
		of.send = func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
			return []rueidis.RedisResult{kept.SendOnce(ctx, way, false)}
		}
	}
	e := end.enter(of)
	if c.DropIfAbandoned {
		e.abandoned = &s.client.abandoned
	}
	s.bounds.begin(end, p, began, nil)
	for again := true; again; {
		if of.send == nil {
			e.command = c.Command(s.client.redis.B(), false)
		}
		s.queue.add(e)
		a.RedisResult = e.await()
		if !errors.Is(a.Error(), fault.NoAnswer) {
			again = c.Again(a.RedisResult)
		} else if again = !end.over() && !e.Trusted; again {
			end.firstSent.Store(0)
		}
	}
	o := s.outcome(e, began, &a.RedisResult)
	if over := end.stop(); !over { // its driver has answered, and so does not use the entry any more
		*e = entry{}
		entries.Put(e)
	}
	if a.Came, a.Fresh = o.Came, o.Trusted; fault.Answered(a.Error()) {
		a.ReadBack = c.ReadBack()
	}
	o.to.assess(p, o.exchange, a)
}
