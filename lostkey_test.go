package lockregistry_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// The key of a hold that its process knows to be lost does not outlive its lease for long, although nobody unlocks.

// outlive makes everything in Redis stay for ten minutes, as a clock of the server that was set back would.
func (w *world) outlive() {
	w.Helper()
	w.do("EVAL", "for _, key in ipairs(redis.call('KEYS', 'orders:*')) do redis.call('PEXPIRE', key, 600000) end", "0")
}

// lostWithin is how long after the end of a lease of lostLease its key is removed, at most.
const lostWithin = 3 * time.Second

func TestLock_TheKeyOfALostHoldIsRemoved(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		for kind, pick := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					f := w.flaky()
					l := pick(f.registry(polling, lockregistry.WithLayout(layout)))
					sent := func() []command { return slices.Concat(f.sent("release"), f.sent("read"), f.sent("write")) }
					w.lock(l)
					w.unlock(l) // the server knows the script from now on
					owner := lockregistry.NewOwner(w.Context())
					require.NoError(w, l.Lock(owner, lockregistry.Lease(lostLease)))
					w.outlive()
					told, start, before := l.Context(owner), time.Now(), len(sent())
					<-told.Done()
					w.pass(lostLease - time.Since(start))
					w.settle()
					require.False(w, w.free(l.Key()), "its owner may be at work until the lease ends")
					require.Len(w, sent(), before)
					w.pass(lostWithin)
					w.settle()
					require.True(w, w.free(l.Key()))
					require.Len(w, sent(), before+1)
					w.pass(time.Minute)
					require.Len(w, sent(), before+1, "once")

					// Neither it, when it arrives once more, nor the owner that unlocks at last touches a later hold.
					other := pick(w.registry(polling, lockregistry.WithLayout(layout)))
					w.lock(other)
					w.arrives(sent()[before])
					w.fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", l.Key())
					w.pass(time.Second)
					w.unlock(other)
				})
			})
		}
	}
}

// A renewal that is answered too late has made the key live for one more lease.
func TestLock_TheKeyThatWasRenewedTooLateIsRemoved(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		l := f.registry(polling).Obtain("42")
		w.lock(l, lockregistry.Lease(lostLease))
		require.NoError(w, l.Renew(w.Context(), lostLease)) // the server knows the script from now on
		f.all("renew", slow(lostLease))
		w.pass(lostLease / 2)
		require.Error(w, l.Renew(w.Context(), lostLease))
		require.False(w, l.IsHeld())
		require.False(w, w.free(theKey))
		w.outlive()
		w.pass(lostWithin)
		w.settle()
		require.True(w, w.free(theKey))
	})
}

// Redis does not answer when it is time: it is asked again.
func TestLock_TheKeyOfALostHoldIsRemovedAfterAnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(polling)
		l := r.Obtain("42")
		w.lock(l, lockregistry.Lease(lostLease))
		w.outlive()
		told := l.Context(w.Context())
		f.all("release", refused(loading))
		<-told.Done()
		w.pass(lostWithin + 5*time.Second)
		require.False(w, w.free(theKey))
		require.Equal(w, 1, r.Stats().Removals)
		f.Forget()
		w.pass(2 * time.Second)
		require.True(w, w.free(theKey))
		require.Zero(w, r.Stats().Removals)
	})
}

// Where Redis has said that the key is not the hold's, nothing is to be removed.
func TestLock_NothingIsSentForAKeyThatIsGone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *world, r *lockregistry.Registry){
		"gone":   func(w *world, _ *lockregistry.Registry) { w.do("DEL", theKey) },
		"taken":  func(w *world, _ *lockregistry.Registry) { w.do("SET", theKey, "x:1", "PX", "600000") },
		"forced": func(w *world, r *lockregistry.Registry) { require.NoError(w, r.ForceUnlock(w.Context(), "42")) },
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling, lockregistry.WithLease(lostLease), lockregistry.WithRenewal())
				l := r.Obtain("42")
				w.lock(l)
				told := l.Context(w.Context())
				lose(w, r)
				<-told.Done()
				w.pass(time.Minute)
				require.Zero(w, f.count("release"))
			})
		})
	}
}

