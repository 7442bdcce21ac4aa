package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// sharing makes a client with one connection, which the registry shares with the program.
func sharing(w *kit.World) rueidis.Client {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{w.Server.Addr()}, PipelineMultiplex: -1})
	require.NoError(w, err)
	w.Cleanup(client.Close)
	return client
}

// A program has sent MULTI on the client itself, by mistake. What the server then queues is no grant, no renewal and no release.
func TestTransaction_OnTheSharedConnection(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		client := sharing(w)
		r := w.RegistryOn(client, kit.Polling, lockregistry.WithLease(2*time.Second))
		command := func(words ...string) error {
			return client.Do(w.Context(), client.B().Arbitrary(words...).Build()).Error()
		}
		w.Lock(r.Obtain("first")) // the scripts are known
		w.Unlock(r.Obtain("first"))

		hold, err := r.Acquire(w.Context(), "held")
		require.NoError(w, err)
		require.NoError(w, command("MULTI"))
		_, err = r.Acquire(w.Context(), "42", lockregistry.NoWait())
		require.ErrorContains(w, err, "queued in a transaction")
		require.NotErrorIs(w, err, lockregistry.ErrTaken)
		require.ErrorContains(w, hold.Renew(w.Context(), time.Minute), "queued in a transaction")
		require.Error(w, hold.Release(w.Context()))
		require.NoError(w, command("DISCARD"))
		w.Await("both are free", func() bool { return w.Do("EXISTS", "orders:42", "orders:held") == "0" })

		require.NoError(w, command("MULTI"))
		_, err = r.Acquire(w.Context(), "42", lockregistry.NoWait())
		require.Error(w, err)
		require.NoError(w, command("EXEC"))
		w.Await("what was granted then is removed", func() bool { return w.Do("EXISTS", "orders:42") == "0" })
	})
}

// A program has given back a dedicated connection in the middle of a transaction. The library does not use it: rueidis ends the
// program when a connection subscribes there.
func TestTransaction_OnAConnectionOfThePool(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		client := sharing(w)
		leave := func() {
			require.NoError(w, client.Dedicated(func(c rueidis.DedicatedClient) error {
				// With a context that can end, rueidis would unsubscribe on this connection, and end the program for that.
				return c.Do(context.Background(), c.B().Multi().Build()).Error()
			}))
		}
		for _, way := range []kit.Wakeup{kit.WakeupAuto, kit.WakeupPubSub} {
			r := w.RegistryOn(client, kit.WithWakeup(way))
			w.Do("SET", "orders:42", "java", "PX", "60000")
			leave()
			l, g := r.Obtain("42"), w.Goroutine()
			waits := g.Starts(l)
			w.Await("it waits, and listens", func() bool { return w.Do("EXISTS", "orders:{orders:42}:waiters") == "1" })
			w.Do("DEL", "orders:42")
			require.NoError(w, <-waits)
			require.NoError(w, g.Unlock(l))
			require.NoError(w, r.Close())
		}
	})
}
