package lockregistry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// waker wakes the calls that wait for Redis when the key that they wait for may be free. It listens on one connection of
// its own, opened when the first call waits, in one of two ways:
//
//   - with tracking: the server itself says, once, that a key changed which this connection has read. So it also tells of
//     releases that publish nothing, and of expiry;
//   - subscribed to the layout's channels, on which whoever releases a lock publishes.
//
// It does not do both: every release would wake it twice, and who is woken twice has the lock later than who is woken once.
// Where both are asked for, and tracking works, it subscribes only to be counted: see attendance.
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
	count  bool            // whether to ask how many others wait
	listen listening       // what to try; for run, once it has begun
	said   map[string]bool // what the log has been told is not allowed; for run

	mu       sync.Mutex
	state    wakerState
	on       listening // what works on the connection
	again    instant   // not to be tried before
	failed   bool      // the last connection could not be made, which is logged once
	waiting  map[string]*listener
	channels map[string]*listener // subscribed to, by name; a nil listener: nobody waits there any more
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

// listening says in which ways to listen. With tracking, to subscribe is only to be counted.
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
	ready chan sight // has room for the answer
}

// sight is what there was to be seen of a key when its listener was armed.
type sight struct {
	armed bool // the listener was armed just now; otherwise nothing else is known
	taken bool // the key was there, and with what is left of its lease, where that has an end
	left  time.Duration
}

const (
	armBatch = 512 // keys or channels in one command
)

