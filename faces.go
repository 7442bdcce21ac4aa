package lockregistry

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// The faces of a Lock: what each package below it asks of it, or tells it. A face is the lock itself, under a type that has the
// methods of one interface, so that none of them is in the API. The interface says what each method does:
//
//	forHold      hold.Above        its holds report their end, and ask who has them
//	forQueue     queue.Lock        its path in Redis gives it a hold, and frees the local half
//	forGraph     deadlock.Lock     the graph of waiting calls asks whom a call waits for
//	forDetector  detector.Registry the detector asks which locks are held here, and reports cycles across processes

// forHold is a lock as seen by its holds.
type forHold Lock

// Lost is called by the goroutine that notices the loss. The waiters of this process must not wait for owners that have lost the
// lock and may never unlock. A key that is gone may have gone with all others, the registry's record among them.
func (a *forHold) Lost(why fault.Loss, held hold.Held, awaited bool) {
	l := (*Lock)(a)
	if why == fault.KeyGone {
		l.reg.record.MayBeGone()
	}
	if awaited && (*forQueue)(l).Contended() {
		l.evict()
	}
	l.reg.permits.Leave(l) // mutant: lost holds kept
	l.tellLost(held, why)
}

func (a *forHold) Clear(r hold.Remains) { a.redis.Clear(r) }

// Has asks the local half: a hold does not know its owners.
func (a *forHold) Has(value string, o owner.ID) bool {
	h := (*Lock)(a).heldBy(o)
	return h != nil && h.Value() == value
}

// Count returns how many owners share the hold. It takes no mutex, so it may be called with the hold's mutex held: an owner
// that joins later looks at the hold after that, and sees what the caller has done to it.
func (a *forHold) Count() int64 {
	if l := (*Lock)(a); l.reads() {
		return l.pair.local.Reader().Count()
	}
	return 1
}

// Owners and Delegated are for the search for goroutines that have ended. The search leaves out an owner for which another
// goroutine may unlock.
func (a *forHold) Owners() []owner.ID        { return (*Lock)(a).half().Owners() }
func (a *forHold) Delegated(o owner.ID) bool { return a.hold.Delegated(o) }

func lockAbove(h *hold.Hold) *Lock { return (*Lock)(h.Above().(*forHold)) }

// forQueue is a lock as seen by its path in Redis. The goroutine that has the local half calls its methods, one at a time.
type forQueue Lock

// NewHold makes a hold whose value has the registry's next number. For a semaphore the number is noted before Redis is asked,
// since messages name it.
func (l *forQueue) NewHold(t hold.Terms) *hold.Hold {
	r := l.reg
	// The buffer is long enough for most, so that the value costs one allocation.
	var buf [96]byte
	value := strconv.AppendUint(append(buf[:0], r.queues.Values...), r.numbers.Draw(time.Now()), 10) // mutant: no number
	r.record.Asked()
	h := hold.New(&l.redis.Path, string(value), t)
	if l.redis.Format.Many() {
		r.permits.Asks((*Lock)(l), h.Number())
	}
	return h
}

func (l *forQueue) Hold() *hold.Hold { return l.hold.Load() }

// Won stores the hold before it tells the local half, so that the owner and waiting calls find it.
func (l *forQueue) Won(h *hold.Hold, since clock.Instant) {
	of := (*Lock)(l)
	if of.writes() {
		of.pair.wrote.Store(h) // mutant: writer forgotten
	}
	of.hold.Store(h)
	of.entry().Use(since)
	if of.half().Granted() {
		of.attend(true)
	}
}

// Free lets the next goroutine ask Redis, and ends the use of the lock that began with it. The path calls it, since only the path
// knows when the key is removed, or surely not this lock's.
func (l *forQueue) Free() {
	of := (*Lock)(l)
	if of.writes() {
		of.pair.wrote.Store(nil) // before the writer is free: the next one stores its own after that
	}
	of.half().Free()
	of.unpin()
}

func (l *forQueue) Taken() { (*Lock)(l).half().Taken() }

func (l *forQueue) Contended() bool {
	n, _ := (*Lock)(l).half().Queued()
	return n > 0
}

// Under returns the writer's value: a reader of the writer's owner is granted alongside the writer.
func (l *forQueue) Under() string { return l.pair.under() }

// Block and EndWait change the graph of waiting calls: a call that waits for another process may be a part of a cycle.
func (l *forQueue) Block(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	(*Lock)(l).beginWait(ctx, call, w)
	_ = waiting.Enter(call) // it cannot close a cycle within the process
}

func (l *forQueue) EndWait(call *deadlock.Call) {
	if waiting.Leave(call) { // it is in the record
		l.reg.record.Rewrite()
	}
}

// forGraph is a lock as seen by the graph of waiting calls, whose mutex may be held.
type forGraph struct{ lock *Lock }

func lockOf(l deadlock.Lock) *Lock { return l.(forGraph).lock }

func (w forGraph) Obstacles(c *deadlock.Call) deadlock.Obstacles {
	l, place := w.lock, c.Place.(*local.Waiter)
	if l.pair == nil {
		return l.plain.local.Obstacles(place, w)
	}
	return l.pair.local.Obstacles(place, forGraph{&l.pair.reader}, forGraph{&l.pair.writer})
}

