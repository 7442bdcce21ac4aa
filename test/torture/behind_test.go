package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/observe"
)

// Two processes that release in the background.

// lag is how far behind the next command a removal comes where it is late: they have connections of their own.
const lag = 10 * time.Millisecond

// unlocking is an Unlock that the context is for.
type unlocking struct {
	began time.Time
	early bool // it has removed the key, or is about to, and has waited for no round trip
}

type unlockingKey struct{}

// watchEarly is a context for one Unlock, of which noteEarly notes whether it returns early.
func watchEarly(ctx context.Context) (_ context.Context, early *bool) {
	u := &unlocking{began: time.Now()}
	return context.WithValue(ctx, unlockingKey{}, u), &u.early
}

// noteEarly is for an observer. One that hands its hold to the next goroutine is none of these.
func noteEarly(ctx context.Context, r observe.Released) {
	if u, ok := ctx.Value(unlockingKey{}).(*unlocking); ok {
		u.early = r.How == observe.EndReleased && r.Err == nil && time.Since(u.began) < far.trip
	}
}

// Their holds exclude each other, whatever becomes of the removals, which come late, or twice, or not. Nothing stays taken for a
// lease, and no loss is reported.
func TestBackgroundRelease_Exclusion(t *testing.T) {
	t.Parallel()
	watched := layout("behind", lockregistry.LayoutSpring, lockregistry.WithBackgroundRelease(), lockregistry.WithObserver(
		observe.Observer{Released: noteEarly, Lost: func(l observe.Lost) { t.Error("a loss was reported: ", l) }}))
	for _, c := range []struct {
		handoff    time.Duration
		paths      int
		goroutines int // of each process
	}{{-1, 1, 3}, {-1, 1, 1}, {0, 1, 3}, {-1, 3, 3}} {
		server := serve(t)
		var in [3]atomic.Int32
		var holds, lost, early atomic.Int64
		var running sync.WaitGroup
		of := settings{Lease: lease, Poll: poll, Handoff: c.handoff}
		end := time.Now().Add(2 * time.Second)
		for i := range 2 {
			proxy := listen(t, server.Addr())
			proxy.Decide(func() func(netfault.Command) netfault.Fate {
				var mu sync.Mutex
				random := rand.New(rand.NewPCG(uint64(i), 1))
				return func(c netfault.Command) (f netfault.Fate) {
					mu.Lock()
					defer mu.Unlock()
					switch n := random.IntN(100); {
					case c.Name != "release" || c.Pushed || n >= 30:
					case n < 3:
						f.Cut = netfault.CutRequest(0)
					case n < 6:
						f.Cut = netfault.CutReply(0)
					default:
						f.Delay = lag
					}
					return f
				}
			}())
			p := start(t, watched, far, proxy.Addr(), of)
			for range c.goroutines {
				running.Go(func() {
					owner := lockregistry.NewOwner(context.Background())
					for n := 0; time.Now().Before(end); n++ {
						path := n % c.paths
						ok, err := p.lock(owner, strconv.Itoa(path), 5*time.Second, 0)
						if !ok {
							if err != nil && !errors.Is(err, lockregistry.ErrUnavailable) {
								t.Error(err)
							}
							continue
						}
						if in[path].Add(1) != 1 {
							t.Error("two holds at a time")
						}
						holds.Add(1)
						in[path].Add(-1)
						ctx, was := watchEarly(owner)
						if err := p.unlock(ctx, strconv.Itoa(path)); errors.Is(err, lockregistry.ErrLockLost) {
							lost.Add(1)
						}
						if *was {
							early.Add(1)
						}
					}
				})
			}
		}
		running.Wait()
		t.Logf("handoff %v, %d paths: %d holds, %d lost, %d early", c.handoff, c.paths, holds.Load(), lost.Load(), early.Load())
		require.Greater(t, holds.Load(), int64(20))
		require.Greater(t, early.Load(), int64(3))
		require.Zero(t, lost.Load())
		another := start(t, library, calm, server.Addr(), of)
		owner := lockregistry.NewOwner(t.Context())
		for path := range c.paths {
			ok, err := another.lock(owner, strconv.Itoa(path), allowance, 0)
			require.NoError(t, err)
			require.True(t, ok, "a key stays for its lease")
		}
	}
}

func TestBackgroundRelease_Linearizable(t *testing.T) { //nolint:paralleltest // as TestLinearizable: a storm takes the machine
	all := weathered(t, weather{system: behind, seed: firstSeed(), lasts: 6 * time.Second, outside: 1})
	early := 0
	for _, x := range all {
		if x.Early {
			early++
		}
	}
	t.Logf("%d of %d Unlocks have not waited", early, len(all))
	require.Greater(t, early, len(all)/4)
}

