package lockregistry

import (
	"context"
	"errors"
	"slices"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ForceUnlock removes the lock of path, whichever process holds it, Java included: the plain lock in the registry's layout, the
// path's read-write lock with all its readers or its writer, or all held permits of its semaphore. It is for people and
// programs that know that the holder is gone: a holder that is still at work no longer excludes others. It is Redisson's
// forceUnlock.
//
// Waiters wake as after any release. A holder of this registry loses the lock at once: its contexts end with the cause
// [ErrLockLost], and its Unlock returns that error. Holders of other registries notice at their next renewal or unlock, but not
// at unlocks that hand the lock to the next goroutine of their process, for the time of their [WithHandoff]. The same is true
// for a call of this registry that is being granted the lock at this very moment.
//
// It returns nil for a path that is free. Errors, each within a [*LockError]: [ErrWrongType] when the key is something else,
// the error of ctx, [ErrUnavailable], [ErrClosed] for a semaphore of a closed registry, bad input such as an empty path, and
// other errors of Redis. If the error leaves open whether the lock was removed, holders of this registry lose it all the same.
func (r *Registry) ForceUnlock(ctx context.Context, path string) error {
	return r.force(ctx, path, "")
}

// ForceUnlockHolder is [Registry.ForceUnlock] for one holder: the server removes the hold only if holder still has it.
// Otherwise it returns [ErrNotOwner], also when the lock is free. Holder is the name in Redis, see [Hold.Holder]: the key's
// value, a field of the hash in Redisson's format, or a member of a semaphore's set. Of a read-write lock it removes only the
// hold of this holder: as reader, or, for a field that ends in ":write", as writer.
func (r *Registry) ForceUnlockHolder(ctx context.Context, path, holder string) error {
	if holder == "" {
		return r.newLock(path).fail("forceunlock", errors.New("the holder is empty"))
	}
	return r.force(ctx, path, holder)
}

func (r *Registry) force(ctx context.Context, path, holder string) error {
	l := r.newLock(path) // for its key; not the cached lock of the path
	err := l.check(ctx)
	if err == nil {
		err = r.remove(ctx, l, holder)
	}
	return l.fail("forceunlock", err)
}

// remove removes a lock, and tells the holders of this registry that they lost it. Holders are matched by name, since newer
// holds may have come meanwhile, which go on.
func (r *Registry) remove(ctx context.Context, l *Lock, holder string) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	before := r.holders(l)
	removal := r.formats.ForceUnlock(l.redis.Key, holder, r.plain.Format.CommonChannel(), r.values)
	p := r.queues.CommandWait(ctx, l.shard())
	p.Lease = r.lease.Length
	reply := r.transport.Do(&p, &removal)
	gone, err := reply.AsStrSlice()
	if fault.IsWrongType(err) {
		return r.removePermits(ctx, l, holder)
	}
	if err == nil && reply.Late { // a former master may have answered; if not, asking again changes nothing
		var more []string
		reply = r.transport.Do(&p, &removal)
		more, err = reply.AsStrSlice()
		gone = append(gone, more...)
	}
	if fault.OutcomeUnknown(err) { // the lock may be removed, now or later
		for name, h := range before {
			if holder == "" || holder == name {
				h.Lose(fault.Forced)
			}
		}
	}
	switch {
	case err != nil:
		return p.Explain(reply.Cut, err)
	case len(gone) == 0 && holder != "":
		return ErrNotOwner
	}
	for name, h := range r.holders(l) {
		if slices.Contains(gone, name) {
			h.Lose(fault.Forced)
		}
	}
	return nil
}

// holders returns this registry's holds on the path of a lock, of any kind, by their names in Redis.
func (r *Registry) holders(of *Lock) map[string]*hold.Hold {
	holders := map[string]*hold.Hold{}
	if plain, ok := r.cache.find(of.path()); ok {
		plain.addHolder(holders)
	}
	if writer, ok := r.cache.findReadWrite(of.path()); ok {
		writer.addHolder(holders)
		writer.pair.reader.addHolder(holders)
	}
	for _, l := range r.permits.all() {
		if l.redis.Key == of.redis.Key {
			l.addHolder(holders)
		}
	}
	return holders
}

func (l *Lock) addHolder(holders map[string]*hold.Hold) {
	if h := l.hold.Load(); h != nil {
		holders[l.holderOf(h)] = h
	}
}

// holderOf returns the name of a hold of the lock in Redis.
func (l *Lock) holderOf(h *hold.Hold) string {
	if l.writes() {
		return h.Value() + ":write"
	}
	return h.Value()
}

// removePermits is remove for a semaphore. Waiting calls get the freed permits at once, as at any release.
func (r *Registry) removePermits(ctx context.Context, l *Lock, holder string) error {
	info, err := r.inspectOne(ctx, l)
	switch {
	case err != nil:
		return err
	case info.Kind == "" && holder == "": // it has become free meanwhile
		return nil
	case info.Kind == "":
		return ErrNotOwner
	case info.Kind != protocol.KindSemaphore:
		return ErrWrongType
	case holder == "":
		holder = protocol.EveryHold
	case !protocol.IsHold(holder):
		return ErrNotOwner
	}
	before := r.holders(l)
	release := r.permit.Format.Release(protocol.Release{Key: l.redis.Key, Value: holder})
	n, unknown, err := l.send(ctx, release)
	if errors.Is(err, fault.Late) { // see remove
		var more int64
		more, _, err = l.send(ctx, release)
		n = max(n, more)
	}
	if n > 0 || unknown {
		for name, h := range before {
			if holder == protocol.EveryHold || holder == name {
				h.Lose(fault.Forced)
			}
		}
		for name, h := range r.holders(l) { // holds that came meanwhile may have been removed, too
			if before[name] == nil {
				h.Doubt()
			}
		}
	}
	if err == nil && n <= 0 && holder != protocol.EveryHold {
		return ErrNotOwner
	}
	return err
}
