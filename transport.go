package lockregistry

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// transport sends the commands of all registries on one client. It sees to it that nothing a server does keeps a caller for
// longer than the caller wants, and it tells which answers can be believed.
//
// Rueidis does not see to the first: a command waits for room in the queue of its connection, and for a connection that is
// being made, without a look at its context. So each lane is in one of three states:
//
//	calm   it has just been heard from, by an answer or a message. A caller sends its command itself.
//	quiet  nothing has been heard for a while, so the next command may hang. It gets a goroutine of its own, for which the
//	       caller waits no longer than it wants. The number of these goroutines is limited; without a place no command is
//	       sent. When many commands come at once, all but the first few wait a moment for the lane to be calm again.
//	wary   a command was not answered in its time, or so late that a failover may have happened meanwhile. As quiet, and
//	       commands go another way; see below.
//
//	calm ──time──▶ quiet ──answer──▶ calm
//	   └─────────────┴──late or no answer──▶ wary ──time without any──▶ quiet
//
// An answer that comes late may come from a master that was frozen and deposed, and then went on with what was queued for
// it. Until it is demoted it answers everything, as a master, on the connections that it has. So what comes late is not
// believed, and while a lane is wary its commands go over a connection made since, and over no other: the client's address,
// or its Sentinels, lead that one to the new master. Where the server has been slow all the time, answers on that
// connection are believed although they take long. In a cluster, commands on a wary lane go over one to the node that most nodes
// say is the master; see topology.Resolver. There a connection that breaks makes the lane wary, too.
//
// On a calm lane of a single server, commands that come one at a time go over a connection of their own, see private, and
// where there are many at a time, they go together, see coalescer. Both are dropped when the lane becomes wary.
//
// A process that sends nothing while the master is frozen cannot know that there was a failover. What it asks the old
// master afterwards, on a connection that it has kept, is answered in time and believed. While calls wait it sends something:
// see sleep.
type transport struct {
	client   rueidis.Client
	clock    clock.Clock
	routes   atomic.Pointer[routes]
	first    *lane              // of a single server the only one; of a cluster that of slots whose master nobody knows
	resolver *topology.Resolver // of a cluster
	// ctx never ends, but rueidis does not know that: for a context that cannot end it reads a connection only while a command
	// is under way, and so finds out with the next command that the connection was closed.
	ctx     context.Context
	deaf    atomic.Bool // the client has ignored a context, as it does with DisableAutoPipelining: every command gets a goroutine
	watch   watch
	batches chan struct{}
	// selected is the database of the client's shared connections; nil: it is not known yet.
	selected atomic.Pointer[string]
	orphans  orphans

	replicators replicators
}

// lane is the way to a master; see routes.
type lane struct {
	transport *transport
	address   string       // of the node of a cluster; empty for a single server, and while that is not known
	heard     atomic.Int64 // an instant: when the newest answer came, or an older one of a moment before
	told      atomic.Int64 // an instant: when the newest message came
	wary      atomic.Int64 // an instant: until when
	suspected atomic.Int64 // an instant: when the server was found silent; an answer to what was sent before is late
	trips     roundTrips
	probes    prober
	last      atomic.Int64  // what heard was when a connection broke last
	answers   atomic.Int32  // since a connection broke; counts to manyAnswers
	places    chan struct{} // one is taken by each command that has a goroutine

	limits [mostDirect / placesOfAGroup]atomic.Pointer[limitGroup] // of the commands that their callers send themselves

	_      cacheLine
	run    atomic.Int32 // how many of those have come one at a time, without a pause
	_      cacheLine
	scouts atomic.Int32 // commands that have a goroutine, or wait for a place

	private    privacy
	coalescing atomic.Pointer[coalescer] // nil: none
	senders    atomic.Int32              // of it, and of those before

	sleepers atomic.Int32 // calls that wait for a message, and send nothing meanwhile
	pulsing  atomic.Bool  // a timer runs that asks for them; see sleep

	mu      sync.Mutex
	news    chan struct{} // closed when it is time to look at the lane again; nil: nobody waits for that
	fresh   *detour       // nil: none
	making  chan struct{} // closed when the detour that is being made is there, or is not to be had; nil: none is being made
	began   clock.Instant // when making it began
	failed  int           // how often that has failed in a row
	again   clock.Instant // not before is another one made
	hanging int           // goroutines that make detours, those of which nothing is expected any more among them
	stuck   int           // those of them that have hung for so long that the client must have no connection left
	tidying bool          // a timer runs that gives the detour back
	closed  bool
}