// An owner that unlocks before it is time has the key removed at once, and nothing is sent later. Close leaves it to its lease.
func TestLock_TheKeyOfALostHoldIsRemovedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends  func(r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) error
		sends int
	}{
		"unlocked": {func(_ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) error { return l.Unlock(ctx) }, 1},
		"closed":   {func(r *lockregistry.Registry, _ *lockregistry.Lock, _ context.Context) error { return r.Close() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling)
				l := r.Obtain("42")
				w.lock(l)
				w.unlock(l) // the server knows the script from now on
				w.lock(l, lockregistry.Lease(lostLease))
				w.outlive()
				told, before := l.Context(w.Context()), f.count("release")
				<-told.Done()
				err := c.ends(r, l, w.Context())
				if c.sends > 0 {
					require.ErrorIs(w, err, lockregistry.ErrLockLost)
				} else {
					require.NoError(w, err)
				}
				w.settle()
				require.Equal(w, c.sends == 0, !w.free(theKey))
				w.pass(time.Minute)
				require.Equal(w, before+c.sends, f.count("release"))
			})
		})
	}
}

// Without renewal, a context or a waiter nobody notices that the lease is over. The key stays until somebody does.
func TestLock_TheKeyOfALossThatNobodyNoticed(t *testing.T) {
	t.Parallel()
	for name, notices := range map[string]func(w *world, l *lockregistry.Lock){
		"unlock": func(w *world, l *lockregistry.Lock) {
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", l.Key())
		},
		"renew": func(w *world, l *lockregistry.Lock) {
			w.fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", l.Key())
		},
		"IsHeld":  func(w *world, l *lockregistry.Lock) { require.False(w, l.IsHeld()) },
		"Context": func(w *world, l *lockregistry.Lock) { require.Error(w, l.Context(w.Context()).Err()) },
		"a try of another goroutine": func(w *world, l *lockregistry.Lock) {
			require.True(w, w.tryElsewhere(l))
		},
	} {
		for kind, pick := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					l := pick(w.registry(polling))
					w.lock(l, lockregistry.Lease(lostLease))
					w.outlive()
					w.pass(time.Minute)
					require.False(w, w.free(l.Key()), "nobody has noticed")
					notices(w, l)
					w.pass(time.Second)
					require.True(w, w.free(l.Key()))
				})
			})
		}
	}
}

// The owner unlocks while the removal is under way, and another hold follows: whichever is answered first, both are over, and
// the later hold is not touched.
func TestLock_ALostHoldIsUnlockedDuringItsRemoval(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]fate{
		"the first is answered first": {slow(300 * time.Millisecond), slow(600 * time.Millisecond)},
		"the first is answered last":  {slow(300 * time.Millisecond), delivered},
		"the first fails":             {cutAfter, delivered},
		"the second fails":            {slow(300 * time.Millisecond), refused(loading)},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := w.registryOn(f.client(ownConnections), polling)
				l := r.Obtain("42")
				w.lock(l)
				w.unlock(l) // the server knows the script from now on
				w.lock(l, lockregistry.Lease(lostLease))
				w.outlive()
				told, before := l.Context(w.Context()), f.count("release")
				f.next("release", fates...)
				<-told.Done()
				w.await("its removal", func() bool { return f.count("release") > before })
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
				w.lock(l)
				w.pass(5 * time.Second)
				require.True(w, l.IsHeld())
				require.False(w, w.free(theKey))
				require.Zero(w, r.Stats().Removals)
				require.LessOrEqual(w, f.count("release"), before+3)
				w.unlock(l)
				require.True(w, w.free(theKey))
			})
		})
	}
}

// What is to stay taken for longer than the lease is not freed before, and not taken for longer.
func TestLock_TheKeyOfALostHoldIsKept(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry(polling).Obtain("42")
		w.lock(l, lockregistry.Lease(lostLease), lockregistry.AtLeast(time.Minute))
		w.outlive()
		told, start, value := l.Context(w.Context()), time.Now(), w.do("GET", theKey)
		<-told.Done()
		w.pass(time.Minute - time.Since(start) - time.Millisecond)
		w.settle()
		require.Equal(w, value, w.do("GET", theKey), "the owner may want it free at once, when its work fails")
		w.pass(time.Second)
		w.settle()
		require.True(w, w.free(theKey))
	})
}

// Many holds that are lost at once are no flood.
func TestLock_ManyLostHoldsAreRemovedAtAPace(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const paths = 600
		f := w.flaky()
		r := w.registryOn(f.client(pipelining), polling)
		for i := range paths {
			l := r.Obtain(strconv.Itoa(i))
			w.lock(l, lockregistry.Lease(lostLease))
			_ = l.Context(w.Context())
		}
		w.outlive()
		f.all("release", refused(loading))
		w.pass(lostLease + lostWithin)
		before := f.count("release")
		require.NotZero(w, before)
		w.pass(3 * time.Second)
		require.Less(w, f.count("release")-before, 3*10*(256+100), "while it fails, a pipeline each poll interval")
		f.Forget()
		w.pass(10 * time.Second)
		require.Equal(w, "0", w.keys())
		require.Zero(w, r.Stats().Removals)
	})
}
