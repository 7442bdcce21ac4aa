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

// connection is a connection to listen on. It sends, and returns what the server has replied and what that says about the
// connection. It knows nothing of waiters. One goroutine uses it.
type connection struct {
	number   uint64                  // tells connections to a server apart
	ctx      context.Context         // of all that is sent; its cause is why the connection was ended
	cancel   context.CancelCauseFunc // ends it
	client   rueidis.DedicatedClient
	giveBack func()
	lost     <-chan error    // gets an error, or is closed, when the connection ends
	deposed  func() bool     // reports whether the client has left the connection's master; nil without Sentinel
	demoted  <-chan struct{} // closed when a master was demoted since the connection was made; nil: not known
	suspect  bool            // a master was demoted before: the connection may be from the client's pool, and older than that

	tracking   error            // why tracking does not work: errUntried before it is tried, nil if it works
	noSlots    bool             // the server does not subscribe to channels in their slots
	refused    map[string]error // common channels that are refused
	prepared   map[*user]bool   // the users for whom prepare has run
	subscribed map[*user]bool   // the users for whom a channel was subscribed
}

var (
	errUntried = errors.New("not tried")
	errNoPush  = errors.New("the connection speaks version 2 of the protocol, which has no messages about changed keys")

	// errDeposed: a connection to a former master may stay open until Sentinel demotes that master. It misses all that happens on
	// the new one.
	errDeposed = errors.New("another server is the master now")
)

// end closes the connection. It cannot go back to the pool, since it has subscriptions, and may track.
func (c *connection) end() {
	if c != nil {
		c.cancel(nil)
		c.client.Close()
		c.giveBack()
	}
}

// checkRole fails with errDeposed if the connection leads to a replica; if sure, also if the server does not say its role.
func (c *connection) checkRole(sure bool) error {
	hello, err := c.hello()
	if err != nil {
		return err
	}
	said := hello["role"]
	if role, _ := said.ToString(); role != "master" && (sure || role != "") { // empty if there is none
		return errDeposed
	}
	return nil
}

// hello returns what the server says about itself and the connection; nothing if that is refused.
func (c *connection) hello() (map[string]rueidis.RedisMessage, error) {
	hello, err := c.client.Do(c.ctx, c.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil && !fault.Refusal(err) {
		return nil, err
	}
	return hello, nil
}

// track turns on tracking of the keys that the connection reads. Refusal is why the server refuses that. Err is an error of the
// network, or of a server that does not work now.
func (c *connection) track() (refusal, err error) {
	if !errors.Is(c.tracking, errUntried) {
		return c.tracking, nil
	}
	// Rueidis may have turned tracking on in another mode, which must be turned off first. If there is no permission for CLIENT,
	// rueidis has not turned it on.
	results := c.client.DoMulti(c.ctx,
		c.client.B().Ping().Build(),
		c.client.B().ClientTracking().Off().Build(),
		c.client.B().ClientTracking().On().Build())
	if fault.IsInTransaction(results[0]) {
		return nil, fault.InTransaction
	}
	err = results[2].Error()
	if err == nil { // the server also accepts it from connections to which it cannot report changes
		err = c.pushes()
	}
	switch {
	case err == nil, errors.Is(err, errNoPush), fault.Refusal(err):
		c.tracking = err
		return err, nil
	default:
		return nil, err
	}
}

// double returns a double, a type that only version 3 of the protocol has.
const double = "redis.setresp(3) return {double=0.5}"

// pushes fails with errNoPush if the server cannot push messages on the connection, which needs version 3 of the protocol.
// HELLO returns the version, but Redis 6.0 requires an argument that would also change it. So pushes runs a script to find out.
// Without permission for scripts it asks HELLO.
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
	hello, err := c.hello()
	if err != nil {
		return err
	}
	version := hello["proto"]
	if n, err := version.AsInt64(); err != nil || n < 3 {
		return errNoPush
	}
	return nil
}

// look reads keys, so that the server tracks them. Moved: the server no longer has one of the keys.
func (c *connection) look(keys []string) (looks []look, moved bool, err error) {
	commands := make(rueidis.Commands, len(keys))
	for i, key := range keys {
		commands[i] = c.client.B().Arbitrary("PTTL").Keys(key).Build() // so that rueidis does not repeat it while a server loads
	}
	looks = make([]look, len(keys))
	for i, result := range c.client.DoMulti(c.ctx, commands...) {
		if err := result.NonRedisError(); err != nil {
			return nil, false, err
		}
		if looks[i].pttl, err = result.AsInt64(); err == nil {
			continue
		}
		looks[i].failed = true
		if reply, ok := rueidis.IsRedisErr(err); ok {
			_, is := reply.IsMoved()
			moved = moved || is
		}
	}
	return looks, moved, nil
}

