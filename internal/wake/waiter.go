package wake

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Wait is what a call waits for.
type Wait struct {
	Key     string
	Channel string // on which changes of the key are published

	// Own is a channel of this listener alone, on which scripts publish messages for its calls; see [Waiter.Subscribe]. It may be
	// empty. All waiters of a listener have the same channel, except on a cluster, where it is in the slot of the key.
	Own string
}

// Waiter is one waiting call. It is used by one goroutine at a time.
//
//	idle ──Watch──▶ asked ──sent──▶ watched ──a change──▶ idle, and wakes
//	                ▲               └─a change, throttled─▶ paused
//	                └──────────────the pause is over─────────┘
//
// When the connection is lost, the waiter becomes idle, and wakes. A key may have several waiters. Watched or not, a waiter may
// also listen to an own channel, see [own].
type Waiter struct {
	Wait

	user    *user
	hub     requests
	slot    uint16 // of the key, in a cluster
	sharded bool   // the channel is in the key's slot, and messages may be published only there
	wakeup  signal

	// The hub's mutex guards the rest.
	index int // its index among the waiters for the key
	watching
	subscriber
}

// requests is what waiters ask of the hub. No method waits for the server: the answer comes later.
type requests interface {
	watch(w *Waiter) (asked bool)                      // asked: an answer to Watch comes
	resume(w *Waiter)                                  // its pause is over
	subscribe(w *Waiter) (is Subscription, asked bool) // asked: an answer to Subscribe comes
	subscription(w *Waiter) Subscription               // it has come, or is not waited for any more
	suspect(w *Waiter)
	remove(w *Waiter)
}

// watching decides whether a waiter wakes for a change of its key. In come the call's request, the result of a look at the key,
// and reports that the key has changed. Out go the answer to the call, and a wake-up.
type watching struct {
	watches  bool          // Watch was called: a waiter that only subscribes does not wake for its key
	watched  bool          // a change of the key wakes the waiter, or is looked at
	tracks   bool          // it is or was last watched by tracking
	asking   asking        // whether it is to be watched
	ready    chan KeyState // the answer to Watch, with room for one; nil until a Watch has had to ask
	throttle throttle
	paused   *time.Timer // ends the pause; nil: not paused
}

// subscriber says whether a waiter gets the messages on its own channel.
type subscriber struct {
	joined   bool   // it is among the channel's subscribers, on the current connection
	waits    bool   // Subscribe waits for the answer
	answered signal // there is an answer to Subscribe; nil until a Subscribe has had to ask
}

// asking says whether a waiter asks to watch its key, and why.
type asking uint8

const (
	asksNot     asking = iota
	asksItself         // after a pause: wakes if there is a reason
	asksForCall        // the call waits for the answer, or has done so
)

// KeyState is the state of a key when it was watched.
type KeyState struct {
	Watched bool          // since just now; otherwise the rest is not known
	Taken   bool          // the key existed
	Left    time.Duration // the rest of its life; not positive: no end

	replied time.Time // when the answer came: Left counts from then
}

// Subscription says whether messages on a waiter's own channel arrive.
type Subscription int

// The results of Subscribe.
const (
	NotYet Subscription = iota // no connection, or no answer yet; the waiter wakes when it should try again
	Proven                     // messages arrive
	Deaf                       // they do not, as long as the connection lasts: the server or the permissions forbid it
)

// signal wakes a goroutine that waits for it. It has room for one wake-up.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

// wake reports false if there was a wake-up already.
func (s signal) wake() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// clear withdraws a wake-up.
func (s signal) clear() {
	select {
	case <-s:
	default:
	}
}

// Wakeup returns the channel on which the waiter wakes; nil, which blocks, for a nil waiter.
func (w *Waiter) Wakeup() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.wakeup
}

