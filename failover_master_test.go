package lockregistry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// ofSentinel is a client that finds its master through Sentinel, which names another one when told.
type ofSentinel struct {
	rueidis.Client

	mu     sync.Mutex
	master string
}

func (*ofSentinel) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

func (s *ofSentinel) Nodes() map[string]rueidis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]rueidis.Client{s.master: s.Client}
}

func (s *ofSentinel) change(master string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master = master
}

// A planned failover breaks no connection, and the process may do nothing else: its holds are looked at all the same, those
// for which the old master's answer has come after the change too.
func TestFailover_AnotherMasterHasHoldsLookedAt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"with a context": nil,
		"renewed":        {lockregistry.WithRenewal()},
		"polling":        {lockregistry.WithWakeup(lockregistry.WakeupPoll)},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				client := &ofSentinel{Client: w.client(), master: "before"}
				r := w.registryOn(client, opts...)
				locks := []*lockregistry.Lock{r.Obtain("42"), r.Obtain("43"), r.Obtain("44")}
				gone, kept, late := locks[0], locks[1], locks[2]
				w.lock(gone)
				w.lock(kept)
				w.lock(late)
				told, goesOn, next := gone.Context(w.Context()), kept.Context(w.Context()), late.Context(w.Context())
				w.pass(time.Second)
				require.NoError(w, told.Err())

				w.do("DEL", gone.Key())
				start := time.Now()
				client.change("after")
				<-told.Done()
				require.ErrorIs(w, context.Cause(told), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), 100*time.Millisecond)
				w.do("DEL", late.Key())
				<-next.Done()
				require.ErrorIs(w, context.Cause(next), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), time.Second)
				require.NoError(w, goesOn.Err())
				w.unlock(kept)
			})
		})
	}
}

// The new master may not have got a release of just now, which is sent once more: also while the grant of an older call is looked
// out for.
func TestFailover_AnotherMasterHasReleasesSentAgain(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		client := &ofSentinel{Client: f.client(), master: "before"}
		r := w.registryOn(client, polling)
		kept, l := r.Obtain("kept"), r.Obtain("42")
		w.lock(kept)
		watched := kept.Context(w.Context()) // so that the client is looked at
		f.next("obtain", cut)
		require.Error(w, l.Lock(w.Context()))
		w.lock(l)
		value := w.do("GET", theKey)
		w.unlock(l)
		require.Equal(w, 1, r.Stats().Removals)
		w.do("SET", theKey, value)
		client.change("after")
		w.pass(time.Second)
		require.True(w, w.free(theKey))
		require.NoError(w, watched.Err())
		w.unlock(kept)
	})
}
