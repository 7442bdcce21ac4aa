// Package background is what a registry does in the background: it renews leases, reports lost holds, and removes keys that
// were left behind. One goroutine sleeps until something is due, and a few send to Redis. So neither many holds nor a server
// that does not answer adds goroutines or delays a report. A registry that only locks and unlocks has no background goroutine.
//
// What comes in: holds in [Work.Holds], removals in [Work.Cleaner], and switches of the master. What goes out: renewals and
// removals, by package transport, and calls of [Tells].
package background

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Work is the background work of a registry.
type Work struct {
	Tells
	Holds   *hold.Schedule
	Cleaner *cleanup.Cleaner
	Orphans *hold.OrphanWatch
	Health  *health.Monitor[*transport.Node]

	scheduler *scheduler.Scheduler
	sender    sender
	switches  topology.Switches
}

// Tells is what the work calls.
type Tells struct {
	// Verify verifies all holds on a server that may no longer be the master. Server is its address in a cluster, otherwise empty.
	Verify func(server string)

	// Renewing is told that commands begin to fail, or succeed again: then failure is nil. It does not block.
	Renewing func(commands int, failure error)

	// Log writes a line.
	Log func(level slog.Level, message string, about ...slog.Attr)
}

// Grace is for how long after Close, plus two round trips, the cleaner still removes what was left behind.
const Grace = time.Second

// New begins the work for a registry on a client.
func New(client rueidis.Client, way *transport.Client, tells Tells) *Work {
	w := &Work{Tells: tells, switches: topology.WatchSwitches(client)}
	w.Holds = hold.NewSchedule(w.soon, w.sender.Renew)
	soon := func(due clock.Instant) { w.scheduler.Soon(due) }
	w.Orphans = hold.NewOrphanWatch(w.Holds, way.Clock, soon, tells.Log)
	// Removals have their own workers, so that renewals that wait for a failed replica do not delay them: with four workers for
	// both, and twelve renewals that waited for a second each, a removal took 0.28 s instead of 1 ms.
	w.Cleaner = cleanup.New(way.Clock, soon, w.sender.Remove)
	w.Health = health.New(way.Clock, w.tell, way.Leads)
	w.sender.Transport, w.sender.Cleaner, w.sender.Health = way, w.Cleaner, w.Health
	w.scheduler = scheduler.New(way.Clock, w.lookAtClient, w.Orphans.Turn, w.lookAtHolds, w.Cleaner.Turn)
	return w
}

// soon schedules a look at the holds for a time, and a look at the client before that.
func (w *Work) soon(due clock.Instant) {
	w.scheduler.Soon(min(due, w.switches.Next(w.sender.Transport.Clock)))
}

// lookAtHolds looks at the holds that are due, then for ended goroutines.
func (w *Work) lookAtHolds(now clock.Instant) (next clock.Instant) {
	next, looked := w.Holds.Turn(now)
	if looked {
		w.Orphans.LookAt(now)
	}
	return next
}

// lookAtClient notices when the client has changed to another master. It looks again while there are holds.
func (w *Work) lookAtClient(now clock.Instant) (next clock.Instant) {
	way := w.sender.Transport
	if w.switches.Look(now, way.First.RoundTrip().Silence(), w.scheduler.Wake) {
		w.Verify("")
	}
	if w.Holds.None() {
		return clock.Never
	}
	return w.switches.Next(way.Clock)
}

// tell reports that tasks begin to fail, or succeed again.
func (w *Work) tell(o health.Outcome) {
	if w.sender.Closed() {
		return
	}
	w.Renewing(o.Tasks, o.Failure)
	o.Log(w.Log)
}

// Close stops the goroutines.
func (w *Work) Close() {
	way := w.sender.Transport
	w.sender.Close(way.Clock.Now().Add(way.Farthest().RoundTrip().Plus(Grace)))
	w.scheduler.Close()
	w.Orphans.Close()
	w.Holds.Close()
	w.Cleaner.Close()
}

// Stall is for tests: nothing that is due is looked at any more, as if the process got no CPU time.
func (w *Work) Stall() { w.scheduler.Close() }

// Wait returns, after Close, when all goroutines have ended.
func (w *Work) Wait() {
	w.scheduler.Wait()
	w.Orphans.Wait()
	w.Holds.Wait()
	w.Cleaner.Wait()
}

