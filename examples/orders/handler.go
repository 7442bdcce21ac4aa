// Package orders is an HTTP handler that works under a lock, and its tests.
package orders

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/lockregistry/lockregistry"
)

// Locks is what this package uses of a lockregistry.Registry.
type Locks interface {
	Do(ctx context.Context, path string, fn func(context.Context) error, opts ...lockregistry.LockOption) error
}

// Handler ships orders, each in one process at a time.
type Handler struct {
	Locks Locks
	Ship  func(ctx context.Context, id string) error
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := h.Locks.Do(r.Context(), id, func(ctx context.Context) error {
		return h.Ship(ctx, id)
	}, lockregistry.Wait(time.Second))
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, lockregistry.ErrClosed): // first: an error may match several
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	case errors.Is(err, lockregistry.ErrTaken):
		http.Error(w, "the order is being shipped", http.StatusConflict)
	default: // ErrLockLost among them: another process may have shipped it, too
		slog.ErrorContext(r.Context(), "shipping failed", "order", id, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}
