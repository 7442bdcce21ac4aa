package operator_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// stuck is a log handler that blocks from its first line until the test ends.
type stuck struct {
	slog.Handler
	first, release chan struct{}
}

func newStuck(w *kit.World) *stuck {
	s := &stuck{slog.DiscardHandler, make(chan struct{}, 1), make(chan struct{})}
	w.Cleanup(func() { close(s.release) })
	return s
}

func (s *stuck) option() lockregistry.Option { return lockregistry.WithLogger(slog.New(s)) }

func (s *stuck) Enabled(context.Context, slog.Level) bool { return true }

func (s *stuck) Handle(context.Context, slog.Record) error {
	select {
	case s.first <- struct{}{}:
	default:
	}
	<-s.release
	return nil
}

func TestLog_LossIsAnnouncedWhileTheLogBlocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		log := newStuck(w)
		r := w.Registry(log.option())
		start := time.Now()
		var contexts []context.Context
		for path, lease := range map[string]time.Duration{"a": 300 * time.Millisecond, "b": 400 * time.Millisecond} {
			w.Lock(r.Obtain(path), lockregistry.Lease(lease))
			contexts = append(contexts, r.Obtain(path).Context(w.Context()))
		}
		for _, ctx := range contexts {
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.Less(w, time.Since(start), 400*time.Millisecond)
		}
		<-log.first
	})
}

func TestLog_RenewalsGoOnWhileTheLogBlocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		log := newStuck(w)
		r := w.Registry(log.option(), lockregistry.WithRedissonLayout(),
			lockregistry.WithLease(600*time.Millisecond))
		renewed, ends := r.Obtain("renewed"), r.Obtain("ends")
		w.Lock(renewed)
		w.Lock(ends, lockregistry.Lease(300*time.Millisecond))
		<-ends.Context(w.Context()).Done()
		<-log.first // nobody releases it
		for range 3 {
			w.AwaitRenewal("orders:renewed", 600*time.Millisecond)
		}
		require.True(w, renewed.IsHeld())
		w.Unlock(renewed)
	})
}

// Lines that are logged just before the program closes the registry are written.
func TestLog_CloseWritesTheLastLines(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var log kit.Journal
		r := w.Registry(lockregistry.WithLogger(slog.New(slog.NewTextHandler(slowly{&log}, nil))))
		l := r.Obtain("a")
		w.Lock(l, lockregistry.Lease(time.Second))
		w.Pass(time.Second)
		require.False(w, l.IsHeld()) // finds the loss
		require.NoError(w, r.Close())
		require.Len(w, log.Lines("lock lost", "orders:a"), 1)
	})
}

// slowly is a log that takes some time for each line.
type slowly struct{ *kit.Journal }

func (s slowly) Write(p []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return s.Journal.Write(p)
}

func TestLog_CloseDoesNotWaitForAStuckLog(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		log := newStuck(w)
		r := w.Registry(log.option())
		l := r.Obtain("a")
		w.Lock(l, lockregistry.Lease(time.Second))
		w.Pass(time.Second)
		require.False(w, l.IsHeld())
		start := time.Now()
		require.NoError(w, r.Close())
		require.Equal(w, 100*time.Millisecond, time.Since(start))
	})
}

// A key without expiry keeps its path taken forever, as after a SET by hand. A log line says so once a minute while a call
// waits for it.
func TestLog_KeyWithoutExpiry(t *testing.T) {
	const line = "a key that calls wait for has no expiry"
	kinds := map[string]struct {
		layout observe.Layout
		side   func(r *lockregistry.Registry) *lockregistry.Lock
		key    []string
	}{
		"spring":   {observe.LayoutSpring, plain, []string{"SET", kit.TheKey, "somebody"}},
		"redisson": {observe.LayoutRedisson, plain, []string{"HSET", kit.TheKey, "somebody:1", "1"}},
		"writer": {
			observe.LayoutSpring, func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
			[]string{"HSET", kit.TheKey, "mode", "write", "somebody:1:write", "1"},
		},
	}
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				var log kit.Journal
				l := c.side(w.Registry(kit.WithLayout(c.layout), log.Option()))
				waits := func(wait time.Duration) {
					err := w.Answer(func() error { return l.Lock(w.Context(), lockregistry.Wait(wait)) })
					require.ErrorIs(w, err, lockregistry.ErrTaken)
				}
				w.Do(c.key...)
				w.Do("PEXPIRE", kit.TheKey, "600000")
				waits(200 * time.Millisecond)
				require.Empty(w, log.Lines(line))
				w.Do("PERSIST", kit.TheKey)
				require.ErrorIs(w, l.Lock(w.Context(), lockregistry.NoWait()), lockregistry.ErrTaken)
				require.Empty(w, log.Lines(line), "that call does not wait")
				for range 3 {
					waits(200 * time.Millisecond)
				}
				w.Await("one line", func() bool { return len(log.Lines(line)) == 1 })
				require.Contains(w, log.Lines(line)[0], kit.TheKey)
				if w.Fake {
					w.Pass(time.Minute)
					waits(200 * time.Millisecond)
					w.Await("another line", func() bool { return len(log.Lines(line)) == 2 })
				}
			})
		})
	}
}

func plain(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") }
