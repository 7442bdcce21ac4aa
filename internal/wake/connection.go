package wake

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// connection is a connection that a node listens on. Except for dialling, only run uses it.
type connection struct {
	node     *node
	ctx      context.Context         // of all that is sent
	drop     context.CancelCauseFunc // ends it
	client   rueidis.DedicatedClient
	giveBack func()
	lost     <-chan error    // gets an error, or is closed, when the connection ends
	master   *topology.Watch // begun when the connection was made; nil without Sentinel
	demoted  <-chan struct{} // closed when a master was demoted since then; nil: not known
	unsure   bool            // one was demoted before: the connection may have been in the client's pool since

	tracking  error            // why tracking does not work: errUntried before it is tried, nil if it works
	refused   map[string]error // common channels that are refused
	unsharded bool             // the server does not subscribe to channels in their slots
	echo      chan struct{}    // has room for one: a probe has arrived
}

var (
	errUntried = errors.New("not tried")
	errNone    = errors.New("none in time: the server does not answer, or all of the client's connections " +
		"for blocking commands (BlockingPoolSize) are taken")
)

// tidying is about how long a channel without waiters stays subscribed: for that time its subscriber is counted.
const tidying = time.Second

// end closes the connection. It cannot go back to the pool, since it has subscriptions, and may track.
func (c *connection) end() {
	if c != nil {
		c.drop(nil)
		c.client.Close()
		c.giveBack()
	}
}

// errDeposed: a connection to the former master may stay open until Sentinel demotes that, and misses all that happens on the
// new one.
var errDeposed = errors.New("another server is the master now")

// serve arms waiters until the connection is lost or the node is closed. It returns why the connection was lost.
func (c *connection) serve() error {
	n := c.node
	tidy := time.NewTimer(tidying)
	defer tidy.Stop()
	var look <-chan time.Time
	if c.master != nil {
		ticker := time.NewTicker(topology.SwitchEvery)
		defer ticker.Stop()
		look = ticker.C
	}
	ticks := true // the timer runs, as long as there are idle channels
	for {
		late := false
		select {
		case <-n.wakeup:
		case <-tidy.C:
			late, ticks = true, false
		case <-look:
			if c.master.Changed(func() {}) {
				return errDeposed
			}
			continue
		case <-c.demoted:
			_, c.demoted = n.hub.demoted() // first: another demotion is noticed, too
			if err := c.checkRole(true); err != nil {
				return err
			}
			continue
		case err := <-c.lost:
			return err
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
		if err := c.tidy(late); err != nil {
			return err
		}
		for wanted, asked := n.next(); len(wanted)+len(asked) > 0; wanted, asked = n.next() {
			if err := c.hear(wanted); err != nil {
				return err
			}
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

// tidy unsubscribes from idle channels; late: the timer for that has fired.
func (c *connection) tidy(late bool) error {
	n, leaves := c.node, false
	if late || n.overfull() {
		var err error
		if leaves, err = c.mayLeave(); err != nil {
			return err
		}
	}
	if leaves {
		if err := c.leave(n.unused(late)); err != nil {
			return err
		}
	}
	if late {
		return c.leaveOwn(n.silent(leaves))
	}
	return nil
}

// checkRole fails with errDeposed if the connection leads to a replica; sure: also if the server does not say.
func (c *connection) checkRole(sure bool) error {
	hello, err := c.client.Do(c.ctx, c.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil && !fault.Refusal(err) {
		return err
	}
	said := hello["role"]
	if role, _ := said.ToString(); role != "master" && (sure || role != "") { // empty if there is none
		return errDeposed
	}
	return nil
}

// unused takes the channels to unsubscribe from.
func (n *node) unused(late bool) (names, sharded []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers.channels.unused(late)
}

// overfull reports whether there are many idle channels.
func (n *node) overfull() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers.channels.overfull()
}

func (n *node) untidy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.peers.channels.idle) > 0 || n.mail.untidy()
}

// mayLeave reports whether unsubscribing is safe now. Rueidis sends PING behind each UNSUBSCRIBE. If PING is refused for a
// reason that rueidis does not expect, it panics in its own goroutine, which ends the program: a master that cannot save
// because its disk is full refuses PING (MISCONF). It also panics if both commands are refused for an expected reason, as by a
// server that is busy with a script. Then channels stay subscribed for now.
func (c *connection) mayLeave() (bool, error) {
	result := c.client.Do(c.ctx, c.client.B().Ping().Build())
	if err := result.NonRedisError(); err != nil {
		return false, err
	}
	reply := result.Error()
	return reply == nil || slices.ContainsFunc([]string{"NOPERM", "LOADING"}, func(known string) bool {
		return strings.HasPrefix(reply.Error(), known)
	}), nil
}

func (c *connection) leave(names, sharded []string) error {
	if err := c.unsubscribeSharded(sharded); err != nil || len(names) == 0 {
		return err
	}
	return network(c.client.Do(c.ctx, c.client.B().Unsubscribe().Channel(names...).Build()))
}

func (c *connection) unsubscribeSharded(names []string) error {
	commands := make(rueidis.Commands, len(names))
	for i, name := range names { // each in its own slot
		commands[i] = c.client.B().Sunsubscribe().Channel(name).Build()
	}
	return network(c.client.DoMulti(c.ctx, commands...)...)
}

// network returns the first error that is not a reply: a channel in a slot that has moved is gone already.
func network(results ...rueidis.RedisResult) error {
	for _, result := range results {
		if err := result.NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

// next takes own channels to subscribe to, and waiters that ask to be armed.
func (n *node) next() (wanted []*own, asked []*Waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mail.next(), n.peers.next()
}
