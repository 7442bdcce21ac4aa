package lockregistry

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// newCached is a registry, for its cache: the cache itself never talks to Redis, so there is none.
func newCached(capacity int) *Registry {
	r := &Registry{clock: clock.New(), cache: cache{capacity: capacity}}
	r.prefix, r.plain = "orders", &kind{}
	return r
}

// sound checks that the parts of a cache agree with each other.
func sound(t *testing.T, c *cache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := map[*Lock]bool{}
	c.locks.Range(func(path, l any) bool {
		stored[l.(*Lock)] = true
		require.Equal(t, path, l.(*Lock).path())
		require.GreaterOrEqual(t, l.(*Lock).pins.Load(), int32(0))
		return true
	})
	require.Len(t, stored, c.size)
	parked := 0
	for l := range stored {
		if l.parked.Load() {
			parked++
		}
	}
	require.Equal(t, c.size, len(c.queue)+len(c.rest)+parked)
	for _, q := range slices.Concat(c.queue, c.rest) {
		require.True(t, stored[q.lock], "the queue knows a lock that the cache does not: %s", q.lock.path())
	}
}

// cacheModel is what the cache is meant to be, in its simplest form: a list of locks, the least recently obtained first.
type cacheModel struct {
	capacity int
	order    []*Lock
	pins     map[*Lock]int
}

func (m *cacheModel) has(path string) *Lock {
	for _, l := range m.order {
		if l.path() == path {
			return l
		}
	}
	return nil
}

func (m *cacheModel) use(l *Lock) {
	m.order = slices.DeleteFunc(m.order, func(other *Lock) bool { return other == l })
	m.order = append(m.order, l)
}

// shrink makes room: it drops the least recently obtained locks that nobody uses, as many of them as are too many.
func (m *cacheModel) shrink(to int) {
	excess := len(m.order) - to
	m.order = slices.DeleteFunc(m.order, func(l *Lock) bool {
		if excess <= 0 || m.pins[l] > 0 {
			return false
		}
		excess--
		return true
	})
}

func TestCache_AgainstAModel(t *testing.T) {
	for _, capacity := range []int{1, 2, 3, 7, 20} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			modelled(t, rand.New(rand.NewPCG(seed, 0)), capacity)
		})
	}
}

func modelled(t *testing.T, dice *rand.Rand, capacity int) {
	t.Helper()
	r := newCached(capacity)
	m := &cacheModel{capacity: capacity, pins: map[*Lock]int{}}
	var kept []*Lock    // objects that somebody has kept, dropped or not
	var inUse []*Lock   // one entry per pin
	drops, full := 0, 0 // to see that the test tests something
	// room makes room in the model for one more lock, and tells whether there is room.
	room := func() bool {
		before := len(m.order)
		m.shrink(m.capacity - 1)
		drops += before - len(m.order)
		return len(m.order) < m.capacity
	}
	for range 20_000 {
		switch action := dice.IntN(100); {
		case action < 50:
			path := strconv.Itoa(dice.IntN(2*capacity + 3))
			l := r.Obtain(path)
			require.Equal(t, path, l.path())
			if known := m.has(path); known != nil {
				require.Same(t, known, l)
				m.use(l)
			} else if room() {
				m.use(l)
			} else {
				full++
			}
			if dice.IntN(4) == 0 {
				kept = append(kept, l)
			}
		case action < 70 && len(kept) > 0:
			l := kept[dice.IntN(len(kept))]
			now, err := r.cache.pin(l)
			known := m.has(l.path())
			switch {
			case known != nil:
				require.NoError(t, err)
				require.Same(t, known, now)
			case room():
				require.NoError(t, err)
				require.Same(t, l, now, "the object comes back")
				m.use(l)
			default:
				full++
				require.ErrorIs(t, err, ErrCapacity)
				require.Nil(t, now)
				continue
			}
			m.pins[now]++
			inUse = append(inUse, now)
		case action < 92 && len(inUse) > 0:
			i := dice.IntN(len(inUse))
			l := inUse[i]
			inUse = slices.Delete(inUse, i, i+1)
			l.unpin()
			if m.pins[l]--; m.pins[l] == 0 {
				delete(m.pins, l)
			}
		case action < 94:
			m.capacity = 1 + dice.IntN(2*capacity)
			r.cache.resize(m.capacity)
			m.shrink(m.capacity)
		case action < 96:
			before := clock.Instant(dice.IntN(3) - 1)
			for _, l := range m.order {
				l.lockedAt.Store(int64(dice.IntN(3) - 1))
			}
			want := 0
			m.order = slices.DeleteFunc(m.order, func(l *Lock) bool {
				if m.pins[l] > 0 || clock.Instant(l.lockedAt.Load()) > before {
					return false
				}
				want++
				return true
			})
			require.Equal(t, want, r.cache.dropUnused(before))
		case action < 97 && len(kept) > 0:
			kept = slices.Delete(kept, 0, len(kept)/2)
		}
		require.Equal(t, len(m.order), r.Len())
		for _, l := range m.order {
			found, ok := r.cache.find(l.path())
			require.True(t, ok)
			require.Same(t, l, found)
			require.EqualValues(t, m.pins[l], l.pins.Load())
		}
		for _, l := range kept {
			want := l
			if known := m.has(l.path()); known != nil {
				want = known
			}
			require.Same(t, want, r.cache.current(l))
		}
	}
	sound(t, &r.cache)
	require.Positive(t, drops)
	require.Positive(t, full)
}

