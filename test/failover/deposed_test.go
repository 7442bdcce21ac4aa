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
	// deposedFor is how long a deposed master goes on as one, at most: then its Sentinels have demoted it.
	deposedFor = 11 * time.Second

	// stillFor is for how long no path may stand still, from the promotion on.
	stillFor = 6 * time.Second
)

// asking are processes that ask the Sentinels, each with another one first: so they follow different ones. Every other one has
// a client that was handed in. The last two are idle.
func asking(d *redistest.Deployment) plan {
	p := plan{busy: 3, stayed: 4, kept: 1, crowd: 1, idle: 2}
	p.made = func(i int, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
		addresses := d.Addresses()
		first := i % len(addresses)
		addresses = slices.Concat(addresses[first:], addresses[:first])
		o := advised(d)
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

// opens opens a registry by a URL.
func opens(sentinels []string, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
	url := "redis://" + sentinels[0] + "?dial_timeout=1s&write_timeout=1s&master_set=" + redistest.MasterSet +
		"&addr=" + strings.Join(sentinels[1:], "&addr=")
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	r, err := lockregistry.Open(ctx, url, prefix, options...)
	return r, nil, err
}

// newcomer is a process that begins while the master is frozen, and joins the others.
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
	}, time.Minute, time.Millisecond)
	return time.Now()
}

// A master is frozen, another is promoted, and the former goes on as if nothing had happened: at once, or later. Nobody believes
// it, also those who were idle, and those who begin meanwhile.
func TestSentinelMasterIsDeposed(t *testing.T) {
	t.Parallel()
	var sides sync.WaitGroup // side by side, also in long runs
	defer sides.Wait()
	for _, after := range []time.Duration{0, 300 * time.Millisecond, time.Second, 4 * time.Second} {
		sides.Go(func() { t.Run(after.String(), func(t *testing.T) { deposed(t, after) }) })
	}
}

func deposed(t *testing.T, after time.Duration) {
	t.Helper()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 30, func(t *testing.T, v variant) {
		f := start(t, d, v, asking(d), all)
		master := d.Master("", nil)
		d.Settle(master, time.Second) // see TestClusterMasterIsStopped
		at := time.Now()
		master.Freeze()
		f.running.Go(f.newcomer)
		promoted := f.named(master)
		wait(time.Until(promoted.Add(after)))
		master.Thaw()
		close(f.awake)
		wait(deposedFor)
		until := time.Now()
		o := f.judge("SIGSTOP of a master, deposed, continued after "+after.String()+", Sentinel, asked", v, at, promoted)
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.lostUpdates, "updates lost")
		assert.Zero(t, o.patient, "errors of calls with Wait")
		for _, path := range f.busy {
			assert.Less(t, f.gap(path, promoted, until), stillFor, path)
		}
		d.AwaitHealthy()
	})
}

// A master that stands still for less than its Sentinels wait for, or so little longer that none replaces it, is believed again
// soon after it goes on.
func TestSentinelMasterStandsStill(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		p := asking(d)
		p.idle = 0
		f := start(t, d, v, p, all)
		master := d.Master("", nil)
		const still = 1500 * time.Millisecond
		at := time.Now()
		master.Freeze()
		wait(still)
		master.Thaw()
		o := f.judge("SIGSTOP of a master for 1.5 s, Sentinel, asked", v, at, time.Time{})
		assert.Zero(t, o.doubles, "owners inside at once")
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.pause, still+2*time.Second)
		assert.Equal(t, master, d.Master("", nil))
	})
}
