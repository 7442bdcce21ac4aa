package lockregistry

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// told is what a registry says of itself; the zero value where there is no record.
type told struct {
	label observe.Label
	locks []presence.Lock
}

// addRecords puts in what the registries of holders and waiters say of themselves. Known is what was read before.
func (r *Registry) addRecords(ctx context.Context, infos []observe.LockInfo, known map[string]told) error {
	own := r.others.label
	known[own.Registry] = told{label: own}
	var registries []string
	want := func(registry string) {
		if _, ok := known[registry]; !ok && !protocol.IsCut(registry) {
			known[registry] = told{}
			registries = append(registries, registry)
		}
	}
	for i := range infos {
		for k := range infos[i].Holders {
			want(infos[i].Holders[k].Label.Registry)
		}
		for k := range infos[i].Waiters {
			want(infos[i].Waiters[k].Registry)
		}
	}
	err := r.others.reader.Records(ctx, registries, func(i int, record presence.Record, from presence.Identity) {
		known[registries[i]] = told{observe.Label(from), record.Locks}
	})
	if err != nil {
		return err
	}
	for i := range infos {
		r.addTold(&infos[i], known)
	}
	return nil
}

// addTold puts what is known into a lock's information.
func (r *Registry) addTold(info *observe.LockInfo, known map[string]told) {
	counted := map[string]bool{}
	of := func(registry string) (label observe.Label, locks []presence.Lock, behind int) {
		label = known[registry].label
		if presence.Identity(label).Unread() {
			note(info, "record")
		}
		locks = r.toldOf(info.Path, registry, known)
		for _, lock := range locks {
			if !counted[registry] {
				behind += lock.Waiting
			}
		}
		counted[registry] = true
		return label, locks, behind
	}
	for k := range info.Holders {
		h := &info.Holders[k]
		registry := h.Label.Registry
		var locks []presence.Lock
		h.Label, locks, h.Behind = of(registry)
		for _, lock := range locks {
			if lock.Hold != "" && strings.TrimSuffix(h.Holder, ":write") == registry+":"+lock.Hold {
				h.Granted, h.Renewed = protocol.Time(lock.Since), time.Duration(lock.Lease)*time.Millisecond
			}
		}
	}
	for k := range info.Waiters {
		w := &info.Waiters[k]
		var locks []presence.Lock
		w.Label, locks, w.Behind = of(w.Registry)
		w.Standby = slices.ContainsFunc(locks, func(l presence.Lock) bool { return l.Standby })
	}
}

// toldOf is what a registry says of a path. This one's own record may be yet to be written.
func (r *Registry) toldOf(path, registry string, known map[string]told) (all []presence.Lock) {
	if registry == r.others.label.Registry {
		for l := range r.locksOf(path) {
			if is, lasts := r.others.presence.describe(l, r.clock.Now()); lasts {
				all = append(all, is)
			}
		}
		return all
	}
	for _, lock := range known[registry].locks {
		if lock.Path == path {
			all = append(all, lock)
		}
	}
	return all
}
