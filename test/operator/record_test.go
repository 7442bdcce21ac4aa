package operator_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func recordOf(r *lockregistry.Registry) string { return "orders:{" + kit.ClientID(r) + "}:registry" }

func TestRecord_IsThereWhileSomethingLasts(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, viewer := w.Registry(lockregistry.WithName("billing"), lockregistry.WithRenewal()), w.Registry()
		key := recordOf(r)
		l := r.Obtain("42")
		for range 100 {
			w.Lock(l)
			w.Pass(20 * time.Millisecond)
			w.Unlock(l)
		}
		w.Settle()
		require.Equal(w, "0", w.Do("EXISTS", key), "nothing has lasted")

		w.Lock(l)
		w.Pass(recorded)
		w.Settle()
		host, err := os.Hostname()
		require.NoError(w, err)
		holder := look(w, viewer, "42").Holders[0]
		label := holder.Label
		locks := `[{"path":"42","hold":%q,"since":%d,"lease":60000}]`
		require.JSONEq(w, fmt.Sprintf(`{"for":140601,"host":%q,"pid":%d,"name":"billing","locks":`+locks+`}`,
			host, os.Getpid(), strings.TrimPrefix(holder.Holder, kit.ClientID(r)+":"), holder.Granted.UnixMicro()), w.Do("GET", key))
		require.Equal(w, observe.Label{Registry: kit.ClientID(r), Host: host, PID: os.Getpid(), Name: "billing"}, label)
		require.Equal(w, fmt.Sprintf("billing on %s, process %d", host, os.Getpid()), label.String())

		w.Pass(10 * time.Minute)
		least := w.Pttl(key)
		for range 60 {
			w.Pass(time.Second)
			w.Settle()
			least = min(least, w.Pttl(key))
		}
		require.InDelta(w, 120, least.Seconds(), 2, "it is written each 20 s, and lasts a minute longer than the lease")
		w.Unlock(l)
		w.Pass(time.Second)
		w.Settle()
		require.InDelta(w, 60, w.Pttl(key).Seconds(), 2, "it lists no lock")
		w.Pass(61 * time.Second)
		w.Settle()
		require.Equal(w, "0", w.Do("EXISTS", key), "it expires")
	})
}

// Whenever the process dies, its record outlives the locks that it lists by a minute, including those that are not renewed.
func TestRecord_OutlivesItsLocks(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{"renewed": {lockregistry.WithRenewal()}, "not renewed": nil} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry(append(opts, lockregistry.WithLease(5*time.Minute))...)
				key := recordOf(r)
				w.Lock(r.Obtain("other"))
				w.Lock(r.Obtain("42"))
				w.Pass(recorded)
				for second := range 400 {
					w.Settle()
					if left := w.Pttl(kit.TheKey); left > 0 {
						require.GreaterOrEqual(w, w.Pttl(key), left+time.Minute, second)
					}
					if second == 130 { // later than the record's last write
						require.NoError(w, r.Obtain("42").Renew(w.Context(), 20*time.Minute))
						w.Pass(1500 * time.Millisecond)
					}
					w.Pass(time.Second)
				}
				require.NoError(w, r.Obtain("42").Renew(w.Context(), 24*time.Hour))
				w.Pass(1500 * time.Millisecond)
				w.Settle()
				require.InDelta(w, time.Hour+time.Minute, w.Pttl(key), float64(2*time.Second), "an hour more at most")
			})
		})
	}
}

// The record is written even if a call gets its lock long after it asked, when no other call is under way.
func TestRecord_OfALockWhoseReplyTookLong(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithRenewal())
		f.Fates("obtain", kit.SlowReply(4*time.Second))
		began := time.Now()
		w.Lock(r.Obtain("42"))
		require.GreaterOrEqual(w, time.Since(began), 4*time.Second)
		w.Pass(recorded)
		w.Settle()
		require.Equal(w, "1", w.Do("EXISTS", recordOf(r)))
	})
}

