package wake

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

const (
	// probe is a message that no listener is given.
	probe = "probe"

	// probing does what the scripts do that publish on own channels. It replies how many are subscribed, and how many have got
	// the message.
	probing = "local n = redis.call('PUBSUB', ARGV[1], ARGV[3]) return {n[2], redis.call(ARGV[2], ARGV[3], ARGV[4])}"

	// echoing is how long the message may take, and two round trips.
	echoing = time.Second
)

var (
	errAnyOwn  = errors.New("CLUSTER SLOTS does not tell which server has the channel's slot")
	errUnheard = errors.New("the message of a script does not arrive")
)

// unproven returns one subscribed channel of each listener for which nothing is proven yet.
func (n *node) unproven(wanted []*own) (pending []*own) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := map[*Listener]bool{}
	for _, o := range wanted {
		p := n.listeners[o.listener]
		if p != nil && p.hearing == NotYet && n.owns.has(o) && o.subscribed && !seen[o.listener] {
			seen[o.listener], o.echoed = true, false
			pending = append(pending, o)
		}
	}
	return pending
}

// prove finds out whether a script's message on each of some channels arrives.
func (c *connection) prove(pending []*own) error {
	commands := make(rueidis.Commands, len(pending))
	for i, o := range pending {
		script := c.client.B().Eval().Script(probing)
		if c.node.hub.cluster { // the key, for the server to say when its slot is elsewhere
			commands[i] = script.Numkeys(1).Key(o.key).Arg("SHARDNUMSUB", "SPUBLISH", o.name, probe).Build()
		} else {
			commands[i] = script.Numkeys(0).Arg("NUMSUB", "PUBLISH", o.name, probe).Build()
		}
	}
	var sent []*own
	for i, result := range c.client.DoMulti(c.ctx, commands...) {
		o := pending[i]
		if err := c.answer(o, result); err != nil {
			return err
		}
		if result.Error() != nil {
			continue
		}
		if counts, err := result.AsIntSlice(); err != nil || len(counts) != 2 || min(counts[0], counts[1]) < 1 {
			c.deafen(o.listener, errUnheard)
		} else {
			sent = append(sent, o)
		}
	}
	return c.await(sent)
}

// await waits for the messages of the proof to arrive on channels.
func (c *connection) await(sent []*own) error {
	timer := time.NewTimer(c.node.hub.plus(echoing, 2))
	defer timer.Stop()
	for late := false; ; {
		if sent = c.node.unechoed(sent); len(sent) == 0 {
			return nil
		}
		if late {
			break
		}
		select {
		case <-c.echo:
		case <-timer.C:
			late = true
		case err := <-c.lost:
			return err
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	for _, o := range sent {
		c.deafen(o.listener, errUnheard)
	}
	return nil
}

// unechoed returns the channels on which the message has not arrived, and takes down that the listeners of the others hear.
func (n *node) unechoed(sent []*own) (missing []*own) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range sent {
		if p := n.listeners[o.listener]; !o.echoed {
			missing = append(missing, o)
		} else if p != nil {
			p.hearing = Heard
		}
	}
	return missing
}

func (c *connection) echoes() {
	select {
	case c.echo <- struct{}{}:
	default:
	}
}

// deafen notes that nothing will be heard for a listener on this connection.
func (c *connection) deafen(l *Listener, err error) {
	n := c.node
	n.mu.Lock()
	if p := n.listeners[l]; p != nil {
		p.hearing = Deaf
	}
	n.mu.Unlock()
	n.missing(l, "queueing", err)
}
