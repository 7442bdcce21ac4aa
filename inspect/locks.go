package inspect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// reader reads what there is about locks.
type reader struct{ seam.Parts }

// Lock tells who holds the lock with a key, and who waits for it.
func (r *reader) Lock(ctx context.Context, key string) (Lock, error) {
	infos, errs := r.infos(ctx, []string{key})
	if errs[0] != nil {
		return Lock{}, errs[0]
	}
	if err := r.addRecords(ctx, infos, map[string]record{}); err != nil {
		return Lock{}, err
	}
	return infos[0], nil
}

// infos are what there is about some keys, without labels.
func (r *reader) infos(ctx context.Context, keys []string) ([]Lock, []error) {
	found, errs := r.Locks(ctx, keys)
	infos := make([]Lock, len(keys))
	for i, key := range keys {
		if errs[i] == nil {
			infos[i] = r.infoOf(key, &found[i])
		}
	}
	return infos, errs
}

// infoOf is what inspect.lua tells of a key.
func (r *reader) infoOf(key string, x *protocol.Inspection) Lock {
	info := Lock{
		Path: key[len(r.Prefix)+1:], Key: key, Kind: observe.Kind(x.Kind), Layout: r.Layout,
		Permits: x.Number, HolderCount: x.HolderCount, WaiterCount: x.WaiterCount, TooLong: x.TooLong,
	}
	switch {
	case x.Stored == protocol.AsString:
		info.Layout = observe.LayoutSpring
	case x.Stored == protocol.AsHash, x.Kind == protocol.KindReadWrite:
		info.Layout = observe.LayoutRedisson
	}
	for _, h := range x.Holders {
		info.Holders = append(info.Holders, Holder{
			Holder: h.Text, Label: observe.Label{Registry: h.Name.Registry}, Shared: h.Shared, Permits: h.Permits,
			Since: h.Name.Since, Lease: h.Lease, Kept: h.Name.Kept, Token: h.Token,
		})
	}
	for _, q := range x.Waiters {
		info.Waiters = append(info.Waiters, Waiter{
			Registry: q.Registry, Shared: q.Shared, Permits: q.Permits, Since: q.Since, Gone: q.Gone,
		})
	}
	return info
}

// listing is an inspector's part of a pass: the locks that are found for it.
type listing struct {
	of      int // the inspector's number
	reader  *reader
	ctx     context.Context
	yield   func(Lock) bool
	yielded map[string]bool   // keys
	records map[string]record // by registry
	infos   []Lock            // yet to be yielded
	failed  bool              // nothing more is yielded
}

// known are the keys of locks in the records of listed registries. What fails leaves less known: the SCAN tells of it.
func (l *listing) known() (keys []string) {
	registries, err := keyspace.Listed(l.ctx, l.reader.Reader)
	if err != nil {
		return nil
	}
	add := func(path string) { keys = append(keys, l.reader.Prefix+":"+path) }
	_ = l.reader.Records(l.ctx, registries, func(i int, found presence.Record, from presence.Identity) {
		if from.Registry != "" { // else there is no record any more
			l.records[registries[i]] = record{label: observe.Label(from), locks: found.Locks, silent: found.Silent()}
		}
		for _, lock := range found.Locks {
			add(lock.Path)
		}
		for _, wait := range found.Waits {
			add(wait.Path)
			for _, path := range wait.Holds {
				add(path)
			}
		}
	})
	slices.Sort(keys)
	return slices.DeleteFunc(slices.Compact(keys), func(key string) bool {
		lock, ok := protocol.LockOf(l.reader.Prefix, key)
		return !ok || lock != key
	})
}

// errEnough: the caller wants no more.
var errEnough = errors.New("the loop was left")

// tellLong yields keys whose names are too long; nothing else is read of them.
func (l *listing) tellLong(names []string) error {
	for _, key := range names {
		if l.yielded[key] {
			continue
		}
		l.yielded[key] = true
		info := Lock{
			Path: strings.TrimPrefix(key, l.reader.Prefix+":"), Key: key, Kind: observe.KindTooLong, TooLong: []string{"key"},
		}
		if !l.yield(info) {
			return errEnough
		}
	}
	return nil
}

// read reads what there is about the locks with some keys.
func (l *listing) read(keys []string) error {
	found, errs := l.reader.infos(l.ctx, keys)
	for i, info := range found {
		if errs[i] != nil && !errors.Is(errs[i], fault.WrongType) {
			return errs[i]
		}
		if errs[i] == nil && isLock(&info) && !l.yielded[info.Key] {
			l.yielded[info.Key] = true
			l.infos = append(l.infos, info)
		}
	}
	return l.reader.addRecords(l.ctx, l.infos, l.records)
}

// tell tells the caller of the locks that were read.
func (l *listing) tell() error {
	infos := l.infos
	l.infos = nil
	for _, info := range infos {
		if !l.yield(info) {
			return errEnough
		}
	}
	return nil
}

