package presence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// registry is a made-up registry.
type registry struct {
	Recorder

	newest atomic.Uint64

	mu      sync.Mutex
	stands  time.Duration // how long the process stands still while it looks
	used    bool          // it holds something that has lasted for a second
	lasting bool
	waits   []Wait
	locks   []Lock
	broke   clock.Instant
	writing func(text string) (refused bool, err error) // if set, what happens to a write

	writes    []time.Duration // when, since the start
	texts     []string
	lifetimes []time.Duration
	lasts     int
	refused   int
	start     time.Time
}

// started is a registry whose record is looked after until the test ends.
func started(t *testing.T) *registry {
	t.Helper()
	r := &registry{start: time.Now()}
	r.Start(r, clock.New(), Identity{Registry: "billing:1", Host: "web-1", PID: 4711})
	t.Cleanup(func() {
		r.Close()
		r.Wait()
	})
	return r
}

func (r *registry) Newest() uint64 { return r.newest.Load() }

func (r *registry) InUse(clock.Instant) (used, lasting bool) {
	var stands time.Duration
	r.set(func() { used, lasting, stands, r.stands = r.used, r.lasting, r.stands, 0 })
	if stands > 0 {
		<-time.After(stands)
	}
	return used, lasting
}

func (r *registry) Waits() (waits []Wait) {
	r.set(func() { waits = r.waits })
	return waits
}

func (r *registry) Locks() (locks []Lock) {
	r.set(func() { locks = slices.Clone(r.locks) })
	return locks
}

func (r *registry) Broke() (at clock.Instant) {
	r.set(func() { at = r.broke })
	return at
}

func (r *registry) Lasts(context.Context) { r.set(func() { r.lasts++ }) }
func (r *registry) Refused(error)         { r.set(func() { r.refused++ }) }

func (r *registry) Write(_ context.Context, text string, lasts time.Duration, _ bool) (refused bool, err error) {
	r.mu.Lock()
	r.lifetimes = append(r.lifetimes, lasts)
	r.writes, r.texts = append(r.writes, time.Since(r.start)), append(r.texts, text)
	writing := r.writing
	r.mu.Unlock()
	if writing == nil {
		return false, nil
	}
	return writing(text)
}

func (r *registry) set(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// holds makes the registry hold something that has lasted for a second.
func (r *registry) holds() {
	r.set(func() { r.used, r.lasting = true, true })
	r.Asked()
}

// after lets some time pass, and returns when the record was written in that time.
func (r *registry) after(d time.Duration) (writes []time.Duration) {
	<-time.After(d)
	synctest.Wait()
	r.set(func() { writes, r.writes = r.writes, nil })
	return writes
}

func TestRecorder_WritesWhatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		require.Empty(t, r.after(time.Minute), "nothing was asked for")
		r.set(func() { r.start, r.used = time.Now(), true })
		r.Asked()
		require.Empty(t, r.after(1500*time.Millisecond), "nothing has lasted")
		r.set(func() { r.lasting = true })
		require.Equal(t, []time.Duration{2 * time.Second, 22 * time.Second}, r.after(30*time.Second))
		require.JSONEq(t, `{"for": 60000, "host": "web-1", "pid": 4711}`, r.texts[0])
		require.Equal(t, 30, r.lasts, "cycles are looked for each second")
		r.set(func() { r.used, r.lasting = false, false })
		require.Empty(t, r.after(time.Minute))
		require.False(t, r.watching.Load())
	})
}

func TestRecorder_WritesChangesAtOnce(t *testing.T) {
	for name, change := range map[string]func(r *registry){
		"a wait":                 func(r *registry) { r.set(func() { r.waits = []Wait{{Path: "a"}} }) },
		"a key is gone":          func(r *registry) { r.MayBeGone() },
		"a connection has gone":  func(r *registry) { r.set(func() { r.broke++ }) },
		"calls that wait":        func(r *registry) { r.set(func() { r.locks = []Lock{{Path: "a", Waiting: 28}} }) },
		"a wait that it told of": func(r *registry) { r.set(func() { r.waits = []Wait{{Path: "b"}} }); r.Rewrite() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := started(t)
				r.holds()
				require.Len(t, r.after(2500*time.Millisecond), 1)
				change(r)
				require.Len(t, r.after(time.Second), 1)
				require.Empty(t, r.after(10*time.Second))
			})
		})
	}
}

