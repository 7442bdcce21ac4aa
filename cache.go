package lockregistry

import (
	"iter"

	"github.com/lockregistry/lockregistry/internal/cache"
	"github.com/lockregistry/lockregistry/internal/hold"
)

// lockCache keeps the locks of a registry by path. There must never be two locks of one path in use at once: they would share the
// registry's identity in Redis but not the local half. So each call pins its lock.
type lockCache struct{ cache.Cache[*anchor] }

// anchor is the lock that stands for itself in the cache or, since a reader and its writer come and go together, the writer that
// stands for both.
type anchor Lock

// Entry is what the cache keeps in it.
func (a *anchor) Entry() *cache.Entry { return &a.entry }

// Name is its path, or that of a read-write lock.
func (a *anchor) Name() any {
	path := (*Lock)(a).path()
	if a.pair != nil {
		return readWritePath(path)
	}
	return path
}

// readWritePath is the name of a read-write lock in the cache: plain locks and read-write locks of one path are different
// things, although they meet in Redis.
type readWritePath string

// anchor is what stands for l in the cache.
func (l *Lock) anchor() *Lock {
	if l.pair != nil {
		return &l.pair.writer
	}
	return l
}

// shares tells whether a hold is on the path of l, by either side of it.
func (l *Lock) shares(h *hold.Hold) bool { return lockAbove(h).anchor() == l.anchor() }

// side is the lock that does for an anchor what l does for its own: the reader of that pair, if l is a reader.
func (l *Lock) side(anchor *Lock) *Lock {
	if l != l.anchor() {
		return &anchor.pair.reader
	}
	return anchor
}

// pin begins a use of l, and returns the lock to use: l itself, or the one that has taken its place.
func (c *lockCache) pin(l *Lock) (*Lock, error) {
	a := l.anchor()
	if a.entry.Pin() {
		return l, nil
	}
	now, err := c.Readmit((*anchor)(a))
	if err != nil {
		return nil, err
	}
	return l.side((*Lock)(now)), nil
}

// unpin ends a use of l.
func (l *Lock) unpin() {
	switch a := l.anchor(); {
	case !a.entry.Unpin():
	case a.redis.Many():
		a.reg.permits.leave(a)
	default:
		a.reg.cache.Unpark((*anchor)(a))
	}
}

// current is the lock in use, or that would be used, in the place of l; l itself when there is none.
func (c *lockCache) current(l *Lock) *Lock {
	a := l.anchor()
	if a.entry.Pins() >= 0 {
		return l
	}
	if now, ok := c.Find((*anchor)(a).Name()); ok {
		return l.side((*Lock)(now))
	}
	return l
}

// find returns the plain lock of a path.
func (c *lockCache) find(path string) (*Lock, bool) {
	a, ok := c.Find(path)
	return (*Lock)(a), ok
}

// findReadWrite returns the read-write lock of a path.
func (c *lockCache) findReadWrite(path string) (*Lock, bool) {
	a, ok := c.Find(readWritePath(path))
	return (*Lock)(a), ok
}

// of goes through the locks of a path: the plain one first, which most are.
func (c *lockCache) of(path string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		if plain, ok := c.find(path); ok && !yield(plain) {
			return
		}
		if writer, ok := c.findReadWrite(path); ok && yield(&writer.pair.reader) {
			yield(writer)
		}
	}
}

// all goes through the locks that are kept, those of each pair by themselves.
func (c *lockCache) all() iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for a := range c.All() {
			l := (*Lock)(a)
			if !yield(l) || l.pair != nil && !yield(&l.pair.reader) {
				return
			}
		}
	}
}

// put adds a lock, see [cache.Cache.Put].
func (c *lockCache) put(l *Lock) *Lock { return (*Lock)(c.Put((*anchor)(l))) }
