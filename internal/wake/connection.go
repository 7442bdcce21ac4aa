package wake

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// connection is one that a node listens on. Only run uses it, but for dialling.
type connection struct {
	node     *node
	client   rueidis.DedicatedClient
	giveBack func()
	lost     <-chan error // gets an error, or is closed, when the connection ends
	servers  []string     // the client's, when the connection was made

	tracking  error            // why tracking does not work: errUntried before it is tried, nil when it works
	refused   map[string]error // common channels that are refused
	unsharded bool             // the server does not subscribe to channels in their slots
}

var (
	errUntried = errors.New("not tried")
	errAny     = errors.New("each server of a cluster tracks its own keys, and CLUSTER SLOTS does not tell which they are")
	errNone    = errors.New("none within a few seconds: the server does not answer, or all of the client's connections " +
		"for blocking commands (BlockingPoolSize) are taken")
)

// dialLimit is how long it may take to get a connection.
const dialLimit = 5 * time.Second

// dial gets a connection from the client's pool. When all that the pool may have are taken, rueidis's Dedicate waits
// without end, so a goroutine of its own calls it; there is one at most, and it gives back what nobody wants any more. It
// does not even begin to wait when a command that takes a connection from the same pool, and heeds its context, gets none.
func (n *node) dial() (*connection, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialLimit)
	defer cancel()
	client := n.source()
	ping := client.B().Arbitrary("PING").Blocking()
	if err := client.Do(ctx, ping).Error(); err != nil && !refusal(err) { // it need not be permitted
		if ctx.Err() != nil {
			err = errNone
		}
		return nil, err
	}
	if n.dialing == nil {
		dialing := make(chan *connection)
		n.dialing = dialing
		go func() {
			c := n.dedicate(client)
			select {
			case dialing <- c:
			case <-n.ctx.Done():
				c.end()
			}
		}()
	}
	select {
	case c := <-n.dialing:
		n.dialing = nil
		return c, nil
	case <-ctx.Done():
		return nil, errNone
	}
}

// source is the client to get a connection from. Rueidis may replace that of a server of a cluster.
func (n *node) source() rueidis.Client {
	if n.address != "" {
		if client := n.hub.client.Nodes()[n.address]; client != nil {
			return client
		}
	}
	return n.client
}

func (n *node) dedicate(client rueidis.Client) *connection {
	c := &connection{node: n, tracking: errUntried, refused: map[string]error{}, servers: servers(client)}
	if n.any {
		c.tracking = errAny
	}
	c.client, c.giveBack = client.Dedicate()
	c.lost = c.client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: n.published})
	if !n.any {
		c.lost = c.client.SetOnInvalidations(n.invalidated)
	}
	return c
}

// end closes the connection: it is not for others, since it has subscriptions, and may track.
func (c *connection) end() {
	if c != nil {
		c.client.Close()
		c.giveBack()
	}
}

// prepare finds out which ways of listening the server and the user's permissions allow for some listeners, and has the
// server do what is needed once for each. An error means that the network or the server does not work for now, or that
// there is no way for any listener that waits.
func (c *connection) prepare(listeners []*Listener) error {
	for _, l := range listeners {
		if !c.node.unprepared(l, c) {
			continue
		}
		tracks := false
		if l.options.Track {
			if err := c.track(); err != nil {
				return err
			}
			if tracks = c.tracking == nil; !tracks {
				c.node.missing(l, "tracking", c.tracking)
			}
		}
		if tracks {
			continue
		}
		if !l.options.Subscribe {
			if err := c.node.refuse(l); err != nil {
				return err
			}
			continue
		}
		if err := c.subscribeCommon(l); err != nil {
			return err
		}
	}
	return nil
}

// unprepared tells whether a connection is not prepared for a listener, and takes down that it is.
func (n *node) unprepared(l *Listener, c *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.listeners[l]
	if p == nil || p.prepared == c {
		return false
	}
	p.prepared = c
	return true
}

