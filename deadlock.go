package lockregistry

import (
	"context"
	"iter"
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// deadlocked is the error of a call that closes a cycle.
type deadlocked struct{ cycle observe.Deadlock }

func (d deadlocked) Error() string { return "deadlock: " + d.cycle.String() }

func (d deadlocked) Is(target error) bool { return target == ErrDeadlock }

// waiting is the graph of the waiting calls of all registries of this process.
var waiting deadlock.Graph

// waited is a lock as seen by the graph.
type waited struct{ lock *Lock }

func (w waited) Obstacles(c *deadlock.Call) deadlock.Obstacles {
	l, place := w.lock, c.Place.(*local.Waiter)
	if l.pair == nil {
		return l.local.Obstacles(place, w)
	}
	return l.pair.local.Obstacles(place, waited{&l.pair.reader}, waited{&l.pair.writer})
}

func (w waited) Stands() bool {
	h := w.lock.hold.Load()
	return h != nil && h.Fresh()
}

// Taker does not name who took permits: it may go on to take the next, and leave them to others, as a pool of workers does.
func (w waited) Taker(o owner.ID) owner.ID {
	if w.lock.redis.Many() {
		return owner.Nobody
	}
	return w.lock.taker(o)
}

func (w waited) Delegated(o owner.ID) bool { return w.lock.hold.Lent(o) }

// Ends reports whether the registry turns the call away, or is about to: Shutdown comes to one after the other.
func (w waited) Ends(c *deadlock.Call) bool {
	r := w.lock.reg
	return r.isClosed() || r.drain.Begun() && !r.goesOn(r.drain.Holders, c.Holds, c.Goroutine, c.Owner)
}

// Report returns the error for a cycle. The first report also goes to the log and the observer.
func (w waited) Report(cycle []deadlock.Step, first bool) error {
	d := observe.Deadlock{Waits: make([]observe.DeadlockWait, len(cycle))}
	for i, s := range cycle {
		l := lockOf(s.Call.Lock)
		about, r := l.subject(), l.reg
		d.Waits[i] = observe.DeadlockWait{
			Path: about.Path, Kind: about.Kind, Owner: s.Call.Caller(), Label: r.others.label, Since: r.clock.Time(s.Call.Since),
		}
		if s.Held != nil {
			d.Waits[i].Holds = []string{lockOf(s.Held).path()}
		}
	}
	if first {
		w.lock.reg.tellDeadlock(d)
	}
	return deadlocked{d}
}

func lockOf(l deadlock.Lock) *Lock { return l.(waited).lock }

// holds are the holds that a context carries, for the graph.
type holds struct{ *tenure.Carried }

// Within reports whether one of the holds is an owner's on a lock, and lasts.
func (c holds) Within(l deadlock.Lock, o owner.ID) bool {
	for _, t := range c.All() {
		if t != nil && t.Owner == o && lockAbove(t.Hold) == lockOf(l) {
			return true
		}
	}
	return false
}

// waiting returns what the graph needs to know of a call.
func (q *request) waiting() queue.Waiting {
	w := queue.Waiting{By: q.owner(), Ends: q.wait > 0, Since: q.blocked}
	if q.in.Carried != nil {
		w.Holds = holds{q.in.Carried}
	}
	return w
}

// beginWait sets what the graph needs to know of a call for l that is about to wait.
func (l *Lock) beginWait(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	_, timed := ctx.Deadline()
	call.Lock, call.Owner, call.Goroutine, call.Holds = waited{l}, w.By, w.By, w.Holds
	call.Done, call.Ends = ctx.Done(), timed || w.Ends
	if !w.By.IsGoroutine() {
		call.Goroutine = owner.Calling()
	}
	if call.Since = w.Since; w.Since == 0 {
		call.Since = l.reg.clock.Now()
	}
}

// block enters a call for l that waits for another process into the graph.
func (l *Lock) block(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	l.beginWait(ctx, call, w)
	_ = waiting.Enter(call) // it cannot close a cycle within the process
}

// endWait takes a call for l out of the graph.
func (l *Lock) endWait(call *deadlock.Call) {
	if waiting.Leave(call) {
		l.reg.others.presence.Rewrite()
	}
}

func (r *Registry) tellDeadlock(d observe.Deadlock) {
	r.reports.dispatch.Log(slog.LevelWarn, "deadlock", slog.String("cycle", d.String()))
	tell(&r.reports.dispatch, "Deadlocked", r.reports.observer.Deadlocked, d)
}

func deadlockOf(cycle detector.Cycle) (d observe.Deadlock) {
	for _, w := range cycle {
		d.Waits = append(d.Waits, observe.DeadlockWait{
			Path: w.Path, Kind: observe.Kind(w.Kind), Owner: w.Owner, Holds: w.Holds,
			Label: observe.Label(w.From), Since: protocol.Time(w.Since),
		})
	}
	return d
}

// detecting is a registry as package detector sees it.
type detecting struct {
	*readonly.Reader

	reg *Registry
}

func (d detecting) Mine(c *deadlock.Call) bool { return lockOf(c.Lock).reg == d.reg }

func (d detecting) Subject(c *deadlock.Call) (path, kind string) {
	s := lockOf(c.Lock).subject()
	return s.Path, string(s.Kind)
}

// Held iterates over the locks that owners of this process hold.
func (d detecting) Held() iter.Seq[detector.Held] {
	return func(yield func(detector.Held) bool) {
		for l := range d.reg.everyLock() {
			if l.anchor().entry.Pins() <= 0 {
				continue
			}
			for _, o := range l.half().Owners() {
				if !yield(detector.Held{Path: l.path(), Permits: l.redis.Many(), Lock: waited{l}, Owner: o}) {
					return
				}
			}
		}
	}
}

func (d detecting) Report(c detector.Cycle) { d.reg.tellDeadlock(deadlockOf(c)) }