// tidying is how long a channel to which nobody listens any more stays subscribed to, about: who waits for the same path
// again needs no new subscription, and who has gone is not counted for long.
const tidying = time.Second

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
	w.count = w.listen != (listening{}) && r.client.Mode() != rueidis.ClientModeCluster
	if w.listen.track && r.client.Mode() == rueidis.ClientModeCluster {
		// The nodes of a cluster each track their own keys, and one connection reaches one node. What is published
		// reaches all.
		w.listen.track = false
		if !w.listen.subscribe {
			r.journal.log(slog.LevelWarn, "waiting calls poll: tracking does not work with a cluster")
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
	if name := w.name(l); w.channels[name] == l {
		w.channels[name] = nil
		w.idle = append(w.idle, name)
		if len(w.idle) >= armBatch {
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

// arm sees to it that every change of the key from now on wakes the listener. When it had to do something for that, and
// has done it, the caller must look at the key once more, since it may have changed before; unless arm has seen that it is
// taken. It waits for the server no longer than limit.
func (l *listener) arm(ctx context.Context, limit time.Duration) (seen sight) {
	if l == nil {
		return sight{}
	}
	w := l.waker
	w.mu.Lock()
	if l.armed || w.state != wakerOn {
		w.connect()
		w.mu.Unlock()
		return sight{}
	}
	select {
	case <-l.wake: // of a change that the look at the key will show
	default:
	}
	ready := make(chan sight, 1)
	w.asked = append(w.asked, arming{l, ready})
	w.poke()
	w.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case seen = <-ready:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.reg.closed:
	}
	return seen
}

// looks tells whether arming the listener shows the key, too.
func (l *listener) looks() bool {
	if l == nil {
		return false
	}
	l.waker.mu.Lock()
	defer l.waker.mu.Unlock()
	return l.waker.on.track
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
	if w.on.track { // nobody publishes where it is only counted
		return
	}
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
		w.reg.journal.log(slog.LevelWarn, "no connection for wake-ups; waiting calls poll until there is one", slog.Any("error", err))
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
	w.on = listening{}
	state = w.state
	clear(w.channels)
	w.idle = nil
	for _, l := range w.asked {
		l.ready <- sight{}
	}
	w.asked = nil
	for _, l := range w.waiting {
		l.armed = false
		l.signal()
	}
	w.mu.Unlock()
	if state == wakerOff {
		w.reg.journal.log(slog.LevelWarn, "the connection for wake-ups is lost; it is made again", slog.Any("error", err))
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
	if channel := w.reg.plain.layout.commonChannel(); on.subscribe && !on.track && channel != "" {
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
		w.reg.journal.log(slog.LevelInfo, "the server does not allow a way to wake up waiting calls",
			slog.String("way", what), slog.Any("error", err))
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
	tidy := time.NewTimer(tidying)
	defer tidy.Stop()
	ticks := true // the timer runs, which it does while there are subscriptions
	for {
		late := false
		select {
		case <-w.nudge:
		case <-tidy.C:
			late, ticks = true, false
		case err := <-lost:
			return err
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
		for {
			left, asked, channels := w.next(late)
			if len(left) == 0 && len(asked) == 0 {
				break
			}
			if err := w.send(client, left, asked, channels); err != nil {
				w.settle(asked, nil, err)
				return err
			}
		}
		if !ticks && w.subscriptions() > 0 {
			ticks = true
			tidy.Reset(tidying)
		}
	}
}

// name is that of the channel to which a listener subscribes. The caller holds the mutex.
func (w *waker) name(l *listener) string {
	if w.on.track {
		return attendance(l.channel)
	}
	return l.channel
}

// next takes what is to be sent next: channels to leave, listeners to arm, and those of their channels that are not
// subscribed to yet. The listeners count as armed from now on, since the server may tell of a change before it answers.
func (w *waker) next(tidy bool) (left []string, asked []arming, channels []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.asked) > 0 && len(asked) < armBatch {
		l := w.asked[0]
		w.asked = w.asked[1:]
		if l.closed { // gave up meanwhile
			l.ready <- sight{}
			continue
		}
		asked = append(asked, l)
		l.armed = true
		if w.on.subscribe {
			name := w.name(l.listener)
			if _, subscribed := w.channels[name]; !subscribed {
				channels = append(channels, name)
			}
			w.channels[name] = l.listener
		}
	}
	if tidy || len(w.idle) >= armBatch {
		for _, channel := range w.idle {
			if l, subscribed := w.channels[channel]; subscribed && l == nil {
				delete(w.channels, channel)
				left = append(left, channel)
			}
		}
		w.idle = nil
	}
	return left, asked, channels
}

// settle answers who asked to be armed, unless it has done so: with an error, or what the server said of their keys, or
// with neither when they are to look themselves.
func (w *waker) settle(asked []arming, pttl []rueidis.RedisResult, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range asked {
		seen, failed := sight{armed: l.armed}, err // it is not if its channel was refused
		if pttl != nil {
			var left int64
			left, failed = pttl[i].AsInt64()
			seen = sight{armed: true, taken: left != noKey, left: remaining(left)}
		}
		if failed != nil {
			l.armed, seen = false, sight{}
		}
		select {
		case l.ready <- seen:
		default:
		}
	}
}

// noKey is the reply of PTTL for a key that does not exist.
const noKey = -2

func (w *waker) send(client rueidis.DedicatedClient, left []string, asked []arming, channels []string) error {
	if len(left) > 0 {
		if err := client.Do(w.ctx, client.B().Unsubscribe().Channel(left...).Build()).Error(); err != nil {
			return err
		}
	}
	if len(asked) == 0 {
		return nil
	}
	if w.on.track {
		if err := w.track(client, asked); err != nil {
			return err
		}
	}
	if err := w.subscribe(client, channels); err != nil {
		return err
	}
	w.settle(asked, nil, nil)
	return nil
}

// track has the server track the keys of who asked to be armed: to read a key is to have it tracked. Who sees that the key
// is taken need not look at it again: whoever holds it, the server will tell of their release.
func (w *waker) track(client rueidis.DedicatedClient, asked []arming) error {
	looks := make(rueidis.Commands, len(asked))
	for i, l := range asked {
		looks[i] = client.B().Pttl().Key(l.key).Build()
	}
	pttl := client.DoMulti(w.ctx, looks...)
	for _, reply := range pttl {
		if err := reply.NonRedisError(); err != nil {
			return err
		}
	}
	w.settle(asked, pttl, nil)
	return nil
}

// subscribe subscribes to channels. When that is refused the server allows it for some channels only, or for none.
func (w *waker) subscribe(client rueidis.DedicatedClient, channels []string) error {
	if len(channels) == 0 {
		return nil
	}
	err := client.Do(w.ctx, client.B().Subscribe().Channel(channels...).Build()).Error()
	_, refused := rueidis.IsRedisErr(err)
	switch {
	case err == nil:
		return nil
	case !refused || transient(err):
		return err
	case len(channels) > 1:
		for i := range channels {
			if err := w.subscribe(client, channels[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	w.mu.Lock()
	if l := w.channels[channels[0]]; l != nil && !w.on.track { // it polls
		l.armed = false
	}
	delete(w.channels, channels[0])
	none := len(w.channels) == 0
	if w.on.track && none {
		w.on.subscribe = false
	}
	w.mu.Unlock()
	if w.on.track { // it is woken all the same
		return nil
	}
	w.missing("subscribing", err)
	if none {
		return errRefused
	}
	return nil
}

// errRefused: the server allows no way to listen.
var errRefused = errors.New("the server allows no way to wake up waiting calls")

// attendance is the channel on which nobody publishes, and to which who waits with tracking subscribes, to be counted by
// who wants to know for how many to stand back. It is also where releases of a path would be published that is called like
// this one and ends in ":waiting"; who waits for either may then be counted for both.
func attendance(channel string) string { return channel + ":waiting" }

// subscriptions is to how many channels of locks this registry listens, or has listened lately.
func (w *waker) subscriptions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.channels)
}

// subscribed tells whether this registry receives what is published on a channel.
func (w *waker) subscribed(channel string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.channels[channel]
	return ok
}

// attendants is how many other registries wait with tracking for what is released on a channel, or have done so lately.
// In a cluster there are none, and one node knows its own subscribers only.
func (w *waker) attendants(channel string) int64 {
	if !w.count {
		return 0
	}
	name := attendance(channel)
	reply := w.reg.transport.ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().Arbitrary("PUBSUB", "NUMSUB").Args(name).Build()) // in this way rueidis does not try it again and again
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

// close ends the connection and the goroutine.
func (w *waker) close() {
	w.mu.Lock()
	w.state = wakerClosed
	w.mu.Unlock()
	w.stop()
}