// track has the connection track the keys that it reads, if the server can.
func (c *connection) track() (err error) {
	if !errors.Is(c.tracking, errUntried) {
		return nil
	}
	n := c.node
	// Rueidis may have switched tracking on in another mode already, which must be left first. Where CLIENT is not
	// permitted it has not.
	results := c.client.DoMulti(n.ctx,
		c.client.B().ClientTracking().Off().Build(),
		c.client.B().ClientTracking().On().Build())
	err = results[1].Error()
	if err == nil { // the server allows it to connections that it cannot tell of changes, too
		err = c.pushes()
	}
	switch {
	case err == nil, errors.Is(err, errNoPush), refusal(err):
		c.tracking = err
	default:
		return err
	}
	n.mu.Lock()
	n.tracks = err == nil
	n.mu.Unlock()
	return nil
}

var errNoPush = errors.New("the connection speaks version 2 of the protocol, which has no messages about changed keys")

// double replies a number that is one in version 3 of the protocol only; version 2 has no such type.
const double = "redis.setresp(3) return {double=0.5}"

// pushes fails with errNoPush when the server cannot send messages of its own on the connection: it does in version 3 of
// the protocol. HELLO tells the version, but Redis 6.0 insists on being told one, which would also change it. So a script
// finds out; where scripts are not permitted HELLO must do.
func (c *connection) pushes() error {
	result := c.client.Do(c.node.ctx, c.client.B().Eval().Script(double).Numkeys(0).Build())
	if err := result.Error(); err == nil {
		if _, err := result.ToFloat64(); err != nil {
			return errNoPush
		}
		return nil
	} else if !refusal(err) {
		return err
	}
	hello, err := c.client.Do(c.node.ctx, c.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil && !refusal(err) {
		return err
	}
	version := hello["proto"]
	if n, err := version.AsInt64(); err != nil || n < 3 {
		return errNoPush
	}
	return nil
}

// subscribeCommon subscribes to the common channel of a listener. It can do without: each key has a channel, too.
func (c *connection) subscribeCommon(l *Listener) error {
	name := l.options.Common
	if name == "" || c.node.hearing(name) {
		return nil
	}
	err := c.refused[name]
	if err == nil {
		err = c.client.Do(c.node.ctx, c.client.B().Subscribe().Channel(name).Build()).Error()
	}
	switch {
	case err == nil:
		c.node.hear(name)
	case refusal(err):
		c.refused[name] = err
		c.node.missing(l, "subscribing", err)
	default:
		return err
	}
	return nil
}

// hearing tells whether a common channel is subscribed to.
func (n *node) hearing(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.channels[name]
	return c != nil && c.common
}

// hear notes that a common channel is subscribed to.
func (n *node) hear(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.channels[name]
	if c == nil {
		c = &channel{}
		n.channels[name] = c
	}
	c.common = true
}

// servers are the addresses of a client's servers; of one for Sentinel, that of the master that it uses.
func servers(client rueidis.Client) []string { return slices.Sorted(maps.Keys(client.Nodes())) }

// suspecting is how often a client for Sentinel is asked whether it uses another master by now. A connection to the one before
// may stay open, until Sentinel demotes it, and hears nothing of what happens on the new one.
const suspecting = time.Second

var errDeposed = errors.New("another server is the master now")

// serve arms waiters until the connection is lost, for which it returns the reason, or the node is closed.
func (c *connection) serve() error {
	n := c.node
	tidy := time.NewTimer(tidying)
	defer tidy.Stop()
	var suspect <-chan time.Time
	if n.client.Mode() == rueidis.ClientModeSentinel {
		ticker := time.NewTicker(suspecting)
		defer ticker.Stop()
		suspect = ticker.C
	}
	ticks := true // the timer runs, which it does while there are channels to leave
	for {
		late := false
		select {
		case <-n.nudge:
		case <-tidy.C:
			late, ticks = true, false
		case <-suspect:
			if !slices.Equal(c.servers, servers(n.client)) {
				return errDeposed
			}
			continue
		case err := <-c.lost:
			return err
		case <-n.ctx.Done():
			return n.ctx.Err()
		}
		if err := c.leave(n.unused(late)); err != nil {
			return err
		}
		for asked := n.next(); len(asked) > 0; asked = n.next() {
			if err := c.arm(asked); err != nil {
				return err
			}
		}
		if !ticks && n.untidy() {
			ticks = true
			tidy.Reset(tidying)
		}
	}
}

// unused takes the channels that are to be left.
func (n *node) unused(tidy bool) (names, sharded []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !tidy && len(n.idle) < batch {
		return nil, nil
	}
	for _, name := range n.idle {
		if c := n.channels[name]; c != nil && c.unused() {
			delete(n.channels, name)
			if names = append(names, name); c.sharded {
				sharded = append(sharded, name)
			}
		}
	}
	n.idle = nil
	return names, sharded
}

func (n *node) untidy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.idle) > 0
}

