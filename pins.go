package lockregistry

import (
	"iter"

	"github.com/lockregistry/lockregistry/internal/cache"
	"github.com/lockregistry/lockregistry/internal/hold"
)

// lockCache keeps the locks of a registry by path. Two locks of one path must never be in use at once: they would share the
// registry's identity in Redis but not the local half. So each call pins its lock.
type lockCache struct{ cache.Cache[*Lock] }

// init prepares an empty cache. The plain lock and the read-write lock of a path are two entries, although both use the same
// key in Redis. The two sides of a read-write lock are one entry, of the writer.
func (c *lockCache) init(capacity int) {
	c.Entry = (*Lock).entry
	c.Name = func(l *Lock) cache.Name { return cache.Name{Text: l.Path(), Of: l.pair != nil} }
	c.Resize(capacity)
}

// shares reports whether a hold is on the path of l, by either side of it.
func (l *Lock) shares(h *hold.Hold) bool { return lockAbove(h).anchor() == l.anchor() }

// side returns the lock of the given anchor that corresponds to l: the pair's reader if l is a reader, otherwise the anchor.
func (l *Lock) side(anchor *Lock) *Lock {
	if l != l.anchor() {
		return &anchor.pair.reader
	}
	return anchor
}

// pin begins a use of l, and returns the lock to use: l itself, or the lock that has replaced it in the cache.
func (c *lockCache) pin(l *Lock) (*Lock, error) {
	if l.entry().Pin() {
		return l, nil
	}
	now, err := c.Readmit(l.anchor())
	if err != nil {
		return nil, err
	}
	return l.side(now), nil
}

// unpin ends a use of l.
func (l *Lock) unpin() {
	switch {
	case !l.entry().Unpin():
	case l.redis.Format.Many():
		l.reg.permits.Leave(l)
	default:
		l.reg.cache.Unpark(l.anchor())
	}
}

// current returns the lock that a call for l uses: l itself, or the lock that has replaced it in the cache.
func (c *lockCache) current(l *Lock) *Lock {
	if l.entry().Pins() >= 0 {
		return l
	}
	if now, ok := c.Find(c.Name(l)); ok {
		return l.side(now)
	}
	return l
}

func (c *lockCache) find(path string) (*Lock, bool) { return c.Find(cache.Name{Text: path}) }

func (c *lockCache) findReadWrite(path string) (*Lock, bool) {
	return c.Find(cache.Name{Text: path, Of: true})
}

// of iterates over the locks of a path: the plain one first, since most locks are plain, and the writer before the reader, since
// the mailbox of a reader's call is at the writer's path. A message must look for the mailbox before it looks for the hold, see
// [queue.Path.Deliver]. In the other order this could happen:
//
//	the message of a grant          the reader's call
//	the reader has no hold
//	                                a look shows the grant: it stores the hold, and closes the mailbox
//	the mailbox is closed: the hold is removed as unclaimed, while its owner reads
func (c *lockCache) of(path string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		if plain, ok := c.find(path); ok && !yield(plain) {
			return
		}
		if writer, ok := c.findReadWrite(path); ok && yield(writer) {
			yield(&writer.pair.reader)
		}
	}
}

// all iterates over the cached locks, both sides of each pair.
func (c *lockCache) all() iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for l := range c.All() {
			if !yield(l) || l.pair != nil && !yield(&l.pair.reader) {
				return
			}
		}
	}
}

// locksOf iterates over the locks of a path, then over the calls and holds of its semaphore.
func (r *Registry) locksOf(path string) iter.Seq[*Lock] {
	return r.andSemaphores(r.cache.of(path), func(l *Lock) bool { return l.Path() == path })
}

// everyLock iterates over the cached locks, then over the calls and holds of semaphores.
func (r *Registry) everyLock() iter.Seq[*Lock] {
	return r.andSemaphores(r.cache.all(), func(*Lock) bool { return true })
}

// locksInUse iterates over the locks that are held or asked for, those of semaphores included.
func (r *Registry) locksInUse() iter.Seq[*Lock] {
	return r.andSemaphores(r.cache.all(), func(l *Lock) bool { return l.entry().Pins() > 0 })
}

// andSemaphores iterates over some locks, then over the calls and holds of semaphores: over those that are wanted.
func (r *Registry) andSemaphores(first iter.Seq[*Lock], wanted func(*Lock) bool) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for l := range first {
			if wanted(l) && !yield(l) {
				return
			}
		}
		for _, l := range r.permits.All() {
			if wanted(l) && !yield(l) {
				return
			}
		}
	}
}