// cacheLine keeps what every command writes away from what every command reads.
type cacheLine [64]byte

// detour is a connection made while the lane is wary.
type detour struct {
	rueidis.DedicatedClient
	since  clock.Instant
	broken atomic.Bool
}

const (
	calmFor     = 10 * time.Millisecond // after an answer or a message
	heardAgain  = calmFor / 8           // an answer so soon after another one is not worth noting
	manyAnswers = 32
	tooSoon     = 100 * time.Millisecond // who waits no longer than this learns nothing from it
	waryFor     = 30 * time.Second       // after a late or missing one; see below // mutant: trusted too soon
	mostDirect  = 640                    // a connection's queue has room for 1 024 by default
	mostApart   = 256
	mostScouts  = 8                    // with so many under way on a quiet lane, others wait for news of them
	newsWait    = 5 * time.Millisecond // for so long
	mostBatch   = 64                   // pipelines that have a goroutine

	lateAnswer = 500 * time.Millisecond // from then and two round trips on an answer is late; see trip
	poolWait   = 6 * time.Second        // longer than it takes to connect, or to fail to
	detourWait = time.Second            // how long making such a connection may take, and six round trips
	mostMaking = 8                      // goroutines that make one
	mostUnfit  = 1024                   // old connections in the client's pool, by default

	notHeard = clock.Instant(-time.Hour) // when the newest answer came, if there is none
)

// A lane is wary for longer than a deposed master can answer on the client's own connections. Rueidis breaks those that have
// been silent for its ConnWriteTimeout, 10 s by default, which it notices within 2 s; so a master that comes back to them
// was frozen for 12 s at most. Sentinel demotes it 8 to 10 s later.

// answer is what became of a command.
type answer struct {
	rueidis.RedisResult
	sent, came clock.Instant // on the registry's clock; the server executed the command in between, if it answered
	late       bool          // it came so late that it must be checked
	doubtful   bool          // and by a command on a way that was chosen since
	anew       bool          // it came on such a way
	cut        bool          // there is none, because the caller's context ended
	short      error         // why what the server has done does not count: too few replicas have it, see WithReplicas
}

// patience is how long a caller waits for an answer: until a while after its context's end, and for no longer than the
// limit.
type patience struct {
	ctx   context.Context
	since clock.Instant // from when on the limit counts, and the grace when ctx has ended by then; 0: from now on
	limit time.Duration
	near  time.Duration // that limit without the time for the way, which may turn out longer; 0: it does not depend on it
	grace time.Duration // how long after the end of ctx
	lease time.Duration // that the answer is about, see trip.late; 0: it is about none
	holds time.Duration // for so long the command itself may wait at the server
	gets  bool          // it may make somebody the owner of a lock, and says whether it has
	probe clock.Instant // it is sent because another command was given up, which was sent then; 0: it is not
	asks  asking        // told of the command once it has taken a while; nil: nobody wants to know
}

// asking is told when a command that was sent at some time has had no answer for a while, and, if so, when it has one, or its
// caller waits no longer. It must not block.
type asking interface {
	unanswered(since clock.Instant)
	answered(since clock.Instant)
}

// left is how much of its time a call has left that is about to send a command.
func (p *patience) left(c clock.Clock) time.Duration {
	now, left := c.Now(), p.limit
	if p.since != 0 {
		left = now.Until(p.since.Add(p.limit))
	}
	if deadline, ok := p.ctx.Deadline(); ok {
		left = min(left, now.Until(c.At(deadline)))
	}
	return left
}

// lasting is a context that could end and never does.
type lasting struct {
	context.Context
	done chan struct{}
}

func (l lasting) Done() <-chan struct{} { return l.done }

