package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// mostTogether limits the commands under way for the paths of one hold, so that other calls have their turn.
const mostTogether = 256

// Each calls do for several paths, many at a time, and returns the errors, joined in their order. When Redis does not answer for
// one, Each calls do for all remaining paths at once, so that the call takes no longer than for two.
func Each[T any](paths []T, do func(T) error) error {
	if len(paths) == 1 {
		return do(paths[0])
	}
	errs := make([]error, len(paths))
	places := make(chan struct{}, mostTogether)
	var all sync.WaitGroup
	var silent atomic.Bool
	for i, one := range paths {
		placed := !silent.Load()
		if placed {
			places <- struct{}{}
		}
		run := func() {
			if errs[i] = do(one); errors.Is(errs[i], fault.Unavailable) {
				silent.Store(true)
			}
			if placed {
				<-places
			}
		}
		if i == len(paths)-1 { // the caller waits in any case
			run()
		} else {
			all.Go(run)
		}
	}
	all.Wait()
	return fault.Join(errs...)
}

// Group has the paths that one script asks for, all or none; on a cluster they are in one slot. The call has their local
// halves.
type Group struct {
	FailFast bool  // see Request
	Err      error // why none of the paths was obtained
	At       int   // the index of the path that another owner has

	tries []*attempt
}

// Add adds a path, for which h is asked for.
func (g *Group) Add(ctx context.Context, p *Path, h *hold.Hold) {
	g.tries = append(g.tries, &attempt{path: p, hold: h, ctx: ctx, failFast: g.FailFast})
}

// Won reports whether the i-th path has its hold.
func (g *Group) Won(i int) bool { return g.tries[i].won() }

// Leave frees the local half of the i-th path, which was not obtained, and removes what Redis may have granted.
func (g *Group) Leave(i int) {
	a := g.tries[i]
	if a.hold.MayArrive() {
		a.path.all.cleanUp(a.path.remains(a.hold))
	}
	a.path.lock.Free()
}

// Try asks Redis once for all paths. It confirms a late reply, which may come from a former master.
func (g *Group) Try(deadline clock.Instant) {
	if g.tries[0].path.proves() {
		if g.Err = g.tries[0].prove(deadline); g.Err != nil {
			return
		}
	}
	p := g.tries[0].commandWait(deadline)
	p.Observer = nil
	if g.Err = g.tries[0].tooFar(&p); g.Err != nil {
		return
	}
	reply := g.ask(&p)
	if reply.granted() && !reply.ReadBack.Sound() || fault.CrossSlot(reply.err) {
		g.split(&reply)
		return
	}
	if reply.granted() && !reply.Late && len(g.tries) > 1 {
		g.tries[0].path.all.Apart.Worked()
	}
	if reply.granted() && reply.ReplicaErr == nil && reply.Late {
		g.confirm(deadline, reply.tokens, reply.Doubtful)
		return
	}
	g.settle(&reply)
	if g.Err != nil {
		return
	}
	ctx := g.tries[0].ctx
	switch {
	case reply.Cut:
		g.Err = p.Explain(true, nil)
	case reply.granted() && reply.ReplicaErr != nil:
		if g.Err = fault.Classify(reply.ReplicaErr); ctx.Err() != nil {
			g.Err = fault.Explain(fault.Ended(ctx), g.Err)
		}
	case reply.err != nil:
		g.At, g.Err = max(0, min(reply.taken, len(g.tries))-1), fault.Classify(reply.err)
	case reply.taken > 0:
		g.At, g.Err = min(reply.taken, len(g.tries))-1, fault.Busy
	}
}

