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
	pending chan *connection // what is being dialled; nil: nothing is
	told    bool             // that the last connection could not be made, which is logged once
}

// dialLimit is how long it may take to get a connection, and six round trips: as long as a waiting call waits for it.
const dialLimit = time.Second

// dial gets a connection from the client's pool. When all that the pool may have are taken, rueidis's Dedicate waits
// without end, so a goroutine of its own calls it; there is one at most, and it gives back what nobody wants any more. It
// does not even begin to wait when a command that takes a connection from the same pool, and heeds its context, gets none.
func (d *dialer) dial() (*connection, error) {
	n := d.node
	ctx, cancel := context.WithTimeout(n.ctx, n.hub.plus(dialLimit, 6))
	defer cancel()
	client := d.source()
	ping := client.B().Arbitrary("PING").Blocking()
	if err := client.Do(ctx, ping).Error(); err != nil && !fault.Refusal(err) { // it need not be permitted
		if ctx.Err() != nil {
			err = errNone
		}
		return nil, err
	}
	if d.pending == nil {
		dialing := make(chan *connection)
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
	select {
	case c := <-d.pending:
		d.pending = nil
		return c, nil
	case <-ctx.Done():
		return nil, errNone
	}
}

// source is the client to get a connection from. Rueidis may replace that of a server of a cluster.
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
	c.ctx, c.drop = context.WithCancelCause(n.ctx)
	if n.any {
		c.tracking = errAny
	}
	c.client, c.giveBack = client.Dedicate()
	c.lost = c.client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: c.published, OnSubscription: c.subscription})
	if !n.any {
		c.lost = c.client.SetOnInvalidations(c.invalidated)
	}
	return c
}
