package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

const (
	// Rows go in pieces that a browser takes in within a few milliseconds.
	rowsAtOnce = 100

	// A lease's end is known as exactly as the answer was quick. Smaller differences are none.
	leaseBlur = 250 * time.Millisecond
)

// state is the result of a pass. It does not change once it is published.
type state struct {
	at            time.Time // the end of the pass; zero: none has succeeded
	took          time.Duration
	prefixes      []prefix
	entries       map[key]*entry
	sums          []sums // of each prefix
	past          past
	cycles        [][]observe.Deadlock // of each prefix, as of the last time when they were asked for with success
	deadlocks     json.RawMessage      // these, ordered
	trouble       string               // why the last pass failed, or something of it, or deadlocks cannot be shown
	partly        string               // the former, while some of it succeeded
	noPass        bool                 // nothing could be read: the rest is of a pass before
	cyclesTrouble string               // the latter, until they are asked for again
	soFar         int                  // locks that the pass which is under way has found so far; 0: it is over

	once  sync.Once
	whole []byte // see all
}

// sums are about all locks of a prefix.
type sums struct {
	held, waiters int
	oldest        time.Duration // the longest wait
	waits         waits
}

// entry is a lock, as it was at a time. The version is another one after each change.
type entry struct {
	info    inspect.Lock
	at      time.Time
	version int
}

// row is a lock in the list.
type row struct {
	Prefix  string       `json:"prefix,omitempty"`
	Path    string       `json:"path"`
	ID      string       `json:"id"` // both, see prefix.id
	Version int          `json:"version"`
	Kind    string       `json:"kind"`
	Permits int          `json:"permits"` // of a semaphore: how many there are
	Holders int          `json:"holders"` // see processes
	Holder  *view.Holder `json:"holder"`  // one of them, see shown
	Waiters int          `json:"waiters"` // see view.Waiting
	Oldest  *time.Time   `json:"oldest"`  // since when the first to come of those listed waits
	At      int64        `json:"at"`      // when the lease was read, Unix ms
	Endless bool         `json:"endless"` // one of the leases has no end
}

// newState is a state that knows of no lock yet.
func newState(prefixes []prefix, before past) *state {
	s := &state{prefixes: prefixes, entries: map[key]*entry{}, sums: make([]sums, len(prefixes)), past: before}
	s.past.counts = make([]counts, len(prefixes))
	copy(s.past.counts, before.counts)
	s.found(make([][]observe.Deadlock, len(prefixes)))
	return s
}

// after is a state that knows of no lock yet, after another one.
func (s *state) after() *state {
	next := newState(s.prefixes, s.past)
	next.entries = make(map[key]*entry, len(s.entries))
	next.cycles, next.deadlocks = s.cycles, s.deadlocks
	return next
}

// found notes the deadlocks of each prefix.
func (s *state) found(cycles [][]observe.Deadlock) {
	s.cycles, s.deadlocks = cycles, ordered(s.prefixes, cycles)
}

// add adds a lock of a prefix, by its number.
func (s *state) add(of int, info inspect.Lock, at time.Time, last *state) {
	// They come in no order. The oldest holder is shown first.
	slices.SortFunc(info.Holders, func(a, b inspect.Holder) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Holder, b.Holder))
	})
	e := &entry{info: info, at: at}
	before := last.entries[key{of, info.Path}]
	if !last.at.IsZero() { // else nothing is known of the time before
		s.past.counts[of].count(before, e)
	}
	if before != nil {
		e.remember(before)
		s.past.lose(s.prefixes[of], before, e, at)
		e.version = before.version
		if !e.same(before) {
			e.version++
		}
	}
	s.entries[key{of, info.Path}] = e
	sums := &s.sums[of]
	if e.held() {
		sums.held++
	}
	sums.waiters += view.Waiting(info)
	for since := range view.WaitsSince(info) {
		sums.oldest = max(sums.oldest, at.Sub(since))
		sums.waits.add(at.Sub(since))
	}
}

// keep keeps what the last state knew of a prefix, of which not all could be read. What was found is newer.
func (s *state) keep(of int, last *state) {
	for k, e := range last.entries {
		if k.prefix == of && s.entries[k] == nil {
			s.entries[k] = e
		}
	}
	s.sums[of] = last.sums[of]
}

