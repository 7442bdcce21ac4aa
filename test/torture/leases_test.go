package torture

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
)

// A process must not believe in a hold that others may already have: it announces the loss before the key can expire.

// expiring returns when a key expires, in milliseconds of Unix time; PEXPIRETIME exists only from version 7 on. The server
// reads its clock before the time that is left, so the result is not late, but it may be a millisecond early.
const expiring = `
local now, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
return left < 0 and left or now[1] * 1000 + math.floor(now[2] / 1000) + left`

// expiry returns when the key expires.
func (s *stage) expiry() time.Time {
	s.Helper()
	ms, err := strconv.ParseInt(s.do("EVAL", expiring, "1", keyOf(s.path)), 10, 64)
	require.NoError(s, err)
	require.Positive(s, ms, "there is no key, or it never expires")
	return time.UnixMilli(ms)
}

// postponed returns a function that reports whether the key expires later than it first did. Two results of expiry differ by a
// millisecond or so; a renewal adds far more.
func (s *stage) postponed(first time.Time) func() bool {
	s.Helper()
	return func() bool { return s.expiry().Sub(first) > 100*time.Millisecond }
}

// loss says until when the process believed in a hold, and why the hold was reported lost.
type loss struct {
	believed time.Time
	why      error
}

// losing reports when the hold of an owner is lost.
func (s *stage) losing(ctx context.Context, p process) <-chan loss {
	alive := p.context(ctx, s.path)
	lost := make(chan loss, 1)
	go func() {
		var l loss
		for ended := false; !ended; {
			at := time.Now() // before the look: what is believed after this moment was believed at it, too
			if alive.Err() == nil {
				l.believed = at
			}
			select {
			case <-alive.Done():
				ended = true
			case <-time.After(time.Millisecond):
			}
		}
		l.why = context.Cause(alive)
		lost <- l
	}()
	return lost
}

// honest checks that a loss was reported, and that nobody believed in the hold any more when the key could expire. The library
// stops a hundredth of the lease early, here at least 30 ms. When its timer fires does not matter: a busy machine may be late.
func (s *stage) honest(lost <-chan loss, expires time.Time) {
	s.Helper()
	got := arrives(s, "the loss", lost)
	require.ErrorIs(s, got.why, lockregistry.ErrLockLost)
	lead := expires.Sub(got.believed)
	s.Logf("believed until %v before the key could expire", lead)
	require.Greater(s, lead, 20*time.Millisecond, "too long")
	require.False(s, s.a.held(s.path))
}

func TestFrozenServer(t *testing.T) {
	t.Parallel()
	for name, renewal := range map[string]bool{"with renewal": true, "without renewal": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, library, serve(t), settings{Lease: 4 * time.Second, Poll: poll, Renewal: renewal, Handoff: -1})
			ctx := s.owner()
			s.must(ctx, s.a, 0)
			lost := s.losing(ctx, s.a)
			if first := s.expiry(); renewal {
				s.await("a renewal", s.postponed(first))
			}
			var expires time.Time
			for renewed := true; renewed; { // on a busy machine a renewal may come in between
				before := s.times(netfault.Match{Name: "renew"})
				expires = s.expiry()
				s.server.Freeze()
				if renewed = s.times(netfault.Match{Name: "renew"}) > before; renewed {
					s.server.Thaw()
				}
			}
			s.honest(lost, expires)
			s.await("the end of the lease", func() bool { return time.Since(expires) > 10*time.Millisecond })
			s.server.Thaw()
			s.is(s.a.unlock(s.soon(ctx), s.path), lockregistry.ErrLockLost)
			s.free()
			require.Empty(s, s.found)
		})
	}
}

// The network freezes instead: the server goes on, and really lets the key expire.
func TestFrozenNetwork(t *testing.T) {
	t.Parallel()
	s := newStage(t, library, serve(t), settings{Lease: 3 * time.Second, Poll: poll, Renewal: true, Handoff: -1})
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	lost := s.losing(ctx, s.a)
	first := s.expiry()
	s.await("a renewal", s.postponed(first))
	s.proxy.Freeze()
	expires := s.expiry()
	next := s.owner()
	s.must(next, s.b, longer)
	require.False(s, s.a.held(s.path), "two processes hold the lock")
	s.honest(lost, expires)
	check := s.unharmed()
	s.proxy.Thaw()
	s.is(s.a.unlock(s.soon(ctx), s.path), lockregistry.ErrLockLost)
	check()
	s.unlocks(next, s.b)
	require.Empty(s, s.found)
}

