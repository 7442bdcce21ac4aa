package lockregistry

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/wake"
)

// waker is the registry's share of the listening on its client, in the words of locks: a waiting call listens for the key
// of its lock. See package wake, which does the listening for all registries on a client.
type waker struct {
	transport *transport
	counts    bool           // how many others wait
	listening *wake.Listener // nil when calls only poll
	wait      func()         // returns when what close has ended is over; for use after close
}

// listener is one waiting call; nil when there will be no wake-ups.
type listener struct{ *wake.Waiter }

// sight is what there was to be seen of a key when its listener was armed.
type sight struct {
	armed bool // the listener was armed just now; otherwise nothing else is known
	taken bool // the key was there, and with what is left of its lease, where that has an end
	left  time.Duration
}

func newWaker(r *Registry, m Wakeup, log *slog.Logger) *waker {
	w := &waker{
		transport: r.transport,
		counts:    m != WakeupPoll && r.client.Mode() != rueidis.ClientModeCluster,
		wait:      func() {},
	}
	o := wake.Options{
		Track:     m == WakeupAuto || m == WakeupTracking,
		Subscribe: m == WakeupAuto || m == WakeupPubSub,
		Common:    r.plain.layout.commonChannel(),
		Poll:      r.poll,
		Log:       r.journal.log,
		Sink:      log,
	}
	if o.Track || o.Subscribe {
		w.listening = wake.Listen(r.client, o)
	}
	return w
}

// listener returns a new listener for a key and its channel, not armed, or nil when there will be no wake-ups.
func (w *waker) listener(key, channel string) *listener {
	if w.listening == nil {
		return nil
	}
	wait := wake.Wait{Key: key, Channel: channel}
	if w.counts {
		wait.Presence = attendance(channel)
	}
	waiter := w.listening.Waiter(wait)
	if waiter == nil {
		return nil
	}
	return &listener{waiter}
}

// close ends the listener. A nil listener has nothing to end.
func (l *listener) close() {
	if l != nil {
		l.Close()
	}
}

// wakeup is the channel on which the listener wakes; nil, which never does, for a nil listener.
func (l *listener) wakeup() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.Wakeup()
}

// arm sees to it that every change of the key from now on wakes the listener; see wake.Waiter.Arm.
func (l *listener) arm(ctx context.Context, limit time.Duration) sight {
	if l == nil {
		return sight{}
	}
	seen := l.Arm(ctx, limit)
	return sight{armed: seen.Armed, taken: seen.Taken, left: seen.Left}
}

// looks tells whether arming the listener shows the key, too.
func (l *listener) looks() bool { return l != nil && l.Looks() }

// attendance is the channel on which nobody publishes, and to which who waits with tracking subscribes, to be counted by
// who wants to know for how many to stand back. It is also where releases of a path would be published that is called like
// this one and ends in ":waiting"; who waits for either may then be counted for both.
func attendance(channel string) string { return channel + ":waiting" }

// subscribed tells whether the one among a channel's subscribers that is this process's client listens for this registry
// only. When other registries on the client wait there too, it stands for them.
func (w *waker) subscribed(channel string) bool {
	return w.listening != nil && w.listening.Subscribed(channel)
}

// attendants is how many others wait with tracking for what is released on a channel, or have done so lately; registries
// that share a client count as one. In a cluster there are none, and one node knows its own subscribers only.
func (w *waker) attendants(channel string) int64 {
	if !w.counts {
		return 0
	}
	name := attendance(channel)
	reply := w.transport.ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		// Arbitrary, because rueidis would try a typed one again and again.
		return way.Do(ctx, way.B().Arbitrary("PUBSUB", "NUMSUB").Args(name).Build())
	})
	counts, err := reply.AsIntMap()
	if err != nil { // it may be forbidden
		return 0
	}
	n := counts[name]
	if w.subscribed(name) {
		n--
	}
	return max(0, n)
}

// close ends the listening, which may take a while: see wait.
func (w *waker) close() {
	if w.listening != nil {
		w.wait = w.listening.Close()
	}
}
