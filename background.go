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
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// background is what a registry does although nobody waits for it: it renews leases, announces the loss of holds, and removes
// keys that were left behind. One goroutine sleeps until something is due, and a few talk to Redis: neither the number of holds
// nor a server that does not answer adds goroutines or delays an announcement. A registry that only locks and unlocks has none.
type background struct {
	reg       *Registry
	scheduler *scheduler.Scheduler
	holds     *hold.Schedule
	cleaner   *cleanup.Cleaner
	gone      *hold.GoneWatch
	health    *health.Monitor[*transport.Shard]
	switches  topology.Switches
	last      atomic.Int64 // an instant: nothing is sent any more from then on; 0: it is not closed
}

const (
	pipeline   = time.Second     // how long one may take, and two round trips
	closeGrace = time.Second     // and two round trips
	retryTime  = 4 * time.Second // for a pipeline that is due to be sent and answered, see [health.Outcome]
)

func newBackground(r *Registry) *background {
	b := &background{reg: r, switches: topology.WatchSwitches(r.client)}
	b.health = health.New(r.clock, b.tell, r.transport.Leads)
	b.holds = hold.NewSchedule(b.soon, func(t []hold.Task) { b.send(t, health.Renewals) })
	soon := func(due clock.Instant) { b.scheduler.Soon(due) }
	b.gone = hold.NewGoneWatch(b.holds, r.clock, soon, r.reports.dispatch.Log)
	// Removals have workers of their own. A replica that is down and that renewals wait for must not keep what is given back: with
	// four workers for both, and twelve renewals that wait for a second each, a removal took 0.28 s instead of 1 ms.
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

// soon has holds looked at by a time, and the client before.
func (b *background) soon(due clock.Instant) {
	if b.switches.Watched() {
		due = min(due, b.nextLook(b.reg.clock.Now()))
	}
	b.scheduler.Soon(due)
}

// holdWatch looks at the holds that are due, and after that for goroutines that are gone.
type holdWatch background

// Turn does, and returns when the next one is due.
func (w *holdWatch) Turn(now clock.Instant) clock.Instant {
	next, looked := w.holds.Turn(now)
	if looked {
		w.gone.LookAt(now)
	}
	return next
}

// switchWatch notices when the client has changed to another master.
type switchWatch background

// Turn looks whether it has. While there are holds to watch over it is to be called again soon.
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

// nextLook is when to look at the client again.
func (b *background) nextLook(now clock.Instant) clock.Instant {
	if !b.switches.Watched() {
		return clock.Never
	}
	return now.Add(topology.SwitchEvery)
}

// doubt is for when the connection for wake-ups is lost, or leads to a server that is the master no more: it has all holds of
// that server looked at, and sends removals of just now once more. That of a cluster is named by its address; holds of which
// it is not known on which server they are may be there.
func (b *background) doubt(server string) {
	now := b.reg.clock.Now()
	elsewhere := func(l *Lock) bool {
		at := l.shard().Address
		return server != "" && at != "" && at != server
	}
	for l := range b.reg.everyLock() {
		if elsewhere(l) {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.Doubt()
		}
		l.redis.Recall(now)
	}
	for _, f := range b.reg.permits.recent(now) {
		if !elsewhere(f.of) {
			b.cleaner.Expedite(f.of.unclaimed(f.number)) // mutant: permit not recalled
		}
	}
}

// send sends tasks of a kind together, and returns when they are answered or given up.
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

// sending is what becomes of tasks that are sent together.
type sending struct {
	kind health.Kind
	sent clock.Instant

	mu       sync.Mutex // replies may come from several nodes of a cluster at once
	outcomes map[*transport.Shard]*health.Outcome
}

// note takes in what became of one task. That a release had no queue is no sign that the server takes writes: those to the queue
// may be the ones that it refuses.
func (s *sending) note(shard *transport.Shard, t hold.Task, n int64, err error) {
	failed := err != nil && t.Wanted()
	refused := failed && fault.Answered(err) // which asks an error of any type: not under the mutex
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
		o.Failure, o.Refused = err, refused
	}
}

// tell says in the log, and to an observer, that tasks begin to fail, or succeed again. It waits for nobody.
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
			slog.Any("error", fault.Plain(c.Failure)), slog.Int("commands", c.Tasks))
	default:
		b.reg.reports.dispatch.Log(slog.LevelWarn, "Redis does not answer renewals or removals; they are tried again",
			slog.Any("error", fault.Plain(c.Failure)), slog.Int("commands", c.Tasks))
	}
}

// close stops the goroutines. What was left behind in Redis gets a last chance to be removed, for as long as closeGrace.
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
