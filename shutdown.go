package lockregistry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/background"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/drain"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// ending is how a registry ends.
type ending struct {
	drain   drain.Drain
	closed  chan struct{}
	closing sync.Once
	last    func() bool // ends the use of transport, and reports whether nobody else uses it
	owns    bool        // the client is of Open, and is closed with the registry
}

// Shutdown closes the registry once all of its locks are released. A service calls it on SIGTERM, when it accepts no more work.
// Unlike Shutdown, [Registry.Close] does not wait for locks.
//
// Until then, owners that hold a lock of this registry carry on, and may lock what they need: goroutines, owners of
// [ContextWithOwner], and calls with the context of a hold, see [Lock.Context]. All other calls that wait for a lock, or ask for
// one, return [ErrClosed]. A call that does not wait and has just asked Redis returns the answer. Holds are renewed as before.
//
// # Details
//
// Calls of [Registry.AcquireAll] that already have some of their paths carry on. A leader (see package leader) keeps leading:
// end the context of its Run.
//
// # Errors
//
//   - The error of ctx, if ctx ends first: Shutdown has closed the registry, and held locks end with their leases.
//   - [ErrClosed], if Close is called while locks are held or calls are under way.
//   - Nil, even if the registry was closed before.
//   - Bad input: ctx is nil.
func (r *Registry) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("lockregistry: shutdown: %w", fault.NilContext)
	}
	if r.isClosed() {
		return r.Close() // which may be under way
	}
	r.drain.Begin()
	calls := slices.Collect(waiting.All()) // first: a call that gets its lock before holders are read is a holder
	holders := sync.OnceValue(r.drain.Holders)
	for _, call := range calls {
		if l := lockOf(call.Lock); l.reg == r && call.Place != nil && !r.goesOn(holders, call.Holds, call.Goroutine, call.Owner) {
			l.half().Cancel(call.Place.(*local.Waiter))
		}
	}
	for pause := leastLook; r.inUse(); pause = min(2*pause, mostDrainLook) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			held := r.Stats().Holds
			_ = r.Close()
			return fmt.Errorf("lockregistry: shutdown: %d locks are still held: %w", held, fault.Ended(ctx))
		case <-r.closed:
			if r.inUse() {
				_ = r.Close()
				return fmt.Errorf("lockregistry: shutdown: %w", ErrClosed)
			}
		}
	}
	return r.Close()
}

// The pauses between two looks at whether a registry is still in use.
const (
	leastLook     = 10 * time.Millisecond // the first one
	mostDrainLook = 5 * leastLook         // the longest one, while the registry shuts down
	mostLook      = 50 * leastLook        // the longest one before the client of a closed registry is closed: no call waits for it
)

// goesOn reports whether a call may go on although the registry shuts down: its caller holds one of the registry's locks. In,
// from the call's context, may be nil.
func (r *Registry) goesOn(holders func() drain.Set, in deadlock.Holds, callers ...owner.ID) bool {
	c, _ := in.(holds)
	for o, t := range c.All() {
		if t != nil && lockAbove(t.Hold).reg == r && t.Hold.Fresh() {
			return true
		}
		callers = append(callers, o)
	}
	all := holders()
	for _, o := range callers {
		if o != owner.Nobody && all[o] {
			return true
		}
	}
	return false
}

// holdersNow returns the owners that hold one of the registry's locks, and the goroutines that acquired a [Hold].
func (r *Registry) holdersNow() drain.Set {
	all := drain.Set{}
	for l := range r.everyLock() {
		if !l.hold.Load().Fresh() {
			continue
		}
		for _, o := range l.half().Owners() {
			all[o], all[l.taker(o)] = true, true
		}
	}
	return all
}

// Close ends the registry's background work without waiting for locks. A service that stops should call [Registry.Shutdown]
// instead. Close always returns nil; further calls do nothing.
//
// # Details
//
//   - Calls that wait, and later calls that lock, return [ErrClosed]. A call whose command is under way returns when the command
//     is answered.
//   - Held locks are no longer renewed, and end with their leases. Unlock still removes the key.
//   - Contexts of [Lock.Context] are cancelled with the cause [ErrClosed], since a loss could no longer be reported.
//   - Close waits for removals under way, for at most 1.1 s and four round trips, then for log lines to be written, for at most
//     100 ms. Commands that a silent server executes later are not undone: they leave paths taken for up to a lease.
//   - Close does not close a client that was given to [New]. It closes the client of [Open] once no hold needs it, and waits for
//     that for at most 100 ms and two round trips.
func (r *Registry) Close() error {
	r.closing.Do(func() {
		r.drain.Begin() // for calls that have their pin, see enter
		close(r.closed)
		for call := range waiting.All() {
			if l := lockOf(call.Lock); l.reg == r && call.Place != nil {
				l.half().Cancel(call.Place.(*local.Waiter))
			}
		}
		wait := func() {} // for the end of the listening
		if l := r.queues.Listening; l != nil {
			wait = l.Close()
		}
		trip := r.transport.Farthest().RoundTrip()
		limit := time.NewTimer(trip.Plus(background.Grace) + trip.Plus(queue.ReleaseGrace))
		defer limit.Stop()
		r.transport.AwaitAbandoned(trip.Plus(queue.ReleaseGrace))
		r.background.Close()
		r.record.Close()
		ended := make(chan struct{})
		go func() {
			wait()
			r.background.Wait()
			r.record.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-limit.C: // a connection is being made; it ends by itself
		}
		if r.last() {
			r.transport.Close()
		}
		if r.owns {
			r.closeClient(trip.Plus(queue.ReleaseGrace))
		}
		r.reports.dispatch.Flush()
	})
	return nil
}

func (r *Registry) isClosed() bool {
	select {
	case <-r.closed:
		return true
	default:
		return false
	}
}

// closeClient closes the registry's own client once all holds are released, or their leases are over. If no hold is left now, it
// waits until the client is closed, but only for limit, since a server may not answer.
func (r *Registry) closeClient(limit time.Duration) {
	closed, held := make(chan struct{}), r.inUse()
	go func() {
		defer close(closed)
		for pause := leastLook; r.inUse(); pause = min(2*pause, mostLook) {
			<-time.After(pause)
		}
		r.client.Close()
	}()
	if !held {
		clock.Await(closed, limit)
	}
}

// inUse reports whether a hold may still be released, or a call is under way. Lost holds do not count: Unlock removes nothing
// of them.
func (r *Registry) inUse() bool {
	for l := range r.everyLock() {
		calls := l.entry().Pins() // read first: so a call that gets its hold meanwhile still counts
		if l != l.anchor() || calls <= 0 {
			continue
		}
		holds := [2]*hold.Hold{l.hold.Load()}
		if l.pair != nil {
			holds[1] = l.pair.reader.hold.Load()
		}
		for _, h := range holds {
			switch {
			case h == nil:
			case h.Fresh():
				return true
			default:
				calls-- // the pin is the hold's
			}
		}
		if calls > 0 {
			return true
		}
	}
	return false
}
