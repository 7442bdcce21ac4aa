package torture

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lockregistry/lockregistry"
)

// job is what one process does in the tests that record histories. The process can be one of the
// operating system.
type job struct {
	System     string
	Addr       string
	Of         settings
	Number     int // of the process
	Goroutines int
	Paths      int
	Counters   string        // the file of the fencing counters
	For        time.Duration // how long to go on
	Seed       uint64
	Hustle     string // instead of all this: lock this path again and again, with all goroutines
}

// section is what one goroutine saw of one time that it held a lock, or of one vain try. Times are those of now.
type section struct {
	Process int
	Path    int
	Called  int64  // locking
	Granted int64  // locking has returned
	Until   int64  // the last moment at which the goroutine certainly believed in its hold; before Granted: it never did
	Ended   int64  // unlocking has returned
	Token   uint64 // the fencing counter, read under the lock
	Wrote   bool   // the counter was one more then, because of this section
	Acted   bool   // the attempt to count, from reading to writing, was certainly under the lock
	Lost    bool   // the hold was lost before it was given back
	Stolen  bool   // unlocking said that the hold was lost, when its lease cannot have been over
	Wrong   string // something happened that must not, ever
}

func (j job) system() system {
	for _, s := range []system{naive, redisson} {
		if s.name == j.System {
			return s
		}
	}
	return library
}

// run does the job and returns what its goroutines saw.
func (j job) run() (all []section, vain int, err error) {
	deadline := time.Now().Add(j.For)
	n := stormy
	if j.Hustle != "" {
		n = calm
	}
	client, err := n.dial(j.Addr)
	for err != nil && time.Now().Before(deadline) { // the storm is blowing already
		client, err = n.dial(j.Addr)
	}
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	p, err := j.system().open(client, j.Of)
	if err != nil {
		return nil, 0, err
	}
	defer p.close()
	if j.Hustle != "" {
		return j.hustle(p)
	}
	counters, err := openCounters(j.Counters, j.Paths)
	if err != nil {
		return nil, 0, err
	}
	defer counters.close()
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range j.Goroutines {
		running.Go(func() {
			w := worker{job: j, process: p, counters: counters, random: rand.New(rand.NewPCG(j.Seed, uint64(i)))}
			for time.Now().Before(deadline) {
				w.once()
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, w.seen...)
			vain += w.vain
		})
	}
	running.Wait()
	return all, vain, nil
}

// hustle returns how often its goroutines got the lock.
func (j job) hustle(p process) (_ []section, times int, failure error) {
	ctx, stop := context.WithTimeout(context.Background(), j.For)
	defer stop()
	var mu sync.Mutex
	var running sync.WaitGroup
	for range j.Goroutines {
		running.Go(func() {
			waits, err := hustle(ctx, p, j.Hustle, 0)
			mu.Lock()
			defer mu.Unlock()
			times += len(waits)
			failure = errors.Join(failure, err)
		})
	}
	running.Wait()
	return nil, times, failure
}

type worker struct {
	job
	process  process
	counters *counters
	random   *rand.Rand
	seen     []section
	vain     int
}

// some is a time up to most, more often short than long.
func (w *worker) some(most time.Duration) time.Duration {
	f := w.random.Float64()
	return time.Duration(f * f * f * float64(most))
}

func (w *worker) chance(percent int) bool { return w.random.IntN(100) < percent }

// once locks one path in one of the ways that there are, and stays for a while.
func (w *worker) once() {
	s := section{Process: w.Number, Path: w.random.IntN(w.Paths)}
	path := strconv.Itoa(s.Path)
	owner := lockregistry.NewOwner(context.Background())
	ctx, cancel := context.WithTimeout(owner, 10*w.Of.Lease)
	defer cancel()
	wait := time.Duration(-1)
	switch n := w.random.IntN(100); {
	case n < 15: // gives up, perhaps when its command is under way
		cancel()
		ctx, cancel = context.WithTimeout(owner, w.some(w.Of.Lease/2))
		defer cancel()
	case n < 30:
		wait = w.some(w.Of.Lease)
	case n < 35:
		wait = 0
	}
	s.Called = now()
	ok, err := w.process.lock(ctx, path, wait, 0)
	s.Granted = now()
	if !ok {
		w.vain++
		if errors.Is(err, lockregistry.ErrNotOwner) || errors.Is(err, lockregistry.ErrLockLost) {
			s.Until, s.Wrong = s.Granted-1, fmt.Sprint("locking failed: ", err)
			w.seen = append(w.seen, s)
		}
		if err != nil {
			w.pause(w.some(w.Of.Poll)) // the network is down; not for nothing in a circle
		}
		return
	}
	w.inside(owner, &s, path)

	ctx, cancel = context.WithTimeout(owner, 10*w.Of.Lease)
	if w.chance(10) {
		cancel()
	}
	defer cancel()
	err = w.process.unlock(ctx, path)
	s.Ended = now()
	switch {
	case errors.Is(err, lockregistry.ErrNotOwner):
		s.Wrong = fmt.Sprint("unlocking failed: ", err)
	case errors.Is(err, lockregistry.ErrLockLost):
		// Without hand-over and renewals the lease began after locking was called. Nobody may have ended it before that
		// was over, whatever was on its way in the network.
		whole := w.Of.Lease - w.Of.Lease/100 - 2*time.Millisecond
		s.Stolen = w.Of.Handoff == 0 && !w.Of.Renewal && time.Duration(s.Ended-s.Called) < whole
	}
	w.seen = append(w.seen, s)
	if w.chance(30) {
		w.pause(w.some(20 * time.Millisecond))
	}
}

// inside is the section itself: it looks again and again whether the hold is still there, and counts.
func (w *worker) inside(owner context.Context, s *section, path string) {
	alive := w.process.context(owner, path)
	s.Until = s.Granted - 1
	// The clock is read first: the hold, if it is believed in afterwards, was so at that moment too.
	believes := func() bool {
		at := now()
		if alive.Err() != nil || !w.process.held(path) {
			s.Lost = true
			return false
		}
		s.Until = at
		return true
	}
	if !believes() {
		return
	}
	counter := w.counters.of(s.Path)
	s.Token = counter.Load()
	stay := time.Duration(w.random.Int64N(int64(4 * time.Millisecond)))
	switch {
	case w.chance(5): // longer than the lease, mostly
		stay = time.Duration(w.random.Int64N(int64(4 * w.Of.Lease)))
	case w.chance(15):
		stay = time.Duration(w.random.Int64N(int64(40 * time.Millisecond)))
	}
	for end := time.Now().Add(stay); time.Now().Before(end); {
		w.pause(min(time.Until(end), 2*time.Millisecond))
		if !believes() {
			return
		}
	}
	s.Wrote = counter.CompareAndSwap(s.Token, s.Token+1)
	s.Acted = believes()
}

func (w *worker) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// counters are fencing counters, one a path, in memory that all processes share.
type counters struct{ memory []byte }

func openCounters(name string, paths int) (*counters, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	size := paths * 8
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return &counters{memory}, err
}

func (c *counters) of(path int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.memory[path*8]))
}
func (c *counters) close() { _ = syscall.Munmap(c.memory) }

// jobVariable makes this program a process that reads a job, does it, and prints what it saw.
const jobVariable = "LOCKREGISTRY_TORTURE_JOB"

type report struct {
	Sections []section
	Vain     int
}

func serveJob() error {
	var j job
	if err := gob.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return err
	}
	sections, vain, err := j.run()
	if err != nil {
		return err
	}
	return gob.NewEncoder(os.Stdout).Encode(report{sections, vain})
}