func TestCache_DropsTheLeastRecentlyObtained(t *testing.T) {
	r := newCached(3)
	a, b, c := r.Obtain("a"), r.Obtain("b"), r.Obtain("c")
	require.Same(t, a, r.Obtain("a")) // b is the oldest now
	now, err := r.cache.pin(c)        // to use a lock is not to obtain it
	require.NoError(t, err)
	require.Same(t, c, now)
	c.unpin()
	d := r.Obtain("d")
	require.Equal(t, 3, r.Len())
	require.NotSame(t, b, r.Obtain("b")) // and c goes
	require.Same(t, a, r.Obtain("a"))
	require.Same(t, d, r.Obtain("d"))
	require.NotSame(t, c, r.Obtain("c"))
	require.Equal(t, 3, r.Len())
	sound(t, &r.cache)
}

func TestCache_NeverDropsWhatIsInUse(t *testing.T) {
	r := newCached(3)
	first := r.Obtain("in use")
	_, err := r.cache.pin(first)
	require.NoError(t, err)
	for i := range 100 {
		r.Obtain(strconv.Itoa(i))
		require.LessOrEqual(t, r.Len(), 3)
	}
	require.Same(t, first, r.Obtain("in use"))
	require.Equal(t, 2, r.ExpireUnusedOlderThan(0))
	require.Same(t, first, r.Obtain("in use"))
	require.Equal(t, 1, r.Len())
	first.unpin()
	require.Equal(t, 1, r.ExpireUnusedOlderThan(0))
	require.Zero(t, r.Len())
	sound(t, &r.cache)
}

func TestCache_IsFull(t *testing.T) {
	r := newCached(2)
	a, b := r.Obtain("a"), r.Obtain("b")
	for _, l := range []*Lock{a, b, b} {
		_, err := r.cache.pin(l)
		require.NoError(t, err)
	}
	outside := r.Obtain("c")
	require.NotSame(t, outside, r.Obtain("c"), "nobody keeps it")
	require.Equal(t, 2, r.Len())
	for range 3 { // a failure leaves nothing behind
		_, err := r.cache.pin(outside)
		require.ErrorIs(t, err, ErrCapacity)
	}
	b.unpin()
	_, err := r.cache.pin(outside)
	require.ErrorIs(t, err, ErrCapacity, "b is in use still")
	b.unpin()
	now, err := r.cache.pin(outside)
	require.NoError(t, err)
	require.Same(t, outside, now)
	require.Same(t, outside, r.Obtain("c"))
	require.EqualValues(t, 1, outside.pins.Load())
	_, err = r.cache.pin(b)
	require.ErrorIs(t, err, ErrCapacity, "it was dropped for c")
	require.Equal(t, 2, r.Len())
	sound(t, &r.cache)
}

