package lockregistry

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/topology"
)

// replicas is what [WithReplicas] asks for: how many must have a write, and within what time.
type replicas struct {
	n       int
	timeout time.Duration
	told    func(why error) // of each write that was waited for: why it does not count, or nil
}

func (r *replicas) check() error {
	switch {
	case r == nil:
		return nil
	case r.n <= 0:
		return fmt.Errorf("WithReplicas(%d, %v): the number of replicas must be positive", r.n, r.timeout)
	case r.timeout < time.Millisecond:
		return fmt.Errorf("WithReplicas(%d, %v): the timeout must be at least a millisecond", r.n, r.timeout)
	default:
		return nil
	}
}

// fewReplicasError: too few have acknowledged a write in time. The master has it.
type fewReplicasError struct {
	acknowledged, wanted int
}

func (f fewReplicasError) Error() string {
	return fmt.Sprintf("too few replicas have it: %d of %d", f.acknowledged, f.wanted)
}

// replication is a command whose write counts once replicas have it.
//
//	queued ──▶ sent ──answered──▶ written ──acknowledged──▶ settled
//	  │          │                   │                         ▲
//	  └──────────┴──nothing written, or time is over───────────┘
//
// WAIT counts the replicas that have what its own connection has written, and keeps that connection from everything else. So
// the commands to a server go over a connection that no other code uses, all that are there at once in one pipeline, with a WAIT
// behind them. What has been written before on that connection counts with it.
type replication struct {
	call  call
	wrote func(c *call, result rueidis.RedisResult) bool // whether the answer says that there is something to acknowledge
	done  chan struct{}                                  // closed when it is settled

	// The mutex of the replicators guards the rest, until it is settled.

	state    replicationState
	result   rueidis.RedisResult
	short    error   // why what the server has done does not count
	acks     int     // replicas that have it
	sent     instant // when the pipeline was
	answered instant // when the server had answered
	trusted  bool    // on a way that was chosen since the lane is wary
	by       *courier
	overdue  bool // its time is over: it is settled with the answer
	bySource bool // the server does not know the script
	asking   bool // the slot is on its way to the server
	hops     int  // servers that said that another one has the key
}

type replicationState uint8

const (
	isWaiting replicationState = iota // for its pipeline
	isSent
	isWritten
	isSettled
)

// settle ends it. The caller holds the mutex.
func (e *replication) settle(result rueidis.RedisResult, short error) {
	if e.state != isSettled {
		e.state, e.result, e.short = isSettled, result, short
		close(e.done)
	}
}

func (e *replication) fail(err error) { e.settle(rueidis.NewErrorResult(err), nil) }

// replicators send such commands, one for each server: it is named by its address in a cluster, else by nothing.
type replicators struct {
	mu sync.Mutex
	of map[string]*replicator
}

// replicator is the way to one server. Its courier is the goroutine that goes there, with a connection of its own, for as long
// as there is something to do.
type replicator struct {
	transport *transport
	address   string
	queue     []*replication
	courier   *courier // takes what comes next; nil: there is none
	hanging   int      // couriers that were replaced and are not back yet

	// knows has the scripts that the server knows, most likely. Elsewhere a script is sent by its digest first; here the answer that
	// it is not known comes with that of WAIT, when there may be no time left for the source.
	knows map[*script]bool
}

// courier goes to a server and back. When another one has replaced it, because it hangs or its connection may lead to a master
// that is none any more, it takes nothing new, and ends when what it has written is settled.
type courier struct {
	replicator *replicator
	lane       *lane
	trusted    bool
	since      instant // when its present step began
	connected  bool
	database   string   // to be selected on its connection; empty: none
	servers    []string // of a client of Sentinels, when it began
	written    []*replication
	nudge      chan struct{} // has room for one: a caller waits no longer
}

const (
	// waitSlice is how long one WAIT blocks the connection of a courier. Meanwhile no new command is sent on it. A server that has
	// nothing else to do notices the end 100 ms later.
	waitSlice  = 25 * time.Millisecond
	waitAtMost = waitSlice + 100*time.Millisecond

	stuckFor    = time.Second // a courier that takes so long for a step, and two round trips, is replaced
	mostHanging = 8           // couriers to a server that do not come back
	mostHops    = 4
)

