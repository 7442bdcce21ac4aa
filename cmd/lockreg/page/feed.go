package page

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

const (
	maxStreams = 64
	maxQueued  = 1 << 20 // bytes that a stream may be behind, by more than one pass; past that it gets all anew
	heartbeat  = 15 * time.Second
	piece      = 32 << 10 // written at a time, each with its own deadline

	passLimit      = time.Hour        // a million keys take ten seconds, a million held locks two minutes
	tellFirst      = tellEach / 5     // when a pass publishes what it has found so far: few locks are told sooner than many
	tellEach       = time.Second      // and how often from then on
	betweenCycles  = 2 * time.Second  // of asking for deadlocks, which exist for a second before they are recorded
	betweenRecords = 10 * time.Second // of passes while nobody looks, if there are any
)

var (
	errFull   = errors.New("too many streams")
	errClosed = errors.New("closed")
)

// feed asks the sources while there are streams, or always, and sends them the changes.
type feed struct {
	prefixes []prefix
	interval time.Duration
	record   bool // ask while there are no streams, too
	log      *slog.Logger

	mu      sync.Mutex
	streams map[*stream]struct{}
	now     *state             // after the last pass; nil: no pass since the poller began
	history history            // stays without browsers
	past    past               // the past when the last poller ended
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
	warned bool // something in the queue, or sent, has told of a silence
}

func newFeed() *feed {
	return &feed{
		interval: 500 * time.Millisecond, log: slog.Default(),
		streams: map[*stream]struct{}{}, closing: make(chan struct{}),
	}
}

// start starts the poller, unless there is one. With the mutex.
func (f *feed) start() {
	if f.asked != nil {
		return
	}
	asked := make(chan struct{})
	f.asked = asked
	go f.poll(asked)
	f.watchers.Go(func() { f.watch(asked) })
}

// records begins to ask although nobody looks, if that is wanted.
func (f *feed) records() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.record && len(f.prefixes) > 0 {
		f.start()
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
	f.start()
	if len(f.streams) == 1 && f.skip != nil {
		f.skip() // a pause that is for nobody
	}
	return s, f.history.all(), nil
}

func (f *feed) unsubscribe(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
	if len(f.streams) == 0 && !f.record {
		f.interrupt()
	}
}

// watched reports whether somebody looks.
func (f *feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streams) > 0
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
	if closed || len(f.streams) == 0 && !f.record {
		// An old state is not shown to a browser that connects later.
		if f.now != nil {
			f.past = f.now.past
		}
		f.history.pause(time.Now(), nobody)
		f.now, f.asked, f.stop, f.skip = nil, nil, nil, nil
		close(asked)
		return nil, false
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	return ctx, true
}

// poll asks the sources again and again, until no browser is connected.
func (f *feed) poll(asked chan struct{}) {
	var cycles time.Time
	rest := betweenCycles
	for {
		ctx, ok := f.begin(asked)
		if !ok {
			return
		}
		began := time.Now()
		due := began.Sub(cycles) >= rest && f.watched() // else they would be for nobody
		next := f.pass(ctx, due)
		if due { // it goes through all keys, too: long ones are rare
			cycles, rest = began, min(max(betweenCycles, 40*(time.Since(began)-next.took)), 15*betweenCycles)
		}
		if ctx.Err() == nil {
			f.publish(next)
		}
		f.pause(ctx, time.Since(began))
	}
}

// pauseAfter returns the pause after a pass. A longer pass is followed by a longer pause, at first so that changes still show
// within a second, then as long as the pass itself.
func pauseAfter(took, interval time.Duration) time.Duration {
	return max(interval, min(19*took, interval*3/2), took)
}

