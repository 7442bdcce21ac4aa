package faults_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A late grant whose confirmation fails does not count, and nothing stays behind.
func TestLateReply_ALateGrantThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{
		"the key is another's": {Lost: true, Reply: ":0\r\n"},
		"late as well":         kit.SlowReply(2 * time.Second),
		"no answer":            kit.Silence,
		"cut":                  kit.CutAfter,
		"refused":              kit.Refused(kit.Loading),
	} {
		for op, call := range kit.LockingCalls {
			t.Run(name+"/"+op, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := f.Registry()
					w.Known(r)
					f.Fates("obtain", kit.SlowReply(kit.LateAfter))
					f.Fates("renew", what)
					w.Unavailable(call(w.Context(), r, lockregistry.Lease(time.Hour)), op)
					require.False(w, r.Obtain("42").IsHeld())
					start := time.Now()
					w.AwaitGone(kit.TheKey)
					require.LessOrEqual(w, time.Since(start), time.Second)
				})
			})
		}
	}
}

// A late grant by a deposed master does not count: its successor grants the lock to somebody else.
func TestLateReply_AGrantByADeposedMaster(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string][]lockregistry.LockOption{
		"without Wait": nil,
		"with Wait":    {lockregistry.Wait(2 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				f.Fates("obtain", kit.DeposedAnswer("+OK\r\n"))
				w.Lock(w.Registry().Obtain("42"))
				value := w.Do("GET", kit.TheKey)
				ok, err := r.Obtain("42").TryLock(w.Context(), wait...)
				require.False(w, ok)
				if wait == nil {
					w.Unavailable(err, "trylock")
				} else {
					require.NoError(w, err, "it has asked the successor meanwhile")
				}
				w.Pass(time.Second)
				require.Equal(w, value, w.Do("GET", kit.TheKey))
			})
		})
	}
}

// A renewal with a late reply prolongs nothing, and is sent again.
func TestLateReply_ALateRenewal(t *testing.T) {
	t.Parallel()
	const lease = 9 * time.Second
	t.Run("the scheduler's", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
			w.Known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.Lock(l)
			renewals := f.Count("renew")
			f.Fates("renew", kit.DeposedAnswer(":1\r\n"))
			w.Pass(lease/3 + kit.LateAfter)
			w.Settle()
			sent := f.Sent("renew")[renewals:]
			require.Len(w, sent, 2)
			require.Equal(w, start.Add(lease/3), sent[0].Sent)
			require.Equal(w, start.Add(lease/3+kit.LateAfter), sent[1].Sent, "at once")
			require.NotSame(w, sent[0].Over, sent[1].Over)
			require.Equal(w, lease, w.Pttl(kit.TheKey))
		})
	})
	t.Run("the scheduler's, and no other is answered", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease))
			w.Known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.Lock(l)
			f.Fate("renew", kit.Silence)
			f.Fates("renew", kit.DeposedAnswer(":1\r\n"))
			end := <-w.Watch(l.Context(w.Context()), kit.TheKey)
			require.ErrorIs(w, end.Cause, lockregistry.ErrLockLost)
			require.Less(w, time.Since(start), lease, "the late answer prolongs nothing")
			require.Positive(w, end.Left)
		})
	})
	t.Run("the owner's", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			w.Lock(l, lockregistry.Lease(lease))
			w.Pass(2 * time.Second)
			renewals := f.Count("renew")
			f.Fates("renew", kit.DeposedAnswer(":1\r\n"))
			start := time.Now()
			require.NoError(w, l.Renew(w.Context(), lease))
			require.Equal(w, kit.LateAfter, time.Since(start))
			require.Equal(w, renewals+2, f.Count("renew"))
			require.Equal(w, lease, w.Pttl(kit.TheKey))
			<-l.Context(w.Context()).Done()
			require.GreaterOrEqual(w, time.Since(start), kit.LateAfter+lease-kit.DriftMargin(lease)-time.Millisecond)
		})
	})
	t.Run("the owner's, and the next is as late", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			start := time.Now()
			w.Lock(l, lockregistry.Lease(lease))
			w.Pass(2 * time.Second)
			f.Fates("renew", kit.DeposedAnswer(":1\r\n"), kit.Silence)
			w.Unavailable(l.Renew(w.Context(), lease), "renew")
			end := <-w.Watch(l.Context(w.Context()), kit.TheKey)
			require.Less(w, time.Since(start), lease)
			require.Positive(w, end.Left)
		})
	})
	t.Run("the owner's, on a master that is none", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			w.Lock(l, lockregistry.Lease(lease))
			w.Do("DEL", kit.TheKey)
			f.Fates("renew", kit.DeposedAnswer(":1\r\n"))
			w.Fails(l.Renew(w.Context(), lease), lockregistry.ErrLockLost, "renew", kit.TheKey)
		})
	})
}

