package lockregistry

import (
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Contended tells whether somebody of this process waits for a lock.
func Contended(l *Lock) bool { return l.half().Contended() }

// The ways to wake up, each alone.
type Wakeup = wakeup

const (
	WakeupAuto     = wakeupAuto
	WakeupPoll     = wakeupPoll
	WakeupPubSub   = wakeupPubSub
	WakeupTracking = wakeupTracking
)

// WithWakeup chooses one.
func WithWakeup(m Wakeup) Option { return withWakeup(m) }

// Len is how many lock objects a registry keeps.
func (r *Registry) Len() int { return r.cache.Len() }

// Draining tells whether a registry shuts down.
func Draining(r *Registry) bool { return r.drain.Begun() }

// BeginDrain is the beginning of Shutdown, which has yet to turn calls away.
func BeginDrain(r *Registry) { r.drain.Begin() }

// HandOver is Unlock by the goroutine that calls, whose hold goes to the next one of this process. In between it calls a
// function.
func HandOver(l *Lock, between func()) bool {
	h := l.hold.Load()
	if how, _ := l.hold.Exit(l.half(), owner.Calling()); how != local.Last {
		return false
	}
	can, _, running := h.Relinquish(l.reg.handoff)
	between()
	if !can || !l.half().Pass(running) {
		return false
	}
	l.unpin()
	return true
}

// ManyGoroutines has a registry believe that the process has too many goroutines to look at them. It has done nothing before.
func ManyGoroutines(r *Registry) { r.background.Gone.Most = 0 }

// Counts is how often a registry in fake time has had the goroutines of the process counted.
func Counts(r *Registry) int { return r.background.Gone.Census.Counts() }

// FindsGone is what happens when the goroutines that have a lock at this moment are found to have ended, once the function is
// called.
func FindsGone(l *Lock) (found func()) {
	h, all := l.hold.Load(), l.half().Owners()
	return func() {
		for _, o := range all {
			h.Strand(o)
		}
	}
}

// Acknowledged is what happens when replicas have what a registry has written.
func Acknowledged(r *Registry) { r.queues.Replicas.Settled(nil) }

// Calls is how many calls and holds of semaphores a registry knows.
func Calls(r *Registry) int { return len(r.permits.all()) }
