package hold

import (
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// bound is until when the key may live at most for an owner that has the hold since a time; 0: for as long as it is renewed. The
// caller holds the mutex.
func (h *Hold) bound(since clock.Instant) clock.Instant {
	if most := h.extra().atMost; most > 0 {
		return since.Add(most)
	}
	return 0
}

// longLeases is after how many leases it is logged that a hold is held for long.
const longLeases = 10

// sayLong logs that a renewed hold is held for long, once for each owner.
func (h *Hold) sayLong(now clock.Instant) {
	h.mu.Lock()
	held := h.had.owned.Until(now)
	says := !h.leads && h.lease.Fresh(now) && !h.extra().quiet && held >= clock.Times(longLeases, h.lease.Term.Length)
	if says {
		h.own().quiet = true
	}
	h.mu.Unlock()
	if says {
		h.path.Log(slog.LevelWarn, "a lock is held for long", slog.String("key", h.path.Key), slog.Duration("held", held))
	}
}
