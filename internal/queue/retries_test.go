package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// patientCall is a call in fake time that waits, for ever unless the test says otherwise.
func patientCall(t *testing.T, test func(t *testing.T, a *acquisition)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLock(t)
		l.path.all.Limit = time.Second
		a := l.waitingCall()
		a.ctx, a.deadline = t.Context(), clock.Never
		test(t, a)
	})
}

// Rueidis also returns ErrClosing for commands that were pending on a connection which is replaced. A call gives up only after a
// second with no other error, and only if the client is closed.
func TestRetries_AClosedClient(t *testing.T) {
	closing := fault.Classify(rueidis.ErrClosing)
	recovers := func(a *acquisition) error {
		a.failure = closing
		return a.recover(closing)
	}
	t.Run("for good", func(t *testing.T) {
		patientCall(t, func(t *testing.T, a *acquisition) {
			a.path.lock.(*lock).client.Close()
			began := time.Now()
			var err error
			for err == nil {
				err = recovers(a)
			}
			require.ErrorIs(t, err, rueidis.ErrClosing)
			require.InDelta(t, 1500*time.Millisecond, time.Since(began), float64(500*time.Millisecond))
		})
	})
	t.Run("only its connections", func(t *testing.T) {
		patientCall(t, func(t *testing.T, a *acquisition) {
			for range 100 {
				require.NoError(t, recovers(a))
			}
		})
	})
}

// A call that had no time to send anything, and is not over, pauses before it tries again, and says why.
func TestRetries_NothingWasSent(t *testing.T) {
	tooLittle := tooLittleTime(transport.RoundTrip{Base: time.Second, Known: true})
	for name, at := range map[string]state{"polls": stateTrace, "in the queue": stateLook, "between tickets": stateAlone} {
		tries := func(a *acquisition) error {
			if a.failed(at, a.traitsOf(at, tooLittle), tooLittle) == stateEnded {
				return a.failure
			}
			return nil
		}
		t.Run(name, func(t *testing.T) {
			patientCall(t, func(t *testing.T, a *acquisition) {
				began := time.Now()
				require.NoError(t, tries(a))
				require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
				require.Equal(t, tooLittle, a.failure)
				require.Equal(t, tooLittle, a.path.LastFailure(true), "others of the process are told")
			})
			patientCall(t, func(t *testing.T, a *acquisition) {
				a.deadline = a.path.Clock.Now()
				require.Equal(t, fault.Busy, tries(a), "nothing is wrong but that the wait is over")
			})
		})
	}
}

// If every grant is over before it counts, the lease is too short for this process. Then the call pauses before it asks again.
func TestRetries_GrantsThatAreTooLate(t *testing.T) {
	patientCall(t, func(t *testing.T, a *acquisition) {
		for i := range 3 { // there is no key to renew
			began := time.Now()
			require.Equal(t, stateAsk, a.sure())
			require.Equal(t, i > 0, time.Since(began) >= 30*time.Millisecond, "the one after a first is sent at once")
			a.foundTaken(a.sentAt, 0) // before the next grant
		}
	})
}
