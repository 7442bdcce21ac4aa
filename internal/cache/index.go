package cache

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"sync"
)

// Name is the name of an item. Two items may have one text, if Of tells them apart.
type Name struct {
	Text string
	Of   bool
}

// index finds items by name. It is a map in parts, each with a mutex of its own: so calls for different names rarely meet, and
// none waits for long while a part grows. A sync.Map does without mutexes, but takes 70 bytes more for each item.
type index[K Kept] struct {
	once  sync.Once
	seed  maphash.Seed
	parts [parts]part[K]
}

// parts is their number: a registry may be one of hundreds, so an empty one must be small, too.
const parts = 32

type part[K Kept] struct {
	mu    sync.RWMutex
	items map[Name]K
	most  int // how many items there were since the map was made
}

// leastShrunk is from how many items on a map is replaced when few are left: it never shrinks by itself.
const leastShrunk = 128

func (x *index[K]) part(name Name) *part[K] {
	x.once.Do(func() { x.seed = maphash.MakeSeed() })
	return &x.parts[maphash.String(x.seed, name.Text)%parts]
}

func (x *index[K]) find(name Name) (found K, ok bool) {
	p := x.part(name)
	p.mu.RLock()
	defer p.mu.RUnlock()
	found, ok = p.items[name]
	return found, ok
}

func (x *index[K]) add(k K) {
	name := k.Name()
	p := x.part(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.items == nil {
		p.items = map[Name]K{}
	}
	p.items[name] = k
	p.most = max(p.most, len(p.items))
}

func (x *index[K]) remove(name Name) {
	p := x.part(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.items, name)
	if p.most >= leastShrunk && len(p.items) <= p.most/4 {
		less := make(map[Name]K, len(p.items))
		maps.Copy(less, p.items)
		p.items, p.most = less, len(less)
	}
}

// all iterates over the items, with no mutex held: some that come or go meanwhile may be among them.
func (x *index[K]) all() iter.Seq[K] {
	return func(yield func(K) bool) {
		var some []K
		for i := range x.parts {
			p := &x.parts[i]
			p.mu.RLock()
			some = slices.AppendSeq(some[:0], maps.Values(p.items))
			p.mu.RUnlock()
			for _, k := range some {
				if !yield(k) {
					return
				}
			}
		}
	}
}
