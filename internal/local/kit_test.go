package local

import (
	"context"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Owners: some are goroutines, others are made by ContextWithOwner.
const (
	anna owner.ID = iota + 1
	bert
	cleo
	dora
	team = owner.Made | 1
	crew = owner.Made | 2
)

// Functions that say why a hold is lost, or that it is not.
func always() fault.Loss { return fault.LeaseOver }
func still() fault.Loss  { return fault.NotLost }

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// tooLate is a context that is done. It lets the waiter's turn come after Wait has seen that the context is done, and before Wait
// takes the mutex.
type tooLate struct {
	context.Context
	turn func()
}

func (c tooLate) Done() <-chan struct{} {
	c.turn()
	return c.Context.Done()
}

// turn is how a waiter was let in; Refused when it was not yet.
func turn(w *Waiter) Admission {
	select {
	case how := <-w.turn:
		return how
	default:
		return Refused
	}
}

// knot makes a loop in the list of waiters at one of them, until the test calls the result: code that walks the queue past that
// waiter never ends.
func knot(w *Waiter) (untie func()) {
	next := w.next
	w.next = w
	return func() { w.next = next }
}

// looksAtNobody fails the test if a function walks a queue that has a knot.
func looksAtNobody(t *testing.T, transitions func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		transitions()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("somebody goes through the whole queue under the mutex")
	}
}

// departs is how an owner left.
func departs(how Departure, _ fault.Loss) Departure { return how }
