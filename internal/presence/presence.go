// Package presence is the record that a registry keeps in Redis: its process, and what its calls hold and wait for, so that other
// processes can see it. It sends nothing by itself.
//
// What comes in: what the [Registry] holds and waits for, or the text of another registry's record. What goes out: when to write
// the record, and its text ([Recorder]); or a [Record] and an [Identity], by [Parse].
package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Registry is the registry of a record. Its methods are called without a mutex.
type Registry interface {
	// Newest returns the number of the newest hold that was asked for.
	Newest() uint64

	// InUse reports whether a lock is held or asked for, and whether a hold or a wait has lasted for a second.
	InUse(now clock.Instant) (used, lasting bool)

	// Waits returns the waiting calls for the record. When one of them ends, the registry must call [Recorder.Rewrite].
	Waits() []Wait

	// Locks returns the locks for the record, in no order. If there are more than [MostLocks], some are left out.
	Locks() []Lock

	// Write writes the record, which expires after lasts. Gone: the server may have lost it. Refused: the user lacks permission.
	Write(ctx context.Context, text string, lasts time.Duration, gone bool) (refused bool, err error)

	// Broke changes whenever a connection to the server of the record has broken.
	Broke() clock.Instant

	// Lasts is called at each look that finds a lasting hold or wait, after the record was written.
	Lasts(ctx context.Context)

	// Refused is called once, if the user may not write the record.
	Refused(err error)
}

// Recorder writes the record while the registry holds a lock, or waits for one, for longer than a second. Locks that are released
// sooner cost only a look now and then: no lock has its own timer.
//
//	idle ──a hold is asked for──▶ watching ──nothing is held or asked for, nor was asked for since the last look──▶ idle
//
// While it watches, it looks every second. No call waits for that. If something has lasted, it writes the record
//
//   - when the content of the record changes
//   - every 20 s
//   - at once when a connection or a key is gone, since the server may have restarted empty
//
// If the process dies, the record must outlast the locks that it lists, so that others see which process held them:
//
//	record lives for 1 min + min(longest lease that it lists + 20 s, 1 h)
//
// A process that crashes every ten seconds leaves at most 366 records that way. Many such processes leave [MostDead], see
// list.lua. Close writes the record once more if the locks that it lists were released.
type Recorder struct {
	of       Registry
	clock    clock.Clock
	own      Identity
	watching atomic.Bool
	gone     atomic.Bool // a key or the connection for wake-ups was gone: the server may have restarted, without the record

	mu     sync.Mutex
	timer  *time.Timer // nil until it watches for the first time
	cancel func()      // ends the look that is under way; nil: none
	looks  sync.WaitGroup
	closed bool

	// For the looks, of which one is under way at a time.
	seen uint64 // the newest number at the last look

	writes bool // a goroutine writes the record; guarded by mu
	more   bool // the record may have changed since; guarded by mu

	last writing // for the goroutine that writes
}

// writing is about the last write of the record.
type writing struct {
	text    string
	locks   bool          // the record lists locks
	took    time.Duration // how long making it took
	failed  bool          // the write failed
	broke   clock.Instant // what Broke returned then
	again   clock.Instant // when to write again without a change, or after a failure
	until   clock.Instant // when the record expires
	refused bool          // Refused was called
}

const (
	lookCosts  = 100 // looks may take this fraction of the time
	recordEach = 20 * time.Second
	recordFor  = SilentFor // longer than the leases that it lists
	mostLonger = time.Hour // what these may add
)

// Start sets the registry and its identity.
func (w *Recorder) Start(of Registry, c clock.Clock, own Identity) { w.of, w.clock, w.own = of, c, own }

// Asked is called when a hold has drawn its number.
func (w *Recorder) Asked() {
	if !w.watching.Load() {
		w.watch(Lasting)
	}
}

// watch schedules a look.
func (w *Recorder) watch(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching.Store(true) // also when closed: no further call is needed
	switch {
	case w.closed:
	case w.timer == nil:
		w.timer = time.AfterFunc(after, w.look)
	default:
		w.timer.Reset(after)
	}
}

// look is called by the timer.
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
	case w.tells(): // lists locks that are released
		w.write(ctx)
	}
	if used || newest != w.seen {
		w.seen = newest
		w.watch(min(max(Lasting, lookCosts*took), recordEach)) // it may have stood still meanwhile
		return
	}
	// A call draws its number first, then checks watching: so either it sees that nothing watches, or this sees the number.
	w.watching.Store(false)
	if w.of.Newest() != newest {
		w.watch(Lasting)
	}
}

