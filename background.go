package lockregistry

import (
	"log/slog"
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
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// background is what a registry does in the background: it renews leases, announces lost holds, and removes keys that were left
// behind. One goroutine sleeps until something is due, and a few talk to Redis: neither many holds nor a server that does not
// answer adds goroutines or delays an announcement. A registry that only locks and unlocks has no background goroutine.
type background struct {
	reg       *Registry
	scheduler *scheduler.Scheduler
	holds     *hold.Schedule
	cleaner   *cleanup.Cleaner
	gone      *hold.GoneWatch
	health    *health.Monitor[*transport.Shard]
	switches  topology.Switches
	last      atomic.Int64 // an instant after which nothing is sent; 0: not closed
}

const (
	pipeline   = time.Second     // how long a pipeline may take, plus two round trips
	closeGrace = time.Second     // plus two round trips
	retryTime  = 4 * time.Second // to send a due pipeline and get its replies, see [health.Outcome]
)

func newBackground(r *Registry) *background {
	b := &background{reg: r, switches: topology.WatchSwitches(r.client)}
	b.health = health.New(r.clock, b.tell, r.transport.Leads)
	b.holds = hold.NewSchedule(b.soon, func(t []hold.Task) { b.send(t, health.Renewals) })
	soon := func(due clock.Instant) { b.scheduler.Soon(due) }
	b.gone = hold.NewGoneWatch(b.holds, r.clock, soon, r.reports.dispatch.Log)
	// Removals have their own workers, so that renewals that wait for a failed replica do not delay them: with four workers for
	// both, and twelve renewals that waited for a second each, a removal took 0.28 s instead of 1 ms.
	b.cleaner = cleanup.New(r.clock, soon, b.remove)
	b.scheduler = scheduler.New(r.clock, (*switchWatch)(b), b.gone, (*holdWatch)(b), b.cleaner)
	return b
}

// remove sends removals.
func (b *background) remove(all []cleanup.Try) {
	tasks := make([]hold.Task, len(all))
	for i, a := range all {
		tasks[i] = removing{a}
	}
	b.send(tasks, health.Removals)
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

// soon schedules a look at the holds for a time, and a look at the client before.
func (b *background) soon(due clock.Instant) {
	if b.switches.Watched() {
		due = min(due, b.nextLook(b.reg.clock.Now()))
	}
	b.scheduler.Soon(due)
}

// holdWatch looks at the holds that are due, then for ended goroutines.
type holdWatch background

// Turn handles the holds that are due, and returns when the next one is.
func (w *holdWatch) Turn(now clock.Instant) clock.Instant {
	next, looked := w.holds.Turn(now)
	if looked {
		w.gone.LookAt(now)
	}
	return next
}

// switchWatch notices when the client has changed to another master.
type switchWatch background

// Turn checks for a change. While there are holds it returns the time of the next check.
func (w *switchWatch) Turn(now clock.Instant) clock.Instant {
	b := (*background)(w)
	if b.switches.Look(now, b.reg.transport.First.RoundTrip().Silence(), b.scheduler.Nudge) {
		b.doubt("")
	}
	if b.holds.None() {
		return clock.Never
	}
	return b.nextLook(now)
}

// nextLook returns when to look at the client again.
func (b *background) nextLook(now clock.Instant) clock.Instant {
	if !b.switches.Watched() {
		return clock.Never
	}
	return now.Add(topology.SwitchEvery)
}

// doubt is called when the connection for wake-ups is lost, or leads to a former master: it verifies all holds on that server,
// and repeats recent removals. Server is the address in a cluster, else empty. Holds whose server is not known are verified,
// too.
func (b *background) doubt(server string) {
	now := b.reg.clock.Now()
	elsewhere := func(p *queue.Path) bool {
		at := p.Shard().Address
		return server != "" && at != "" && at != server
	}
	for l := range b.reg.everyLock() {
		if elsewhere(&l.redis) {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.Doubt()
		}
		l.redis.Recall(now)
	}
	b.reg.queues.RecallPermits(now, elsewhere)
}

// send sends tasks of one kind in a pipeline, and returns when they are answered or given up.
func (b *background) send(tasks []hold.Task, kind health.Kind) {
	tasks = slices.DeleteFunc(tasks, func(t hold.Task) bool { return !t.Wanted() })
	if len(tasks) == 0 {
		return
	}
	if last := clock.Instant(b.last.Load()); last != 0 && b.reg.clock.Now() >= last {
		for _, t := range tasks {
			t.Done(transport.Reply{}, 0, ErrClosed)
		}
		return
	}
	s := sending{kind: kind, sent: b.reg.clock.Now(), outcomes: map[*transport.Shard]*health.Outcome{}}
	calls, shards := make([]protocol.Call, len(tasks)), make([]*transport.Shard, len(tasks))
	for i, t := range tasks {
		calls[i] = t.Call()
		shards[i] = b.reg.transport.Shard(calls[i].Key)
	}
	pause := b.cleaner.LongestPause()
	b.reg.transport.DoAll(pipeline, calls,
		func(i int) time.Duration { return tasks[i].Length() },
		func(i int) bool { return tasks[i].Wanted() },
		func(i int, a transport.Reply) {
			n, err := a.Confirmed()
			tasks[i].Done(a, n, err)
			s.note(shards[i], tasks[i], n, err)
		})
	pause = max(pause, b.cleaner.LongestPause())
	for shard, o := range s.outcomes {
		o.Retried = pause + retryTime
		if b.health.Note(shard, *o) && b.last.Load() == 0 {
			b.cleaner.Hasten()
		}
	}
}

// sending collects the outcomes of tasks that are sent together.
type sending struct {
	kind health.Kind
	sent clock.Instant

	mu       sync.Mutex // replies may come from several nodes of a cluster at once
	outcomes map[*transport.Shard]*health.Outcome
}

// note adds the outcome of one task. A release without the queue does not show that the server accepts writes: it may refuse
// those to the queue.
func (s *sending) note(shard *transport.Shard, t hold.Task, n int64, err error) {
	failed := err != nil && t.Wanted()
	refused := failed && fault.Answered(err) // this and Plain call methods of an unknown error type: not under a mutex
	failure := fault.Plain(err)
	wrote := err == nil && n > 0 && n != protocol.NoQueue && t.Writes()
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.outcomes[shard]
	if o == nil {
		o = &health.Outcome{Kind: s.kind, Sent: s.sent}
		s.outcomes[shard] = o
	}
	o.Tasks++
	o.Succeeded = o.Succeeded || err == nil
	o.Wrote = o.Wrote || wrote
	if failed && (refused || !o.Refused) {
		o.Failure, o.Refused = failure, refused
	}
}

// tell reports to the log and the observer that tasks begin to fail, or succeed again. It does not block.
func (b *background) tell(c health.Change) {
	if b.last.Load() != 0 {
		return
	}
	b.reg.tellRenewing(c.Tasks, c.Failure)
	switch {
	case c.Failure == nil:
		b.reg.reports.dispatch.Log(slog.LevelInfo, "Redis takes renewals and removals again")
	case c.Refused:
		b.reg.reports.dispatch.Log(slog.LevelWarn, "Redis refuses renewals or removals; they are tried again",
			slog.Any("error", c.Failure), slog.Int("commands", c.Tasks))
	default:
		b.reg.reports.dispatch.Log(slog.LevelWarn, "Redis does not answer renewals or removals; they are tried again",
			slog.Any("error", c.Failure), slog.Int("commands", c.Tasks))
	}
}

// close stops the goroutines. For the time of closeGrace the cleaner still removes what was left behind in Redis.
func (b *background) close() {
	b.last.Store(int64(b.reg.clock.Now().Add(b.reg.transport.Farthest().RoundTrip().Plus(closeGrace))))
	b.scheduler.Close()
	b.gone.Close()
	b.holds.Close()
	b.cleaner.Close()
}

// wait returns, after close, when all goroutines have ended.
func (b *background) wait() {
	b.scheduler.Wait()
	b.gone.Wait()
	b.holds.Wait()
	b.cleaner.Wait()
}
