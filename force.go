package lockregistry

import (
	"context"
	"errors"
	"slices"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

var forceUnlock = protocol.Load("force_unlock")

// ForceUnlock removes the lock of path whoever holds it, in this process or elsewhere, Java included: the plain lock in the
// registry's layout, the path's read-write lock with all its readers or its writer, or all permits of its semaphore. It is
// for people and programs that know that the holder is gone. A holder that is not gone may no longer be the only one. It is
// Redisson's forceUnlock.
//
// Waiters wake as after any release. A holder of this registry loses the lock at once: its contexts end with the cause
// [ErrLockLost], and its Unlock returns that error. Other holders learn of it at their next renewal or unlock, but not at an
// unlock that hands the lock over to the next goroutine of their process, for as long as their [WithHandoff] says; and so
// does a call of this registry that is being granted the lock at this very moment.
//
// It returns nil for a path that is free. Errors, each within a [*LockError]: [ErrWrongType] when the key is something else,
// that of ctx, and those of Redis. If the error leaves open whether the lock was removed, holders of this registry lose it
// all the same.
func (r *Registry) ForceUnlock(ctx context.Context, path string) error {
	return r.force(ctx, path, "")
}

// ForceUnlockHolder does what [Registry.ForceUnlock] does if holder still has the lock, which the server compares with the
// key as it is then; [ErrNotOwner] otherwise, also when the lock is free. The holder is named as in Redis, see [Hold.Holder]:
// by the key's value, or by a field of the hash in Redisson's format. Of a read-write lock that removes the part of this holder
// only: its reading, or, for a field that ends in ":write", its writing.
func (r *Registry) ForceUnlockHolder(ctx context.Context, path, holder string) error {
	if holder == "" {
		return r.newLock(path).fail("forceunlock", errors.New("the holder is empty"))
	}
	return r.force(ctx, path, holder)
}

func (r *Registry) force(ctx context.Context, path, holder string) error {
	l := r.newLock(path) // for its key; it need not be the path's lock of today
	err := l.check(ctx)
	if err == nil {
		err = r.remove(ctx, l, holder)
	}
	if err != nil {
		return l.fail("forceunlock", err)
	}
	return nil
}

// remove has a lock removed, and tells the holders of this registry. They are named by their values, since others may have
// come meanwhile, whose holds go on.
func (r *Registry) remove(ctx context.Context, l *Lock, holder string) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	before := r.holders(l)
	removal := protocol.Call{
		Script: forceUnlock, Key: l.redis.Key,
		Args: protocol.Args{holder, protocol.Tagged(l.redis.Key), r.formats.Publish(), r.plain.Format.CommonChannel(), r.values},
	}
	p := r.queues.CommandWait(ctx, l.shard())
	p.Lease = r.lease.Length
	reply := r.transport.Do(&p, &removal)
	gone, err := reply.AsStrSlice()
	if fault.IsWrongType(err) {
		return r.removePermits(ctx, l, holder)
	}
	if err == nil && reply.Late { // a master that is none any more may have answered; asking again changes nothing if not
		var more []string
		reply = r.transport.Do(&p, &removal)
		more, err = reply.AsStrSlice()
		gone = append(gone, more...)
	}
	if fault.OutcomeUnknown(err) { // it may be gone, or may go yet
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

// holders are the holds that this registry has on the path of a lock, plain or not, by their names in Redis.
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

// holderOf is how a hold of the lock is named in Redis.
func (l *Lock) holderOf(h *hold.Hold) string {
	if l.writes() {
		return h.Value() + ":write"
	}
	return h.Value()
}

// removePermits is remove for a semaphore. Those who wait get what is free then at once, as at any release.
func (r *Registry) removePermits(ctx context.Context, l *Lock, holder string) error {
	info, err := r.inspectOne(ctx, l)
	switch {
	case err != nil:
		return err
	case info.Kind != protocol.KindSemaphore:
		return ErrWrongType
	case holder == "":
		holder = protocol.EveryHold
	case !protocol.IsHold(holder): // it may be another member of the set
		return ErrNotOwner
	}
	before := r.holders(l)
	m := protocol.Release{Key: l.redis.Key, Value: holder}
	n, unknown, err := l.send(ctx, r.permit.Format.Release(m))
	if n > 0 || unknown {
		for name, h := range before {
			if holder == protocol.EveryHold || holder == name {
				h.Lose(fault.Forced)
			}
		}
		for name, h := range r.holders(l) { // who came meanwhile may be among those that were removed, or not
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
