package lockregistry_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// stuck is a log handler that blocks at its first line until the test ends.
type stuck struct {
	slog.Handler
	first, release chan struct{}
}

func (w *world) stuck() *stuck {
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
	fakeWorld(t, func(w *world) {
		log := w.stuck()
		r := w.registry(log.option())
		start := time.Now()
		var contexts []context.Context
		for path, lease := range map[string]time.Duration{"a": 300 * time.Millisecond, "b": 400 * time.Millisecond} {
			w.lock(r.Obtain(path), lockregistry.Lease(lease))
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
	worlds(t, func(w *world) {
		log := w.stuck()
		r := w.registry(log.option(), lockregistry.WithLayout(lockregistry.LayoutRedisson),
			lockregistry.WithLease(600*time.Millisecond))
		renewed, ends := r.Obtain("renewed"), r.Obtain("ends")
		w.lock(renewed)
		w.lock(ends, lockregistry.Lease(300*time.Millisecond))
		<-ends.Context(w.Context()).Done()
		<-log.first // and nobody lets go of it
		for range 3 {
			w.awaitRenewal("orders:renewed", 600*time.Millisecond)
		}
		require.True(w, renewed.IsHeld())
		w.unlock(renewed)
	})
}

// awaitRenewal waits until less than three quarters of a lease are left, and then more again.
func (w *world) awaitRenewal(key string, lease time.Duration) {
	w.Helper()
	left := func() time.Duration { return w.pttl(key) }
	w.await("it is not fresh", func() bool { return left() < 3*lease/4 })
	w.await("it is renewed", func() bool { return left() > 3*lease/4 })
}

// What is logged just before the program closes the registry is written.
func TestLog_CloseWritesTheLastLines(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var log journal
		r := w.registry(lockregistry.WithLogger(slog.New(slog.NewTextHandler(slowly{&log}, nil))))
		l := r.Obtain("a")
		w.lock(l, lockregistry.Lease(time.Second))
		w.pass(time.Second)
		require.False(w, l.IsHeld()) // which finds the loss
		require.NoError(w, r.Close())
		require.Len(w, log.lines("lock lost", "orders:a"), 1)
	})
}

// slowly is a log that takes its time for each line.
type slowly struct{ *journal }

func (s slowly) Write(p []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return s.journal.Write(p)
}

func TestLog_CloseDoesNotWaitForAStuckLog(t *testing.T) {
	fakeWorld(t, func(w *world) {
		log := w.stuck()
		r := w.registry(log.option())
		l := r.Obtain("a")
		w.lock(l, lockregistry.Lease(time.Second))
		w.pass(time.Second)
		require.False(w, l.IsHeld())
		start := time.Now()
		require.NoError(w, r.Close())
		require.Equal(w, 100*time.Millisecond, time.Since(start))
	})
}
