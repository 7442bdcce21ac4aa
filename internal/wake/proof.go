package wake

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

const (
	// probe is a message that is not passed to users.
	probe = "probe"

	// probing publishes on an own channel as the scripts do. It returns how many are subscribed, and how many got the message.
	probing = "local n = redis.call('PUBSUB', ARGV[1], ARGV[3]) return {n[2], redis.call(ARGV[2], ARGV[3], ARGV[4])}"

	// echoing, plus two round trips, is how long the message may take.
	echoing = time.Second
)

var errUnheard = errors.New("the message of a script does not arrive")

// unproven returns a subscribed channel of each user that has no proof yet.
func (n *node) unproven(wanted []*own) []*own {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mail.unproven(wanted)
}

// prove finds out whether a script's messages on some channels arrive.
func (c *connection) prove(pending []*own) error {
	commands := make(rueidis.Commands, len(pending))
	for i, o := range pending {
		script := c.client.B().Eval().Script(probing)
		if c.node.hub.cluster { // the key, so that the server can redirect
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
			c.deafen(o.user, errUnheard)
		} else {
			sent = append(sent, o)
		}
	}
	return c.await(sent)
}

// await waits for the probes on channels.
func (c *connection) await(sent []*own) error {
	timer := time.NewTimer(c.node.hub.plus(echoing, 2))
	defer timer.Stop()
	for late := false; ; {
		if sent = c.node.unproven(sent); len(sent) == 0 {
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
		c.deafen(o.user, errUnheard)
	}
	return nil
}

func (c *connection) echoes() {
	select {
	case c.echo <- struct{}{}:
	default:
	}
}

// deafen notes that a user's messages will not arrive on this connection.
func (c *connection) deafen(l *user, err error) {
	n := c.node
	n.mu.Lock()
	n.mail.deafen(l)
	n.mu.Unlock()
	n.missing(l, "queueing", err)
}
