package hold

import (
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// bound returns until when AtMost lets the key live, for an owner that got the hold at since; 0: as long as it is renewed. The
// caller holds the mutex.
func (h *Hold) bound(since clock.Instant) clock.Instant {
	if most := h.extra().atMost; most > 0 {
		return since.Add(most)
	}
	return 0
}

// longLeases is after how many leases sayLong logs a hold.
const longLeases = 10

// sayLong logs that a renewed hold is held for long, once for each owner.
func (h *Hold) sayLong(now clock.Instant) {
	h.mu.Lock()
	held := h.had.owned.Until(now)
	says := !h.leads && !h.extra().unlogged && h.lease.Outlasts(now, held, longLeases)
	if says {
		h.own().unlogged = true
	}
	h.mu.Unlock()
	if says {
		h.path.Log(slog.LevelWarn, "a lock is held for long", slog.String("key", h.path.Key), slog.Duration("held", held))
	}
}
