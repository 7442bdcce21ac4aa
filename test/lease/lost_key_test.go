package lease_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// When the process knows that a hold is lost, its key does not outlive its lease for long, even if nobody unlocks.

// outlive makes everything in Redis stay for ten minutes, as if the server's clock had been set back.
func outlive(w *kit.World) {
	w.Helper()
	w.Do("EVAL", "for _, key in ipairs(redis.call('KEYS', 'orders:*')) do redis.call('PEXPIRE', key, 600000) end", "0")
}

// lostWithin is how long after the end of a lease of lostLease its key is removed, at most.
const lostWithin = 3 * time.Second

func TestLock_TheKeyOfALostHoldIsRemoved(t *testing.T) {
	t.Parallel()
	for name, layout := range kit.Layouts {
		for kind, pick := range kit.LockKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					l := pick(f.Registry(kit.Polling, kit.WithLayout(layout)))
					sent := func() []kit.Command { return slices.Concat(f.Sent("release"), f.Sent("read"), f.Sent("write")) }
					w.Lock(l)
					w.Unlock(l) // the server knows the script from now on
					owner := lockregistry.ContextWithOwner(w.Context())
					require.NoError(w, l.Lock(owner, lockregistry.Lease(lostLease)))
					outlive(w)
					told, start, before := l.Context(owner), time.Now(), len(sent())
					<-told.Done()
					w.Pass(lostLease - time.Since(start))
					w.Settle()
					require.False(w, w.Free(kit.Key(l)), "its owner may be at work until the lease ends")
					require.Len(w, sent(), before)
					w.Pass(lostWithin)
					w.Settle()
					require.True(w, w.Free(kit.Key(l)))
					require.Len(w, sent(), before+1)
					w.Pass(time.Minute)
					require.Len(w, sent(), before+1, "once")

					// Neither the removal, when it arrives again, nor the late unlock of the owner affects a later hold.
					other := pick(w.Registry(kit.Polling, kit.WithLayout(layout)))
					w.Lock(other)
					w.Arrives(sent()[before])
					w.Fails(l.Unlock(owner), lockregistry.ErrLockLost, "unlock", kit.Key(l))
					w.Pass(time.Second)
					w.Unlock(other)
				})
			})
		}
	}
}

// A renewal whose reply came too late has extended the key by another lease.
func TestLock_TheKeyThatWasRenewedTooLateIsRemoved(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(kit.Polling).Obtain("42")
		w.Lock(l, lockregistry.Lease(lostLease))
		require.NoError(w, l.Renew(w.Context(), lostLease)) // the server knows the script from now on
		f.Fate("renew", kit.SlowReply(lostLease))
		w.Pass(lostLease / 2)
		require.Error(w, l.Renew(w.Context(), lostLease))
		require.False(w, l.IsHeld())
		require.False(w, w.Free(kit.TheKey))
		outlive(w)
		w.Pass(lostWithin)
		w.Settle()
		require.True(w, w.Free(kit.TheKey))
	})
}

// If Redis does not answer when the key is to be removed, the removal is tried again.
func TestLock_TheKeyOfALostHoldIsRemovedAfterAnOutage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(kit.Polling)
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(lostLease))
		outlive(w)
		told := l.Context(w.Context())
		f.Fate("release", kit.Refused(kit.Loading))
		<-told.Done()
		w.Pass(lostWithin + 5*time.Second)
		require.False(w, w.Free(kit.TheKey))
		require.Equal(w, 1, r.Stats().Removals)
		f.Forget()
		w.Pass(2 * time.Second)
		require.True(w, w.Free(kit.TheKey))
		require.Zero(w, r.Stats().Removals)
	})
}

// If Redis has said that the key is not the hold's, no removal is sent.
func TestLock_NothingIsSentForAKeyThatIsGone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *kit.World, r *lockregistry.Registry){
		"gone":  func(w *kit.World, _ *lockregistry.Registry) { w.Do("DEL", kit.TheKey) },
		"taken": func(w *kit.World, _ *lockregistry.Registry) { w.Do("SET", kit.TheKey, "x:1", "PX", "600000") },
		"forced": func(w *kit.World, r *lockregistry.Registry) {
			require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "42"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithLease(lostLease), lockregistry.WithRenewal())
				l := r.Obtain("42")
				w.Lock(l)
				told := l.Context(w.Context())
				lose(w, r)
				<-told.Done()
				w.Pass(time.Minute)
				require.Zero(w, f.Count("release"))
			})
		})
	}
}

// If the owner unlocks before the removal is due, the key is removed at once, and nothing is sent later. Close leaves the key
// to its lease.
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
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling)
				l := r.Obtain("42")
				w.Lock(l)
				w.Unlock(l) // the server knows the script from now on
				w.Lock(l, lockregistry.Lease(lostLease))
				outlive(w)
				told, before := l.Context(w.Context()), f.Count("release")
				<-told.Done()
				err := c.ends(r, l, w.Context())
				if c.sends > 0 {
					require.ErrorIs(w, err, lockregistry.ErrLockLost)
				} else {
					require.NoError(w, err)
				}
				w.Settle()
				require.Equal(w, c.sends == 0, !w.Free(kit.TheKey))
				w.Pass(time.Minute)
				require.Equal(w, before+c.sends, f.Count("release"))
			})
		})
	}
}