// oldest is since when the first of them waits.
func (e *entry) oldest() (oldest time.Time) {
	for since := range view.WaitsSince(e.info) {
		if oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return oldest
}

// same reports whether nothing has changed. Leases that run down do not count, unless another holder is shown for it.
func (e *entry) same(before *entry) bool {
	a, b := e.info, before.info
	return a.Key == b.Key && a.Kind == b.Kind && a.Layout == b.Layout && a.Permits == b.Permits &&
		a.HolderCount == b.HolderCount && e.shown().Holder == before.shown().Holder && a.WaiterCount == b.WaiterCount &&
		slices.Equal(a.Waiters, b.Waiters) && slices.Equal(a.TooLong, b.TooLong) &&
		slices.EqualFunc(a.Holders, b.Holders, func(x, y inspect.Holder) bool {
			moved := e.at.Add(x.Lease).Sub(before.at.Add(y.Lease)).Abs()
			if (x.Lease < 0) != (y.Lease < 0) || x.Lease >= 0 && moved > leaseBlur {
				return false
			}
			if (x.Silent > 0) != (y.Silent > 0) {
				return false
			}
			x.Lease, y.Lease, x.Silent, y.Silent = 0, 0, 0, 0
			return x == y
		})
}

// shown is the holder that the row of a lock has: the most overdue one, else one without a record, else the first. It is
// nobody if there is none.
func (e *entry) shown() (h inspect.Holder) {
	for i, other := range e.info.Holders {
		worse := cmp.Or(cmp.Compare(other.Overdue(), h.Overdue()), cmp.Compare(other.Silent, h.Silent)) > 0
		if i == 0 || worse || h.Overdue() == 0 && h.Silent == 0 && view.Unrecorded(other) && !view.Unrecorded(h) {
			h = other
		}
	}
	return h
}

func (e *entry) row(of prefix) row {
	r := row{
		Prefix: printable.Valid(of.name), Path: printable.Valid(e.info.Path), ID: of.id(e.info.Path), Version: e.version,
		Kind:    string(e.info.Kind),
		Permits: e.info.Permits, Holders: e.processes(), Waiters: view.Waiting(e.info),
		At: e.at.UnixMilli(),
	}
	one := e.info
	one.Holders, one.Waiters = nil, nil
	if len(e.info.Holders) > 0 {
		one.Holders = []inspect.Holder{e.shown()}
	}
	for _, holder := range view.OfLock(one).Holders {
		r.Holder = &holder
	}
	r.Oldest = view.OfTime(e.oldest())
	r.Endless = slices.ContainsFunc(e.info.Holders, func(h inspect.Holder) bool { return h.Lease < 0 })
	return r
}

// processes is how many holders a lock has, of which each process that holds permits counts once. Those that are not listed
// count once each.
func (e *entry) processes() int {
	if e.info.Kind != observe.KindSemaphore {
		return e.info.HolderCount
	}
	type process struct {
		label observe.Label
		kept  bool // for a while after its release
	}
	seen := map[process]bool{}
	for _, h := range e.info.Holders {
		label := observe.Label{Host: h.Label.Host, PID: h.Label.PID, Name: h.Label.Name}
		if !h.Label.Known() {
			label = observe.Label{Registry: protocol.ParseName(h.Holder).Registry}
		}
		seen[process{label, h.Kept}] = true
	}
	return e.info.HolderCount - len(e.info.Holders) + len(seen)
}

// copied is a state that may be changed until it is published.
func (s *state) copied() *state {
	return &state{
		at: s.at, took: s.took, prefixes: s.prefixes, entries: s.entries, sums: s.sums, past: s.past, cycles: s.cycles,
		deadlocks: s.deadlocks, noPass: s.noPass,
		trouble: s.trouble, cyclesTrouble: s.cyclesTrouble,
	}
}

// failed is the state after a pass that failed.
func (s *state) failed(trouble string) *state {
	next := s.copied()
	next.trouble, next.noPass = trouble, true
	return next
}

// underWay returns the state during a pass that has found next so far: the rest is as before. The sums are from the last
// complete pass, if there was one.
func (s *state) underWay(next *state) *state {
	part := s.copied()
	part.entries = maps.Clone(s.entries)
	maps.Copy(part.entries, next.entries)
	part.soFar = len(next.entries)
	if part.at.IsZero() {
		part.sums = slices.Clone(next.sums) // next goes on adding to its own
	}
	return part
}

func (s *state) sample() sample {
	one := append(make(sample, 0, sampleHead+figures*len(s.sums)), s.at.UnixMilli(), known)
	for i, sums := range s.sums {
		counts := s.past.counts[i]
		one = append(one, int64(sums.held), int64(sums.waiters), sums.oldest.Milliseconds(), counts.grants, counts.handoffs)
	}
	return one
}

// summary is what a tick tells of a prefix.
type summary struct {
	Held     int   `json:"held"`
	Waiters  int   `json:"waiters"`
	Oldest   int64 `json:"oldest"`
	Waits    waits `json:"waits"`
	Grants   int64 `json:"grants"` // see counts
	Handoffs int64 `json:"handoffs"`
}

// tick writes the end of a state's events. Unchanged parts are left out; with a nil last nothing is.
func (s *state) tick(out *bytes.Buffer, last *state) {
	deadlocks, lost := s.deadlocks, append([]*loss{}, s.past.lost...)
	if last != nil && bytes.Equal(deadlocks, last.deadlocks) {
		deadlocks = nil
	}
	if last != nil && slices.Equal(lost, last.past.lost) {
		lost = nil
	}
	at := int64(0)
	if !s.at.IsZero() {
		at = s.at.UnixMilli()
	}
	of := make([]summary, len(s.sums))
	for i, sums := range s.sums {
		counts := s.past.counts[i]
		of[i] = summary{sums.held, sums.waiters, sums.oldest.Milliseconds(), sums.waits, counts.grants, counts.handoffs}
	}
	event(out, "tick", struct {
		At        int64           `json:"at"` // Unix ms; 0: no pass has succeeded
		Took      int64           `json:"took"`
		Locks     int             `json:"locks"`
		Of        []summary       `json:"of"`    // of each prefix
		Found     int             `json:"found"` // locks, by the pass that is under way; 0: it is over, or quick
		Failed    bool            `json:"failed"`
		Trouble   string          `json:"trouble"`
		Deadlocks json.RawMessage `json:"deadlocks,omitempty"`
		Lost      []*loss         `json:"lost,omitzero"`
	}{at, s.took.Milliseconds(), len(s.entries), of, s.soFar, s.noPass, s.trouble, deadlocks, lost})
}

// since returns the events for a stream that has the last state.
func (s *state) since(last *state) []byte {
	var out bytes.Buffer
	if last == nil {
		return s.all()
	}
	rows := []row{}
	for k, e := range s.entries {
		if before := last.entries[k]; before == nil || before.version != e.version {
			rows = append(rows, e.row(s.prefixes[k.prefix]))
		}
	}
	sendRows(&out, rows)
	gone := []string{}
	for k := range last.entries {
		if s.entries[k] == nil {
			gone = append(gone, s.prefixes[k.prefix].id(k.path))
		}
	}
	for chunk := range slices.Chunk(gone, rowsAtOnce) {
		event(&out, "gone", chunk)
	}
	s.tick(&out, last)
	return out.Bytes()
}

// all returns the events for a stream that knows nothing, or too little.
func (s *state) all() []byte {
	s.once.Do(func() {
		var out bytes.Buffer
		event(&out, "begin", struct{}{})
		rows := make([]row, 0, len(s.entries))
		for k, e := range s.entries {
			rows = append(rows, e.row(s.prefixes[k.prefix]))
		}
		sendRows(&out, rows)
		event(&out, "end", struct{}{})
		s.tick(&out, nil)
		s.whole = out.Bytes()
	})
	return s.whole
}

// ordered is deadlocks of each prefix as JSON, in an order that is the same whenever they are.
func ordered(prefixes []prefix, found [][]observe.Deadlock) json.RawMessage {
	texts := make([]json.RawMessage, 0, len(found))
	for i, some := range found {
		texts = append(texts, orderedOf(prefixes[i], view.OfDeadlocks(some))...)
	}
	slices.SortFunc(texts, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	return encode(texts)
}

func orderedOf(of prefix, found []view.Deadlock) []json.RawMessage {
	texts := make([]json.RawMessage, 0, len(found))
	for _, d := range found {
		first := 0
		for i := range d.Waits {
			if of.name == "" {
				break
			}
			d.Waits[i].ID = view.ID(of.name) + "/" + d.Waits[i].ID
			for k := range d.Waits[i].IDs {
				d.Waits[i].IDs[k] = view.ID(of.name) + "/" + d.Waits[i].IDs[k]
			}
		}
		for i := range d.Waits {
			if d.Waits[i].Path < d.Waits[first].Path {
				first = i
			}
		}
		d.Waits = slices.Concat(d.Waits[first:], d.Waits[:first])
		texts = append(texts, encode(struct {
			view.Deadlock

			Prefix string `json:"prefix,omitempty"`
		}{d, printable.Valid(of.name)}))
	}
	return texts
}

func encode(data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // all that is sent is made here, of what JSON has
	}
	return text
}

func sendRows(out *bytes.Buffer, rows []row) {
	for chunk := range slices.Chunk(rows, rowsAtOnce) {
		event(out, "rows", chunk)
	}
}

// event writes a server-sent event. The JSON has no line ends.
func event(out *bytes.Buffer, name string, data any) {
	out.WriteString("event: " + name + "\ndata: ")
	out.Write(encode(data))
	out.WriteString("\n\n")
}
