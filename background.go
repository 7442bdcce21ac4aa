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
	holds     dueHolds
	renewals  *scheduler.Senders[task]
	cleaner   *cleanup.Cleaner
	gone      goneWatch
	health    health
	switches  topology.Switches
	last      atomic.Int64 // an instant: nothing is sent any more from then on; 0: it is not closed
}

// task is a command that nobody waits for.
type task interface {
	call() protocol.Call
	term() time.Duration                        // the lease that the answer is about, see RoundTrip.Late
	wanted() bool                               // whether it is of any use still
	writes() bool                               // whether it does, when it is done
	done(a transport.Reply, n int64, err error) // n: see protocol.Confirmed
}

const (
	pipeline   = time.Second     // how long one may take, and two round trips
	closeGrace = time.Second     // and two round trips
	refusedFor = 5 * time.Second // longer than the longest pause between two removals of what is refused
)

func newBackground(r *Registry) *background {
	b := &background{reg: r, switches: topology.WatchSwitches(r.client)}
	b.holds.background = b
	b.gone.begin(b)
	b.renewals = scheduler.NewSenders(b.holds.take, func(t []task) { b.send(t, &b.health.renewals) })
	// Removals have workers of their own. A replica that is down and that renewals wait for must not keep what is given back.
	b.cleaner = cleanup.New(r.clock, func(due clock.Instant) { b.scheduler.Soon(due) }, b.remove)
	b.scheduler = scheduler.New(r.clock, (*switchWatch)(b), &b.gone, &b.holds, b.cleaner)
	return b
}

// remove sends removals.
func (b *background) remove(all []cleanup.Attempt) {
	tasks := make([]task, len(all))
	for i, a := range all {
		tasks[i] = removing{a}
	}
	b.send(tasks, &b.health.removals)
}

// switchWatch notices when the client has changed to another master.
type switchWatch background

// Turn looks whether it has. While there are holds to watch over it is to be called again soon.
func (w *switchWatch) Turn(now clock.Instant) clock.Instant {
	b := (*background)(w)
	if b.switches.Look(now, b.reg.transport.First.RoundTrip().Silence(), b.scheduler.Nudge) {
		b.doubt("")
	}
	if b.holds.none() {
		return clock.Never
	}
	return b.nextLook(now)
}

// nextLook is when to look at the client again.
func (b *background) nextLook(now clock.Instant) clock.Instant {
	if !b.switches.Watched {
		return clock.Never
	}
	return now.Add(topology.SwitchEvery)
}

// doubt is for when the connection for wake-ups is lost, or leads to a server that is the master no more: it has all holds of
// that server looked at, and sends removals of just now once more. That of a cluster is named by its address; holds of which
// it is not known on which server they are may be there.
func (b *background) doubt(server string) {
	now := b.reg.clock.Now()
	for l := range b.reg.cache.all() {
		if at := l.shard().Address; server != "" && at != "" && at != server {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.doubtServer()
		}
		l.recall(now)
	}
}

// send sends tasks together, and returns when they are answered or given up.
func (b *background) send(tasks []task, failing *failingSince) {
	tasks = slices.DeleteFunc(tasks, func(t task) bool { return !t.wanted() })
	if len(tasks) == 0 {
		return
	}
	if last := clock.Instant(b.last.Load()); last != 0 && b.reg.clock.Now() >= last {
		for _, t := range tasks {
			t.done(transport.Reply{}, 0, ErrClosed)
		}
		return
	}
	calls := make([]protocol.Call, len(tasks))
	for i, t := range tasks {
		calls[i] = t.call()
	}
	var mu sync.Mutex // answers may come from several nodes of a cluster at once
	var failure error
	succeeded, wrote := false, false
	b.reg.transport.DoAll(pipeline, calls,
		func(i int) time.Duration { return tasks[i].term() },
		func(i int) bool { return tasks[i].wanted() },
		func(i int, a transport.Reply) {
			n, err := protocol.Confirmed(a.RedisResult)
			if err == nil {
				err = a.ReplicaErr
			}
			tasks[i].done(a, n, err)
			failed := err != nil && tasks[i].wanted()
			failing.note(b.reg.transport.Shard(calls[i].Key), b.reg.clock.Now(), err == nil, failed)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				succeeded, wrote = true, wrote || n > 0 && tasks[i].writes()
			} else if failed {
				failure = err
			}
		})
	b.report(len(tasks), failure, succeeded, wrote)
}

// health is whether the tasks of a registry succeed.
type health struct {
	renewals, removals failingSince

	mu      sync.Mutex
	failing bool          // which is logged once
	refused clock.Instant // when one failed last because the server refused what it was to write; 0: not since they succeed
}

// take takes in what became of some tasks, and tells whether they begin to fail, or succeed again. Only an answer is an
// all-clear: that nothing is left to fail, because a hold was lost, is none.
//
// A server that takes no writes for now (MISCONF, NOREPLICAS) answers questions, and removals that find nothing to remove.
// That is no all-clear, unless it has refused nothing for a while.
func (h *health) take(now clock.Instant, failure error, succeeded, wrote bool) (changed, failing bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if failure != nil && fault.Answered(failure) {
		h.refused = now
	}
	if failure == nil && succeeded && h.refused != 0 {
		if succeeded = wrote || h.refused.Until(now) >= refusedFor; succeeded {
			h.refused = 0
		}
	}
	failing = failure != nil || h.failing && !succeeded
	changed = h.failing != failing
	h.failing = failing
	return changed, failing
}

// report logs when tasks begin to fail, and when they succeed again.
func (b *background) report(n int, failure error, succeeded, wrote bool) {
	changed, failing := b.health.take(b.reg.clock.Now(), failure, succeeded, wrote)
	if !changed || b.last.Load() != 0 {
		return
	}
	if !failing {
		b.cleaner.Hasten()
	}
	b.reg.tellRenewing(n, failure)
	switch {
	case failure == nil:
		b.reg.dispatch.Log(slog.LevelInfo, "Redis takes renewals and removals again")
	case fault.Answered(failure):
		b.reg.dispatch.Log(slog.LevelWarn, "Redis refuses renewals or removals; they are tried again",
			slog.Any("error", failure), slog.Int("commands", n))
	default:
		b.reg.dispatch.Log(slog.LevelWarn, "Redis does not answer renewals or removals; they are tried again",
			slog.Any("error", failure), slog.Int("commands", n))
	}
}

// failingSince tells since when tasks of one sort fail, by shard.
type failingSince struct {
	mu     sync.Mutex
	shards map[*transport.Shard]clock.Instant
}

func (f *failingSince) of(l *transport.Shard) clock.Instant {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shards[l]
}

// note takes down what became of a task.
func (f *failingSince) note(l *transport.Shard, now clock.Instant, succeeded, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case succeeded:
		delete(f.shards, l)
	case failed && f.shards[l] == 0:
		if f.shards == nil {
			f.shards = map[*transport.Shard]clock.Instant{}
		}
		f.shards[l] = now
	}
}

// close stops the goroutines. What was left behind in Redis gets a last chance to be removed, for as long as closeGrace.
func (b *background) close() {
	b.last.Store(int64(b.reg.clock.Now().Add(b.reg.transport.Farthest().RoundTrip().Plus(closeGrace))))
	b.scheduler.Close()
	b.gone.close()
	b.renewals.Close()
	b.cleaner.Close()
	b.holds.close()
}

// wait returns, after close, when all goroutines have ended.
func (b *background) wait() {
	b.scheduler.Wait()
	b.gone.looks.Wait()
	b.renewals.Wait()
	b.cleaner.Wait()
}
