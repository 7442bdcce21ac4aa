package cache

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// item is something to keep.
type item struct {
	own  Entry
	name string
}

func named(text string) Name { return Name{Text: text} }

// store uses a cache as a registry does.
type store struct{ Cache[*item] }

func newStore(capacity int) *store {
	s := &store{}
	s.Entry, s.Name = func(i *item) *Entry { return &i.own }, func(i *item) Name { return named(i.name) }
	s.Resize(capacity)
	return s
}

func (s *store) Obtain(name string) *item {
	i, ok := s.Find(named(name))
	if !ok {
		return s.Put(&item{name: name})
	}
	s.Touch(&i.own)
	return i
}

func (s *store) pin(i *item) (*item, error) {
	if i.own.Pin() {
		return i, nil
	}
	return s.Readmit(i)
}

func (s *store) unpin(i *item) {
	if i.own.Unpin() {
		s.Unpark(i)
	}
}

func (s *store) current(i *item) *item {
	if i.own.Pins() >= 0 {
		return i
	}
	if now, ok := s.Find(named(i.name)); ok {
		return now
	}
	return i
}

// sound checks that the parts of a cache agree with each other.
func sound(t *testing.T, c *Cache[*item]) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := map[*item]bool{}
	for l := range c.items.all() {
		stored[l] = true
		found, _ := c.items.find(named(l.name))
		require.Same(t, l, found)
		require.GreaterOrEqual(t, l.own.pins.Load(), int32(0))
	}
	require.Len(t, stored, c.size)
	parked := 0
	for l := range stored {
		if l.own.parked.Load() {
			parked++
		}
	}
	require.Equal(t, c.size, len(c.queue)+len(c.rest)+parked)
	for _, q := range slices.Concat(c.queue, c.rest) {
		require.True(t, stored[q.kept], "the queue knows a lock that the cache does not: %s", q.kept.name)
	}
}

// cacheModel is the simplest form of a cache: a list of locks, the least recently obtained first.
type cacheModel struct {
	capacity int
	order    []*item
	pins     map[*item]int
}

func (m *cacheModel) has(path string) *item {
	for _, l := range m.order {
		if l.name == path {
			return l
		}
	}
	return nil
}

func (m *cacheModel) use(l *item) {
	m.order = slices.DeleteFunc(m.order, func(other *item) bool { return other == l })
	m.order = append(m.order, l)
}

