package transport

import (
	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// alarm is the alarm of a bound, see [belief.Alarm].
type alarm struct {
	belief.Alarm
	node *Node  // the node whose silence it notices; nil: none
	of   *entry // the command, if it goes through the queue; its silence begins when it is sent
}

// sent returns when the command was sent. Before it is, its silence would begin now.
func (a *alarm) sent(began, now clock.Instant) clock.Instant {
	if a.of == nil {
		return began
	}
	if sent := clock.Instant(a.of.begun.Load()); sent != 0 {
		return sent
	}
	return now
}

func (a *alarm) set(began, now clock.Instant) {
	if a.node == nil {
		a.SetNever()
		return
	}
	a.Set(&a.node.belief, a.sent(began, now))
}

func (a *alarm) ring(began, now clock.Instant) bool {
	if a.of != nil && a.of.gone() { // it is answered, which its caller has not seen yet
		a.SetNever()
		return false
	}
	if a.node == nil || !a.Ring(&a.node.belief, a.sent(began, now), now) {
		return false
	}
	return a.of == nil || !a.of.plain || !a.node.IsSuspect(now)
}

// excuses reports whether this process stood still, so that a reply may be late.
func (a *alarm) excuses(sent, came clock.Instant) bool {
	return a.node != nil && a.Excuses(&a.node.belief, a.sent(sent, came), came)
}

func (a *alarm) suspect(began, now clock.Instant) {
	if a.of != nil {
		a.of.node.Load().foundSilent(clock.Instant(a.of.begun.Load()), now)
		return
	}
	a.node.foundSilent(began, now)
}
