package lockregistry_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// An answer that took long may be that of a master which was frozen, deposed, and then went on. It is not believed.

// late is as long as the answer of a deposed master takes here.
const late = 600 * time.Millisecond

// deposed is the fate of a command that a deposed master executes, late: it replies, and its successor knows nothing of it.
func deposed(reply string) fate { return fate{Lost: true, Reply: reply, Linger: late} }

// carriers are the connections over which the commands of a name were sent.
func (f *flaky) carriers(name string) (over []*link) {
	for _, c := range f.sent(name) {
		over = append(over, c.Over)
	}
	return over
}

func TestLateReply_ALateGrantIsConfirmed(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	layouts := map[string][]lockregistry.Option{
		"Spring":   nil,
		"Redisson": {lockregistry.WithLayout(lockregistry.LayoutRedisson)},
	}
	for name, opts := range layouts {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(opts...)
				w.known(r)
				l := r.Obtain("42")
				renewals, tries, before := f.count("renew"), f.count("obtain"), f.Links()
				f.next("obtain", slow(late))
				start := time.Now()
				w.lock(l, lockregistry.Lease(lease))
				require.Equal(w, late, time.Since(start))
				require.Equal(w, tries+1, f.count("obtain"))
				sent := f.sent("renew")[renewals:]
				require.Len(w, sent, 1)
				require.Equal(w, start.Add(late), sent[0].Sent, "after the answer")
				require.False(w, slices.Contains(before, sent[0].Over), "over a connection made since")

				require.Equal(w, lease, w.pttl(theKey))
				<-l.Context(w.Context()).Done()
				require.GreaterOrEqual(w, time.Since(start), late+lease-margin(lease)-time.Millisecond, "it counts from the renewal")
				require.Less(w, time.Since(start), late+lease)
			})
		})
	}
}

// Half a second is late, or a third of the lease; while nobody knows how far away the server is, too.
func TestLateReply_WhenAnAnswerIsLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lease, took time.Duration
		known, late bool // how far away the server is
	}{
		{time.Minute, 490 * time.Millisecond, true, false},
		{time.Minute, 500 * time.Millisecond, true, true},
		{900 * time.Millisecond, 290 * time.Millisecond, true, false},
		{900 * time.Millisecond, 300 * time.Millisecond, true, true},
		{time.Minute, 490 * time.Millisecond, false, false},
		{time.Minute, 500 * time.Millisecond, false, true},
	} {
		t.Run(fmt.Sprint(c.took, " of ", c.lease, " ", c.known), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				if c.known {
					w.known(r)
				}
				renewals := f.count("renew")
				f.next("obtain", slow(c.took))
				w.lock(r.Obtain("42"), lockregistry.Lease(c.lease))
				confirmed := f.count("renew") > renewals
				require.Equal(w, c.late, confirmed)
			})
		})
	}
}

// A grant whose confirmation fails is none, and nothing stays behind.
func TestLateReply_ALateGrantThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{
		"the key is another's": {Lost: true, Reply: ":0\r\n"},
		"late as well":         slow(2 * time.Second),
		"no answer":            silence,
		"cut":                  cutAfter,
		"refused":              refused(loading),
	} {
		for op, call := range locking {
			t.Run(name+"/"+op, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					r := f.registry()
					w.known(r)
					f.next("obtain", slow(late))
					f.next("renew", what)
					w.unavailable(call(w.Context(), r, lockregistry.Lease(time.Hour)), op)
					require.False(w, r.Obtain("42").IsHeld())
					start := time.Now()
					w.awaitGone(theKey)
					require.LessOrEqual(w, time.Since(start), time.Second)
				})
			})
		}
	}
}

// The master that granted is none any more, and its successor grants the lock to somebody else.
func TestLateReply_AGrantByADeposedMaster(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string][]lockregistry.LockOption{
		"without Wait": nil,
		"with Wait":    {lockregistry.Wait(2 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry()
				w.known(r)
				f.next("obtain", deposed("+OK\r\n"))
				w.lock(w.registry().Obtain("42"))
				value := w.do("GET", theKey)
				ok, err := r.Obtain("42").TryLock(w.Context(), wait...)
				require.False(w, ok)
				if wait == nil {
					w.unavailable(err, "trylock")
				} else {
					require.NoError(w, err, "it has asked the successor meanwhile")
				}
				w.pass(time.Second)
				require.Equal(w, value, w.do("GET", theKey))
			})
		})
	}
}

