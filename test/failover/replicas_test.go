package failover

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// newClient returns a client. On a busy machine its greeting may be answered late: then it tries again.
func newClient(t *testing.T, d *redistest.Deployment) (c rueidis.Client) {
	t.Helper()
	require.True(t, redistest.Await(time.Minute, func() (ok bool) {
		var err error
		c, err = client(d)
		return err == nil
	}))
	return c
}

// unlessLate returns the error of a releasing call, or nil if only its reply was late.
func unlessLate(err error) error {
	if late(unlocking, err) {
		return nil
	}
	return err
}

// newProcess returns a registry with a client of its own.
func newProcess(t *testing.T, d *redistest.Deployment, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	c := newClient(t, d)
	t.Cleanup(c.Close)
	r, err := lockregistry.New(c, prefix, append([]lockregistry.Option{
		lockregistry.WithLease(lease), lockregistry.WithCommandTimeout(commandLimit),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// A master is killed while others write, right after a lock was granted and, every second time, while its replica lags. Its
// successor has everything that was granted.
func TestGrantedKeysOutliveTheirMaster(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	granted, round := 0, 0
	rounds(t, 2, 30, func(t *testing.T, v variant) {
		r := newProcess(t, d, append(v.options,
			lockregistry.WithReplicas(1, 500*time.Millisecond), lockregistry.WithLease(time.Hour))...)
		master := d.Master(keyOf("{one}"), nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var running sync.WaitGroup
		var mu sync.Mutex
		var keys []string
		many := make(chan struct{})
		for i := range 4 {
			c := newClient(t, d)
			running.Go(func() { // gives the replica more to replicate
				defer c.Close()
				for n := 0; ctx.Err() == nil; n++ {
					_ = c.Do(ctx, c.B().Set().Key(fmt.Sprintf("{one}%d:%d", i, n%100)).Value(strings.Repeat("x", 200_000)).Build()).Error()
				}
			})
		}
		for i := range 8 {
			running.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					h, err := r.Acquire(ctx, fmt.Sprintf("{one}%d:%d:%d", time.Now().UnixNano(), i, n))
					if err != nil {
						continue
					}
					mu.Lock()
					keys = append(keys, prefix+":"+h.Paths()[0])
					if len(keys) == 50 {
						close(many)
					}
					mu.Unlock()
				}
			})
		}
		replica := d.Replicas(master)[0]
		<-many
		if round++; round%2 == 0 {
			replica.Freeze()
			wait(300 * time.Millisecond)
		}
		master.Kill()
		replica.Thaw()
		stop()
		running.Wait()
		successor, _ := d.AwaitPromotion(keyOf("{one}"), master)
		for _, key := range keys {
			assert.Equal(t, "1", successor.Command(t, "EXISTS", key), "%s was granted", key)
		}
		t.Logf("%d keys were granted", len(keys))
		granted += len(keys)
		master.Revive(t)
		d.AwaitHealthy()
	})
	assert.Positive(t, granted)
}

// While a replica is stopped nothing is granted on its node, and the other nodes work as usual.
func TestClusterReplicaIsStopped(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	master := d.Master(keyOf("one"), nil)
	of := with(d, master)
	elsewhere := "two"
	for i := 0; of(elsewhere); i++ {
		elsewhere = "two" + strconv.Itoa(i)
	}
	r := newProcess(t, d, lockregistry.WithReplicas(1, 300*time.Millisecond))
	without := newProcess(t, d)
	for _, path := range []string{"one", elsewhere} { // so that the connections exist
		for _, from := range []*lockregistry.Registry{r, without} {
			hold, err := from.Acquire(t.Context(), path, lockregistry.Wait(patience))
			require.NoError(t, err)
			require.NoError(t, unlessLate(hold.Release(t.Context())))
		}
	}
	replica := d.Replicas(master)[0]
	replica.Freeze()

	require.True(t, redistest.Await(time.Minute, func() bool { // on a busy machine a late reply may hide the number
		locked, err := r.Obtain("one").TryLock(t.Context())
		require.False(t, locked)
		return errors.Is(err, lockregistry.ErrUnavailable) && strings.Contains(err.Error(), "0 of 1")
	}))
	for name, one := range map[string]struct {
		registry *lockregistry.Registry
		path     string
	}{"another node": {r, elsewhere}, "without the option": {without, "one"}} {
		began := time.Now()
		hold, err := one.registry.Acquire(t.Context(), one.path, lockregistry.Wait(patience))
		require.NoError(t, err, name)
		assert.Less(t, time.Since(began), within(200*time.Millisecond), name)
		require.NoError(t, unlessLate(hold.Release(t.Context())), name)
	}
	waits := make(chan error, 1)
	go func() {
		hold, err := r.Acquire(t.Context(), "one", lockregistry.Wait(patience))
		if err == nil {
			err = unlessLate(hold.Release(t.Context()))
		}
		waits <- err
	}()
	wait(time.Second)
	select {
	case err := <-waits:
		t.Fatal("granted by the master alone: ", err)
	default:
	}
	replica.Thaw()
	require.NoError(t, <-waits)
	d.AwaitHealthy()
}

// Both replicas must have every grant, so the promoted one has it, whatever the old master grants meanwhile.
func TestSentinelFailoverWithReplicas(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		v.name = "`WithReplicas(2, 1s)`"
		v.options = append(v.options, lockregistry.WithReplicas(2, time.Second))
		p := usual
		p.stayed = 16 // see TestSentinelFailover
		f := start(t, d, v, p, all)
		at := time.Now()
		_, promoted := d.Failover("")
		o := f.judge("SENTINEL FAILOVER", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.losers, "holds lost")
		d.AwaitHealthy()
	})
}

// The same when the master is killed. Nothing is granted until the old master is back as a replica.
func TestSentinelMasterIsKilledWithReplicas(t *testing.T) {
	t.Parallel()
	if !*long {
		return
	}
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 0, 10, func(t *testing.T, v variant) {
		v.name = "`WithReplicas(2, 1s)`"
		v.options = append(v.options, lockregistry.WithReplicas(2, time.Second))
		f := start(t, d, v, usual, all)
		master := d.Master("", nil)
		at := time.Now()
		master.Kill()
		_, promoted := d.AwaitPromotion("", master)
		master.Revive(t)
		o := f.judge("SIGKILL of a master, restarted once another is promoted, Sentinel", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.losers, "holds lost")
		d.AwaitHealthy()
	})
}

// Slots move while replicas must have every grant.
func TestClusterReshardWithReplicas(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		v.name = "`WithReplicas(1, 1s)`"
		v.options = append(v.options, lockregistry.WithReplicas(1, time.Second))
		from := d.Master(keyOf("one"), nil)
		to := d.Master(keyOf("two"), nil)
		for i := 0; to == from; i++ {
			to = d.Master(keyOf("two"+strconv.Itoa(i)), nil)
		}
		f := start(t, d, v, usual, with(d, from))
		var slots []int
		for _, paths := range [][]string{f.busy, f.stayed, f.kept, f.alone} {
			for _, path := range paths {
				slots = append(slots, d.Slot(keyOf(path)))
			}
		}
		at := time.Now()
		d.Move(to, slots...)
		o := f.judge("slots migrate, with their keys", v, at, time.Time{})
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.losers, "holds lost")
		d.Move(from, slots...)
	})
}
