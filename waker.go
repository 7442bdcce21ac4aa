package lockregistry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// waker wakes the calls that wait for Redis when the key that they wait for may be free. It listens on one connection of
// its own, opened when the first call waits, in one or both of two ways:
//
//   - subscribed to the layout's channels, on which whoever releases a lock publishes;
//   - with tracking: the server itself says, once, that a key changed which this connection has read. So it also tells of
//     releases that publish nothing, and of expiry.
//
// A wake-up is a hint. It may be missing, while there is no connection for instance: then the poll interval ends the wait.
// It may come for nothing: then the waiter tries in vain. Nothing that makes a lock safe depends on it.
//
//	off ──arm──▶ connecting ──▶ on ──connection lost──▶ off
//	                 └──server or permissions do not allow it──▶ refused
//
// One goroutine, run, lives while connecting and on. It alone sends on the connection, so that the server sees
// subscriptions come and go in the order in which they were asked for here, many of them in one command.
type waker struct {
	reg    *Registry
	nudge  chan struct{} // has room for one: something is to be sent
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup
	listen listening       // what to try; written before the first use
	said   map[string]bool // what the log has been told is not allowed; for run

	mu       sync.Mutex
	state    wakerState
	on       listening // what works on the connection
	again    instant   // not to be tried before
	failed   bool      // the last connection could not be made, which is logged once
	waiting  map[string]*listener
	channels map[string]*listener // by channel; a nil listener: subscribed, but nobody waits any more
	asked    []arming             // to be armed
	idle     []string             // channels to leave
}

type wakerState uint8

const (
	wakerOff wakerState = iota
	wakerConnecting
	wakerOn
	wakerRefused
	wakerClosed
)

// listening says in which ways to listen.
type listening struct{ track, subscribe bool }

func (m Wakeup) listening() listening {
	return listening{
		track:     m == WakeupAuto || m == WakeupTracking,
		subscribe: m == WakeupAuto || m == WakeupPubSub,
	}
}

// listener is one waiting call. There is at most one for a key, because only the local half's owner asks Redis.
type listener struct {
	waker   *waker
	key     string
	channel string
	wake    chan struct{} // has room for one

	// Guarded by the waker's mutex.
	armed  bool // a change of the key from now on wakes
	closed bool
}

// arming is a listener that asks to be armed.
type arming struct {
	*listener
	ready chan struct{} // closed when that has succeeded or failed
}

const (
	armBatch = 512 // keys or channels in one command
)

func newWaker(r *Registry, m Wakeup) *waker {
	ctx, stop := context.WithCancel(context.Background())
	w := &waker{
		reg:      r,
		nudge:    make(chan struct{}, 1),
		ctx:      ctx,
		stop:     stop,
		listen:   m.listening(),
		waiting:  map[string]*listener{},
		channels: map[string]*listener{},
		said:     map[string]bool{},
	}
	if w.listen.track && r.client.Mode() == rueidis.ClientModeCluster {
		// The nodes of a cluster each track their own keys, and one connection reaches one node. What is published
		// reaches all.
		w.listen.track = false
		if !w.listen.subscribe {
			r.log.Warn("waiting calls poll: tracking does not work with a cluster")
		}
	}
	if w.listen == (listening{}) {
		w.state = wakerRefused
	}
	return w
}

// listener returns a new listener for a key and its channel, not armed, or nil when there will be no wake-ups.
func (w *waker) listener(key, channel string) *listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == wakerRefused || w.state == wakerClosed {
		return nil
	}
	l := &listener{waker: w, key: key, channel: channel, wake: make(chan struct{}, 1)}
	w.waiting[key] = l
	return l
}

// close ends the listener. A nil listener has nothing to end.
func (l *listener) close() {
	if l == nil {
		return
	}
	w := l.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	l.closed = true
	if w.waiting[l.key] == l {
		delete(w.waiting, l.key)
	}
	if w.channels[l.channel] == l {
		w.channels[l.channel] = nil
		w.idle = append(w.idle, l.channel)
		if len(w.idle) >= armBatch { // leave many at a time; a path that is waited for again stays subscribed
			w.poke()
		}
	}
}

// wakeup is the channel on which the listener wakes; nil, which never does, for a nil listener.
func (l *listener) wakeup() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.wake
}