func TestCache_KeepsOneLockPerPath(t *testing.T) {
	r := newCached(1)
	old := r.Obtain("a")
	r.Obtain("b")
	now := r.Obtain("a")
	require.NotSame(t, old, now)
	require.Same(t, now, r.cache.current(old))
	for range 2 {
		used, err := r.cache.pin(old)
		require.NoError(t, err)
		require.Same(t, now, used)
	}
	require.EqualValues(t, 2, now.pins.Load())
	require.Negative(t, old.pins.Load())
	now.unpin()
	now.unpin()

	// When both are dropped, whichever is used first comes back, and the other one follows it.
	r.Obtain("b")
	require.Same(t, old, r.cache.current(old), "none takes its place")
	used, err := r.cache.pin(old)
	require.NoError(t, err)
	require.Same(t, old, used)
	used, err = r.cache.pin(now)
	require.NoError(t, err)
	require.Same(t, old, used)
	require.EqualValues(t, 2, old.pins.Load())
	sound(t, &r.cache)
}

// A lock that comes back is the most recently obtained one.
func TestCache_ReadmittedLockIsTheNewest(t *testing.T) {
	r := newCached(2)
	a := r.Obtain("a")
	r.Obtain("b")
	r.Obtain("c") // a goes
	_, err := r.cache.pin(a)
	require.NoError(t, err) // b goes
	a.unpin()
	r.Obtain("d") // c goes
	require.Same(t, a, r.Obtain("a"))
}

func TestCache_Resize(t *testing.T) {
	r := newCached(5)
	locks := make([]*Lock, 0, 5)
	for i := range 5 {
		locks = append(locks, r.Obtain(strconv.Itoa(i)))
	}
	for _, i := range []int{0, 2} {
		_, err := r.cache.pin(locks[i])
		require.NoError(t, err)
	}
	require.NoError(t, r.SetCapacity(3))
	require.Equal(t, 3, r.Len())
	for i, stays := range []bool{true, false, true, false, true} {
		_, ok := r.cache.find(strconv.Itoa(i))
		require.Equal(t, stays, ok, i)
	}
	require.NoError(t, r.SetCapacity(1))
	require.Equal(t, 2, r.Len(), "in use")
	_, err := r.cache.pin(locks[4])
	require.ErrorIs(t, err, ErrCapacity)
	locks[0].unpin()
	_, err = r.cache.pin(locks[4])
	require.ErrorIs(t, err, ErrCapacity, "one is in use, and there is room for one")
	require.Equal(t, 1, r.Len(), "what is too much goes as soon as it is not in use")
	require.NoError(t, r.SetCapacity(2))
	_, err = r.cache.pin(locks[4])
	require.NoError(t, err)

	for _, n := range []int{0, -1, math.MinInt} {
		err := r.SetCapacity(n)
		require.ErrorContains(t, err, "SetCapacity("+strconv.Itoa(n)+")")
		require.Equal(t, 2, r.cache.capacity)
	}
	sound(t, &r.cache)
}

// While many locks are looked at, new paths are let in between.
func TestCache_IsNotHeldUp(t *testing.T) {
	const locks = 100 * portion
	// It returns how often a new path was let in between. The scheduler may not let this goroutine run meanwhile.
	round := func(t *testing.T, drop func(r *Registry) (dropped int), all bool) (let int) {
		r := newCached(2 * locks)
		for i := range locks {
			r.Obtain(strconv.Itoa(i))
		}
		between := func() bool {
			r.cache.mu.Lock()
			defer r.cache.mu.Unlock()
			return len(r.cache.rest) > 0 || r.cache.resizing > 0
		}
		dropped := make(chan int)
		go func() { dropped <- drop(r) }()
		for n := 0; ; {
			if between() {
				let++
			}
			r.Obtain("new " + strconv.Itoa(n))
			n++
			select {
			case count := <-dropped:
				if all {
					require.Equal(t, locks+n, count+r.Len())
				}
				sound(t, &r.cache)
				return let
			default:
			}
		}
	}
	for name, drop := range map[string]func(r *Registry) (dropped int){
		"all expire":   func(r *Registry) int { return r.ExpireUnusedOlderThan(0) },
		"none expires": func(r *Registry) int { return r.ExpireUnusedOlderThan(time.Hour) },
		"the capacity shrinks": func(r *Registry) int {
			before := r.Len()
			require.NoError(t, r.SetCapacity(1))
			require.Less(t, r.Len(), before/2)
			require.NoError(t, r.SetCapacity(2*locks))
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			let := 0
			for rounds := 0; let <= 3 && rounds < 100; rounds++ {
				let += round(t, drop, name == "all expire")
			}
			require.Greater(t, let, 3)
		})
	}
}

