package failover

import (
	"context"
	"net"
	"slices"
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

const (
	// deposedFor is how long a deposed master goes on as a master, at most: by then its Sentinels have demoted it.
	deposedFor = 11 * time.Second

	// stillFor is how long a path may stand still after the promotion.
	stillFor = 6 * time.Second
)

// asking is a plan whose processes ask the Sentinels, each a different one first, so that they follow different ones. Every
// second process has a client of the test's own. Three processes are idle, and follow one Sentinel each.
func asking(d *redistest.Deployment) plan {
	p := plan{busy: 3, stayed: 4, kept: 1, crowd: 2, idle: 3}
	p.made = func(i int, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
		addresses, o := from(d.Addresses(), i), advised(d)
		o.InitAddress = addresses
		if i%2 == 0 {
			return opens(addresses, options)
		}
		c, err := rueidis.NewClient(o)
		if err != nil {
			return nil, nil, err
		}
		r, err := lockregistry.New(c, prefix, append(options, lockregistry.WithSentinels(o))...)
		return r, c, err
	}
	return p
}

// from returns the addresses in an order that begins with a different one for each process.
func from(addresses []string, process int) []string {
	first := process % len(addresses)
	return slices.Concat(addresses[first:], addresses[:first])
}

// opens makes a registry by Open.
func opens(sentinels []string, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
	url := "redis://" + sentinels[0] + "?dial_timeout=1s&write_timeout=1s&master_set=" + redistest.MasterSet +
		"&addr=" + strings.Join(sentinels[1:], "&addr=")
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	r, err := lockregistry.Open(ctx, url, prefix, options...)
	return r, nil, err
}

// newcomer is a process that starts while the master is frozen, and joins the others.
func (f *fleet) newcomer() {
	var r *lockregistry.Registry
	for r == nil {
		if f.ctx.Err() != nil {
			return
		}
		r, _, _ = opens(f.deployment.Addresses(), []lockregistry.Option{lockregistry.WithCommandTimeout(commandLimit)})
	}
	defer func() { _ = r.Close() }()
	for i := 0; f.ctx.Err() == nil; i++ {
		path := f.busy[i%len(f.busy)]
		f.section(r, processes+2, path, patientLock, time.Millisecond, lockregistry.Wait(patience))
		wait(5 * time.Millisecond)
	}
}

// named waits until a Sentinel names another master, and returns when.
func (f *fleet) named(master *redistest.Server) time.Time {
	f.Helper()
	require.Eventually(f.T, func() bool {
		return slices.ContainsFunc(f.deployment.Sentinels, func(s *redistest.Server) bool {
			said, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterSet)
			host, port, _ := strings.Cut(said, "\n")
			return err == nil && net.JoinHostPort(host, strings.TrimSpace(port)) != master.Addr()
		})
	}, 3*time.Minute, time.Millisecond) // a vote that fails is repeated after twice the failover-timeout
	return time.Now()
}

// A master is frozen, another one is promoted, and the old one resumes as if nothing had happened, at once or later. Nobody
// believes it, not even processes that were idle, or that started meanwhile.
func TestSentinelMasterIsDeposed(t *testing.T) {
	t.Parallel()
	sideBySide(t, func(t *testing.T, after time.Duration) {
		d := redistest.StartSentinels(t, 2, 3)
		rounds(t, 1, 30, func(t *testing.T, v variant) {
			f := start(t, d, v, asking(d), all)
			f.depose("Sentinel, asked", v, after, d.Master("", nil), func(master *redistest.Server) time.Time { return f.named(master) })
		})
	})
}

// The same in a cluster, where the old master redirects once it has resumed. It executes what it was sent before.
func TestClusterMasterIsDeposed(t *testing.T) {
	t.Parallel()
	sideBySide(t, func(t *testing.T, after time.Duration) {
		d := redistest.StartReplicatedCluster(t, 3, 1)
		rounds(t, 1, 10, func(t *testing.T, v variant) {
			master := d.Master(keyOf("one"), nil)
			p := plan{busy: 3, stayed: 4, kept: 1, crowd: 2, idle: 3}
			f := start(t, d, v, p, with(d, master))
			f.depose("cluster", v, after, master, func(master *redistest.Server) time.Time {
				_, promoted := d.AwaitPromotion(keyOf("one"), master)
				return promoted
			})
		})
	})
}

// sideBySide runs a test with each delay of the old master at the same time, even in long runs.
func sideBySide(t *testing.T, test func(t *testing.T, after time.Duration)) {
	t.Helper()
	var sides sync.WaitGroup
	defer sides.Wait()
	for _, after := range []time.Duration{0, 300 * time.Millisecond, time.Second, 4 * time.Second} {
		sides.Go(func() { t.Run(after.String(), func(t *testing.T) { test(t, after) }) })
	}
}