// newTransport is the transport of a client, whose mode it asks for: a wrapper's may block.
func newTransport(client rueidis.Client) *transport {
	t := &transport{client: client, clock: clock.New(), batches: make(chan struct{}, mostBatch)}
	t.ctx = lasting{context.Background(), make(chan struct{})}
	t.first = newLane(t, "")
	all := &routes{lanes: []*lane{t.first}}
	if client.Mode() == rueidis.ClientModeCluster {
		all.of = &[protocol.Slots]uint16{}
		away := func() time.Duration { return t.farthest().trip().plus(0) }
		t.resolver = topology.NewResolver(t.ctx, client, t.clock, t.reroute, away)
	}
	t.routes.Store(all)
	t.watch.begin(t)
	return t
}

func newLane(t *transport, address string) *lane {
	l := &lane{transport: t, address: address, places: make(chan struct{}, mostApart)}
	l.heard.Store(int64(notHeard))
	l.private.possible = plain(t.client)
	return l
}

// close is for when no registry needs the transport any more. It goes on working for what they still unlock.
func (t *transport) close() {
	for _, l := range t.lanes() {
		l.close()
	}
}

// do sends a command and waits for the answer as p says. Without one its error is fault.NoAnswer, or
// fault.NotSent.
func (t *transport) do(p *patience, c *protocol.Call) (a answer) {
	if c.Replicas != nil {
		return t.doReplicated(p, c)
	}
	l := t.lane(c.Key)
	a.sent = t.clock.Now()
	end := l.enter(a.sent)
	if end == nil && l.scouts.Load() >= mostScouts && l.awaitNews(a.sent) {
		a.sent = t.clock.Now()
		end = l.enter(a.sent)
	}
	if end == nil {
		l.doApart(p, c, &a)
		return a
	}
	if w := l.privately(p, c, a.sent, end); w != nil {
		l.doPrivately(w, p, c, end, &a)
		return a
	}
	if b := l.coalescer(end); b != nil {
		l.doTogether(b, p, c, end, &a)
		return a
	}
	end.begin(p, a.sent, nil)
	a.RedisResult = c.Send(end, t.client)
	overdue := end.overdue()
	a.came = t.clock.Now()
	excused := end.excuses(a.sent, a.came)
	if over := end.stop(); !over && errors.Is(a.Error(), fault.NoAnswer) {
		// Another command's limit has ended while the client made a connection for both, and this one was not sent.
		rest := *p
		if rest.since == 0 {
			rest.since = a.sent
		}
		l.doApart(&rest, c, &a)
		return a
	}
	if overdue && !errors.Is(a.Error(), fault.NoAnswer) {
		t.deaf.Store(true)
	}
	l.takeIn(p, excused, &a)
	return a
}

// takeIn completes the answer to a command that its caller has sent, which has just come.
func (l *lane) takeIn(p *patience, excused bool, a *answer) {
	err := a.Error()
	x := exchange{sent: a.sent, came: a.came, trip: l.trip(), excused: excused}
	if fault.Answered(err) && !excused {
		l.trips.sample(a.sent, a.came)
	}
	a.late = l.judge(p, err, x)
	a.doubtful = a.late && l.isWary(a.came)
	a.cut = p.cut(err)
}

// exchange is when a command was sent and answered.
type exchange struct {
	sent, came clock.Instant
	trip       trip // what was known of the way before the answer
	excused    bool // see limit.excuses
}

// cut tells whether there is no answer because the caller's context ended.
func (p *patience) cut(err error) bool {
	return err != nil && p.grace == 0 && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent)) && p.ctx.Err() != nil
}

// awaitNews waits a moment until the lane is calm again, if it is quiet: when many come at once, an answer to the first is
// sooner there than goroutines for all. It reports false when it has not waited.
// Without it 64 calls that come at once after a pause take 1.1 times the time and 1.3 times the processor, 512 take 1.6 and 1.7.
func (l *lane) awaitNews(now clock.Instant) bool {
	if l.isWary(now) || !l.known() || l.transport.deaf.Load() {
		return false
	}
	l.mu.Lock()
	if now < clock.Instant(l.heard.Load()).Add(calmFor) { // tellNews comes after that changes
		l.mu.Unlock()
		return true
	}
	if l.news == nil {
		l.news = make(chan struct{})
		time.AfterFunc(newsWait, l.tellNews)
	}
	news := l.news
	l.mu.Unlock()
	<-news
	return true
}

