package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/presence"
)

// pulse is what the renewed holds of a registry say about its process. A record does not list all holds, and a hold that is not
// renewed says nothing by itself. But one process renews all holds of a registry: if one of them is overdue, and none was renewed
// since that was due, then the process has most likely stood still since, for all of its holds. If another one was renewed since,
// only the overdue hold has trouble.
type pulse struct {
	seen bool
	last time.Duration // since the latest renewal or grant among them
	late time.Duration // how late the least overdue of them is; 0: none is
}

// add takes a hold into account.
func (p *pulse) add(h *Holder) {
	if h.Renewed == 0 || h.Lease < 0 || h.Kept {
		return
	}
	if since := h.Renewed - h.Lease; !p.seen || since < p.last {
		p.last = since
	}
	p.seen = true
	if late := h.Overdue(); late > 0 && (p.late == 0 || late < p.late) {
		p.late = late
	}
}

// silent returns for how long the process has renewed nothing, if something is overdue; else 0.
func (p *pulse) silent() time.Duration {
	if p.late == 0 || p.last < p.late {
		return 0
	}
	return p.last
}

// addPulses marks the holders whose processes renew nothing, or do not write their records. Where the locks in infos do not show
// it, some that the record lists are read for that; if that fails, less is known.
func (r *reader) addPulses(ctx context.Context, infos []Lock, known map[string]record) {
	pulses := map[string]*pulse{}
	var probed []string
	forHolders(infos, func(h *Holder) {
		if pulses[h.Label.Registry] == nil {
			pulses[h.Label.Registry] = &pulse{}
		}
		pulses[h.Label.Registry].add(h)
	})
	asked := map[string]bool{r.Label.Registry: true} // this process is alive
	forHolders(infos, func(h *Holder) {
		registry := h.Label.Registry
		if h.Renewed > 0 || h.Kept || asked[registry] || pulses[registry].silent() > 0 {
			return
		}
		asked[registry] = true
		for _, lock := range probes(known[registry].locks) {
			probed = append(probed, r.Prefix+":"+lock.Path)
		}
	})
	if len(probed) > 0 {
		slices.Sort(probed)
		others, errs := r.infos(ctx, slices.Compact(probed))
		for i := range others {
			if errs[i] == nil {
				r.addRecord(&others[i], known)
			}
		}
		forHolders(others, func(h *Holder) {
			if p := pulses[h.Label.Registry]; p != nil {
				p.add(h)
			}
		})
	}
	forHolders(infos, func(h *Holder) {
		if !h.Kept {
			h.Silent = max(pulses[h.Label.Registry].silent(), known[h.Label.Registry].silent)
		}
	})
}

// forHolders calls do with the holders of some locks that have said who they are.
func forHolders(infos []Lock, do func(h *Holder)) {
	for i := range infos {
		for k := range infos[i].Holders {
			if h := &infos[i].Holders[k]; h.Label.Known() {
				do(h)
			}
		}
	}
}

// probes chooses renewed locks of a record, of different leases: the shortest is overdue first, the longest stays longest.
func probes(locks []presence.Lock) []presence.Lock {
	locks = slices.DeleteFunc(slices.Clone(locks), func(l presence.Lock) bool { return l.Hold == "" || l.Lease <= 0 })
	slices.SortFunc(locks, func(a, b presence.Lock) int {
		return cmp.Or(cmp.Compare(a.Lease, b.Lease), strings.Compare(a.Path, b.Path))
	})
	if n := len(locks); n > 3 {
		return []presence.Lock{locks[0], locks[n/2], locks[n-1]}
	}
	return locks
}
