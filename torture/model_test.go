package torture

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The model of a lock with leases. A hold begins at some moment between the call that asked for it and its return, and it
// ends at some moment between the last one at which its owner certainly believed in it and the return of unlocking. Only
// when nobody has a hold can one begin. So two owners that believe at the same moment make a history that the model
// cannot explain. Calls that got nothing are no part of it: a lock may be denied for reasons that only the network knows.
//
// When the server restarts it forgets all holds, and their owners do not know. Those may go on while others begin.
//
// And each hold reads a counter that each may increment: no hold may read less than an earlier one has written.

type step struct {
	kind    kind
	hold    int
	counter uint64
}

type kind uint8

const (
	begins kind = iota
	ends
	restarts
)

type state struct {
	holder    int   // 0: nobody
	forgotten []int // by a server that restarted, and not over yet; sorted
	counter   uint64
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(from, input, _ any) (bool, any) {
		return from.(state).step(input.(step))
	},
	Equal: func(a, b any) bool {
		x, y := a.(state), b.(state)
		return x.holder == y.holder && x.counter == y.counter && slices.Equal(x.forgotten, y.forgotten)
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func (s state) step(o step) (bool, state) {
	switch o.kind {
	case begins:
		ok := s.holder == 0 && o.counter >= s.counter
		s.holder = o.hold
		s.counter = max(s.counter, o.counter)
		return ok, s
	case restarts:
		if s.holder != 0 {
			s.forgotten = append(slices.Clone(s.forgotten), s.holder)
			slices.Sort(s.forgotten)
			s.holder = 0
		}
		return true, s
	default:
		if i, ok := slices.BinarySearch(s.forgotten, o.hold); ok { // what it counted, others may not have seen
			s.forgotten = slices.Delete(slices.Clone(s.forgotten), i, i+1)
			return true, s
		}
		ok := s.holder == o.hold
		s.holder = 0
		s.counter = max(s.counter, o.counter)
		return ok, s
	}
}

// span is from when to when something happened.
type span struct{ from, to int64 }

const checkLimit = 20 * time.Second

// judge finds out what is wrong with what the processes saw. Restarts are those of the server.
func judge(sections []section, restarted []span) (wrong []string) {
	byPath := map[int][]section{}
	for _, s := range sections {
		if s.Wrong != "" {
			wrong = append(wrong, fmt.Sprintf("path %d, process %d: %s", s.Path, s.Process, s.Wrong))
		}
		if s.Stolen && !slices.ContainsFunc(restarted, func(r span) bool { return r.from < s.Ended && r.to > s.Called }) {
			wrong = append(wrong, fmt.Sprintf("path %d, process %d: the key of a hold is gone before its lease is over: %+v",
				s.Path, s.Process, s))
		}
		if s.Until >= s.Granted {
			byPath[s.Path] = append(byPath[s.Path], s)
		}
	}
	for path, of := range byPath {
		if !explained(of, restarted) {
			wrong = append(wrong, fmt.Sprintf("path %d: no order of its %d holds explains them; %s", path, len(of), overlap(of)))
		}
		wrong = append(wrong, miscounted(path, of, restarted)...)
	}
	return wrong
}

// explained has the model check one path.
func explained(of []section, restarted []span) bool {
	history := make([]porcupine.Operation, 0, 2*len(of)+len(restarted))
	for i, s := range of {
		wrote := s.Token
		if s.Wrote && s.Acted { // else it may have written when its time was over already
			wrote++
		}
		history = append(
			history,
			porcupine.Operation{ClientId: i, Input: step{begins, i + 1, s.Token}, Call: s.Called, Return: s.Granted},
			// An end must come after its beginning, if only by a nanosecond.
			porcupine.Operation{
				ClientId: i, Input: step{ends, i + 1, wrote},
				Call: max(s.Until, s.Granted+1), Return: max(s.Ended, s.Until+1, s.Granted+1),
			},
		)
	}
	for i, r := range restarted {
		history = append(history, porcupine.Operation{ClientId: len(of) + i, Input: step{kind: restarts}, Call: r.from, Return: r.to})
	}
	return porcupine.CheckOperationsTimeout(model, history, checkLimit) != porcupine.Illegal
}

// overlap names two holds that were believed in at once, for who reads the report.
func overlap(of []section) string {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b section) int { return int(a.Granted - b.Granted) })
	for i := 1; i < len(of); i++ {
		if of[i].Granted < of[i-1].Until {
			return fmt.Sprintf("these two overlap by %v: %+v and %+v",
				time.Duration(min(of[i-1].Until, of[i].Until)-of[i].Granted), of[i-1], of[i])
		}
	}
	return "no two in a row overlap"
}

// miscounted finds holds that were alone, by their own word, from reading the counter to writing it, and found it changed
// by another that was so too.
func miscounted(path int, of []section, restarted []span) (wrong []string) {
	if len(restarted) > 0 {
		return nil
	}
	certain := map[uint64]bool{} // which values were written by holds that were there afterwards
	for _, s := range of {
		certain[s.Token] = certain[s.Token] || s.Wrote && s.Acted
	}
	for _, s := range of {
		if s.Acted && !s.Wrote && certain[s.Token] {
			wrong = append(wrong, fmt.Sprintf("path %d: the counter changed under a hold: %+v", path, s))
		}
	}
	return wrong
}