// pause waits after a pass that took so long. Whoever comes while it is one for nobody ends it: both have the mutex.
func (f *feed) pause(ctx context.Context, took time.Duration) {
	f.mu.Lock()
	d := pauseAfter(took, f.interval)
	if len(f.streams) == 0 {
		d = max(betweenRecords-took, took)
	}
	ctx, skip := context.WithTimeout(ctx, d)
	defer skip()
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
		last = newState(f.prefixes, f.past)
	}
	watched := len(f.streams) > 0
	f.mu.Unlock()

	began := time.Now()
	next := last.after()
	if !watched { // nobody asks for deadlocks, so old ones are not told to a browser that comes
		next.found(make([][]observe.Deadlock, len(f.prefixes)))
	}
	last, errs := f.gather(ctx, next, last)
	trouble := f.trouble(errs)
	if !slices.Contains(errs, nil) {
		return last.failed(trouble)
	}
	next.at = time.Now()
	next.past.end(f.prefixes, last.entries, next.entries, next.at)
	next.took = next.at.Sub(began)
	next.partly, next.cyclesTrouble = trouble, last.cyclesTrouble
	next.trouble = cmp.Or(trouble, next.cyclesTrouble)
	if !cycles {
		return next
	}
	if next.took >= tellEach { // deadlocks take about as long
		f.publish(next)
		next = next.copied()
	}
	found, errs := f.deadlocks(ctx)
	for i, err := range errs {
		if err != nil {
			found[i] = next.cycles[i]
		}
	}
	next.found(found)
	next.cyclesTrouble = f.trouble(errs)
	next.trouble = cmp.Or(next.partly, next.cyclesTrouble)
	return next
}

// gather adds all locks to next, and publishes what there is meanwhile, also while none is found for long. It returns the state
// that was published last, and what has failed of each prefix: there what was known before is kept.
func (f *feed) gather(ctx context.Context, next, last *state) (*state, []error) {
	ctx, cancel := context.WithCancel(ctx)
	locks := make(chan found)
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	reads.Go(func() {
		defer close(locks)
		for one := range f.locks(ctx) {
			select {
			case locks <- one:
			case <-ctx.Done():
				return
			}
		}
	})
	each := time.NewTicker(tellFirst)
	defer each.Stop()
	told, errs := 0, make([]error, len(f.prefixes))
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
				return last, f.kept(ctx, next, last, errs)
			case lock.err != nil:
				errs[lock.prefix] = lock.err
			default:
				next.add(lock.prefix, lock.info, time.Now(), last)
			}
		}
	}
}

// kept has next keep what was known of the prefixes that have failed. It returns their errors: all have failed if the context
// has ended.
func (f *feed) kept(ctx context.Context, next, last *state, errs []error) []error {
	for i := range errs {
		errs[i] = cmp.Or(errs[i], ctx.Err())
		if errs[i] != nil {
			next.keep(i, last)
		}
	}
	return errs
}

// publish makes a state the present one, and queues the changes for every stream.
func (f *feed) publish(next *state) {
	f.mu.Lock()
	last := f.now
	f.mu.Unlock()
	changes := next.since(last) // only this goroutine sets f.now

	f.queue(next, changes)
	if next.trouble != "" && (last == nil || last.trouble != next.trouble) {
		f.log.Warn("cannot show all locks", "error", next.trouble) // without the mutex, which all requests need: a log may block
	}
}

// queue makes a state the present one, and queues the changes to the last one for every stream.
func (f *feed) queue(next *state, changes []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = next
	switch {
	case next.noPass:
		f.history.pause(time.Now(), noAnswer)
	case !next.at.IsZero() && next.soFar == 0:
		f.history.add(next.sample())
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
		s.queue, s.queued, s.stale = nil, 0, false // a silence that was told of may be over
		now, silent, tell := f.now, f.silent, s.warned || f.silent.Since != 0
		s.warned = tell
		f.mu.Unlock()
		if tell {
			return bytes.Join([][]byte{now.all(), silent.event()}, nil)
		}
		return now.all()
	}
	defer f.mu.Unlock()
	queue := s.queue
	s.queue, s.queued = nil, 0
	return bytes.Join(queue, nil)
}

// find returns what the last pass found about a lock, and when it looked: never, if nobody looks or no pass is over.
func (f *feed) find(k key) (inspect.Lock, time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil || len(f.streams) == 0 {
		return inspect.Lock{}, time.Time{}, false
	}
	if e := f.now.entries[k]; e != nil {
		return e.info, e.at, true
	}
	return inspect.Lock{}, f.now.at, false
}

// labelOf returns who a holder is, for people, by what the last pass found.
func (f *feed) labelOf(k key, holder string) string {
	info, _, _ := f.find(k)
	for _, h := range info.Holders {
		if h.Holder == holder {
			return view.Who(h)
		}
	}
	return view.Who(inspect.Holder{Holder: holder, Since: protocol.ParseName(holder).Since}) // else Go's is taken for Java's
}
