package queue

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

func TestZerosInTickets(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		way   transport.RoundTrip
		lease time.Duration
		want  string
	}{
		{"unknown", transport.RoundTrip{Base: time.Second, Known: false}, time.Minute, ""},
		{"near", transport.RoundTrip{Base: 249 * ms, Known: true}, time.Minute, ""},
		{"for two seconds", transport.RoundTrip{Base: 250 * ms, Known: true}, time.Minute, "0"},
		{"for four seconds", transport.RoundTrip{Base: 900 * ms, Known: true}, time.Minute, "00"},
		{"for eight seconds", transport.RoundTrip{Base: time.Second, Known: true}, time.Minute, "000"},
		{"none for a lease of a second", transport.RoundTrip{Base: 900 * ms, Known: true}, time.Second, ""},
	} {
		require.Equal(t, c.want, zerosFor(c.way, c.lease), c.name)
	}
}

// A ticket has at most 64 bytes, since a server stores a small queue compactly only up to that length. This is so with the
// longest id that a registry makes for itself, the longest round trip, either side of a read-write lock, and a lease of 15 min.
func TestTicketsAreShort(t *testing.T) {
	term := lease.NewTerm(15 * time.Minute)
	r := protocol.Request{
		Value: "7f6f0f7a-6a8e-4f6e-9f0a-6a2f6d0f4c55:1795278376064288", Lease: term, Side: "w",
		Queueing: protocol.Queueing{Zeros: zerosFor(transport.RoundTrip{Base: time.Second, Known: true}, term.Length)},
	}
	require.True(t, strings.HasSuffix(r.Ticket(), "|000900000w"), r.Ticket())
	require.LessOrEqual(t, len(r.Ticket()), 64)
}

// endless is a context that has a deadline, and never ends.
type endless struct {
	context.Context
	deadline time.Time
}

func (c endless) Deadline() (time.Time, bool) { return c.deadline, true }

// A call that has no time for an answer waits for the end of its context, but no longer than its timer, and ends with Close.
func TestOutwait_AContextThatDoesNotEnd(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			closed := make(chan struct{})
			all := Shared{Transport: &transport.Client{Clock: clock.New()}, Closed: closed}
			ctx := endless{context.Background(), time.Now()}
			began, ended := time.Now(), make(chan error, 1)
			go func() { ended <- all.outwait(ctx, 0) }()
			<-time.After(answerGrace / 2)
			if closes {
				close(closed)
				require.Equal(t, fault.Closed, <-ended)
				require.Equal(t, answerGrace/2, time.Since(began))
				return
			}
			require.NoError(t, <-ended)
			require.Equal(t, answerGrace, time.Since(began))
			a := attempt{path: &Path{Kind: all.Kind(hold.Kind{}, "")}, ctx: ctx}
			err := a.outwaited(tooLittleTime(transport.RoundTrip{}))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, fault.Unavailable)
			require.False(t, a.passing(err), "a call that waits does not go on without an end")

			a.ctx, a.cut = endless{context.Background(), time.Now().Add(time.Hour)}, false
			err = a.outwaited(tooLittleTime(transport.RoundTrip{}))
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, a.passing(err))
		})
	}
}