// A process that has not written its record for a minute is probably dead, even if it renews nothing; its record says what it
// was.
func TestRecord_OfADeadProcess(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, viewer := w.Registry(lockregistry.WithName("billing"), lockregistry.WithLease(5*time.Minute)), w.Registry()
		w.Lock(r.Obtain("42"))
		w.Pass(45 * time.Second)
		require.Zero(w, look(w, viewer, "42").Holders[0].Silent)
		require.NoError(w, r.Close()) // like a dead process, it writes no more
		for range 4 {
			require.Zero(w, look(w, viewer, "42").Holders[0].Silent, "not yet known")
			w.Pass(10 * time.Second)
		}
		w.Pass(20 * time.Second)
		for w.Pttl(kit.TheKey) > 10*time.Second {
			holder := look(w, viewer, "42").Holders[0]
			require.Equal(w, "billing", holder.Label.Name)
			require.GreaterOrEqual(w, holder.Silent, time.Minute)
			w.Pass(10 * time.Second)
		}
	})
}

// recorded is how long a hold must last to get into a record.
const recorded = 2500 * time.Millisecond

func TestRecord_OfOneThatWaits(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, waiter, viewer := w.Registry(), w.Registry(lockregistry.WithName("waits")), w.Registry()
		l := holder.Obtain("42")
		w.Lock(l)
		done := kit.LockElsewhere(waiter.Obtain("42"), w.Context())
		w.Await("the label of one that waits", func() bool {
			info := look(w, viewer, "42")
			return len(info.Waiters) == 1 && info.Waiters[0].Label.Name == "waits" && info.Holders[0].Label.Known()
		})
		w.Unlock(l)
		require.NoError(w, <-done)
	})
}

func TestRecord_ThatCannotBeWritten(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var log kit.Journal
		r := w.RegistryOn(w.User("resetkeys", "~orders:42"), log.Option(),
			lockregistry.WithLease(9*time.Second), lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.Lock(l)
		w.Await("a line in the log", func() bool { return len(log.Lines("refuses the record")) == 1 })
		w.AwaitRenewal("orders:42", 9*time.Second)
		require.Equal(w, "0", w.Do("EXISTS", recordOf(r)))
		w.Unlock(l)
		require.Len(w, log.Lines(), 1, "nothing else is amiss")
	})
}

// A server may come back empty. The record is written again at once, not only when it is next due.
func TestRecord_AfterARestart(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithLease(3*time.Second), lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.Lock(l)
		w.Pass(recorded)
		w.Settle()
		require.Equal(w, "1", w.Do("EXISTS", recordOf(r)))

		// A replica that has taken over may have the lock but not the record.
		f.Down()
		w.Do("DEL", recordOf(r))
		w.Pass(time.Second) // a renewal fails
		f.Forget()
		w.Pass(recorded)
		w.Settle()
		require.Equal(w, "1", w.Do("EXISTS", recordOf(r)))
		require.True(w, l.IsHeld())
		for _, outage := range []time.Duration{0, 30 * time.Second} {
			f.Down()
			w.Do("FLUSHALL")
			w.Pass(outage)
			f.Forget()
			_ = l.Unlock(w.Context())
			w.Lock(l, lockregistry.Wait(10*time.Second))
			w.Pass(recorded)
			w.Settle()
			require.Equal(w, "1", w.Do("EXISTS", recordOf(r)), outage)
		}
		w.Unlock(l)
	})
}

