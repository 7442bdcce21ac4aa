package wake

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// runner connects a node to its server: it dials when a call waits, sends what the node wants, tells it what came of that, and
// begins anew when the connection is lost.
//
// One goroutine, run, lives from the first waiting call until the node is ended. Only run sends on the connection. So
// subscriptions begin and end in the order in which they were asked for, many in one command.
type runner struct {
	*shared
	node   *node
	dialer dialer
	ctx    context.Context // ends with the node
	logged bool            // the last failure to connect was logged
}

// shared is what all connections of a client have in common.
type shared struct {
	cluster bool
	trip    func() time.Duration // see Options; may be nil, like the next one
	demoted func() (ever bool, next <-chan struct{})
	moved   signal         // of the hub's goroutine: a slot may be at another server now
	tasks   sync.WaitGroup // all goroutines
}

// plus adds some round trips to a limit that was chosen for a server nearby.
func (s *shared) plus(d time.Duration, trips int) time.Duration {
	if s.trip == nil {
		return d
	}
	return d + time.Duration(trips)*s.trip()
}

const (
	longestPause = 3 * time.Second
	lasting      = 10 * time.Second // a peer that breaks connections sooner is treated like one that refuses them

	// tidying is about how long a channel without waiters stays subscribed. For that time the server counts a subscriber.
	tidying = time.Second
)

var errSuspect = errors.New("messages did not arrive, twice in a row")

// newRunner makes the runner of a node; source returns a client of its server.
func newRunner(ctx context.Context, s *shared, n *node, source func() rueidis.Client) *runner {
	return &runner{shared: s, node: n, ctx: ctx, dialer: dialer{shared: s, node: n, ctx: ctx, source: source}}
}

// run makes a connection when one is needed, and serves it until it is lost.
func (r *runner) run() {
	failed := 0
	for pause := time.Duration(0); r.rest(pause); {
		if r.connect() >= lasting {
			failed = 0
		}
		failed++
		pause = clock.Pause(failed, longestPause)
	}
}

// rest waits until the pause is over and a waiting call needs a connection. It reports false when the node is ended.
func (r *runner) rest(pause time.Duration) bool {
	rested := pause <= 0
	var over <-chan time.Time
	if !rested {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
	}
	for !rested || len(r.node.served()) == 0 {
		select {
		case <-over:
			rested = true
		case <-r.node.wakeup:
		case <-r.ctx.Done():
			return false
		}
	}
	return r.ctx.Err() == nil
}

// connect makes a connection, serves it until it is lost, and returns for how long it worked.
func (r *runner) connect() time.Duration {
	n := r.node
	c, err := r.dialer.dial()
	if err == nil && c.suspect {
		err = c.checkRole(false)
	}
	for _, u := range n.served() {
		if err == nil {
			err = r.prepare(c, u)
		}
	}
	if err != nil {
		c.end()
		n.loseConnection()
		if r.ctx.Err() == nil && !errors.Is(err, errRefused) && !r.logged {
			r.logged = true
			r.log(slog.LevelWarn, "no connection for wake-ups; waiting calls poll until there is one",
				slog.Any("error", fault.Plain(err)))
		}
		return 0
	}
	r.logged = false
	start := time.Now()
	if n.begin(c.number, c.cancel) {
		r.notify(Connection{Node: n.address, Up: true})
		err = r.serve(c)
		if reason := context.Cause(c.ctx); reason != nil {
			err = reason
		}
		n.loseConnection()
		r.moved.wake() // another server may have the slots now
		if r.ctx.Err() == nil && !errors.Is(err, errRefused) {
			r.log(slog.LevelWarn, "lost the connection for wake-ups; reconnecting", slog.Any("error", fault.Plain(err)))
		}
		r.notify(Connection{Node: n.address, Err: fault.Plain(err)})
	}
	if errors.Is(err, errSuspect) { // closing it may take a second
		r.tasks.Go(c.end)
	} else {
		c.end()
	}
	return time.Since(start)
}

// serve sends what the node wants until the connection is lost or the node is ended. It returns why the connection was lost.
// While no call waits, and no channel is to be left, it has no timer.
func (r *runner) serve(c *connection) error {
	var tidy, look <-chan time.Time // nil: not needed now
	for {
		late := false
		select {
		case <-r.node.wakeup:
		case <-tidy:
			late, tidy = true, nil
		case <-look:
			look = nil
		case <-c.demoted:
			_, c.demoted = r.demoted() // before the check, so that a further demotion is noticed, too
			if err := c.checkRole(true); err != nil {
				return err
			}
			continue
		case err := <-c.lost:
			return err
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
		looks := c.deposed != nil && look == nil
		if looks && c.deposed() { // before anything is sent: a former master may be frozen
			return errDeposed
		}
		if late {
			if err := r.tidy(c); err != nil {
				return err
			}
		}
		untidy, err := r.send(c)
		if err != nil {
			return err
		}
		if tidy == nil && untidy {
			tidy = time.After(tidying)
		}
		if looks && (tidy != nil || len(r.node.served()) > 0) {
			look = time.After(topology.SwitchEvery)
		}
	}
}

// tidy leaves channels for which no call has waited for a while, unless that is not safe now. The timer for that has fired.
func (r *runner) tidy(c *connection) error {
	safe, err := c.mayUnsubscribe()
	if err != nil {
		return err
	}
	var names, inSlots []string
	n := r.node
	n.mu.Lock()
	if safe {
		names, inSlots = n.peers.channels.unused()
	}
	own := n.mail.tidy(safe)
	n.mu.Unlock()
	if r.cluster {
		inSlots = append(inSlots, own...)
	} else {
		names = append(names, own...)
	}
	return c.unsubscribe(names, inSlots)
}

// log writes a line to all users, once to each sink.
func (r *runner) log(level slog.Level, message string, attributes ...slog.Attr) {
	seen := map[any]bool{}
	for _, u := range r.node.users() {
		if !seen[u.Sink] {
			seen[u.Sink] = true
			u.Log(level, message, attributes...)
		}
	}
}

// missing logs to a user that a way to listen does not work for it.
func (r *runner) missing(u *user, way string, err error) {
	if r.node.notifies(u, way) {
		u.Log(slog.LevelInfo, "the server does not allow one way of waking waiting calls",
			slog.String("way", way), slog.Any("error", fault.Plain(err)))
	}
}

// notify tells all users of a change of the connection.
func (r *runner) notify(c Connection) {
	for _, u := range r.node.users() {
		if u.Connection != nil {
			u.Connection(c)
		}
	}
}
