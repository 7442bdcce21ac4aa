package topology

import (
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Switches says when to verify the holds of a client for Sentinel, because the client has changed to another master. The new
// master may lack the last grants, since a planned failover does not wait for them. Verifying announces such a loss at once.
//
// Only the scheduler's goroutine uses a Switches. Another goroutine asks the client, since a wrapper's methods may block. A
// look costs less than a command.
//
// When the client changes, a grant may be on its way from the old master. So the holds are verified twice more: a moment later,
// and once replies from before the change would be late, and so not believed.
type Switches struct {
	client  rueidis.Client // nil: it is not for Sentinel
	servers []string       // as the client last said
	asking  bool
	said    chan []string   // has room for one
	again   []clock.Instant // when to verify the holds once more
}

// When to look at the client again, and, after a change, at the holds.
const (
	SwitchEvery = belief.Tick / 5
	switchAgain = 3 * SwitchEvery
)

// WatchSwitches begins with a client's present master.
func WatchSwitches(client rueidis.Client) Switches {
	if client.Mode() != rueidis.ClientModeSentinel {
		return Switches{}
	}
	return Switches{client: client, servers: Servers(client), said: make(chan []string, 1)}
}

// Next returns when to look at the client next; [clock.Never] if it is not for Sentinel.
func (w *Switches) Next(c clock.Clock) clock.Instant {
	if w.client == nil {
		return clock.Never
	}
	return c.Now().Add(SwitchEvery)
}

// Look reports whether the holds must be verified. Call it at [Switches.Next], and when it has called noticed. Silence is how
// long a reply takes until it is late.
func (w *Switches) Look(now clock.Instant, silence time.Duration, noticed func()) bool {
	if w.changed(noticed) {
		w.again = []clock.Instant{now.Add(switchAgain), now.Add(silence + switchAgain)}
		return true
	}
	if len(w.again) > 0 && w.again[0] <= now {
		w.again = w.again[1:]
		return true
	}
	return false
}

// changed reports whether the client has changed to another master since the last call.
func (w *Switches) changed(noticed func()) bool {
	if w.client == nil {
		return false
	}
	known := w.servers
	select {
	case w.servers = <-w.said:
		w.asking = false
	default:
	}
	if !w.asking {
		w.asking = true
		go w.ask(w.servers, noticed)
	}
	return !slices.Equal(w.servers, known)
}

func (w *Switches) ask(known []string, noticed func()) {
	servers := Servers(w.client)
	w.said <- servers
	if !slices.Equal(servers, known) {
		noticed()
	}
}