// grants and renews tell whether there is something to acknowledge.
func grants(c *call, result rueidis.RedisResult) bool {
	s, err := c.decode(result)
	return err == nil && s.granted
}

func renews(_ *call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// demand has replicas have what a call writes, if the registry wants that. Wrote tells whether it has written.
func (r *Registry) demand(c *call, wrote func(*call, rueidis.RedisResult) bool) {
	if r.replicas != nil {
		c.replicas, c.wrote = r.replicas, wrote
	}
}

// acknowledging is how long a renewal may wait for replicas.
func (r *Registry) acknowledging() time.Duration {
	if r.replicas == nil {
		return 0
	}
	return r.replicas.timeout + waitAtMost
}

// doReplicated is do for a command whose write replicas must have. When the server has done it and too few have, the answer
// says why in short. It waits for them as long as it is told, and for the answer as any command.
//
//go:noinline
func (t *transport) doReplicated(p *patience, c *call) (a answer) {
	l, began := t.lane(c.key), t.clock.now()
	end := t.watch.limit(p, began, nil)
	defer end.stop()
	e := &replication{call: *c, wrote: c.wrote, done: make(chan struct{}), sent: began}
	over := time.NewTimer(c.replicas.timeout)
	defer over.Stop()
	t.replicate(l, e)
	for waiting := true; waiting; {
		select {
		case <-e.done:
			waiting = false
		case <-over.C:
			t.replicators.expire(e)
		case <-end.Done():
			t.replicators.giveUp(e)
		}
	}
	a = answer{RedisResult: e.result, sent: e.sent, came: t.clock.now(), anew: e.trusted, short: e.short}
	err := a.Error()
	came := a.came
	if e.answered != 0 { // to wait for replicas is no sign of a slow server
		came = e.answered
	}
	p.holds = waitAtMost // the answer comes with that of WAIT
	a.late = l.judge(p, err, exchange{sent: e.sent, came: came, trip: l.trip()})
	a.doubtful = a.late && l.isWary(a.came)
	a.cut = p.cut(err)
	switch {
	case e.short != nil:
		c.replicas.told(e.short)
	case e.acks >= c.replicas.n:
		c.replicas.told(nil)
	}
	return a
}

// replicate hands a command to the courier of the server that has its key.
func (t *transport) replicate(l *lane, e *replication) {
	var owner mastery
	wary := l.isWary(t.clock.now())
	switch slot := slotOf(e.call.key); {
	case t.guide == nil:
	case wary:
		owner = t.guide.master(slot)
	default:
		owner = t.guide.usual(slot)
	}
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	if t.guide != nil && (owner.silent || owner.address == "") {
		e.fail(errNotSent)
		return
	}
	e.trusted = wary && owner.trusted
	t.replicators.at(t, owner.address).add(l, e)
}

// at returns the replicator of a server. The caller holds the mutex, as that of what follows.
func (s *replicators) at(t *transport, address string) *replicator {
	r := s.of[address]
	if r == nil {
		if s.of == nil {
			s.of = map[string]*replicator{}
		}
		r = &replicator{transport: t, address: address, knows: map[*script]bool{}}
		s.of[address] = r
	}
	return r
}

// add queues a command, and sees to it that there is a courier for it.
func (r *replicator) add(l *lane, e *replication) {
	now := r.transport.clock.now()
	if c := r.courier; c != nil && c.doubtful(now) {
		if r.hanging == mostHanging {
			e.fail(errNotSent)
			return
		}
		r.courier = nil
		r.hanging++
		if c.connected && c.stuck(now) { // else the client may have no connection to give
			go l.beWary(now) // which may take the lane's mutex
		}
	}
	e.state = isWaiting
	r.queue = append(r.queue, e)
	if r.courier == nil {
		r.start(l, now)
	}
}

func (r *replicator) start(l *lane, now instant) {
	r.courier = &courier{replicator: r, lane: l, since: now, nudge: make(chan struct{}, 1)}
	go r.courier.run()
}

func (c *courier) stuck(now instant) bool { return c.since.until(now) >= c.lane.trip().plus(stuckFor) }

// doubtful tells whether what comes is to go another way.
func (c *courier) doubtful(now instant) bool {
	return c.stuck(now) || c.replicator.address == "" && !c.trusted && c.lane.isWary(now)
}

// expire is for when too few replicas have acknowledged in time.
func (s *replicators) expire(e *replication) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.state {
	case isWaiting:
		e.fail(errNotSent)
	case isSent:
		e.overdue = true
	case isWritten:
		e.runShort()
	case isSettled:
	}
}