// A renewal that is answered late prolongs nothing, and is sent again.
func TestLateReply_ALateRenewal(t *testing.T) {
	t.Parallel()
	const lease = 9 * time.Second
	t.Run("the scheduler's", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
			w.known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.lock(l)
			renewals := f.count("renew")
			f.next("renew", deposed(":1\r\n"))
			w.pass(lease/3 + late)
			w.settle()
			sent := f.sent("renew")[renewals:]
			require.Len(w, sent, 2)
			require.Equal(w, start.Add(lease/3), sent[0].Sent)
			require.Equal(w, start.Add(lease/3+late), sent[1].Sent, "at once")
			require.NotSame(w, sent[0].Over, sent[1].Over)
			require.Equal(w, lease, w.pttl(theKey))
		})
	})
	t.Run("the scheduler's, and no other is answered", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
			w.known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.lock(l)
			f.all("renew", silence)
			f.next("renew", deposed(":1\r\n"))
			end := <-w.watch(l.Context(w.Context()), theKey)
			require.ErrorIs(w, end.cause, lockregistry.ErrLockLost)
			require.Less(w, time.Since(start), lease, "the late answer prolongs nothing")
			require.Positive(w, end.left)
		})
	})
	t.Run("the owner's", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			w.lock(l, lockregistry.Lease(lease))
			w.pass(2 * time.Second)
			renewals := f.count("renew")
			f.next("renew", deposed(":1\r\n"))
			start := time.Now()
			require.NoError(w, l.Renew(w.Context(), lease))
			require.Equal(w, late, time.Since(start))
			require.Equal(w, renewals+2, f.count("renew"))
			require.Equal(w, lease, w.pttl(theKey))
			<-l.Context(w.Context()).Done()
			require.GreaterOrEqual(w, time.Since(start), late+lease-margin(lease)-time.Millisecond)
		})
	})
	t.Run("the owner's, and the next is as late", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.lock(l, lockregistry.Lease(lease))
			w.pass(2 * time.Second)
			f.next("renew", deposed(":1\r\n"), silence)
			w.unavailable(l.Renew(w.Context(), lease), "renew")
			end := <-w.watch(l.Context(w.Context()), theKey)
			require.Less(w, time.Since(start), lease)
			require.Positive(w, end.left)
		})
	})
	t.Run("the owner's, on a master that is none", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			w.lock(l, lockregistry.Lease(lease))
			w.do("DEL", theKey)
			f.next("renew", deposed(":1\r\n"))
			w.fails(l.Renew(w.Context(), lease), lockregistry.ErrLockLost, "renew", theKey)
		})
	})
}

// A removal that is answered late is followed by another one, where the successor is.
func TestLateReply_ALateRemoval(t *testing.T) {
	t.Parallel()
	t.Run("answered", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			w.lock(l, lockregistry.Lease(time.Hour))
			releases := f.count("release")
			f.next("release", deposed(":1\r\n"))
			start := time.Now()
			require.NoError(w, l.Unlock(w.Context()))
			require.Equal(w, late, time.Since(start))
			require.True(w, w.free(theKey))
			require.Equal(w, releases+2, f.count("release"))
			over := f.carriers("release")[releases:]
			require.NotSame(w, over[0], over[1])
		})
	})
	t.Run("answered in the background", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			w.lock(l, lockregistry.Lease(time.Hour))
			answer := make(chan struct{})
			f.all("release", heldUp(answer))
			f.next("release", deposed(":1\r\n"))
			start := time.Now()
			w.unavailable(l.Unlock(w.Context()), "unlock")
			require.Equal(w, time.Second, time.Since(start))
			locked := w.goroutine().starts(l)
			w.settle()
			w.pending(locked)
			require.False(w, w.free(theKey))
			close(answer)
			require.NoError(w, <-locked)
		})
	})
	t.Run("in the background", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			f := w.flaky()
			r := f.registry()
			w.known(r)
			l := r.Obtain("42")
			w.lock(l, lockregistry.Lease(time.Hour))
			f.next("release", refused(loading), deposed(":1\r\n"))
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			w.unavailable(l.Unlock(ctx), "unlock")
			w.pass(time.Second)
			require.True(w, w.free(theKey))
		})
	})
}