func (l *lane) tellNews() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// doApart is do for a lane that is not calm.
func (l *lane) doApart(p *patience, c *protocol.Call, a *answer) {
	l.run.Store(0)
	l.scouts.Add(1)
	defer l.scouts.Add(-1)
	e := l.apart(p, l.places, &sending{call: *c, key: c.Key})
	a.RedisResult, a.came = e.result(0), l.transport.clock.Now()
	err := a.Error()
	l = e.lane
	a.late, a.anew, a.cut = l.judge(p, err, e.at(a.came)), e.trusted, p.cut(err)
	a.doubtful = a.late && l.isWary(a.came)
}

// calm tells whether the lane is calm. In a crowd each process is silent until it is its turn, and then it is a message that
// tells it so.
func (l *lane) calm(now clock.Instant) bool {
	news := clock.Instant(max(l.heard.Load(), l.told.Load()))
	return now < news.Add(calmFor) && !l.isWary(now) && l.known()
}

// enter returns the limit for a command that its caller sends itself, who must begin it and stop it, if the lane is calm and has
// room for one.
func (l *lane) enter(now clock.Instant) *limit {
	if !l.calm(now) || l.transport.deaf.Load() {
		return nil
	}
	return l.place()
}

// within waits for the outcome of another command for as long as p says. When no time is left it does not: a command that is
// answered at this very moment was sent after the end of the time, and whether it is stuck behind the one before depends on the
// connection that it got.
func (t *transport) within(p *patience, outcome <-chan bool) bool {
	now := t.clock.Now()
	end := t.watch.limit(p, now, nil)
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

// askLimit is how long a call waits for the answer to a question without which it can go on.
const askLimit = 100 * time.Millisecond

// asker asks a server something that is about no key.
type asker func(context.Context, rueidis.CoreClient) rueidis.RedisResult

// ask asks any server of a cluster.
func (t *transport) ask(question asker) rueidis.RedisResult {
	reply, _ := t.first.ask(&patience{ctx: context.Background(), limit: t.first.trip().plus(askLimit)}, question)
	return reply
}

// ask asks the server of the lane, and tells whether there is no answer because the caller's context ended.
func (l *lane) ask(p *patience, question asker) (reply rueidis.RedisResult, cut bool) {
	reply = l.apart(p, l.places, &sending{send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{question(ctx, way)}
	}}).result(0)
	return reply, p.cut(reply.Error())
}

// judge takes in an answer, or that there was none while its caller waited, and tells whether it is late. That a caller has
// gone says nothing about the server: see prober. Excused tells that it may have taken so long because this process stood still.
// Then it is late all the same, and asked for again.
func (l *lane) judge(p *patience, err error, x exchange) bool {
	came, took := x.came, x.sent.Until(x.came) // mutant: no answer is late
	switch {
	case errors.Is(err, fault.NotSent):
		return false
	case errors.Is(err, fault.NoAnswer):
		if p.probe == 0 {
			l.probe(x.sent)
		}
		return false
	case took >= l.silence(x.trip)+p.holds && !x.excused: // the timer that tells so is about to
		l.suspect(x.sent, came)
		return true
	case took >= x.trip.late(p.lease)+p.holds, p.gets && !x.trip.known && took >= lateAnswer:
		return true
	case x.sent < clock.Instant(l.suspected.Load()):
		// Its master was silent for long enough for a failover, whatever this answer took.
		return true
	}
	if fault.Answered(err) {
		if pause := clock.Instant(l.heard.Load()).Until(came); pause >= heardAgain {
			l.heard.Store(int64(came))
			if pause >= calmFor {
				l.tellNews()
			}
		}
		if !l.known() {
			l.answers.Add(1)
		}
	} else { // the connection is broken: to make another one may take long
		l.last.Store(max(l.last.Load(), l.heard.Load()))
		l.heard.Store(int64(notHeard))
		l.answers.Store(0)
		l.drop()
		if l.transport.resolver != nil {
			l.beWary(came)
		}
	}
	return false
}