// What ExpireUnusedOlderThan has yet to look at is dropped to make room like everything else.
func TestCache_MakesRoomWhileLocksExpire(t *testing.T) {
	r := newCached(6)
	for i := range 6 {
		r.Obtain(strconv.Itoa(i))
	}
	c := &r.cache
	c.rest, c.queue = c.queue, nil
	for range 2 {
		c.queue.add(c.rest.takeLast())
	}
	r.Obtain("1")
	for i, gone := range []string{"0", "2", "3", "4", "5", "1"} {
		sound(t, c)
		r.Obtain("new " + strconv.Itoa(i))
		_, ok := c.find(gone)
		require.False(t, ok, gone)
		require.Equal(t, 6, r.Len())
	}
	require.Empty(t, c.rest)
	sound(t, c)
}

// BenchmarkExpireUnused reports how long new paths wait while a million locks are looked at. On a busy machine the longest
// wait is that for a processor: compare it with that of "idle", where nothing is dropped.
func BenchmarkExpireUnused(b *testing.B) {
	const locks = 1_000_000
	for name, drop := range map[string]func(r *Registry){
		"all":      func(r *Registry) { r.ExpireUnusedOlderThan(0) },
		"none":     func(r *Registry) { r.ExpireUnusedOlderThan(time.Hour) },
		"capacity": func(r *Registry) { _ = r.SetCapacity(10) },
		"idle":     func(*Registry) { <-time.After(time.Second) },
	} {
		b.Run(name, func(b *testing.B) {
			var waits []time.Duration
			for b.Loop() {
				b.StopTimer()
				r := newCached(2 * locks)
				for i := range locks {
					r.Obtain(strconv.Itoa(i))
				}
				runtime.GC()
				done := make(chan struct{})
				b.StartTimer()
				go func() {
					drop(r)
					close(done)
				}()
				for i, ended := 0, false; !ended; i++ {
					start := time.Now()
					r.Obtain("new " + strconv.Itoa(i))
					waits = append(waits, time.Since(start))
					select {
					case <-done:
						ended = true
					case <-time.After(time.Millisecond):
					}
				}
			}
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "µs-wait-p99")
			b.ReportMetric(float64(waits[len(waits)-1].Microseconds()), "µs-wait-longest")
		})
	}
}

func TestCache_ExpireUnusedBoundaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Minute
		r := newCached(10)
		<-time.After(time.Second)
		made, locked := r.Obtain("made"), r.Obtain("locked long ago")
		<-time.After(age - 1)
		require.Zero(t, r.ExpireUnusedOlderThan(age))
		locked.lockedAt.Store(int64(r.clock.Now()))
		<-time.After(1)
		require.Equal(t, 1, r.ExpireUnusedOlderThan(age), "the one that was made exactly so long ago and never locked")
		require.NotSame(t, made, r.Obtain("made"))
		require.Same(t, locked, r.Obtain("locked long ago"), "to obtain a lock is not to lock it")
		<-time.After(age - 2)
		require.Zero(t, r.ExpireUnusedOlderThan(age))
		<-time.After(1)
		require.Equal(t, 1, r.ExpireUnusedOlderThan(age))
		require.Equal(t, 1, r.Len())

		require.Zero(t, r.ExpireUnusedOlderThan(math.MaxInt64), "an age beyond the registry's own")
		require.Equal(t, 1, r.Len())
		for i, every := range []time.Duration{0, -1, math.MinInt64} {
			r.Obtain("new")
			require.Equal(t, []int{2, 1, 1}[i], r.ExpireUnusedOlderThan(every), "all that are not in use")
			require.Zero(t, r.Len())
		}
		require.Zero(t, r.ExpireUnusedOlderThan(0))
		sound(t, &r.cache)
	})
}