// depose freezes a master, and resumes it some time after another one was promoted.
func (f *fleet) depose(
	where string, v variant, after time.Duration, master *redistest.Server, promotion func(of *redistest.Server) time.Time,
) {
	f.Helper()
	at := f.deployment.FreezeSettled(master) // see TestClusterMasterIsStopped
	if len(f.deployment.Sentinels) > 0 {
		f.running.Go(f.newcomer)
	}
	promoted := promotion(master)
	wait(time.Until(promoted.Add(after)))
	master.Thaw()
	close(f.awake)
	wait(deposedFor)
	until := time.Now()
	o := f.judge("SIGSTOP of a master, deposed, continued after "+after.String()+", "+where, v, at, promoted)
	assert.Zero(f, o.doubles, "owners inside at once")
	assert.Zero(f, o.lostUpdates, "updates lost")
	assert.Zero(f, o.patient, "errors of calls with Wait")
	for _, path := range f.busy {
		assert.Less(f, f.gap(path, promoted, until), within(stillFor)+3*o.late, path)
	}
	f.deployment.AwaitHealthy()
}

// A master that stands still for less than its Sentinels wait is believed again soon after it has resumed.
func TestSentinelMasterStandsStill(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	for _, s := range d.Sentinels { // on a busy machine it may stand still for longer than this test wants
		s.Command(t, "SENTINEL", "SET", redistest.MasterSet, "down-after-milliseconds", "60000")
	}
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		p := asking(d)
		p.idle = 0
		f := start(t, d, v, p, all)
		master := d.Master("", nil)
		const still = 1500 * time.Millisecond
		at := time.Now()
		master.Freeze()
		wait(still)
		stood := time.Since(at)
		master.Thaw()
		o := f.judge("SIGSTOP of a master for 1.5 s, Sentinel, asked", v, at, time.Time{})
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.pause, stood+within(2*time.Second))
		assert.Equal(t, master, d.Master("", nil))
	})
}

// A planned failover does not wait for replicas. Processes that ask the Sentinels stop locking when it begins, so nothing is
// lost.
func TestSentinelFailoverIsHeard(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		p := asking(d)
		p.stayed, p.idle = 16, 0
		f := start(t, d, v, p, all)
		at := time.Now()
		_, promoted := d.Failover("")
		o := f.judge("SENTINEL FAILOVER, asked", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.lostUpdates, "updates lost")
		if *long {
			assert.Less(t, o.pause, stillFor)
		}
		assert.Less(t, o.still, within(stillFor)) // a failover that fails on a busy machine begins again
		d.AwaitHealthy()
	})
}

// A replica that does not follow the new master keeps the Sentinel that leads the failover from telling its clients, for as
// long as failover-timeout. Registries made by Open ask the Sentinels themselves.
func TestSentinelReplicaDoesNotFollow(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	last := d.Servers[2]
	last.Command(t, "CONFIG", "SET", "replica-priority", "200") // so that the other replica is promoted
	last.Command(t, "CONFIG", "SET", "masterauth", "wrong")
	for _, s := range d.Sentinels {
		s.Command(t, "SENTINEL", "SET", redistest.MasterSet, "failover-timeout", "20000")
		require.Eventually(t, func() bool {
			said, err := s.Do("SENTINEL", "REPLICAS", redistest.MasterSet)
			return err == nil && strings.Contains(said, "slave-priority\n200")
		}, time.Minute, 10*time.Millisecond) // Sentinels ask replicas every ten seconds
	}
	p := asking(d)
	p.idle = 0
	p.made = func(i int, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
		return opens(from(d.Addresses(), i), options)
	}
	f := start(t, d, variant{}, p, all)
	at := time.Now()
	d.Servers[0].Kill()
	promoted := f.named(d.Servers[0])
	require.Eventually(t, func() bool { // each of these paths belongs to one process
		return !slices.ContainsFunc(f.alone, func(path string) bool { _, ok := f.next(path, promoted); return !ok })
	}, time.Minute, time.Millisecond, "some process follows no more")
	o := f.judge("SIGKILL of a master, a replica does not follow, Sentinel, asked", variant{}, at, promoted)
	for _, path := range f.alone {
		again, _ := f.next(path, promoted)
		assert.Less(t, again.Sub(promoted), within(stillFor)+3*o.late, path)
	}
	assert.Zero(t, o.patient, "errors of calls with Wait")
}