// A process that stood still while it looked writes the record again before that expires.
func TestRecorder_AfterStandingStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		r.stands = time.Minute
		r.holds()
		require.Len(t, r.after(Lasting+time.Minute), 1)
		require.Len(t, r.after(recordEach), 1)
		require.Equal(t, 2, r.lasts)
	})
}

func TestRecorder_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		var refused atomic.Bool
		r.writing = func(string) (bool, error) { return refused.Load(), errors.New("no") }
		r.holds()
		require.Len(t, r.after(5500*time.Millisecond), 5, "each second")
		refused.Store(true)
		require.Len(t, r.after(Denied), 1, "it may not")
		require.Len(t, r.after(Denied), 1)
		require.Equal(t, 1, r.refused, "which is told once")
	})
}

// A call that finds the record being written does not wait; the record is written once more afterwards.
func TestRecorder_IsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		answer := make(chan struct{})
		r.writing = func(string) (bool, error) { <-answer; return false, errors.New("no") }
		go r.write(t.Context())
		synctest.Wait()
		r.write(t.Context())
		require.Len(t, r.writes, 1)
		r.MayBeGone() // it is time
		close(answer)
		synctest.Wait()
		require.Len(t, r.writes, 2)
	})
}

func TestRecorder_WatchesWhileHoldsAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		r.Asked()
		for range 3 {
			r.newest.Add(1)
			r.Asked()
			<-time.After(Lasting)
			synctest.Wait()
			require.True(t, r.watching.Load(), "something was asked for since the last look")
		}
		<-time.After(Lasting)
		synctest.Wait()
		require.False(t, r.watching.Load())
	})
}

func TestRecorder_LeavesOutWaitsOfLongPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		for range 8 {
			r.waits = append(r.waits, Wait{Path: strings.Repeat("a", MostBytes/5)})
		}
		r.holds()
		require.Len(t, r.after(1500*time.Millisecond), 1)
		require.LessOrEqual(t, len(r.texts[0]), MostBytes)
		record, _ := Parse("billing:1", r.texts[0])
		require.Len(t, record.Waits, 4)
	})
}

// Some of the paths that the owners of waiting calls hold are left out before any waiting call is.
func TestRecorder_LeavesOutHoldsBeforeWaits(t *testing.T) {
	holds := func(n, length int) (paths []string) {
		for i := range n {
			paths = append(paths, fmt.Sprintf("%0*d", length, i))
		}
		return paths
	}
	for name, c := range map[string]struct {
		waits  []Wait
		calls  int
		fewest int // paths of a call
	}{
		"many calls": {slices.Repeat([]Wait{{Path: "a", Holds: holds(1000, 30)}}, 100), 100, 16},
		"one call":   {[]Wait{{Path: "a", Holds: holds(1000, 2000)}}, 1, 250},
		"long paths": {[]Wait{{Path: "a", Holds: holds(16, MostBytes/5)}}, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := started(t)
				r.waits = c.waits
				r.holds()
				require.Len(t, r.after(1500*time.Millisecond), 1)
				require.LessOrEqual(t, len(r.texts[0]), MostBytes)
				record, _ := Parse("billing:1", r.texts[0])
				require.Len(t, record.Waits, c.calls)
				for _, w := range record.Waits {
					require.GreaterOrEqual(t, len(w.Holds), c.fewest)
				}
			})
		})
	}
}

// When everything in the record is over, the record is written once more, so that it does not show what is over for another
// minute.
func TestRecorder_TakesBackWhatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		r.set(func() { r.locks = []Lock{{Path: "a", Waiting: 28}} })
		r.holds()
		require.Len(t, r.after(2500*time.Millisecond), 1)
		r.set(func() { r.used, r.lasting, r.locks = false, false, nil })
		require.Len(t, r.after(time.Second), 1)
		require.JSONEq(t, `{"for": 60000, "host": "web-1", "pid": 4711}`, r.texts[1])
		require.Empty(t, r.after(time.Minute))
	})
}