// Many goroutines use few paths through objects of any age, while the cache is so small that it drops them all the time.
// What is in use must be one object per path.
func TestCache_Hammer(t *testing.T) {
	for capacity := 1; capacity <= 3; capacity++ {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			const goroutines, rounds, paths = 16, 3000, 4
			r := newCached(capacity)
			type use struct {
				mu    sync.Mutex
				lock  *Lock
				users int
			}
			var uses [paths]use
			var used, full, returned atomic.Int64
			var done sync.WaitGroup
			for g := range goroutines {
				done.Go(func() {
					dice := rand.New(rand.NewPCG(seed, uint64(g)))
					var kept [paths]*Lock
					for range rounds {
						p := dice.IntN(paths)
						if kept[p] == nil || dice.IntN(4) == 0 {
							kept[p] = r.Obtain(strconv.Itoa(p))
						}
						switch dice.IntN(50) {
						case 0:
							r.ExpireUnusedOlderThan(0)
						case 1:
							r.cache.resize(1 + dice.IntN(capacity))
						}
						l, err := r.cache.pin(kept[p])
						if err != nil {
							assert.ErrorIs(t, err, ErrCapacity) //nolint:testifylint // not the goroutine of the test
							full.Add(1)
							runtime.Gosched()
							continue
						}
						if l != kept[p] {
							returned.Add(1)
						}
						u := &uses[p]
						u.mu.Lock()
						if u.users == 0 {
							u.lock = l
						}
						assert.Same(t, u.lock, l, "two locks of one path are in use")
						u.users++
						u.mu.Unlock()

						found, ok := r.cache.find(strconv.Itoa(p))
						assert.True(t, ok && found == l, "a lock in use is not in the cache")
						assert.Same(t, l, r.cache.current(kept[p]))
						assert.LessOrEqual(t, r.Len(), capacity)
						if dice.IntN(2) == 0 {
							runtime.Gosched()
						}

						u.mu.Lock()
						u.users--
						u.mu.Unlock()
						l.unpin()
						used.Add(1)
					}
				})
			}
			done.Wait()
			t.Logf("used %d, full %d, another object's turn %d", used.Load(), full.Load(), returned.Load())
			require.Positive(t, used.Load())
			require.Positive(t, full.Load())
			require.Positive(t, returned.Load())
			r.cache.resize(paths)
			require.LessOrEqual(t, r.Len(), paths)
			sound(t, &r.cache)
			for p := range paths { // nobody uses anything, so everything has room
				l, err := r.cache.pin(r.Obtain(strconv.Itoa(p)))
				require.NoError(t, err)
				require.EqualValues(t, 1, l.pins.Load(), "a use was not ended")
			}
		})
	}
}

// Goroutines use one path all the time, while another one drops its lock all the time. The windows between the steps of
// both are small, so there is little else in these loops than what may go wrong.
func TestCache_PinAgainstDrop(t *testing.T) {
	const goroutines, rounds = 2, 300_000
	r := newCached(1)
	var done, dropping sync.WaitGroup
	var stop atomic.Bool
	var wrong atomic.Int64
	dropping.Go(func() {
		for !stop.Load() {
			r.cache.dropUnused(clock.Never)
		}
	})
	old := r.Obtain("42")
	for range goroutines {
		done.Go(func() {
			for range rounds {
				l, err := r.cache.pin(old)
				if err != nil || l.pins.Load() <= 0 || l.pins.Load() <= 0 {
					wrong.Add(1)
				}
				l.unpin()
			}
		})
	}
	done.Wait()
	stop.Store(true)
	dropping.Wait()
	require.Zero(t, wrong.Load(), "a lock in use was dropped")
	l, err := r.cache.pin(old)
	require.NoError(t, err)
	require.EqualValues(t, 1, l.pins.Load())
	sound(t, &r.cache)
}