// Nothing stays taken for a lease, not when the removals of many paths fail once, nor when the process ends.
func TestBackgroundRelease_NothingStays(t *testing.T) {
	t.Parallel()
	const many = 20
	refused := netfault.Fate{Lost: true, Reply: "-LOADING a test\r\n"}
	for name, fails := range map[string]int{"they fail": many, "it ends": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t)
			of := settings{Lease: lease, Poll: poll, Handoff: -1}
			proxy := listen(t, server.Addr())
			p, another := start(t, behind, far, proxy.Addr(), of), start(t, library, calm, server.Addr(), of)
			owner := lockregistry.NewOwner(t.Context())
			for n := range 2 * many { // the second time the way is known
				path := strconv.Itoa(n % many)
				ok, err := p.lock(owner, path, allowance, 0)
				require.NoError(t, err)
				require.True(t, ok)
				if n < many {
					require.NoError(t, p.unlock(owner, path))
				}
			}
			for range fails {
				proxy.Next(netfault.Match{Name: "release"}, refused)
			}
			if fails == 0 {
				proxy.All(netfault.Match{Name: "release"}, netfault.Fate{Delay: lag})
			}
			for path := range many {
				require.NoError(t, p.unlock(owner, strconv.Itoa(path)))
			}
			if fails == 0 {
				p.close()
				require.Empty(t, server.Command(t, "KEYS", prefix+":1?"), "a process that ends now leaves keys behind")
			}
			for path := range many {
				ok, err := another.lock(owner, strconv.Itoa(path), allowance, 0)
				require.NoError(t, err)
				require.True(t, ok, "a key stays for its lease")
			}
		})
	}
}

// The other process has its turn although this one locks again at once, each time before its removal has come.
func TestBackgroundRelease_OthersHaveTheirTurn(t *testing.T) {
	t.Parallel()
	server := serve(t)
	of := settings{Lease: lease, Poll: poll, Handoff: handoffPoll}
	ctx, stop := context.WithTimeout(t.Context(), handoffFor)
	defer stop()
	path := strconv.FormatInt(paths.Add(1), 10)
	proxy := listen(t, server.Addr())
	proxy.All(netfault.Match{Name: "release"}, netfault.Fate{Delay: lag})
	var running sync.WaitGroup
	var waits [2][]time.Duration
	for i, addr := range []string{proxy.Addr(), server.Addr()} {
		p := start(t, behind, far, addr, of)
		running.Go(func() {
			var err error
			if waits[i], err = hustle(ctx, p, path, 0); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	t.Logf("the processes got the lock %d and %d times", len(waits[0]), len(waits[1]))
	require.Greater(t, len(waits[1]), int(handoffFor/(handoffPoll+handoffSlack))/2)
}

// A call does not ask before the removal is over when the process has had the key for as long as it may, or when others are known
// to wait. One that does not wait for others either gets the lock when there are none.
func TestBackgroundRelease_WaitsForTheRemoval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handoff time.Duration
		others  bool
	}{"the limit is over": {0, false}, "others wait": {time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t)
			of := settings{Lease: lease, Poll: poll, Handoff: c.handoff}
			proxy := listen(t, server.Addr())
			p, other := start(t, behind, far, proxy.Addr(), of), start(t, library, calm, server.Addr(), of)
			owner, others := lockregistry.NewOwner(t.Context()), lockregistry.NewOwner(t.Context())
			locks := func(p process, owner context.Context, path string) <-chan bool {
				got := make(chan bool, 1)
				go func() {
					ok, err := p.lock(owner, path, allowance, 0)
					if err != nil {
						t.Error(err)
					}
					got <- ok
				}()
				return got
			}
			queues := func(path string) {
				require.Eventually(t, func() bool {
					return server.Command(t, "ZCOUNT", queueOf(path), "0", "+inf") == "1"
				}, allowance, time.Millisecond)
			}
			for range 10 { // the way is known then
				require.True(t, <-locks(p, owner, "another"))
				require.NoError(t, p.unlock(owner, "another"))
			}
			for n := range 10 {
				path := strconv.Itoa(n)
				require.True(t, <-locks(p, owner, path))
				var waits <-chan bool
				if c.others {
					waits = locks(other, others, path)
					queues(path)
					require.NoError(t, p.unlock(owner, path))
					require.True(t, <-waits)
					mine := locks(p, owner, path)
					queues(path)
					require.NoError(t, other.unlock(others, path))
					require.True(t, <-mine)
					waits = locks(other, others, path)
					queues(path)
				}
				held := netfault.Hold(false)
				proxy.Next(netfault.Match{Name: "release", Key: keyOf(path)}, netfault.Fate{Held: held})
				require.NoError(t, p.unlock(owner, path))
				<-held.Arrived()
				got := make(chan bool, 1)
				go func() {
					ok, err := p.lock(owner, path, 0, 0)
					if err != nil {
						t.Error(err)
					}
					got <- ok
				}()
				select {
				case <-got:
					require.Fail(t, "the call has not waited")
				case <-time.After(50 * time.Millisecond):
				}
				held.Release()
				require.Equal(t, !c.others, <-got)
				if c.others {
					require.True(t, <-waits)
					require.NoError(t, other.unlock(others, path))
				} else {
					require.NoError(t, p.unlock(owner, path))
				}
			}
		})
	}
}
