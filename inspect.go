package lockregistry

import (
	"context"
	"slices"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// note adds to what is too long.
func note(i *observe.LockInfo, what string) {
	if !slices.Contains(i.TooLong, what) {
		i.TooLong = append(i.TooLong, what)
	}
}

// Inspect tells who holds the lock of path, and who waits for it: its plain lock in either layout, Java's holders included, its
// read-write lock, or its semaphore. It reads, in two round trips, and changes nothing, so a user without permission to write
// may call it: scripts that only read (EVALSHA_RO, EVAL_RO). The holders and waiters are those of one moment, the labels of one
// just after it.
//
// Errors, each within a [*LockError]: [ErrWrongType] when the key is no lock at all, [ErrUnavailable], that of ctx,
// [ErrClosed], bad input such as an empty path, and other ones of Redis.
func (r *Registry) Inspect(ctx context.Context, path string) (observe.LockInfo, error) {
	l := r.newLock(path)
	info, err := r.inspectOne(ctx, l)
	if err != nil {
		return observe.LockInfo{}, l.fail("inspect", err)
	}
	return info, nil
}

func (r *Registry) inspectOne(ctx context.Context, l *Lock) (observe.LockInfo, error) {
	switch {
	case ctx == nil:
		return observe.LockInfo{}, errNilContext
	case l.path() == "":
		return observe.LockInfo{}, errNoPath
	case protocol.Reserved(l.redis.Key):
		return observe.LockInfo{}, errReserved
	}
	if err := l.reg.queues.Stopped(ctx); err != nil {
		return observe.LockInfo{}, err
	}
	infos, errs := r.inspectKeys(ctx, []string{l.redis.Key})
	if errs[0] != nil {
		return observe.LockInfo{}, errs[0]
	}
	if err := r.addRecords(ctx, infos, map[string]told{}); err != nil {
		return observe.LockInfo{}, err
	}
	return infos[0], nil
}

// inspectKeys reads what there is about some keys, without labels.
func (r *Registry) inspectKeys(ctx context.Context, keys []string) ([]observe.LockInfo, []error) {
	found, errs := r.others.reader.Locks(ctx, keys)
	infos := make([]observe.LockInfo, len(keys))
	for i, key := range keys {
		if errs[i] == nil {
			infos[i] = r.infoOf(key, &found[i])
		}
	}
	return infos, errs
}

// infoOf is what inspect.lua tells of a key.
func (r *Registry) infoOf(key string, x *protocol.Inspection) observe.LockInfo {
	info := observe.LockInfo{
		Path: key[len(r.prefix)+1:], Key: key, Kind: observe.Kind(x.Kind), Layout: r.layout,
		Permits: x.Number, HolderCount: x.HolderCount, WaiterCount: x.WaiterCount, TooLong: x.TooLong,
	}
	switch {
	case x.Stored == protocol.AsString, x.Kind == protocol.KindSemaphore:
		info.Layout = LayoutSpring
	case x.Stored == protocol.AsHash, x.Kind == protocol.KindReadWrite:
		info.Layout = LayoutRedisson
	}
	for _, h := range x.Holders {
		info.Holders = append(info.Holders, observe.HolderInfo{
			Holder: h.Text, Label: observe.Label{Registry: h.Name.Registry}, Shared: h.Shared, Permits: h.Permits,
			Since: h.Name.Since, Lease: h.Lease, Kept: h.Name.Kept, Token: h.Token,
		})
	}
	for _, q := range x.Waiters {
		info.Waiters = append(info.Waiters, observe.WaiterInfo{
			Registry: q.Registry, Shared: q.Shared, Permits: q.Permits, Since: q.Since, Gone: q.Gone,
		})
	}
	return info
}