// Calls that wait behind the holder, or behind the call with a ticket, have no place in the queue in Redis.
func TestRecord_CallsThatWaitInAProcess(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, waiter, viewer := w.Registry(), w.Registry(), w.Registry()
		l, other := holder.Obtain("42"), waiter.Obtain("42")
		w.Lock(l)
		var all sync.WaitGroup
		for _, l := range []*lockregistry.Lock{l, l, l, other, other, other, other, other} {
			all.Go(func() {
				owner := lockregistry.ContextWithOwner(w.Context())
				assert.NoError(w, l.Lock(owner))
				assert.NoError(w, w.UnlessLate(l.Unlock(owner)))
			})
		}
		w.Await("they are counted", func() bool {
			info := look(w, viewer, "42")
			return info.WaiterCount == 1 && info.Waiters[0].Behind == 4 && info.Holders[0].Behind == 3
		})
		require.Equal(w, 3, look(w, holder, "42").Holders[0].Behind, "its own record need not be read")
		w.Await("since when they wait", func() bool {
			info := look(w, viewer, "42")
			return !info.Waiters[0].BehindSince.IsZero() && !info.Holders[0].BehindSince.IsZero()
		})
		for found, err := range inspect.Of(viewer).Locks(w.Context()) {
			require.NoError(w, err)
			require.Equal(w, 4, found.Waiters[0].Behind)
		}
		w.Unlock(l)
		all.Wait()
		w.Lock(l)
		w.Await("the record is of now", func() bool { return look(w, viewer, "42").Holders[0].Behind == 0 })
		w.Unlock(l)
	})
}

// The record says since when the first of them waits, once that is a second ago, and again when its turn has come.
func TestRecord_SinceWhenCallsWaitInAProcess(t *testing.T) {
	for kind, of := range map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
		"lock":   func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
	} {
		t.Run(kind, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r, viewer := w.Registry(lockregistry.WithHandoff(time.Hour)), w.Registry()
				l := of(r)
				w.Lock(l)
				first, second := lockregistry.ContextWithOwner(w.Context()), lockregistry.ContextWithOwner(w.Context())
				began := time.Now()
				gotFirst := kit.LockElsewhere(l, first)
				w.Pass(10 * time.Second)
				gotSecond := kit.LockElsewhere(l, second)
				w.Pass(recorded)
				w.Settle()
				told := look(w, viewer, "42").Holders[0]
				require.Equal(w, 2, told.Behind)
				require.WithinDuration(w, began, told.BehindSince, 10*time.Millisecond)
				require.Equal(w, told.BehindSince, look(w, r, "42").Holders[0].BehindSince)
				w.Unlock(l)
				require.NoError(w, <-gotFirst)
				w.Pass(recorded)
				w.Settle()
				told = look(w, viewer, "42").Holders[0]
				require.Equal(w, 1, told.Behind)
				require.WithinDuration(w, began.Add(10*time.Second), told.BehindSince, 10*time.Millisecond)
				require.NoError(w, l.Unlock(first))
				require.NoError(w, <-gotSecond)
				require.NoError(w, l.Unlock(second))
			})
		})
	}
}

// The name of a hold contains the time at which its call began to wait. It is not shown as the time since when the owner has
// it.
func TestRecord_SinceWhenTheOwnerHasIt(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, viewer := w.Registry(lockregistry.WithHandoff(time.Minute)), w.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		owner := lockregistry.ContextWithOwner(w.Context())
		locked := kit.LockElsewhere(l, owner)
		w.Pass(recorded)
		w.Settle()
		began := look(w, viewer, "42").Holders[0].Granted
		require.WithinDuration(w, time.Now().Add(-recorded), began, 10*time.Millisecond)
		w.Unlock(l)
		require.NoError(w, <-locked)
		granted := time.Now()
		w.Pass(recorded)
		w.Settle()
		info := look(w, viewer, "42").Holders[0]
		require.WithinDuration(w, granted, info.Granted, 10*time.Millisecond)
		require.WithinDuration(w, began, info.Since, 10*time.Millisecond, "the key is the same")
		w.Released(l.Unlock(owner))
		w.Do("SET", "orders:42", kit.ClientID(r)+":7")
		require.Zero(w, look(w, viewer, "42").Holders[0].Granted, "of another hold nothing is said")
	})
}