// Without renewal, a context or a waiter nobody notices that the lease is over. The key stays until somebody does.
func TestLock_TheKeyOfALossThatNobodyNoticed(t *testing.T) {
	t.Parallel()
	for name, notices := range map[string]func(w *kit.World, l *lockregistry.Lock){
		"unlock": func(w *kit.World, l *lockregistry.Lock) {
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.Key(l))
		},
		"renew": func(w *kit.World, l *lockregistry.Lock) {
			w.Fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", kit.Key(l))
		},
		"IsHeld":  func(w *kit.World, l *lockregistry.Lock) { require.False(w, l.IsHeld()) },
		"Context": func(w *kit.World, l *lockregistry.Lock) { require.Error(w, l.Context(w.Context()).Err()) },
		"a try of another goroutine": func(w *kit.World, l *lockregistry.Lock) {
			require.True(w, w.TryElsewhere(l))
		},
	} {
		for kind, pick := range kit.LockKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					l := pick(w.Registry(kit.Polling))
					w.Lock(l, lockregistry.Lease(lostLease))
					outlive(w)
					w.Pass(time.Minute)
					require.False(w, w.Free(kit.Key(l)), "nobody has noticed")
					notices(w, l)
					w.Pass(time.Second)
					require.True(w, w.Free(kit.Key(l)))
				})
			})
		}
	}
}

// The owner unlocks while the removal is under way, and another hold follows. Whichever is answered first, both come to an end,
// and the later hold is not affected.
func TestLock_ALostHoldIsUnlockedDuringItsRemoval(t *testing.T) {
	t.Parallel()
	for name, fates := range map[string][]kit.Fate{
		"the first is answered first": {kit.SlowReply(300 * time.Millisecond), kit.SlowReply(600 * time.Millisecond)},
		"the first is answered last":  {kit.SlowReply(300 * time.Millisecond), kit.Delivered},
		"the first fails":             {kit.CutAfter, kit.Delivered},
		"the second fails":            {kit.SlowReply(300 * time.Millisecond), kit.Refused(kit.Loading)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := w.RegistryOn(kit.Apart(f.Client()), kit.Polling)
				l := r.Obtain("42")
				w.Lock(l)
				w.Unlock(l) // the server knows the script from now on
				w.Lock(l, lockregistry.Lease(lostLease))
				outlive(w)
				told, before := l.Context(w.Context()), f.Count("release")
				f.Fates("release", fates...)
				<-told.Done()
				w.Await("its removal", func() bool { return f.Count("release") > before })
				require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
				w.Lock(l)
				w.Pass(5 * time.Second)
				require.True(w, l.IsHeld())
				require.False(w, w.Free(kit.TheKey))
				require.Zero(w, r.Stats().Removals)
				require.LessOrEqual(w, f.Count("release"), before+3)
				w.Unlock(l)
				require.True(w, w.Free(kit.TheKey))
			})
		})
	}
}

// A path that AtLeast keeps for longer than the lease is neither freed earlier nor kept longer.
func TestLock_TheKeyOfALostHoldIsKept(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(kit.Polling).Obtain("42")
		w.Lock(l, lockregistry.Lease(lostLease), lockregistry.AtLeast(time.Minute))
		outlive(w)
		told, start, value := l.Context(w.Context()), time.Now(), w.Do("GET", kit.TheKey)
		<-told.Done()
		w.Pass(time.Minute - time.Since(start) - time.Millisecond)
		w.Settle()
		require.Equal(w, value, w.Do("GET", kit.TheKey), "the owner may want it free at once, when its work fails")
		w.Pass(time.Second)
		w.Settle()
		require.True(w, w.Free(kit.TheKey))
	})
}

// The keys of many holds that are lost at once are removed at a limited rate.
func TestLock_ManyLostHoldsAreRemovedAtAPace(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const paths = 600
		f := w.Flaky()
		r := w.RegistryOn(f.Client(kit.Pipelining), kit.Polling)
		for i := range paths {
			l := r.Obtain(strconv.Itoa(i))
			w.Lock(l, lockregistry.Lease(lostLease))
			_ = l.Context(w.Context())
		}
		outlive(w)
		f.Fate("release", kit.Refused(kit.Loading))
		w.Pass(lostLease + lostWithin)
		before := f.Count("release")
		require.NotZero(w, before)
		w.Pass(3 * time.Second)
		require.Less(w, f.Count("release")-before, 3*10*(256+100), "while it fails, a pipeline each poll interval")
		f.Forget()
		w.Pass(10 * time.Second)
		require.Equal(w, "0", w.Keys())
		require.Zero(w, r.Stats().Removals)
	})
}
