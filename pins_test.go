package lockregistry

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// newCached makes a registry for its cache. There is no Redis, since the cache never talks to it.
func newCached(capacity int) *Registry {
	r := &Registry{transport: &onClient{Client: &transport.Client{Clock: clock.New()}}}
	r.cache.init(capacity)
	r.prefix = "orders"
	r.plain = new(queue.Shared).Kind(hold.Kind{Format: protocol.NewSpring(protocol.Config{})}, "")
	return r
}

func TestCache_ExpireUnusedBoundaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Minute
		r := newCached(10)
		<-time.After(time.Second)
		made, locked := r.Obtain("made"), r.Obtain("locked long ago")
		<-time.After(age - 1)
		require.Zero(t, r.ExpireUnusedOlderThan(age))
		locked.entry().Use(r.now())
		<-time.After(1)
		require.Equal(t, 1, r.ExpireUnusedOlderThan(age), "the one that was made exactly so long ago and never locked")
		require.NotSame(t, made, r.Obtain("made"))
		require.Same(t, locked, r.Obtain("locked long ago"), "to obtain a lock is not to lock it")
		<-time.After(age - 2)
		require.Zero(t, r.ExpireUnusedOlderThan(age))
		<-time.After(1)
		require.Equal(t, 1, r.ExpireUnusedOlderThan(age))
		require.Equal(t, 1, r.cache.Len())

		require.Zero(t, r.ExpireUnusedOlderThan(math.MaxInt64), "an age beyond the registry's own")
		require.Equal(t, 1, r.cache.Len())
		for i, every := range []time.Duration{0, -1, math.MinInt64} {
			r.Obtain("new")
			require.Equal(t, []int{2, 1, 1}[i], r.ExpireUnusedOlderThan(every), "all that are not in use")
			require.Zero(t, r.cache.Len())
		}
		require.Zero(t, r.ExpireUnusedOlderThan(0))
	})
}

// A lock counts as in use while it is held; a call that fails leaves no use behind.
func TestCache_LocksAreInUseForAsLongAsTheyAre(t *testing.T) {
	m := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{m.Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	r, err := New(client, "orders", WithPollInterval(time.Millisecond))
	require.NoError(t, err)
	require.NoError(t, r.SetCapacity(2))
	defer func() { require.NoError(t, r.Close()) }()
	ctx := t.Context()
	l := r.Obtain("42")
	pins := func(want int32) {
		t.Helper()
		require.Equal(t, want, l.entry().Pins())
	}

	pins(0)
	require.NoError(t, l.Lock(ctx))
	pins(1)
	require.NoError(t, l.Lock(ctx))
	pins(1)
	other := ContextWithOwner(ctx)
	ok, err := l.TryLock(other)
	require.NoError(t, err)
	require.False(t, ok)
	pins(1)
	require.ErrorIs(t, l.Lock(other, Wait(time.Millisecond)), ErrTaken)
	pins(1)
	require.ErrorIs(t, l.Unlock(other), ErrNotOwner)
	pins(1)
	require.NoError(t, l.Unlock(ctx))
	pins(1)
	require.NoError(t, l.Unlock(ctx))
	pins(0)

	require.NoError(t, m.Set("orders:42", "somebody else's"))
	ok, err = l.TryLock(ctx)
	require.NoError(t, err)
	require.False(t, ok)
	pins(0)
	require.ErrorIs(t, l.Lock(ctx, Wait(time.Second)), ErrTaken)
	pins(0)
	require.Error(t, l.Lock(cancelled()))
	pins(0)
	m.Del("orders:42")

	require.NoError(t, l.Lock(ctx))
	m.Del("orders:42")
	require.ErrorIs(t, l.Lock(ctx), ErrLockLost)
	pins(1)
	require.ErrorIs(t, l.Unlock(ctx), ErrLockLost)
	require.Eventually(t, func() bool { return l.entry().Pins() == 0 }, 10*time.Second, time.Millisecond,
		"what is left of a lost hold is removed in the background")
	require.Panics(t, func() { _ = r.Do(ctx, "42", func(context.Context) error { panic("of fn") }) })
	pins(0)
}

func TestCache_CapacitiesThatAreNone(t *testing.T) {
	r := newCached(2)
	for _, n := range []int{0, -1, math.MinInt} {
		require.ErrorContains(t, r.SetCapacity(n), "SetCapacity("+strconv.Itoa(n)+")")
	}
	require.NoError(t, r.SetCapacity(1))
	r.Obtain("a")
	r.Obtain("b")
	require.Equal(t, 1, r.cache.Len())
}

// A reader whose pair was dropped is used through the pair that has replaced it.
func TestCache_SidesComeAndGoTogether(t *testing.T) {
	r := newCached(1)
	r.read, r.write = r.plain, r.plain
	old := r.ReadWrite("a")
	r.Obtain("a") // a plain lock of the path is another one
	now := r.ReadWrite("a")
	require.NotSame(t, old, now)
	used, err := r.cache.pin(&old.reader)
	require.NoError(t, err)
	require.Same(t, &now.reader, used)
	require.Same(t, &now.reader, r.cache.current(&old.reader))
	require.Same(t, &now.writer, r.cache.current(&old.writer))
	r.Obtain("a")
	require.Same(t, now, r.ReadWrite("a"), "its reader is in use")
	used.unpin()
	r.Obtain("a")
	require.NotSame(t, now, r.ReadWrite("a"))
}

// A registry may keep a million locks, so each takes as little memory as it can: exactly one of the allocator's sizes.
func TestLock_TakesLittleMemory(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(plainLock{}), uintptr(224))
	require.LessOrEqual(t, unsafe.Sizeof(ReadWriteLock{}), uintptr(512))
}

// A message looks for the mailbox before it looks for the hold. The mailbox of a reader's call is at the writer's path.
func TestCache_TheWriterIsAskedBeforeTheReader(t *testing.T) {
	r := newCached(10)
	r.read, r.write = r.plain, r.plain
	r.Obtain("42")
	rw := r.ReadWrite("42")
	require.Equal(t, []*Lock{r.Obtain("42"), rw.Writer(), rw.Reader()}, slices.Collect(r.cache.of("42")))
}
