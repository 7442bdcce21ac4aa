package torture

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// While one process hands a lock around among its many goroutines without end, each other process gets it at least once per
// handoff limit plus one critical section.

const (
	crowd       = 64
	handoffPoll = 50 * time.Millisecond
	// handoffSlack is what a machine on which 64 goroutines never rest may add to nine waits in ten. handoffStall is what it may
	// add to the tenth, when it is busy with something else. HandoffBusy is what it may add to either if a bystander is slow, too.
	handoffSlack = 150 * time.Millisecond
	handoffStall = time.Second
	handoffBusy  = time.Second
	critical     = 300 * time.Microsecond
	handoffFor   = 2500 * time.Millisecond
)

// hustle locks, stays for a critical section, and unlocks, again and again, until the context ends. It returns how long
// each lock took.
func hustle(ctx context.Context, p process, path string, rest time.Duration) (waits []time.Duration, err error) {
	owner := lockregistry.ContextWithOwner(context.Background())
	for ctx.Err() == nil {
		began := time.Now()
		limited, cancel := context.WithTimeout(owner, time.Minute)
		_, err := p.lock(limited, path, -1, 0)
		cancel()
		if err != nil {
			return waits, err
		}
		waits = append(waits, time.Since(began))
		for busy := time.Now(); time.Since(busy) < critical; { // a timer would sleep for far longer
			runtime.Gosched()
		}
		if err := p.unlock(owner, path); err != nil && !errors.Is(err, lockregistry.ErrLockLost) { // a lease is short here
			return waits, err
		}
		if rest > 0 {
			<-time.After(rest)
		}
	}
	return waits, nil
}

type handoffCase struct {
	name    string
	of      settings
	limit   time.Duration // how long the crowd may keep the lock
	outside bool          // the crowd is a process of the operating system
}

