package hold

import (
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// A goroutine that locks, and ends without unlocking, has left a hold behind that would be renewed for as long as its process
// lives: a handler that panics, say, where net/http recovers. The runtime tells nobody that a goroutine has ended. So it is asked
// for those that live, see [owner.Census], only while a goroutine has had a renewed hold for longer than a lease, and never where
// goroutines are too many. All registries of a process share the time for that: where they are many, and goroutines too, it takes
// longer until one that is gone is noticed.
const (
	// With a third of a lease to the next turn of the scheduler, a goroutine that is gone is noticed within two leases, or a
	// minute if that is longer.
	goneEvery = 20 * time.Second

	// With more goroutines none is looked for. A look at 10 000 takes 0.1 to 0.2 s of one processor, one at 100 000 takes 0.8 to
	// 1.5 s, with stacks of 4 to 12 calls: BenchmarkCensus_Look, on a machine that was busy with other things.
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
	fake  bool      // time is that of a test, see Strand
	blind sync.Once // tells in the log that there are too many goroutines
	looks sync.WaitGroup

	mu       sync.Mutex
	stranded []Part        // yet to be announced
	next     clock.Instant // when to look for goroutines that are gone; never while one looks
	closed   bool
}

// theCensus is that of this process.
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

// Strand is what the garbage collector calls for a part of a hold that nobody can reach. In a test with testing/synctest that is
// outside of the bubble, from where no goroutine within can be woken: the next turn sees to it. There, and only there, times have
// no monotonic part.
func (g *GoneWatch) Strand(p Part) {
	g.mu.Lock()
	if !g.closed {
		g.stranded = append(g.stranded, p)
	}
	g.mu.Unlock()
	if !g.fake {
		g.soon(g.clock.Now())
	}
}

// Turn sees to what was stranded.
func (g *GoneWatch) Turn(clock.Instant) clock.Instant {
	g.mu.Lock()
	all := g.stranded
	g.stranded = nil
	g.mu.Unlock()
	for _, s := range all {
		s.Hold.Strand(s.Owner)
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
			strandGone(suspects, living)
		} else if looked {
			g.blind.Do(func() {
				g.log(slog.LevelWarn, "goroutines that have ended without Unlock are not looked for: there are too many",
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
	g.closed, g.stranded = true, nil
}

// Wait returns, after Close, when nobody looks.
func (g *GoneWatch) Wait() { g.looks.Wait() }

// suspects are the goroutines that have had a renewed hold for longer than its lease.
func (g *GoneWatch) suspects() (all []Part) {
	for _, h := range g.holds.all() { // one that is renewed is in there until it is lost or over
		if !h.mayBeLeft() {
			continue
		}
		for _, o := range h.path.Above.Owners() {
			if o.IsGoroutine() && !h.isStranded(o) && !h.path.Above.Lent(o) {
				all = append(all, Part{Hold: h, Owner: o})
			}
		}
	}
	return all
}

// strandGone strands those of the suspects whose goroutines have ended.
//
// Such a goroutine may have unlocked before it ended, and another owner may have the hold by now. So it is asked here whether the
// hold is still the goroutine's: if it is, it stays so until it is lost, since no call comes from a goroutine that has ended, and
// the others that may unlock for it can reach a context that is lent: then it is left alone. A goroutine that nests or unlocks
// only from now on, with a context of Do that has outlived it, finds that the hold is lost with its lease. When it unlocks
// sooner, the hold may go on for another owner, who is not to lose it: Adopt and Dismiss take the mark off that Strand has made.
// They follow the exit of the owner, and Strand asks once more after it has made the mark. So whichever comes last finds the
// other one, as with Attend.
func strandGone(suspects []Part, living map[owner.ID]bool) {
	for _, g := range suspects {
		above := g.Hold.path.Above
		if !living[g.Owner] && above.Has(g.Hold, g.Owner) && !above.Lent(g.Owner) {
			g.Hold.Strand(g.Owner)
		}
	}
}