// silence is for how long a command may have no answer until the lane is suspect. Until all connections have surely been made it
// may have to wait for its own: that is no silence, but its answer is late as any other that takes so long.
func (l *lane) silence(t trip) time.Duration {
	if l.known() {
		return t.silence()
	}
	return t.silence() + 4*t.sure()
}

// plus is a time for an answer that was chosen for a server nearby, with a connection that may have to be made.
func (l *lane) plus(d time.Duration) time.Duration {
	t := l.trip()
	if l.known() {
		return t.plus(d)
	}
	return t.plus(d) + 4*t.base
}

// trip is what is known of the way to the master.
func (l *lane) trip() trip { return l.trips.trip() }

// known tells whether there have been so many answers since a connection broke that each of the few connections among which
// rueidis chooses has surely been made.
func (l *lane) known() bool { return l.answers.Load() >= manyAnswers }

// tell is for when a message has come from the lane's server.
func (l *lane) tell(now clock.Instant) { l.told.Store(int64(now)) }

// newest is when the newest answer came; not positive: there is none.
func (l *lane) newest() clock.Instant {
	return clock.Instant(max(l.heard.Load(), l.last.Load()))
}

// broke is when the newest answer before one of its connections broke came; 0: none has broken.
func (l *lane) broke() clock.Instant { return clock.Instant(l.last.Load()) }

// overdue tells whether a command that was sent at some time would be answered by now, if the server were there.
func (l *lane) overdue(sent clock.Instant) bool {
	return sent.Until(l.transport.clock.Now()) >= l.trip().plus(tooSoon)
}

// nobodys tells whether the lane leads to no server in particular: the first one of a cluster.
func (l *lane) nobodys() bool { return l.transport.resolver != nil && l.address == "" }

func (l *lane) isWary(now clock.Instant) bool { return now < clock.Instant(l.wary.Load()) }

// beWary has commands go another way.
func (l *lane) beWary(now clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.wary.Store(int64(now.Add(waryFor)))
		l.drop()
		l.scatter()
	}
}

// suspect is for when a command that was sent at some time has had no answer for too long. What was sent before now is late, if
// it is answered at all, even if it has not taken long: a master that was frozen answers all that was sent to it in between
// as soon as it goes on. While the lane is wary, only a command that was sent since tells anything new: that the detour, if
// there was one by then, is silent as well.
func (l *lane) suspect(sent, now clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	known := l.isWary(now) && sent < clock.Instant(l.suspected.Load())
	l.wary.Store(int64(now.Add(waryFor)))
	if known {
		return
	}
	l.suspected.Store(int64(now))
	l.drop()
	l.scatter()
	if f := l.fresh; f != nil && f.since <= sent {
		l.abandon(f)
	}
	l.learn()
}

// sending is what is sent in a goroutine of its own, and what became of it.
type sending struct {
	call    protocol.Call // unless send is there
	key     string        // that it is about; empty: it is about none
	lane    *lane         // whose master it was sent to
	send    func(context.Context, rueidis.CoreClient) []rueidis.RedisResult
	gone    atomic.Bool // nobody waits for the answer any more
	first   [1]rueidis.RedisResult
	results []rueidis.RedisResult
	err     error         // why there are none
	sent    clock.Instant // when the goroutine sent them
	begun   atomic.Int64  // the same, once it has; from then on lane and sent do not change
	trip    trip          // what was known of the way before the answer
	excused bool          // see limit.excuses
	trusted bool          // on a way that was made since the lane is wary, or to another master
	plain   bool          // over the client's own connections, also when the lane is wary
}

// came takes in that the answer has come.
func (e *sending) came(now clock.Instant, end *limit) {
	if e.err != nil || e.results == nil { // nothing was sent
		return
	}
	e.trip, e.excused = e.lane.trip(), end.excuses(e.sent, now)
	if !e.excused && end.holds == 0 && fault.Answered(e.result(0).Error()) {
		e.lane.trips.sample(e.sent, now)
	}
}

