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
// When the connection is lost it is idle, and wakes. A key may have several waiters. Armed or not, a waiter may also listen to
// an own channel, see [own].
type Waiter struct {
	Wait

	listener *Listener
	slot     uint16        // of the key, in a cluster
	sharded  bool          // the channel is in the key's slot, and messages may be published only there
	wake     chan struct{} // has room for one

	// The hub's mutex guards the rest.
	node  *node // nil when closed, or while the key's server is not known
	index int   // its index among the node's waiters for the key
	arming
	hearer
}

// arming says whether a waiter wakes for a change of its key.
type arming struct {
	arms   bool          // Arm was called: a waiter that only hears does not wake for its key
	armed  bool          // a change of the key wakes the waiter, or is looked at
	tracks bool          // it is or was last armed by tracking
	asking asking        // whether it is to be armed
	ready  chan KeyState // has room for one: the answer to Arm; nil before it had to ask
	doubt  doubt
	paused *time.Timer // ends the pause; nil: not paused
}

// hearer says whether a waiter gets the messages on its own channel.
type hearer struct {
	joined   *own          // the channel, on the current connection; nil before Hear
	waits    bool          // Hear waits for the answer
	answered chan struct{} // has room for one: there is an answer to Hear; nil before it had to ask
}

// asking says whether a waiter asks to be armed, and why.
type asking uint8

const (
	asksNot     asking = iota
	asksItself         // after a pause: wakes if there is a reason
	asksForCall        // the call waits for the answer, or has done so
)

// KeyState is the state of a key when its waiter was armed.
type KeyState struct {
	Armed bool          // it was armed just now; otherwise the rest is not known
	Taken bool          // the key existed
	Left  time.Duration // the rest of its life; not positive: no end
}

// Wakeup returns the channel on which the waiter wakes; nil, which blocks, for a nil waiter.
func (w *Waiter) Wakeup() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.wake
}

// Arm makes every change of the key from now on wake the waiter. If the waiter was not armed before, the caller must look at
// the key again, since it may have changed before, unless Arm has seen that the key exists. Arm waits for the server no longer
// than limit. If the server has not answered by then, the next call waits for the same answer.
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

// Close ends the waiting.
func (w *Waiter) Close() {
	if w != nil {
		w.listener.hub.remove(w)
	}
}

// The callers of the following methods hold the hub's mutex.

// channel returns the channel to subscribe to, if any. In doubt tracking is not enough.
func (w *Waiter) channel() string {
	if w.listener.options.Subscribe && (!w.tracks || w.doubt.in()) {
		return w.Channel
	}
	return ""
}

// heeds reports whether messages about the key wake the waiter. A tracked waiter is woken by the server instead.
func (w *Waiter) heeds() bool { return w.arms && (!w.tracks || w.doubt.in()) }

// signal wakes the waiter, and reports false if it was about to wake already.
func (w *Waiter) signal() bool {
	select {
	case w.wake <- struct{}{}:
		return true
	default:
		return false
	}
}

// message wakes the waiter because of a message.
func (w *Waiter) message() {
	if w.signal() {
		w.listener.messages++
	}
}

// invalidated wakes the waiter because the server has reported a change.
func (w *Waiter) invalidated() {
	if w.signal() {
		w.listener.invalidations++
	}
}

// changed notes that the server has reported a change, and so no longer tracks the key.
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
	if w.paused == nil || n == nil { // it was stopped too late
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

// ask begins to ask for the call. It reports false if the call waits for an answer already.
func (a *arming) ask() bool {
	if a.asking == asksForCall {
		return false
	}
	a.asking = asksForCall
	if a.ready == nil {
		a.ready = make(chan KeyState, 1)
	}
	select {
	case <-a.ready: // an old answer
	default:
	}
	return true
}

// answer ends the asking with an answer.
func (a *arming) answer(seen KeyState) {
	if a.asking == asksForCall {
		a.ready <- seen // empty: see ask
	}
	a.asking = asksNot
}

// disarm is called when the connection is lost, or led to another server. A waiter that relied on it wakes, since a change may
// have been missed.
func (w *Waiter) disarm() {
	relied := w.armed || w.asking != asksNot || w.paused != nil || w.joined != nil
	w.answer(KeyState{})
	w.unpause()
	w.unhear()
	w.armed, w.tracks = false, false
	w.doubt.gone()
	if relied {
		w.signal()
	}
}