// runShort is for when nobody waits for replicas any more.
func (e *replication) runShort() {
	e.settle(e.result, fewReplicasError{e.acks, e.call.replicas.n})
	select {
	case e.by.nudge <- struct{}{}:
	default:
	}
}

// giveUp is for when the caller waits no longer for any answer.
func (s *replicators) giveUp(e *replication) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.state {
	case isWaiting:
		e.fail(errNotSent)
	case isSent:
		e.fail(errNoAnswer)
	case isWritten:
		e.runShort()
	case isSettled:
	}
}

// run is the goroutine of a courier.
func (c *courier) run() {
	r := c.replicator
	mu := &r.transport.replicators.mu
	client, release := c.connect()
	if client != nil {
		for goes := true; goes; {
			goes = c.round(client)
		}
		release()
	}
	mu.Lock()
	defer mu.Unlock()
	if r.courier != c {
		r.hanging--
		return
	}
	r.courier = nil
	if client == nil {
		for _, e := range r.queue {
			if e.state == isWaiting {
				e.fail(errNotSent)
			}
		}
		r.queue = nil
	}
	if len(r.queue) > 0 {
		r.start(c.lane, r.transport.clock.now())
	}
}

// connect gets a connection that no other code uses; while the lane of a single server is wary, one made since. It may hang. What
// it gets after that may lead to a master that is none any more, and is not used.
func (c *courier) connect() (client rueidis.DedicatedClient, release func()) {
	client, release = c.dedicate()
	if client != nil && c.since.until(c.replicator.transport.clock.now()) >= c.lane.trip().connect() {
		go client.Close()
		return nil, nil
	}
	return client, release
}

func (c *courier) dedicate() (client rueidis.DedicatedClient, release func()) {
	t := c.replicator.transport
	if address := c.replicator.address; address != "" {
		node := t.client.Nodes()[address]
		if node == nil {
			return nil, nil
		}
		return node.Dedicate() // a cluster has one database
	}
	c.database = t.database()
	if t.client.Mode() == rueidis.ClientModeSentinel {
		c.servers = topology.Servers(t.client)
	}
	if !c.lane.isWary(c.since) {
		return t.client.Dedicate()
	}
	if client = c.lane.dedicate(c.since); client == nil {
		return nil, nil
	}
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	c.trusted = true
	return client, client.Close
}

// round sends what is there, and waits for a moment until replicas have what was written. It reports false when there is
// nothing left to do on this connection.
func (c *courier) round(client rueidis.DedicatedClient) bool {
	r := c.replicator
	t := r.transport
	mu := &t.replicators.mu
	mu.Lock()
	now := t.clock.now()
	c.since, c.connected = now, true
	c.written = slices.DeleteFunc(c.written, func(e *replication) bool { return e.state == isSettled })
	var batch []*replication
	if r.courier == c && !c.doubtful(now) {
		batch, r.queue = slices.DeleteFunc(r.queue, func(e *replication) bool { return e.state == isSettled }), nil
	}
	if len(batch) == 0 && len(c.written) == 0 {
		mu.Unlock()
		return false
	}
	var commands rueidis.Commands
	selects := c.database != "" // what comes from the client's pool may have another one selected
	if selects {
		commands = append(commands, client.B().Arbitrary("SELECT").Args(c.database).Build())
		c.database = ""
	}
	n, slice := 1, waitSlice
	for _, e := range slices.Concat(c.written, batch) {
		n, slice = max(n, e.call.replicas.n), min(slice, e.call.replicas.timeout)
	}
	for _, e := range batch {
		e.state, e.sent = isSent, now
		e.trusted = e.trusted || c.trusted
		if e.asking {
			commands = append(commands, client.B().Arbitrary("ASKING").Build())
		}
		if e.bySource || e.call.script != nil && !r.knows[e.call.script] {
			e.bySource, r.knows[e.call.script] = true, true
			commands = append(commands, e.call.bySource(client.B()))
		} else {
			commands = append(commands, e.call.command(client.B(), false))
		}
	}
	mu.Unlock()
	commands = append(commands, client.B().Arbitrary("WAIT").
		Args(strconv.Itoa(n), strconv.FormatInt(slice.Milliseconds(), 10)).Build())
	results := client.DoMulti(t.ctx, commands...) // mutant: other connection
	// It is forbidden to all who share the pool, or done.
	if selects {
		results = results[1:]
	}
	return c.takeIn(batch, results, now)
}

