package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestTryLock_ForeignTryLockDoesNotRefresh(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		w.Lock(r.Obtain("42"))
		w.Do("PEXPIRE", "orders:42", "20000")
		require.False(w, w.TryElsewhere(r.Obtain("42")))
		require.False(w, w.TryElsewhere(other.Obtain("42")))
		require.NoError(w, w.Answer(func() error {
			ok, err := other.Obtain("42").TryLock(w.Context(), lockregistry.Wait(150*time.Millisecond), lockregistry.Lease(time.Hour))
			require.False(w, ok)
			return err
		}))
		require.LessOrEqual(w, w.Pttl("orders:42"), 20*time.Second)
	})
}

func TestTryLock_DoesNotWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		start := time.Now()
		w.Do("SET", "orders:42", "for ever")
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok, "held in Redis")
		w.Do("DEL", "orders:42")
		w.Lock(l)
		require.False(w, w.TryElsewhere(l), "held here")
		require.Zero(w, time.Since(start))
	})
}

func TestWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		const wait = 250 * time.Millisecond
		waits := func(try func() error) {
			w.Helper()
			start := time.Now()
			require.NoError(w, try())
			require.Equal(w, wait, time.Since(start), "not rounded to polls")
		}
		expired := func(err error, op string) error {
			w.Fails(err, lockregistry.ErrTaken, op, "orders:42")
			return nil
		}
		waits(func() error {
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
			require.False(w, ok)
			return err
		})
		waits(func() error { return expired(l.Lock(w.Context(), lockregistry.Wait(wait)), "lock") })
		waits(func() error {
			return expired(r.Do(w.Context(), "42", func(context.Context) error {
				w.Error("fn runs without the lock")
				return nil
			}, lockregistry.Wait(wait)), "do")
		})

		w.Do("DEL", "orders:42")
		other := w.Goroutine()
		require.NoError(w, other.Lock(l)) // in this process
		waits(func() error {
			ok, err := l.TryLock(w.Context(), lockregistry.Wait(wait))
			require.False(w, ok)
			return err
		})
		waits(func() error { return expired(l.Lock(w.Context(), lockregistry.Wait(wait)), "lock") })
		require.NoError(w, other.Unlock(l))
		require.True(w, w.TryElsewhere(l))
	})
}

func TestWait_ThatIsLongEnough(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		other := w.Goroutine()
		w.Do("SET", "orders:42", "a while", "PX", "200")
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Minute))
		require.NoError(w, err)
		require.True(w, ok)
		locked := other.Starts(l, lockregistry.Wait(time.Minute))
		w.Pending(locked)
		w.Unlock(l)
		require.NoError(w, <-locked)
		require.NoError(w, other.Unlock(l))
	})
}

func TestWait_CoversThisProcessAndRedis(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		start := time.Now()
		locked := w.Goroutine().Starts(l, lockregistry.Wait(time.Second))
		w.Settle()
		w.Pass(600 * time.Millisecond)
		w.Do("SET", "orders:42", "another's")
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.Settle()
		w.Pending(locked) // from now on it waits for Redis
		w.Fails(<-locked, lockregistry.ErrTaken, "lock", "orders:42")
		require.Equal(w, time.Second, time.Since(start))
	})
}

// A call that nests in a hold renews it, and so does a reader that joins one with a longer lease. They wait for the reply no
// longer than they may.
func TestWait_ForARenewal(t *testing.T) {
	t.Parallel()
	nests := map[string]func(w *kit.World, r *lockregistry.Registry) (l *lockregistry.Lock, ctx, had context.Context){
		"owner": func(w *kit.World, r *lockregistry.Registry) (l *lockregistry.Lock, ctx, had context.Context) {
			w.Helper()
			l = r.Obtain("42")
			w.Lock(l)
			return l, w.Context(), w.Context()
		},
		"context": func(w *kit.World, r *lockregistry.Registry) (l *lockregistry.Lock, ctx, had context.Context) {
			w.Helper()
			l, had = r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
			require.NoError(w, l.Lock(had))
			return l, l.Context(had), had
		},
		"reader": func(w *kit.World, r *lockregistry.Registry) (l *lockregistry.Lock, ctx, had context.Context) {
			w.Helper()
			l, had = r.ReadWrite("42").Reader(), lockregistry.ContextWithOwner(w.Context())
			require.NoError(w, l.Lock(had))
			return l, w.Context(), had
		},
	}
	for name, has := range nests {
		for limit, c := range map[string]struct {
			most time.Duration
			opts []lockregistry.LockOption
		}{
			"wait":      {1500 * time.Millisecond, []lockregistry.LockOption{lockregistry.Wait(time.Second)}},
			"fail fast": {600 * time.Millisecond, []lockregistry.LockOption{lockregistry.Wait(time.Minute), lockregistry.FailFast()}},
		} {
			t.Run(name+" "+limit, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := f.Registry()
					w.Known(r)
					l, ctx, had := has(w, r)
					f.Stall()
					start := time.Now()
					ok, err := l.TryLock(ctx, append(c.opts, lockregistry.Lease(time.Hour))...)
					require.LessOrEqual(w, time.Since(start), c.most)
					require.False(w, ok)
					w.Unavailable(err, "trylock")
					f.ReconnectNow()
					require.True(w, l.IsHeld(), "the hold goes on")
					_ = l.Unlock(had)
					w.AwaitGone(kit.TheKey)
				})
			})
		}
	}
}

// Nor does it outlast its wait when the other readers, or other calls of the same owner, have unlocked in the meantime, so that
// the hold is to be released.
func TestWait_ForARenewalOfTheLastOne(t *testing.T) {
	t.Parallel()
	for name, readers := range map[string]bool{"readers": true, "an owner": false} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				l, ctx := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
				other := ctx
				if readers {
					l, other = r.ReadWrite("42").Reader(), lockregistry.ContextWithOwner(w.Context())
				}
				require.NoError(w, l.Lock(other))
				f.Stall()
				time.AfterFunc(500*time.Millisecond, func() { _ = l.Unlock(other) })
				start := time.Now()
				_, err := l.TryLock(ctx, lockregistry.Wait(time.Second), lockregistry.Lease(time.Hour))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				w.Unavailable(err, "trylock")
				require.False(w, l.IsHeld())
				f.ReconnectNow()
				w.AwaitGone(kit.TheKey)
			})
		})
	}
}
