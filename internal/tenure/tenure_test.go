package tenure

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// half is a local half with one owner.
type half struct {
	local.Half

	owner owner.ID
	locks int
}

func (h *half) HeldBy(o owner.ID) bool { return h.owner == o && h.locks > 0 }

func (h *half) Exit(o owner.ID) (local.Departure, fault.Loss) {
	switch {
	case !h.HeldBy(o):
		return local.NotIn, fault.NotLost
	case h.locks > 1:
		h.locks--
		return local.Stays, fault.NotLost
	default:
		h.locks = 0
		return local.Last, fault.NotLost
	}
}

func (h *half) Nest(o owner.ID) bool {
	if !h.HeldBy(o) {
		return false
	}
	h.locks++
	return true
}

// held is a lock that an owner has, once, with a context.
func held(parent context.Context, t *testing.T, o owner.ID) (*Held, *half, context.Context) {
	t.Helper()
	l, at := &Held{}, &half{owner: o, locks: 1}
	l.Store(hold.New(&hold.Path{}, "me:1", hold.Terms{}))
	in := CarriedBy(parent)
	_, c, already := l.Carry(in.Carried, at, o, l.Load())
	require.False(t, already)
	return l, at, in.Carrying(parent, c)
}

func TestNewOwner_IsShared(t *testing.T) {
	ctx := NewOwner(t.Context())
	ownerOf := func(ctx context.Context) owner.ID { return CarriedBy(ctx).Caller() }
	require.True(t, ownerOf(ctx).Shared())
	require.NotEqual(t, ownerOf(ctx), ownerOf(NewOwner(ctx)))
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	require.Equal(t, ownerOf(ctx), ownerOf(child))
	require.False(t, ownerOf(t.Context()).Shared())
	require.Equal(t, owner.Calling(), ownerOf(t.Context()))
}

func TestTenure_EndsWithTheLastUnlock(t *testing.T) {
	o := owner.Calling()
	l, at, ctx := held(t.Context(), t, o)
	in := CarriedBy(ctx).At(l)
	require.NotNil(t, in)
	c := CarriedBy(ctx).Carried
	_, same, already := l.Carry(c, at, o, l.Load())
	require.True(t, already)
	require.Same(t, c, same)

	require.True(t, in.Nest(at))
	how, _ := l.Exit(at, o)
	require.Equal(t, local.Stays, how)
	require.True(t, in.Lasts())
	how, _ = l.Exit(at, o)
	require.Equal(t, local.Last, how)
	require.False(t, in.Lasts())
	require.Nil(t, CarriedBy(ctx).At(l))
	require.Same(t, in, CarriedBy(ctx).Innermost())

	at.locks = 1 // the same owner locks once more, and has the same hold
	require.False(t, in.Nest(at), "of another tenure")
	require.Equal(t, 1, at.locks)
	again, next, already := l.Carry(c, at, o, l.Load())
	require.False(t, already)
	require.NotSame(t, in, again)
	require.Same(t, again, next.At(l))
}

func TestTenure_EndsWithTheHold(t *testing.T) {
	l, at, ctx := held(t.Context(), t, owner.Calling())
	in := CarriedBy(ctx).At(l)
	l.Store(nil)
	require.False(t, in.Lasts())
	require.False(t, in.Nest(at))
}

// If an owner has unlocked by the time that it gets a tenure, the tenure does not last, and lacks the token of the next owner.
func TestTenure_OfAnOwnerThatHasLeft(t *testing.T) {
	l := &Held{}
	l.Store(hold.New(&hold.Path{}, "me:1", hold.Terms{}))
	in := l.Tenure(&half{}, owner.Calling(), l.Load(), 7)
	require.False(t, in.Lasts())
	require.Zero(t, in.Token)
	require.EqualValues(t, 7, l.Tenure(&half{}, owner.NewHold(), l.Load(), 7).Token, "it is the hold's own")
}

func TestCarried_ANewOwnerHidesTheHold(t *testing.T) {
	o := owner.Calling()
	l, _, ctx := held(t.Context(), t, o)
	ctx = NewOwner(ctx)
	require.Nil(t, CarriedBy(ctx).At(l))
	require.Nil(t, CarriedBy(ctx).Innermost())
	require.NotEqual(t, o, l.OwnerOf(CarriedBy(ctx).Carried))
	require.Equal(t, []owner.ID{o}, CarriedBy(ctx).Owners(), "the graph of waiting calls knows it")
	for made := range CarriedBy(ctx).All() {
		require.Equal(t, CarriedBy(ctx).Caller(), made)
		break
	}
}

