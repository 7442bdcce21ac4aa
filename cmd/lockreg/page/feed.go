package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	maxStreams = 64
	maxQueued  = 1 << 20 // bytes that a stream may be behind, by more than one pass; past that it gets all anew
	heartbeat  = 15 * time.Second
	piece      = 32 << 10 // written at a time, each with its own deadline

	passLimit      = time.Hour       // a million keys take ten seconds, a million held locks two minutes
	tellFirst      = tellEach / 5    // when a pass publishes what it has found so far: few locks are told sooner than many
	tellEach       = time.Second     // and how often from then on
	betweenCycles  = 2 * time.Second // of asking for deadlocks, which exist for a second before they are recorded
	betweenSamples = time.Second
	maxSamples     = 600
)

var (
	errFull   = errors.New("too many streams")
	errClosed = errors.New("closed")
)

// feed asks the source while there are streams, and sends them the changes.
type feed struct {
	source   Source
	interval time.Duration
	log      *slog.Logger

	mu      sync.Mutex
	streams map[*stream]struct{}
	now     *state             // after the last pass; nil: no pass since a browser connected
	history []sample           // stays without browsers
	past    past               // the past when the last browser left
	asked   chan struct{}      // closed when the poller has ended; nil: there is none
	stop    context.CancelFunc // ends the poller's pass
	skip    context.CancelFunc // ends the poller's pause
	closing chan struct{}      // closed by close
	silent  silence            // what does not answer

	client rueidis.Client                            // of the source; nil: not known
	ask    func(ctx context.Context) map[string]bool // see asker

	watchers sync.WaitGroup
}

// stream is one connected browser. The feed's mutex guards its fields.
type stream struct {
	wake   chan struct{} // one place: there is something to send
	queue  [][]byte
	queued int
	stale  bool // needs all anew
}

// sample is a point of the charts: when (Unix ms), locks held, waiters, oldest wait (ms), grants and hand-overs so far.
type sample [6]int64

func newFeed(source Source) *feed {
	return &feed{
		source: source, interval: 500 * time.Millisecond, log: slog.Default(),
		streams: map[*stream]struct{}{}, closing: make(chan struct{}), history: []sample{},
	}
}

// subscribe adds a stream, and returns it with the history so far.
func (f *feed) subscribe() (*stream, []sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closing:
		return nil, nil, errClosed
	default:
	}
	if len(f.streams) >= maxStreams {
		return nil, nil, errFull
	}
	s := &stream{wake: make(chan struct{}, 1), stale: true}
	f.streams[s] = struct{}{}
	if f.now != nil {
		s.wake <- struct{}{}
	}
	if f.asked == nil {
		f.asked = make(chan struct{})
		go f.poll(f.asked)
		asked := f.asked
		f.watchers.Go(func() { f.watch(asked) })
	}
	return s, append([]sample{}, f.history...), nil
}

func (f *feed) unsubscribe(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
	if len(f.streams) == 0 {
		f.interrupt()
	}
}

// interrupt ends the pass or the pause that is under way. With the mutex.
func (f *feed) interrupt() {
	if f.stop != nil {
		f.stop()
	}
}

// hurry begins the next pass at once, unless one is under way.
func (f *feed) hurry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.skip != nil {
		f.skip()
	}
}

func (f *feed) close() {
	f.mu.Lock()
	select {
	case <-f.closing:
	default:
		close(f.closing)
	}
	f.interrupt()
	asked := f.asked
	f.mu.Unlock()
	if asked != nil {
		<-asked
	}
	f.watchers.Wait()
}

