package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// A call whose commands of several keys are refused while a slot moves asks again for half a second, and then gets the lock with
// a command of one key. After a failure of another kind the half second begins again. Without a cluster the call never does so.
func TestMoving_GoesOnAfterHalfASecond(t *testing.T) {
	const half = 500 * time.Millisecond
	for name, c := range map[string]struct {
		text    string
		cluster bool
		after   time.Duration // 0: never
	}{
		"TRYAGAIN": {"TRYAGAIN Multiple keys request during rehashing of slot", true, half},
		"ASK":      {"ASK 42 127.0.0.1:7001", true, half},
		"a script": {"ERR Script attempted to access a non local key in a cluster node", true, half},
		"Valkey":   {"Attempted to access a non local key in a cluster node script: on @user_script:32.", true, half},
		"Redis 8": {
			"Unable to execute command 'set' in script because undeclared keys were accessed during rehashing of the slot",
			true, half,
		},
		"interrupted": {"TRYAGAIN Multiple keys request during rehashing of slot", true, half},
		"LOADING":     {"LOADING Redis is loading the dataset in memory", true, 0},
		"no cluster":  {"TRYAGAIN Multiple keys request during rehashing of slot", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLock(t)
				l.path.all.Cluster, l.path.all.Limit = c.cluster, time.Second
				a := l.waitingCall()
				a.ctx, a.deadline = t.Context(), clock.Never
				began, anew, interrupted := time.Now(), time.Now(), name != "interrupted"
				at, before, last := stateLook, time.Time{}, began // when it was refused
				for !a.won() && time.Since(began) < 5*time.Second {
					before, last = last, time.Now()
					why := errors.New(c.text)
					if anew.IsZero() {
						anew = time.Now()
					}
					if !interrupted && time.Since(began) > half/2 {
						anew, why, interrupted = time.Time{}, errors.New("LOADING Redis is loading the dataset in memory"), true
					}
					if at = a.failed(at, a.traitsOf(at, why), why); at == stateAlone {
						at = a.alone()
					}
					require.NotEqual(t, stateEnded, at)
				}
				if c.after == 0 {
					require.False(t, a.won())
					return
				}
				require.True(t, a.won())
				require.Less(t, before.Sub(anew), c.after, "it asks again until then")
				require.GreaterOrEqual(t, last.Sub(anew), c.after)
			})
		})
	}
}
