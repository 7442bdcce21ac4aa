package lockregistry

import (
	"context"
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// deadlocked is the error of a call that closes a cycle.
type deadlocked struct{ cycle observe.Deadlock }

func (d deadlocked) Error() string { return "deadlock: " + d.cycle.String() }

func (d deadlocked) Is(target error) bool { return target == ErrDeadlock }

// waiting is the graph of the waiting calls of all registries of this process.
var waiting deadlock.Graph

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

// beginWait sets what the graph needs to know of a call for l that is about to wait.
func (l *Lock) beginWait(ctx context.Context, call *deadlock.Call, w queue.Waiting) {
	_, timed := ctx.Deadline()
	call.Lock, call.Owner, call.Goroutine, call.Holds = forGraph{l}, w.By, w.By, w.Holds
	call.Done, call.Ends = ctx.Done(), timed || w.Ends
	if !w.By.IsGoroutine() {
		call.Goroutine = owner.Calling()
	}
	if call.Since = w.Since; w.Since == 0 {
		call.Since = l.reg.transport.Clock.Now()
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
		l.reg.record.Rewrite()
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
