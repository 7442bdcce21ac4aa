package hold

import (
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// An orphan is a hold that no owner will release. There are two kinds:
//
//   - A goroutine ended without Unlock, for instance a handler whose panic net/http recovers. Its hold would be renewed for as
//     long as the process lives. The runtime does not report the end of a goroutine, so the registry asks for the living
//     goroutines, see [owner.GoroutineScan].
//   - The program can no longer reach a Hold, which the garbage collector reports.
//
// The registry scans only while a goroutine has had a renewed hold for longer than a lease, and never if there are too many
// goroutines. All registries of a process share one budget of time for scans: with many registries and many goroutines an orphan
// is noticed later.
const (
	// The scheduler's next turn is at most a third of a lease later, so an ended goroutine is noticed within two leases, or within
	// a minute if that is longer.
	orphansEvery = 20 * time.Second

	// With more goroutines the registry does not look. Looking at 10 000 takes 0.1 to 0.2 s of CPU time, at 100 000
	// 0.8 to 1.5 s, with stacks of 4 to 12 calls: BenchmarkGoroutineScan, on a busy machine.
	mostGoroutines = 10000
)

// OrphanWatch finds orphans, and stops their renewal.
type OrphanWatch struct {
	Scan *owner.GoroutineScan
	Most int // with more goroutines, no orphan is looked for

	holds *Schedule
	clock clock.Clock
	soon  func(due clock.Instant)
	log   func(level slog.Level, message string, about ...slog.Attr)
	fake  bool      // time is a test's, see Orphan
	blind sync.Once // logs that there are too many goroutines
	looks sync.WaitGroup

	mu      sync.Mutex
	orphans []func()      // yet to be announced
	next    clock.Instant // when to look for ended goroutines; never during a look
	closed  bool
}

// theScan is the scan of this process, which all registries share.
var theScan owner.GoroutineScan

// NewOrphanWatch watches the holds of a schedule. Soon must bring about a call of Turn, at due or before. In a test in fake time
// each registry has its own scan.
func NewOrphanWatch(
	holds *Schedule, c clock.Clock, soon func(due clock.Instant), log func(level slog.Level, message string, about ...slog.Attr),
) *OrphanWatch {
	g := &OrphanWatch{Scan: &theScan, Most: mostGoroutines, holds: holds, clock: c, soon: soon, log: log}
	now := time.Now()
	if g.fake = now == now.Round(0); g.fake { //nolint:staticcheck // Equal does not compare the monotonic part
		g.Scan = &owner.GoroutineScan{}
	}
	return g
}

// Orphan is called by the garbage collector for a part of a hold that the program can no longer reach. The next turn announces
// it.
//
// In a test with testing/synctest the collector runs outside of the bubble, and cannot wake a goroutine in it. There the orphan
// waits for a turn that comes anyway. Such a test is recognized by its times, which have no monotonic part.
func (g *OrphanWatch) Orphan(announce func()) {
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
func (g *OrphanWatch) Turn(clock.Instant) clock.Instant {
	g.mu.Lock()
	all := g.orphans
	g.orphans = nil
	g.mu.Unlock()
	for _, announce := range all {
		announce()
	}
	return clock.Never
}

// LookAt starts a goroutine that looks for goroutines that have ended, if it is time.
func (g *OrphanWatch) LookAt(now clock.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now >= g.next && !g.closed {
		g.next = clock.Never
		g.looks.Go(g.look)
	}
}

func (g *OrphanWatch) look() {
	pause := orphansEvery
	if suspects := g.suspects(); len(suspects) > 0 {
		living, rest, looked := g.Scan.Look(g.Most)
		if looked {
			rest = max(pause, rest)
		}
		pause = rest
		if living != nil {
			orphanEnded(suspects, living)
		} else if looked {
			g.blind.Do(func() {
				g.log(slog.LevelWarn, "too many goroutines: those that end without Unlock are no longer detected",
					slog.Int("goroutines", runtime.NumGoroutine()), slog.Int("limit", g.Most))
			})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = g.clock.Now().Add(pause)
}

// Close prevents further looks.
func (g *OrphanWatch) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.orphans = true, nil
}

// Wait returns, after Close, when no look is under way.
func (g *OrphanWatch) Wait() { g.looks.Wait() }

// suspects returns the goroutines that have had a renewed hold for longer than its lease, each with its hold.
func (g *OrphanWatch) suspects() (all []Part) {
	for _, s := range g.holds.all() { // one that is renewed is in the schedule until it is lost or over
		h, ok := s.(*Hold)
		if !ok || !h.mayBeLeft() {
			continue
		}
		for _, o := range h.path.Above.Owners() {
			if o.IsGoroutine() && !h.isOrphan(o) && !h.path.Above.Delegated(o) {
				all = append(all, Part{Hold: h, Owner: o})
			}
		}
	}
	return all
}

// orphanEnded makes orphans of the holds of suspects that have ended.
//
// A suspect may have unlocked before it ended, and another owner may have the hold by now. So this checks that the suspect still
// has the hold. If it has, it keeps the hold until the hold is lost: an ended goroutine makes no calls, and no other goroutine
// unlocks for it, unless a context was given away, see Above.Delegated. Such a hold is left alone.
//
// One case remains: another goroutine nests or unlocks with a context of Do that has outlived the suspect.
//
//  1. If it comes after the end of the lease, it finds the hold lost.
//  2. If it unlocks before, the hold may go on for another owner, which must not lose it. SetTerms and Leave, which run after the
//     owner's exit, remove the mark of Orphan. Orphan checks again after it has made the mark. So whichever comes last finds the
//     other one, as with Attend.
func orphanEnded(suspects []Part, living map[owner.ID]bool) {
	for _, g := range suspects {
		above := g.Hold.path.Above
		if !living[g.Owner] && above.Has(g.Hold.value, g.Owner) && !above.Delegated(g.Owner) {
			g.Hold.Orphan(g.Owner)
		}
	}
}
