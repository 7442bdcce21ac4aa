package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/peer"
)

// job is what one process does in the tests that record histories. It may be an operating-system process of its own.
type job struct {
	System     string
	Addr       string
	Of         settings
	Number     int // of the process
	Goroutines int
	Paths      int
	Counters   string        // the file with the fencing counters
	For        time.Duration // how long to go on
	Seed       uint64
	Slow       int    // how many owners in a hundred stay, mostly for longer than their lease
	Hustle     string // instead of all of the above: lock this path again and again, with all goroutines
}

// section is what one goroutine saw of one hold, or of one try in vain. Times are results of now.
type section struct {
	Process int
	Path    int
	Hold    uint64 // names it within its process
	Under   uint64 // the hold with which the same owner wrote when it came to read; 0: none
	Reads   bool   // perhaps with others; otherwise it is alone
	Called  int64  // when locking was called
	Granted int64  // when locking returned
	Until   int64  // the last moment at which the goroutine certainly believed in its hold; before Granted: it never did
	Ended   int64  // when unlocking returned
	Looked  bool   // Token was read at all
	Token   uint64 // the fencing counter, read under the lock
	Wrote   bool   // this section then set the counter to one more
	Changed bool   // the counter had another value at the end
	Acted   bool   // the section certainly held the lock from reading the counter to writing it
	Fenced  bool   // holds have fencing tokens
	Fence   uint64 // its fencing token; 0: the hold was lost, perhaps before it had one
	Lost    bool   // the hold was lost before it was released
	Stolen  bool   // unlocking said that the hold was lost, when its lease cannot have been over
	Why     string // what unlocking said of a lost hold
	Refused bool   // its owner was not let in to read, although it writes
	Wrong   string // something that must never happen
}

func (j job) system() system {
	systems := append(flawedSystems(), library, redisson, sharing, permits, naive)
	return systems[slices.IndexFunc(systems, func(s system) bool { return s.name == j.System })]
}

