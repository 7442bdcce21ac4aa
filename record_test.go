package lockregistry_test

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
	"github.com/lockregistry/lockregistry/observe"
)

func recordOf(r *lockregistry.Registry) string { return "orders:{" + r.ClientID() + "}:registry" }

func TestRecord_IsThereWhileSomethingLasts(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r, viewer := w.registry(lockregistry.WithName("billing"), lockregistry.WithRenewal()), w.registry()
		key := recordOf(r)
		l := r.Obtain("42")
		for range 100 {
			w.lock(l)
			w.pass(20 * time.Millisecond)
			w.unlock(l)
		}
		w.settle()
		require.Equal(w, "0", w.do("EXISTS", key), "nothing has lasted")

		w.lock(l)
		w.pass(recorded)
		w.settle()
		host, err := os.Hostname()
		require.NoError(w, err)
		holder := w.look(viewer, "42").Holders[0]
		label := holder.Label
		locks := `[{"path":"42","hold":%q,"since":%d,"lease":60000}]`
		require.JSONEq(w, fmt.Sprintf(`{"host":%q,"pid":%d,"name":"billing","locks":`+locks+`}`,
			host, os.Getpid(), strings.TrimPrefix(holder.Holder, r.ClientID()+":"), holder.Granted.UnixMicro()), w.do("GET", key))
		require.Equal(w, observe.Label{Registry: r.ClientID(), Host: host, PID: os.Getpid(), Name: "billing"}, label)
		require.Equal(w, fmt.Sprintf("billing on %s, process %d", host, os.Getpid()), label.String())

		w.pass(10 * time.Minute)
		least := w.pttl(key)
		for range 60 {
			w.pass(time.Second)
			w.settle()
			least = min(least, w.pttl(key))
		}
		require.InDelta(w, 40, least.Seconds(), 2, "it is written for a minute, each 20 s")
		w.unlock(l)
		w.pass(61 * time.Second)
		w.settle()
		require.Equal(w, "0", w.do("EXISTS", key), "it expires")
	})
}

// recorded is how long a hold lasts for which there is a record.
const recorded = 2500 * time.Millisecond

func TestRecord_OfOneThatWaits(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, waiter, viewer := w.registry(), w.registry(lockregistry.WithName("waits")), w.registry()
		l := holder.Obtain("42")
		w.lock(l)
		done := lockElsewhere(waiter.Obtain("42"), w.Context())
		w.await("the label of one that waits", func() bool {
			info := w.look(viewer, "42")
			return len(info.Waiters) == 1 && info.Waiters[0].Label.Name == "waits" && info.Holders[0].Label.Known()
		})
		w.unlock(l)
		require.NoError(w, <-done)
	})
}

func TestRecord_ThatCannotBeWritten(t *testing.T) {
	realWorlds(t, func(w *world) {
		var log journal
		r := w.registryOn(w.user("resetkeys", "~orders:42"), log.option(),
			lockregistry.WithLease(3*time.Second), lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.lock(l)
		w.await("a line in the log", func() bool { return len(log.lines("refuses the record")) == 1 })
		w.await("the time for a renewal", func() bool { return w.pttl("orders:42") < 2500*time.Millisecond })
		w.await("a renewal", func() bool { return w.pttl("orders:42") > 2500*time.Millisecond })
		require.Equal(w, "0", w.do("EXISTS", recordOf(r)))
		w.unlock(l)
		require.Len(w, log.lines(), 1, "nothing else is amiss")
	})
}

// A server that comes back may come back empty. The record is there again at once, not at the next time that it is due.
func TestRecord_AfterARestart(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithLease(3*time.Second), lockregistry.WithRenewal())
		l := r.Obtain("42")
		w.lock(l)
		w.pass(recorded)
		w.settle()
		require.Equal(w, "1", w.do("EXISTS", recordOf(r)))

		// A replica that has taken over may have the lock and not the record, which says nothing new.
		f.Down()
		w.do("DEL", recordOf(r))
		w.pass(time.Second) // a renewal fails
		f.Forget()
		w.pass(recorded)
		w.settle()
		require.Equal(w, "1", w.do("EXISTS", recordOf(r)))
		require.True(w, l.IsHeld())
		for _, outage := range []time.Duration{0, 30 * time.Second} {
			f.Down()
			w.do("FLUSHALL")
			w.pass(outage)
			f.Forget()
			_ = l.Unlock(w.Context())
			w.lock(l, lockregistry.Wait(10*time.Second))
			w.pass(recorded)
			w.settle()
			require.Equal(w, "1", w.do("EXISTS", recordOf(r)), outage)
		}
		w.unlock(l)
	})
}