// TestHandoffIsFair tests a crowd in this process that polls, and one in another process. TestScale_OthersAreNotStarved in
// test/alone tests each mode.
func TestHandoffIsFair(t *testing.T) {
	const long, tight = 3 * handoffPoll, 8 * handoffPoll
	cases := []handoffCase{
		{
			name:    "crowd in another process",
			of:      settings{Lease: time.Minute, Poll: handoffPoll, Handoff: handoffPoll},
			limit:   handoffPoll,
			outside: true,
		},
		// A hold is not handed on when less than half of its lease is left. That comes sooner than the limit here, and the others
		// must get their turn all the same.
		{
			name:  "lease shorter than twice the limit",
			of:    settings{Lease: tight, Poll: handoffPoll, Handoff: tight},
			limit: tight,
		},
	}
	for _, mode := range modes {
		if *full || mode == "poll" {
			cases = append(cases, handoffCase{
				name:  mode,
				of:    settings{Lease: time.Minute, Poll: handoffPoll, Wakeup: mode, Handoff: handoffPoll},
				limit: handoffPoll,
			})
		}
	}
	if *full {
		cases = append(
			cases,
			handoffCase{
				name:  "limit longer than the poll interval, poll",
				of:    settings{Lease: time.Minute, Poll: handoffPoll, Wakeup: "poll", Handoff: long},
				limit: long,
			},
			handoffCase{
				name:  "lease shorter than twice the limit, poll",
				of:    settings{Lease: tight, Poll: handoffPoll, Wakeup: "poll", Handoff: tight},
				limit: tight,
			},
		)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

func (c handoffCase) run(t *testing.T) {
	t.Helper()
	server := serve(t)
	path := strconv.FormatInt(paths.Add(1), 10)
	ctx, stop := context.WithTimeout(t.Context(), handoffFor)
	defer stop()
	var running sync.WaitGroup
	var total atomic.Int64
	if c.outside {
		j := job{System: library.name, Hustle: path, Addr: server.Addr(), Of: c.of, Goroutines: crowd, For: handoffFor + time.Second}
		running.Go(func() {
			sections, n, err := j.runOutside()
			if err != nil || len(sections) > 0 {
				t.Error(err)
			}
			total.Add(int64(n))
		})
		for server.Command(t, "EXISTS", keyOf(path)) == "0" && ctx.Err() == nil {
			<-time.After(time.Millisecond)
		}
	} else {
		p := start(t, library, calm, server.Addr(), c.of)
		for range crowd {
			running.Go(func() {
				waits, err := hustle(ctx, p, path, 0)
				if err != nil {
					t.Error(err)
				}
				total.Add(int64(len(waits)))
			})
		}
	}
	others := make([][]time.Duration, 2)
	for i := range others {
		p := start(t, library, calm, server.Addr(), c.of)
		running.Go(func() {
			waits, err := hustle(ctx, p, path, 10*time.Millisecond)
			if err != nil {
				t.Error(err)
			}
			others[i] = waits
		})
	}
	var alone []time.Duration // how long a bystander's command takes, over a connection of its own
	for ctx.Err() == nil {
		began := time.Now()
		server.Command(t, "PING")
		alone = append(alone, time.Since(began))
		wait(10 * time.Millisecond)
	}
	running.Wait()
	slices.Sort(alone)
	busy := func(bystander time.Duration) time.Duration { // a handoff takes several times as many steps
		return min(10*bystander, handoffBusy)
	}
	usualBusy, worstBusy := busy(alone[len(alone)*9/10]), busy(alone[len(alone)-1])
	most := c.limit + critical + handoffSlack
	if c.of.Wakeup == "poll" {
		// The lock is free for one poll interval, in which a polling process looks once, or just misses it, and may meet the third
		// process. The next chance comes when the crowd has used up its limit again.
		most += c.of.Poll + c.limit
	}
	for i, waits := range others {
		slices.Sort(waits)
		require.NotEmpty(t, waits)
		worst, usual := waits[len(waits)-1], waits[len(waits)*9/10]
		t.Logf("process %d of 2 got the lock %d times, after %v as a rule, %v at most (allowed: %v and %v); the crowd %d times",
			i+1, len(waits), usual, worst, most+usualBusy, most+handoffStall+worstBusy, total.Load())
		require.Less(t, usual, most+usualBusy, "with a handoff limit of %v", c.limit)
		require.Less(t, worst, most+handoffStall+worstBusy, "with a handoff limit of %v", c.limit)
	}
	require.Greater(t, total.Load(), int64(20*crowd), "the crowd did not hand the lock around")
}

// counted is a process that counts how often it gets a lock before a context ends: after that, each goroutine gets it once more.
type counted struct {
	process

	until context.Context //nolint:containedctx // only its end matters
	times *atomic.Int64
}

func (c counted) lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error) {
	ok, err := c.process.lock(ctx, path, wait, lease)
	if ok && c.until.Err() == nil {
		c.times.Add(1)
	}
	return ok, err
}

// TestQueueIsFair expects that each process has the lock nearly as often as any other, however many goroutines each has.
func TestQueueIsFair(t *testing.T) {
	const least = 0.8 // of its share
	for name, c := range map[string]struct {
		system     system
		handoff    time.Duration
		goroutines []int // of the processes
	}{
		"each hold is a turn, in Redisson's format": {redisson, 0, []int{32, 8, 2, 2}},
		"turns of many holds":                       {library, 20 * time.Millisecond, []int{8, 8, 8, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t)
			path := strconv.FormatInt(paths.Add(1), 10)
			var processes []process
			for range c.goroutines {
				of := settings{Lease: time.Minute, Poll: handoffPoll, Handoff: c.handoff}
				processes = append(processes, start(t, c.system, calm, server.Addr(), of))
			}
			ctx, stop := context.WithTimeout(t.Context(), handoffFor)
			defer stop()
			var running sync.WaitGroup
			times := make([]atomic.Int64, len(c.goroutines))
			for i, n := range c.goroutines {
				for range n {
					running.Go(func() {
						if _, err := hustle(ctx, counted{processes[i], ctx, &times[i]}, path, 0); err != nil {
							t.Error(err)
						}
					})
				}
			}
			running.Wait()
			var got []int64
			var total int64
			for i := range times {
				got = append(got, times[i].Load())
				total += got[i]
			}
			t.Logf("processes with %v goroutines got the lock %v times", c.goroutines, got)
			for _, n := range got {
				require.GreaterOrEqual(t, float64(n), least*float64(total)/float64(len(got)), got)
			}
		})
	}
}
