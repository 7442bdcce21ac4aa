package leader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/leader"
)

// One leads, the others wait; when it is stopped, another one takes over.
func TestRun_OneLeads(t *testing.T) {
	worlds(t, func(w *world) {
		var inside atomic.Int32
		lead := func(ctx context.Context) error {
			if inside.Add(1) != 1 {
				w.Error("two lead")
			}
			defer inside.Add(-1)
			return untilEnd(ctx)
		}
		var all []*candidate
		for range 3 {
			all = append(all, w.campaigns(w.registry(), lead))
		}
		for len(all) > 0 {
			w.await("one leads", func() bool { return slices.ContainsFunc(all, (*candidate).leads) })
			first := slices.IndexFunc(all, (*candidate).leads)
			for i, c := range all {
				require.Equal(w, i == first, c.IsLeader())
			}
			c := all[first]
			c.stop()
			require.ErrorIs(w, within(w, "Run returns", c.result), context.Canceled)
			require.False(w, c.IsLeader())
			require.ErrorIs(w, within(w, "it is told", c.revoked), context.Canceled)
			all = slices.Delete(all, first, first+1)
		}
		require.Empty(w, w.do("GET", key))
	})
}

// Those that wait to lead are told from calls that wait for the lock.
func TestCurrent_KnowsStandbys(t *testing.T) {
	realWorlds(t, func(w *world) {
		one := w.campaigns(w.registry(), untilEnd)
		w.leads(one)
		standby, viewer := w.registry(), w.registry()
		w.campaigns(standby, untilEnd)
		w.await("it stands by", func() bool {
			info, err := inspect.Of(viewer).Inspect(w.Context(), role)
			require.NoError(w, err)
			return len(info.Waiters) == 1 && info.Waiters[0].Standby
		})
	})
}

func (c *candidate) leads() bool { return c.IsLeader() }

// Two candidates of one registry exclude each other, also when they are run with one owner.
func TestRun_CandidatesOfOneRegistry(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		owner := lockregistry.ContextWithOwner(w.Context())
		owner = context.WithoutCancel(owner)
		one := w.campaignsIn(owner, role, r, untilEnd)
		w.leads(one)
		other := w.campaignsIn(owner, role, r, untilEnd)
		require.ErrorIs(w, within(w, "it fails", other.failed), lockregistry.ErrTaken)
		require.False(w, other.IsLeader())

		one.stop()
		w.leads(other)
		require.False(w, one.IsLeader())
	})
}

// The lock of the role is that of Lock, Do and Java; calls with lead's context would wait for lead. Goroutines that
// lead starts are owners of their own.
func TestRun_TheLockIsThePath(t *testing.T) {
	worlds(t, func(w *world) {
		r, elsewhere := w.registry(), w.registry()
		c := w.campaigns(r, untilEnd)
		led := within(w, "its context", c.granted)
		ok, err := elsewhere.Obtain(role).TryLock(w.Context())
		require.NoError(w, err)
		require.False(w, ok)
		_, err = r.Acquire(led, role)
		require.ErrorIs(w, err, lockregistry.ErrDeadlock)
		require.True(w, c.IsLeader())

		require.NoError(w, r.Obtain("other").Lock(led))
		second := make(chan bool)
		go func() {
			ok, err := r.Obtain("other").TryLock(led)
			if err != nil {
				w.Error(err)
			}
			second <- ok
		}()
		require.False(w, <-second, "two goroutines of lead are one owner")
		require.NoError(w, r.Obtain("other").Unlock(led))
	})
}

// A nil from lead resigns: Run ends, and the role is free.
func TestResign(t *testing.T) {
	worlds(t, func(w *world) {
		c := w.campaigns(w.registry(), func(context.Context) error { return nil })
		require.NoError(w, within(w, "Run returns", c.result))
		require.NoError(w, within(w, "it is told", c.revoked))
		require.Empty(w, w.do("GET", key))
		require.False(w, c.IsLeader())
		c.Yield() // does nothing

		c.run(w.Context()) // once more
		require.NoError(w, within(w, "Run returns", c.result))
	})
}

