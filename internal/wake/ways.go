package wake

import (
	"errors"
	"strings"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

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
	results := c.client.DoMulti(c.ctx,
		c.client.B().ClientTracking().Off().Build(),
		c.client.B().ClientTracking().On().Build())
	err = results[1].Error()
	if err == nil { // the server allows it to connections that it cannot tell of changes, too
		err = c.pushes()
	}
	switch {
	case err == nil, errors.Is(err, errNoPush), fault.Refusal(err):
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
	result := c.client.Do(c.ctx, c.client.B().Eval().Script(double).Numkeys(0).Build())
	if err := result.Error(); err == nil {
		if _, err := result.ToFloat64(); err != nil {
			return errNoPush
		}
		return nil
	} else if !fault.Refusal(err) {
		return err
	}
	hello, err := c.client.Do(c.ctx, c.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil && !fault.Refusal(err) {
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
		err = c.client.Do(c.ctx, c.client.B().Subscribe().Channel(name).Build()).Error()
	}
	switch {
	case err == nil:
		c.node.hear(name)
	case fault.Refusal(err):
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
	c := n.channels.all[name]
	return c != nil && c.common
}

// hear notes that a common channel is subscribed to.
func (n *node) hear(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c, _ := n.channels.at(name)
	c.common = true
}

// unknown tells whether the server does not know a command.
func unknown(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(strings.TrimPrefix(reply.Error(), "ERR "), "unknown command")
}
