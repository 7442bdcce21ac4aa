package kit

import (
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// Wakeup is a way to wake up.
type Wakeup int

// The ways to wake up, each alone, and the best one that the server offers.
const (
	WakeupAuto Wakeup = iota
	WakeupPoll
	WakeupPubSub
	WakeupTracking
)

// WithWakeup chooses a way to wake up.
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

// ClientID returns what the values of a registry's holds begin with.
func ClientID(r *lockregistry.Registry) string {
	return seam.Lockregistry.Parts(r).Label.Registry
}

// Key returns a lock's key in Redis.
func Key(l *lockregistry.Lock) string { return seam.Lockregistry.InLock(l).Key }

// Contended reports whether a call of this process waits for a lock.
func Contended(l *lockregistry.Lock) bool {
	n, _ := seam.Lockregistry.InLock(l).Half.Queued()
	return n > 0
}

// CachedLocks returns how many lock objects a registry keeps.
func CachedLocks(r *lockregistry.Registry) int { return seam.Lockregistry.InRegistry(r).Cached() }

// SemaphoreCalls returns how many calls and holds of semaphores a registry knows.
func SemaphoreCalls(r *lockregistry.Registry) int { return seam.Lockregistry.InRegistry(r).Calls() }

// Draining reports whether a registry is shutting down.
func Draining(r *lockregistry.Registry) bool { return seam.Lockregistry.InRegistry(r).Drain.Begun() }

// Stall stops the timers of a registry, as if its process got no processor: no renewal is sent, and no loss is reported.
func Stall(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Stall() }

// Suspend lets time go on for the registries of a client, as if the machine had been suspended: no timer notices.
func Suspend(r *lockregistry.Registry, d time.Duration) { seam.Lockregistry.InRegistry(r).Sleep(d) }

// BeginDrain begins a Shutdown before it turns any call away.
func BeginDrain(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Drain.Begin() }

// Handoff is Unlock by the calling goroutine, which hands its hold to the next call of this process. It calls between at the
// moment before.
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

// ManyGoroutines makes a registry that is still unused believe that the process has too many goroutines to look at.
func ManyGoroutines(r *lockregistry.Registry) { seam.Lockregistry.InRegistry(r).Orphans.Most = 0 }

// GoroutineCounts returns how often a registry in fake time has counted the goroutines of the process.
func GoroutineCounts(r *lockregistry.Registry) int {
	return seam.Lockregistry.InRegistry(r).Orphans.Scan.Counts()
}

// FindGone returns a function that acts as if the goroutines that own a lock now were found to have ended.
func FindGone(l *lockregistry.Lock) (found func()) {
	in := seam.Lockregistry.InLock(l)
	h, all := in.Held.Load(), in.Half.Owners()
	return func() {
		for _, o := range all {
			h.Orphan(o)
		}
	}
}

// AcknowledgeWrites acts as if replicas had acknowledged everything that a registry has written.
func AcknowledgeWrites(r *lockregistry.Registry) {
	seam.Lockregistry.InRegistry(r).Replicas.Settled(nil)
}

// Verify acts as if the server of a lock's hold may no longer be the master.
func Verify(l *lockregistry.Lock) { seam.Lockregistry.InLock(l).Held.Load().Verify() }

// Capped sets a registry's capacity.
func Capped(r *lockregistry.Registry, n int) *lockregistry.Registry {
	if err := r.SetCapacity(n); err != nil {
		panic(err)
	}
	return r
}