// arm sees to it that every change of the key from now on wakes the listener. It reports whether it had to do something
// for that and has done it: then the caller must look at the key once more, since it may have changed before. It waits
// for the server no longer than limit.
func (l *listener) arm(ctx context.Context, limit time.Duration) bool {
	if l == nil {
		return false
	}
	w := l.waker
	w.mu.Lock()
	if l.armed || w.state != wakerOn {
		w.connect()
		w.mu.Unlock()
		return false
	}
	select {
	case <-l.wake: // of a change that the look at the key will show
	default:
	}
	ready := make(chan struct{})
	w.asked = append(w.asked, arming{l, ready})
	w.poke()
	w.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ready:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.reg.closed:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.armed
}

// connect starts the goroutine that listens, unless it runs or there is no point in trying (yet). The caller holds the
// mutex.
func (w *waker) connect() {
	if w.state != wakerOff || w.reg.clock.now() < w.again {
		return
	}
	w.state = wakerConnecting
	w.done.Go(w.run)
}

func (w *waker) poke() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// signal wakes a listener. The caller holds the mutex.
func (l *listener) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// changed takes in what the server says about keys that this connection has read; nil means all of them.
func (w *waker) changed(keys []rueidis.RedisMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if keys == nil {
		for _, l := range w.waiting {
			w.untrack(l)
		}
	}
	for _, key := range keys {
		if name, err := key.ToString(); err == nil {
			if l := w.waiting[name]; l != nil {
				w.untrack(l)
			}
		}
	}
}

// untrack wakes a listener whose key the server no longer tracks, having told of a change.
func (w *waker) untrack(l *listener) {
	l.armed = false
	l.signal()
}

// published takes in a message. On the channel of one lock it is about that lock, on the channel of all it names the key.
func (w *waker) published(m rueidis.PubSubMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.channels[m.Channel]
	if m.Channel == w.reg.plain.layout.commonChannel() {
		l = w.waiting[m.Message]
	}
	if l != nil {
		l.signal()
	}
}

// run makes the connection and keeps it until it is lost or the registry is closed.
func (w *waker) run() {
	client, giveBack := w.reg.client.Dedicate()
	defer giveBack()
	defer client.Close() // not for others: it has subscriptions, and may track

	on, lost, err := w.start(client)
	w.mu.Lock()
	switch {
	case w.state == wakerClosed:
	case err != nil:
		w.state = wakerOff
		w.again = w.reg.clock.now().add(w.reg.poll)
	case on == (listening{}):
		w.state = wakerRefused
	default:
		w.state = wakerOn
		w.on = on
		w.failed = false
		for _, l := range w.waiting { // they could not be armed so far
			l.signal()
		}
	}
	state, logged := w.state, w.failed
	w.failed = w.failed || err != nil
	w.mu.Unlock()
	if err != nil && !logged && state != wakerClosed {
		w.reg.log.Warn("no connection for wake-ups; waiting calls poll until there is one", "error", err)
	}
	if state != wakerOn {
		return
	}

	err = w.serve(client, lost)
	w.mu.Lock()
	switch {
	case w.state != wakerOn:
	case errors.Is(err, errRefused):
		w.state = wakerRefused
	default:
		w.state = wakerOff
		w.again = w.reg.clock.now()
	}
	state = w.state
	clear(w.channels)
	w.idle = nil
	for _, l := range w.asked {
		close(l.ready)
	}
	w.asked = nil
	for _, l := range w.waiting {
		l.armed = false
		l.signal()
	}
	w.mu.Unlock()
	if state == wakerOff {
		w.reg.log.Warn("the connection for wake-ups is lost; it is made again", "error", err)
	}
}

// start finds out which ways of listening the server and the user's permissions allow. An error means that the network or
// the server does not work for now. Lost gets an error, or is closed, when the connection ends.
func (w *waker) start(client rueidis.DedicatedClient) (on listening, lost <-chan error, err error) {
	lost = client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: w.published})
	if w.listen.track {
		lost = client.SetOnInvalidations(w.changed)
		// Rueidis may have switched tracking on in another mode already, which must be left first. Where CLIENT is not
		// permitted it has not.
		results := client.DoMulti(w.ctx,
			client.B().ClientTracking().Off().Build(),
			client.B().ClientTracking().On().Build())
		on.track, err = w.allowed("tracking", results[1].Error())
		if err != nil {
			return on, lost, err
		}
		if on.track && !pushes(w.ctx, client) { // the server allows it all the same
			on.track = false
			w.missing("tracking", errNoPush)
		}
	}
	on.subscribe = w.listen.subscribe // to a channel of one lock, which is tried when there is one
	if channel := w.reg.plain.layout.commonChannel(); on.subscribe && channel != "" {
		err = client.Do(w.ctx, client.B().Subscribe().Channel(channel).Build()).Error()
		_, err = w.allowed("subscribing", err)
	}
	return on, lost, err
}