// Watch makes every change of the key from now on wake the waiter. Unless the key was watched before, it may have changed just
// before that. So the caller must look at it again, except if Watch has seen that the key exists. Watch waits for the server no
// longer than limit. If the server has not answered by then, the next call waits for the same answer.
func (w *Waiter) Watch(ctx context.Context, limit time.Duration) KeyState {
	if w == nil || !w.hub.watch(w) {
		return KeyState{}
	}
	seen := await(ctx, w, w.ready, limit)
	if seen.Left > 0 { // it may be the answer to an earlier call
		seen.Left = max(1, seen.Left-time.Since(seen.replied))
	}
	seen.replied = time.Time{}
	return seen
}

// Subscribe makes messages on the waiter's own channel arrive until Close; its key need not be watched. If the subscription is
// interrupted, the waiter wakes: messages may have been missed, and the call must subscribe again. If there is something to
// send, Subscribe waits for the server, no longer than limit.
func (w *Waiter) Subscribe(ctx context.Context, limit time.Duration) Subscription {
	if w == nil {
		return Deaf
	}
	is, asked := w.hub.subscribe(w)
	if !asked {
		return is
	}
	await(ctx, w, w.answered, limit)
	return w.hub.subscription(w)
}

// await waits for an answer, no longer than limit.
func await[T any](ctx context.Context, w *Waiter, answer <-chan T, limit time.Duration) (got T) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case got = <-answer:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.user.closed:
	}
	return got
}

// Suspect notes that an expected message on the waiter's own channel, or a wake-up, did not arrive. When this happens twice,
// without a message on an own channel in between, the connection is replaced, unless it is new, and the waiters that rely on it
// wake. Once is not enough: on a busy machine the caller may have looked before the message was read.
func (w *Waiter) Suspect() {
	if w != nil {
		w.hub.suspect(w)
	}
}

// Close ends the waiting.
func (w *Waiter) Close() {
	if w != nil {
		w.hub.remove(w)
	}
}

// The callers of the following methods hold the hub's mutex.

// message wakes the waiter because of a message about its key. A tracked waiter is woken by the server instead.
func (w *Waiter) message() {
	if w.watches && (!w.tracks || w.throttle.on()) && w.wakeup.wake() {
		w.user.messages++
	}
}

// invalidated wakes the waiter because the server has reported a change.
func (w *Waiter) invalidated() {
	if w.wakeup.wake() {
		w.user.invalidations++
	}
}

// changed notes that the server has reported a change, and so no longer tracks the key.
func (w *Waiter) changed(now time.Time) {
	if !w.watched || !w.tracks {
		return
	}
	w.watched = false
	pause := w.throttle.woken(now)
	if pause == 0 {
		w.invalidated()
		return
	}
	if w.paused == nil {
		w.paused = time.AfterFunc(pause, func() { w.hub.resume(w) })
	}
}

func (a *watching) unpause() {
	if a.paused != nil {
		a.paused.Stop()
		a.paused = nil
	}
}

// answer ends the asking with an answer. If the waiter has asked by itself, the answer is for the next Watch: the call may have
// been woken, and does not know that its key is watched.
func (a *watching) answer(seen KeyState) {
	if a.asking == asksItself {
		select {
		case <-a.ready: // an old answer
		default:
		}
	}
	if a.asking != asksNot {
		a.ready <- seen // it is empty since ask
	}
	a.asking = asksNot
}

// gone is the reply of PTTL for a key that does not exist.
const gone = -2

// saw handles the reply of PTTL.
func (w *Waiter) saw(pttl int64, sent, replied time.Time) {
	changed := true
	if pttl == gone {
		w.throttle.gone()
	} else {
		changed = w.throttle.looked(sent, replied, pttl)
	}
	if changed && w.asking == asksItself {
		w.invalidated()
	}
	if pttl == 0 { // its last millisecond, which is not the same as no end
		pttl = 1
	}
	if !w.watched && w.paused == nil { // a change has come meanwhile
		w.wakeup.wake()
	}
	w.answer(KeyState{Watched: w.watched, Taken: pttl != gone, Left: clock.Milliseconds(pttl), replied: replied})
}