// at is when the commands were sent, and their answers were taken.
func (e *sending) at(came clock.Instant) exchange { return exchange{e.sent, came, e.trip, e.excused} }

func (e *sending) result(i int) rueidis.RedisResult {
	if e.err != nil {
		return rueidis.NewErrorResult(e.err)
	}
	return e.results[i]
}

// apart sends commands in a goroutine of their own, if the lane is wary over the detour, where there is one. The goroutine
// ends with the answer, since rueidis closes a connection that stays silent.
func (l *lane) apart(p *patience, places chan struct{}, e *sending) *sending {
	t := l.transport
	began := t.clock.Now()
	end := l.limit(p, began, e)
	defer end.stop()
	select {
	case places <- struct{}{}:
	default:
		select {
		case places <- struct{}{}:
		case <-end.Done():
			return &sending{err: fault.NotSent, sent: began, lane: l}
		}
	}
	arrived := make(chan struct{}, 1)
	go func() {
		defer func() { <-places }()
		l.carryOut(e)
		e.came(t.clock.Now(), end)
		if e.call.DropIfAbandoned && e.gone.Swap(true) {
			t.orphans.remove()
		}
		arrived <- struct{}{}
	}()
	select {
	case <-arrived:
		return e
	case <-end.Done():
		if !e.call.DropIfAbandoned {
			e.gone.Store(true)
		} else if t.orphans.add(); e.gone.Swap(true) { // it has just been answered
			t.orphans.remove()
		}
		return &sending{err: fault.NoAnswer, sent: began, lane: l}
	}
}

// carryOut sends commands, unless nobody waits for the answer any more.
func (l *lane) carryOut(e *sending) {
	t := l.transport
	var way rueidis.CoreClient = t.client
	var fresh *detour
	resolved := false
	e.sent, e.lane = t.clock.Now(), l
	switch {
	case e.plain:
		node := l.client()
		if node == nil { // another one's answer says nothing about it
			e.err = fault.NotSent
			return
		}
		way = node
	case t.resolver == nil && l.isWary(e.sent):
		var none bool
		switch fresh, none = l.detour(e.gone.Load); {
		case fresh != nil:
			way, e.trusted = fresh, true // mutant: silent connection kept
		case !none:
			e.err = fault.NotSent
			return
		}
		e.sent = t.clock.Now()
	case t.resolver != nil && e.key != "" && l.isWary(e.sent):
		if way, fresh, resolved = l.resolved(e); !resolved {
			e.err = fault.NotSent
			return
		}
		e.sent = t.clock.Now()
	case t.resolver != nil && e.key != "" && l == t.first: // which is for those of whom nobody has told yet
		t.resolver.Hear(topology.FreshFor)
		e.sent, e.lane = t.clock.Now(), t.lane(e.key)
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
	if fresh != nil && !fault.Answered(err) {
		fresh.broken.Store(true)
	}
	if resolved && (!fault.Answered(err) || fault.Elsewhere(err)) {
		t.resolver.Forget()
		if e.send == nil && fault.Elsewhere(err) && (!e.call.DropIfAbandoned || !e.gone.Load()) { // the client finds the way
			e.first[0] = e.call.SendAsync(t.ctx, t.client, &e.gone)
		}
	}
}

// resolved is how to reach the master that has a key by the word of the nodes, whose lane it notes: over the detour, if that lane
// is wary, since the node's address may lead to another server by now. It reports false when there is no way now.
func (l *lane) resolved(e *sending) (way rueidis.CoreClient, fresh *detour, ok bool) {
	t, slot := l.transport, protocol.Slot(e.key)
	for !e.gone.Load() {
		way, owner, ok := t.resolver.Way(slot)
		if !ok {
			return nil, nil, false
		}
		if owner.Address != "" {
			e.lane = t.laneAt(owner.Address)
		}
		if e.trusted = owner.Trusted; !owner.Trusted || e.lane.address != owner.Address || !e.lane.isWary(t.clock.Now()) {
			return way, nil, true
		}
		fresh, none := e.lane.detour(func() bool {
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