// An error of lead gives the role to another candidate, and the first one campaigns again after a pause, which grows.
func TestRun_ErrorsOfLead(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var begun []time.Time
		fails := func(context.Context) error {
			begun = append(begun, time.Now())
			if len(begun) == 6 {
				<-time.After(8 * time.Second) // long enough for the failures before to be forgotten
			}
			if len(begun) == 8 {
				return nil
			}
			return errWork
		}
		c := w.campaigns(w.registry(), fails, leader.WithBackoff(time.Second, 8*time.Second))
		require.NoError(w, <-c.result)
		var pauses []float64
		for i := range begun[1:] {
			pauses = append(pauses, math.Round(begun[i+1].Sub(begun[i]).Seconds()))
		}
		require.Equal(w, []float64{1, 2, 4, 8, 8, 9, 2}, pauses)
		for range 7 {
			require.ErrorIs(w, <-c.revoked, errWork)
		}
		require.NoError(w, <-c.revoked)
	})
}

// After a long term the pauses begin anew, also if the term ended by a loss, after which there is no pause.
func TestRun_ErrorsOfLeadAfterALongTermThatWasLost(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var begun, ended []time.Time
		fails := func(ctx context.Context) error {
			begun = append(begun, time.Now())
			defer func() { ended = append(ended, time.Now()) }()
			switch len(begun) {
			case 4:
				<-time.After(time.Hour)
				w.do("DEL", key)
				<-ctx.Done()
				return ctx.Err()
			case 6:
				return nil
			}
			return errWork
		}
		c := w.campaigns(w.registry(), fails, leader.WithBackoff(time.Second, 8*time.Second))
		require.NoError(w, <-c.result)
		var pauses []float64
		for i := range begun[1:] {
			pauses = append(pauses, math.Round(begun[i+1].Sub(ended[i]).Seconds()))
		}
		require.Equal(w, []float64{1, 2, 4, 0, 1}, pauses)
	})
}

func TestRun_AnotherOneLeadsAfterAnError(t *testing.T) {
	worlds(t, func(w *world) {
		failing := make(chan struct{})
		one := w.campaigns(w.registry(), func(ctx context.Context) error {
			select {
			case <-failing:
				return errWork
			case <-ctx.Done():
				return nil
			}
		})
		w.leads(one)
		other := w.campaigns(w.registry(), untilEnd)
		require.ErrorIs(w, within(w, "it fails", other.failed), lockregistry.ErrTaken)
		w.waits(role)
		close(failing)
		w.leads(other)
		require.ErrorIs(w, within(w, "it is told", one.revoked), errWork)
		require.ErrorIs(w, within(w, "it campaigns again", one.failed), lockregistry.ErrTaken)
		require.True(w, other.IsLeader())
	})
}

// Yield ends lead's context, and another candidate takes over; lead may call it itself.
func TestYield(t *testing.T) {
	worlds(t, func(w *world) {
		var one *candidate
		now := make(chan struct{})
		one = w.candidate(role, w.registry(), func(ctx context.Context) error {
			<-now
			one.Yield()
			<-ctx.Done()
			if one.IsLeader() {
				w.Error("it still leads")
			}
			return context.Cause(ctx)
		})
		one.Yield() // before it runs: nothing
		one.run(w.Context())
		w.leads(one)
		other := w.campaigns(w.registry(), untilEnd)
		require.ErrorIs(w, within(w, "it fails", other.failed), lockregistry.ErrTaken)
		other.Yield() // it does not lead
		w.waits(role)
		close(now)
		w.leads(other)
		require.ErrorIs(w, within(w, "it is told", one.revoked), leader.ErrYielded)
		require.ErrorIs(w, within(w, "it campaigns again", one.failed), lockregistry.ErrTaken)
		one.stop()
		require.ErrorIs(w, within(w, "Run returns", one.result), context.Canceled)
	})
}

// With nobody else, who yields leads again after the pause.
func TestYield_Alone(t *testing.T) {
	fakeWorld(t, func(w *world) {
		c := w.campaigns(w.registry(), untilEnd)
		<-c.granted
		w.leads(c)
		began := time.Now()
		c.Yield()
		c.Yield()
		synctest.Wait()
		require.False(w, c.IsLeader())
		<-c.granted
		require.Equal(w, 500*time.Millisecond, time.Since(began).Round(100*time.Millisecond))
		w.leads(c)
	})
}

