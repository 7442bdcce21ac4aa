package lockregistry_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// A server that goes on after a freeze accepts the connections that were being made: they are no better than the old ones.
func TestConnection_AConnectionThatWasMadeDuringAFreeze(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := w.registryOn(f.client(oneConnection), polling).Obtain("42")
		w.lock(l)
		w.unlock(l) // the server knows the scripts from now on
		f.all("HELLO", slow(4*time.Second))
		f.next("obtain", slow(700*time.Millisecond))
		w.fails(l.Lock(w.Context()), lockregistry.ErrUnavailable, "lock", "orders:42")
		f.Forget()
		made := f.count("HELLO")
		w.pass(5 * time.Second)
		w.lock(l)
		w.unlock(l)
		require.Greater(w, f.count("HELLO"), made, "another connection is made")
	})
}

// A grant that came late is not confirmed over the connection that was late, even if no other is to be had.
func TestConnection_ALateGrantWithoutAnotherConnection(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		client := f.client(oneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		_, giveBack := client.Dedicate()
		l := w.registryOn(client, polling).Obtain("42")
		w.lock(l)
		w.unlock(l)
		f.next("obtain", slow(700*time.Millisecond))
		w.fails(l.Lock(w.Context()), lockregistry.ErrUnavailable, "lock", "orders:42")
		w.awaitGone("orders:42")
		giveBack()
		w.settle() // else the connection that was waited for is made while the server is closed
	})
}
