package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// The poll interval is the pause of a waiter that nothing else would wake. Nothing else depends on it.

func TestPollInterval_RenewalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	for name, what := range map[string]fate{"cut": cut, "refused": refused(loading)} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(lockregistry.WithRenewal(), lockregistry.WithExpiry(lease), lockregistry.WithPollInterval(lease))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				ctx := l.Context(w.Context())
				renewals := f.count("renew")
				f.next("renew", what)
				w.pass(lease/3 + time.Second)
				require.Equal(w, renewals+2, f.count("renew"), "again within a second")
				require.Greater(w, w.pttl(theKey), lease-time.Second)
				w.pass(100 * time.Second)
				require.NoError(w, context.Cause(ctx))
				w.unlock(l)
			})
		})
	}
}

func TestPollInterval_RemovalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"cut": cut, "refused": refused(loading)} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(
					lockregistry.WithExpiry(10*time.Minute), lockregistry.WithPollInterval(time.Minute), lockregistry.WithHandoff(0))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				got := lockElsewhere(l, w.Context())
				w.settle()
				f.next("release", what, what, what)
				start := time.Now()
				_ = l.Unlock(w.Context())
				require.NoError(w, <-got)
				require.LessOrEqual(w, time.Since(start), time.Second)
			})
		})
	}
}

// A waiter whose network was away tries again soon after it is back, although the message of the release was lost.
func TestPollInterval_WaitersDoNotWaitForAPollIntervalAfterAnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithPollInterval(time.Hour))
		holder := w.registry().Obtain("42")
		w.lock(holder, lockregistry.TTL(time.Hour))
		got := w.goroutine().starts(r.Obtain("42"))
		w.settle()
		f.Down()
		w.pass(time.Second)
		w.unlock(holder)
		w.pass(time.Second)
		w.pending(got)
		f.reconnect()
		start := time.Now()
		require.NoError(w, <-got)
		require.LessOrEqual(w, time.Since(start), 5*time.Second)
	})
}

// How long a process keeps a lock is the handoff limit's matter, 100 ms by default.
func TestPollInterval_DoesNotLastForAPollInterval(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		next, has := h.queue()
		h.world.pass(60 * time.Millisecond)
		require.True(h, h.handed(g, has))
		_, has = h.queue()
		h.world.pass(60 * time.Millisecond)
		number := h.number()
		require.NoError(h, next.unlock(h.l))
		require.NoError(h, <-has)
		require.Greater(h, h.number(), number)
	}, lockregistry.WithPollInterval(time.Hour))
}
