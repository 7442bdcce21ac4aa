package failover

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func keyOf(path string) string { return prefix + ":" + path }

// rounds runs an event several times with each variant.
func rounds(t *testing.T, usually, inLongRuns int, round func(t *testing.T, v variant)) {
	t.Helper()
	n := usually
	if *long {
		n = inLongRuns
	}
	if *times > 0 {
		n = *times
	}
	for _, v := range variants {
		for range n {
			round(t, v)
			if t.Failed() {
				return
			}
		}
	}
}

// with returns a function that reports whether a server is the master of a path.
func with(d *redistest.Deployment, master *redistest.Server) func(path string) bool {
	return func(path string) bool { return d.Master(keyOf(path), nil) == master }
}

// soon is how soon after the promotion all paths must be served, see within.
const soon = time.Second

// within returns the limit for a measured time. Long runs have the machine to themselves. In other runs any process may stand
// still for some seconds; even so the limit is below what a fault costs: ten seconds if a former master is believed, twenty if
// a waiting call is not told, and a minute if a hold is not released.
func within(measured time.Duration) time.Duration {
	if *long {
		return measured
	}
	return max(measured, 9*time.Second)
}

func TestClusterMasterIsKilled(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	rounds(t, 1, 30, func(t *testing.T, v variant) {
		master := d.Master(keyOf("one"), nil)
		f := start(t, d, v, usual, with(d, master))
		at := time.Now()
		master.Kill()
		promoted := f.promoted(keyOf("one"), master, at)
		o := f.judge("SIGKILL of a master, cluster", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, within(soon))
		master.Revive(t)
		d.AwaitHealthy()
	})
}

func TestClusterMasterIsStopped(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		master := d.Master(keyOf("one"), nil)
		f := start(t, d, v, usual, with(d, master))
		at := d.FreezeSettled(master) // otherwise replication may lose the latest grants
		promoted := f.promoted(keyOf("one"), master, at)
		f.awaitServed(promoted)
		wait(time.Until(promoted.Add(4 * time.Second)))
		master.Thaw()
		o := f.judge("SIGSTOP of a master, continued 4 s after the promotion, cluster", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, within(soon))
		assert.Zero(t, o.doubles, "owners inside at once")
		d.AwaitHealthy()
	})
}

func TestClusterReshard(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		from := d.Master(keyOf("one"), nil)
		p := unhurried()
		p.crowd = 3
		to := d.Master(keyOf("two"), nil)
		for i := 0; to == from; i++ {
			to = d.Master(keyOf("two"+strconv.Itoa(i)), nil)
		}
		f := start(t, d, v, p, with(d, from))
		var slots []int
		for _, path := range slices.Concat(f.busy, f.stayed, f.kept, f.alone) {
			slots = append(slots, d.Slot(keyOf(path)))
		}
		at := time.Now()
		d.Move(to, slots...)
		unnoticed(t, f.judge("slots migrate, with their keys", v, at, time.Time{}))
		d.Move(from, slots...)
	})
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		f := start(t, d, v, unhurried(), with(d, d.Master(keyOf("one"), nil)))
		at := time.Now()
		_, promoted := d.Failover(keyOf("one"))
		unnoticed(t, f.judge("CLUSTER FAILOVER", v, at, promoted))
		d.AwaitHealthy()
		wait(2 * redistest.NodeTimeout) // for that long the masters vote for no replica of this node again
	})
}

// unnoticed checks that no call noticed an event.
func unnoticed(t *testing.T, o outcome) {
	t.Helper()
	assert.Zero(t, o.patient, "errors of calls with Wait")
	assert.Zero(t, o.first+o.unlock, "other errors: %v", o.causes)
	assert.Zero(t, o.doubles, "owners inside at once")
	assert.Zero(t, o.losers, "holds lost")
	if *long {
		assert.Less(t, o.pause, soon)
	}
	assert.Less(t, o.still, within(soon)) // a busy master may try for some seconds, and take no writes, before it is replaced
}

// The poll interval is so long here that it shows if a waiter stays with the node, and polls.
func TestClusterNodeIsRemoved(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"a node is removed": true, "a node is removed, and not told": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := redistest.StartReplicatedCluster(t, 3, 1)
			rounds(t, 1, 10, func(t *testing.T, v variant) {
				heir := d.Master(keyOf("one"), nil)
				leaves := d.Add()
				var slots []int
				p := unhurried()
				p.options = append(p.options, lockregistry.WithPollInterval(20*time.Second))
				of := with(d, heir)
				f := start(t, d, v, p, func(path string) bool {
					if !of(path) {
						return false
					}
					slot := d.Slot(keyOf(path))
					slots = append(slots, slot)
					d.Move(leaves, slot)
					return true
				})
				at := time.Now()
				d.Move(heir, slots...)
				f.awaitForgotten(leaves) // after that, the node replies CLUSTERDOWN
				d.Remove(leaves, reset)
				wait(3 * time.Second)
				o := f.judge(name, v, at, time.Time{})
				assert.Zero(t, o.patient+o.first+o.unlock, "errors")
				assert.Less(t, o.pause, within(5*time.Second))
				assert.Zero(t, o.doubles, "owners inside at once")
				assert.Zero(t, o.losers, "holds lost")
				for _, r := range f.registries {
					for _, n := range r.Stats().Nodes {
						assert.False(t, n.Address == leaves.Addr() && n.Waiters > 0, "calls wait for the removed node")
					}
				}
				leaves.Kill()
			})
		})
	}
}

func TestClusterIsRestarted(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		f := start(t, d, v, usual, func(string) bool { return true })
		at := time.Now()
		restart(t, d)
		o := f.judge("full restart, cluster", v, at, time.Now())
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, afterRestart())
		assert.Zero(t, o.doubles, "owners inside at once")
		d.AwaitHealthy()
	})
}

// afterRestart is how soon all paths must be served again. Nothing is lost, so none waits for the end of a lease.
func afterRestart() time.Duration {
	if *long {
		return 5 * time.Second
	}
	return lease / 2
}

// restart kills all servers, and starts them again with their data on disk.
func restart(t *testing.T, d *redistest.Deployment) {
	t.Helper()
	for _, s := range d.Servers {
		s.Kill()
	}
	for _, s := range d.Servers {
		s.Revive(t)
	}
}