// layouts are the formats of plain locks, as options.
var layouts = map[string][]lockregistry.Option{"spring": nil, "redisson": {lockregistry.WithRedissonLayout()}}

// The lock is renewed, whether or not the registry does so.
func TestRenewal(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.registry(layout...)
				c := w.campaigns(r, untilEnd, lockregistry.Lease(3*time.Second))
				w.leads(c)
				led := <-c.granted
				plain := r.Obtain("plain")
				require.NoError(w, plain.Lock(led, lockregistry.Lease(3*time.Second)))
				<-time.After(time.Minute)
				require.True(w, c.IsLeader())
				require.NoError(w, led.Err())
				require.Equal(w, name == "spring", w.mini.Exists(key) && w.mini.Type(key) == "string")
				require.Positive(w, w.mini.TTL(key))
				require.LessOrEqual(w, w.mini.TTL(key), 3*time.Second)
				require.ErrorIs(w, plain.Unlock(led), lockregistry.ErrLockLost, "only the leader's lock is renewed")
			})
		})
	}
}

// A term that got the lock from a goroutine of its process is renewed as well.
func TestRenewal_AfterAHandoff(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithLease(3 * time.Second))
		lock := r.Obtain(role)
		require.NoError(w, lock.Lock(w.Context()))
		c := w.campaigns(r, untilEnd)
		require.ErrorIs(w, <-c.failed, lockregistry.ErrTaken)
		synctest.Wait()
		require.NoError(w, lock.Unlock(w.Context()))
		w.leads(c)
		<-time.After(time.Minute)
		require.True(w, c.IsLeader())
		require.Len(w, c.granted, 1)
	})
}

// When Redis cannot be reached, lead's context ends before the key can expire, and the candidate campaigns again.
func TestLoss_ByTime(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 10 * time.Second
		c := w.campaigns(w.registry(), untilEnd, lockregistry.Lease(lease))
		w.leads(c)
		led := <-c.granted
		expires := time.Now().Add(w.mini.TTL(key))
		w.mini.SetError("LOADING for the test")
		<-led.Done()
		require.ErrorIs(w, context.Cause(led), lockregistry.ErrLockLost)
		require.False(w, c.IsLeader())
		require.True(w, time.Now().Before(expires), "the key is gone before lead is told")
		require.ErrorIs(w, <-c.revoked, lockregistry.ErrLockLost)
		require.ErrorIs(w, <-c.failed, lockregistry.ErrUnavailable)
		<-time.After(time.Minute)
		require.False(w, c.IsLeader())
		w.mini.SetError("")
		<-c.granted
		w.leads(c)
	})
}

// A lock that is taken away is noticed at the next renewal, and the candidate campaigns again at once.
func TestLoss_ByForce(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		c := w.campaigns(r, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		w.leads(c)
		led := within(w, "its context", c.granted)
		<-time.After(time.Second) // it has led for longer than the pause, so there is none
		began := time.Now()
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), role))
		<-led.Done()
		require.ErrorIs(w, context.Cause(led), lockregistry.ErrLockLost)
		err := within(w, "it is told", c.revoked)
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
		require.NotErrorIs(w, err, context.Canceled)
		within(w, "it leads again", c.granted)
		if w.mini != nil { // a busy machine may take as long as the pause
			require.Less(w, time.Since(began), 400*time.Millisecond)
		}
	})
}

// Terms that are lost at once do not follow each other without a pause.
func TestLoss_AtOnce(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		c := w.campaigns(r, func(ctx context.Context) error {
			if err := inspect.Of(r).ForceUnlock(context.WithoutCancel(ctx), role); err != nil {
				w.Error(err)
			}
			<-ctx.Done()
			return nil
		})
		<-c.granted
		began := time.Now()
		<-c.granted
		require.Equal(w, 500*time.Millisecond, time.Since(began).Round(100*time.Millisecond))
	})
}