// sender sends the tasks of a registry's holds, and its removals, and notes what comes of them.
type sender struct {
	Transport *transport.Client
	Health    *health.Monitor[*transport.Node]
	Cleaner   *cleanup.Cleaner
	last      atomic.Int64 // an instant after which nothing is sent; 0: not closed
}

const (
	pipeline  = time.Second  // how long a pipeline may take, plus two round trips
	retryTime = 4 * pipeline // to send a due pipeline and get its replies, see [health.Outcome]
)

// Close ensures that nothing is sent from last on.
func (s *sender) Close(last clock.Instant) { s.last.Store(int64(last)) }

// Closed reports whether Close was called.
func (s *sender) Closed() bool { return s.last.Load() != 0 }

// Renew sends tasks of holds, and returns when they are answered or given up.
func (s *sender) Renew(tasks []hold.Task) { s.send(tasks, health.Renewals) }

// Remove sends removals, and returns when they are answered or given up.
func (s *sender) Remove(all []cleanup.Try) {
	tasks := make([]hold.Task, len(all))
	for i, a := range all {
		tasks[i] = removing{a}
	}
	s.send(tasks, health.Removals)
}

// removing is the task that sends a removal.
type removing struct{ cleanup.Try }

func (r removing) Length() time.Duration { return r.Lease }
func (r removing) Wanted() bool          { return true }
func (r removing) Writes() bool          { return true }

func (r removing) Done(a transport.Reply, _ int64, err error) {
	if err == nil && a.Late {
		err = fault.Late // perhaps from a former master
	}
	r.Answered(a.Came, err)
}

// send sends tasks of one kind in a pipeline.
func (s *sender) send(tasks []hold.Task, kind health.Kind) {
	tasks = slices.DeleteFunc(tasks, func(t hold.Task) bool { return !t.Wanted() })
	if len(tasks) == 0 {
		return
	}
	now := s.Transport.Clock.Now()
	if s.Closed() && now >= clock.Instant(s.last.Load()) {
		for _, t := range tasks {
			t.Done(transport.Reply{}, 0, fault.Closed)
		}
		return
	}
	all := outcomes{kind: kind, sent: now, of: map[*transport.Node]*health.Outcome{}}
	calls, nodes := make([]protocol.Call, len(tasks)), make([]*transport.Node, len(tasks))
	for i, t := range tasks {
		calls[i] = t.Call()
		nodes[i] = s.Transport.Node(calls[i].Key)
	}
	pause := s.Cleaner.LongestPause()
	s.Transport.DoAll(pipeline, calls,
		func(i int) time.Duration { return tasks[i].Length() },
		func(i int) bool { return tasks[i].Wanted() },
		func(i int, a transport.Reply) {
			n, err := a.Confirmed()
			tasks[i].Done(a, n, err)
			all.note(nodes[i], tasks[i], n, err)
		})
	pause = max(pause, s.Cleaner.LongestPause())
	for node, o := range all.of {
		o.Retried = pause + retryTime
		if s.Health.Note(node, *o) && !s.Closed() {
			s.Cleaner.RetryNow()
		}
	}
}

// outcomes are those of tasks that are sent together.
type outcomes struct {
	kind health.Kind
	sent clock.Instant

	mu sync.Mutex // replies may come from several nodes of a cluster at once
	of map[*transport.Node]*health.Outcome
}

// note adds the outcome of one task. A release without the queue does not show that the server accepts writes: it may refuse
// those to the queue.
func (a *outcomes) note(node *transport.Node, t hold.Task, n int64, err error) {
	failed := err != nil && t.Wanted()
	refused := failed && fault.Answered(err) // this and Plain call methods of an unknown error type: not under a mutex
	failure := fault.Plain(err)
	wrote := err == nil && n > 0 && n != protocol.NoQueue && t.Writes()
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.of[node]
	if o == nil {
		o = &health.Outcome{Kind: a.kind, Sent: a.sent}
		a.of[node] = o
	}
	o.Tasks++
	o.Succeeded = o.Succeeded || err == nil
	o.Wrote = o.Wrote || wrote
	if failed && (refused || !o.Refused) {
		o.Failure, o.Refused = failure, refused
	}
}
