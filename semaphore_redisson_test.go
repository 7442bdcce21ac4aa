package lockregistry_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// What is special about semaphores that Redisson shares. The two are side by side in interop.

// The clock of this machine is compared with the server's, once, and told of when the difference may matter.
func TestSemaphoreRedisson_Clocks(t *testing.T) {
	for _, c := range []struct {
		ahead, lease time.Duration
		told         bool
	}{
		{0, 3 * time.Second, false},
		{9 * time.Second, 30 * time.Second, false},
		{-9 * time.Second, 30 * time.Second, false},
		{11 * time.Second, 30 * time.Second, true},
		{-11 * time.Second, 30 * time.Second, true},
		{1100 * time.Millisecond, 3 * time.Second, true},
	} {
		t.Run(fmt.Sprint(c.ahead, " of ", c.lease), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.layout = lockregistry.LayoutRedisson
				w.mini.SetTime(time.Now().Add(c.ahead))
				var log strings.Builder
				lines := lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil)))
				r := w.registry(lockregistry.WithLease(c.lease), lines)
				for _, path := range []string{"seat", "other", "seat"} {
					w.release(w.permit(r.Semaphore(path, 1)))
				}
				require.NoError(w, r.Close())
				require.Equal(w, c.told, strings.Contains(log.String(), "the server's clock is another one"), log.String())
				if c.told {
					require.Equal(w, 1, strings.Count(log.String(), "ahead="+c.ahead.String()), log.String())
				} else {
					require.Empty(w, log.String())
				}
			})
		})
	}
}

// That the clock cannot be had is the matter of nobody; it is asked for again.
func TestSemaphoreRedisson_ClockIsNotTold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		f := w.flaky()
		s := f.registry().Semaphore("seat", 1)
		f.next("clock", refused(loading))
		w.release(w.permit(s))
		w.release(w.permit(s), w.permit(f.registry().Semaphore("other", 1)))
		require.Equal(w, 4, f.count("clock"), "refused, by its digest, by its source, and of the other registry")
	})
}

// A registry of the other layout sees what it is, and changes nothing.
func TestSemaphoreRedisson_OfTheOtherLayout(t *testing.T) {
	worlds(t, func(w *world) {
		spring := w.registry()
		w.layout = lockregistry.LayoutRedisson
		s := w.registry().Semaphore("seat", 3)
		h := w.permit(s)
		for range 2 {
			info, err := spring.Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Equal(w, observe.KindSemaphore, info.Kind)
			require.Equal(w, lockregistry.LayoutRedisson, info.Layout)
			require.Equal(w, 3, info.Permits)
			require.Len(w, info.Holders, 1)
			require.Equal(w, w.inside(), info.Holders[0].Permits)
			before := w.do("GET", seat)
			w.fails(spring.ForceUnlock(w.Context(), "seat"), lockregistry.ErrWrongType, "forceunlock", seat)
			w.fails(spring.ForceUnlockHolder(w.Context(), "seat", before), lockregistry.ErrWrongType, "forceunlock", seat)
			_, err = spring.Semaphore("seat", 3).Acquire(w.Context())
			w.fails(err, lockregistry.ErrWrongType, "acquire", seat)
			require.Equal(w, before, w.do("GET", seat))
			w.release(h)
			h = w.permit(s, lockregistry.Permits(2))
		}
		w.release(h)
		w.do("SET", "orders:other", "1", "PX", "60000") // somebody's lock
		info, err := spring.Inspect(w.Context(), "other")
		require.NoError(w, err)
		require.Equal(w, observe.KindLock, info.Kind)
		require.NoError(w, spring.ForceUnlock(w.Context(), "other"))
		require.True(w, w.free("orders:other"))
	})
}

// On a cluster the two keys are in one slot. Where they are not, because of the braces in the path, each call says so.
func TestSemaphoreRedisson_OnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, path := range []string{"a", "b", "c", "{tag}d"} {
		t.Run(path, func(t *testing.T) {
			const processes, turns, permits = 3, 40, 2
			var all sync.WaitGroup
			var inside atomic.Int32
			for range processes {
				s := onCluster(t, nodes, lockregistry.WithLayout(lockregistry.LayoutRedisson)).Semaphore(path, permits)
				for i := range 2 {
					all.Go(func() {
						for turn := range turns {
							n := 1 + (i+turn)%permits
							if err := s.Do(t.Context(), func(context.Context) error {
								if got := inside.Add(int32(n)); got > permits {
									t.Errorf("%d are inside", got)
								}
								inside.Add(int32(-n))
								return nil
							}, lockregistry.Permits(n), lockregistry.Wait(20*time.Second)); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			all.Wait()
		})
	}
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutRedisson, lockregistry.LayoutSpring} {
		s := onCluster(t, nodes, lockregistry.WithLayout(layout)).Semaphore("e{f", 1)
		h, err := s.Acquire(t.Context())
		if layout == lockregistry.LayoutRedisson {
			require.ErrorContains(t, err, "a cluster keeps the keys of this semaphore in different slots")
			require.ErrorContains(t, s.SetPermits(t.Context(), 2), "a cluster keeps the keys of this semaphore in different slots")
			continue
		}
		require.NoError(t, err)
		require.NoError(t, h.Release(t.Context()))
	}
}