// MayBeGone makes the next look write the record, since the server may have restarted without it.
func (w *Recorder) MayBeGone() { w.gone.Store(true) }

// Rewrite writes the record in the background, since a wait that it lists has ended.
func (w *Recorder) Rewrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.looks.Go(func() { w.write(context.Background()) })
	}
}

// tells reports whether the record, as last written, lists locks.
func (w *Recorder) tells() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.writes && w.last.locks
}

// write writes the record, or leaves that to a goroutine that is writing already. It returns how long making the record took.
// It does not wait with a mutex held, which would stop the time in a test with fake time.
func (w *Recorder) write(ctx context.Context) (took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.more = true; w.more && !w.writes; {
		w.writes, w.more = true, false
		final := w.closed
		if final { // the context of the look has ended
			ctx = context.Background()
		}
		w.mu.Unlock()
		w.put(ctx, final)
		w.mu.Lock()
		w.writes = false
		took = w.last.took
	}
	return took
}

// put writes the record, if it is time. Final: no other write follows, so it does not wait after one that has failed.
func (w *Recorder) put(ctx context.Context, final bool) {
	last := &w.last
	began := w.clock.Now()
	text, longest, err := w.text()
	lasts := recordFor
	if longest > 0 { // the process may die just before the record is written the next time
		lasts += min(longest+recordEach, mostLonger)
	}
	now := w.clock.Now()
	last.took = began.Until(now)
	broke := w.of.Broke()
	gone := w.gone.Swap(false) || broke != last.broke
	enough := text == last.text && now.Add(lasts-recordEach) <= last.until // otherwise a lease has become longer
	waits := enough
	if last.failed {
		waits = !final
	}
	if err != nil || now < last.again && !gone && waits {
		return
	}
	last.text, last.again, last.until, last.broke = text, now.Add(recordEach), now.Add(lasts), broke
	written := fmt.Sprintf(`{"for":%d,%s`, lasts.Milliseconds(), text[1:]) // it alone is no change
	refused, err := w.of.Write(ctx, written, lasts, gone)
	if last.failed = err != nil; !refused {
		if last.failed {
			last.again = now.Add(Lasting)
		} else {
			last.locks = longest > 0
		}
		return
	}
	last.again = now.Add(Denied)
	if !last.refused {
		last.refused = true
		w.of.Refused(err)
	}
}

// short returns the first locks that fit into a record.
func short(locks []Lock) ([]Lock, error) {
	for {
		text, err := json.Marshal(locks)
		if err != nil || len(text) <= lockBytes {
			return locks, err
		}
		locks = locks[:len(locks)/2]
	}
}

// text returns the present content of the record, and for how long the longest lease that it lists may last; 0: it lists no lock.
// Not all locks with long paths fit.
func (w *Recorder) text() (is string, longest time.Duration, err error) {
	r := Record{Host: w.own.Host, PID: w.own.PID, Name: w.own.Name, Waits: w.of.Waits(), Locks: Upper(w.of.Locks())}
	if r.Locks, err = short(r.Locks); err != nil {
		return "", 0, err
	}
	for _, lock := range r.Locks {
		longest = max(longest, lock.Lasts, 1) // a lock may only be waited for
	}
	text, err := json.Marshal(r)
	for len(text) > MostBytes && len(r.Waits) > 0 {
		r.Waits = fewer(r.Waits)
		text, err = json.Marshal(r)
	}
	return string(text), longest, err
}

// fewer shortens waiting calls for a record: first the lists of what their owners hold, to some 16 paths each, then the list of
// the calls. Other processes find no cycle over what is left out.
func fewer(waits []Wait) []Wait {
	longest := 0
	for _, w := range waits {
		longest = max(longest, len(w.Holds))
	}
	if longest <= 16 && (len(waits) > 1 || longest <= 1) {
		return waits[:len(waits)/2]
	}
	for i := range waits {
		waits[i].Holds = waits[i].Holds[:min(len(waits[i].Holds), longest/2)]
	}
	return waits
}

// Wait returns when the looks under way at Close are over.
func (w *Recorder) Wait() { w.looks.Wait() }

// Close ends the look that is under way. No other follows. The record may be written once more; see Wait.
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
	switch { // if its locks were released, the record need not last for their leases
	case w.writes: // it may list them, and the write may be cut short
		w.more = true
	case w.last.locks:
		w.looks.Go(func() { w.write(context.Background()) })
	}
}
