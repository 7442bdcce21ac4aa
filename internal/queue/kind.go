package queue

import (
	"container/list"
	"strconv"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Kind is what a registry's paths of one kind share: of plain locks, readers, writers, or permits.
type Kind struct {
	all   *Shared
	side  string // r for readers, w for writers, p and a number for permits, in tickets; empty for plain locks
	rules rules

	// Found is called when a semaphore in Redis has another number of permits than a call has named.
	Found func(number int)
}

// The sides of a read-write lock, as tickets have them. See also [Shared.Permits].
const (
	Reads  = "r"
	Writes = "w"
)

// Kind makes what paths of a kind of locks share; side is empty for plain locks, else [Reads] or [Writes].
func (all *Shared) Kind(side string) *Kind { return &Kind{all: all, side: side, rules: locks{}} }

// Permits makes what paths of a semaphore share, for holds of n permits.
func (all *Shared) Permits(n int) *Kind {
	return &Kind{all: all, side: "p" + strconv.Itoa(n), rules: semaphores{}}
}

// isSide reports whether a path is a side of a read-write lock.
func (k *Kind) isSide() bool { return k.side == Reads || k.side == Writes }

// rules are what differs between locks and semaphores, for a path of either.
type rules interface {
	// barges reports whether others may take the key without a ticket, by this library or Java's. If not, none of them is looked
	// for, and the expiry of the key, which many may have at a time, says nothing.
	barges() bool

	// whole returns the path for which one goroutine at a time asks Redis.
	whole(p *Path) *Path

	// mode is the mode of a try without a ticket, see [attempt.mode].
	mode(p *Path, patient, polls bool) protocol.Mode

	// join gives a call its seat among those of this process that wait for the key, and stands says how it stands among them.
	join(p *Path) *list.Element
	stands(p *Path, seat *list.Element, s *standing)

	// removed notes that a hold's key was removed.
	removed(p *Path, value string, at clock.Instant)
}

// locks are the rules of locks: a path has one call at a time.
type locks struct{}

func (locks) barges() bool { return true }

// whole is for both sides of a read-write lock the writer's path.
func (locks) whole(p *Path) *Path { return p.anchor }

func (locks) mode(p *Path, patient, polls bool) protocol.Mode {
	switch {
	case !p.mayQueue() || !patient && !polls:
		return protocol.ModeNone
	case polls && patient:
		return protocol.ModePoll
	case polls:
		return protocol.ModeSeen
	case p.side == Reads:
		return protocol.ModeTry
	default:
		return protocol.ModeNone
	}
}

func (locks) join(*Path) *list.Element               { return nil }
func (locks) stands(*Path, *list.Element, *standing) {}

func (locks) removed(p *Path, value string, at clock.Instant) {
	n := p.all.numberIn(value)
	for last := p.last.Load(); n > 0 && n >= last; last = p.last.Load() { // removals may end at the same time
		p.lastAt.Store(int64(at)) // first: a Recall in between repeats an older removal, which is harmless
		if p.last.CompareAndSwap(last, n) {
			return
		}
	}
}
