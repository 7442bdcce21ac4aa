package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// pulseEvery is how often a lane is heard from while calls sleep.
const pulseEvery = lateAnswer

// sleep is for a call that waits for a message. A process that sends nothing while its server is frozen does not know that
// another one has taken over, and would believe the grant that the first one, which goes on, tells it then. So the lane's own
// server is asked now and then, wherever the slots of those calls are by now: one that does not answer makes the lane wary. The
// first lane of a cluster is no server's, and asks nothing.
func (l *lane) sleep() {
	l.sleepers.Add(1)
	if !l.pulsing.Load() && !l.nobodys() && l.pulsing.CompareAndSwap(false, true) {
		l.pulseLater()
	}
}

func (l *lane) wake() { l.sleepers.Add(-1) }

func (l *lane) pulse() {
	if l.sleepers.Load() == 0 {
		l.pulsing.Store(false)
		if l.sleepers.Load() == 0 || !l.pulsing.CompareAndSwap(false, true) {
			return
		}
	}
	if clock.Instant(l.heard.Load()).Until(l.transport.clock.Now()) >= pulseEvery/2 {
		p := patience{ctx: context.Background(), limit: l.trip().silence()}
		_ = l.ping(&p, l.address != "") // it is judged there; the detour of a single server may be silent, too
	}
	l.pulseLater()
}

func (l *lane) pulseLater() { time.AfterFunc(pulseEvery, l.pulse) }
