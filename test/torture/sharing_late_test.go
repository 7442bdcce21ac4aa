package torture

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/netfault"
)

// An owner that writes and reads under it has two holds in one key. A lost or late command of one hold must not harm the other.

// reads has the owner that writes read as well.
func (s *stage) reads(ctx context.Context, of time.Duration) (reader process, alive context.Context) {
	s.Helper()
	reader = s.a.(readWrite).reader()
	ok, err := reader.lock(s.soon(ctx), s.path, 0, of)
	require.NoError(s, err)
	require.True(s, ok)
	return reader, reader.context(ctx, s.path)
}

// gets tries to lock.
func (s *stage) gets(ctx context.Context, p process) bool {
	s.Helper()
	ok, err := p.lock(s.soon(ctx), s.path, 0, 0)
	require.NoError(s, err)
	return ok
}

func (s *stage) holders() []string {
	s.Helper()
	return strings.Fields(s.do("HKEYS", keyOf(s.path)))
}

// still returns a check that everyone who joined the holders since then still has the lock, for as long as now. Others may have
// come or gone.
func (s *stage) still(since []string) (check func()) {
	s.Helper()
	left := func() time.Duration {
		ms, err := strconv.Atoi(s.do("PTTL", keyOf(s.path)))
		require.NoError(s, err)
		return time.Duration(ms) * time.Millisecond
	}
	began, first := time.Now(), left()
	came := slices.DeleteFunc(s.holders(), func(h string) bool { return slices.Contains(since, h) })
	require.NotEmpty(s, came)
	return func() {
		s.Helper()
		require.Subset(s, s.holders(), came)
		require.GreaterOrEqual(s, left(), first-time.Since(began)-2*time.Millisecond, "the lease was cut")
	}
}

// TestLateReader expects that a reader's command that arrives when it no longer reads harms no owner, and that nobody is kept
// out once the owner of that moment has left.
func TestLateReader(t *testing.T) {
	t.Parallel()
	server := serve(t)
	for _, command := range []string{"obtain", "renew", "release"} {
		for i := range 8 {
			d, reads := delay{cut: i&1 != 0, same: i&2 != 0}, i&4 != 0
			t.Run(fmt.Sprintf("%s, next reads: %t, %v", command, reads, d), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, sharing, server, settings{Lease: lease, Poll: poll, Handoff: -1})
				reader := s.a.(readWrite).reader()
				ctx, late := s.owner(), netfault.Hold(d.cut)
				lock := func(ctx context.Context) error {
					_, err := reader.lock(ctx, s.path, -1, 0)
					return err
				}
				if command != "obtain" {
					require.NoError(s, lock(ctx))
				}
				s.proxy.Next(netfault.Match{Name: command}, netfault.Fate{Held: late})
				err := d.lose(ctx, s, late, map[string]func(context.Context) error{
					"obtain":  lock,
					"renew":   func(ctx context.Context) error { return reader.renew(ctx, s.path, lease/2) },
					"release": func(ctx context.Context) error { return reader.unlock(ctx, s.path) },
				}[command])
				if command == "release" {
					d.lost(s, err)
				} else {
					d.unanswered(s, err)
				}
				if command == "renew" {
					s.unlocksOnDying(ctx, reader)
				}
				next, nextCtx := s.b, s.owner()
				if d.same {
					next = s.a
				}
				if reads {
					next = next.(readWrite).reader()
				}
				since := s.holders()
				s.must(nextCtx, next, longer)
				check := s.still(since)
				s.deliver(late)
				check()
				s.unlocks(nextCtx, next)
				s.free()
				require.Empty(s, s.found)
			})
		}
	}
}

// TestRenewalUnderReader expects that a renewal of one of the two holds does not shorten the lease of the other.
func TestRenewalUnderReader(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	reader, _ := s.reads(ctx, longer)
	check := s.still(nil)
	require.NoError(s, s.a.renew(ctx, s.path, lease/2))
	check()
	require.NoError(s, s.a.renew(ctx, s.path, 2*longer))
	check = s.still(nil)
	require.NoError(s, reader.renew(ctx, s.path, lease/2))
	check()
	s.unlocks(ctx, s.a)
	s.unlocks(ctx, reader)
	s.free()
	require.Empty(s, s.found)
}