// Stands reports whether the lock has a hold that is not lost: no call waits for a lost one.
func (w forGraph) Stands() bool { return w.lock.hold.Load().Fresh() }

// Taker returns nobody for permits: the goroutine that took them may go on to take the next ones, and leave their release to
// others, as in a pool of workers.
func (w forGraph) Taker(o owner.ID) owner.ID {
	if w.lock.redis.Format.Many() {
		return owner.Nobody
	}
	return w.lock.taker(o)
}

// Delegated reports whether another goroutine may unlock: then the lock can become free although the owner does not run.
func (w forGraph) Delegated(o owner.ID) bool { return w.lock.hold.Delegated(o) }

// Ends reports whether the registry has turned the call away, or is about to: Shutdown turns away one call after another.
func (w forGraph) Ends(c *deadlock.Call) bool {
	r := w.lock.reg
	return r.drain.Begun() && (r.isClosed() || !r.goesOn(r.drain.Holders, c.Holds, c.Goroutine, c.Owner))
}

// Report returns the error for a cycle. The first report also goes to the log and the observer.
func (w forGraph) Report(cycle []deadlock.Step, first bool) error {
	d := observe.Deadlock{Waits: make([]observe.DeadlockWait, len(cycle))}
	for i, s := range cycle {
		l := lockOf(s.Call.Lock)
		about, r := l.subject(), l.reg
		d.Waits[i] = observe.DeadlockWait{
			Path: about.Path, Kind: about.Kind, Owner: s.Call.Caller(), Label: r.record.label, Since: r.transport.Clock.Time(s.Call.Since),
		}
		if s.Held != nil {
			d.Waits[i].Holds = []string{lockOf(s.Held).Path()}
		}
	}
	if first {
		w.lock.reg.tellDeadlock(d)
	}
	return deadlocked{d}
}

// forDetector is a registry, and each of its locks, as the detector sees them. It reads the records of others by the reader.
type forDetector struct {
	*readonly.Reader

	reg *Registry
}

// Mine reports whether a call is this registry's: the graph has the calls of all registries of the process.
func (d forDetector) Mine(c *deadlock.Call) bool { return lockOf(c.Lock).reg == d.reg }

func (d forDetector) Subject(c *deadlock.Call) (path, kind string) {
	s := lockOf(c.Lock).subject()
	return s.Path, string(s.Kind)
}

func (d forDetector) Held() iter.Seq[detector.Held] {
	return func(yield func(detector.Held) bool) {
		for l := range d.reg.locksInUse() {
			for _, o := range l.half().Owners() {
				if !yield(detector.Held{Path: l.Path(), Permits: l.redis.Format.Many(), Lock: forGraph{l}, Owner: o}) {
					return
				}
			}
		}
	}
}

func (d forDetector) Report(c detector.Cycle) { d.reg.tellDeadlock(deadlockOf(c)) }

// deadlocked is the error of a call that closes a cycle.
type deadlocked struct{ cycle observe.Deadlock }

func (d deadlocked) Error() string { return "deadlock: " + d.cycle.String() }

func (d deadlocked) Is(target error) bool { return target == ErrDeadlock }

// waiting is the graph of the waiting calls of all registries of this process.
var waiting deadlock.Graph

// holds are the holds that a context carries, for the graph.
type holds struct{ *tenure.Carried }

func (c holds) Within(l deadlock.Lock, o owner.ID) bool {
	for _, t := range c.All() {
		if t != nil && t.Owner == o && lockAbove(t.Hold) == lockOf(l) {
			return true
		}
	}
	return false
}

// beginWait sets what the graph needs to know about a call for l that is about to wait.
func (l *Lock) beginWait(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	_, timed := ctx.Deadline()
	call.Lock, call.Owner, call.Goroutine, call.Holds = forGraph{l}, w.By, w.By, w.Holds
	call.Done, call.Ends = ctx.Done(), timed || w.Ends
	if !w.By.IsGoroutine() {
		call.Goroutine = owner.Calling()
	}
	if call.Since = w.Since; w.Since == 0 {
		call.Since = l.reg.now()
	}
}

func (r *Registry) tellDeadlock(d observe.Deadlock) {
	r.reports.dispatch.Log(slog.LevelWarn, "deadlock", slog.String("cycle", d.String()))
	tell(&r.reports.dispatch, "Deadlocked", r.reports.observer.Deadlocked, d)
}

func deadlockOf(cycle detector.Cycle) (d observe.Deadlock) {
	before := cycle[len(cycle)-1] // it waits for a path that the first one holds, if not for its place in a queue
	for _, w := range cycle {
		d.Waits = append(d.Waits, observe.DeadlockWait{
			Path: w.Path, Kind: observe.Kind(w.Kind), Owner: w.Owner, Holds: some(w.Holds, before.Path),
			Label: observe.Label(w.From), Since: protocol.Time(w.Since),
		})
		before = w
	}
	return d
}

// mostShown is how many paths of a caller a deadlock names.
const mostShown = 16

// some returns the first paths that a caller holds, and the wanted one if it is among the others.
func some(held []string, wanted string) []string {
	if len(held) <= mostShown {
		return held
	}
	shown := slices.Clone(held[:mostShown])
	if slices.Contains(held[mostShown:], wanted) {
		shown[mostShown-1] = wanted
	}
	return shown
}
