package torture

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/observe"
)

// permits makes semaphores with two permits for each path.
var permits = system{"permits", true, func(client rueidis.Client, s settings) (process, error) {
	r, err := registry(client, s, observe.LayoutSpring)
	return &permitsProcess{registry: r, holds: map[any]*lockregistry.Hold{}}, err
}}

const permitsOfEach = 2

// wants is how many permits a hold asks for.
func wants(hold uint64) int {
	if hold%4 == 0 {
		return 2
	}
	return 1
}

type permitsProcess struct {
	registry *lockregistry.Registry

	mu    sync.Mutex
	holds map[any]*lockregistry.Hold // by owner
}

func (p *permitsProcess) lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error) {
	owner := ctx.Value(ownerKey{})
	number, _ := owner.(uint64)
	opts := []lockregistry.SemaphoreOption{lockregistry.Permits(wants(number))}
	if lease > 0 {
		opts = append(opts, lockregistry.Lease(lease))
	}
	if wait >= 0 {
		opts = append(opts, lockregistry.Wait(wait))
	}
	h, err := p.registry.Semaphore(path, permitsOfEach).Acquire(ctx, opts...)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds[owner] = h
	return true, nil
}

func (p *permitsProcess) of(ctx context.Context) *lockregistry.Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds[ctx.Value(ownerKey{})]
}

func (p *permitsProcess) unlock(ctx context.Context, _ string) error {
	h := p.of(ctx)
	p.mu.Lock()
	delete(p.holds, ctx.Value(ownerKey{}))
	p.mu.Unlock()
	return h.Release(ctx)
}

func (p *permitsProcess) renew(ctx context.Context, _ string, lease time.Duration) error {
	return p.of(ctx).Renew(ctx, lease)
}

func (p *permitsProcess) context(ctx context.Context, _ string) context.Context {
	h := p.of(ctx)
	return permitContext{h.Context(ctx), h}
}

func (p *permitsProcess) held(string) bool { return true } // see permitContext
func (p *permitsProcess) close()           { _ = p.registry.Close() }

// permitContext ends with the lease, although nobody has come to cancel it yet.
type permitContext struct {
	context.Context //nolint:containedctx // the hold's own context
	hold            *lockregistry.Hold
}

func (c permitContext) Err() error {
	if c.hold.Remaining() <= 0 {
		return lockregistry.ErrLockLost
	}
	return c.Context.Err()
}

// heldAtOnce returns the most permits of a path that were held at the same time, counting a hold for as long as its holder
// believed in it.
func heldAtOnce(all []section, path int) (most int) {
	type change struct {
		at int64
		by int
	}
	var changes []change
	for _, x := range all {
		if x.Path == path && x.Until >= x.Granted {
			changes = append(changes, change{x.Granted, wants(x.Hold)}, change{x.Until, -wants(x.Hold)})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, c := range changes {
		n += c.by
		most = max(most, n)
	}
	return most
}

// TestPermits_Storm expects that in a storm no more permits are held than exist, and that none is lost for longer than a lease.
func TestPermits_Storm(t *testing.T) { //nolint:paralleltest // as TestLinearizable
	for name, w := range map[string]weather{"storm": {system: permits}, "mild": {system: permits, mild: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.seed, w.lasts, w.outside = firstSeed(), 6*time.Second, 1
			all, s := blow(t, w)
			p := start(t, w.system, calm, s.server.Addr(), settings{Lease: lease, Poll: poll, Handoff: -1})
			began, full := time.Now(), 0
			for path := range stormPaths {
				most := heldAtOnce(all, path)
				require.LessOrEqual(t, most, permitsOfEach, "at a time, of path %d; repeat with -seed %d", path, w.seed)
				if most == permitsOfEach {
					full++
				}
				owner := context.WithValue(t.Context(), ownerKey{}, uint64(4*path+4)) // this owner wants all permits
				ok, err := p.lock(owner, strconv.Itoa(path), allowance, 0)
				require.NoError(t, err)
				require.True(t, ok, "a permit of path %d is lost; repeat with -seed %d", path, w.seed)
				require.NoError(t, p.unlock(owner, strconv.Itoa(path)))
			}
			for _, x := range all {
				require.Empty(t, x.Wrong)
				require.False(t, x.Stolen && !slices.ContainsFunc(s.feigned, x.excusedBy), "%+v", x)
			}
			t.Logf("of %d paths all permits were held at some time; all were free after %v", full, time.Since(began))
			require.Positive(t, full)
			require.Greater(t, len(all), 30)
		})
	}
}

// room reports whether calls wait in the queue of a semaphore although there is room for the first of them, which wants one
// permit.
const room = `local time = redis.call('TIME')
	local first = redis.call('ZRANGEBYSCORE', KEYS[2], '0', '+inf', 'LIMIT', '0', '1')[1]
	if not first then return 0 end
	local number = tonumber(redis.call('ZSCORE', KEYS[1], 'permits') or '-1')
	local held = redis.call('ZCOUNT', KEYS[1], '(' .. time[1] * 1000 + math.floor(time[2] / 1000), '+inf')
	return held < -number and 1 or 0`

// TestPermits_NobodySleeps expects that a call that waits for a free permit looks before long, though messages are lost and
// connections cut.
func TestPermits_NobodySleeps(t *testing.T) {
	t.Parallel()
	const goroutines, lasts, looks = 6, 15 * time.Second, 5 * time.Second // the first of each process, at least
	server := serve(t)
	of := settings{Lease: time.Minute, Poll: poll, Handoff: -1}
	end := time.Now().Add(lasts)
	var holds, in atomic.Int64
	var running sync.WaitGroup
	for i := range 3 {
		proxy, random := listen(t, server.Addr()), rand.New(rand.NewPCG(uint64(i), 1))
		var mu sync.Mutex
		proxy.Decide(func(c netfault.Command) (f netfault.Fate) {
			mu.Lock()
			defer mu.Unlock()
			f.Lost = (c.Name == "grant" || c.Name == "next") && random.IntN(100) == 0
			if c.Name == "obtain" && random.IntN(500) == 0 {
				f.Cut = netfault.CutReply(0)
			}
			return f
		})
		p := start(t, permits, calm, proxy.Addr(), of)
		for g := range goroutines {
			running.Go(func() {
				for n := uint64(1); time.Now().Before(end); n += 4 { // never one that wants more than one permit
					owner := context.WithValue(t.Context(), ownerKey{}, n+1000000*uint64(g)*4)
					ok, err := p.lock(owner, "1", lasts+allowance, 0)
					if !ok {
						if !errors.Is(err, lockregistry.ErrUnavailable) {
							t.Error("a call does not get in: ", err)
						}
						continue
					}
					if in.Add(1) > permitsOfEach {
						t.Error("too many at a time")
					}
					holds.Add(1)
					in.Add(-1)
					_ = p.unlock(owner, "1")
				}
			})
		}
	}
	var most time.Duration
	for since := time.Now(); time.Now().Before(end); {
		if server.Command(t, "EVAL", room, "2", keyOf("1"), queueOf("1")) == "0" {
			since = time.Now()
		}
		most = max(most, time.Since(since))
	}
	running.Wait()
	t.Logf("%d holds; a permit was free for %v at most while a call waited", holds.Load(), most)
	require.Greater(t, holds.Load(), int64(100))
	require.Less(t, most, looks+allowance)
}
