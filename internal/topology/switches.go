package topology

import (
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Switches notices when a client for Sentinel has changed to another master, which has not got what the one before granted
// last: a planned failover waits for nobody. The holds that the scheduler watches over are looked at then, so that a loss is
// announced at once. To look at the client costs less than a command. Only the scheduler's goroutine that sleeps uses it. It
// does not ask the client itself: a wrapper's methods may block.
//
// A grant may be on its way from the old master when the client changes. So the holds are looked at twice more: a moment later,
// and when an answer from before would be late, which is not believed.
type Switches struct {
	Watched bool // the client is for Sentinel
	client  rueidis.Client
	servers []string
	asking  bool
	said    chan []string   // has room for one
	again   []clock.Instant // when to look at the holds once more
}

// When to look at the client again, and after a change at the holds.
const (
	SwitchEvery = 20 * time.Millisecond
	switchAgain = 60 * time.Millisecond
)

// WatchSwitches begins with the master that a client has now. Of a client that is not for Sentinel nothing is watched.
func WatchSwitches(client rueidis.Client) Switches {
	w := Switches{Watched: client.Mode() == rueidis.ClientModeSentinel, client: client}
	if w.Watched {
		w.servers, w.said = Servers(client), make(chan []string, 1)
	}
	return w
}

// Look tells whether the holds are to be looked at. An answer that takes longer than silence is late. Once changed was called, it
// is to be called again soon.
func (w *Switches) Look(now clock.Instant, silence time.Duration, changed func()) bool {
	if !w.Watched {
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
		go w.ask(w.servers, changed)
	}
	if !slices.Equal(w.servers, known) {
		w.again = []clock.Instant{now.Add(switchAgain), now.Add(silence + switchAgain)}
		return true
	}
	if len(w.again) > 0 && w.again[0] <= now {
		w.again = w.again[1:]
		return true
	}
	return false
}

func (w *Switches) ask(known []string, changed func()) {
	servers := Servers(w.client)
	w.said <- servers
	if !slices.Equal(servers, known) {
		changed()
	}
}
