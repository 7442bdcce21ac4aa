package faults_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// lateUnlockLease is the lease of a section that ends 70 ms before the lease does. The server executes the removal 30 ms after
// it.
const lateUnlockLease = time.Second

// almostOver lets most of the lease pass, and from then on delays releases on their way to the server.
func almostOver(w *kit.World, f *kit.Flaky) {
	w.Helper()
	w.Pass(930 * time.Millisecond)
	for _, release := range []string{"release", "write_release", "read_release", "permits_release"} {
		f.Fate(release, kit.Fate{Delay: 100 * time.Millisecond})
	}
}

// inLayouts runs a test with each layout.
func inLayouts(t *testing.T, test func(w *kit.World)) {
	t.Helper()
	for name, layout := range kit.Layouts {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				w.Layout = layout
				test(w)
			})
		})
	}
}

// lateUnlocks are the ways to end a section. Each locks, calls end in the section, and returns the error of the unlock.
var lateUnlocks = map[string]func(w *kit.World, r *lockregistry.Registry, end func()) (op string, err error){
	"lock": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(lateUnlockLease))
		ctx := l.Context(w.Context())
		end()
		require.NoError(w, ctx.Err())
		require.True(w, l.IsHeld())
		return "unlock", l.Unlock(w.Context())
	},
	"writer": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		l := r.ReadWrite("42").Writer()
		w.Lock(l, lockregistry.Lease(lateUnlockLease))
		end()
		return "unlock", l.Unlock(w.Context())
	},
	"reader": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		l := r.ReadWrite("42").Reader()
		w.Lock(l, lockregistry.Lease(lateUnlockLease))
		end()
		return "unlock", l.Unlock(w.Context())
	},
	"semaphore": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		h := w.Permit(r.Semaphore("42", 2), lockregistry.Lease(lateUnlockLease), lockregistry.AtMost(lateUnlockLease))
		end()
		return "release", h.Release(w.Context())
	},
	"several": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		h, err := r.AcquireAll(w.Context(), []string{"42", "43"},
			lockregistry.Lease(lateUnlockLease), lockregistry.AtMost(lateUnlockLease))
		require.NoError(w, err)
		end()
		return "release", h.Release(w.Context())
	},
	"do": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		return "unlock", r.Do(w.Context(), "42", func(context.Context) error { end(); return nil },
			lockregistry.Lease(lateUnlockLease), lockregistry.AtMost(lateUnlockLease))
	},
	"handed over": func(w *kit.World, r *lockregistry.Registry, end func()) (string, error) {
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(lateUnlockLease))
		next := w.Goroutine()
		locked := next.Starts(l, lockregistry.Lease(lateUnlockLease))
		w.Settle()
		w.Unlock(l)
		require.NoError(w, <-locked)
		end()
		return "unlock", next.Unlock(l)
	},
}

// A section ended within its lease, and the key had expired when the removal reached the server. The reply does not say whether
// the key was there until then: so the error says neither that all was well nor that the lock was lost.
func TestLateUnlock_NobodyKnows(t *testing.T) {
	t.Parallel()
	for name, section := range lateUnlocks {
		t.Run(name, func(t *testing.T) {
			inLayouts(t, func(w *kit.World) {
				f, o := w.Flaky(), w.Witness()
				r := f.Registry(o.Option())
				op, err := section(w, r, func() { almostOver(w, f) })
				if name == "semaphore" {
					require.NoError(w, err, "a permit stays until somebody needs it, so it was there")
					return
				}
				w.Unavailable(err, op)
				require.ErrorContains(w, err, "the lock was valid until this call")
				for {
					if released := <-o.Released; released.How != observe.EndHandedOver {
						require.Equal(w, observe.EndUnknown, released.How)
						require.ErrorIs(w, released.Err, lockregistry.ErrUnavailable)
						break
					}
				}
				require.Empty(w, o.Lost)
				f.Forget()
				w.LeftNothing()
				ok, err := r.Obtain("42").TryLock(w.Context())
				require.NoError(w, err)
				require.True(w, ok, "the local half is free")
			})
		})
	}
}

// Another owner was inside during the section, since the key was removed by hand. A reply after the end of the lease cannot
// prove that, but one within the lease does.
func TestLateUnlock_AnotherOwnerWasInside(t *testing.T) {
	t.Parallel()
	for late, reason := range map[bool]error{true: lockregistry.ErrUnavailable, false: lockregistry.ErrLockLost} {
		for name, section := range lateUnlocks {
			t.Run(name+" "+reason.Error(), func(t *testing.T) {
				inLayouts(t, func(w *kit.World) {
					f := w.Flaky()
					_, err := section(w, f.Registry(), func() {
						if late {
							almostOver(w, f)
						}
						w.Do("FLUSHALL")
						w.Lock(w.Registry().Obtain("42"))
					})
					require.ErrorIs(w, err, reason)
					for _, other := range []error{lockregistry.ErrUnavailable, lockregistry.ErrLockLost} {
						require.Equal(w, errors.Is(other, reason), errors.Is(err, other))
					}
				})
			})
		}
	}
}

// If the key had to be kept, its absence is a loss, whenever the server reports it.
func TestLateUnlock_TheKeyHadToStay(t *testing.T) {
	t.Parallel()
	t.Run("AtLeast", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			l := f.Registry().Obtain("42")
			w.Lock(l, lockregistry.Lease(lateUnlockLease), lockregistry.AtLeast(time.Hour))
			almostOver(w, f)
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		})
	})
	t.Run("Once", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			f.Fate("renew", kit.Refused(kit.Loading))
			ran, err := f.Registry().Once(w.Context(), "42", 500*time.Millisecond, func(context.Context) error {
				almostOver(w, f)
				return nil
			}, lockregistry.Lease(lateUnlockLease))
			require.True(w, ran)
			w.Fails(err, lockregistry.ErrLockLost, "release", kit.TheKey)
		})
	})
}

// The server may no longer be the master that granted the lock, and has not confirmed the hold since: then it is reported lost.
func TestLateUnlock_TheHoldWasDoubted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		w.Lock(l, lockregistry.Lease(lateUnlockLease))
		f.Fate("renew", kit.Refused(kit.Loading)) // including the command that verifies a hold
		kit.Verify(l)
		almostOver(w, f)
		require.True(w, l.IsHeld())
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
	})
}
