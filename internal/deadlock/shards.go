package deadlock

import (
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// shards find the waiting calls by their goroutines and owners. The zero value is empty.
type shards struct {
	all [1 << shardBits]shard

	// filled has a bit for each shard: so a look at all calls, once a second for each registry, reads 64 words instead of 4096
	// lists. link sets the bit before there is a link, and All clears it when there is none; both hold the shard's mutex. So no
	// shard has a link without its bit. A shard that a call has left may keep its bit until the next look.
	filled [(1 << shardBits) / 64]atomic.Uint64
}

// shardBits: with 50 000 waiting calls a shard has twelve.
const shardBits = 12

// shard finds the calls that may block an owner. It is a short list of links: a call that waits for microseconds should not pay
// for a map.
type shard struct {
	mu    sync.Mutex
	first atomic.Pointer[waitLink] // written with the mutex held; nil means empty, and can be read without it
}

type waitLink struct {
	call       *Call
	key        owner.ID
	prev, next *waitLink
	linked     bool
}

// at returns the shard of an owner, and its index: it spreads consecutive numbers, such as goroutine ids, by multiplication with
// 2^64 divided by the golden ratio.
func (g *shards) at(o owner.ID) (s *shard, i int) {
	i = int(uint64(o) * 0x9e3779b97f4a7c15 >> (64 - shardBits))
	return &g.all[i], i
}

// of iterates over the links of an owner. The caller holds the mutex.
func (s *shard) of(key owner.ID) iter.Seq[*waitLink] {
	return func(yield func(*waitLink) bool) {
		for l := s.first.Load(); l != nil; l = l.next {
			if l.key == key && !yield(l) {
				return
			}
		}
	}
}

func (g *shards) link(l *waitLink) {
	s, i := g.at(l.key)
	filled, bit := &g.filled[i/64], uint64(1)<<(i%64)
	s.mu.Lock()
	if filled.Load()&bit == 0 {
		filled.Or(bit)
	}
	if l.next = s.first.Load(); l.next != nil {
		l.next.prev = l
	}
	l.linked = true
	s.first.Store(l)
	s.mu.Unlock()
}

func (g *shards) unlink(l *waitLink) {
	s, _ := g.at(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.linked { // it has left already
		return
	}
	if l.prev == nil {
		s.first.Store(l.next)
	} else {
		l.prev.next = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next, l.linked = nil, nil, false
}

// All iterates over the waiting calls.
func (g *Graph) All() iter.Seq[*Call] {
	return func(yield func(*Call) bool) {
		for i := range g.shards.filled {
			for word := g.shards.filled[i].Load(); word != 0; word &= word - 1 {
				for _, c := range g.shards.calls(i*64 + bits.TrailingZeros64(word)) {
					if !yield(c) {
						return
					}
				}
			}
		}
	}
}

// calls returns the calls of a shard, each once, and clears the shard's bit if there is no link.
func (g *shards) calls(i int) (calls []*Call) {
	s := &g.all[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.first.Load()
	if l == nil {
		g.filled[i/64].And(^(uint64(1) << (i % 64)))
	}
	for ; l != nil; l = l.next {
		if l == &l.call.self {
			l.call.known.Store(true)
			calls = append(calls, l.call)
		}
	}
	return calls
}
