package lockregistry

import (
	"context"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// LockInfo is what Redis knows of a path at one moment: who holds it, and who waits for it.
type LockInfo struct {
	Path string
	Key  string // prefix + ":" + path

	// Kind is "lock" for a plain lock, "readwrite" for a read-write lock, and empty when nobody holds it and nobody waits. It is
	// "too long" for a key whose name has more than 8192 bytes, of which [Registry.Locks] tells no more than the beginning.
	Kind string

	// Layout is that of a plain lock, as its key has it, or, when nobody holds it, of this registry. That of a read-write lock
	// is LayoutRedisson.
	Layout Layout

	Holders     []HolderInfo // the first 100 in no order; one, but for readers
	HolderCount int          // all of them

	Waiters     []WaiterInfo // the first 100 in the order of the queue
	WaiterCount int          // all of them

	// TooLong names what is longer in Redis than this package or its peers make it, "key", "token", "holder",
	// "waiter", or "record". It is not read: of names there is the beginning, and the rest is as if it were not there.
	TooLong []string
}

// HolderInfo is somebody who holds a lock.
type HolderInfo struct {
	Holder string // as it is in the key: its value, or a field of the hash. [Registry.ForceUnlockHolder] takes it
	Label  Label  // of its registry; see [Label.Known]
	Shared bool   // it is a reader

	// Since is when the call that holds the lock asked for it, by the wall clock of its process: for one that waited in the
	// queue, when it began to wait, or to wait anew. It may have been handed from one goroutine to another since. Zero: not
	// known, as for Java and older versions.
	Since time.Time

	// Granted is since when the owner has the lock, by the wall clock of its process, as of a second ago. Zero: not known, as
	// for a hold younger than a second; it has the lock since Since or later.
	Granted time.Time

	Behind int // calls of the same process that wait for the path and are not in Waiters, as of a second ago

	// Renewed is the lease that the holder's process sets anew each third of it, as of a second ago. 0: not known, or not
	// renewed. See Overdue.
	Renewed time.Duration

	Lease time.Duration // what is left of it, if it is not renewed; negative when it has no end
	Kept  bool          // nobody holds the lock any more, and [AtLeast] keeps the path

	// Token is the last fencing token that was drawn for the path; 0: none. They are drawn by the hundred, so that of the
	// present owner is at most 99 less, see [WithFencing].
	Token uint64
}

// Overdue is how late the renewal of the lease is: the process has died, is frozen, or cannot reach Redis. It is 0 while that may
// be chance, for a second or a tenth of the lease, and where it is not known that the holder renews.
func (h HolderInfo) Overdue() time.Duration {
	if late := h.Renewed*2/3 - h.Lease; h.Renewed > 0 && h.Lease >= 0 && late >= max(time.Second, h.Renewed/10) {
		return late
	}
	return 0
}

// WaiterInfo is a call that has a place in the queue of a path. Java, and calls that poll, have none. The place of a process
// that has died goes when its turn comes.
type WaiterInfo struct {
	Registry string    // as in Label
	Label    Label     // see [Label.Known]
	Shared   bool      // it wants to read
	Since    time.Time // since when it has its place, by the server's clock
	Gone     bool      // nobody listens to its channel: its process has died, most likely. False also where that is not known
	Standby  bool      // it waits to lead, see package leader: for long, most likely
	Behind   int       // further calls of the same process that wait for the path, as of a second ago
}

// note adds to what is too long.
func (i *LockInfo) note(what string) {
	if !slices.Contains(i.TooLong, what) {
		i.TooLong = append(i.TooLong, what)
	}
}

// Inspect tells who holds the lock of path, and who waits for it: its plain lock in either layout, or its read-write lock,
// Java's holders included. It reads, in two round trips, and changes nothing, so a user without permission to write may call
// it; docs/permissions.md names the commands. The holders and waiters are those of one moment, the labels of one just after it.
//
// Errors, each within a [*LockError]: [ErrWrongType] when the key is no lock at all, [ErrUnavailable], that of ctx,
// [ErrClosed], bad input such as an empty path, and other ones of Redis.
func (r *Registry) Inspect(ctx context.Context, path string) (LockInfo, error) {
	l := r.newLock(path)
	info, err := r.inspectOne(ctx, l)
	if err != nil {
		return LockInfo{}, l.fail("inspect", err)
	}
	return info, nil
}

func (r *Registry) inspectOne(ctx context.Context, l *Lock) (LockInfo, error) {
	switch {
	case ctx == nil:
		return LockInfo{}, errNilContext
	case l.path() == "":
		return LockInfo{}, errNoPath
	case protocol.Reserved(l.redis.Key):
		return LockInfo{}, errReserved
	}
	if err := l.reg.queues.Stopped(ctx); err != nil {
		return LockInfo{}, err
	}
	infos, errs := r.inspectKeys(ctx, []string{l.redis.Key})
	if errs[0] != nil {
		return LockInfo{}, errs[0]
	}
	if err := r.addRecords(ctx, infos, map[string]told{}); err != nil {
		return LockInfo{}, err
	}
	return infos[0], nil
}

// inspectKeys reads what there is about some keys, without labels.
func (r *Registry) inspectKeys(ctx context.Context, keys []string) ([]LockInfo, []error) {
	found, errs := r.others.reader.Locks(ctx, keys)
	infos := make([]LockInfo, len(keys))
	for i, key := range keys {
		if errs[i] == nil {
			infos[i] = r.infoOf(key, &found[i])
		}
	}
	return infos, errs
}

// infoOf is what inspect.lua tells of a key.
func (r *Registry) infoOf(key string, x *protocol.Inspection) LockInfo {
	info := LockInfo{
		Path: key[len(r.prefix)+1:], Key: key, Kind: x.Kind, Layout: r.Layout(),
		HolderCount: x.HolderCount, WaiterCount: x.WaiterCount, TooLong: x.TooLong,
	}
	switch {
	case x.Stored == protocol.AsString:
		info.Layout = LayoutSpring
	case x.Stored == protocol.AsHash, x.Kind == protocol.KindReadWrite:
		info.Layout = LayoutRedisson
	}
	for _, h := range x.Holders {
		info.Holders = append(info.Holders, HolderInfo{
			Holder: h.Text, Label: Label{Registry: h.Name.Registry}, Shared: h.Shared,
			Since: h.Name.Since, Lease: h.Lease, Kept: h.Name.Kept, Token: h.Token,
		})
	}
	for _, q := range x.Waiters {
		info.Waiters = append(info.Waiters, WaiterInfo{Registry: q.Registry, Shared: q.Shared, Since: q.Since, Gone: q.Gone})
	}
	return info
}
