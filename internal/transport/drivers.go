package transport

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// queue has the commands to a node that no driver has taken yet. A driver is a goroutine that chooses a road, takes what waits,
// and sends that as one pipeline, while others gather for the next. A few drivers take turns, so that the server is always busy.
// They end when nothing waits.
//
// A driver may hang: rueidis waits for its connection, and for room in the connection's queue, regardless of contexts, and a
// connection may be silent. A caller never does, see entry. Commands wait for no driver that hangs: a round adds one when none
// has come for a while. Where drivers look for a road, as on a suspect node, one more would find none either.
//
// The queue knows neither servers nor clients: choose and send do.
type queue struct {
	given  given
	drives func() // drive, and isEmpty: a method value allocates each time
	empty  func() bool
	from   int
	on     atomic.Bool // from so many commands were under way that all go through the queue
	_      cacheLine

	mu      sync.Mutex
	waiting []*entry      // that no driver has taken
	flying  int           // how many commands wait or were taken
	seeking int           // drivers that look for a road
	sending int           // drivers that have sent what they took
	lost    int           // drivers that had sent when the node became suspect, see renew
	age     int           // how often it did
	came    clock.Instant // when a driver last took commands
}

func newQueue(from int, with given) *queue {
	q := &queue{from: from, given: with}
	q.drives, q.empty = q.drive, q.isEmpty
	return q
}

// given is what a queue is given to work with.
type given struct {
	now     func() clock.Instant
	stands  func(r *road) bool // whether a road may be used that was chosen before
	drivers func() int         // how many take turns
	barred  func() bool        // nothing is obtained from it any more, see belief.State.Barred
	watch   func()             // has hasten called in a while

	// choose finds the road for what waits, which may take long; over reports that nothing waits any more. It reports false if
	// there is none.
	choose func(over func() bool) (r road, ok bool)
	send   func(r *road, of []*entry) // sends what was taken, and answers each
}

const (
	queueFrom  = 40  // with this many commands under way they begin to go through the queue; below four fifths that ends
	spreadFrom = 10  // the same at a node of a cluster, where each costs rueidis more
	mostStuck  = 64  // the most drivers, however many hang, unless more take turns
	mostLost   = 512 // drivers that are lost
	mostAtOnce = 128 // commands in a pipeline: others want the server, too
)

// driver is what a goroutine that drives has.
type driver struct {
	age  int      // see queue.age
	of   []*entry // that it has taken
	road road
}

// resting has the memory of drivers that have ended.
var resting = sync.Pool{New: func() any { return &driver{} }}

// entry is a command in a queue. Its caller waits for as long as its own bound lasts, and then leaves. A command that no driver
// has taken by then is not sent. One that was taken may be sent later than its caller leaves: if it obtains, it is counted until
// it is answered, see Client.AwaitAbandoned.
//
//	waits ──▶ taken ──answered, or its caller leaves: whoever comes last counts it as abandoned no more──▶ done
//	  └─its caller leaves: it is not sent──▶ done
type entry struct {
	task
	command   rueidis.Completed // that goes with others, unless the task sends by itself
	abandoned *atomic.Int32     // of one that obtains: see Client.AwaitAbandoned
	end       *bound            // whose flight is that of the command

	// Its driver writes the rest, before it answers. A caller that has left does not read it.

	exchange                       // all but came and excused
	results  []rueidis.RedisResult // of a task that sends by itself
}

const (
	waits uint32 = iota
	taken
	done
)

// entries has the memory of those that were answered.
var entries = sync.Pool{New: func() any { return &entry{} }}

// forget gives an entry back that was answered by its driver, which uses it no more.
func (e *entry) forget() {
	*e = entry{}
	entries.Put(e)
}

// enter makes an entry, whose bound this is. The bound must not have begun.
func (b *bound) enter(of task) *entry {
	e, _ := entries.Get().(*entry)
	e.task, e.end = of, b
	if b.ready == nil {
		b.ready = make(chan rueidis.RedisResult, 2)
	}
	b.queued, b.plain = true, of.plain
	b.stage.Store(waits)
	b.firstSent.Store(0)
	b.to.Store(b.judge) // until it is sent, which it may never be
	return e
}

func (e *entry) obtains() bool { return e.abandoned != nil }

// gone reports whether the caller of a command that was taken has left; or it is answered.
func (e *entry) gone() bool { return e.end.stage.Load() == done }

// take reports whether a driver may send the command: its caller has not left.
func (e *entry) take() bool {
	return !e.end.over() && e.end.stage.CompareAndSwap(waits, taken) // mutant: left command taken
}

// answer gives a command its reply.
func (e *entry) answer(reply rueidis.RedisResult) {
	if e.end.stage.Swap(done) == done && e.obtains() {
		e.abandoned.Add(-1)
	}
	e.end.ready <- reply
}

// await waits for the reply, or the end of the bound. The caller notices the end of its context itself.
func (e *entry) await() rueidis.RedisResult {
	select {
	case reply := <-e.end.ready:
		return reply
	case <-e.end.ctx.Done():
		e.end.contextEnded(e.end.judge.clock.Now())
		return <-e.end.ready
	}
}

