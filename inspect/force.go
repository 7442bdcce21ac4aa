package inspect

import (
	"context"
	"errors"
	"slices"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/protocol/operator"
	"github.com/lockregistry/lockregistry/observe"
)

// ForceUnlock removes the lock of path, whichever process holds it, Java included: the plain lock, the path's read-write lock
// with all its readers or its writer, or all held permits of its semaphore. It returns nil for a path that is free. It is
// Redisson's forceUnlock.
//
// Use it only if you know that the holder is gone: a holder that is still working no longer excludes others.
//
// # Details
//
// Waiters wake as after any release. The inspector of a registry removes plain locks only in the registry's layout.
//
//   - A holder of the registry that was given to [Of] loses the lock at once: its contexts end with the cause
//     [lockregistry.ErrLockLost], and its Unlock returns that error.
//   - Holders of other registries notice at their next renewal or unlock. Within the time of their [lockregistry.WithHandoff], an
//     unlock that hands the lock to the next goroutine of the process does not notice.
//   - A call of this registry that is granted the lock at this very moment notices as late as holders of other registries.
//
// # Errors
//
// Each is within a [*lockregistry.LockError]. If the error does not say whether the lock was removed, holders of the registry
// lose it all the same.
//
//   - [lockregistry.ErrWrongType], when the key is something else
//   - [lockregistry.ErrUnavailable], and the error of ctx. ErrUnavailable is also returned if the answer about a lock, or about
//     more than 100 holds of a semaphore, came so late that a former master may have given it. In that case ForceUnlock does not
//     ask again, since a waiter may have the lock by now. Look again, and use [Inspector.ForceUnlockHolder] if the same holder
//     still has it.
//   - [lockregistry.ErrClosed], for a semaphore of a closed registry
//   - bad input such as an empty path, and other errors of Redis
func (i *Inspector) ForceUnlock(ctx context.Context, path string) error {
	return i.force(ctx, path, "")
}

// ForceUnlockHolder is [Inspector.ForceUnlock] for one holder: the server removes the hold only if holder still has it. Otherwise
// it returns [lockregistry.ErrNotOwner], even when the lock is free.
//
// Holder is the name in Redis, see [lockregistry.Hold.Holder] and [Holder]: the key's value, a field of the hash in Redisson's
// format, or a member of a semaphore's set. Of a read-write lock, only the hold of this holder is removed: as reader or, for a
// field that ends in ":write", as writer. An empty holder is bad input.
func (i *Inspector) ForceUnlockHolder(ctx context.Context, path, holder string) error {
	if holder == "" {
		return i.fail("forceunlock", path, errors.New("the holder is empty"))
	}
	return i.force(ctx, path, holder)
}

func (i *Inspector) force(ctx context.Context, path, holder string) error {
	err := i.check(ctx, path)
	if err == nil {
		err = i.remove(ctx, path, holder)
	}
	if err != nil {
		return i.fail("forceunlock", path, err)
	}
	return nil
}

// remove removes a lock, and tells the holders of the registry that they lost it. Holders are matched by name, since newer
// holds may have come meanwhile, which go on.
func (i *Inspector) remove(ctx context.Context, path, holder string) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	layout := i.reader.Layout
	if i.found { // the script looks again: if the lock has changed since, the call fails
		info, err := i.inspect(ctx, path)
		if err != nil {
			return err
		}
		layout = info.Layout
	}
	common := ""
	if layout == observe.LayoutSpring {
		common = protocol.NewSpring(i.reader.Formats).CommonChannel()
	}
	before := i.reader.Held(path)
	removal := i.reader.Formats.ForceUnlock(operator.ForceUnlock, i.key(path), holder, common, i.reader.Values)
	p := i.reader.Calls.CommandWait(ctx, i.reader.Transport.Node(removal.Key))
	reply := i.reader.Transport.Do(&p, &removal)
	gone, err := reply.AsStrSlice()
	if fault.IsWrongType(err) {
		return i.removePermits(ctx, path, holder)
	}
	switch {
	case err != nil || !reply.Late:
	case holder == "":
		err = fault.Late // see ForceUnlock: asking again would remove who has come since
	default: // a former master may have answered; if not, asking again changes nothing
		var more []string
		reply = i.reader.Transport.Do(&p, &removal)
		more, err = reply.AsStrSlice()
		gone = append(gone, more...)
		if err != nil && !fault.OutcomeUnknown(err) {
			err = fault.Late // that one did nothing; the first one may have removed the lock
		}
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
		return lockregistry.ErrNotOwner
	}
	for name, h := range i.reader.Held(path) {
		if slices.Contains(gone, name) {
			h.Lose(fault.Forced)
		}
	}
	return nil
}

// removePermits is remove for a semaphore. Waiting calls get the freed permits at once, as at any release.
func (i *Inspector) removePermits(ctx context.Context, path, holder string) error {
	info, err := i.inspect(ctx, path)
	switch {
	case err != nil:
		return err
	case info.Kind == observe.KindNone && holder == "": // it has become free meanwhile
		return nil
	case info.Kind == observe.KindNone:
		return lockregistry.ErrNotOwner
	case info.Kind != observe.KindSemaphore:
		return lockregistry.ErrWrongType
	case holder == "":
		holder = protocol.EveryHold
	case !protocol.IsHold(holder):
		return lockregistry.ErrNotOwner
	}
	before := i.reader.Held(path)
	n, unknown, err := i.releasePermits(ctx, path, holder)
	if errors.Is(err, fault.Late) { // see remove
		var more int64
		if more, err = i.removeAgain(ctx, info, holder); more > 0 {
			n = more
		}
	}
	if n > 0 || unknown {
		for name, h := range before {
			if holder == protocol.EveryHold || holder == name {
				h.Lose(fault.Forced)
			}
		}
		for name, h := range i.reader.Held(path) { // holds that came meanwhile may have been removed, too
			if before[name] == nil {
				h.Verify()
			}
		}
	}
	if err == nil && n <= 0 && holder != protocol.EveryHold {
		return lockregistry.ErrNotOwner
	}
	return err
}

// removeAgain asks once more for what a former master may have answered: of every hold, for those that were there before, by
// name. Who has come since keeps the permits.
func (i *Inspector) removeAgain(ctx context.Context, before Lock, holder string) (n int64, err error) {
	holders := before.Holders
	switch {
	case holder != protocol.EveryHold:
		holders = []Holder{{Holder: holder}}
	case before.HolderCount > len(holders):
		return 0, fault.AsUnavailable(fault.Late)
	}
	for _, h := range holders {
		more, unknown, err := i.releasePermits(ctx, before.Path, h.Holder)
		switch {
		case err != nil && !unknown:
			return n, fault.AsUnavailable(fault.Late) // that one did nothing; the first one may have ended the hold
		case err != nil:
			return n, err
		}
		n = max(n, more)
	}
	return n, nil
}

// releasePermits ends a hold of a semaphore, or every one. Unknown: the command may have been executed, or may be yet,
// whatever the error is.
func (i *Inspector) releasePermits(ctx context.Context, path, holder string) (n int64, unknown bool, err error) {
	format := protocol.NewPermits(i.reader.Formats, 1, 1)
	release := format.Release(protocol.Release{Key: i.key(path), Value: holder})
	p := i.reader.Calls.CommandWait(ctx, i.reader.Transport.Node(release.Key))
	return i.reader.Transport.Confirmed(&p, &release)
}
