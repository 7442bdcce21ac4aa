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
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// While one process hands a lock around its many goroutines without end, the others get it: each at least once per handoff
// limit plus one critical section.

const (
	crowd       = 64
	handoffPoll = 50 * time.Millisecond
	// handoffSlack is what a machine on which 64 goroutines never rest may add as a rule: to nine waits of ten.
	handoffSlack = 150 * time.Millisecond
	// handoffStall is what it may add where a wait is a time, when it is busy with something else.
	handoffStall = time.Second
	critical     = 300 * time.Microsecond
	handoffTurns = 20              // of each process beside the crowd
	handoffFor   = 6 * time.Second // a crowd of another process lasts
	handoffMost  = time.Minute
)

// hustle locks, stays for a critical section, and unlocks, again and again, until the context ends. It calls asks before each
// lock, and what that returns when it has the lock.
func hustle(ctx context.Context, p process, path string, rest time.Duration, asks func() (got func())) error {
	owner := lockregistry.ContextWithOwner(context.Background())
	for ctx.Err() == nil {
		got := asks()
		limited, cancel := context.WithTimeout(owner, time.Minute)
		_, err := p.lock(limited, path, -1, 0)
		cancel()
		if err != nil {
			return err
		}
		got()
		for busy := time.Now(); time.Since(busy) < critical; { // a timer would sleep for far longer
			runtime.Gosched()
		}
		err = p.unlock(owner, path) // a lease is short here, and on a busy machine an answer may be late
		if err != nil && !errors.Is(err, lockregistry.ErrLockLost) && !errors.Is(err, lockregistry.ErrUnavailable) {
			return err
		}
		if rest > 0 {
			<-time.After(rest)
		}
	}
	return nil
}

// counts counts the times that hustle gets the lock.
func counts(n *atomic.Int64) func() (got func()) {
	return func() (got func()) { return func() { n.Add(1) } }
}

type handoffCase struct {
	name    string
	of      settings
	limit   time.Duration // how long the crowd may keep the lock
	outside bool          // the crowd is a process of the operating system
}

// TestHandoffIsFair tests a crowd in this process that polls, and one in another process. TestScale_OthersAreNotStarved of
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
		// With less than half of the lease left a hold is not handed on either. That is sooner than the limit here, and the
		// others must have their chance all the same.
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
	ctx, stop := context.WithTimeout(t.Context(), handoffMost)
	defer stop()
	var running, served sync.WaitGroup
	var total atomic.Int64
	if c.outside {
		j := job{System: library.name, Hustle: path, Addr: server.Addr(), Of: c.of, Goroutines: crowd, For: handoffFor}
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
				if err := hustle(ctx, p, path, 0, counts(&total)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	// A wait is how long the crowd had the lock meanwhile: not the time, for which this machine may do something else. Of a crowd
	// in another process it is not known.
	others := make([][]time.Duration, 2)
	for i := range others {
		p := start(t, library, calm, server.Addr(), c.of)
		served.Go(func() {
			mine, enough := context.WithCancel(ctx)
			defer enough()
			err := hustle(mine, p, path, 10*time.Millisecond, func() (got func()) {
				began, before := time.Now(), total.Load()
				return func() {
					waited := time.Duration(total.Load()-before) * critical
					if c.outside {
						waited = time.Since(began)
					}
					if others[i] = append(others[i], waited); len(others[i]) == handoffTurns {
						enough()
					}
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	served.Wait()
	stop()
	running.Wait()
	most := c.limit + critical + handoffSlack
	if c.outside {
		most += handoffStall
	}
	if c.of.Wakeup == "poll" {
		// The lock is to be had for a poll interval, in which who polls looks once, or just not, and may meet the third
		// process. The next chance comes when the crowd has had its limit again.
		most += c.of.Poll + c.limit
	}
	for i, waits := range others {
		slices.Sort(waits)
		require.GreaterOrEqual(t, len(waits), handoffTurns, "turns")
		worst, usual := waits[len(waits)-1], waits[len(waits)*9/10-1]
		t.Logf("process %d of 2 got the lock %d times, after %v as a rule and %v at most; the crowd got it %d times",
			i+1, len(waits), usual, worst, total.Load())
		require.Less(t, usual, most, "with a handoff limit of %v", c.limit)
	}
	require.Greater(t, total.Load(), int64(5*len(others)*handoffTurns), "the crowd did not hand the lock around")
}

// Who waits in the queue has its turn, however many goroutines the others have: each process has the lock nearly as often as
// any other.
func TestQueueIsFair(t *testing.T) {
	const (
		least      = 0.8  // of its share
		queueTurns = 1000 // of all, at least
	)
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
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var running sync.WaitGroup
			times := make([]atomic.Int64, len(c.goroutines))
			for i, n := range c.goroutines {
				p := start(t, c.system, calm, server.Addr(), settings{Lease: time.Minute, Poll: handoffPoll, Handoff: c.handoff})
				for range n {
					running.Go(func() {
						if err := hustle(ctx, p, path, 0, counts(&times[i])); err != nil {
							t.Error(err)
						}
					})
				}
			}
			// A process that stands still for a while has its share in the long run.
			var got []int64
			fair := func() bool {
				var total int64
				got = got[:0]
				for i := range times {
					got = append(got, times[i].Load())
					total += got[i]
				}
				return total >= queueTurns && float64(slices.Min(got)) >= least*float64(total)/float64(len(got))
			}
			ok := redistest.Await(handoffMost, fair)
			stop()
			running.Wait()
			t.Logf("processes with %v goroutines got the lock %v times", c.goroutines, got)
			require.True(t, ok, got)
		})
	}
}