func (c *connection) leave(names, sharded []string) error {
	if len(names) == 0 {
		return nil
	}
	for _, name := range sharded { // each in a slot of its own
		if err := c.client.Do(c.node.ctx, c.client.B().Sunsubscribe().Channel(name).Build()).Error(); err != nil && !refusal(err) {
			return err
		}
	}
	return c.client.Do(c.node.ctx, c.client.B().Unsubscribe().Channel(names...).Build()).Error()
}

// next takes waiters that ask to be armed.
func (n *node) next() (asked []*Waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.asked {
		if len(asked) == batch {
			break
		}
		delete(n.asked, w)
		asked = append(asked, w)
	}
	return asked
}

// arm arms waiters that have asked for it.
func (c *connection) arm(asked []*Waiter) error {
	n := c.node
	var listeners []*Listener
	for _, w := range asked {
		if len(listeners) == 0 || listeners[len(listeners)-1] != w.listener {
			listeners = append(listeners, w.listener)
		}
	}
	if err := c.prepare(listeners); err != nil {
		return err
	}
	tracked, others, channels, sharded := n.enlist(asked)
	if err := c.look(tracked); err != nil {
		return err
	}
	if err := c.subscribe(channels); err != nil {
		return err
	}
	if err := c.subscribeSharded(sharded); err != nil {
		return err
	}
	n.enlisted(others)
	return nil
}

// enlist counts waiters as armed from now on, since the server may tell of a change before it answers. It returns those to
// be tracked, the others, and the channels that are to be subscribed to.
func (n *node) enlist(asked []*Waiter) (tracked, others []*Waiter, channels, sharded []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range asked {
		p := n.listeners[w.listener]
		if w.node != n { // closed, or elsewhere now
			continue
		}
		if p == nil || p.refused {
			w.answer(Sight{})
			continue
		}
		w.armed, w.tracks = true, n.tracks && w.listener.options.Track
		if w.tracks {
			tracked = append(tracked, w)
		} else {
			others = append(others, w)
		}
		for _, name := range w.channels(p) {
			c := n.channels[name]
			if c == nil {
				c = &channel{}
				n.channels[name] = c
				channels = append(channels, name)
			}
			if w.sharded && name == w.Channel && !c.sharded {
				c.sharded = true
				sharded = append(sharded, name)
			}
			if c.last = w.listener; !slices.Contains(c.waiters, w) {
				c.waiters = append(c.waiters, w)
			}
		}
	}
	return tracked, others, channels, sharded
}

// look has the server track the keys of waiters: to read a key is to have it tracked. Who sees that the key is taken need
// not look at it again: whoever takes it away, the server will tell.
func (c *connection) look(waiters []*Waiter) error {
	if len(waiters) == 0 {
		return nil
	}
	looks := make(rueidis.Commands, len(waiters))
	for i, w := range waiters {
		looks[i] = c.client.B().Pttl().Key(w.Key).Build()
	}
	sent := time.Now()
	replies := c.client.DoMulti(c.node.ctx, looks...)
	replied := time.Now()
	for _, reply := range replies {
		if err := reply.NonRedisError(); err != nil {
			return err
		}
	}
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, w := range waiters {
		if w.node != n {
			continue
		}
		pttl, err := replies[i].AsInt64()
		if err != nil {
			if reply, ok := rueidis.IsRedisErr(err); ok {
				if _, moved := reply.IsMoved(); moved {
					n.hub.poke()
				}
			}
			w.armed = false
			w.answer(Sight{})
			continue
		}
		w.saw(pttl, sent, replied)
	}
	return nil
}

