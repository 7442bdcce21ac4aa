package queue

import (
	"errors"
	"maps"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// proofs records which servers let the registry's user release locks of which formats. The first call for a server asks it
// before it tries, even if the call will wait: the release of another process may grant it the hold by a message. Later calls
// send nothing for this.
type proofs struct {
	known atomic.Pointer[map[proofOf]bool] // replaced, never changed
}

type proofOf struct {
	server *transport.Node
	format *protocol.Needs
}

// add notes a proof. Another call may add one at the same time. It drops the proofs of servers that no longer lead: in a
// cluster each failover may bring a new server, and the old ones must not stay in memory.
func (p *proofs) add(one proofOf, leads func(*transport.Node) bool) {
	for {
		known := p.known.Load()
		next := map[proofOf]bool{}
		if known != nil {
			maps.Copy(next, *known)
			maps.DeleteFunc(next, func(other proofOf, _ bool) bool { return !leads(other.server) }) // mutant: old proofs kept
		}
		next[one] = true
		if p.known.CompareAndSwap(known, &next) {
			return
		}
	}
}

// prove asks the server whether the path's holds can be released, unless that is proven or the call has asked. It fails if the
// server refuses something or does not answer. Any other failure says nothing about permissions: the try goes on, and the next
// call asks again. An old server is asked twice, see [protocol.Proven]. Each question may take as long as the try that follows:
// on a slow link it takes two round trips, since the server does not know the script yet.
func (a *attempt) prove(deadline clock.Instant) error {
	p, needs := a.path, a.path.Format.Needs()
	if a.proved || needs == nil {
		return nil
	}
	one := proofOf{p.Node(), needs}
	if known := p.all.proofs.known.Load(); known != nil && (*known)[one] {
		return nil
	}
	a.progress = max(a.progress, unanswered)
	for bySource := false; ; bySource = true {
		w := a.commandWait(deadline)
		if err := a.tooFar(&w); err != nil {
			return err
		}
		w.Obtains = false
		c := p.Format.Proof(p.Key, bySource)
		reply := p.all.Transport.Do(&w, &c)
		held, old, err := protocol.Proven(reply.RedisResult, p.Key)
		switch {
		case reply.Cut:
			a.cut = true
			return a.explained(fault.Ended(a.ctx))
		case errors.Is(err, fault.Lasting) && !reply.Late, !fault.Answered(reply.Error()):
			a.progress, a.failure = answered, fault.Classify(err)
			return a.failure
		case err != nil || reply.Late || held:
			// The reply says nothing about permissions. If the next one may, the next try asks again.
			a.proved = held || !fault.Transient(err) && !reply.Late
			return nil
		case !old || bySource:
			a.proved = true
			p.all.proofs.add(one, p.all.Transport.Leads)
			return nil
		}
	}
}
