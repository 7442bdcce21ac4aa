package failover

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// distant dials servers and Sentinels at a distance, given as a round trip.
func distant(trip time.Duration) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	d := redistest.NewDistance(trip)
	return func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) })
	}
}

// far is some processes that lock from a distance.
type far struct {
	*testing.T
	trip    time.Duration
	ctx     context.Context
	running sync.WaitGroup
	outage  atomic.Bool  // calls that do not wait may fail
	answers atomic.Int32 // to other calls that do not wait
	late    atomic.Int32 // calls without a timely reply: on a busy machine there are some
	inside  atomic.Int32
	entered [2]atomic.Int64 // when each process last had the path for which both contend, in Unix milliseconds
	free    atomic.Int32    // how often a process had a path of its own
}

// contends locks a path that others want, with calls that wait, and with calls whose contexts end before a reply can arrive.
func (f *far) contends(process int, l *lockregistry.Lock) {
	for f.ctx.Err() == nil {
		owner := lockregistry.ContextWithOwner(f.ctx)
		short, cancel := context.WithTimeout(owner, f.trip/2)
		if err := l.Lock(short); err == nil {
			f.Error("a lock in less than a round trip")
		} else if !errors.Is(err, context.DeadlineExceeded) && f.ctx.Err() == nil && !f.outage.Load() {
			f.Errorf("a call failed before its context's end: %v", err)
		}
		cancel()
		err := l.Lock(owner, lockregistry.Wait(patience))
		if f.ctx.Err() != nil {
			_ = l.Unlock(context.WithoutCancel(owner))
			return
		}
		if err != nil {
			f.Errorf("a call that waits failed: %v", err)
			return
		}
		if f.inside.Add(1) != 1 {
			f.Error("two are inside")
		}
		f.entered[process].Store(time.Now().UnixMilli())
		wait(5 * time.Millisecond)
		f.inside.Add(-1)
		f.check("unlock", func() error { return l.Unlock(context.WithoutCancel(owner)) })
	}
}

// alone locks a path that nobody else wants, with calls that do not wait.
func (f *far) alone(l *lockregistry.Lock) {
	for f.ctx.Err() == nil {
		owner := lockregistry.ContextWithOwner(context.WithoutCancel(f.ctx))
		f.check("a path of its own", func() error {
			ok, err := l.TryLock(owner)
			if !ok {
				return errors.Join(err, lockregistry.ErrTaken)
			}
			f.free.Add(1)
			return l.Unlock(owner)
		})
		wait(20 * time.Millisecond)
	}
}

// check makes calls that do not wait.
func (f *far) check(what string, calls func() error) {
	outage := f.outage.Load()
	err := calls()
	switch {
	case outage || f.outage.Load():
	case err == nil:
		f.answers.Add(1)
	case late(unlocking, err), errors.Is(err, lockregistry.ErrTaken): // the removal of the previous hold was late
		f.late.Add(1)
	default:
		f.Errorf("%s: %v", what, err)
	}
}

// From a distance calls fail only when their own limits end, and holds outlive a failover. It is noticed as soon as by
// processes nearby, apart from a few round trips.
func TestSentinelFromFarAway(t *testing.T) {
	for _, trip := range []time.Duration{150 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			t.Parallel()
			d := redistest.StartSentinels(t, 1, 3)
			ctx, stop := context.WithCancel(t.Context())
			f := &far{T: t, trip: trip, ctx: ctx}
			kept, alive := make([]*lockregistry.Lock, 2), make([]context.Context, 2)
			owner := lockregistry.ContextWithOwner(t.Context())
			var begins sync.WaitGroup
			for i := range kept {
				begins.Go(func() {
					r := f.registry(d)
					if r == nil {
						return
					}
					kept[i] = r.Obtain([]string{"kept0", "kept1"}[i])
					for range 2 { // so that the registry knows the round trip
						assert.NoError(t, kept[i].Lock(owner, lockregistry.Wait(time.Minute)))
						assert.NoError(t, unlessLate(kept[i].Unlock(owner)))
					}
					err := kept[i].Lock(owner, lockregistry.Wait(time.Minute))
					if !assert.NoError(t, err) { //nolint:testifylint // not in the test's goroutine
						return
					}
					alive[i] = kept[i].Context(owner)
					shared, own := r.Obtain("shared"), r.Obtain([]string{"own0", "own1"}[i])
					f.running.Go(func() { f.contends(i, shared) })
					f.running.Go(func() { f.alone(own) })
				})
			}
			begins.Wait()
			wait(2*time.Second + 8*trip)
			require.Eventually(t, func() bool {
				return min(int64(f.free.Load()), f.entered[0].Load(), f.entered[1].Load()) > 0
			}, time.Minute, 10*time.Millisecond)

			f.outage.Store(true)
			master := d.Master("", nil)
			d.Settle(master, time.Minute)
			master.Kill()
			_, promoted := d.AwaitPromotion("", master)
			served := func() bool {
				return min(f.entered[0].Load(), f.entered[1].Load()) > promoted.UnixMilli()
			}
			require.Eventually(t, served, within(sentinelsTell)+30*trip, 10*time.Millisecond)
			t.Logf("served %v after the promotion", time.Since(promoted))
			wait(4 * trip)
			f.outage.Store(false)
			before := f.free.Load()
			require.Eventually(t, func() bool { return f.free.Load() > before+1 }, time.Minute, 10*time.Millisecond)
			stop()
			f.running.Wait()
			assert.Greater(t, f.answers.Load(), f.late.Load(), "most calls that do not wait are answered in time")
			for i, l := range kept {
				require.NoError(t, alive[i].Err(), "it was replicated")
				require.NoError(t, unlessLate(l.Unlock(owner)))
			}
		})
	}
}

func (f *far) registry(d *redistest.Deployment) *lockregistry.Registry {
	dialer := net.Dialer{Timeout: 5 * time.Second, KeepAlive: time.Second}
	var c rueidis.Client
	assert.Eventually(f, func() bool {
		var err error
		c, err = rueidis.NewClient(rueidis.ClientOption{
			InitAddress: d.Addresses(), DisableCache: true, Dialer: dialer, ConnWriteTimeout: 3 * time.Second, DialCtxFn: distant(f.trip),
			Sentinel: rueidis.SentinelOption{MasterSet: redistest.MasterSet, Dialer: dialer, TopologyRefreshInterval: 5 * time.Second},
		})
		return err == nil
	}, time.Minute, time.Millisecond)
	f.Cleanup(c.Close)
	r, err := lockregistry.New(c, prefix, lockregistry.WithRenewal(), lockregistry.WithLease(lease))
	if err != nil {
		f.Error(err)
		return nil
	}
	f.Cleanup(func() { _ = r.Close() })
	return r
}
