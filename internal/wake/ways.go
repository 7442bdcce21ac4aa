package wake

import (
	"errors"
	"strings"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// prepare finds out which ways of listening the server and the user's permissions allow for some users, and sets up what
// each needs once per connection. An error means that the network or the server does not work now, or that no way works for any
// waiting user.
func (c *connection) prepare(users []*user) error {
	if c.unsure {
		c.unsure = false
		if err := c.checkRole(false); err != nil {
			return err
		}
	}
	for _, l := range users {
		if !c.node.unprepared(l, c) {
			continue
		}
		tracks := false
		if l.Track {
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
		if !l.Subscribe {
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

// unprepared reports whether a connection is not prepared for a user, and notes that it is now.
func (n *node) unprepared(l *user, c *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.parts[l]
	if p == nil || p.prepared == c {
		return false
	}
	p.prepared = c
	return true
}

// track turns on tracking of the keys that the connection reads, if the server can.
func (c *connection) track() (err error) {
	if !errors.Is(c.tracking, errUntried) {
		return nil
	}
	n := c.node
	// Rueidis may have turned tracking on in another mode, which must be turned off first. Without permission for CLIENT it has
	// not.
	results := c.client.DoMulti(c.ctx,
		c.client.B().ClientTracking().Off().Build(),
		c.client.B().ClientTracking().On().Build())
	err = results[1].Error()
	if err == nil { // the server also accepts it from connections to which it cannot report changes
		err = c.pushes()
	}
	switch {
	case err == nil, errors.Is(err, errNoPush), fault.Refusal(err):
		c.tracking = err
	default:
		return err
	}
	n.mu.Lock()
	n.peers.tracks = err == nil
	n.mu.Unlock()
	return nil
}

var errNoPush = errors.New("the connection speaks version 2 of the protocol, which has no messages about changed keys")

// double returns a double, a type that only version 3 of the protocol has.
const double = "redis.setresp(3) return {double=0.5}"

// pushes fails with errNoPush if the server cannot push messages on the connection, which needs version 3 of the protocol.
// HELLO returns the version, but Redis 6.0 requires an argument that would also change it. So a script finds out; without
// permission for scripts HELLO does.
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

// subscribeCommon subscribes to the common channel of a user. A refusal is no failure, since each key also has a channel.
func (c *connection) subscribeCommon(l *user) error {
	name := l.Common
	if name == "" || c.node.isCommon(name) {
		return nil
	}
	err := c.refused[name]
	if err == nil {
		err = c.client.Do(c.ctx, c.client.B().Subscribe().Channel(name).Build()).Error()
	}
	switch {
	case err == nil:
		c.node.addCommon(name)
	case fault.Refusal(err):
		c.refused[name] = err
		c.node.missing(l, "subscribing", err)
	default:
		return err
	}
	return nil
}

// isCommon reports whether a common channel is subscribed.
func (n *node) isCommon(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers.channels.isCommon(name)
}

// addCommon notes that a common channel is subscribed.
func (n *node) addCommon(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers.channels.addCommon(name)
}

// unknown reports whether the server does not know a command.
func unknown(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(strings.TrimPrefix(reply.Error(), "ERR "), "unknown command")
}