// await queues a command, and waits for the reply.
func (q *queue) await(e *entry) rueidis.RedisResult {
	e.end.stage.Store(waits) // also of one that is sent again
	if !q.add(e) {
		q.given.watch() // the rounds may have ended before this command waited
	}
	return e.await()
}

// add queues a command. It reports whether a driver has begun for it.
func (q *queue) add(e *entry) (begins bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, e)
	q.flying++
	if q.flying < q.from*4/5 && q.on.Load() {
		q.on.Store(false)
	}
	if begins = q.seeking+q.sending < q.given.drivers(); begins {
		q.begin()
	}
	return begins
}

// leave ends the wait for a command. It reports whether that may have been sent, or may still be.
func (q *queue) leave(e *entry) (sent bool) {
	if e.end.stage.CompareAndSwap(waits, done) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if i := slices.Index(q.waiting, e); i >= 0 { // else a driver has just thrown it away
			q.waiting = slices.Delete(q.waiting, i, i+1)
			q.flying--
		}
		return false
	}
	if e.obtains() {
		e.abandoned.Add(1) // mutant: abandoned uncounted
	}
	if e.end.stage.Swap(done) == done && e.obtains() { // the reply has just come
		e.abandoned.Add(-1)
	}
	return true
}

func (q *queue) isEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0
}

// hasten adds a driver when commands have waited for a while and none has come. It reports whether commands wait.
func (q *queue) hasten(now clock.Instant) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 && q.seeking == 0 && q.came.Until(now) >= timedAfter && q.sending < max(mostStuck, q.given.drivers()) {
		q.begin()
	}
	return len(q.waiting) > 0
}

// begin adds a driver. The caller holds the mutex.
func (q *queue) begin() {
	q.seeking++
	go q.drives()
}

// renew is called when the node becomes suspect: the drivers may hang where they have sent. What waits goes over another road.
func (q *queue) renew() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lost+q.sending <= mostLost {
		q.lost, q.sending, q.age = q.lost+q.sending, 0, q.age+1
	}
	if len(q.waiting) > 0 && q.seeking == 0 && q.sending < q.given.drivers() {
		q.begin()
	}
}

// end closes the node. If that was suspect, what waits is not sent: a deposed master might grant a lock, for nobody looks for its
// successor any more. No driver takes anything in between, for which it would find the node suspect no longer:
//
//	driver   takes commands for a fresh connection | node closed: that connection is, too
//	node closed, what waits is answered            | driver finds nothing, or a removal that came later
func (q *queue) end(closeNode func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	closeNode()
	if !q.given.barred() {
		return
	}
	for _, e := range q.waiting {
		if e.take() { // else its caller has just left
			e.answer(errNotSent)
		}
	}
	q.flying -= len(q.waiting)
	clear(q.waiting)
	q.waiting = q.waiting[:0]
}

// drive is the loop of a driver, until nothing waits, or it was lost.
func (q *queue) drive() {
	d, _ := resting.Get().(*driver)
	for q.seek(d) {
		var ok bool
		d.road, ok = q.given.choose(q.empty)
		if q.take(d, ok); len(d.of) > 0 {
			q.given.send(&d.road, d.of)
		}
	}
	d.road = road{}
	resting.Put(d)
}

// seek begins the search for a road, if anything waits. What the driver took before is answered.
func (q *queue) seek(d *driver) (more bool) {
	runtime.Gosched() // callers that just got replies are about to send their next commands
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying -= len(d.of)
	more = len(q.waiting) > 0
	switch {
	case len(d.of) > 0 && d.age != q.age:
		q.lost--
		more = false
	case len(d.of) > 0:
		q.sending--
		if more {
			q.seeking++
		}
	case !more:
		q.seeking--
	}
	clear(d.of)
	d.of = d.of[:0]
	return more
}

// take takes the commands for the driver's road, all of which must be answered. It takes none if there is no road, or if that
// stands no more: the node has become suspect since it was chosen, or is so no longer. The time from which the commands count as
// sent is noted before it looks:
//
//	driver   chooses a road | notes the time | looks | sends
//	node                    becomes suspect ..........: another road is chosen
//	node                                       becomes suspect: the reply is late, since the command was sent before
func (q *queue) take(d *driver, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.given.now()
	if !ok || !q.given.stands(&d.road) { // mutant: road from before
		return
	}
	q.came, d.road.taken = now, now
	barred := q.given.barred()
	n := 0
	for alone := false; n < len(q.waiting) && len(d.of) < d.road.most && !alone; n++ {
		e := q.waiting[n]
		if alone = e.send != nil; alone && len(d.of) > 0 {
			break
		}
		if left := !e.take(); left || e.obtains() && barred { // mutant: obtained when closed
			q.flying--
			alone = false
			if !left {
				e.answer(errNotSent)
			}
			continue
		}
		d.of = append(d.of, e)
	}
	q.waiting = slices.Delete(q.waiting, 0, n)
	if len(d.of) > 0 {
		q.seeking, q.sending, d.age = q.seeking-1, q.sending+1, q.age
	}
}

// errNotSent answers a command that was not sent.
var errNotSent = rueidis.NewErrorResult(fault.NotSent)
