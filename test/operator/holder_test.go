package operator_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// kindsOfHolds acquire a hold on the path 42, each of a different kind.
var kindsOfHolds = map[string]func(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Hold, error){
	"plain": func(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Hold, error) {
		return r.Acquire(ctx, "42")
	},
	"writer": func(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Hold, error) {
		return r.ReadWrite("42").Writer().Acquire(ctx)
	},
	"reader": func(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Hold, error) {
		return r.ReadWrite("42").Reader().Acquire(ctx)
	},
	"several": func(ctx context.Context, r *lockregistry.Registry) (*lockregistry.Hold, error) {
		return r.AcquireAll(ctx, []string{"42", "41"})
	},
}

type acquires func(*lockregistry.Registry) *lockregistry.Hold

func eachKindOfHold(
	t *testing.T, test func(w *kit.World, registry func() *lockregistry.Registry, acquire acquires),
) {
	t.Helper()
	for kind, acquire := range kindsOfHolds {
		for name, layout := range kit.Layouts {
			t.Run(kind+"/"+name, func(t *testing.T) {
				kit.Worlds(t, func(w *kit.World) {
					test(w, func() *lockregistry.Registry {
						return w.Registry(kit.WithLayout(layout))
					}, func(r *lockregistry.Registry) *lockregistry.Hold {
						h, err := acquire(w.Context(), r)
						require.NoError(w, err)
						return h
					})
				})
			})
		}
	}
}

// Another process can release a hold by its name, even while others wait for it. Once the hold is released its name means
// nothing.
func TestHolder_IsWhatForceUnlockHolderTakes(t *testing.T) {
	t.Parallel()
	eachKindOfHold(t, func(w *kit.World, registry func() *lockregistry.Registry, acquire acquires) {
		h := acquire(registry())
		alive := h.Context(w.Context())
		there := registry()
		waits := w.Goroutine().Start(func() error { return there.ReadWrite("42").Writer().Lock(w.Context()) })
		if len(h.Paths()) > 1 || w.Do("TYPE", kit.TheKey) == "string" || w.Do("HEXISTS", kit.TheKey, "mode") == "0" {
			require.ErrorIs(w, <-waits, lockregistry.ErrWrongType)
			waits = w.Goroutine().Start(func() error { return there.Obtain("42").Lock(w.Context()) })
		}
		w.Await("it is waited for", func() bool { return w.Waiting("42") })

		require.NoError(w, inspect.Of(registry()).ForceUnlockHolder(w.Context(), h.Paths()[0], h.Holder()))
		require.NoError(w, <-waits)
		require.ErrorIs(w, h.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
		require.ErrorIs(w, context.Cause(alive), lockregistry.ErrLockLost)
		name := h.Holder()
		require.NotEmpty(w, name, "it is not released yet")
		err := inspect.Of(registry()).ForceUnlockHolder(w.Context(), h.Paths()[0], name)
		w.Fails(err, lockregistry.ErrNotOwner, "forceunlock", kit.TheKey)
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
		require.Empty(w, h.Holder())
	})
	require.Empty(t, (*lockregistry.Hold)(nil).Holder())
}

// A hold whose name was given away is not handed on: the next goroutine's hold would have the name that another process knows.
func TestHolder_IsNotHandedOn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"plain", "writer", "several"} {
		for _, asked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, asked for: %v", kind, asked), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					r := w.Registry()
					h, err := kindsOfHolds[kind](w.Context(), r)
					require.NoError(w, err)
					name := "nobody:1"
					if asked {
						name = h.Holder()
					}
					next := make(chan *lockregistry.Hold)
					go func() {
						other, err := kindsOfHolds[kind](w.Context(), r)
						if err != nil {
							w.Error(err)
						}
						next <- other
					}()
					w.Settle()
					w.Released(h.Release(w.Context()))
					other := <-next
					if len(h.Paths()) == 1 {
						require.Equal(w, !asked, r.Stats().Handoffs > 0)
					}
					err = inspect.Of(w.Registry()).ForceUnlockHolder(w.Context(), other.Paths()[0], name)
					w.Fails(err, lockregistry.ErrNotOwner, "forceunlock", kit.TheKey)
					require.NoError(w, other.Renew(w.Context(), time.Minute))
					w.Released(other.Release(w.Context()))
				})
			})
		}
	}
}

// The readers of a process share a hold, so they lose it together.
func TestHolder_OfReadersThatShare(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		rw := w.Registry().ReadWrite("42")
		one, err := rw.Reader().Acquire(w.Context())
		require.NoError(w, err)
		two, err := rw.Reader().Acquire(w.Context())
		require.NoError(w, err)
		require.Equal(w, one.Holder(), two.Holder())
		there, err := w.Registry().ReadWrite("42").Reader().Acquire(w.Context())
		require.NoError(w, err)
		require.NotEqual(w, one.Holder(), there.Holder())
		require.NoError(w, inspect.Of(w.Registry()).ForceUnlockHolder(w.Context(), "42", one.Holder()))
		require.ErrorIs(w, one.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
		require.ErrorIs(w, two.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost)
		require.NoError(w, there.Renew(w.Context(), time.Minute))
	})
}

// A caller may ask for the name just when the hold is released.
func TestHolder_WhileItIsReleased(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		for range 200 {
			h, err := r.Acquire(w.Context(), "42")
			require.NoError(w, err)
			next := make(chan *lockregistry.Hold)
			go func() {
				other, err := r.Acquire(w.Context(), "42")
				if err != nil {
					w.Error(err)
				}
				next <- other
			}()
			w.Settle()
			var names []string
			var asks sync.WaitGroup
			asks.Go(func() {
				for name := h.Holder(); name != ""; name = h.Holder() {
					names = append(names, name)
				}
			})
			runtime.Gosched()
			w.Released(h.Release(w.Context()))
			other := <-next
			asks.Wait()
			require.NotContains(w, names, other.Holder())
			w.Released(other.Release(w.Context()))
		}
	})
}
