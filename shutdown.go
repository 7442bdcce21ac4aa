package lockregistry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/drain"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Shutdown closes the registry once all of its locks are released. A service calls it on SIGTERM, when it takes no more work;
// [Registry.Close] waits for no lock.
//
// Until then owners that hold a lock of this registry go on, and may lock what they need: goroutines, owners of
// [ContextWithOwner], and calls with the context of a hold, see [Lock.Context]. All other calls that wait for a lock, or ask for
// one, return [ErrClosed]; a call that does not wait and has just asked Redis returns the answer. Holds are renewed as before.
//
// # Details
//
// Calls of [Registry.AcquireAll] that already have some of their paths go on. A leader (see package leader) goes on leading: end
// the context of its Run.
//
// # Errors
//
//   - The error of ctx, when ctx ends first: Shutdown has closed the registry, and held locks end with their leases.
//   - [ErrClosed], when Close is called meanwhile, while locks are held or calls are under way.
//   - Nil, also when the registry was closed before.
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

// mostDrainLook is the longest pause between two looks whether a registry that shuts down is still in use.
const mostDrainLook = 50 * time.Millisecond

// turnsAway reports whether a call must not go on, in a registry that shuts down or is closed. C comes from its context.
func (r *Registry) turnsAway(c *tenure.Carried) bool {
	return r.isClosed() || !r.goesOn(r.drain.Holders, holds{c}, owner.Calling(), c.Caller())
}

// goesOn reports whether a call may go on although the registry shuts down: its caller holds one of the registry's locks.
// Holds, from the call's context, may be nil.
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
		if h := l.hold.Load(); h == nil || !h.Fresh() {
			continue
		}
		for _, o := range l.half().Owners() {
			all[o], all[l.taker(o)] = true, true
		}
	}
	return all
}
