package page

import "time"

// WithPatience is how long a write may take.
func WithPatience(d time.Duration) Option {
	return func(h *Handler) error { h.patience = d; return nil }
}

// Streams is how many there are.
func (h *Handler) Streams() int {
	h.feed.mu.Lock()
	defer h.feed.mu.Unlock()
	return len(h.feed.streams)
}

var PauseAfter = pauseAfter