// A lead that goes on although its context ended keeps its candidate from campaigning, and Run from returning, and, unless the
// lock is lost, everybody else from leading.
func TestLoss_LeadIgnoresItsContext(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		done := make(chan struct{})
		var inside atomic.Int32
		one := w.campaigns(r, func(context.Context) error {
			inside.Add(1)
			<-done
			inside.Add(-1)
			return errWork
		}, lockregistry.Lease(3*time.Second))
		led := <-one.granted
		other := w.campaigns(r, untilEnd)
		synctest.Wait()

		one.Yield()
		<-time.After(time.Minute)
		require.False(w, one.IsLeader())
		require.False(w, other.IsLeader(), "it leads while another lead works")
		require.NotEmpty(w, w.do("GET", key), "its lock was not renewed")

		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), role))
		w.leads(other)
		require.ErrorIs(w, context.Cause(led), leader.ErrYielded)
		one.stop()
		<-time.After(time.Minute)
		require.Empty(w, one.result, "Run returned while lead works")
		require.EqualValues(w, 1, inside.Load())
		close(done)
		err := <-one.result
		require.ErrorIs(w, err, context.Canceled)
		require.ErrorIs(w, err, errWork)
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
		require.True(w, other.IsLeader())
	})
}

// A panic of lead goes on through Run, and leaves the role to others and the candidate fit to be run again.
func TestRun_Panics(t *testing.T) {
	worlds(t, func(w *world) {
		for name, c := range map[string]struct {
			lead func(context.Context) error
			opt  leader.Option
		}{
			"lead":    {func(context.Context) error { panic("oh") }, leader.OnFailed(nil)},
			"granted": {untilEnd, leader.OnGranted(func(context.Context) { panic("oh") })},
			"revoked": {func(context.Context) error { return nil }, leader.OnRevoked(func(error) { panic("oh") })},
		} {
			var told []error
			opts := []leader.Option{leader.OnRevoked(func(err error) { told = append(told, err) }), c.opt}
			bad, err := leader.New(w.registry(), role, c.lead, opts...)
			require.NoError(w, err)
			for range 2 {
				require.PanicsWithValue(w, "oh", func() { _ = bad.Run(w.Context()) }, name)
				require.False(w, bad.IsLeader())
				require.Empty(w, w.do("GET", key), name)
			}
			if name != "revoked" {
				require.Len(w, told, 2)
				require.ErrorContains(w, told[0], "panicked")
			}
		}

		exits, err := leader.New(w.registry(), role, func(context.Context) error {
			runtime.Goexit()
			return nil
		})
		require.NoError(w, err)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_ = exits.Run(w.Context())
		}()
		<-gone
		require.Empty(w, w.do("GET", key))
		require.False(w, exits.IsLeader())
	})
}

// A callback that blocks holds up its own candidate only: others lead, and the loss is announced.
func TestRun_CallbacksThatBlock(t *testing.T) {
	worlds(t, func(w *world) {
		release := make(chan struct{})
		defer close(release) // also when the test fails
		block := func() { <-release }
		r := w.registry()
		granted := w.campaigns(r, untilEnd, leader.OnGranted(func(context.Context) { block() }))
		w.leads(granted)
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), role))
		require.False(w, granted.IsLeader())

		revoked := w.campaigns(w.registry(), untilEnd, leader.OnRevoked(func(error) { block() }))
		w.leads(revoked)
		blocks := make(chan error, 1)
		failed := w.campaigns(w.registry(), untilEnd, leader.OnFailed(func(err error) {
			blocks <- err
			block()
		}))
		// Before the role is free: else it may be the next leader itself.
		require.ErrorIs(w, within(w, "it fails", blocks), lockregistry.ErrTaken)
		next := w.campaigns(w.registry(), untilEnd)
		require.ErrorIs(w, within(w, "it fails", next.failed), lockregistry.ErrTaken)
		revoked.Yield()
		w.leads(next)
		require.False(w, failed.IsLeader())
	})
}

func TestRun_Twice(t *testing.T) {
	worlds(t, func(w *world) {
		c := w.campaigns(w.registry(), untilEnd)
		w.leads(c)
		err := c.Run(w.Context())
		require.ErrorIs(w, err, leader.ErrRunning)
		require.EqualError(w, err, "leader: "+key+": the candidate is already running")
		require.True(w, c.IsLeader())
	})
}