// split gives back what the script has obtained. A path that has its hold where it belongs is released there, as any other:
// others may wait for it. What cannot be released now is removed by Leave.
//
// Only a reading that is answered in time, and without the hold, tells of a proxy. After a late or refused one this call alone
// takes one path after another.
func (g *Group) split(r *groupReply) {
	g.Err = fault.Apart
	p, missing := g.tries[0].path, r.ReadBack.Missing
	if !r.granted() || len(missing) > 0 && !r.Late { // mutant: late reading is a proxy
		p.noteApart()
	}
	if !r.granted() {
		return
	}
	w := g.tries[0].commandWait(p.Clock.Now())
	w.Obtains, w.Observer = false, nil
	there := make([]*attempt, 0, len(g.tries))
	for i, a := range g.tries {
		a.hold.SetMayArrive(true)
		if !slices.Contains(missing, i) {
			there = append(there, a)
		}
	}
	if len(missing) > 0 {
		c := p.Format.GiveBack(r.call, missing)
		p.all.Transport.Do(&w, &c) // at worst it stays there until its lease ends, in nobody's way
	}
	_ = Each(there, func(a *attempt) error {
		if !p.all.removeOnce(w, a.path.remains(a.hold)) {
			return fault.Unavailable
		}
		a.hold.SetMayArrive(false)
		return nil
	})
}

// noteApart notes that a proxy keeps paths on several servers.
func (p *Path) noteApart() {
	if p.all.Apart.Note(p.Clock.Now()) {
		p.Log(slog.LevelWarn, "a proxy keeps the paths of AcquireAll on several servers: they are locked one after another",
			slog.String("key", p.Key))
	}
}

// groupReply is the reply to a group's script.
type groupReply struct {
	transport.Reply
	call   protocol.Call // the last one
	tokens []uint64
	taken  int // the number of the path that another owner has, from 1; 0: none
	err    error
}

func (r *groupReply) granted() bool { return r.err == nil && r.taken == 0 }

// ask asks for all paths, again if a late reply says that one is taken: it may come from a former master.
func (g *Group) ask(p *transport.Wait) (r groupReply) {
	bids := make([]protocol.Request, len(g.tries))
	for i, a := range g.tries {
		bids[i] = a.bid(protocol.Queueing{})
	}
	all := g.tries[0].path.all
	c := g.tries[0].path.Format.ObtainAll(bids)
	c.DropIfAbandoned = true
	all.Demand(&c, func(_ *protocol.Call, result rueidis.RedisResult) bool {
		_, taken, err := protocol.Tokens(result, len(bids))
		return err == nil && taken == 0
	})
	for first := true; ; first = false {
		r.Reply = all.Transport.Do(p, &c)
		if r.tokens, r.taken, r.err = protocol.Tokens(r.RedisResult, len(bids)); first {
			p.Since = r.Sent
		}
		r.call = c
		if !r.Late || r.err != nil || r.taken == 0 {
			return r
		}
		if !p.Again(all.Clock) {
			r.taken, r.err = 0, fault.Late
			return r
		}
	}
}

// settle makes the holds live, or notes that Redis may have granted them.
func (g *Group) settle(r *groupReply) {
	enough := r.granted() && r.ReplicaErr == nil                        // otherwise only the master has them
	maybe := r.granted() || r.taken == 0 && fault.OutcomeUnknown(r.err) // mutant: paths forgotten
	for i, a := range g.tries {
		if enough && a.take(r.tokens[i], &r.Reply) {
			continue
		}
		if enough {
			g.Err = fault.Classify(fault.Late)
		}
		if maybe {
			a.hold.SetMayArrive(true)
		}
	}
}

// confirm confirms grants whose reply came late, each as for a single lock.
func (g *Group) confirm(deadline clock.Instant, tokens []uint64, doubtful bool) {
	for i, a := range g.tries {
		a.hold.Draw(tokens[i])
	}
	_ = Each(g.tries, func(a *attempt) error {
		a.failure = fault.Classify(a.confirmGrant(deadline, doubtful))
		return a.failure
	})
	for i, a := range g.tries {
		if a.failure != nil && g.Err == nil {
			g.At, g.Err = i, a.failure
		}
	}
	if ctx := g.tries[0].ctx; g.Err != nil && ctx.Err() != nil {
		g.Err = fault.Explain(fault.Ended(ctx), g.Err)
	}
}

// take makes the hold of a path live, and gives it to the lock. It reports false if the reply came too late.
func (a *attempt) take(token uint64, r *transport.Reply) bool {
	a.hold.Draw(token)
	if !a.hold.Grant(r.Sent, r.Came) {
		return false
	}
	a.win(r.Sent)
	return true
}
