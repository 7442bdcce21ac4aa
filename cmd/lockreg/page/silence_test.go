package page_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// freezing is a source that can be frozen.
type freezing struct {
	*fake

	frozen  atomic.Bool
	refuses atomic.Bool
}

func (f *freezing) Inspect(ctx context.Context, _ string) (inspect.Lock, error) {
	if f.frozen.Load() {
		<-ctx.Done()
		return inspect.Lock{}, ctx.Err()
	}
	if f.refuses.Load() {
		return inspect.Lock{}, lockregistry.ErrWrongType
	}
	return inspect.Lock{}, nil
}

// That Redis does not answer is told within two seconds, also while a pass goes on, and at once that it does.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &freezing{fake: newFake()}
		source.set(someLock("a", 0))
		h := newPage(t, source, page.WithTitle("orders"))
		b := look(t, h)
		<-time.After(time.Minute)
		synctest.Wait()
		require.NotContains(t, b.read(), "event: silence")
		source.refuses.Store(true)
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.NotContains(t, b.read(), "event: silence", "a refusal is an answer")

		frozen := time.Now()
		source.do(func() { source.hang = make(chan struct{}) })
		source.frozen.Store(true)
		<-time.After(2 * time.Second)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, "event: silence\ndata: {\"since\":")
		require.Less(t, time.Since(frozen), 3*time.Second)
		<-time.After(time.Minute)
		synctest.Wait()
		require.NotContains(t, b.read(), "event: silence", "once")
		late := look(t, h)
		synctest.Wait()
		require.Contains(t, late.read(), "event: silence", "who comes later is told, too")

		source.do(func() { close(source.hang); source.hang = nil })
		source.frozen.Store(false)
		<-time.After(1500 * time.Millisecond)
		synctest.Wait()
		text = b.read()
		require.Contains(t, text, `{"since":0}`)
		require.Contains(t, text, "event: tick")
	})
}

// A browser that has taken nothing meanwhile is told that a silence is over, whether or not it was told of the silence before.
func TestSilence_SlowBrowser(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			source := &freezing{fake: newFake()}
			source.set(someLock("a", 0))
			hang := make(chan struct{})
			source.do(func() { source.hang = hang })
			source.frozen.Store(true)
			block := make(chan struct{})
			slow := newBrowser(t, newPage(t, source))
			if !told {
				slow.block = block
			}
			slow.look()
			<-time.After(5 * time.Second)
			slow.stop(block)
			synctest.Wait()
			require.Equal(t, told, strings.Contains(slow.read(), "event: silence"))
			if told { // something that it does not take
				<-time.After(heartbeat)
				synctest.Wait()
			}

			source.do(func() { source.hang = nil })
			close(hang)
			source.frozen.Store(false)
			<-time.After(5 * time.Second)
			slow.stop(nil)
			close(block)
			<-time.After(5 * time.Second)
			synctest.Wait()
			text := slow.read()
			require.Contains(t, text, `"path":"a"`)
			events := strings.Split(text, "event: silence\ndata: ")
			if last := events[len(events)-1]; told || len(events) > 1 {
				require.True(t, strings.HasPrefix(last, `{"since":0}`), text)
			}
		})
	}
}

// heartbeat is longer than a stream goes without a write.
const heartbeat = 20 * time.Second

// Of a cluster each master is asked, and named when it does not answer, whichever it is; that others answer does not hide it.
func TestSilenceOfAMaster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{servers[0].Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	registry, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { _ = registry.Close() })
	b := look(t, newPage(t, inspect.Of(registry), page.WithClient(client)))
	var text string
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool {
			text += b.read()
			_, after, found := strings.Cut(text, what)
			if found {
				text = after
			}
			return found
		}, 20*time.Second, time.Millisecond, what)
	}
	says("event: tick")
	for _, server := range servers {
		frozen := time.Now()
		server.Freeze()
		says(`,"servers":["` + server.Addr() + `"]}`)
		t.Log("told after", time.Since(frozen))
		server.Thaw()
		says(`{"since":0}`)
	}
	text += b.read()
	require.NotContains(t, text, "event: silence")
	for _, server := range servers {
		server.Freeze()
	}
	says("event: silence")
	for _, server := range servers {
		server.Thaw()
	}
	says(`{"since":0}`)
}