func TestCarried_KeepsNothingThatIsOver(t *testing.T) {
	ctx := t.Context()
	for range 3 {
		var l *Held
		l, _, ctx = held(ctx, t, owner.New())
		l.Store(nil)
	}
	l, _, ctx := held(ctx, t, owner.New())
	require.NotNil(t, CarriedBy(ctx).At(l))
	require.Nil(t, CarriedBy(ctx).outer)
	over := CarriedBy(ctx).With(Over())
	require.NotNil(t, over.At(l), "the one around it lasts")
	require.Zero(t, over.Innermost().Token)
}

func TestHeld_LentUntilTheEnd(t *testing.T) {
	o := owner.Calling()
	l, at, ctx := held(t.Context(), t, o)
	require.False(t, (&Held{}).Delegated(o))
	require.False(t, l.Delegated(o))
	require.True(t, CarriedBy(ctx).At(l).Nest(at))
	require.True(t, l.Delegated(o))
	require.False(t, l.Delegated(owner.New()))
	_, _ = l.Exit(at, o)
	require.True(t, l.Delegated(o))
	_, _ = l.Exit(at, o)
	require.False(t, l.Delegated(o))
}

func TestCarried_WhatNests(t *testing.T) {
	l, _, ctx := held(t.Context(), t, owner.NewHold())
	require.Nil(t, CarriedBy(ctx).At(l), "nothing nests in a Hold")
	_, _, ctx = held(t.Context(), t, owner.Calling())
	anywhere := func(*hold.Hold) bool { return true }
	require.Nil(t, CarriedBy(ctx).Deadlock(owner.Calling(), anywhere), "the call nests")
	var c *Carried
	require.Nil(t, c.Deadlock(owner.NewHold(), anywhere))
	require.Empty(t, c.Owners())
}

// shared is a local half whose owners share a hold.
type shared struct {
	local.Half

	mu     sync.Mutex
	owners map[owner.ID]bool
}

func (h *shared) HeldBy(o owner.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owners[o]
}

func (h *shared) Exit(o owner.ID) (local.Departure, fault.Loss) {
	runtime.Gosched() // the other one meets the mutex
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.owners, o)
	return local.Leaves, fault.NotLost
}

// One owner leaves, and takes the tenures along, while another one gets a context: its tenure is among those of the lock, so it
// ends when that owner leaves, too, and nothing is kept.
func TestHeld_TenuresComeAndGo(t *testing.T) {
	const anna, bert owner.ID = 1, 2
	for range 500 {
		l, half := &Held{}, &shared{owners: map[owner.ID]bool{anna: true, bert: true}}
		h := hold.New(&hold.Path{}, "me:1", hold.Terms{})
		l.Store(h)
		first := l.Tenure(half, anna, h, 0)
		found := l.tenures.Load() // by a call that is to take their mutex
		var second *Tenure
		var both sync.WaitGroup
		both.Go(func() { l.Exit(half, anna) })
		both.Go(func() { second = l.Tenure(half, bert, h, 0) })
		both.Wait()
		require.False(t, first.Lasts())
		require.True(t, second.Lasts())
		require.Same(t, second, l.Tenure(half, bert, h, 0))
		l.Exit(half, bert)
		require.False(t, second.Lasts())
		require.Nil(t, l.tenures.Load(), "kept for nobody")
		require.False(t, l.take(found))
	}
}

// An owner whose hold was lost, and who was evicted, leaves nothing behind.
func TestHeld_TenureOfALostHold(t *testing.T) {
	l, at, ctx := held(t.Context(), t, owner.ID(1))
	c := CarriedBy(ctx).Carried
	l.Store(nil)
	how, _ := l.Exit(&evicted{*at}, owner.ID(1))
	require.Equal(t, local.Lost, how)
	require.False(t, c.Innermost().Lasts())
	require.Nil(t, l.tenures.Load())
	c.Innermost().StartRenewing() // does nothing
	require.False(t, c.Innermost().Nest(at))
}

// evicted is a local half whose owner was evicted.
type evicted struct{ half }

func (evicted) Exit(owner.ID) (local.Departure, fault.Loss) { return local.Lost, fault.LeaseOver }

func (evicted) Lost(owner.ID) fault.Loss { return fault.NotLost } // it has locked once