// However many and long the paths are, a record that may be written each second stays short, and what matters most stays in it.
func TestRecorder_LeavesOutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		for i := range 5 * MostLocks {
			r.locks = append(r.locks, Lock{Path: strconv.Itoa(i), Waiting: i % 500, Hold: "1", Since: int64(i)})
		}
		r.holds()
		require.Len(t, r.after(1500*time.Millisecond), 1)
		record, _ := Parse("billing:1", r.texts[0])
		require.Len(t, record.Locks, MostLocks)
		require.Equal(t, 499, record.Locks[0].Waiting)
		r.set(func() {
			for i := range r.locks {
				r.locks[i].Path = strings.Repeat("a", 8192)
			}
		})
		require.Len(t, r.after(time.Second), 1)
		require.LessOrEqual(t, len(r.texts[1]), lockBytes+100)
		record, _ = Parse("billing:1", r.texts[1])
		require.NotEmpty(t, record.Locks)
		require.Equal(t, 499, record.Locks[0].Waiting)
	})
}

func TestRecorder_EndsAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		r.holds()
		require.Len(t, r.after(1500*time.Millisecond), 1)
		r.Close()
		r.Wait()
		r.Asked()
		r.Rewrite()
		require.Empty(t, r.after(time.Minute))
	})
}

// Whenever the process dies, the record lasts a minute longer than the longest lease that it lists, of which at most an hour
// counts.
func TestRecorder_OutlivesTheLeasesThatItLists(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		0:               time.Minute, // calls only wait
		5 * time.Minute: 6*time.Minute + recordEach,
		time.Hour:       61 * time.Minute,
		24 * time.Hour:  61 * time.Minute,
	} {
		t.Run(lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := started(t)
				r.set(func() { r.locks = []Lock{{Path: "a", Hold: "1", Lasts: lease}, {Path: "b", Waiting: 1}} })
				if lease == 0 {
					r.set(func() { r.locks = nil })
				}
				r.holds()
				require.Len(t, r.after(100*time.Second), 5, "it is written each 20 s all the same")
				for _, lasts := range r.lifetimes {
					require.Equal(t, want, lasts)
				}
			})
		})
	}
}

// A longer lease does not change the text unless the lease is renewed: the record is written all the same.
func TestRecorder_ALeaseBecomesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := started(t)
		lasts := func(d time.Duration) {
			r.set(func() { r.locks = []Lock{{Path: "a", Hold: "1", Lasts: d}} })
		}
		lasts(time.Minute)
		r.holds()
		require.Len(t, r.after(2*time.Second), 1)
		lasts(59 * time.Second)
		require.Empty(t, r.after(2*time.Second), "it has become shorter")
		lasts(10 * time.Minute)
		require.Len(t, r.after(2*time.Second), 1)
		require.Equal(t, 11*time.Minute+recordEach, r.lifetimes[1])
		r.set(func() { r.writing = func(string) (bool, error) { return true, errors.New("refused") } })
		lasts(20 * time.Minute)
		require.Len(t, r.after(time.Minute), 1, "a refusal is not asked for again for a longer lease")
	})
}

// A registry that closes without its locks leaves no record that lasts for their leases. One that leaves them locked does.
func TestRecorder_CloseForgetsWhatWasReleased(t *testing.T) {
	for name, released := range map[string]bool{"released": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := started(t)
				r.set(func() { r.locks = []Lock{{Path: "a", Hold: "1", Lasts: 10 * time.Minute}} })
				r.holds()
				require.Len(t, r.after(2*time.Second), 1)
				if released {
					r.set(func() { r.locks = nil })
				}
				r.Close()
				r.Wait()
				if released {
					require.Equal(t, []time.Duration{11*time.Minute + recordEach, time.Minute}, r.lifetimes)
				} else {
					require.Len(t, r.lifetimes, 1)
				}
			})
		})
	}
}

// Nor does one that closes while it writes the record. The end of the look cuts the write short, which may have been executed.
func TestRecorder_CloseForgetsWhatIsBeingWritten(t *testing.T) {
	for name, failure := range map[string]error{"in time": nil, "cut short": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := started(t)
				answer := make(chan struct{})
				r.locks = []Lock{{Path: "a", Hold: "1", Lasts: 10 * time.Minute}}
				r.writing = func(string) (bool, error) { <-answer; return false, failure }
				r.holds()
				require.Len(t, r.after(2*time.Second), 1)
				r.set(func() { r.locks, r.writing = nil, nil })
				r.Close()
				close(answer)
				r.Wait()
				require.Equal(t, []time.Duration{11*time.Minute + recordEach, time.Minute}, r.lifetimes)
			})
		})
	}
}