func TestClose(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		leads := w.campaigns(r, untilEnd, leader.WithBackoff(time.Minute, time.Minute))
		w.leads(leads)
		began := time.Now()
		waits := w.campaigns(r, untilEnd)
		require.ErrorIs(w, within(w, "it fails", waits.failed), lockregistry.ErrTaken)
		led := within(w, "its context", leads.granted)
		require.NoError(w, r.Close())
		require.ErrorIs(w, context.Cause(led), lockregistry.ErrClosed)
		require.ErrorIs(w, within(w, "Run returns", leads.result), lockregistry.ErrClosed)
		require.ErrorIs(w, within(w, "Run returns", waits.result), lockregistry.ErrClosed)
		require.Less(w, time.Since(began), time.Minute, "Run paused before")
		require.Empty(w, w.do("GET", key), "the role is not free")

		require.ErrorIs(w, leads.Run(w.Context()), lockregistry.ErrClosed)
		_, err := leader.Current(w.Context(), r, role)
		require.ErrorIs(w, err, lockregistry.ErrClosed)
	})
}

// A leader of a registry that shuts down leads on, until its context ends; a candidate that waits does not.
func TestShutdown(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		leads := w.campaigns(r, untilEnd)
		w.leads(leads)
		waits := w.campaigns(r, untilEnd)
		require.ErrorIs(w, within(w, "it fails", waits.failed), lockregistry.ErrTaken)
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(w.Context()) }()
		require.ErrorIs(w, within(w, "Run returns", waits.result), lockregistry.ErrClosed)
		require.True(w, leads.IsLeader())
		leads.stop()
		require.NoError(w, within(w, "it is closed", done))
		require.ErrorIs(w, within(w, "Run returns", leads.result), context.Canceled)
		require.Empty(w, w.do("GET", key), "the role is free")
	})
}

// A candidate whose caller has the role would wait for itself.
func TestRun_ByTheHolder(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		c := w.candidate(role, r, untilEnd)
		require.NoError(w, r.Do(w.Context(), role, func(ctx context.Context) error {
			require.ErrorIs(w, c.Run(ctx), lockregistry.ErrDeadlock)
			return nil
		}))
		require.NoError(w, r.Do(w.Context(), role, func(context.Context) error {
			c.run(w.Context())
			require.ErrorIs(w, within(w, "it fails", c.failed), lockregistry.ErrTaken, "it nests in its caller's hold")
			return nil
		}))
		w.leads(c)
		c.stop()
		require.ErrorIs(w, within(w, "Run returns", c.result), context.Canceled)
	})
}

// What ended the context of Run is told, and what lead said.
func TestRun_Context(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		reason := errors.New("the node drains")
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(reason)
		c := w.candidate(role, r, untilEnd)
		err := c.Run(ctx)
		require.ErrorIs(w, err, context.Canceled)
		require.ErrorIs(w, err, reason)
		require.Empty(w, c.granted)

		ctx, cancel = context.WithCancelCause(w.Context())
		c = w.candidate(role, r, func(ctx context.Context) error {
			cancel(reason)
			<-ctx.Done()
			return errWork
		})
		err = c.Run(ctx)
		require.ErrorIs(w, err, context.Canceled)
		require.ErrorIs(w, err, reason)
		require.ErrorIs(w, err, errWork)

		for _, started := range []bool{true, false} { // in the pause after an error, and while somebody else leads
			ctx, stop := context.WithTimeout(w.Context(), 100*time.Millisecond)
			c = w.candidate(role, r, func(context.Context) error { return errWork }, leader.WithBackoff(time.Hour, time.Hour))
			other := lockregistry.ContextWithOwner(w.Context())
			if !started {
				require.NoError(w, r.Obtain(role).Lock(other))
			}
			require.ErrorIs(w, c.Run(ctx), context.DeadlineExceeded)
			stop()
			if !started {
				require.NoError(w, r.Obtain(role).Unlock(other))
			}
		}

		//nolint:staticcheck // on purpose
		require.ErrorContains(w, c.Run(nil), "nil")
	})
}

