package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// A removal that is answered late may have been a former master's: it is asked for once more, and the reply is about both.
func TestSemaphore_ForceUnlockIsAnsweredLate(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{
		"removed":                      slow(late),
		"removed by a former master":   deposed(":1\r\n"),
		"not known to a former master": deposed(":0\r\n"),
	} {
		for whose, holder := range map[string]func(h *lockregistry.Hold) string{
			"all": func(*lockregistry.Hold) string { return "" }, "one": (*lockregistry.Hold).Holder,
		} {
			t.Run(name+"/"+whose, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r := f.registry()
					w.known(r)
					h, own := w.permit(w.registry().Semaphore("seat", 2)), w.permit(r.Semaphore("seat", 2))
					sent := f.count("release")
					f.next("release", what)
					if one := holder(h); one != "" {
						require.NoError(w, r.ForceUnlockHolder(w.Context(), "seat", one))
						require.Equal(w, 1, w.inside())
						w.release(own)
					} else {
						require.NoError(w, r.ForceUnlock(w.Context(), "seat"))
						w.fails(own.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
					}
					require.GreaterOrEqual(w, f.count("release"), sent+2)
					require.Zero(w, w.inside())
					w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
				})
			})
		}
	}
}

// A semaphore that ends while it is looked at is free.
func TestSemaphore_ForceUnlockOfOneThatEnds(t *testing.T) {
	worlds(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		wrong := refused("WRONGTYPE Operation against a key holding the wrong kind of value") // it was a semaphore's just now
		f.next("unlock", wrong, wrong)
		require.NoError(w, r.ForceUnlock(w.Context(), "seat"))
		w.fails(r.ForceUnlockHolder(w.Context(), "seat", "any:1"), lockregistry.ErrNotOwner, "forceunlock", seat)
		w.do("ZADD", seat, "1", "any")
		f.next("unlock", wrong)
		w.fails(r.ForceUnlock(w.Context(), "seat"), lockregistry.ErrWrongType, "forceunlock", seat)
	})
}

// A hold that is granted while all are removed may be removed, too: it is lost soon, although nobody renews it.
func TestSemaphore_ForceUnlockWhileOneIsGranted(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		s := r.Semaphore("seat", 2)
		first := w.permit(s)
		arrives := make(chan struct{})
		f.next("release", heldUp(arrives))
		forced := make(chan error, 1)
		go func() { forced <- r.ForceUnlock(w.Context(), "seat") }()
		w.pass(700 * time.Millisecond) // then commands go over another connection
		w.pending(forced)
		second := w.permit(s, lockregistry.Lease(time.Hour))
		w.pending(forced)
		require.Equal(w, 2, w.inside())
		ctx := second.Context(w.Context())
		close(arrives)
		require.NoError(w, <-forced)
		require.Zero(w, w.inside())
		w.pass(time.Second)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		w.fails(first.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		w.fails(second.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
	})
}
