package faults_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Other users of the client, its connections and its pool must not harm locks, and locks must not harm them.

// When the pool has only old connections, the search for a new one ends, and gives them back.
func TestConnection_APoolOfOldConnections(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		f.Fate("CLIENT", aged(60))
		client := f.Client(kit.OneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 2 })
		r := w.RegistryOn(client)
		w.Known(r)
		singleSections(f, r, 100)
		require.NotZero(w, f.Count("CLIENT"))
		w.Pass(2 * time.Second)
		got := make(chan func(), 2)
		for range 2 {
			go func() {
				_, back := client.Dedicate()
				got <- back
			}()
		}
		w.Settle()
		require.Len(w, got, 2)
		(<-got)()
		(<-got)()
	})
}

// Replicas may be waited for on a connection on which the application has selected another database.
func TestConnection_ReplicasOnAConnectionOfAnotherDatabase(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		client := w.Client()
		app, back := client.Dedicate()
		require.NoError(w, app.Do(w.Context(), app.B().Arbitrary("SELECT", "5").Build()).Error())
		back()
		l := w.RegistryOn(client, lockregistry.WithReplicas(1, 4*time.Second)).Obtain("42")
		w.Lock(l)
		require.Equal(w, "1", w.Do("EXISTS", kit.TheKey))
		w.Unlock(l)
		w.IsFree(kit.TheKey)
	})
}

// A master that cannot save refuses PING, which rueidis sends behind UNSUBSCRIBE when a connection goes back to its pool.
func TestConnection_ReplicasOfAMasterThatCannotSave(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		l := w.Replicated().Obtain("42")
		w.Lock(l)
		w.Unlock(l)
		ends := kit.PassingFaults["MISCONF"](w.World)
		for range 5 {
			_, err := l.TryLock(w.Context())
			w.Fails(err, lockregistry.ErrUnavailable, "trylock", kit.TheKey)
		}
		ends()
		w.Lock(l, lockregistry.Wait(time.Minute))
		w.Unlock(l)
	})
}

// The client makes one connection for all that want it. The call that asked first may give up meanwhile: no other call fails,
// or is told that its context has ended.
func TestConnection_AConnectionThatSomebodyElseGivesUp(t *testing.T) {
	t.Parallel()
	for name, byCall := range map[string]bool{"a call": true, "the application": false} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				var slow atomic.Bool
				client := w.ClientWith(func(ctx context.Context) (net.Conn, error) {
					if slow.Load() {
						select {
						case <-ctx.Done():
							return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
						case <-time.After(20 * time.Millisecond):
						}
					}
					return f.Dial(ctx)
				}, kit.OneConnection, func(o *rueidis.ClientOption) { o.DisableRetry = true })
				r := w.RegistryOn(client)
				singleSections(f, r, 20)
				slow.Store(true)
				f.ReconnectNow()
				w.Settle()
				ctx, cancel := context.WithTimeout(w.Context(), 5*time.Millisecond)
				defer cancel()
				other := make(chan error, 1)
				go func() {
					if !byCall {
						other <- client.Do(ctx, client.B().Get().Key("x").Build()).Error()
						return
					}
					_, err := r.Obtain("other").TryLock(ctx)
					other <- err
				}()
				w.Settle()
				_, err := r.Obtain("42").TryLock(w.Context())
				require.ErrorIs(w, <-other, context.DeadlineExceeded)
				if byCall {
					require.NoError(w, err)
				} else {
					require.ErrorIs(w, err, lockregistry.ErrUnavailable)
					require.NotErrorIs(w, err, context.DeadlineExceeded)
				}
			})
		})
	}
}

// Connections that were being made when a server froze are accepted when it resumes: they are no better than the old ones.
func TestConnection_AConnectionThatWasMadeDuringAFreeze(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := w.RegistryOn(f.Client(kit.OneConnection), kit.Polling).Obtain("42")
		w.Lock(l)
		w.Unlock(l) // the server knows the scripts from here on
		f.Fate("HELLO", kit.SlowReply(4*time.Second))
		f.Fates("obtain", kit.SlowReply(700*time.Millisecond))
		w.Fails(l.Lock(w.Context()), lockregistry.ErrUnavailable, "lock", "orders:42")
		f.Forget()
		made := f.Count("HELLO")
		w.Pass(5 * time.Second)
		w.Lock(l)
		w.Unlock(l)
		require.Greater(w, f.Count("HELLO"), made, "another connection is made")
	})
}

// A grant that arrived late is not confirmed over the connection that was late, even if there is no other.
func TestConnection_ALateGrantWithoutAnotherConnection(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		client := f.Client(kit.OneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		_, giveBack := client.Dedicate()
		l := w.RegistryOn(client, kit.Polling).Obtain("42")
		w.Lock(l)
		w.Unlock(l)
		f.Fates("obtain", kit.SlowReply(700*time.Millisecond))
		w.Fails(l.Lock(w.Context()), lockregistry.ErrUnavailable, "lock", "orders:42")
		w.AwaitGone("orders:42")
		giveBack()
		w.Settle() // otherwise the connection that was waited for is made while the server is closed
	})
}