func TestCurrent(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				r := w.registry(append(slices.Clone(layout), lockregistry.WithClientID("node 7"))...)
				asks := w.registry(layout...)
				who, err := leader.Current(w.Context(), asks, role)
				require.NoError(w, err)
				require.Empty(w, who)

				c := w.campaigns(r, untilEnd)
				w.leads(c)
				who, err = leader.Current(w.Context(), asks, role)
				require.NoError(w, err)
				require.True(w, strings.HasPrefix(who, "node 7:"), who)
				require.NoError(w, inspect.Of(asks).ForceUnlockHolder(w.Context(), role, who), "it is not the holder's name")
				c.stop()
				require.ErrorIs(w, within(w, "Run returns", c.result), context.Canceled)

				require.NoError(w, asks.ReadWrite(role).Writer().Lock(w.Context()))
				_, err = leader.Current(w.Context(), asks, role)
				require.ErrorIs(w, err, lockregistry.ErrWrongType)
				var failed *lockregistry.LockError
				require.ErrorAs(w, err, &failed)
				require.Equal(w, "leader", failed.Op)
				require.Equal(w, key, failed.Key)
				require.NoError(w, asks.ReadWrite(role).Writer().Unlock(w.Context()))

				_, err = leader.Current(w.Context(), asks, "")
				require.ErrorContains(w, err, "the path is empty")
				_, err = leader.Current(w.Context(), nil, role)
				require.ErrorContains(w, err, "nil")
				ctx, cancel := context.WithCancel(w.Context())
				cancel()
				_, err = leader.Current(ctx, asks, role)
				require.ErrorIs(w, err, context.Canceled)
			})
		})
	}
}

func TestCurrent_WithoutAServer(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		w.mini.SetError("LOADING for the test")
		_, err := leader.Current(w.Context(), r, role)
		require.ErrorIs(w, err, lockregistry.ErrUnavailable)
	})
}

// A key of another type, and other errors that do not pass by themselves, are told, and the candidate tries on.
func TestRun_WrongType(t *testing.T) {
	worlds(t, func(w *world) {
		w.do("RPUSH", key, "no lock")
		c := w.campaigns(w.registry(), untilEnd)
		for range 2 {
			require.ErrorIs(w, within(w, "it fails", c.failed), lockregistry.ErrWrongType)
		}
		w.do("DEL", key)
		w.leads(c)

		w.do("DEL", key)
		w.do("RPUSH", key, "no lock")
		ctx, stop := context.WithCancel(w.Context())
		c = w.candidate(role, w.registry(), untilEnd, leader.OnFailed(func(error) { stop() }))
		err := c.Run(ctx)
		require.ErrorIs(w, err, context.Canceled)
		require.ErrorIs(w, err, lockregistry.ErrWrongType)
	})
}

// Errors that end neither Run nor the campaign are logged where no callback gets them: why a candidate is not elected once, and
// once more when there is another reason, and each failure of lead.
func TestRun_LogsErrors(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var mu sync.Mutex
		var log strings.Builder
		lines := func() (all []string) {
			mu.Lock()
			defer mu.Unlock()
			defer log.Reset()
			return strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		}
		logger := slog.New(slog.NewTextHandler(locked{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		silent := func(context.Context) error { return errWork }
		none := []leader.Option{leader.OnRevoked(nil), leader.OnFailed(nil)}
		r := w.registry(lockregistry.WithLogger(logger))
		w.mini.SetError("LOADING")
		w.campaigns(r, silent, none...)
		<-time.After(10 * time.Second)
		w.mini.SetError("")
		w.do("RPUSH", key, "no lock")
		<-time.After(10 * time.Second)
		said := lines()
		require.Len(w, said, 2, said)
		for i, why := range []string{"LOADING", lockregistry.ErrWrongType.Error()} {
			require.Contains(w, said[i], `level=WARN msg="a candidate cannot be elected; trying again" key=orders:singleton error=`)
			require.Contains(w, said[i], why)
		}
		w.do("DEL", key)
		<-time.After(3 * time.Second)
		said = lines()
		require.GreaterOrEqual(w, len(said), 2, said)
		for _, line := range said {
			require.Contains(w, line, `level=WARN msg="a leader's work failed: the candidate campaigns again after a pause" `)
			require.Regexp(w, " key=orders:singleton error=.*"+errWork.Error()+".* pause=.", line)
		}

		w.do("RPUSH", "orders:other", "no lock")
		other := w.campaignsFor("other", w.registry(lockregistry.WithLogger(logger)), silent)
		lines()
		for range 3 {
			require.ErrorIs(w, within(w, "it fails", other.failed), lockregistry.ErrWrongType)
		}
		w.do("DEL", "orders:other")
		require.ErrorIs(w, within(w, "its work fails", other.revoked), errWork)
		for _, line := range lines() {
			require.NotContains(w, line, "orders:other")
		}
	})
}

// locked writes under a mutex.
type locked struct {
	*sync.Mutex
	to io.Writer
}

func (l locked) Write(line []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.to.Write(line)
}

// Without callbacks nothing is different.
func TestRun_WithoutCallbacks(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		terms := make(chan struct{})
		none := []leader.Option{leader.OnGranted(nil), leader.OnRevoked(nil), leader.OnFailed(nil)}
		c := w.campaigns(r, func(ctx context.Context) error {
			terms <- struct{}{}
			return untilEnd(ctx)
		}, none...)
		within(w, "a term", terms)
		waits := w.campaigns(w.registry(), untilEnd, none...)
		w.waits(role) // else c may lead again, after its pause
		c.Yield()
		w.leads(waits)
		waits.stop()
		within(w, "a term", terms)
		w.leads(c)
	})
}

