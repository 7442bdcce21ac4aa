package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// Requests to a worker. The Java programs know the first four.
const (
	doOpen    = "open"    // a contender under the name that "registry" gives
	doLock    = "lock"    // a path; the reply's end says when
	doUnlock  = "unlock"  // a path; the reply's begin says when
	doHold    = "hold"    // lock and unlock a path
	doContend = "contend" // lock and unlock a path over and over, for a time that begins for all processes at once
	doGather  = "gather"  // a crowd that waits
	doFirst   = "first"   // wait until some of the crowd has a lock; the reply's field "at" says when
	doPass    = "pass"    // have the crowd hand the lock over, for a time that begins for all processes at once
)

// worker is this program as one of the processes that it starts. It is driven like the Java programs in ../test/interop/jvm.
type worker struct {
	mu       sync.Mutex
	opened   map[string]locks
	sessions map[string]session // by contender, thread and path
	crowd    *crowd
	members  members // of a worker of a fleet; requests to them come one after the other
}

func newWorker() *worker { return &worker{opened: map[string]locks{}, sessions: map[string]session{}} }

func (w *worker) run(request peer.Fields) (peer.Fields, error) {
	switch request["do"] {
	case doOpen:
		return nil, w.open(request)
	case doGather:
		gathered, err := gather(request)
		w.crowd = gathered // requests to the crowd come after the reply
		return nil, err
	case doFirst, doPass:
		return w.crowd.run(request)
	case doEnlist, doTry, doServed, doStorm, doGuard, doFree, doMemory:
		return w.members.run(request)
	}
	ls, held, err := w.use(request)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	switch request["do"] {
	case doLock:
		return nil, held.lock(ctx)
	case doUnlock:
		return nil, held.unlock(ctx)
	case doHold:
		if err := held.lock(ctx); err != nil {
			return nil, err
		}
		return nil, held.unlock(ctx)
	case doContend:
		return contend(ctx, ls, request)
	default:
		return nil, fmt.Errorf("nothing is called %q", request["do"])
	}
}

func (w *worker) open(request peer.Fields) error {
	c, err := contenderNamed(request["contender"])
	if err != nil {
		return err
	}
	lease, _, err := request.Millis("lease")
	if err != nil {
		return err
	}
	o := opening{addr: request["addr"], lease: lease, listens: true, redisson: request["layout"] == redissonFormat}
	if n := request["permits"]; n != "" {
		if o.permits, err = strconv.Atoi(n); err != nil {
			return err
		}
	}
	start := c.open
	if request["readers"] != "" {
		start = c.openReaders
	}
	ls, err := start(o)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened[request["registry"]] = ls
	return nil
}

// use returns the session of the request's thread.
func (w *worker) use(request peer.Fields) (locks, session, error) {
	w.mu.Lock()
	ls := w.opened[request["registry"]]
	key := request["registry"] + "\n" + request["thread"] + "\n" + request["path"]
	held := w.sessions[key]
	w.mu.Unlock()
	if ls == nil {
		return nil, nil, fmt.Errorf("open %s first", request["registry"])
	}
	if held == nil && request["do"] != doContend {
		held = ls.session(request["path"])
		w.mu.Lock()
		w.sessions[key] = held
		w.mu.Unlock()
	}
	return ls, held, nil
}

// contention is the work that a worker does at the same time as other workers.
type contention struct {
	registry, path string
	goroutines     int
	from, to       time.Time
	readers        bool
	section        time.Duration // how long each section takes
	as             int           // the number of this process
	meeting        string        // the file that the processes share
	deadlines      bool          // calls get contexts with a deadline, not only cancellable ones
}

func (c contention) fields() peer.Fields {
	return peer.Fields{
		"registry": c.registry, "path": c.path, "goroutines": strconv.Itoa(c.goroutines), "as": strconv.Itoa(c.as),
		"from": strconv.FormatInt(c.from.UnixMicro(), 10), "to": strconv.FormatInt(c.to.UnixMicro(), 10),
		"readers": strconv.FormatBool(c.readers), "meeting": c.meeting, "section": peer.InMillis(c.section),
		"deadlines": strconv.FormatBool(c.deadlines),
	}
}