// isLock reports whether the key is certainly a lock that is held or waited for: other strings and hashes may have the prefix,
// too.
func isLock(i *Lock) bool {
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

// record is the content of a registry's record; the zero value if there is no record.
type record struct {
	label  observe.Label
	locks  []presence.Lock
	silent time.Duration // see presence.Record.Silent
	nested bool          // the registry's prefix is longer than the reader's
}

// addRecords adds to infos what the records of the holders' and waiters' registries say. Known has the records that were read
// before.
func (r *reader) addRecords(ctx context.Context, infos []Lock, known map[string]record) error {
	known[r.Label.Registry] = record{label: r.Label}
	var registries []string
	keys := map[string]string{} // by registry of this library: one of those that it holds or waits for
	want := func(registry, key string, ours bool) {
		if _, ok := known[registry]; !ok && !protocol.IsCut(registry) {
			known[registry] = record{}
			registries = append(registries, registry)
			if ours {
				keys[registry] = key
			}
		}
	}
	for i := range infos {
		for k := range infos[i].Holders {
			h := &infos[i].Holders[k]
			want(h.Label.Registry, infos[i].Key, !h.Since.IsZero())
		}
		for k := range infos[i].Waiters {
			want(infos[i].Waiters[k].Registry, infos[i].Key, true)
		}
	}
	err := r.Records(ctx, registries, func(i int, found presence.Record, from presence.Identity) {
		known[registries[i]] = record{label: observe.Label(from), locks: found.Locks, silent: found.Silent()}
		if from.Registry != "" {
			delete(keys, registries[i])
		}
	})
	if err == nil {
		err = r.addNested(ctx, keys, known)
	}
	if err != nil {
		return err
	}
	for i := range infos {
		r.addRecord(&infos[i], known)
	}
	r.addPulses(ctx, infos, known)
	return nil
}

// addNested looks for the records of registries under longer prefixes. A registry with the prefix "shop:eu" has the lock
// "shop:eu:42", which the prefix "shop" has, too, as "eu:42", but no record under "shop". Its prefix is the beginning of each of
// its keys: so keys, which has one of each registry, is enough.
func (r *reader) addNested(ctx context.Context, keys map[string]string, known map[string]record) error {
	registries := map[string][]string{} // by longer prefix
	for registry, key := range keys {
		for i := len(r.Prefix) + 1; i < len(key); i++ {
			if key[i] == ':' {
				registries[key[:i]] = append(registries[key[:i]], registry)
			}
		}
	}
	var mu sync.Mutex // guards known and failure
	var failure error
	var reads sync.WaitGroup // at once, since there may be as many prefixes as keys: the client sends them in one pipeline
	for prefix, some := range registries {
		reads.Go(func() {
			longer := readonly.Reader{
				Prefix: prefix, Sharded: r.Sharded, Cluster: r.Cluster, Clock: r.Clock, Client: r.Client,
				Transport: r.Transport, Calls: r.Calls, Apart: r.Apart,
			}
			err := longer.Records(ctx, some, func(i int, found presence.Record, from presence.Identity) {
				if from.Registry == "" {
					return
				}
				for k := range found.Locks {
					found.Locks[k].Path = prefix[len(r.Prefix)+1:] + ":" + found.Locks[k].Path
				}
				mu.Lock()
				known[some[i]] = record{observe.Label(from), found.Locks, found.Silent(), true}
				mu.Unlock()
			})
			if err != nil && !readonly.Forbidden(err) { // the user may be permitted to read some prefixes only
				mu.Lock()
				failure = err
				mu.Unlock()
			}
		})
	}
	reads.Wait()
	return failure
}

// addRecord puts what is known into a lock's information.
func (r *reader) addRecord(info *Lock, known map[string]record) {
	counted := map[string]bool{}
	of := func(registry string) (label observe.Label, locks []presence.Lock, behind int, first time.Time) {
		label = known[registry].label
		if presence.Identity(label).Unread() && !slices.Contains(info.TooLong, "record") {
			info.TooLong = append(info.TooLong, "record")
		}
		locks = r.recorded(info.Path, registry, known)
		for _, lock := range locks {
			if !counted[registry] {
				behind += lock.Waiting
			}
			if !counted[registry] && lock.Oldest != 0 && (first.IsZero() || protocol.Time(lock.Oldest).Before(first)) {
				first = protocol.Time(lock.Oldest)
			}
		}
		counted[registry] = true
		return label, locks, behind, first
	}
	for k := range info.Holders {
		h := &info.Holders[k]
		registry := h.Label.Registry
		var locks []presence.Lock
		h.Label, locks, h.Behind, h.BehindSince = of(registry)
		for _, lock := range locks {
			if lock.Hold != "" && strings.TrimSuffix(h.Holder, ":write") == registry+":"+lock.Hold {
				h.Granted, h.Renewed = protocol.Time(lock.Since), time.Duration(lock.Lease)*time.Millisecond
			}
		}
	}
	for k := range info.Waiters {
		w := &info.Waiters[k]
		var locks []presence.Lock
		w.Label, locks, w.Behind, w.BehindSince = of(w.Registry)
		w.Standby = slices.ContainsFunc(locks, func(l presence.Lock) bool { return l.Standby })
		w.Gone = w.Gone && !known[w.Registry].nested // it listens to a channel of its own prefix, which was not asked about
	}
}

// recorded returns what a registry's record says about a path. For this registry it computes that, since its record may not be
// written yet.
func (r *reader) recorded(path, registry string, known map[string]record) (all []presence.Lock) {
	if registry == r.Label.Registry {
		return r.Own(path)
	}
	for _, lock := range known[registry].locks {
		if lock.Path == path {
			all = append(all, lock)
		}
	}
	return all
}
