package queue

import (
	"context"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Package cleanup removes what calls and holds have left in Redis. This file makes its removals from holds.

// watchAtLeast is the shortest time for which a removal waits for a late grant.
const watchAtLeast = time.Minute

// removal returns the removal for an ended hold whose key was not removed.
func (p *Path) removal(h *hold.Hold) cleanup.Removal {
	r := p.remains(h)
	// A writer's field can outlive its lease: a reader of the same owner keeps the hash.
	r.MayArrive = h.MayArrive() || p.isSide()
	return r
}

// remains returns the removal for a hold whose late grant may still arrive.
func (p *Path) remains(h *hold.Hold) cleanup.Removal { return p.removalOf(h.Remains()) }

// removalOf returns the removal for what may be left of a hold, including a late grant.
func (p *Path) removalOf(r hold.Remains) cleanup.Removal {
	format := p.anchor.Format // the same for all permits, so that two removals of one hold are equal
	if p.isSide() {
		format = p.Format
	}
	return cleanup.Removal{
		Path:      p,
		Format:    format,
		Key:       p.Key,
		Value:     r.Value,
		Number:    p.all.numberIn(r.Value),
		Lease:     r.Longest,
		Expired:   p.Clock.Now().Add(r.Longest).Add(lease.Margin(r.Longest)),
		Keep:      r.Kept, // mutant: kept path let go
		MayArrive: true,
		Watch:     max(r.Term, watchAtLeast),
	}
}

// RemoveLost removes in the background the key of a lost hold that has ended.
func (p *Path) RemoveLost(h *hold.Hold) { p.all.Cleaner.Remove(p.removal(h), nil) }

// Clear removes in the background what may be left of a lost hold.
func (p *Path) Clear(r hold.Remains) {
	left := p.removalOf(r)
	left.MayArrive = false
	p.all.Cleaner.Remove(left, nil)
}

// RemoveUnclaimed removes in the background a hold that belongs to no call: it was granted after its call had ended, or it was
// released before a failover and may be back.
func (p *Path) RemoveUnclaimed(number string) {
	r := p.removalOf(hold.Remains{Value: p.all.Values + number, Longest: p.all.Lease, Term: p.all.Lease})
	r.MayArrive = false
	r.Keep = p.keptUntil(number)
	p.all.Cleaner.Expedite(r)
}

// cleanUp removes in the background what a call has left. Once the registry is closed, cleanUp sends the removals itself, each
// once and all at the same time: there may be thousands, and the call must end.
func (all *Shared) cleanUp(left ...cleanup.Removal) {
	left = slices.DeleteFunc(left, func(m cleanup.Removal) bool { return all.Cleaner.Remove(m, nil) })
	if len(left) == 0 {
		return
	}
	limit := func(m cleanup.Removal) time.Duration { // little time, since no call waits for it
		return all.Transport.RoundTrip(m.Key).Plus(ReleaseGrace)
	}
	all.Transport.AwaitAbandoned(limit(left[0]))
	_ = Each(left, func(m cleanup.Removal) error {
		if !all.removeOnce(transport.Wait{Ctx: context.Background(), Limit: limit(m)}, m) {
			return fault.Unavailable
		}
		return nil
	})
}

// removeOnce sends a removal now, and reports whether it was confirmed.
func (all *Shared) removeOnce(w transport.Wait, m cleanup.Removal) (gone bool) {
	w.Lease = m.Lease
	c := m.Call(all.Transport.Clock.Now())
	reply := all.Transport.Do(&w, &c)
	return reply.Error() == nil && !reply.Late
}