// allowed tells a server that refuses a way of listening from one that does not work for now.
func (w *waker) allowed(what string, err error) (bool, error) {
	if _, refused := rueidis.IsRedisErr(err); !refused || transient(err) {
		return err == nil, err
	}
	w.missing(what, err)
	return false, nil
}

// missing logs, once, that a way of listening does not work.
func (w *waker) missing(what string, err error) {
	if !w.said[what] {
		w.said[what] = true
		w.reg.log.Info("the server does not allow a way to wake up waiting calls", "way", what, "error", err)
	}
}

var errNoPush = errors.New("the connection speaks version 2 of the protocol, which has no messages about changed keys")

// pushes tells whether the server can send messages of its own on a connection: in version 3 of the protocol.
func pushes(ctx context.Context, client rueidis.DedicatedClient) bool {
	hello, err := client.Do(ctx, client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return false
	}
	version := hello["proto"]
	n, err := version.AsInt64()
	return err == nil && n >= 3
}

// serve arms listeners until the connection is lost, for which it returns the reason, or the waker is closed.
func (w *waker) serve(client rueidis.DedicatedClient, lost <-chan error) error {
	for {
		select {
		case <-w.nudge:
		case err := <-lost:
			return err
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
		for {
			left, asked := w.next()
			if len(left) == 0 && len(asked) == 0 {
				break
			}
			err := w.send(client, left, asked)
			w.mu.Lock()
			for _, l := range asked {
				l.armed = l.armed && err == nil
				close(l.ready)
			}
			w.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

// next takes what is to be sent next: channels to leave, and listeners to arm. The listeners count as armed from now on,
// since the server may tell of a change before it answers.
func (w *waker) next() (left []string, asked []arming) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.asked) > 0 && len(asked) < armBatch {
		l := w.asked[0]
		w.asked = w.asked[1:]
		if l.closed { // gave up meanwhile
			close(l.ready)
			continue
		}
		asked = append(asked, l)
		l.armed = true
		if w.on.subscribe {
			w.channels[l.channel] = l.listener
		}
	}
	if len(w.idle) >= armBatch {
		for _, channel := range w.idle {
			if l, subscribed := w.channels[channel]; subscribed && l == nil {
				delete(w.channels, channel)
				left = append(left, channel)
			}
		}
		w.idle = nil
	}
	return left, asked
}

func (w *waker) send(client rueidis.DedicatedClient, left []string, asked []arming) error {
	if len(left) > 0 {
		if err := client.Do(w.ctx, client.B().Unsubscribe().Channel(left...).Build()).Error(); err != nil {
			return err
		}
	}
	if len(asked) == 0 {
		return nil
	}
	keys := make([]string, len(asked))
	channels := make([]string, len(asked))
	for i, l := range asked {
		keys[i], channels[i] = l.key, l.channel
	}
	on := w.on
	var err error
	if on.subscribe {
		err = client.Do(w.ctx, client.B().Subscribe().Channel(channels...).Build()).Error()
		if on.subscribe, err = w.allowed("subscribing", err); err != nil {
			return err
		}
	}
	if on.track { // to read a key is to have it tracked
		err = client.Do(w.ctx, client.B().Exists().Key(keys...).Build()).Error()
		if on.track, err = w.allowed("tracking", err); err != nil {
			return err
		}
	}
	if on == (listening{}) {
		return errRefused
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on.subscribe && !on.subscribe {
		clear(w.channels)
	}
	w.on = on
	return nil
}

// errRefused: the server allows no way to listen.
var errRefused = errors.New("the server allows no way to wake up waiting calls")

// subscribed tells whether this registry receives what is published on a channel.
func (w *waker) subscribed(channel string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.channels[channel]
	return ok
}

// close ends the connection and the goroutine.
func (w *waker) close() {
	w.mu.Lock()
	w.state = wakerClosed
	w.mu.Unlock()
	w.stop()
}