// A removal with a late reply is followed by another one, which goes to the successor.
func TestLateReply_ALateRemoval(t *testing.T) {
	t.Parallel()
	t.Run("answered", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			w.Lock(l, lockregistry.Lease(time.Hour))
			releases := f.Count("release")
			f.Fates("release", kit.DeposedAnswer(":1\r\n"))
			start := time.Now()
			w.Released(l.Unlock(w.Context()))
			require.Equal(w, kit.LateAfter, time.Since(start))
			require.True(w, w.Free(kit.TheKey))
			require.Equal(w, releases+2, f.Count("release"))
			over := carriers(f, "release")[releases:]
			require.NotSame(w, over[0], over[1])
		})
	})
	t.Run("answered in the background", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			w.Lock(l, lockregistry.Lease(time.Hour))
			answer := make(chan struct{})
			f.Fate("release", kit.HeldUp(answer))
			f.Fates("release", kit.DeposedAnswer(":1\r\n"))
			start := time.Now()
			w.Unavailable(l.Unlock(w.Context()), "unlock")
			require.Equal(w, time.Second, time.Since(start))
			locked := w.Goroutine().Starts(l)
			w.Settle()
			w.Pending(locked)
			require.False(w, w.Free(kit.TheKey))
			close(answer)
			require.NoError(w, <-locked)
		})
	})
	t.Run("in the background", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			f := w.Flaky()
			r := f.Registry()
			w.Known(r)
			l := r.Obtain("42")
			w.Lock(l, lockregistry.Lease(time.Hour))
			f.Fates("release", kit.Refused(kit.Loading), kit.DeposedAnswer(":1\r\n"))
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			w.Unavailable(l.Unlock(ctx), "unlock")
			w.Pass(time.Second)
			require.True(w, w.Free(kit.TheKey))
		})
	})
}

// carriers are the connections over which the commands of a name were sent.
func carriers(f *kit.Flaky, name string) (over []*kit.Link) {
	for _, c := range f.Sent(name) {
		over = append(over, c.Over)
	}
	return over
}

func TestLateReply_ALateGrantIsConfirmed(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	layouts := map[string][]lockregistry.Option{
		"Spring":   nil,
		"Redisson": {lockregistry.WithRedissonLayout()},
	}
	for name, opts := range layouts {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(opts...)
				w.Known(r)
				l := r.Obtain("42")
				renewals, tries, before := f.Count("renew"), f.Count("obtain"), f.Links()
				f.Fates("obtain", kit.SlowReply(kit.LateAfter))
				start := time.Now()
				w.Lock(l, lockregistry.Lease(lease))
				require.Equal(w, kit.LateAfter, time.Since(start))
				require.Equal(w, tries+1, f.Count("obtain"))
				sent := f.Sent("renew")[renewals:]
				require.Len(w, sent, 1)
				require.Equal(w, start.Add(kit.LateAfter), sent[0].Sent, "after the answer")
				require.False(w, slices.Contains(before, sent[0].Over), "over a connection made since")

				require.Equal(w, lease, w.Pttl(kit.TheKey))
				<-l.Context(w.Context()).Done()
				least := kit.LateAfter + lease - kit.DriftMargin(lease) - time.Millisecond
				require.GreaterOrEqual(w, time.Since(start), least, "it counts from the renewal")
				require.Less(w, time.Since(start), kit.LateAfter+lease)
			})
		})
	}
}

// A reply is late after half a second, or after a third of the lease, even while the round trip is unknown.
func TestLateReply_WhenAnAnswerIsLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lease, took time.Duration
		known, late bool // known: the round trip is known
	}{
		{time.Minute, 490 * time.Millisecond, true, false},
		{time.Minute, 500 * time.Millisecond, true, true},
		{900 * time.Millisecond, 290 * time.Millisecond, true, false},
		{900 * time.Millisecond, 300 * time.Millisecond, true, true},
		{time.Minute, 490 * time.Millisecond, false, false},
		{time.Minute, 500 * time.Millisecond, false, true},
	} {
		t.Run(fmt.Sprint(c.took, " of ", c.lease, " ", c.known), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				if c.known {
					w.Known(r)
				}
				renewals := f.Count("renew")
				f.Fates("obtain", kit.SlowReply(c.took))
				w.Lock(r.Obtain("42"), lockregistry.Lease(c.lease))
				confirmed := f.Count("renew") > renewals
				require.Equal(w, c.late, confirmed)
			})
		})
	}
}