// takeIn takes in the answers to a pipeline, the last of which is that of WAIT.
func (c *courier) takeIn(batch []*replication, results []rueidis.RedisResult, began instant) bool {
	r := c.replicator
	t := r.transport
	mu := &t.replicators.mu
	acks, err := results[len(results)-1].AsInt64()
	broken := !answered(err)
	type move struct {
		e      *replication
		result rueidis.RedisResult
	}
	var moved []move
	mu.Lock()
	now := t.clock.now()
	i := 0
	for _, e := range batch {
		if e.asking {
			i++
		}
		result := results[i]
		i++
		if noScript(result.Error()) {
			delete(r.knows, e.call.script)
		}
		if e.state == isSettled { // its caller has not waited
			continue
		}
		if answered(result.Error()) {
			e.answered = now
		}
		cold := noScript(result.Error()) && e.call.script != nil && !e.bySource
		switch {
		case cold && e.overdue:
			e.fail(errNotSent)
		case cold && !broken:
			e.bySource = true
			r.add(c.lane, e)
		case elsewhere(result.Error()) && e.hops < mostHops:
			e.result, e.state = result, isWaiting
			moved = append(moved, move{e, result})
		case !e.wrote(&e.call, result):
			e.settle(result, nil)
		default:
			e.result, e.state, e.by = result, isWritten, c
			c.written = append(c.written, e)
		}
	}
	for _, e := range c.written {
		if e.state == isSettled {
			continue
		}
		e.acks = int(acks)
		switch {
		case err != nil: // the connection is broken, or WAIT is not permitted
			e.settle(e.result, err)
		case e.acks >= e.call.replicas.n:
			e.settle(e.result, nil)
		case e.overdue:
			e.settle(e.result, fewReplicasError{e.acks, e.call.replicas.n})
		}
	}
	c.written = slices.DeleteFunc(c.written, func(e *replication) bool { return e.state == isSettled })
	mu.Unlock()
	for _, m := range moved { // one by one, while the limits of the others may end
		t.redirect(m.e, m.result)
	}
	if broken {
		if t.guide != nil {
			t.guide.forget()
		}
		return false
	}
	if len(c.written) == 0 {
		return true
	}
	if c.servers != nil && !slices.Equal(c.servers, topology.Servers(t.client)) {
		mu.Lock()
		if r.courier == c { // its replicas have another master
			r.courier = nil
			r.hanging++
			if len(r.queue) > 0 {
				r.start(c.lane, t.clock.now())
			}
		}
		mu.Unlock()
	}
	if rest := waitSlice - began.until(now); rest > 0 { // a server that does not wait
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.nudge:
		}
	}
	return true
}

// redirect sends a command to the node of a cluster that has the key by the word of the one that was asked.
func (t *transport) redirect(e *replication, result rueidis.RedisResult) {
	reply, _ := rueidis.IsRedisErr(result.Error())
	address, moved := reply.IsMoved()
	if !moved {
		address, _ = reply.IsAsk()
	}
	t.guide.forget()
	l := t.lane(e.call.key)
	if t.client.Nodes()[address] == nil { // the client has it shown to itself
		key := e.call.key
		p := patience{ctx: context.Background(), limit: l.trip().plus(askLimit)}
		ask := func(ctx context.Context, _ rueidis.CoreClient) []rueidis.RedisResult {
			return []rueidis.RedisResult{t.client.Do(ctx, t.client.B().Pttl().Key(key).Build())}
		}
		l.apart(&p, l.places, &sending{key: key, send: ask})
	}
	t.replicators.mu.Lock()
	defer t.replicators.mu.Unlock()
	switch {
	case e.state == isSettled:
	case t.client.Nodes()[address] == nil:
		e.settle(result, nil)
	default:
		e.hops++
		e.asking = !moved
		t.replicators.at(t, address).add(l, e)
	}
}