// Calls that wait behind the holder, or behind the one with a ticket, have no place in the queue of Redis.
func TestRecord_CallsThatWaitInAProcess(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, waiter, viewer := w.registry(), w.registry(), w.registry()
		l, other := holder.Obtain("42"), waiter.Obtain("42")
		w.lock(l)
		var all sync.WaitGroup
		for _, l := range []*lockregistry.Lock{l, l, l, other, other, other, other, other} {
			all.Go(func() {
				owner := lockregistry.NewOwner(w.Context())
				assert.NoError(w, l.Lock(owner))
				assert.NoError(w, l.Unlock(owner))
			})
		}
		w.await("they are counted", func() bool {
			info := w.look(viewer, "42")
			return info.WaiterCount == 1 && info.Waiters[0].Behind == 4 && info.Holders[0].Behind == 3
		})
		require.Equal(w, 3, w.look(holder, "42").Holders[0].Behind, "its own record need not be read")
		w.await("since when they wait", func() bool {
			info := w.look(viewer, "42")
			return !info.Waiters[0].BehindSince.IsZero() && !info.Holders[0].BehindSince.IsZero()
		})
		for found, err := range viewer.Locks(w.Context()) {
			require.NoError(w, err)
			require.Equal(w, 4, found.Waiters[0].Behind)
		}
		w.unlock(l)
		all.Wait()
		w.lock(l)
		w.await("the record is of now", func() bool { return w.look(viewer, "42").Holders[0].Behind == 0 })
		w.unlock(l)
	})
}

// Since when the first of them waits is told once that is a second, and anew when its turn has come.
func TestRecord_SinceWhenCallsWaitInAProcess(t *testing.T) {
	for kind, of := range map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
		"lock":   func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
	} {
		t.Run(kind, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r, viewer := w.registry(lockregistry.WithHandoff(time.Hour)), w.registry()
				l := of(r)
				w.lock(l)
				first, second := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
				began := time.Now()
				gotFirst := lockElsewhere(l, first)
				w.pass(10 * time.Second)
				gotSecond := lockElsewhere(l, second)
				w.pass(recorded)
				w.settle()
				told := w.look(viewer, "42").Holders[0]
				require.Equal(w, 2, told.Behind)
				require.WithinDuration(w, began, told.BehindSince, 10*time.Millisecond)
				require.Equal(w, told.BehindSince, w.look(r, "42").Holders[0].BehindSince)
				w.unlock(l)
				require.NoError(w, <-gotFirst)
				w.pass(recorded)
				w.settle()
				told = w.look(viewer, "42").Holders[0]
				require.Equal(w, 1, told.Behind)
				require.WithinDuration(w, began.Add(10*time.Second), told.BehindSince, 10*time.Millisecond)
				require.NoError(w, l.Unlock(first))
				require.NoError(w, <-gotSecond)
				require.NoError(w, l.Unlock(second))
			})
		})
	}
}

// The name of a hold says when its call began to wait. That its owner has it since then would be wrong.
func TestRecord_SinceWhenTheOwnerHasIt(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r, viewer := w.registry(lockregistry.WithHandoff(time.Minute)), w.registry()
		l := r.Obtain("42")
		w.lock(l)
		owner := lockregistry.NewOwner(w.Context())
		locked := lockElsewhere(l, owner)
		w.pass(recorded)
		w.settle()
		began := w.look(viewer, "42").Holders[0].Granted
		require.WithinDuration(w, time.Now().Add(-recorded), began, 10*time.Millisecond)
		w.unlock(l)
		require.NoError(w, <-locked)
		granted := time.Now()
		w.pass(recorded)
		w.settle()
		info := w.look(viewer, "42").Holders[0]
		require.WithinDuration(w, granted, info.Granted, 10*time.Millisecond)
		require.WithinDuration(w, began, info.Since, 10*time.Millisecond, "the key is the same")
		require.NoError(w, l.Unlock(owner))
		w.do("SET", "orders:42", r.ClientID()+":7")
		require.Zero(w, w.look(viewer, "42").Holders[0].Granted, "of another hold nothing is said")
	})
}
