package wake

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// dialer gets connections from a client's pool, one at a time. One goroutine uses it. The messages of a connection go to the
// receiver, even before dial has returned the connection.
type dialer struct {
	*shared
	ctx      context.Context       // ends all connections
	source   func() rueidis.Client // the client to get them from
	receiver receiver
	dials    uint64           // so far
	pending  chan *connection // brings the connection that is being dialled to this dial or a later one; nil: none is
}

// receiver gets what a server sends without being asked, and the number of the connection on which it came. The goroutine that
// reads the connection calls it.
type receiver interface {
	published(connection uint64, m rueidis.PubSubMessage)
	announced(connection uint64, s rueidis.PubSubSubscription)
	invalidated(connection uint64, keys []rueidis.RedisMessage) // nil: all
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
		if err := ping(ctx, client); err != nil {
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
	err := client.Do(ctx, client.B().Arbitrary("PING").Blocking()).Error()
	switch {
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
		OnMessage:      func(m rueidis.PubSubMessage) { d.receiver.published(number, m) },
		OnSubscription: func(s rueidis.PubSubSubscription) { d.receiver.announced(number, s) },
	})
	c.lost = c.client.SetOnInvalidations(func(keys []rueidis.RedisMessage) { d.receiver.invalidated(number, keys) })
	select {
	case taken <- c:
	case <-d.ctx.Done():
		c.end()
	}
}
