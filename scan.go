package lockregistry

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/google/uuid"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/observe"
)

// Locks goes through the paths under the registry's prefix that somebody holds or waits for, in no order, each once, with what
// [Registry.Inspect] tells of it. It finds them by SCAN, on each master of a cluster: one that is locked all the time is among
// them, one that is locked or released meanwhile may be. A key that has no lock's content is left out, and so is a plain lock
// whose holder is named neither as this package, nor as Spring, nor as Redisson name theirs.
//
// SCAN goes through all keys of the database, 500 in a call. The first 250 calls follow one another, enough for 100 000 keys
// in a fraction of a second. In a database with more, the further calls are spread so that they take 5 % of the server's time
// at most. Locks are told as they are found. The caller should wait between passes, too. SCAN
// shows a user the names of all keys, whatever the key patterns of the user's access list.
//
// An error is the last thing that it gives, within a [*LockError]: that of ctx, [ErrUnavailable], [ErrClosed], or another one
// of Redis. To stop sooner, break out of the loop.
func (r *Registry) Locks(ctx context.Context) iter.Seq2[observe.LockInfo, error] {
	return func(yield func(observe.LockInfo, error) bool) {
		l := listing{reg: r, ctx: ctx, yield: yield, yielded: map[string]bool{}, told: map[string]told{}}
		pick := func(key string) (string, bool) { return protocol.LockOf(r.prefix, key) }
		err := errNilContext
		if ctx != nil {
			err = r.others.reader.Scan(ctx, everyLock, &scan.Pass{Pick: pick, Read: l.read, Tell: l.tell, TooLong: l.tellLong})
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(observe.LockInfo{}, &LockError{Op: "locks", Key: r.prefix + ":*", Err: r.transport.Farthest().Unsupported(err)})
		}
	}
}

// listing is one loop over [Registry.Locks].
type listing struct {
	reg     *Registry
	ctx     context.Context
	yield   func(observe.LockInfo, error) bool
	yielded map[string]bool    // keys
	told    map[string]told    // by registry
	infos   []observe.LockInfo // yet to be yielded
}

const everyLock = ":*"

// errEnough: the caller wants no more.
var errEnough = errors.New("the loop was left")

// tellLong tells the caller of keys with names that are too long. Nothing more is known of them.
func (l *listing) tellLong(names []string) error {
	for _, key := range names {
		if l.yielded[key] {
			continue
		}
		l.yielded[key] = true
		info := observe.LockInfo{
			Path: strings.TrimPrefix(key, l.reg.prefix+":"), Key: key, Kind: observe.KindTooLong, TooLong: []string{"key"},
		}
		if !l.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// read reads what there is about the locks with some keys.
func (l *listing) read(keys []string) error {
	found, errs := l.reg.inspectKeys(l.ctx, keys)
	for i, info := range found {
		if errs[i] != nil && !errors.Is(errs[i], ErrWrongType) {
			return errs[i]
		}
		if errs[i] == nil && isLock(&info) && !l.yielded[info.Key] {
			l.yielded[info.Key] = true
			l.infos = append(l.infos, info)
		}
	}
	return l.reg.addRecords(l.ctx, l.infos, l.told)
}

// tell tells the caller of the locks that were read.
func (l *listing) tell() error {
	infos := l.infos
	l.infos = nil
	for _, info := range infos {
		if !l.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// isLock tells whether somebody holds the lock or waits for it, and that it is one for certain: other strings and hashes may
// have the prefix, too.
func isLock(i *observe.LockInfo) bool {
	if i.WaiterCount > 0 {
		return true
	}
	certain := false
	for _, h := range i.Holders {
		if protocol.IsCut(h.Holder) {
			continue
		}
		certain = true
		registry := protocol.ParseName(h.Holder).Registry
		if n := len(registry) - uuidLength; n < 0 || n > 0 && registry[n-1] != ':' || uuid.Validate(registry[n:]) != nil {
			return false
		}
	}
	return certain || len(i.Holders) == 0 && i.HolderCount > 0
}

const uuidLength = 36
