package lockregistry

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// record is what a registry keeps in Redis about itself: a string with JSON, see docs/wire-format.md.
type record struct {
	Host  string        `json:"host"`
	PID   int           `json:"pid"`
	Name  string        `json:"name,omitempty"`
	Waits []waitsRecord `json:"waits,omitempty"`
}

// waitsRecord is a call that has waited for a second, and whose owner holds something.
type waitsRecord struct {
	Path  string   `json:"path"`
	Kind  string   `json:"kind"`
	Owner string   `json:"owner"`
	Since int64    `json:"since"` // microseconds since 1970
	Holds []string `json:"holds"` // paths
}

// recordKey is where the record of a registry is.
func recordKey(prefix, registry string) string { return prefix + ":{" + registry + "}:registry" }

// parseRecord reads the record of a registry. One that is no record is nobody's.
func parseRecord(registry, text string) (r record, l Label) {
	if text == tooLong {
		return record{}, Label{Registry: registry, Name: tooLong}
	}
	if json.Unmarshal([]byte(text), &r) != nil {
		return record{}, Label{}
	}
	if len(r.Host) > mostHost {
		r.Host = tooLong
	}
	if len(r.Name) > longestName {
		r.Name = tooLong
	}
	return r, Label{Registry: registry, Host: r.Host, PID: r.PID, Name: r.Name}
}

// waits are those of this registry's calls that its record tells of. When one ends the record is written anew.
func (r *Registry) waits() (all []waitsRecord) {
	for _, w := range r.lastingWaits() {
		if waiting.Record(w.call) {
			all = append(all, w.waitsRecord)
		}
	}
	return all
}

// recording writes the record, for as long as the registry holds a lock, or waits for one, for longer than a second. Locks
// that are released sooner cost it nothing but a look now and then whether they are: no lock has a timer of its own.
//
//	idle ──a hold is asked for──▶ watching ──nothing is held or waited for, and nothing was asked for since the last look──▶ idle
//
// While it watches it looks each second, and writes when something has lasted: anew when the record says something else now,
// and each 20 s, or at once when a connection or a key is gone: the server may have come back empty. Nobody waits for that.
type recording struct {
	reg      *Registry
	watching atomic.Bool
	doubted  atomic.Bool // a key or the connection for wake-ups was gone: the server may have restarted, without the record

	mu     sync.Mutex
	timer  *time.Timer // nil until it watches for the first time
	cancel func()      // ends the look that is under way; nil: none is
	looks  sync.WaitGroup
	closed bool

	// Of the looks, one of which is under way at a time.
	seen   uint64        // the newest number at the last look
	chases clock.Instant // when to look for deadlocks next, after an error

	writes bool // somebody writes the record; guarded by mu,
	more   bool // as is that it may have changed since

	// Of the one who writes.
	said    string        // the record as it was written last
	failed  bool          // that failed
	broke   clock.Instant // what the lane said then of its last connection that broke
	again   clock.Instant // when to write, although it says nothing new, or the last attempt has failed
	refused bool          // it was logged that the user may not write it
}

const (
	lookEach     = time.Second // and so long a hold or a wait must have lasted
	lookCosts    = 100         // a look may take this part of the time
	recordEach   = 20 * time.Second
	recordFor    = "60000"          // milliseconds: as long as the locks of a process that has crashed, by default
	recordDenied = 10 * time.Minute // a user without permission leaves a line in the server's log at each attempt
	recordLimit  = time.Second
	mostWaits    = 100
)

// asked is called whenever a hold has drawn its number.
func (w *recording) asked() {
	if !w.watching.Load() {
		w.watch(lookEach)
	}
}

// watch sees to it that there is a look.
func (w *recording) watch(after time.Duration) {
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
func (w *recording) look() {
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

	r := w.reg
	began, newest := r.clock.Now(), r.holds.Load()
	used, lasting := r.inUse(began)
	took := began.Until(r.clock.Now())
	if lasting {
		w.write(ctx)
		w.chase(ctx)
	}
	if used || newest != w.seen {
		w.seen = newest
		w.watch(max(lookEach, lookCosts*took))
		return
	}
	// A call draws its number first, and then looks whether this watches: so one of the two sees the other one.
	w.watching.Store(false)
	if r.holds.Load() != newest {
		w.watch(lookEach)
	}
}

// inUse tells whether the registry holds a lock or waits for one, and whether any of that has lasted a second.
func (r *Registry) inUse(now clock.Instant) (used, lasting bool) {
	for l := range r.cache.all() {
		if l.anchor().pins.Load() <= 0 {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.mu.Lock()
			if h.fresh() {
				used, lasting = true, h.since.Until(now) >= lookEach
			}
			h.mu.Unlock()
		}
		if p := l.pursuit.Load(); p != nil && p.call {
			used, lasting = true, lasting || p.begun.Until(now) >= lookEach
		}
		if lasting {
			break
		}
	}
	return used, lasting
}

// rewrite writes the record anew, in the background, since a wait that it tells of has ended.
func (w *recording) rewrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.looks.Go(func() { w.write(context.Background()) })
	}
}

// write writes the record, or leaves it to somebody who does so already. Nobody waits for them with a mutex: in a test with fake
// time that would keep the time from going on.
func (w *recording) write(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.more = true; w.more && !w.writes; {
		w.writes, w.more = true, false
		w.mu.Unlock()
		w.put(ctx)
		w.mu.Lock()
		w.writes = false
	}
}

// put writes the record, if it is time.
func (w *recording) put(ctx context.Context) {
	r := w.reg
	own := r.inspection.label
	waits := r.waits()
	text, err := json.Marshal(record{own.Host, own.PID, own.Name, waits})
	for len(text) > mostRecord && len(waits) > 0 { // of long paths: a longer record is not read
		waits = waits[:len(waits)/2]
		text, err = json.Marshal(record{own.Host, own.PID, own.Name, waits})
	}
	now := r.clock.Now()
	key := recordKey(r.prefix, own.Registry)
	broke := clock.Instant(r.transport.lane(key).last.Load())
	doubted := w.doubted.Swap(false) || broke != w.broke
	if err != nil || now < w.again && !doubted && (w.failed || string(text) == w.said) {
		return
	}
	w.said, w.again, w.broke = string(text), now.Add(recordEach), broke
	p := patience{ctx: ctx, limit: r.transport.lane(key).trip().plus(min(recordLimit, r.limit))}
	r.transport.sendEach(&p, []string{key}, func(ctx context.Context, way rueidis.CoreClient, _ []int) []rueidis.RedisResult {
		return []rueidis.RedisResult{way.Do(ctx, way.B().Arbitrary("SET").Keys(key).Args(string(text), "PX", recordFor).Build())}
	}, func(_ int, _ rueidis.RedisResult, failure error) { err = failure })
	if w.failed = err != nil; !forbidden(err) {
		if w.failed {
			w.again = now.Add(lookEach)
		}
		return
	}
	w.again = now.Add(recordDenied)
	if !w.refused {
		w.refused = true
		r.dispatch.Log(slog.LevelInfo, "the server refuses the record of this registry's host and process",
			slog.String("key", key), slog.Any("error", err))
	}
}

// close ends the look that is under way. No other one follows.
func (w *recording) close() {
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
