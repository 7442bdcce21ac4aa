package lockregistry

import (
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
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

// goneWatch looks for goroutines that are gone, and for holds that nobody can reach any more.
type goneWatch struct {
	background *background
	census     *owner.Census
	fake       bool      // time is that of a test, see strand
	most       int       // with more goroutines none is looked for
	blind      sync.Once // tells that in the log
	looks      sync.WaitGroup

	mu       sync.Mutex
	stranded []hold.Part   // yet to be announced
	next     clock.Instant // when to look for goroutines that are gone; never while one looks
	closed   bool
}

// theCensus is that of this process.
var theCensus owner.Census

// begin is called before all else. In a test in fake time each registry has its own census.
func (g *goneWatch) begin(b *background) {
	g.background, g.census, g.most = b, &theCensus, goneMost
	now := time.Now()
	if g.fake = now == now.Round(0); g.fake { //nolint:staticcheck // Equal does not compare the monotonic part
		g.census = &owner.Census{}
	}
}

// strand is what the garbage collector calls for a part of a hold that nobody can reach. In a test with testing/synctest that is
// outside of the bubble, from where no goroutine within can be woken: the next turn sees to it. There, and only there, times have
// no monotonic part.
func (g *goneWatch) strand(p hold.Part) {
	g.mu.Lock()
	if !g.closed {
		g.stranded = append(g.stranded, p)
	}
	g.mu.Unlock()
	if b := g.background; !g.fake {
		b.scheduler.Soon(b.reg.clock.Now())
	}
}

// Turn sees to what was stranded.
func (g *goneWatch) Turn(clock.Instant) clock.Instant {
	g.mu.Lock()
	all := g.stranded
	g.stranded = nil
	g.mu.Unlock()
	for _, s := range all {
		s.Hold.Strand(s.Owner)
	}
	return clock.Never
}

// lookAt has a goroutine of its own look for goroutines that are gone, if it is time.
func (g *goneWatch) lookAt(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now >= g.next && !g.closed {
		g.next = clock.Never
		g.looks.Go(g.look)
	}
}

func (g *goneWatch) look() {
	pause, reg := goneEvery, g.background.reg
	if suspects := g.suspects(); len(suspects) > 0 {
		living, rest, looked := g.census.Look(g.most)
		if looked {
			rest = max(pause, rest)
		}
		pause = rest
		if living != nil {
			strandGone(suspects, living)
		} else if looked {
			g.blind.Do(func() {
				reg.reports.dispatch.Log(slog.LevelWarn, "goroutines that have ended without Unlock are not looked for: there are too many",
					slog.Int("goroutines", runtime.NumGoroutine()), slog.Int("limit", g.most))
			})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = reg.clock.Now().Add(pause)
}

// close has nobody look any more.
func (g *goneWatch) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.stranded = true, nil
}

// suspects are the goroutines that have had a renewed hold for longer than its lease.
func (g *goneWatch) suspects() (all []hold.Part) {
	for _, h := range g.background.holds.All() { // one that is renewed is in there until it is lost or over
		if !h.MayBeLeft() {
			continue
		}
		l := lockAbove(h)
		for _, o := range l.half().Owners() {
			if o.IsGoroutine() && !h.Stranded(o) && !l.hold.Lent(o) {
				all = append(all, hold.Part{Hold: h, Owner: o})
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
func strandGone(suspects []hold.Part, living map[owner.ID]bool) {
	for _, g := range suspects {
		l := lockAbove(g.Hold)
		if !living[g.Owner] && l.heldBy(g.Owner) == g.Hold && !l.hold.Lent(g.Owner) {
			g.Hold.Strand(g.Owner)
		}
	}
}
