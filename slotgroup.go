package lockregistry

import (
	"sync"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/redis/rueidis"
)

// slotGroup is the locks of a call that one script asks for: of those in one slot, where there are slots, a thousand at most.
type slotGroup struct {
	locks []*Lock
	tries []*attempt
	at    int   // the lock that another owner has
	err   error // why none of them was obtained
}

func (b *multiAcquire) slots() (groups []*slotGroup) {
	of := map[uint16]*slotGroup{}
	for _, l := range b.locks {
		var slot uint16
		if b.reg.cluster {
			slot = protocol.Slot(l.place.Key)
		}
		if of[slot] == nil || len(of[slot].locks) == mostInScript {
			of[slot] = &slotGroup{}
			groups = append(groups, of[slot])
		}
		of[slot].locks = append(of[slot].locks, l)
		of[slot].tries = append(of[slot].tries, nil)
	}
	return groups
}

// try asks Redis once for the locks of a slot. An answer that comes late is confirmed: a master that is none any more may have
// given it.
func (s *slotGroup) try(b *multiAcquire) {
	bids := make([]protocol.Request, len(s.tries))
	for i, a := range s.tries {
		bids[i] = a.bid(protocol.Queueing{})
	}
	first := s.tries[0]
	p := first.commandWait(b.deadline)
	p.Observer = nil
	if s.err = first.tooFar(&p); s.err != nil {
		return
	}
	c := first.lock.place.Format.ObtainAll(bids)
	c.DropIfAbandoned = true
	b.reg.demand(&c, func(_ *protocol.Call, result rueidis.RedisResult) bool {
		_, taken, err := protocol.Tokens(result, len(bids))
		return err == nil && taken == 0
	})
	reply := b.reg.transport.Do(&p, &c)
	tokens, taken, err := protocol.Tokens(reply.RedisResult, len(bids))
	for p.Since = reply.Sent; reply.Late && err == nil && taken > 0; { // a server may have said so that is the master no more
		if left := p.Left(b.reg.clock); left <= 0 || first.ctx.Err() != nil {
			taken, err = 0, fault.Late
			break
		}
		reply = b.reg.transport.Do(&p, &c)
		tokens, taken, err = protocol.Tokens(reply.RedisResult, len(bids))
	}
	granted := err == nil && taken == 0
	switch {
	case granted && reply.ReplicaErr != nil: // the master has it
		err = reply.ReplicaErr
	case granted && reply.Late:
		s.confirm(b, tokens, reply.Doubtful)
		return
	}
	for i, a := range s.tries {
		switch {
		case granted && err == nil && a.take(tokens[i], &reply):
		case granted || taken == 0 && fault.OutcomeUnknown(err): // mutant: paths forgotten
			if a.hold.SetMayArrive(true); err == nil {
				s.err = fault.Classify(fault.Late)
			}
		}
	}
	if s.err != nil {
		return
	}
	switch {
	case reply.Cut:
		s.err = explain(fault.Ended(first.ctx), fault.AsUnavailable(fault.NoAnswer))
	case granted && reply.ReplicaErr != nil && first.ctx.Err() != nil:
		s.err = explain(fault.Ended(first.ctx), fault.Classify(err))
	case err != nil:
		s.at, s.err = max(0, min(taken, len(s.locks))-1), fault.Classify(err)
	case !granted:
		s.at, s.err = min(taken, len(s.locks))-1, errBusy
	}
}

// confirm makes sure of grants whose answer came late, each as that of a single lock.
func (s *slotGroup) confirm(b *multiAcquire, tokens []uint64, doubtful bool) {
	errs, places := make([]error, len(s.tries)), make(chan struct{}, mostTogether)
	var all sync.WaitGroup
	for i, a := range s.tries {
		places <- struct{}{}
		all.Go(func() {
			a.hold.Draw(tokens[i])
			errs[i] = a.confirmGrant(b.deadline, doubtful)
			<-places
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil && s.err == nil {
			s.at, s.err = i, fault.Classify(err)
		}
	}
	if ctx := s.tries[0].ctx; s.err != nil && ctx.Err() != nil {
		s.err = explain(fault.Ended(ctx), s.err)
	}
}

// take makes the hold of a path live, and the lock's. It reports false when the reply came too late.
func (a *attempt) take(token uint64, r *transport.Reply) bool {
	a.hold.Draw(token)
	if !a.hold.Grant(r.Sent, r.Came) {
		return false
	}
	a.win(r.Sent)
	return true
}