func TestRun_BadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		_, err := leader.New(nil, "", nil, nil, lockregistry.Lease(time.Millisecond), leader.WithBackoff(0, 0))
		for _, wrong := range []string{
			"leader: new: ", "an option is nil", "the registry is nil", "the role is empty", "lead is nil",
			"Lease(1ms)", "WithBackoff(0s, 0s)",
		} {
			require.ErrorContains(w, err, wrong)
		}
		for _, reserved := range []string{"{a}:waiters", "{a}:fencing", "{a}:registry"} { // it would retry for ever
			_, err = leader.New(r, reserved, untilEnd)
			require.ErrorContains(w, err, "reserved")
		}
		_, err = leader.New(r, role, untilEnd, leader.WithBackoff(2*time.Second, time.Second))
		require.ErrorContains(w, err, "WithBackoff(2s, 1s)")
		_, err = leader.New(r, role, untilEnd, lockregistry.Lease(2*time.Millisecond), leader.WithBackoff(time.Second, time.Second))
		require.NoError(w, err)
		_, err = leader.New(r, role, untilEnd, lockregistry.Lease(31*24*time.Hour))
		require.ErrorContains(w, err, "a lease must be at most 30 days")
	})
}

// A crash leaves the role to the lease.
func TestRun_AfterACrash(t *testing.T) {
	realWorlds(t, func(w *world) {
		began := time.Now()
		w.do("SET", key, "the registry of a process that crashed", "PX", "700")
		c := w.campaigns(w.registry(), untilEnd)
		w.leads(c)
		require.Greater(w, time.Since(began), 600*time.Millisecond)
		require.Less(w, time.Since(began), 5*time.Second)
	})
}

// At an orderly end the next one leads in less than 100 ms, also after a long term: then an ordinary release would leave the lock
// to those who poll for 110 ms. One round in ten may take longer, on a busy machine.
func TestRun_TakesOver(t *testing.T) {
	realWorlds(t, func(w *world) {
		const rounds = 100
		one, other := w.registry(), w.registry(lockregistry.WithLease(time.Minute))
		var leading, waiting []*candidate
		for i := range rounds {
			leading = append(leading, w.campaignsFor(fmt.Sprint("role ", i), one, untilEnd))
			within(w, "it leads", leading[i].granted)
			waiting = append(waiting, w.campaignsFor(fmt.Sprint("role ", i), other, untilEnd))
		}
		began := time.Now()
		for i := range rounds {
			w.waits(fmt.Sprint("role ", i))
		}
		w.await("the terms are long", func() bool { return time.Since(began) > 2*time.Second })
		var took, alone []time.Duration // alone: how long a bystander's commands take
		for i := range rounds {
			began := time.Now()
			leading[i].stop()
			within(w, "the next one leads", waiting[i].granted)
			took = append(took, time.Since(began))
			began = time.Now()
			for range 4 {
				w.do("PING")
			}
			alone = append(alone, time.Since(began))
		}
		slices.Sort(took)
		slices.Sort(alone)
		w.Logf("take-over: p50 %v, p99 %v, most %v", took[rounds/2], took[rounds-2], took[rounds-1])
		const most = 900 * time.Millisecond // nobody wakes by itself within a second
		require.Less(w, took[rounds*9/10], min(100*time.Millisecond+10*alone[rounds*9/10], most))
	})
}
