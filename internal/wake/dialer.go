package wake

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// dialer gets connections for a node. Only run uses it.
type dialer struct {
	node    *node
	pending chan *connection // the connection being dialled; nil: none
	logged  bool             // the last failure was logged
}

// dialLimit, plus six round trips, is how long getting a connection may take: as long as a waiting call waits for it.
const dialLimit = time.Second

// dial gets a connection from the client's pool. If the pool is exhausted, rueidis's Dedicate waits without end, so a goroutine
// calls it; there is one at most, and it returns a connection that is no longer wanted. It does not call Dedicate if a command
// that takes a connection from the same pool, and respects its context, gets none.
//
// A connection for which an earlier dial waited may be the last one of the pool, so that such a command would get none. It may
// also be broken by now, so it is pinged itself.
func (d *dialer) dial() (*connection, error) {
	n := d.node
	ctx, cancel := context.WithTimeout(n.ctx, n.hub.plus(dialLimit, 6))
	defer cancel()
	waited := d.pending != nil
	if !waited {
		client := d.source()
		if err := ping(ctx, client); err != nil {
			return nil, err
		}
		d.begin(client)
	}
	select {
	case c := <-d.pending:
		d.pending = nil
		if waited {
			if err := ping(ctx, c.client); err != nil {
				n.hub.tasks.Go(c.end) // closing it may take a second
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

// begin starts a goroutine that gets a connection.
func (d *dialer) begin(client rueidis.Client) {
	n, dialing := d.node, make(chan *connection)
	d.pending = dialing
	go func() {
		c := d.dedicate(client)
		select {
		case dialing <- c:
		case <-n.ctx.Done():
			c.end()
		}
	}()
}

// source returns the client to get a connection from. Rueidis may replace the client of a server of a cluster.
func (d *dialer) source() rueidis.Client {
	n := d.node
	if n.address != "" {
		if client := n.hub.client.Nodes()[n.address]; client != nil {
			return client
		}
	}
	return n.client
}

func (d *dialer) dedicate(client rueidis.Client) *connection {
	n := d.node
	c := &connection{
		node: n, tracking: errUntried, refused: map[string]error{}, master: topology.WatchMaster(client), echo: make(chan struct{}, 1),
	}
	if n.hub.demoted != nil { // before it is made
		c.unsure, c.demoted = n.hub.demoted()
	}
	c.ctx, c.drop = context.WithCancelCause(n.ctx)
	c.client, c.giveBack = client.Dedicate()
	c.client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: c.published, OnSubscription: c.subscription})
	c.lost = c.client.SetOnInvalidations(c.invalidated)
	return c
}
