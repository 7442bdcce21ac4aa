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

// queue has the commands to a node that no driver has taken yet. A driver is a goroutine. It chooses a road, which is where to
// send, takes the waiting commands, and sends them as one pipeline; meanwhile others gather for the next. A few drivers take
// turns, so that the server is always busy. They end when nothing waits.
//
// A driver may hang: rueidis ignores contexts while it waits for a connection, or for room in the connection's queue, and a
// connection may be silent. A caller never hangs, see entry. Nor do commands wait for a driver that hangs: when no driver has
// taken any for a while, a round adds one. It adds none while a driver looks for a road, as on a suspect node: another one
// would find no road either.
//
// The queue knows neither servers nor clients: choose and send do.
type queue struct {
	given  given
	drives func() // drive, and isEmpty: a method value allocates each time
	empty  func() bool
	from   int         // this many commands under way turn the queue on
	on     atomic.Bool // all commands go through the queue
	_      cacheLine

	mu      sync.Mutex
	waiting []*entry      // that no driver has taken
	flying  int           // how many commands wait or were taken
	seeking int           // drivers that look for a road
	sending int           // drivers that have taken commands
	lost    int           // drivers that were sending when the node became suspect, see renew
	age     int           // how often the node became suspect
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
	watch   func()             // starts the rounds, which call relieve

	// choose finds the road for the waiting commands. It may take long, and gives up when over reports that none waits any more.
	// It reports false if there is no road.
	choose func(over func() bool) (r road, ok bool)
	send   func(r *road, of []*entry) // sends what was taken, and answers each
}

const (
	queueFrom  = 40  // this many commands under way turn the queue on; fewer than four fifths of it turn it off
	spreadFrom = 10  // the same at a node of a cluster, where each command costs rueidis more
	mostStuck  = 64  // drivers that send, even if all of them hang; more only where more take turns
	mostLost   = 512 // drivers that renew may write off
	mostAtOnce = 128 // commands in a pipeline: a longer one would hold up other clients of the server
)

// driver is the state of a driver's goroutine.
type driver struct {
	age  int      // see queue.age
	of   []*entry // that it has taken
	road road
}

// resting has drivers that have ended, to be used again.
var resting = sync.Pool{New: func() any { return &driver{} }}

// entry is a command in a queue. Its caller waits until the bound ends, and then leaves. If no driver has taken the command by
// then, it is not sent. If one has, it may still be sent: an obtaining command then counts as abandoned until it is answered,
// see Client.AwaitAbandoned.
//
//	waits ──▶ taken ──answered, or its caller leaves──▶ done ──the other of the two──▶ not counted as abandoned any more
//	  └─its caller leaves: it is not sent──▶ done
type entry struct {
	task
	command   rueidis.Completed // sent with others, unless the task sends by itself
	abandoned *atomic.Int32     // the count of Client.AwaitAbandoned; nil: the command obtains nothing
	end       *bound            // its flight is the command's

	// The driver writes the rest before it answers. A caller that has left does not read it.

	exchange                       // Sent, Trip, Left, Trusted and made
	results  []rueidis.RedisResult // of a task that sends by itself
}

const (
	waits uint32 = iota
	taken
	done
)

// entries has entries that were answered, to be used again.
var entries = sync.Pool{New: func() any { return &entry{} }}

func (e *entry) obtains() bool { return e.abandoned != nil }

// gone reports whether a command that was taken is done: its caller has left, or it is answered.
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

// add queues a command, whose caller then waits for the reply.
func (q *queue) add(e *entry) {
	e.end.stage.Store(waits) // the command may be sent for a second time
	q.mu.Lock()
	q.waiting = append(q.waiting, e)
	q.flying++
	if q.flying < q.from*4/5 && q.on.Load() {
		q.on.Store(false)
	}
	begins := q.seeking+q.sending < q.given.drivers()
	if begins {
		q.begin()
	}
	q.mu.Unlock()
	if !begins {
		q.given.watch() // the rounds may have ended before this command waited
	}
}

// leave ends the wait for a command. It reports whether the command may have been sent, or may still be.
func (q *queue) leave(e *entry) (sent bool) {
	if e.end.stage.CompareAndSwap(waits, done) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if i := slices.Index(q.waiting, e); i >= 0 { // otherwise a driver has just thrown it away
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

// relieve adds a driver if commands wait, and none was taken for a while. It reports whether commands wait.
func (q *queue) relieve(now clock.Instant) bool {
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

// renew is called when the node becomes suspect. The drivers that are sending may hang, so renew writes them off: others take
// what waits, and send it over another road.
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

// end closes the node. If the node was suspect, the waiting commands are answered without being sent: nobody looks for a
// successor any more, so a deposed master might grant a lock. A closed node is no longer suspect, so a driver that took these
// commands after the close would send them. The mutex leaves only two orders:
//
//	driver: takes commands for a fresh connection  | end: closes the node, and with it that connection
//	end: closes the node, answers what waits       | driver: finds nothing, or a removal that came later
func (q *queue) end(closeNode func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	closeNode()
	if !q.given.barred() {
		return
	}
	for _, e := range q.waiting {
		if e.take() { // otherwise its caller has just left
			e.answer(errNotSent)
		}
	}
	q.flying -= len(q.waiting)
	clear(q.waiting)
	q.waiting = q.waiting[:0]
}

// drive is the loop of a driver. It ends when nothing waits, or when renew has written the driver off.
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

// seek reports whether the driver is to look for a road, because something waits, and counts the driver accordingly. The
// commands that it took before are answered by now.
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

// take takes commands for the driver's road. All that it takes must be answered. It takes none if there is no road, or if the
// node has become suspect since the road was chosen, or is no longer suspect. Before it looks at the node, it notes the time
// from which the commands count as sent:
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