// answerSubscribe tells the call that there is an answer to Subscribe. If the call does not wait for one, it wakes.
func (w *Waiter) answerSubscribe() {
	if w.waits {
		w.answered.wake()
	} else {
		w.wakeup.wake()
	}
}

// unsubscribed notes that messages on the waiter's own channel no longer arrive.
func (w *Waiter) unsubscribed() {
	if w.joined = false; w.waits {
		w.answerSubscribe()
	}
}

// lost is called when the connection is lost, and when the waiter moves to another node. A waiter that relied on the connection
// wakes, since a change may have been missed.
func (w *Waiter) lost() {
	relied := w.watched || w.asking != asksNot || w.paused != nil || w.joined
	w.answer(KeyState{})
	w.unpause()
	w.unsubscribed()
	w.watched, w.tracks = false, false
	w.throttle.gone()
	if relied {
		w.wakeup.wake()
	}
}

// throttle finds out whether wake-ups by tracking are true, because the key has changed, or false. The server sends false ones
// when it drops the key from a full tracking table, and when a key of the same name changes in another database. A waiter that
// looks again has its key tracked again, which may drop another waiter's key, and so on, as fast as the network allows.
//
// A change shows in the key's expiry: a new owner or a renewal makes it later. PTTL gives it to within a round trip and a
// millisecond. After a look without a change, the next wake-up starts a pause, in which the waiter is not woken. After the
// pause this package looks itself, and wakes the waiter only if the key is gone or has surely changed. The pause doubles up to
// a poll interval. It ends with a change, or after a poll interval without wake-ups.
//
// A pause without the look would miss releases. An owner of another library had the key for 3 ms, and left it free for 2 ms,
// again and again. With the look a call waited for 8 to 12 ms, with a pause of half a poll interval for 55 to 60 ms.
type throttle struct {
	poll   time.Duration
	expiry span          // the key's expiry when a look last showed a change
	pause  time.Duration // before the next look
	since  time.Time     // the last look; zero: none
}

const (
	shortestPause = 2 * time.Millisecond
	longPause     = 4 * shortestPause // with longer pauses it is on
)

// span bounds the time at which something happens. If none is set, it never does.
type span struct {
	none           bool
	earliest, last time.Time
}

// maybe reports whether two spans may be about the same moment.
func (s span) maybe(o span) bool {
	if s.none || o.none {
		return s.none == o.none
	}
	return !s.last.Before(o.earliest) && !o.last.Before(s.earliest)
}

// looked notes the result of a look: the key had pttl milliseconds left at some moment between sent and replied. It reports
// whether the key has surely changed since an earlier look.
func (t *throttle) looked(sent, replied time.Time, pttl int64) (changed bool) {
	expiry := span{none: pttl < 0}
	if !expiry.none {
		left := clock.Milliseconds(pttl) // the server counts whole ones by its clock
		expiry.earliest, expiry.last = sent.Add(left-time.Millisecond), replied.Add(left)
	}
	changed = t.since.IsZero() || !t.expiry.maybe(expiry)
	t.since = replied
	if changed {
		t.expiry, t.pause = expiry, 0
	} else {
		t.pause = min(max(2*t.pause, shortestPause), t.poll)
	}
	return changed
}

// woken notes a wake-up, and returns for how long to delay the look at the key; 0: not at all.
func (t *throttle) woken(now time.Time) time.Duration {
	if now.Sub(t.since) >= t.poll {
		t.pause = 0
	}
	return t.pause
}

// gone notes that the key is not there, or that nothing is known about it.
func (t *throttle) gone() {
	*t = throttle{poll: t.poll}
}

// on reports whether wake-ups have been false for a while.
func (t *throttle) on() bool { return t.pause > longPause }
