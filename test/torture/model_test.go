package torture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The model of a read-write lock with leases; a plain lock is one whose holds all write. A hold begins at some moment between
// the call that asked for it and its return. It ends at some moment between the last one at which its owner certainly believed
// in it and the return of unlocking. A hold that writes can begin only when nobody holds the lock, a hold that reads only when
// nobody writes, except for the writer itself, which may then give up writing and go on reading. So if a writer and another
// owner believe at the same moment, the model cannot explain the history. Calls that got nothing are no part of it: a lock may
// be denied for reasons that only the network knows.
//
// When the server restarts it forgets all holds, and their owners do not know. These may go on while others begin, and their
// process may let more of its owners share such a hold, or hand it over.
//
// Each hold also reads a counter, which a writer may increment: no hold may read less than an earlier one has seen.

type step struct {
	kind    kind
	hold    int
	reads   bool
	under   int // the write hold that the same owner has already; 0: none
	process int
	counter uint64 // at the beginning: as read after it; at the end: as certainly seen before it
}

type kind uint8

const (
	begins kind = iota
	ends
	restarts
)

type state struct {
	writer    int // 0: nobody
	process   int // of the writer
	readers   []holder
	forgotten []holder // by a server that restarted, but not ended yet
	counter   uint64
}

// holder is one of several owners. They are sorted, so that equal states are equal in memory.
type holder struct{ hold, process int }

func byHold(a holder, hold int) int { return a.hold - hold }

func with(all []holder, h holder) []holder {
	i, _ := slices.BinarySearchFunc(all, h.hold, byHold)
	return slices.Insert(slices.Clone(all), i, h)
}

