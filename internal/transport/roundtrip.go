package transport

import (
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// RoundTrip is what is known of the round trip to a master at some moment.
type RoundTrip = belief.RoundTrip

// Greeted notes how long the server took to greet the client's connection. All: the client needs no other one for commands. On a
// cluster that says nothing of other nodes.
func (t *Client) Greeted(took time.Duration, all bool) {
	if t.resolver != nil {
		return
	}
	t.First.belief.Greet(took)
	if all {
		t.First.belief.WarmedUp()
	}
}

type farError struct {
	error
	trip RoundTrip
}

func (e farError) Error() string { return e.error.Error() + "; " + e.trip.String() }

func (e farError) Unwrap() error { return e.error }

// Unsupported adds to an error of a command without a timely reply that the master is too far away, if it is.
func (s *Node) Unsupported(err error) error {
	trip := s.RoundTrip()
	if !trip.Far() || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.NotSent) && !errors.Is(err, fault.Late) {
		return err
	}
	return farError{err, trip}
}