// subscribe subscribes to channels. It returns for each why the server refuses it.
func (c *connection) subscribe(names []string) (refusals []error, err error) {
	refusals = make([]error, len(names))
	if len(names) == 0 {
		return refusals, nil
	}
	err = c.client.Do(c.ctx, c.client.B().Subscribe().Channel(names...).Build()).Error()
	switch {
	case err == nil:
		return refusals, nil
	case !fault.Refusal(err):
		return nil, err
	case len(names) == 1:
		return []error{err}, nil
	}
	for i := range names { // it may allow some of them
		one, err := c.subscribe(names[i : i+1])
		if err != nil {
			return nil, err
		}
		refusals[i] = one[0]
	}
	return refusals, nil
}

// subscribeInSlots subscribes to channels in their slots, where Redisson publishes. Refusal is why the server refuses it: then
// Redisson's messages are missed, and only polling is left. Servers before version 7 have no such channels, and Redisson
// publishes on ordinary ones. Moved: the server may not have one of the slots any more.
func (c *connection) subscribeInSlots(names []string) (refusal error, moved bool, err error) {
	if len(names) == 0 || c.noSlots {
		return nil, false, nil
	}
	commands := make(rueidis.Commands, len(names))
	for i, name := range names { // each in its own slot
		commands[i] = c.client.B().Ssubscribe().Channel(name).Build()
	}
	for _, result := range c.client.DoMulti(c.ctx, commands...) {
		err := result.Error()
		_, answered := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
		case fault.Refusal(err):
			if c.noSlots = true; !unknown(err) {
				refusal = err
			}
		case !answered:
			return nil, false, err
		default: // most likely MOVED
			moved = true
		}
	}
	return refusal, moved, nil
}

// unknown reports whether the server does not know a command.
func unknown(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(strings.TrimPrefix(reply.Error(), "ERR "), "unknown command")
}

// subscribeOwn subscribes to own channels, and returns the error of each.
func (c *connection) subscribeOwn(channels []*own, inSlots bool) []error {
	commands := make(rueidis.Commands, len(channels))
	for i, o := range channels {
		if inSlots {
			commands[i] = c.client.B().Ssubscribe().Channel(o.name).Build()
		} else {
			commands[i] = c.client.B().Subscribe().Channel(o.name).Build()
		}
	}
	errs := make([]error, len(channels))
	for i, result := range c.client.DoMulti(c.ctx, commands...) {
		errs[i] = result.Error()
	}
	return errs
}

const (
	// probe is a message that is not passed to users.
	probe = "probe"

	// probing publishes on an own channel as the scripts do. It returns how many are subscribed, and how many got the message.
	probing = "local n = redis.call('PUBSUB', ARGV[1], ARGV[3]) return {n[2], redis.call(ARGV[2], ARGV[3], ARGV[4])}"
)

var errNotProven = errors.New("the message of a script does not arrive")

// probe has a script publish on own channels. It returns the error of each: errNotProven where nobody is subscribed.
func (c *connection) probe(channels []*own, inSlots bool) []error {
	commands := make(rueidis.Commands, len(channels))
	for i, o := range channels {
		script := c.client.B().Eval().Script(probing)
		if inSlots { // the key, so that the server can redirect
			commands[i] = script.Numkeys(1).Key(o.key).Arg("SHARDNUMSUB", "SPUBLISH", o.name, probe).Build()
		} else {
			commands[i] = script.Numkeys(0).Arg("NUMSUB", "PUBLISH", o.name, probe).Build()
		}
	}
	errs := make([]error, len(channels))
	for i, result := range c.client.DoMulti(c.ctx, commands...) {
		if errs[i] = result.Error(); errs[i] != nil {
			continue
		}
		if counts, err := result.AsIntSlice(); err != nil || len(counts) != 2 || min(counts[0], counts[1]) < 1 {
			errs[i] = errNotProven
		}
	}
	return errs
}