// shrink makes room: it drops the least recently obtained locks that are not in use, as many as there are too many.
func (m *cacheModel) shrink(to int) {
	excess := len(m.order) - to
	m.order = slices.DeleteFunc(m.order, func(l *item) bool {
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
	r := newStore(capacity)
	m := &cacheModel{capacity: capacity, pins: map[*item]int{}}
	var kept []*item    // objects that somebody has kept, dropped or not
	var inUse []*item   // one entry per pin
	drops, full := 0, 0 // to see that the test tests something
	// room makes room in the model for one more lock, and reports whether there is room.
	room := func() bool {
		before := len(m.order)
		m.shrink(m.capacity - 1)
		drops += before - len(m.order)
		return len(m.order) < m.capacity
	}
	for range 1_500 {
		switch action := dice.IntN(100); {
		case action < 50:
			path := strconv.Itoa(dice.IntN(2*capacity + 3))
			l := r.Obtain(path)
			require.Equal(t, path, l.name)
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
			now, err := r.pin(l)
			known := m.has(l.name)
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
				require.ErrorIs(t, err, fault.Capacity)
				require.Nil(t, now)
				continue
			}
			m.pins[now]++
			inUse = append(inUse, now)
		case action < 92 && len(inUse) > 0:
			i := dice.IntN(len(inUse))
			l := inUse[i]
			inUse = slices.Delete(inUse, i, i+1)
			r.unpin(l)
			if m.pins[l]--; m.pins[l] == 0 {
				delete(m.pins, l)
			}
		case action < 94:
			m.capacity = 1 + dice.IntN(2*capacity)
			r.Resize(m.capacity)
			m.shrink(m.capacity)
		case action < 96:
			before := clock.Instant(dice.IntN(3) - 1)
			for _, l := range m.order {
				l.own.usedAt.Store(int64(dice.IntN(3) - 1))
			}
			want := 0
			m.order = slices.DeleteFunc(m.order, func(l *item) bool {
				if m.pins[l] > 0 || clock.Instant(l.own.usedAt.Load()) > before {
					return false
				}
				want++
				return true
			})
			require.Equal(t, want, r.DropUnused(before))
		case action < 97 && len(kept) > 0:
			kept = slices.Delete(kept, 0, len(kept)/2)
		}
		require.Equal(t, len(m.order), r.Len())
		for _, l := range m.order {
			found, ok := r.Find(named(l.name))
			require.True(t, ok)
			require.Same(t, l, found)
			require.EqualValues(t, m.pins[l], l.own.pins.Load())
		}
		for _, l := range kept {
			want := l
			if known := m.has(l.name); known != nil {
				want = known
			}
			require.Same(t, want, r.current(l))
		}
	}
	sound(t, &r.Cache)
	require.Positive(t, drops)
	require.Positive(t, full)
}

func TestCache_DropsTheLeastRecentlyObtained(t *testing.T) {
	r := newStore(3)
	a, b, c := r.Obtain("a"), r.Obtain("b"), r.Obtain("c")
	require.Same(t, a, r.Obtain("a")) // b is the oldest now
	now, err := r.pin(c)              // to use a lock is not to obtain it
	require.NoError(t, err)
	require.Same(t, c, now)
	r.unpin(c)
	d := r.Obtain("d")
	require.Equal(t, 3, r.Len())
	require.NotSame(t, b, r.Obtain("b")) // and c goes
	require.Same(t, a, r.Obtain("a"))
	require.Same(t, d, r.Obtain("d"))
	require.NotSame(t, c, r.Obtain("c"))
	require.Equal(t, 3, r.Len())
	sound(t, &r.Cache)
}

func TestCache_NeverDropsWhatIsInUse(t *testing.T) {
	r := newStore(3)
	first := r.Obtain("in use")
	_, err := r.pin(first)
	require.NoError(t, err)
	for i := range 100 {
		r.Obtain(strconv.Itoa(i))
		require.LessOrEqual(t, r.Len(), 3)
	}
	require.Same(t, first, r.Obtain("in use"))
	require.Equal(t, 2, r.DropUnused(clock.Never))
	require.Same(t, first, r.Obtain("in use"))
	require.Equal(t, 1, r.Len())
	r.unpin(first)
	require.Equal(t, 1, r.DropUnused(clock.Never))
	require.Zero(t, r.Len())
	sound(t, &r.Cache)
}

func TestCache_IsFull(t *testing.T) {
	r := newStore(2)
	a, b := r.Obtain("a"), r.Obtain("b")
	for _, l := range []*item{a, b, b} {
		_, err := r.pin(l)
		require.NoError(t, err)
	}
	outside := r.Obtain("c")
	require.NotSame(t, outside, r.Obtain("c"), "nobody keeps it")
	require.Equal(t, 2, r.Len())
	for range 3 { // a failure leaves nothing behind
		_, err := r.pin(outside)
		require.ErrorIs(t, err, fault.Capacity)
	}
	r.unpin(b)
	_, err := r.pin(outside)
	require.ErrorIs(t, err, fault.Capacity, "b is in use still")
	r.unpin(b)
	now, err := r.pin(outside)
	require.NoError(t, err)
	require.Same(t, outside, now)
	require.Same(t, outside, r.Obtain("c"))
	require.EqualValues(t, 1, outside.own.pins.Load())
	_, err = r.pin(b)
	require.ErrorIs(t, err, fault.Capacity, "it was dropped for c")
	require.Equal(t, 2, r.Len())
	sound(t, &r.Cache)
}

func TestCache_KeepsOneLockPerPath(t *testing.T) {
	r := newStore(1)
	old := r.Obtain("a")
	r.Obtain("b")
	now := r.Obtain("a")
	require.NotSame(t, old, now)
	require.Same(t, now, r.current(old))
	for range 2 {
		used, err := r.pin(old)
		require.NoError(t, err)
		require.Same(t, now, used)
	}
	require.EqualValues(t, 2, now.own.pins.Load())
	require.Negative(t, old.own.pins.Load())
	r.unpin(now)
	r.unpin(now)

	// When both are dropped, whichever is used first comes back, and the other one follows it.
	r.Obtain("b")
	require.Same(t, old, r.current(old), "none takes its place")
	used, err := r.pin(old)
	require.NoError(t, err)
	require.Same(t, old, used)
	used, err = r.pin(now)
	require.NoError(t, err)
	require.Same(t, old, used)
	require.EqualValues(t, 2, old.own.pins.Load())
	sound(t, &r.Cache)
}

// A lock that comes back is the most recently obtained one.
func TestCache_ReadmittedLockIsTheNewest(t *testing.T) {
	r := newStore(2)
	a := r.Obtain("a")
	r.Obtain("b")
	r.Obtain("c") // a goes
	_, err := r.pin(a)
	require.NoError(t, err) // b goes
	r.unpin(a)
	r.Obtain("d") // c goes
	require.Same(t, a, r.Obtain("a"))
}

func TestCache_Resize(t *testing.T) {
	r := newStore(5)
	locks := make([]*item, 0, 5)
	for i := range 5 {
		locks = append(locks, r.Obtain(strconv.Itoa(i)))
	}
	for _, i := range []int{0, 2} {
		_, err := r.pin(locks[i])
		require.NoError(t, err)
	}
	r.Resize(3)
	require.Equal(t, 3, r.Len())
	for i, stays := range []bool{true, false, true, false, true} {
		_, ok := r.Find(named(strconv.Itoa(i)))
		require.Equal(t, stays, ok, i)
	}
	r.Resize(1)
	require.Equal(t, 2, r.Len(), "in use")
	_, err := r.pin(locks[4])
	require.ErrorIs(t, err, fault.Capacity)
	r.unpin(locks[0])
	_, err = r.pin(locks[4])
	require.ErrorIs(t, err, fault.Capacity, "one is in use, and there is room for one")
	require.Equal(t, 1, r.Len(), "what is too much goes as soon as it is not in use")
	r.Resize(2)
	_, err = r.pin(locks[4])
	require.NoError(t, err)
	sound(t, &r.Cache)
}

// New paths can be obtained while DropUnused looks at many locks.
func TestCache_IsNotHeldUp(t *testing.T) {
	const locks, plenty = 100 * portion, 1 << 30
	// round returns how often a new path was obtained meanwhile. The scheduler may not let this goroutine run in that time.
	round := func(t *testing.T, drop func(r *store) (dropped int), all bool) (let int) {
		r := newStore(plenty) // no new path takes the place of another one
		for i := range locks {
			r.Obtain(strconv.Itoa(i))
		}
		between := func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.rest) > 0 || r.resizing > 0
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
				sound(t, &r.Cache)
				return let
			default:
			}
		}
	}
	for name, drop := range map[string]func(r *store) (dropped int){
		"all expire":   func(r *store) int { return r.DropUnused(clock.Never) },
		"none expires": func(r *store) int { return r.DropUnused(-1) },
		"the capacity shrinks": func(r *store) int {
			before := r.Len()
			r.Resize(1)
			require.Less(t, r.Len(), before/2)
			r.Resize(plenty)
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

// While Resize drops items in portions, each new path takes the place of another one. Otherwise many new paths could keep Resize
// from ending.
func TestCache_NewPathsDoNotOutrunResize(t *testing.T) {
	const locks = 10
	r := newStore(locks)
	for i := range locks {
		r.Obtain(strconv.Itoa(i))
	}
	_, err := r.pin(r.Obtain("0")) // which is passed over
	require.NoError(t, err)
	r.mu.Lock()
	r.capacity, r.resizing = 1, 1 // as between two portions
	r.mu.Unlock()
	for i := range 3 * locks {
		r.Obtain("new " + strconv.Itoa(i))
		require.Equal(t, locks, r.Len())
		sound(t, &r.Cache)
	}
}

// Items that DropUnused has yet to look at can also be dropped to make room.
func TestCache_MakesRoomWhileLocksExpire(t *testing.T) {
	r := newStore(6)
	for i := range 6 {
		r.Obtain(strconv.Itoa(i))
	}
	c := &r.Cache
	c.rest, c.queue = c.queue, nil
	for range 2 {
		c.queue.add(c.rest.takeLast())
	}
	r.Obtain("1")
	for i, gone := range []string{"0", "2", "3", "4", "5", "1"} {
		sound(t, c)
		r.Obtain("new " + strconv.Itoa(i))
		_, ok := c.Find(named(gone))
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
	for name, drop := range map[string]func(r *store){
		"all":      func(r *store) { r.DropUnused(clock.Never) },
		"none":     func(r *store) { r.DropUnused(-1) },
		"capacity": func(r *store) { r.Resize(10) },
		"idle":     func(*store) { <-time.After(time.Second) },
	} {
		b.Run(name, func(b *testing.B) {
			var waits []time.Duration
			for b.Loop() {
				b.StopTimer()
				r := newStore(2 * locks)
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

// Many goroutines use few paths through objects of any age, while the cache is so small that it drops them all the time.
// At any time, only one object of a path may be in use.
func TestCache_Hammer(t *testing.T) {
	for capacity := 1; capacity <= 3; capacity++ {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			const goroutines, rounds, paths = 16, 1000, 4
			r := newStore(capacity)
			type use struct {
				mu    sync.Mutex
				lock  *item
				users int
			}
			var uses [paths]use
			var used, full, returned atomic.Int64
			var done sync.WaitGroup
			for g := range goroutines {
				done.Go(func() {
					dice := rand.New(rand.NewPCG(seed, uint64(g)))
					var kept [paths]*item
					for range rounds {
						p := dice.IntN(paths)
						if kept[p] == nil || dice.IntN(4) == 0 {
							kept[p] = r.Obtain(strconv.Itoa(p))
						}
						switch dice.IntN(50) {
						case 0:
							r.DropUnused(clock.Never)
						case 1:
							r.Resize(1 + dice.IntN(capacity))
						}
						l, err := r.pin(kept[p])
						if err != nil {
							assert.ErrorIs(t, err, fault.Capacity) //nolint:testifylint // not the goroutine of the test
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

						found, ok := r.Find(named(strconv.Itoa(p)))
						assert.True(t, ok && found == l, "a lock in use is not in the cache")
						assert.Same(t, l, r.current(kept[p]))
						assert.LessOrEqual(t, r.Len(), capacity)
						if dice.IntN(2) == 0 {
							runtime.Gosched()
						}

						u.mu.Lock()
						u.users--
						u.mu.Unlock()
						r.unpin(l)
						used.Add(1)
					}
				})
			}
			done.Wait()
			t.Logf("used %d, full %d, another object's turn %d", used.Load(), full.Load(), returned.Load())
			require.Positive(t, used.Load())
			require.Positive(t, full.Load())
			require.Positive(t, returned.Load())
			r.Resize(paths)
			require.LessOrEqual(t, r.Len(), paths)
			sound(t, &r.Cache)
			for p := range paths { // nobody uses anything, so everything has room
				l, err := r.pin(r.Obtain(strconv.Itoa(p)))
				require.NoError(t, err)
				require.EqualValues(t, 1, l.own.pins.Load(), "a use was not ended")
			}
		})
	}
}

// Goroutines use one path all the time, while another goroutine drops the path's lock all the time. The windows between their
// steps are small, so the loops do little else than what may go wrong.
func TestCache_PinAgainstDrop(t *testing.T) {
	const goroutines, rounds = 2, 300_000
	r := newStore(1)
	var done, dropping sync.WaitGroup
	var stop atomic.Bool
	var wrong atomic.Int64
	dropping.Go(func() {
		for !stop.Load() {
			r.DropUnused(clock.Never)
		}
	})
	old := r.Obtain("42")
	for range goroutines {
		done.Go(func() {
			for range rounds {
				l, err := r.pin(old)
				if err != nil || l.own.pins.Load() <= 0 || l.own.pins.Load() <= 0 {
					wrong.Add(1)
				}
				r.unpin(l)
			}
		})
	}
	done.Wait()
	stop.Store(true)
	dropping.Wait()
	require.Zero(t, wrong.Load(), "a lock in use was dropped")
	l, err := r.pin(old)
	require.NoError(t, err)
	require.EqualValues(t, 1, l.own.pins.Load())
	sound(t, &r.Cache)
}

// A goroutine has begun to use a lock that was dropped, and another one brings the lock back before the first has noticed.
func TestCache_PinOfADroppedLockIsUndone(t *testing.T) {
	r := newStore(1)
	l := r.Obtain("42")
	r.Obtain("other")
	require.Negative(t, l.own.pins.Add(1)) // the first step of pin
	used, err := r.pin(l)
	require.NoError(t, err)
	require.Same(t, l, used)
	l.own.pins.Add(-1) // the second step
	require.EqualValues(t, 1, l.own.pins.Load(), "one of them uses it")
	r.Obtain("other")
	require.Same(t, l, r.Obtain("42"))
	r.unpin(l)
	r.Obtain("other")
	require.NotSame(t, l, r.Obtain("42"))
}

// Two goroutines found no lock for a path, and both made one.
func TestCache_KeepsTheFirstOfTwoNewLocks(t *testing.T) {
	r := newStore(2)
	first, second := &item{name: "42"}, &item{name: "42"}
	require.Same(t, first, r.Put(first))
	require.Same(t, first, r.Put(second))
	require.Same(t, first, r.Obtain("42"))
	require.Equal(t, 1, r.Len())
	sound(t, &r.Cache)
}

// Many goroutines obtain many paths at once: each path has one object, and there are never more than there may be.
func TestCache_ObtainsTogether(t *testing.T) {
	const goroutines, paths = 16, 500
	r := newStore(paths)
	var locks [goroutines][paths]*item
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
	sound(t, &r.Cache)
}

// Two items with the same text but a different Of are distinct. When only a few of many items are left, memory is freed, and
// those few are still found.
func TestIndex(t *testing.T) {
	c := newStore(10_000)
	all := map[string]*item{}
	for i := range 10_000 {
		name := strconv.Itoa(i)
		all[name] = c.Obtain(name)
	}
	_, ok := c.Find(Name{Text: "7", Of: true})
	require.False(t, ok)
	for name, i := range all {
		if name != "7" {
			i.own.Use(1)
		} else {
			i.own.Use(3)
		}
	}
	require.Equal(t, 9_999, c.DropUnused(2))
	most := 0
	for i := range c.items.parts {
		most += c.items.parts[i].most
	}
	require.Less(t, most, parts*leastShrunk)
	require.Less(t, cap(c.queue), leastShrunk)
	found, ok := c.Find(named("7"))
	require.True(t, ok)
	require.Same(t, all["7"], found)
	require.Equal(t, []*item{all["7"]}, slices.Collect(c.All()))
	sound(t, &c.Cache)

	for name := range all {
		c.Obtain(name)
	}
	c.Resize(1)
	require.Less(t, cap(c.queue), leastShrunk)
	sound(t, &c.Cache)
	c.Resize(10_000)
	for name := range all {
		c.Obtain(name)
	}
	require.Equal(t, 10_000, c.DropUnused(clock.Never))
	require.Nil(t, c.queue, "an empty slice could keep the memory")
	sound(t, &c.Cache)
}
