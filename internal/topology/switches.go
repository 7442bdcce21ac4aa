package topology

import (
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Watch notices when a client for Sentinel has changed to another master. To look costs less than a command. One goroutine at a
// time uses it. It does not ask the client itself: a wrapper's methods may block. A nil Watch notices nothing.
type Watch struct {
	client  rueidis.Client
	servers []string
	asking  bool
	said    chan []string // has room for one
}

// WatchMaster begins with the master that a client has now. It returns nil for a client that is not for Sentinel.
func WatchMaster(client rueidis.Client) *Watch {
	if client.Mode() != rueidis.ClientModeSentinel {
		return nil
	}
	return &Watch{client: client, servers: Servers(client), said: make(chan []string, 1)}
}

// Changed tells whether the client has changed since it was called last. It is to be called again soon: every [SwitchEvery], and
// once it has called noticed.
func (w *Watch) Changed(noticed func()) bool {
	if w == nil {
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

func (w *Watch) ask(known []string, noticed func()) {
	servers := Servers(w.client)
	w.said <- servers
	if !slices.Equal(servers, known) {
		noticed()
	}
}

// Switches tells when to look at the holds of a client that may have changed to another master, which has not got what the one
// before granted last: a planned failover waits for nobody. So a loss is announced at once. Only the scheduler's goroutine that
// sleeps uses it.
//
// A grant may be on its way from the old master when the client changes. So the holds are looked at twice more: a moment later,
// and when an answer from before would be late, which is not believed.
type Switches struct {
	watch *Watch
	again []clock.Instant // when to look at the holds once more
}

// When to look at the client again, and after a change at the holds.
const (
	SwitchEvery = 20 * time.Millisecond
	switchAgain = 60 * time.Millisecond
)

// WatchSwitches begins with the master that a client has now.
func WatchSwitches(client rueidis.Client) Switches { return Switches{watch: WatchMaster(client)} }

// Watched tells whether the client is for Sentinel; of others nothing is watched.
func (w *Switches) Watched() bool { return w.watch != nil }

// Look tells whether the holds are to be looked at. An answer that takes longer than silence is late. Noticed is as in
// [Watch.Changed].
func (w *Switches) Look(now clock.Instant, silence time.Duration, noticed func()) bool {
	if w.watch.Changed(noticed) {
		w.again = []clock.Instant{now.Add(switchAgain), now.Add(silence + switchAgain)}
		return true
	}
	if len(w.again) > 0 && w.again[0] <= now {
		w.again = w.again[1:]
		return true
	}
	return false
}