// run does the job and returns what its goroutines saw.
func (j job) run() (all []section, vain int, err error) {
	deadline := time.Now().Add(j.For)
	n := stormy
	if j.Hustle != "" {
		n = calm
	}
	client, err := n.dial(j.Addr)
	for err != nil && time.Now().Before(deadline.Add(20*time.Second)) { // the storm is blowing already
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
	var holds atomic.Uint64
	for i := range j.Goroutines {
		running.Go(func() {
			w := worker{
				job: j, process: p, counters: counters, holds: &holds, ours: j.system().ours,
				random: rand.New(rand.NewPCG(j.Seed, uint64(i))),
			}
			once := w.once
			if both, ok := p.(readWrite); ok {
				once = func() { w.share(both) }
			} else if j.Of.Fencing {
				once = w.onceOrTogether
			}
			for time.Now().Before(deadline) {
				once()
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
	ours     bool
	counters *counters
	holds    *atomic.Uint64 // of the process
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

// visit is one section while it lasts.
type visit struct {
	section
	by    process
	owner context.Context
	path  string
	lease time.Duration // the shortest that it had
	alive context.Context
}

// to plans a visit to a path.
func (w *worker) to(by process, path int) *visit {
	v := &visit{by: by, path: strconv.Itoa(path), lease: w.Of.Lease}
	v.Process, v.Path, v.Hold = w.Number, path, w.holds.Add(1)
	v.owner = context.WithValue(lockregistry.ContextWithOwner(context.Background()), ownerKey{}, v.Hold)
	return v
}

// ownerKey is where contexts name the owner for systems that cannot tell it from [lockregistry.ContextWithOwner].
type ownerKey struct{}

// once locks one path in one of several ways, and stays for a while.
func (w *worker) once() {
	v := w.to(w.process, w.random.IntN(w.Paths))
	if !w.enter(v, 0) {
		return
	}
	w.inside(v)
	w.leave(v)
	w.rest()
}

// enter locks.
func (w *worker) enter(v *visit, lease time.Duration) bool {
	ctx, cancel := context.WithTimeout(v.owner, 10*w.Of.Lease)
	defer cancel()
	wait := time.Duration(-1)
	switch n := w.random.IntN(100); {
	case n < 15: // gives up, perhaps while its command is under way
		cancel()
		ctx, cancel = context.WithTimeout(v.owner, w.some(w.Of.Lease/2))
		defer cancel()
	case n < 30:
		wait = w.some(w.Of.Lease)
	case n < 35:
		wait = 0
	}
	if lease > 0 {
		v.lease = lease
	}
	v.Called = now()
	ok, err := v.by.lock(ctx, v.path, wait, lease)
	v.Granted = now()
	v.Until = v.Granted - 1
	if !ok {
		w.vain++
		if errors.Is(err, lockregistry.ErrNotOwner) || errors.Is(err, lockregistry.ErrLockLost) {
			v.Wrong = fmt.Sprint("locking failed: ", err)
			w.seen = append(w.seen, v.section)
		}
		v.Refused = err == nil
		if err != nil {
			w.pause(w.some(w.Of.Poll))                        // the network is down; do not spin
			if v.Granted-v.Called < int64(time.Millisecond) { // nothing was sent: the server seems to be too far for the lease
				w.pause(20 * time.Millisecond)
			}
		}
		return false
	}
	v.alive = v.by.context(v.owner, v.path)
	v.Fenced = w.Of.Fencing && !v.Reads
	v.Fence, _ = lockregistry.TokenFrom(v.alive)
	return true
}

// leave releases the lock.
func (w *worker) leave(v *visit) {
	if v.Lost && w.chance(30) { // the owner does not notice for a while
		w.pause(w.some(2 * w.Of.Lease))
	}
	ctx, cancel := context.WithTimeout(v.owner, 10*w.Of.Lease)
	if w.chance(10) {
		cancel()
	}
	defer cancel()
	err := v.by.unlock(ctx, v.path)
	v.Ended = now()
	if errors.Is(err, lockregistry.ErrLockLost) {
		v.Why = err.Error()
	}
	switch {
	case errors.Is(err, lockregistry.ErrNotOwner):
		v.Wrong = fmt.Sprint("unlocking failed: ", err)
	case errors.Is(err, lockregistry.ErrLockLost) && !v.Reads: // a reader may share a lease that began earlier
		// Without handoff and renewals the lease began after locking was called. Nobody may have ended it before it was over,
		// whatever was under way in the network.
		whole := v.lease - v.lease/100 - 2*time.Millisecond
		v.Stolen = w.Of.Handoff == 0 && !w.Of.Renewal && !w.Of.Watched && time.Duration(v.Ended-v.Called) < whole
	}
	w.seen = append(w.seen, v.section)
}

// rest sometimes pauses between two visits.
func (w *worker) rest() {
	if w.chance(30) {
		w.pause(w.some(20 * time.Millisecond))
	}
}

// believes reports whether the process says that the hold is there. It reads the clock first: a hold that is believed in after
// that moment was believed in at it, too.
func (v *visit) believes() bool {
	at := now()
	if v.alive.Err() != nil || !v.by.held(v.path) {
		v.Lost = true
		return false
	}
	v.Until = at
	return true
}

// inside is the section itself: it checks again and again whether the hold is still there, and counts if it is alone.
func (w *worker) inside(v *visit) {
	if !v.believes() {
		return
	}
	counter := w.counters.of(v.Path)
	v.Looked, v.Token = true, counter.Load()
	stay := time.Duration(w.random.Int64N(int64(4 * time.Millisecond)))
	switch {
	case w.chance(w.Slow): // mostly longer than the lease
		stay = time.Duration(w.random.Int64N(int64(4 * w.Of.Lease)))
	case w.chance(15):
		stay = time.Duration(w.random.Int64N(int64(40 * time.Millisecond)))
	}
	for end := time.Now().Add(stay); time.Now().Before(end); {
		w.pause(min(time.Until(end), 2*time.Millisecond))
		if !v.believes() {
			return
		}
	}
	if v.Reads {
		v.Changed = counter.Load() != v.Token
	} else {
		v.Wrote = counter.CompareAndSwap(v.Token, v.Token+1)
		v.Changed = !v.Wrote
	}
	v.Acted = v.believes()
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

type report struct {
	Sections []section
	Vain     int
}

// doJob does the job that another process has sent, and replies what it saw.
func doJob(request peer.Fields) (peer.Fields, error) {
	var j job
	if err := peer.Unpack(request["job"], &j); err != nil {
		return nil, err
	}
	sections, vain, err := j.run()
	if err != nil {
		return nil, err
	}
	return peer.Fields{"report": peer.Pack(report{sections, vain})}, nil
}