// TestReadingOn expects that a writer that gives up writing reads on together with others, and that each keeps its lease
// whatever becomes of the others' holds.
func TestReadingOn(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	ctx, otherCtx := s.owner(), s.owner()
	s.must(ctx, s.a, 0)
	reader, _ := s.reads(ctx, longer)
	other := s.b.(readWrite).reader()
	require.False(s, s.gets(otherCtx, other), "one reads while another writes")
	s.unlocks(ctx, s.a)
	check := s.still(nil)
	require.False(s, s.gets(s.owner(), s.b), "one writes while another reads")
	require.True(s, s.gets(otherCtx, other), "who reads keeps others from reading")
	require.NoError(s, other.renew(otherCtx, s.path, lease/2))
	check()
	s.unlocks(otherCtx, other)
	check()
	require.False(s, s.gets(s.owner(), s.b), "one writes while another reads")
	s.unlocks(ctx, reader)
	s.free()
	require.Empty(s, s.found)
}

// TestLateGrantUnderReader expects that a try to write that arrives after a later one was granted does not cut the lease of a
// reader under it.
func TestLateGrantUnderReader(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	const short = 3 * time.Second
	holder, ctx := s.owner(), s.owner()
	s.must(holder, s.b, 0)
	late := netfault.Hold(true)
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{})
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{Held: late})
	got := make(chan error, 1)
	go func() {
		_, err := s.a.lock(s.soon(ctx), s.path, -1, short)
		got <- err
	}()
	arrives(s, "the second try", late.Arrived())
	s.unlocks(holder, s.b)
	require.NoError(s, arrives(s, "the lock", got))
	reader, alive := s.reads(ctx, 0)
	s.deliver(late)
	s.await("the end of the write lease", func() bool { return !s.a.held(s.path) })
	ok, err := s.b.lock(s.soon(s.owner()), s.path, short, 0)
	require.NoError(s, err)
	require.False(s, ok && alive.Err() == nil && reader.held(s.path), "one writes while another reads")
	require.NoError(s, reader.unlock(ctx, s.path))
}

// TestLateRemovalUnderReader expects that others get in once the owner has given up reading as well, even if the removal of its
// write hold does not get through until the lease is over.
func TestLateRemovalUnderReader(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	const short = 2 * time.Second
	ctx := s.owner()
	s.must(ctx, s.a, short)
	reader, _ := s.reads(ctx, 0)
	s.proxy.All(netfault.Match{Name: "release"}, netfault.Fate{Cut: netfault.CutRequest(0)})
	s.fromNetwork(s.a.unlock(s.soon(ctx), s.path))
	wait(3 * short)
	s.proxy.Heal()
	s.unlocksOnDying(ctx, reader)
	s.free()
	require.Empty(s, s.found)
}

// TestReadingUnderGrantedWriter expects that a writer that was granted the lock in the queue can read under it and go on
// writing.
func TestReadingUnderGrantedWriter(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.asks(s.a)
	s.await("a ticket", func() bool { return len(s.tickets()) == 1 })
	s.unlocks(holder, s.b)
	require.NoError(s, arrives(s, "the lock", w.got))
	before := s.holders()
	reader, alive := s.reads(w.ctx, 0)
	require.Subset(s, s.holders(), before)
	other := s.owner()
	require.False(s, s.gets(other, s.b.(readWrite).reader()), "another process reads while one writes")
	require.NoError(s, alive.Err())
	s.unlocks(w.ctx, reader)
	s.unlocks(w.ctx, s.a)
	s.free()
	require.Empty(s, s.found)
}

// TestReadingBesideLongerLease expects that a reader with a short lease does not end the longer lease of another process.
func TestReadingBesideLongerLease(t *testing.T) {
	t.Parallel()
	s := newStage(t, sharing, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	ctx, other := s.owner(), s.owner()
	reader, alive := s.reads(ctx, longer)
	check := s.unharmed()
	require.True(s, s.gets(other, s.b.(readWrite).reader()))
	require.Greater(s, time.Until(s.expiry()), lease)
	s.unlocks(other, s.b.(readWrite).reader())
	check()
	require.NoError(s, alive.Err())
	s.unlocks(ctx, reader)
	s.free()
	require.Empty(s, s.found)
}