// gone is the reply of PTTL for a key that does not exist.
const gone = -2

// saw takes in what PTTL replied. The caller holds the hub's mutex.
func (w *Waiter) saw(pttl int64, sent, replied time.Time) {
	changed := true
	if pttl == gone {
		w.doubt = doubt{poll: w.doubt.poll, since: replied}
	} else {
		changed = w.doubt.looked(replied, expiry(sent, replied, pttl))
	}
	if changed && w.asking == asksItself {
		w.signal()
	}
	left := time.Duration(max(pttl, -1)) * time.Millisecond
	if pttl == 0 { // its last millisecond; which is not the same as no end
		left = time.Millisecond
	}
	w.answer(Sight{Armed: true, Taken: pttl != gone, Left: left})
}

// enlisted answers waiters that are subscribed: they are to look themselves.
func (n *node) enlisted(waiters []*Waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range waiters {
		if w.node != n {
			continue
		}
		if w.asking == asksItself {
			w.signal()
		}
		w.answer(Sight{Armed: w.armed}) // it is not if its channel was refused
	}
}

// subscribe subscribes to channels. When that is refused the server allows it for some of them only, or for none.
func (c *connection) subscribe(names []string) error {
	if len(names) == 0 {
		return nil
	}
	err := c.client.Do(c.node.ctx, c.client.B().Subscribe().Channel(names...).Build()).Error()
	switch {
	case err == nil:
		c.hears(names)
		return nil
	case !refusal(err):
		return err
	case len(names) > 1:
		for i := range names {
			if err := c.subscribe(names[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	for _, l := range c.node.unheard(names[0]) {
		c.node.missing(l, "subscribing", err)
		if c.node.deaf(l, c) {
			if err := c.node.refuse(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// subscribeSharded subscribes to channels in their slots, where Redisson publishes. Where that is refused, or unknown as before
// version 7, those messages are missing, and polling has to do.
func (c *connection) subscribeSharded(names []string) error {
	if len(names) == 0 || c.unsharded {
		return nil
	}
	commands := make(rueidis.Commands, len(names))
	for i, name := range names { // each in a slot of its own
		commands[i] = c.client.B().Ssubscribe().Channel(name).Build()
	}
	for _, result := range c.client.DoMulti(c.node.ctx, commands...) {
		err := result.Error()
		_, answered := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
		case refusal(err):
			c.unsharded = true
			for _, l := range c.node.served() {
				if l.options.Subscribe && !l.options.Track {
					c.node.missing(l, "subscribing in slots", err)
				}
			}
		case !answered:
			return err
		default: // MOVED, most likely
			c.node.hub.poke()
		}
	}
	return nil
}

// hears notes whose channels are subscribed to.
func (c *connection) hears(names []string) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		if ch := n.channels[name]; ch != nil {
			for _, w := range ch.waiters {
				if p := n.listeners[w.listener]; p != nil {
					p.heard = c
				}
			}
		}
	}
}

// deaf tells whether no channel of a key has been subscribed to for a listener on a connection.
func (n *node) deaf(l *Listener, c *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.listeners[l]
	return p != nil && p.heard != c
}

// unheard takes out a channel that is refused, and returns the listeners whose waiters have nothing but it.
func (n *node) unheard(name string) (listeners []*Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.channels[name]
	if c == nil {
		return nil
	}
	delete(n.channels, name)
	for _, w := range c.waiters {
		if w.tracks { // it is woken all the same
			if p := n.listeners[w.listener]; p != nil {
				p.uncounted = true
			}
			continue
		}
		w.armed = false
		if !slices.Contains(listeners, w.listener) {
			listeners = append(listeners, w.listener)
		}
	}
	return listeners
}

// passing are the first words of replies after which the same command may succeed later.
var passing = []string{
	"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "READONLY", "OOM", "MISCONF", "UNBLOCKED",
	"max number of clients",
}

// refusal tells whether the server does not know a command, or does not permit it; other errors are the network's, or those
// of a server that does not work for now.
func refusal(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	return !slices.ContainsFunc(passing, func(word string) bool { return strings.HasPrefix(text, word) })
}
