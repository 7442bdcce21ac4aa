package wake

import (
	"context"
	"time"
)

// Waiter is one waiting call. It is used by one goroutine at a time.
//
//	idle ──Arm──▶ asked ──sent──▶ armed ──a change──▶ idle, and wakes
//	                ▲               └─a change, in doubt─▶ paused
//	                └──────────────the pause is over─────────┘
//
// When the connection is lost it is idle, and wakes. There may be several for one key. Armed or not, it may listen to an own
// channel besides: see [own].
type Waiter struct {
	Wait

	listener *Listener
	slot     uint16        // of the key, in a cluster
	sharded  bool          // the channel is in the key's slot, and may be published on there only
	wake     chan struct{} // has room for one

	// The hub's mutex guards the rest.
	node  *node // nil when it is closed, or while nobody knows which one it is
	place int   // among those of the node that wait for its key
	arming
	hearer
}

// arming is whether a waiter wakes for a change of its key.
type arming struct {
	arms   bool          // Arm was called: a waiter that only hears does not wake for its key
	armed  bool          // a change of the key from now on wakes, or is looked at
	tracks bool          // it is armed, or was last, by tracking
	asking asking        // whether it is to be armed
	ready  chan KeyState // has room for one: the answer to Arm; nil before it had to ask
	doubt  doubt
	paused *time.Timer // until it asks by itself; nil when it is not paused
}

// hearer is whether a waiter hears what is published on its own channel.
type hearer struct {
	joined   *own          // the channel, on the present connection; nil before Hear
	waits    bool          // Hear waits for the answer
	answered chan struct{} // has room for one: there is an answer to Hear; nil before it had to ask
}

// asking is whether a waiter is to be armed, and for whom.
type asking uint8

const (
	asksNot     asking = iota
	asksItself         // after a pause: wakes if there is reason to
	asksForCall        // the call waits for the answer, or has done so
)

// KeyState is what was seen of a key when its waiter was armed.
type KeyState struct {
	Armed bool          // it was armed just now; otherwise nothing else is known
	Taken bool          // the key was there,
	Left  time.Duration // and for so long; not positive when it has no end
}

// Wakeup is the channel on which the waiter wakes; nil, which never does, for a nil waiter.
func (w *Waiter) Wakeup() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.wake
}

// Arm sees to it that every change of the key from now on wakes the waiter. When it had to do something for that, and has
// done it, the caller must look at the key once more, since it may have changed before; unless Arm has seen that it is
// there. Arm waits for the server no longer than limit. When the server has not answered by then, the next call waits for
// the same answer.
func (w *Waiter) Arm(ctx context.Context, limit time.Duration) (seen KeyState) {
	if w == nil || !w.listener.hub.ask(w) {
		return KeyState{}
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case seen = <-w.ready:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.listener.closed:
	}
	return seen
}

// Looks tells whether arming the waiter shows the key, too.
func (w *Waiter) Looks() bool { return w != nil && w.listener.hub.looks(w) }

// Close ends the waiting.
func (w *Waiter) Close() {
	if w != nil {
		w.listener.hub.remove(w)
	}
}

// The caller of what follows holds the hub's mutex.

// channel is the one to be subscribed to, if any. In doubt tracking is not enough.
func (w *Waiter) channel() string {
	if w.listener.options.Subscribe && (!w.tracks || w.doubt.in()) {
		return w.Channel
	}
	return ""
}

// heeds tells whether what is published about its key is for the waiter. One that is tracked is woken by the server.
func (w *Waiter) heeds() bool { return w.arms && (!w.tracks || w.doubt.in()) }

// signal wakes the waiter, and reports whether it was not about to wake already.
func (w *Waiter) signal() bool {
	select {
	case w.wake <- struct{}{}:
		return true
	default:
		return false
	}
}

// message wakes the waiter because of what was published.
func (w *Waiter) message() {
	if w.signal() {
		w.listener.messages++
	}
}

// invalidated wakes the waiter because of what the server itself has told.
func (w *Waiter) invalidated() {
	if w.signal() {
		w.listener.invalidations++
	}
}

// changed is told that the server no longer tracks the key, having told of a change.
func (w *Waiter) changed(now time.Time) {
	w.armed = false
	pause := w.doubt.woken(now)
	if pause == 0 {
		w.invalidated()
		return
	}
	if w.paused == nil {
		w.paused = time.AfterFunc(pause, w.resume)
	}
}

// resume asks to be armed after a pause. It takes the mutex itself.
func (w *Waiter) resume() {
	mu := &w.listener.hub.mu
	mu.Lock()
	defer mu.Unlock()
	n := w.node
	if w.paused == nil || n == nil { // stopped too late
		return
	}
	w.paused = nil
	if !w.armed && w.asking == asksNot {
		w.asking = asksItself
		n.asked[w] = struct{}{}
		n.poke()
	}
}

// unpause ends a pause.
func (a *arming) unpause() {
	if a.paused != nil {
		a.paused.Stop()
		a.paused = nil
	}
}

// ask begins to ask for the call. It reports false when that waits for an answer already.
func (a *arming) ask() bool {
	if a.asking == asksForCall {
		return false
	}
	a.asking = asksForCall
	if a.ready == nil {
		a.ready = make(chan KeyState, 1)
	}
	select {
	case <-a.ready: // an answer that came too late
	default:
	}
	return true
}

// answer ends the asking with what was seen.
func (a *arming) answer(seen KeyState) {
	if a.asking == asksForCall {
		a.ready <- seen // empty: see ask
	}
	a.asking = asksNot
}

// disarm is for when the connection is lost, or was that to another server. A waiter that relied on it wakes, since a change
// may have been missed.
func (w *Waiter) disarm() {
	relied := w.armed || w.asking != asksNot || w.paused != nil || w.joined != nil
	w.answer(KeyState{})
	w.unpause()
	w.unhear()
	w.armed, w.tracks = false, false
	w.doubt = doubt{poll: w.doubt.poll}
	if relied {
		w.signal()
	}
}
