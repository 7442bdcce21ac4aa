package lockregistry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// A call is told late that it has a ticket. It was granted the lock in between, and that grant is over when it asks again: the
// message says nothing about what the call has then.
func TestQueue_TheGrantOfATicketThatIsToldLate(t *testing.T) {
	realWorlds(t, func(w *world) {
		const lease = 750 * time.Millisecond // so what takes more than a third of it is late, and no server suspect yet
		owner, next := w.registry(lockregistry.WithHandoff(0)).Obtain("42"), w.registry().Obtain("42")
		w.lock(owner)
		m := w.joins(w.Context()) // it listens from now on
		w.unlock(owner)
		require.NoError(w, <-m.result)
		require.NoError(w, m.unlock(m.lock))
		w.known(m.reg)
		w.lock(owner)
		arrives := make(chan struct{})
		m.net.next("obtain", delivered, slow(450*time.Millisecond), heldUp(arrives))
		m.waits(w.Context(), lockregistry.Lease(lease))
		w.unlock(owner) // to the ticket
		w.awaitGone(theKey)
		w.lock(next)
		close(arrives)
		w.await("another ticket", func() bool { return w.tickets() == 1 })
		<-time.After(50 * time.Millisecond)
		w.pending(m.result)
		w.unlock(next)
		require.NoError(w, <-m.result)
		require.NoError(w, m.unlock(m.lock))
	})
}
