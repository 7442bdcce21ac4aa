package kit

import (
	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// Wakeup is a way to wake up.
type Wakeup int

// The ways to wake up, each alone, or the best one that there is.
const (
	WakeupAuto Wakeup = iota
	WakeupPoll
	WakeupPubSub
	WakeupTracking
)

// WithWakeup chooses one.
func WithWakeup(m Wakeup) lockregistry.Option {
	o, _ := seam.Lockregistry.Wakeup([]string{"auto", "poll", "pubsub", "tracking"}[m]).(lockregistry.Option)
	return o
}

// WithLayout chooses the format of plain locks.
func WithLayout(l observe.Layout) lockregistry.Option {
	if l == observe.LayoutRedisson {
		return lockregistry.WithRedissonLayout()
	}
	o, _ := seam.Lockregistry.Unchanged.(lockregistry.Option)
	return o
}

// ClientID is what the values of a registry's holds begin with.
func ClientID(r *lockregistry.Registry) string {
	return seam.Lockregistry.Parts(r).Label.Registry
}

// Key is a lock's key in Redis.
func Key(l *lockregistry.Lock) string { return seam.Lockregistry.InLock(l).Key }

// Contended tells whether somebody of this process waits for a lock.
func Contended(l *lockregistry.Lock) bool { return seam.Lockregistry.InLock(l).Half.Contended() }

// CachedLocks is how many lock objects a registry keeps.
func CachedLocks(r *lockregistry.Registry) int { return seam.Lockregistry.InRegistry(r).Cached() }

// SemaphoreCalls is how many calls and holds of semaphores a registry knows.
func SemaphoreCalls(r *lockregistry.Registry) int { return seam.Lockregistry.InRegistry(r).Calls() }

// Draining tells whether a registry shuts down.
func Draining(r *lockregistry.Registry) bool { return seam.Lockregistry.InRegistry(r).Drain.Begun() }

// Stall has a registry do nothing more when it is due, as if its process got no processor: no renewal is sent, and no loss is
// announced.
func Stall(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Stall() }

// BeginDrain is the beginning of Shutdown, which has yet to turn calls away.
func BeginDrain(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Drain.Begin() }

// Handoff is Unlock by the goroutine that calls, whose hold goes to the next one of this process. In between it calls a
// function.
func Handoff(l *lockregistry.Lock, between func()) bool {
	in := seam.Lockregistry.InLock(l)
	if how, _ := in.Held.Exit(in.Half, owner.Calling()); how != local.Last {
		return false
	}
	can, _, running := in.Held.Load().HandOff(in.Handoff)
	between()
	if !can || !in.Half.HandOff(running) {
		return false
	}
	in.Unpin()
	return true
}

// ManyGoroutines has a registry believe that the process has too many goroutines to look at them. It has done nothing before.
func ManyGoroutines(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Orphans.Most = 0 }

// GoroutineCounts is how often a registry in fake time has had the goroutines of the process counted.
func GoroutineCounts(r *lockregistry.Registry) int {
	return seam.Lockregistry.InRegistry(r).Orphans.Scan.Counts()
}

// FindGone is what happens when the goroutines that have a lock at this moment are found to have ended, once the function is
// called.
func FindGone(l *lockregistry.Lock) (found func()) {
	in := seam.Lockregistry.InLock(l)
	h, all := in.Held.Load(), in.Half.Owners()
	return func() {
		for _, o := range all {
			h.Orphan(o)
		}
	}
}

// AcknowledgeWrites is what happens when replicas have what a registry has written.
func AcknowledgeWrites(r *lockregistry.Registry) {
	seam.Lockregistry.InRegistry(r).Replicas.Settled(nil)
}

// Verify is what happens to the hold of a lock when its server may no longer be the master.
func Verify(l *lockregistry.Lock) { seam.Lockregistry.InLock(l).Held.Load().Verify() }

// Capped sets a registry's capacity.
func Capped(r *lockregistry.Registry, n int) *lockregistry.Registry {
	if err := r.SetCapacity(n); err != nil {
		panic(err)
	}
	return r
}
