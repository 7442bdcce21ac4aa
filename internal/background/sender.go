package background

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

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
