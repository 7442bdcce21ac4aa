package hold

import (
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// A goroutine that ends without unlocking leaves a hold behind that would be renewed for as long as its process lives: for
// instance a handler whose panic net/http recovers. The runtime does not report the end of a goroutine. So the registry asks it
// for the living goroutines, see [owner.Census], but only while a goroutine has had a renewed hold for longer than a lease, and
// never if there are too many goroutines. All registries of a process share one budget of time for that: with many registries
// and many goroutines it takes longer to notice.
const (
	// The scheduler's next turn is at most a third of a lease later, so an ended goroutine is noticed within two leases, or within
	// a minute if that is longer.
	goneEvery = 20 * time.Second

	// With more goroutines the registry does not look. A look at 10 000 takes 0.1 to 0.2 s of one processor, at 100 000 it takes
	// 0.8 to 1.5 s, with stacks of 4 to 12 calls: BenchmarkCensus_Look, on a busy machine.
	goneMost = 10000
)

// GoneWatch looks for goroutines that are gone, and for holds that nobody can reach any more.
type GoneWatch struct {
	Census *owner.Census
	Most   int // with more goroutines none is looked for

	holds *Schedule
	clock clock.Clock
	soon  func(due clock.Instant)
	log   func(level slog.Level, message string, about ...slog.Attr)
	fake  bool      // time is a test's, see Orphan
	blind sync.Once // tells in the log that there are too many goroutines
	looks sync.WaitGroup

	mu      sync.Mutex
	orphans []func()      // yet to be announced
	next    clock.Instant // when to look for ended goroutines; never during a look
	closed  bool
}

// theCensus is the census of this process.
var theCensus owner.Census

// NewGoneWatch looks at the holds of a schedule; soon has Turn called by a time. In a test in fake time each registry has its own
// census.
func NewGoneWatch(
	holds *Schedule, c clock.Clock, soon func(due clock.Instant), log func(level slog.Level, message string, about ...slog.Attr),
) *GoneWatch {
	g := &GoneWatch{Census: &theCensus, Most: goneMost, holds: holds, clock: c, soon: soon, log: log}
	now := time.Now()
	if g.fake = now == now.Round(0); g.fake { //nolint:staticcheck // Equal does not compare the monotonic part
		g.Census = &owner.Census{}
	}
	return g
}

// Orphan is what the garbage collector calls for a part of a hold that nobody can reach, which a turn is to announce. In a test
// with testing/synctest that is outside of the bubble, from where no goroutine within can be woken: the next turn sees to it.
// There, and only there, times have no monotonic part.
func (g *GoneWatch) Orphan(announce func()) {
	g.mu.Lock()
	if !g.closed {
		g.orphans = append(g.orphans, announce)
	}
	g.mu.Unlock()
	if !g.fake {
		g.soon(g.clock.Now())
	}
}

// Turn announces the orphans.
func (g *GoneWatch) Turn(clock.Instant) clock.Instant {
	g.mu.Lock()
	all := g.orphans
	g.orphans = nil
	g.mu.Unlock()
	for _, announce := range all {
		announce()
	}
	return clock.Never
}

// LookAt has a goroutine of its own look for goroutines that are gone, if it is time.
func (g *GoneWatch) LookAt(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now >= g.next && !g.closed {
		g.next = clock.Never
		g.looks.Go(g.look)
	}
}

func (g *GoneWatch) look() {
	pause := goneEvery
	if suspects := g.suspects(); len(suspects) > 0 {
		living, rest, looked := g.Census.Look(g.Most)
		if looked {
			rest = max(pause, rest)
		}
		pause = rest
		if living != nil {
			orphanGone(suspects, living)
		} else if looked {
			g.blind.Do(func() {
				g.log(slog.LevelWarn, "goroutines that end without Unlock are no longer looked for: there are too many",
					slog.Int("goroutines", runtime.NumGoroutine()), slog.Int("limit", g.Most))
			})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = g.clock.Now().Add(pause)
}

// Close has nobody look any more.
func (g *GoneWatch) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.orphans = true, nil
}

// Wait returns, after Close, when nobody looks.
func (g *GoneWatch) Wait() { g.looks.Wait() }

// suspects returns the goroutines that have had a renewed hold for longer than its lease.
func (g *GoneWatch) suspects() (all []Part) {
	for _, s := range g.holds.all() { // one that is renewed is in there until it is lost or over
		h, ok := s.(*Hold)
		if !ok || !h.mayBeLeft() {
			continue
		}
		for _, o := range h.path.Above.Owners() {
			if o.IsGoroutine() && !h.isOrphan(o) && !h.path.Above.Lent(o) {
				all = append(all, Part{Hold: h, Owner: o})
			}
		}
	}
	return all
}

// orphanGone makes orphans of suspects that have ended.
//
// A suspect may have unlocked before it ended, and another owner may have the hold by now. So this checks that the suspect
// still has it. If so, that remains true until the hold is lost: an ended goroutine makes no calls, and no other goroutine
// unlocks for it unless it was lent a context; such a hold is left alone. Another goroutine may still nest or unlock
// with a context of Do that has outlived the suspect: it finds the hold lost at the end of its lease. If it unlocks before, the
// hold may go on for another owner, which must not lose it: Adopt and Dismiss remove the mark of Orphan. They run after the
// owner's exit, and Orphan checks again after it has made the mark. So whichever comes last finds the other one, as with
// Attend.
func orphanGone(suspects []Part, living map[owner.ID]bool) {
	for _, g := range suspects {
		above := g.Hold.path.Above
		if !living[g.Owner] && above.Has(g.Hold.value, g.Owner) && !above.Lent(g.Owner) {
			g.Hold.Orphan(g.Owner)
		}
	}
}