// mayUnsubscribe reports whether unsubscribing is safe now. Otherwise channels stay subscribed for now. It fails in a
// transaction.
func (c *connection) mayUnsubscribe() (bool, error) {
	pong := c.client.Do(c.ctx, c.client.B().Ping().Build())
	if fault.IsInTransaction(pong) {
		return false, fault.InTransaction
	}
	return fault.MayUnsubscribe(pong), pong.NonRedisError()
}

// unsubscribe leaves channels, and others in their slots.
func (c *connection) unsubscribe(names, inSlots []string) error {
	var commands rueidis.Commands
	for _, name := range inSlots { // each in its own slot
		commands = append(commands, c.client.B().Sunsubscribe().Channel(name).Build())
	}
	for some := range slices.Chunk(names, batch) {
		commands = append(commands, c.client.B().Unsubscribe().Channel(some...).Build())
	}
	for _, result := range c.client.DoMulti(c.ctx, commands...) {
		// Replies do not matter: if a slot has moved, its channel is gone already.
		if err := result.NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

// dialer gets connections from a client's pool, one at a time. One goroutine uses it. What the server sends without being asked
// goes to the node, even before dial has returned the connection.
type dialer struct {
	*shared
	node    *node
	ctx     context.Context       // ends all connections
	source  func() rueidis.Client // the client to get them from
	dials   uint64                // so far
	pending chan *connection      // brings the connection that is being dialled to this dial or a later one; nil: none is
}

// dialLimit, plus six round trips, is how long getting a connection may take: as long as a waiting call waits for it.
const dialLimit = time.Second

var errNone = errors.New("none in time: the server does not answer, or all of the client's connections " +
	"for blocking commands (BlockingPoolSize) are taken")

// dial gets a connection from the client's pool. If the pool is exhausted, rueidis's Dedicate waits without end. So a goroutine
// calls it, one at most, and closes the connection if the dialer's ctx has ended by then. Before that, dial sends a PING that
// takes a connection from the same pool, but respects its context. If the PING gets none, Dedicate is not called.
//
// If an earlier dial has called Dedicate, its connection may be the last one of the pool, so that a PING would get none. Then
// dial waits for this connection, and pings over it, since it may be broken by now.
func (d *dialer) dial() (*connection, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.plus(dialLimit, 6))
	defer cancel()
	waited := d.pending != nil
	if !waited {
		client := d.source()
		if err := ping(ctx, client); err != nil && !errors.Is(err, fault.InTransaction) { // that connection is found again, and closed
			return nil, err
		}
		d.dials++
		d.pending = make(chan *connection)
		go d.dedicate(client, d.dials, d.pending)
	}
	select {
	case c := <-d.pending:
		d.pending = nil
		if waited {
			if err := ping(ctx, c.client); err != nil {
				d.tasks.Go(c.end) // closing it may take a second
				return nil, err
			}
		}
		return c, nil
	case <-ctx.Done():
		return nil, errNone
	}
}

// ping checks a connection that only one caller has at a time.
func ping(ctx context.Context, client rueidis.CoreClient) error {
	pong := client.Do(ctx, client.B().Arbitrary("PING").Blocking())
	err := pong.Error()
	switch {
	case fault.IsInTransaction(pong):
		return fault.InTransaction
	case err == nil, fault.Refusal(err): // PING may be forbidden
		return nil
	case ctx.Err() != nil:
		return errNone
	default:
		return err
	}
}

// dedicate gets a connection, and hands it to the dial that takes it.
func (d *dialer) dedicate(client rueidis.Client, number uint64, taken chan<- *connection) {
	c := &connection{
		number: number, tracking: errUntried,
		refused: map[string]error{}, prepared: map[*user]bool{}, subscribed: map[*user]bool{},
	}
	if client.Mode() == rueidis.ClientModeSentinel {
		servers := topology.Servers(client)
		c.deposed = func() bool { return !slices.Equal(servers, topology.Servers(client)) }
	}
	if d.demoted != nil { // before the connection is made: a demotion in between is noticed, too
		c.suspect, c.demoted = d.demoted()
	}
	c.ctx, c.cancel = context.WithCancelCause(d.ctx)
	c.client, c.giveBack = client.Dedicate()
	c.client.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(m rueidis.PubSubMessage) { d.node.published(number, m) },
		OnSubscription: func(s rueidis.PubSubSubscription) { d.node.announced(number, s) },
	})
	c.lost = c.client.SetOnInvalidations(func(keys []rueidis.RedisMessage) { d.node.invalidated(number, keys) })
	select {
	case taken <- c:
	case <-d.ctx.Done():
		c.end()
	}
}
