package redistest

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"time"
)

// Distance says how far away a server is: how long a round trip takes on the connections that it dials. A connection has two
// goroutines until either end is closed.
type Distance struct{ trip atomic.Int64 }

// NewDistance returns a distance with this round trip.
func NewDistance(trip time.Duration) *Distance {
	d := &Distance{}
	d.Set(trip)
	return d
}

// Set changes the round trip of everything that is sent from now on.
func (d *Distance) Set(trip time.Duration) { d.trip.Store(int64(trip)) }

// Dial dials a server in the given way, at this distance.
func (d *Distance) Dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	<-time.After(time.Duration(d.trip.Load()))
	server, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	go d.carry(inner, server)
	go d.carry(server, inner)
	return client, nil
}

// mostUnderWay is how many chunks may be under way at once. One more waits for the first to arrive.
const mostUnderWay = 1000

// carry forwards data from one end to the other, delayed by half a round trip.
func (d *Distance) carry(from, to net.Conn) {
	type chunk struct {
		said []byte
		due  time.Time
	}
	under := make(chan chunk, mostUnderWay)
	go func() {
		defer func() { _ = to.Close() }()
		for c := range under {
			<-time.After(time.Until(c.due))
			if _, err := to.Write(c.said); err != nil {
				break
			}
		}
		for range under { // so that no sender waits for room
		}
	}()
	defer close(under)
	defer func() { _ = from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		under <- chunk{bytes.Clone(buffer[:n]), time.Now().Add(time.Duration(d.trip.Load()) / 2)}
	}
}
