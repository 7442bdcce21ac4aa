package lockregistry_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What else uses the client, its connections and its pool must not harm locks, nor be harmed.

// When the pool has none but old connections, the search for a new one ends, and gives them back.
func TestConnection_APoolOfOldConnections(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		f.all("CLIENT", aged(60))
		client := f.client(oneConnection, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 2 })
		r := w.registryOn(client)
		w.known(r)
		f.sections(r, 100)
		require.NotZero(w, f.count("CLIENT"))
		w.pass(2 * time.Second)
		got := make(chan func(), 2)
		for range 2 {
			go func() {
				_, back := client.Dedicate()
				got <- back
			}()
		}
		w.settle()
		require.Len(w, got, 2)
		(<-got)()
		(<-got)()
	})
}

// A connection on which the application has selected another database is as good as any for replicas to wait on.
func TestConnection_ReplicasOnAConnectionOfAnotherDatabase(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		client := w.client()
		app, back := client.Dedicate()
		require.NoError(w, app.Do(w.Context(), app.B().Arbitrary("SELECT", "5").Build()).Error())
		back()
		l := w.registryOn(client, lockregistry.WithReplicas(1, acknowledging)).Obtain("42")
		w.lock(l)
		require.Equal(w, "1", w.do("EXISTS", theKey))
		w.unlock(l)
		require.True(w, w.free(theKey))
	})
}

// The client makes one connection for all who want it. Whoever asked for it first may give up meanwhile: nobody else fails, and
// nobody is told that a context of theirs has ended.
func TestConnection_AConnectionThatSomebodyElseGivesUp(t *testing.T) {
	t.Parallel()
	for name, byCall := range map[string]bool{"a call": true, "the application": false} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				var slow atomic.Bool
				client := w.clientWith(func(ctx context.Context) (net.Conn, error) {
					if slow.Load() {
						select {
						case <-ctx.Done():
							return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
						case <-time.After(20 * time.Millisecond):
						}
					}
					return f.Dial(ctx)
				}, oneConnection, func(o *rueidis.ClientOption) { o.DisableRetry = true })
				r := w.registryOn(client)
				f.sections(r, 20)
				slow.Store(true)
				f.reconnectNow()
				w.settle()
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
				w.settle()
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