func contentionOf(f peer.Fields) (c contention, err error) {
	c = contention{registry: f["registry"], path: f["path"], readers: f["readers"] == "true", meeting: f["meeting"]}
	c.deadlines = f["deadlines"] == "true"
	var errs [5]error
	c.goroutines, errs[0] = strconv.Atoi(f["goroutines"])
	c.as, errs[1] = strconv.Atoi(f["as"])
	c.from, errs[2] = f.Time("from")
	c.to, errs[3] = f.Time("to")
	c.section, _, errs[4] = f.Millis("section")
	return c, errors.Join(errs[:]...)
}

// context returns the context of calls. Like that of an HTTP request it has no deadline, and may be cancelled at any time.
func (c contention) context(ctx context.Context) (context.Context, context.CancelFunc) {
	end := c.to.Add(drainLimit)
	if c.deadlines {
		return context.WithDeadline(ctx, end)
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(time.Until(end), cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

// contend counts the sections that begin before the end. A goroutine that still waits then continues until its turn comes, or
// gives up.
func contend(ctx context.Context, ls locks, request peer.Fields) (peer.Fields, error) {
	c, err := contentionOf(request)
	if err != nil {
		return nil, err
	}
	place, err := meet(c.meeting)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.context(ctx)
	defer cancel()
	var (
		done   sync.WaitGroup
		counts = make([]counter, c.goroutines)
		errs   = make(chan error, c.goroutines)
		took   = make([]handoffTimes, c.goroutines)
		lost   atomic.Int64 // reads that learned at unlock that they had lost the lock
		stop   atomic.Bool
		timer  = time.AfterFunc(time.Until(c.to), func() { stop.Store(true) })
	)
	defer timer.Stop()
	held := make([]session, c.goroutines)
	for g := range held {
		held[g] = ls.session(c.path)
	}
	time.Sleep(time.Until(c.from))
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	for g, s := range held {
		done.Go(func() {
			for !stop.Load() {
				if err := s.lock(ctx); err != nil {
					if !stop.Load() || ctx.Err() == nil {
						errs <- fmt.Errorf("lock: %w", err)
					}
					return
				}
				right, waited := place.enter(c.as, c.readers)
				if waited != 0 {
					took[g] = append(took[g], waited)
				}
				if c.section > 0 {
					time.Sleep(c.section)
				}
				place.leave()
				if err := s.unlock(ctx); err != nil && c.readers {
					lost.Add(1)
				} else if err != nil {
					errs <- fmt.Errorf("unlock: %w", err)
					return
				}
				if !right {
					errs <- errTogether
					return
				}
				if !stop.Load() {
					counts[g].n.Add(1)
				}
			}
		})
	}
	time.Sleep(time.Until(c.to))
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	done.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
	}
	var sections int64
	for g := range counts {
		sections += counts[g].n.Load()
	}
	cpu := cpuTime(&after) - cpuTime(&before)
	return peer.Fields{
		"sections": strconv.FormatInt(sections, 10),
		"lost":     strconv.FormatInt(lost.Load(), 10),
		"cpu":      strconv.FormatInt(cpu.Microseconds(), 10),
		"took":     slices.Concat(took...).String(),
	}, nil
}

// handoffTimes is how long each of some handoffs from another process took.
type handoffTimes []time.Duration

func (h handoffTimes) String() string {
	var text strings.Builder
	for _, d := range h {
		fmt.Fprintf(&text, "%d ", d.Nanoseconds())
	}
	return text.String()
}

func handoffTimesOf(text string) (values []float64, err error) {
	for field := range strings.FieldsSeq(text) {
		ns, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, fmt.Errorf("how long a handoff took: %w", err)
		}
		values = append(values, ns)
	}
	return values, nil
}

// cpuTime is user and system time together.
func cpuTime(use *unix.Rusage) time.Duration {
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