func without(all []holder, hold int) ([]holder, bool) {
	i, ok := slices.BinarySearchFunc(all, hold, byHold)
	if !ok {
		return all, false
	}
	return slices.Delete(slices.Clone(all), i, i+1), true
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(from, input, _ any) (bool, any) {
		return from.(state).step(input.(step))
	},
	Equal: func(a, b any) bool {
		x, y := a.(state), b.(state)
		return x.writer == y.writer && x.counter == y.counter &&
			slices.Equal(x.readers, y.readers) && slices.Equal(x.forgotten, y.forgotten)
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func (s state) step(o step) (bool, state) {
	switch o.kind {
	case begins:
		return s.begin(o)
	case restarts:
		for _, r := range s.readers {
			s.forgotten = with(s.forgotten, r)
		}
		if s.writer != 0 {
			s.forgotten = with(s.forgotten, holder{s.writer, s.process})
		}
		s.writer, s.process, s.readers = 0, 0, nil
		return true, s
	default:
		return s.end(o)
	}
}

func (s state) begin(o step) (bool, state) {
	me := holder{o.hold, o.process}
	mine := func(h holder) bool { return h.process == o.process }
	switch {
	case o.counter < s.counter:
		return false, s
	case slices.ContainsFunc(s.forgotten, mine): // or it is that hold, shared or handed over
		s.forgotten = with(s.forgotten, me)
		return true, s
	case o.reads:
		ok := s.writer == 0 || s.writer == o.under
		s.readers = with(s.readers, me)
		return ok, s
	default:
		ok := s.writer == 0 && len(s.readers) == 0
		s.writer, s.process = o.hold, o.process
		return ok, s
	}
}

func (s state) end(o step) (ok bool, _ state) {
	if s.forgotten, ok = without(s.forgotten, o.hold); ok { // others may not have seen what it counted
		return true, s
	}
	s.counter = max(s.counter, o.counter)
	if o.reads {
		s.readers, ok = without(s.readers, o.hold)
		return ok, s
	}
	ok = s.writer == o.hold
	s.writer, s.process = 0, 0
	return ok, s
}

// span is a stretch of time in which something happened.
type span struct{ from, to int64 }

const checkLimit = 20 * time.Second

// judge returns what is wrong with what the processes saw. Restarts are those of the server.
func judge(sections []section, restarted []span) (wrong []string) {
	byPath, fenced := map[int][]section{}, map[int][]section{}
	for _, s := range sections {
		if s.Wrong != "" {
			wrong = append(wrong, fmt.Sprintf("path %d, process %d: %s", s.Path, s.Process, s.Wrong))
		}
		if s.Stolen && !slices.ContainsFunc(restarted, s.during) {
			wrong = append(wrong, fmt.Sprintf("path %d, process %d: a hold was lost before its lease was over: %+v",
				s.Path, s.Process, s))
		}
		if s.Refused && !slices.ContainsFunc(restarted, s.during) {
			wrong = append(wrong, fmt.Sprintf("path %d, process %d: who writes may not read: %+v", s.Path, s.Process, s))
		}
		if s.Fenced {
			fenced[s.Path] = append(fenced[s.Path], s)
		}
		if s.Until >= s.Granted {
			byPath[s.Path] = append(byPath[s.Path], s)
		}
	}
	for path, of := range byPath {
		switch explained(of, restarted) {
		case porcupine.Ok:
		case porcupine.Illegal:
			wrong = append(wrong, fmt.Sprintf("path %d: no order of its %d holds explains them; %s", path, len(of), overlap(of)))
		default:
			wrong = append(wrong, fmt.Sprintf("path %d: not known within %v whether an order explains its %d holds",
				path, checkLimit, len(of)))
		}
		wrong = append(wrong, miscounted(path, of, restarted)...)
	}
	for path, of := range fenced {
		wrong = append(wrong, misfenced(path, of, restarted)...)
	}
	return wrong
}

// explained has the model check one path.
func explained(of []section, restarted []span) porcupine.CheckResult {
	type key struct {
		process int
		hold    uint64
	}
	numbers := map[key]int{} // of the holds under which others may read
	for i, s := range of {
		numbers[key{s.Process, s.Hold}] = i + 1
	}
	history := make([]porcupine.Operation, 0, 2*len(of)+len(restarted))
	for i, s := range of {
		begin := step{kind: begins, hold: i + 1, reads: s.Reads, process: s.Process, counter: s.Token}
		if !s.Looked {
			begin.counter = math.MaxUint64
		}
		if s.Under != 0 {
			begin.under = numbers[key{s.Process, s.Under}]
		}
		end := step{kind: ends, hold: i + 1, reads: s.Reads, process: s.Process}
		if s.Acted { // otherwise it may have read or written after its time was over
			end.counter = s.Token
			if s.Wrote {
				end.counter++
			}
		}
		history = append(
			history,
			porcupine.Operation{ClientId: i, Input: begin, Call: s.after(of, restarted), Return: s.Granted},
			// An end must come after its beginning, if only by a nanosecond.
			porcupine.Operation{
				ClientId: i, Input: end,
				Call: max(s.Until, s.Granted+1), Return: max(s.Ended, s.Until+1, s.Granted+1),
			},
		)
	}
	for i, r := range restarted {
		history = append(history, porcupine.Operation{ClientId: len(of) + i, Input: step{kind: restarts}, Call: r.from, Return: r.to})
	}
	if obvious(history) {
		return porcupine.Ok
	}
	return porcupine.CheckOperationsTimeout(model, history, checkLimit)
}

// obvious tries the one order in which each hold lasts for as long as its owner certainly believed in it. That explains most
// histories, and saves a search that may take very long if the server restarted.
func obvious(history []porcupine.Operation) bool {
	at := func(o porcupine.Operation) int64 {
		if o.Input.(step).kind == begins {
			return o.Return
		}
		return o.Call
	}
	ordered := slices.Clone(history)
	slices.SortStableFunc(ordered, func(a, b porcupine.Operation) int { return cmp.Compare(at(a), at(b)) })
	ok, s := true, model.Init()
	for i := 0; ok && i < len(ordered); i++ {
		ok, s = model.Step(s, ordered[i].Input, nil)
	}
	return ok
}

// forgetful is longer than anybody believes in a forgotten hold: longer than any lease.
const forgetful = 2 * time.Second

// after returns a moment before which the hold cannot have begun: that of the call, or the last one at which another owner
// certainly believed in a hold that excludes this one. This does not change which orders explain a history, but it spares the
// search the many orders in which waiting readers begin too early.
func (s section) after(of []section, restarted []span) int64 {
	at := s.Called
	if slices.ContainsFunc(restarted, func(r span) bool { return r.from < s.Granted && r.to > s.Called-int64(forgetful) }) {
		return at // it may share a hold that is forgotten, which excludes nobody
	}
	for _, other := range of {
		if s.excludes(other) && other.Until < s.Granted && !slices.ContainsFunc(restarted, other.during) {
			at = max(at, other.Until)
		}
	}
	return at
}

// excludes reports whether two holds cannot exist at the same time.
func (s section) excludes(other section) bool {
	above := func(a, b section) bool { return a.Process == b.Process && a.Hold != 0 && a.Hold == b.Under }
	return (!s.Reads || !other.Reads) && !above(s, other) && !above(other, s)
}

// during reports whether something may have happened to the hold within the span.
func (s section) during(r span) bool { return r.from < s.Ended && r.to > s.Called }

// overlap names two holds that were believed in at the same time, for the reader of the report.
func overlap(of []section) string {
	for i, a := range of {
		for _, b := range of[i+1:] {
			if d := min(a.Until, b.Until) - max(a.Granted, b.Granted); d > 0 && a.excludes(b) {
				return fmt.Sprintf("these two overlap by %v: %+v and %+v", time.Duration(d), a, b)
			}
		}
	}
	return "no two overlap"
}

// miscounted finds holds that certainly had the lock from reading the counter to writing it, and whose counter was changed
// meanwhile by another hold that had it, too.
func miscounted(path int, of []section, restarted []span) (wrong []string) {
	if len(restarted) > 0 {
		return nil
	}
	certain := map[uint64]bool{} // values that a hold wrote while it certainly had the lock
	for _, s := range of {
		certain[s.Token] = certain[s.Token] || s.Wrote && s.Acted
	}
	for _, s := range of {
		if s.Acted && s.Changed && certain[s.Token] {
			wrong = append(wrong, fmt.Sprintf("path %d: the counter changed under a hold: %+v", path, s))
		}
	}
	return wrong
}
