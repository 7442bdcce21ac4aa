package queue

import (
	"slices"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
)

func TestWhatACallNeededToWaitIsKeptAsNew(t *testing.T) {
	a := newLock(t).waitingCall()
	s := a.waitKit
	s.timer.Reset(time.Nanosecond)
	s.box.open("7")
	s.ticket.newest, s.course.served = "me:7|60000", true
	require.True(t, s.box.put(Message{what: nextMessage, Number: "7"}))
	a.end(&Request{})
	require.Empty(t, s.box.came)
	require.False(t, s.box.put(Message{what: nextMessage, Number: "7"}))
	require.False(t, s.box.put(Message{what: nextMessage}), "it waits for none")
	require.Equal(t, mail{}, s.box.take())
	require.Equal(t, ticket{}, s.ticket)
	require.Equal(t, course{}, s.course)
	s.timer.Reset(time.Hour)
	select {
	case <-s.timer.C:
		t.Error("the timer of the call before")
	default:
	}
}

func TestNoFailureTakesNoMemory(t *testing.T) {
	a := newLock(t).waitingCall()
	require.Zero(t, testing.AllocsPerRun(100, func() { a.foundTaken(a.sentAt, time.Minute) }))
	a.failure, a.deadline = fault.NoAnswer, a.path.Clock.Now()
	require.Error(t, a.recover(fault.NoAnswer), "its time is over")
	require.ErrorIs(t, a.lastFailure.Load().why, fault.NoAnswer)
	a.foundTaken(a.sentAt, time.Minute)
	require.Nil(t, a.lastFailure.Load())
}

// A release says that no process tries without a ticket only if the server was asked at most 1.5 s before the hold was granted,
// however long ago that was. Otherwise a process that has begun to try since then would wait for one of the rare windows.
func TestRelease_QuietByNewEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLock(t)
		node := l.path.Node()
		node.KeepAlive()
		<-time.After(time.Second)
		node.EndKeepAlive()
		<-time.After(10 * time.Minute) // it asks no more
		now := l.path.Clock.Now()
		// Quiet is true for all instants up to the newest question.
		asked := clock.Instant(sort.Search(int(now), func(i int) bool { return !node.Quiet(clock.Instant(i)) }) - 1)
		require.Positive(t, asked, "nobody has asked")

		const evidenceAge = barging.EvidenceAge
		l.path.anchor.contention() // others may wait
		for after, quiet := range map[time.Duration]bool{
			-time.Minute:            true,
			0:                       true,
			1400 * time.Millisecond: true,
			evidenceAge:             true,
			evidenceAge + 1:         false,
			1600 * time.Millisecond: false,
			time.Minute:             false,
		} {
			h, granted := l.NewHold(hold.Terms{Lease: lease.NewTerm(24 * time.Hour)}), asked.Add(after)
			require.True(t, h.Grant(granted, granted))
			<-time.After(time.Hour) // it is held for long
			says := make(chan []string, 10)
			l.server.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
				if strings.HasPrefix(command, "EVAL") {
					says <- args
				}
				return false
			})
			lost, err := l.path.Release(t.Context(), Ending{Hold: h, At: l.path.Clock.Now()})
			require.NoError(t, err)
			require.Equal(t, fault.Without(0), lost, "the key was never there")
			require.Equal(t, quiet, slices.Contains(<-says, "quiet"), "granted %v after the question", after)
		}
	})
}
