package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// readSide and writeSide are the sides of a localReadWrite.
type (
	readSide  localReadWrite
	writeSide localReadWrite
)

func (r *readSide) both() *localReadWrite  { return (*localReadWrite)(r) }
func (w *writeSide) both() *localReadWrite { return (*localReadWrite)(w) }

func (r *readSide) enter(o owner.ID, lease time.Duration, wait bool, _ *waiterPool) (entry, *waiter) {
	return r.both().enter(o, lease, false, wait)
}

func (w *writeSide) enter(o owner.ID, lease time.Duration, wait bool, _ *waiterPool) (entry, *waiter) {
	return w.both().enter(o, lease, true, wait)
}

func (r *readSide) wait(ctx context.Context, w *waiter, timeout <-chan time.Time) entry {
	return r.both().wait(ctx, w, timeout)
}

func (w *writeSide) wait(ctx context.Context, q *waiter, timeout <-chan time.Time) entry {
	return w.both().wait(ctx, q, timeout)
}

func (r *readSide) turnAway(w *waiter)  { r.both().turnAway(w) }
func (w *writeSide) turnAway(q *waiter) { w.both().turnAway(q) }

func (r *readSide) waits()  { r.both().waits(&r.read) }
func (w *writeSide) waits() { w.both().waits(&w.write) }

func (r *readSide) granted() bool  { return r.both().granted(&r.read) }
func (w *writeSide) granted() bool { return w.both().granted(&w.write) }

func (r *readSide) exit(o owner.ID) (departure, fault.Loss)  { return r.both().exit(&r.read, o) }
func (w *writeSide) exit(o owner.ID) (departure, fault.Loss) { return w.both().exit(&w.write, o) }

func (r *readSide) evict(lost func() fault.Loss) bool  { return r.both().evict(&r.read, lost) }
func (w *writeSide) evict(lost func() fault.Loss) bool { return w.both().evict(&w.write, lost) }

func (r *readSide) free()  { r.both().free(&r.read) }
func (w *writeSide) free() { w.both().free(&w.write) }

// pass does nothing: a new reader joins the others, and no other owner can take over a hold on reading.
func (r *readSide) pass(time.Duration) bool          { return false }
func (w *writeSide) pass(running time.Duration) bool { return w.both().pass(running) }

func (r *readSide) contended() bool  { return r.both().contended() }
func (w *writeSide) contended() bool { return w.both().contended() }

func (r *readSide) heldBy(o owner.ID) bool  { return r.both().heldBy(&r.read, o) }
func (w *writeSide) heldBy(o owner.ID) bool { return w.both().heldBy(&w.write, o) }

func (r *readSide) owned() []owner.ID  { return r.both().owned(&r.read) }
func (w *writeSide) owned() []owner.ID { return w.both().owned(&w.write) }

func (r *readSide) expelled(o owner.ID) fault.Loss  { return r.both().expelled(&r.read, o) }
func (w *writeSide) expelled(o owner.ID) fault.Loss { return w.both().expelled(&w.write, o) }

func (r *readSide) nest(o owner.ID) bool  { return r.both().nest(&r.read, o) }
func (w *writeSide) nest(o owner.ID) bool { return w.both().nest(&w.write, o) }
