package wake

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// echoing, plus two round trips, is how long the message of a proof may take.
const echoing = time.Second

// errRefused: the server allows no way to listen for any waiting call.
var errRefused = errors.New("the server allows no way to wake up waiting calls")

// send sends all that the node wants now. It reports whether tidy will have something to do.
func (r *runner) send(c *connection) (untidy bool, err error) {
	n := r.node
	for {
		n.mu.Lock()
		wanted, unsubscribed := n.mail.next()
		asked := n.peers.next()
		untidy = len(n.peers.channels.idle)+len(n.mail.idle)+len(n.mail.later) > 0
		n.mu.Unlock()
		if len(wanted)+len(asked) == 0 {
			return untidy, nil
		}
		if err := r.subscribeOwn(c, wanted, unsubscribed); err != nil {
			return false, err
		}
		if err := r.watch(c, asked); err != nil {
			return false, err
		}
	}
}

// prepare finds out which ways of listening the server and the permissions allow for a user, and sets up what these need, once
// per connection. Somebody may have given the connection to the client's pool in a transaction, in which rueidis panics at
// SUBSCRIBE: so something else is sent before. An error means that the network or the server does not work now, or that no way
// works for any waiting user.
func (r *runner) prepare(c *connection, u *user) error {
	if c.prepared[u] || u.isClosed() {
		return nil
	}
	c.prepared[u] = true
	if u.Track {
		refusal, err := c.track()
		switch {
		case err != nil:
			return err
		case refusal == nil:
			r.node.mu.Lock()
			r.node.peers.tracks = true
			r.node.mu.Unlock()
			return nil
		}
		r.missing(u, "tracking", refusal)
	} else if _, err := c.mayUnsubscribe(); err != nil {
		return err
	}
	if !u.Subscribe {
		return r.refuse(u)
	}
	refusal, err := r.subscribeCommon(c, u.Common)
	if refusal != nil {
		r.missing(u, "subscribing", refusal)
	}
	return err
}

// subscribeCommon subscribes to the common channel of a user. A refusal is not a failure, since each key also has a channel.
func (r *runner) subscribeCommon(c *connection, name string) (refusal, err error) {
	n := r.node
	n.mu.Lock()
	done := name == "" || n.peers.channels.isCommon(name)
	n.mu.Unlock()
	if refusal = c.refused[name]; done || refusal != nil {
		return refusal, nil
	}
	refusals, err := c.subscribe([]string{name})
	if err != nil {
		return nil, err
	}
	if refusals[0] != nil {
		c.refused[name] = refusals[0]
		return refusals[0], nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers.channels.addCommon(name)
	return nil, nil
}

// refuse notes that no way to listen works for a user. It fails unless another waiting user still has one.
func (r *runner) refuse(u *user) error {
	r.node.refuse(u)
	if len(r.node.served()) == 0 {
		return errRefused
	}
	return nil
}

// watch watches waiters that have asked for it. It reads their keys, so that the server tracks them, and subscribes to channels
// for waiters that this does not wake.
func (r *runner) watch(c *connection, asked []*Waiter) error {
	closed := func(u *user, _ bool) bool { return u.isClosed() } // nothing of a closed registry stays in memory
	maps.DeleteFunc(c.prepared, closed)
	maps.DeleteFunc(c.subscribed, closed)
	for _, w := range asked {
		if err := r.prepare(c, w.user); err != nil {
			return err
		}
	}
	n := r.node
	n.mu.Lock()
	e := n.peers.enlist(asked, n.serves)
	n.mu.Unlock()
	sent := time.Now()
	looks, moved, err := c.look(e.keys)
	if err != nil {
		return err
	}
	replied := time.Now()
	if moved {
		r.moved.wake()
	}
	n.mu.Lock()
	n.peers.looked(e.tracked, looks, sent, replied)
	n.mu.Unlock()
	if len(e.others)+len(e.channels)+len(e.inSlots) == 0 {
		return nil
	}
	if err := r.subscribe(c, e.channels); err != nil {
		return err
	}
	if err := r.subscribeInSlots(c, e.inSlots); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers.subscribed(e.others)
	return nil
}

func (r *runner) subscribe(c *connection, names []string) error {
	refusals, err := c.subscribe(names)
	if err != nil {
		return err
	}
	for i, name := range names {
		for _, u := range r.usersOf(name, refusals[i] != nil) {
			if refusals[i] == nil {
				c.subscribed[u] = true
				continue
			}
			r.missing(u, "subscribing", refusals[i])
			if c.subscribed[u] {
				continue
			}
			if err := r.refuse(u); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) usersOf(channel string, refused bool) []*user {
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	return r.node.peers.channels.answered(channel, refused)
}

func (r *runner) subscribeInSlots(c *connection, names []string) error {
	refusal, moved, err := c.subscribeInSlots(names)
	if err != nil {
		return err
	}
	if refusal != nil {
		for _, u := range r.node.served() {
			if u.Subscribe && !u.Track {
				r.missing(u, "subscribing in slots", refusal)
			}
		}
	}
	if moved {
		r.moved.wake()
	}
	return nil
}

// subscribeOwn subscribes to own channels, and proves that their messages arrive.
func (r *runner) subscribeOwn(c *connection, wanted, unsubscribed []*own) error {
	if _, err := r.answers(unsubscribed, c.subscribeOwn(unsubscribed, r.cluster)); err != nil {
		return err
	}
	n := r.node
	n.mu.Lock()
	unproven := n.mail.unproven(wanted)
	n.mu.Unlock()
	sent, err := r.answers(unproven, c.probe(unproven, r.cluster))
	if err == nil {
		err = r.await(c, sent)
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range n.mail.answerAll(wanted) {
		c.subscribed[u] = true
	}
	return nil
}

// answers handles the replies to commands for own channels. It returns the channels without an error, or an error of the
// network.
func (r *runner) answers(channels []*own, errs []error) (sound []*own, err error) {
	for i, o := range channels {
		err := errs[i]
		_, answered := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
			sound = append(sound, o)
		case fault.Refusal(err), errors.Is(err, errNotProven):
			r.deafen(o.user, err)
		case !answered:
			return nil, err
		default: // the slot may have moved
			r.moved.wake()
		}
	}
	return sound, nil
}

// await waits for the probes on channels.
func (r *runner) await(c *connection, sent []*own) error {
	timer := time.NewTimer(r.plus(echoing, 2))
	defer timer.Stop()
	for late := false; ; {
		r.node.mu.Lock()
		sent = r.node.mail.unproven(sent)
		r.node.mu.Unlock()
		if len(sent) == 0 {
			return nil
		}
		if late {
			break
		}
		select {
		case <-r.node.echo:
		case <-timer.C:
			late = true
		case err := <-c.lost:
			return err
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	for _, o := range sent {
		r.deafen(o.user, errNotProven)
	}
	return nil
}

// deafen notes that a user's messages will not arrive on this connection.
func (r *runner) deafen(u *user, err error) {
	r.node.mu.Lock()
	r.node.mail.deafen(u)
	r.node.mu.Unlock()
	r.missing(u, "queueing", err)
}
