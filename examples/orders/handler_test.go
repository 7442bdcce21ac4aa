package orders

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/locktest"
)

// post ships order 42 and returns the status.
func post(t *testing.T, h *Handler) int {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42/ship", nil)
	request.SetPathValue("id", "42")
	response := httptest.NewRecorder()
	h.ServeHTTP(response, request)
	return response.Code
}

func ship(context.Context, string) error { return nil }

func TestShips(t *testing.T) {
	h := &Handler{Locks: locktest.New(t), Ship: ship}
	if got := post(t, h); got != http.StatusNoContent {
		t.Error("status:", got)
	}
}

// The handler waits for a second of fake time, which takes no real time.
func TestAnotherProcessShips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		h := &Handler{Locks: locks, Ship: ship}
		release := locks.HoldElsewhere("42", time.Minute)
		if got := post(t, h); got != http.StatusConflict {
			t.Error("status while another process has the lock:", got)
		}
		release()
		if got := post(t, h); got != http.StatusNoContent {
			t.Error("status once it is released:", got)
		}
	})
}

func TestRedisIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		h := &Handler{Locks: locks, Ship: ship}
		locks.Disconnect()
		if got := post(t, h); got != http.StatusServiceUnavailable {
			t.Error("status:", got)
		}
		locks.Reconnect()
		if got := post(t, h); got != http.StatusNoContent {
			t.Error("status when Redis is back:", got)
		}
	})
}

func TestTheLockIsLost(t *testing.T) {
	locks := locktest.New(t)
	h := &Handler{Locks: locks, Ship: func(ctx context.Context, id string) error {
		locks.Lose(id)
		return ctx.Err() // the lock is lost, so its context has ended
	}}
	if got := post(t, h); got != http.StatusInternalServerError {
		t.Error("status:", got)
	}
}

func TestTwoInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		other := &Handler{Locks: locks.Peer(), Ship: ship}
		h := &Handler{Locks: locks, Ship: func(context.Context, string) error {
			if got := post(t, other); got != http.StatusConflict {
				t.Error("status of the other instance:", got)
			}
			return nil
		}}
		if got := post(t, h); got != http.StatusNoContent {
			t.Error("status:", got)
		}
	})
}

// failing are Locks that only fail.
type failing struct{ err error }

func (f failing) Do(
	context.Context, string, func(context.Context) error, ...lockregistry.LockOption,
) error {
	return f.err
}

func TestTheRegistryIsClosed(t *testing.T) {
	h := &Handler{Locks: failing{lockregistry.ErrClosed}, Ship: ship}
	if got := post(t, h); got != http.StatusServiceUnavailable {
		t.Error("status:", got)
	}
}