// A renewal with a short lease arrives after a later one with a long lease: the key lives only as long as the short one.
func TestOvertakenRenewal(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"connection cut": true, "caller gave up": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const short = 3 * time.Second
			s := newStage(t, library, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
			ctx := s.owner()
			s.must(ctx, s.a, 0)
			lost := s.losing(ctx, s.a)
			h := netfault.Hold(cut)
			s.proxy.Next(netfault.Match{Name: "renew"}, netfault.Fate{Held: h})
			d := delay{cut: cut}
			d.unanswered(s, d.lose(ctx, s, h, func(ctx context.Context) error { return s.a.renew(ctx, s.path, short) }))
			s.await("a renewal with a longer lease", func() bool { return s.a.renew(s.soon(ctx), s.path, longer) == nil })
			s.deliver(h)
			s.honest(lost, s.expiry())
			require.Empty(s, s.found)
		})
	}
}

// The grant itself arrives once more, after a renewal with a longer lease. In a queue each try is for another hold.
func TestOvertakenGrant(t *testing.T) {
	t.Parallel()
	const short = 3 * time.Second
	s := newStage(t, library, serve(t), settings{Lease: short, Poll: poll, Wakeup: "poll", Handoff: -1})
	holder, ctx := s.owner(), s.owner()
	s.must(holder, s.b, longer)
	h := netfault.Hold(true)
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{})
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{Held: h})
	got := make(chan error, 1)
	go func() {
		_, err := s.a.lock(s.soon(ctx), s.path, -1, short)
		got <- err
	}()
	arrives(s, "the second try", h.Arrived())
	s.unlocks(holder, s.b)
	require.NoError(s, arrives(s, "the lock", got))
	lost := s.losing(ctx, s.a)
	require.NoError(s, s.a.renew(s.soon(ctx), s.path, longer))
	require.NotEmpty(s, h.Deliver())
	s.honest(lost, s.expiry())
	require.Empty(s, s.found)
}

// A reply that comes when the lease is over is no lock.
func TestLateReply(t *testing.T) {
	t.Parallel()
	const brief = 200 * time.Millisecond
	for name, again := range map[string]bool{"first try": false, "second try": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, library, serve(t), settings{Lease: brief, Poll: poll, Handoff: -1})
			ctx, holder := s.owner(), s.owner()
			if again {
				s.must(holder, s.b, longer)
				s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{})
			}
			h := netfault.Hold(false)
			s.proxy.All(netfault.Match{Name: "obtain"}, netfault.Fate{Held: h, Linger: brief})
			type result struct {
				ok  bool
				err error
			}
			got := make(chan result, 1)
			go func() {
				ok, err := s.a.lock(s.soon(ctx), s.path, 10*brief, 0)
				got <- result{ok, err}
			}()
			arrives(s, "the command", h.Arrived())
			if again {
				s.unlocks(holder, s.b)
			}
			s.proxy.All(netfault.Match{Name: "obtain"}, netfault.Fate{Linger: brief})
			h.Release()
			r := arrives(s, "the outcome", got)
			require.False(s, r.ok, "locked with a lease that is over")
			require.Error(s, r.err, "and nobody else holds the lock")
			s.wrapped(r.err)
			require.False(s, s.a.held(s.path))
			s.proxy.Heal()
			s.free()
			require.Empty(s, s.found)
		})
	}
}

// Renewal in the background outlasts whatever is shorter than the lease.
func TestRenewalSurvives(t *testing.T) {
	t.Parallel()
	server := serve(t)
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second
			s := newStage(t, library, server, settings{Lease: lease, Poll: poll, Renewal: true, Handoff: -1})
			ctx := s.owner()
			s.must(ctx, s.a, 0)
			began := time.Now()
			alive := s.a.context(ctx, s.path)
			s.proxy.Next(netfault.Match{Name: "renew"}, b.fate)
			s.await("the end of the first lease", func() bool { return time.Since(began) > lease+poll })
			require.NoError(s, context.Cause(alive))
			require.True(s, s.a.held(s.path))
			require.True(s, s.expiry().After(time.Now()))
			s.unlocks(ctx, s.a)
			s.free()
			require.Empty(s, s.found)
		})
	}
}