// A goroutine has begun to use a lock that was dropped, and another one brings the lock back before the first has noticed.
func TestCache_PinOfADroppedLockIsUndone(t *testing.T) {
	r := newCached(1)
	l := r.Obtain("42")
	r.Obtain("other")
	require.Negative(t, l.pins.Add(1)) // the first step of pin
	used, err := r.cache.pin(l)
	require.NoError(t, err)
	require.Same(t, l, used)
	l.pins.Add(-1) // the second step
	require.EqualValues(t, 1, l.pins.Load(), "one of them uses it")
	r.Obtain("other")
	require.Same(t, l, r.Obtain("42"))
	l.unpin()
	r.Obtain("other")
	require.NotSame(t, l, r.Obtain("42"))
}

// Two goroutines found no lock for a path, and both made one.
func TestCache_KeepsTheFirstOfTwoNewLocks(t *testing.T) {
	r := newCached(2)
	first, second := r.newLock("42"), r.newLock("42")
	require.Same(t, first, r.cache.put(first))
	require.Same(t, first, r.cache.put(second))
	require.Same(t, first, r.Obtain("42"))
	require.Equal(t, 1, r.Len())
	sound(t, &r.cache)
}

// Many goroutines obtain many paths at once: each path has one object, and there are never more than there may be.
func TestCache_ObtainsTogether(t *testing.T) {
	const goroutines, paths = 16, 500
	r := newCached(paths)
	var locks [goroutines][paths]*Lock
	var done sync.WaitGroup
	for g := range goroutines {
		done.Go(func() {
			for i := range paths {
				p := (i*7 + g*31) % paths
				locks[g][p] = r.Obtain(strconv.Itoa(p))
			}
		})
	}
	done.Wait()
	require.Equal(t, paths, r.Len())
	for g := range goroutines {
		require.Equal(t, locks[0], locks[g])
	}
	sound(t, &r.cache)
}

// Locking uses and ends using a lock, on every way out of it.
func TestCache_LocksAreInUseForAsLongAsTheyAre(t *testing.T) {
	m := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{m.Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	r, err := New(client, "orders", WithCapacity(2), WithPollInterval(time.Millisecond))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	ctx := t.Context()
	l := r.Obtain("42")
	pins := func(want int32) {
		t.Helper()
		require.Equal(t, want, l.pins.Load())
	}

	pins(0)
	require.NoError(t, l.Lock(ctx))
	pins(1)
	require.NoError(t, l.Lock(ctx))
	pins(1)
	other := NewOwner(ctx)
	ok, err := l.TryLock(other)
	require.NoError(t, err)
	require.False(t, ok)
	pins(1)
	require.ErrorIs(t, l.Lock(other, Wait(time.Millisecond)), ErrTimeout)
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
	require.ErrorIs(t, l.Lock(ctx, Wait(5*time.Millisecond)), ErrTimeout)
	pins(0)
	require.Error(t, l.Lock(cancelled()))
	pins(0)
	m.Del("orders:42")

	require.NoError(t, l.Lock(ctx))
	m.Del("orders:42")
	require.ErrorIs(t, l.Lock(ctx), ErrLockLost)
	pins(1)
	require.ErrorIs(t, l.Unlock(ctx), ErrLockLost)
	require.Eventually(t, func() bool { return l.pins.Load() == 0 }, 10*time.Second, time.Millisecond,
		"what is left of a lost hold is removed in the background")
	require.Panics(t, func() { _ = r.Do(ctx, "42", func(context.Context) error { panic("of fn") }) })
	pins(0)
}

// A registry may keep a million locks, so each takes as little as it can: a size of the allocator.
func TestLock_TakesLittleMemory(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Lock{}), uintptr(224))
}