// begin returns the context of the next pass and the pause after it; false when nobody looks any more. Then the poller has
// ended: a stream that comes later starts another one, as both happen under the mutex.
func (f *feed) begin(asked chan struct{}) (context.Context, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	closed := false
	select {
	case <-f.closing:
		closed = true
	default:
	}
	f.interrupt() // the last pass's, for its resources
	if closed || len(f.streams) == 0 {
		// An old state is not shown to a browser that connects later.
		if f.now != nil {
			f.past = f.now.past
		}
		f.now, f.asked, f.stop, f.skip = nil, nil, nil, nil
		close(asked)
		return nil, false
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	return ctx, true
}

// poll asks the source again and again, until no browser is connected.
func (f *feed) poll(asked chan struct{}) {
	var cycles time.Time
	rest := betweenCycles
	for {
		ctx, ok := f.begin(asked)
		if !ok {
			return
		}
		began := time.Now()
		due := began.Sub(cycles) >= rest
		next := f.pass(ctx, due)
		if due { // it goes through all keys, too: long ones are rare
			cycles, rest = began, min(max(betweenCycles, 40*(time.Since(began)-next.took)), 15*betweenCycles)
		}
		if ctx.Err() == nil {
			f.publish(next)
		}
		f.pause(ctx, pauseAfter(time.Since(began), f.interval))
	}
}

// pauseAfter returns the pause after a pass. A longer pass is followed by a longer pause, at first so that changes still show
// within a second, then as long as the pass itself.
func pauseAfter(took, interval time.Duration) time.Duration {
	return max(interval, min(19*took, interval*3/2), took)
}

func (f *feed) pause(ctx context.Context, d time.Duration) {
	ctx, skip := context.WithTimeout(ctx, d)
	defer skip()
	f.mu.Lock()
	f.skip = skip
	f.mu.Unlock()
	<-ctx.Done()
}

// pass asks for everything once, and publishes what there is meanwhile when that takes long. What fails leaves the state as it
// was, with the error.
func (f *feed) pass(ctx context.Context, cycles bool) *state {
	ctx, cancel := context.WithTimeout(ctx, passLimit)
	defer cancel()
	f.mu.Lock()
	last := f.now
	if last == nil {
		last = &state{entries: map[string]*entry{}, past: f.past, deadlocks: json.RawMessage("[]")}
	}
	f.mu.Unlock()

	began := time.Now()
	next := &state{entries: make(map[string]*entry, len(last.entries)), past: last.past, deadlocks: last.deadlocks}
	last, err := f.gather(ctx, next, last)
	if err != nil {
		return last.failed(err)
	}
	next.at = time.Now()
	next.past.end(last.entries, next.entries, next.at)
	next.took = next.at.Sub(began)
	next.trouble, next.cyclesTrouble = last.cyclesTrouble, last.cyclesTrouble
	if !cycles {
		return next
	}
	if next.took >= tellEach { // deadlocks take about as long
		f.publish(next)
		next = next.copied()
	}
	found, err := f.source.Deadlocks(ctx)
	next.trouble = ""
	if err != nil {
		next.trouble = err.Error()
	} else {
		next.deadlocks = ordered(view.OfDeadlocks(found))
	}
	next.cyclesTrouble = next.trouble
	return next
}

// found is a lock, or why there are no more.
type found struct {
	info inspect.Lock
	err  error
}

// gather adds all locks to next, and publishes what there is meanwhile, also while none is found for long. It returns the state
// that was published last.
func (f *feed) gather(ctx context.Context, next, last *state) (*state, error) {
	ctx, cancel := context.WithCancel(ctx)
	locks := make(chan found)
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	reads.Go(func() {
		defer close(locks)
		for info, err := range f.source.Locks(ctx) {
			select {
			case locks <- found{info, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	each := time.NewTicker(tellFirst)
	defer each.Stop()
	told := 0
	for {
		select {
		case <-each.C:
			if len(next.entries) == told {
				continue
			}
			if told == 0 {
				each.Reset(tellEach)
			}
			told = len(next.entries)
			last = last.underWay(next)
			f.publish(last)
		case lock, more := <-locks:
			switch {
			case !more:
				return last, ctx.Err()
			case lock.err != nil:
				return last, lock.err
			}
			next.add(lock.info, time.Now(), last)
		}
	}
}

// publish makes a state the present one, and queues the changes for every stream.
func (f *feed) publish(next *state) {
	f.mu.Lock()
	last := f.now
	f.mu.Unlock()
	changes := next.since(last) // only this goroutine sets f.now

	f.mu.Lock()
	defer f.mu.Unlock()
	if next.trouble != "" && (last == nil || last.trouble != next.trouble) {
		f.log.Warn("cannot show all locks", "error", next.trouble)
	}
	f.now = next
	if n := len(f.history); !next.at.IsZero() && (n == 0 || next.at.UnixMilli()-f.history[n-1][0] >= betweenSamples.Milliseconds()) {
		if n == maxSamples {
			f.history = append(f.history[:0:0], f.history[1:]...)
		}
		f.history = append(f.history, next.sample())
	}
	for s := range f.streams {
		switch {
		case s.stale:
		case s.queued > 0 && s.queued+len(changes) > maxQueued: // a stream that keeps up gets them, however long they are
			s.queue, s.queued, s.stale = nil, 0, true
		default:
			s.queue = append(s.queue, changes)
			s.queued += len(changes)
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// take returns what a stream must send now.
func (f *feed) take(s *stream) []byte {
	f.mu.Lock()
	if s.stale && f.now != nil {
		s.stale = false
		now, silent := f.now, f.silent
		f.mu.Unlock()
		if silent.Since != 0 {
			return bytes.Join([][]byte{now.all(), silent.event()}, nil)
		}
		return now.all()
	}
	defer f.mu.Unlock()
	queue := s.queue
	s.queue, s.queued = nil, 0
	return bytes.Join(queue, nil)
}

// find returns what the last pass found about a path, and when.
func (f *feed) find(path string) (inspect.Lock, time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil || f.now.entries[path] == nil {
		return inspect.Lock{}, time.Time{}, false
	}
	e := f.now.entries[path]
	return e.info, e.at, true
}

// labelOf returns who a holder is, for people, by what the last pass found.
func (f *feed) labelOf(path, holder string) string {
	info, _, _ := f.find(path)
	for _, h := range info.Holders {
		if h.Holder == holder {
			return view.Who(h)
		}
	}
	return view.Who(inspect.Holder{Holder: holder, Since: protocol.ParseName(holder).Since}) // else Go's is taken for Java's
}

// events is a stream, until the browser goes, the right to look ends, or the handler is closed.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	// Another site's page cannot read it, but it could take all the places.
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		h.refuse(w, r, http.StatusForbidden, "not from another site")
		return
	}
	if !h.require(w, r, look) {
		return
	}
	var end <-chan time.Time
	var over <-chan struct{}
	if one := h.gate.session(r); one != nil {
		if !h.gate.sessions.join(one) {
			w.Header().Set("Retry-After", "5")
			h.refuse(w, r, http.StatusServiceUnavailable, "too many streams of this session")
			return
		}
		defer h.gate.sessions.part(one)
		timer := time.NewTimer(time.Until(one.end))
		defer timer.Stop()
		end, over = timer.C, one.over
	}
	s, history, err := h.feed.subscribe()
	if err != nil {
		w.Header().Set("Retry-After", "5")
		h.refuse(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer h.feed.unsubscribe(s)

	send := h.sender(w)
	var hello bytes.Buffer
	event(&hello, "hello", struct {
		Title   string   `json:"title"`
		Release string   `json:"release"` // yes, no, or login
		SignIn  bool     `json:"signedIn"`
		History []sample `json:"history"`
	}{h.title, h.releaseState(r), end != nil, history})
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for ok := send(hello.Bytes()); ok; {
		select {
		case <-s.wake:
			ok = send(h.feed.take(s))
		case <-beat.C:
			ok = send([]byte(":\n\n"))
		case <-end:
			return
		case <-over:
			return
		case <-h.feed.closing:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sender begins an answer that is a stream, and returns what sends on it; false: it is over.
func (h *Handler) sender(w http.ResponseWriter) func(text []byte) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass it on at once
	control := http.NewResponseController(w)
	return func(text []byte) bool {
		for len(text) > 0 {
			if err := control.SetWriteDeadline(time.Now().Add(h.patience)); err != nil {
				h.log.Error("cannot stream: no deadline for writes", "error", err)
				return false
			}
			n := min(piece, len(text))
			if _, err := w.Write(text[:n]); err != nil {
				return false
			}
			text = text[n:]
		}
		// Until the next one there is none: with HTTP/2 it would end the stream.
		return control.Flush() == nil && control.SetWriteDeadline(time.Time{}) == nil
	}
}

func (h *Handler) releaseState(r *http.Request) string {
	switch {
	case h.rights(r) >= release:
		return "yes"
	case h.release == nil && h.gate.release != nil:
		return "login"
	default:
		return "no"
	}
}
