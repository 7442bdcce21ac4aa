package lockregistry

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/topology"
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
	sender    hold.Sender
	switches  topology.Switches
}

const closeGrace = time.Second // plus two round trips

func newBackground(r *Registry) *background {
	b := &background{reg: r, switches: topology.WatchSwitches(r.client)}
	b.holds = hold.NewSchedule(b.soon, b.sender.Renew)
	soon := func(due clock.Instant) { b.scheduler.Soon(due) }
	b.gone = hold.NewGoneWatch(b.holds, r.clock, soon, r.reports.dispatch.Log)
	// Removals have their own workers, so that renewals that wait for a failed replica do not delay them: with four workers for
	// both, and twelve renewals that waited for a second each, a removal took 0.28 s instead of 1 ms.
	b.cleaner = cleanup.New(r.clock, soon, b.sender.Remove)
	b.sender.Transport, b.sender.Cleaner = r.transport.Client, b.cleaner
	b.sender.Health = health.New(r.clock, b.tell, r.transport.Leads)
	b.scheduler = scheduler.New(r.clock, (*switchWatch)(b), b.gone, (*holdWatch)(b), b.cleaner)
	return b
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

// tell reports to the log and the observer that tasks begin to fail, or succeed again. It does not block.
func (b *background) tell(c health.Change) {
	if b.sender.Closed() {
		return
	}
	b.reg.tellRenewing(c.Tasks, c.Failure)
	c.Log(b.reg.reports.dispatch.Log)
}

// close stops the goroutines. For the time of closeGrace the cleaner still removes what was left behind in Redis.
func (b *background) close() {
	b.sender.Close(b.reg.clock.Now().Add(b.reg.transport.Farthest().RoundTrip().Plus(closeGrace)))
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
