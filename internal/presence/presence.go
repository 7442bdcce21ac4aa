// Package presence keeps in Redis who a registry is, and what its calls wait for, so that other processes can see it.
package presence

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Registry is what a record is about. Nothing of it is called with a mutex held.
type Registry interface {
	// Newest is the number of the newest hold that was asked for.
	Newest() uint64

	// InUse tells whether a lock is held or waited for, and whether any of that has lasted for a second.
	InUse(now clock.Instant) (used, lasting bool)

	// Waits are the calls to tell of. When one of them ends, [Recorder.Rewrite] is to be called.
	Waits() []Wait

	// Locks are what has lasted, in no order. More than [MostLocks] are too many.
	Locks() []Lock

	// Write writes the record, and tells whether the user may not.
	Write(ctx context.Context, text string) (refused bool, err error)

	// Broke changes whenever a connection to the server of the record has broken.
	Broke() clock.Instant

	// Lasts is called at each look that finds that something has lasted, once the record is written.
	Lasts(ctx context.Context)

	// Refused is called once, when the user may not write the record.
	Refused(err error)
}

// Recorder writes the record, for as long as the registry holds a lock, or waits for one, for longer than a second. Locks
// that are released sooner cost it nothing but a look now and then whether they are: no lock has a timer of its own.
//
//	idle ──a hold is asked for──▶ watching ──nothing is held or waited for, and nothing was asked for since the last look──▶ idle
//
// While it watches it looks each second, and writes when something has lasted: anew when the record says something else now,
// and each 20 s, or at once when a connection or a key is gone: the server may have come back empty. Nobody waits for that.
type Recorder struct {
	of       Registry
	clock    clock.Clock
	own      Identity
	watching atomic.Bool
	doubted  atomic.Bool // a key or the connection for wake-ups was gone: the server may have restarted, without the record

	mu     sync.Mutex
	timer  *time.Timer // nil until it watches for the first time
	cancel func()      // ends the look that is under way; nil: none is
	looks  sync.WaitGroup
	closed bool

	// Of the looks, one of which is under way at a time.
	seen uint64 // the newest number at the last look

	writes bool // somebody writes the record; guarded by mu,
	more   bool // as is that it may have changed since

	last writing // of the one who writes
}

// writing is how the record was written last.
type writing struct {
	text    string
	locks   bool          // it tells of locks
	took    time.Duration // to make it
	failed  bool          // that failed
	broke   clock.Instant // what Broke returned then
	again   clock.Instant // when to write, although it says nothing new, or the last attempt has failed
	refused bool          // it was told that the user may not write it
}

const (
	lookCosts  = 100 // a look may take this part of the time
	recordEach = 20 * time.Second
)

// Start says whose record it is.
func (w *Recorder) Start(of Registry, c clock.Clock, own Identity) { w.of, w.clock, w.own = of, c, own }

// Asked is called whenever a hold has drawn its number.
func (w *Recorder) Asked() {
	if !w.watching.Load() {
		w.watch(Lasting)
	}
}

// watch sees to it that there is a look.
func (w *Recorder) watch(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching.Store(true) // also when closed: nobody needs to call again
	switch {
	case w.closed:
	case w.timer == nil:
		w.timer = time.AfterFunc(after, w.look)
	default:
		w.timer.Reset(after)
	}
}

// look is what the timer calls.
func (w *Recorder) look() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.cancel = cancel
	w.looks.Add(1)
	defer w.looks.Done()
	w.mu.Unlock()

	began, newest := w.clock.Now(), w.of.Newest()
	used, lasting := w.of.InUse(began)
	took := began.Until(w.clock.Now())
	switch {
	case lasting:
		took += w.write(ctx)
		w.of.Lasts(ctx)
	case w.tells(): // of what is over
		w.write(ctx)
	}
	if used || newest != w.seen {
		w.seen = newest
		w.watch(min(max(Lasting, lookCosts*took), recordEach)) // it may have stood still meanwhile
		return
	}
	// A call draws its number first, and then looks whether this watches: so one of the two sees the other one.
	w.watching.Store(false)
	if w.of.Newest() != newest {
		w.watch(Lasting)
	}
}

// Doubt has the record written at the next look, since the server may have restarted without it.
func (w *Recorder) Doubt() { w.doubted.Store(true) }

// Rewrite writes the record anew, in the background, since a wait that it tells of has ended.
func (w *Recorder) Rewrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.looks.Go(func() { w.write(context.Background()) })
	}
}

// tells reports whether the record as it was written last tells of locks.
func (w *Recorder) tells() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.writes && w.last.locks
}

// write writes the record, or leaves it to somebody who does so already, and returns how long it took to make it. Nobody waits
// for them with a mutex: in a test with fake time that would keep the time from going on.
func (w *Recorder) write(ctx context.Context) (took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.more = true; w.more && !w.writes; {
		w.writes, w.more = true, false
		w.mu.Unlock()
		w.put(ctx)
		w.mu.Lock()
		w.writes = false
		took = w.last.took
	}
	return took
}

// put writes the record, if it is time.
func (w *Recorder) put(ctx context.Context) {
	last := &w.last
	began := w.clock.Now()
	text, locks, err := w.text()
	now := w.clock.Now()
	last.took = began.Until(now)
	broke := w.of.Broke()
	doubted := w.doubted.Swap(false) || broke != last.broke
	if err != nil || now < last.again && !doubted && (last.failed || text == last.text) {
		return
	}
	last.text, last.again, last.broke = text, now.Add(recordEach), broke
	refused, err := w.of.Write(ctx, text)
	if last.failed = err != nil; !refused {
		if last.failed {
			last.again = now.Add(Lasting)
		} else {
			last.locks = locks
		}
		return
	}
	last.again = now.Add(Denied)
	if !last.refused {
		last.refused = true
		w.of.Refused(err)
	}
}

// short are the first locks that have room.
func short(locks []Lock) ([]Lock, error) {
	for {
		text, err := json.Marshal(locks)
		if err != nil || len(text) <= lockBytes {
			return locks, err
		}
		locks = locks[:len(locks)/2]
	}
}

// text is what the record says now, and whether it tells of locks. Of long paths not all have room.
func (w *Recorder) text() (is string, locks bool, err error) {
	r := Record{Host: w.own.Host, PID: w.own.PID, Name: w.own.Name, Waits: w.of.Waits(), Locks: Upper(w.of.Locks())}
	if r.Locks, err = short(r.Locks); err != nil {
		return "", false, err
	}
	text, err := json.Marshal(r)
	for len(text) > MostBytes && len(r.Waits) > 0 {
		r.Waits = r.Waits[:len(r.Waits)/2]
		text, err = json.Marshal(r)
	}
	return string(text), len(r.Locks) > 0, err
}

// Wait returns when the looks that were under way at Close are over.
func (w *Recorder) Wait() { w.looks.Wait() }

// Close ends the look that is under way. No other one follows.
func (w *Recorder) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.cancel != nil {
		w.cancel()
	}
}
