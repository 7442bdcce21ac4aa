package transport

import (
	"context"
	"errors"
	"slices"
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

// asyncCall is a call that is sent in its own goroutine, and its outcome.
type asyncCall struct {
	call    protocol.Call // unless send is set
	key     string        // the key that it is about; empty: none
	shard   *Shard        // the shard whose master it was sent to
	send    func(context.Context, rueidis.CoreClient) []rueidis.RedisResult
	gone    atomic.Bool // the caller no longer waits
	first   [1]rueidis.RedisResult
	results []rueidis.RedisResult
	err     error // why there are no results
	exchange
	begun  atomic.Int64 // an instant: sent, once that is set; shard and sent do not change after that
	shared bool         // over the client's own connections, even if the shard is suspect
}

func (e *asyncCall) note(now clock.Instant, end *bound) {
	if e.err != nil || e.results == nil { // nothing was sent
		return
	}
	e.trip, e.excused = e.shard.RoundTrip(), end.excuses(e.sent, now)
	if !e.excused && end.alarm.Holds == 0 && fault.Answered(e.result(0).Error()) {
		e.shard.belief.Sample(e.sent, now)
	}
}

func (e *asyncCall) at(came clock.Instant) exchange {
	x := e.exchange
	x.came = came
	return x
}

func (e *asyncCall) result(i int) rueidis.RedisResult {
	if e.err != nil {
		return rueidis.NewErrorResult(e.err)
	}
	return e.results[i]
}

// async sends commands in their own goroutine, over the fresh connection if the shard is suspect and there is one. The
// goroutine ends in any case, since rueidis closes a connection that stays silent.
func (s *Shard) async(p *Wait, places chan struct{}, e *asyncCall) *asyncCall {
	t := s.client
	began := t.Clock.Now()
	t.noticeStandstill(began)
	end := s.bound(p, began, e)
	defer end.stop()
	select {
	case places <- struct{}{}:
	default:
		select {
		case places <- struct{}{}:
		case <-end.Done():
			return &asyncCall{err: fault.NotSent, exchange: exchange{sent: began}, shard: s}
		}
	}
	arrived := make(chan struct{}, 1)
	go func() {
		defer func() { <-places }()
		s.carryOut(e)
		e.note(t.Clock.Now(), end)
		if e.call.DropIfAbandoned && e.gone.Swap(true) {
			t.abandoned.Add(-1)
		}
		arrived <- struct{}{}
	}()
	select {
	case <-arrived:
		return e
	case <-end.Done():
		if !e.call.DropIfAbandoned {
			e.gone.Store(true)
		} else if t.abandoned.Add(1); e.gone.Swap(true) { // the reply has just come
			t.abandoned.Add(-1)
		}
		return &asyncCall{err: fault.NoAnswer, exchange: exchange{sent: began}, shard: s}
	}
}

// carryOut sends the commands, unless the caller no longer waits.
func (s *Shard) carryOut(e *asyncCall) {
	t := s.client
	var way rueidis.CoreClient = t.redis
	var fresh *freshConn
	resolved := false
	e.sent, e.shard = t.Clock.Now(), s
	switch {
	case e.shared:
		node := s.node()
		if node == nil { // the answer of another node would say nothing about it
			e.err = fault.NotSent
			return
		}
		way = node
	case t.resolver == nil && s.IsSuspect(e.sent):
		leads, asked := s.present(), e.sent
		var none bool
		switch fresh, none = s.fresh.get(e.gone.Load); {
		case fresh != nil:
			way, e.trusted = fresh, true // mutant: silent connection kept
			leads, asked = fresh.Address, fresh.Asked()
		case !none:
			e.err = fault.NotSent
			return
		}
		e.sent = t.Clock.Now()
		defer func() { e.left = e.results != nil && s.left(leads, asked) }() // mutant: left server believed
	case t.resolver != nil && e.key != "" && s.IsSuspect(e.sent):
		if way, fresh, resolved = s.resolved(e); !resolved {
			e.err = fault.NotSent
			return
		}
		e.sent = t.Clock.Now()
	case t.resolver != nil && e.key != "" && s == t.First: // for slots whose master is not known
		t.resolver.Hear(topology.FreshFor)
		e.sent, e.shard = t.Clock.Now(), t.Shard(e.key)
	}
	e.begun.Store(int64(e.sent))
	if e.gone.Load() {
		return
	}
	if e.send != nil {
		e.results = e.send(t.ctx, way)
	} else {
		e.first[0] = e.call.SendAsync(t.ctx, way, &e.gone)
		e.results = e.first[:]
	}
	err := e.results[0].Error()
	if fresh != nil {
		s.used(fresh, e)
	}
	if resolved && (!fault.Answered(err) || fault.Elsewhere(err)) {
		t.resolver.Forget()
		if e.send == nil && fault.Elsewhere(err) && (!e.call.DropIfAbandoned || !e.gone.Load()) { // the client finds the right node
			e.first[0] = e.call.SendAsync(t.ctx, t.redis, &e.gone)
		}
	}
}

// used notes what commands on the fresh connection came to.
func (s *Shard) used(fresh *freshConn, e *asyncCall) {
	if slices.ContainsFunc(e.results, protocol.RefusedByReplica) && s.client.demotion.possible {
		s.fresh.refused(fresh)
	}
	if fault.Answered(e.results[0].Error()) {
		return
	}
	fresh.broken.Store(true)
	for i, result := range e.results {
		if errors.Is(result.Error(), rueidis.ErrClosing) { // this package has given the connection up, not the client
			e.results[i] = rueidis.NewErrorResult(fault.NoAnswer)
		}
	}
}

// resolved returns a connection to the master that the nodes name for the call's key, and notes its shard. If that shard is
// suspect, it is the fresh connection, since the node's address may lead to another server by now. It reports false if there is
// none now.
func (s *Shard) resolved(e *asyncCall) (way rueidis.CoreClient, fresh *freshConn, ok bool) {
	t, slot := s.client, protocol.Slot(e.key)
	for !e.gone.Load() {
		way, owner, ok := t.resolver.Way(slot)
		if !ok {
			return nil, nil, false
		}
		if owner.Address != "" {
			e.shard = t.ShardAt(owner.Address)
		}
		if e.trusted = owner.Trusted; !owner.Trusted || e.shard.Address != owner.Address || !e.shard.IsSuspect(t.Clock.Now()) {
			return way, nil, true
		}
		fresh, none := e.shard.fresh.get(func() bool {
			now := t.resolver.Master(slot)
			return e.gone.Load() || now.Silent || now.Address != owner.Address
		})
		switch {
		case fresh != nil:
			return fresh, fresh, true
		case none:
			e.trusted = false
			return way, nil, true
		}
	}
	return nil, nil, false
}

// news wakes commands that wait for an idle shard to be healthy again.
type news struct {
	mu sync.Mutex
	of chan struct{} // closed when the state of the shard changes; nil: no command waits for that
}

const newsWait = belief.HealthyFor / 2 // how long a command waits for the shard to be healthy

// awaitNews waits a moment for an idle shard to be healthy again: when many commands come at once, the reply to the first comes
// sooner than goroutines for all start. It reports false if it has not waited. Without it 64 calls at once after a pause take
// 1.1 times the time and 1.3 times the CPU, 512 take 1.6 and 1.7.
func (s *Shard) awaitNews(now clock.Instant) bool {
	if s.IsSuspect(now) || !s.belief.Warm() {
		return false
	}
	n := &s.news
	n.mu.Lock()
	if s.belief.HeardWithin(belief.HealthyFor, now) { // that changes before tell
		n.mu.Unlock()
		return true
	}
	if n.of == nil {
		n.of = make(chan struct{})
		time.AfterFunc(newsWait, n.tell)
	}
	of := n.of
	n.mu.Unlock()
	<-of
	return true
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of != nil {
		close(n.of)
		n.of = nil
	}
}

// doAsync is Do for a shard that is not healthy.
func (s *Shard) doAsync(p *Wait, c *protocol.Call, a *Reply) {
	s.own.inARow.Store(0)
	s.running.Add(1)
	defer s.running.Add(-1)
	e := s.async(p, s.places, &asyncCall{call: *c, key: c.Key})
	a.RedisResult, a.Came, a.Fresh = e.result(0), s.client.Clock.Now(), e.trusted
	a.ReadBack = e.call.ReadBack()
	e.shard.assess(p, e.at(a.Came), a)
}

// reroute sends a command again that was not sent: the shard has become suspect, or the command waited for a connection that
// was being made for another caller, whose bound has ended. In the second case the client returned the other caller's NoAnswer.
func (s *Shard) reroute(p *Wait, c *protocol.Call, end *bound, a *Reply) {
	rest, now, since := *p, s.client.Clock.Now(), a.Sent
	if p.Since != 0 {
		since = p.Since
	}
	rest.Since, rest.Limit, rest.Near = 0, end.left(now), max(0, p.Near-since.Until(now))
	end.stop()
	s.doAsync(&rest, c, a)
}
