package queue

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/several"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// mostTogether limits the commands under way for the paths of one hold, so that other calls get their turn.
const mostTogether = 256

// Each calls do for several paths, many at a time, and returns the errors, joined in the order of the paths. When Redis does not
// answer for one, Each calls do for all remaining paths at once: in all, that takes no longer than do for two paths in turn.
func Each[T any](paths []T, do func(T) error) error {
	switch len(paths) {
	case 0:
		return nil
	case 1:
		return do(paths[0])
	}
	errs := make([]error, len(paths))
	places := make(chan struct{}, mostTogether)
	var all sync.WaitGroup
	defer all.Wait() // also if do panics, which matters to a caller only in its own goroutine
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

// Group has the paths of a call that asks for all or none. The call has their local halves.
type Group struct {
	tries    []attempt
	failFast bool
	patient  bool // the call goes on if the group fails: it asks for one path after the other
}

// NewGroup returns a group for n paths.
func NewGroup(n int, failFast, patient bool) *Group {
	return &Group{make([]attempt, 0, n), failFast, patient}
}

// Add adds a path, for which a hold on these terms is asked for.
func (g *Group) Add(ctx context.Context, p *Path, t hold.Terms) {
	g.tries = append(g.tries, attempt{path: p, hold: p.lock.NewHold(t), ctx: ctx, failFast: g.failFast})
}

// Won reports whether the i-th path has its hold.
func (g *Group) Won(i int) bool { return g.tries[i].won() }

// Forsake is Leave when code of the user has panicked: a command may be under way.
func (g *Group) Forsake() {
	for i := range g.tries {
		if a := &g.tries[i]; !a.won() {
			a.hold.SetMayArrive(true)
		}
	}
	g.Leave()
}

// Leave frees the local halves of the paths that were not obtained, and removes what Redis may have granted.
func (g *Group) Leave() {
	var left []cleanup.Removal
	for i := range g.tries {
		if a := &g.tries[i]; !a.won() && a.hold.MayArrive() {
			left = append(left, a.path.remains(a.hold))
		}
	}
	if len(left) > 0 {
		g.tries[0].path.all.cleanUp(left...)
	}
	for i := range g.tries {
		if a := &g.tries[i]; !a.won() {
			a.path.lock.Free()
		}
	}
}

// Try asks Redis once for all paths. If they are not obtained, it returns which path failed, and why: fault.Busy if another owner
// has that path. Taken is a path that was seen taken, perhaps not the one that failed; -1: none was.
func (g *Group) Try(deadline clock.Instant) (failed, taken int, err error) {
	tries := make([]*attempt, len(g.tries))
	for i := range g.tries {
		tries[i] = &g.tries[i]
	}
	all, errs := tries[0].path.all, make([]error, len(tries))
	scripts := several.Scripts(tries, all.Cluster, func(a *attempt) string { return a.path.Key }, nil)
	_ = Each(scripts, func(some []*attempt) error {
		at, err := slotGroup(some).try(deadline, g.patient)
		if err != nil {
			errs[slices.Index(tries, some[at])] = err
		}
		return err
	})
	failed = several.Blamed(errs)
	return failed, several.Taken(errs), g.tries[failed].gaveUp(errs[failed])
}

// slotGroup has the paths that one script asks for, all or none; on a cluster they are in one slot.
type slotGroup []*attempt

// try asks Redis once for all paths. It confirms a late reply, which may come from a former master. If the paths are not obtained
// it returns why, and which one failed.
func (g slotGroup) try(deadline clock.Instant, goesOn bool) (at int, err error) {
	if len(g) == 1 {
		return 0, g[0].tryAlone(deadline, goesOn)
	}
	if err = g[0].prove(deadline); err != nil {
		return 0, err
	}
	p := g[0].commandWait(deadline)
	p.Observer = nil
	if err = g[0].tooFar(&p); err != nil {
		return 0, err
	}
	reply := g.ask(&p)
	switch reply.outcome() {
	case several.Elsewhere:
		g.split(&reply)
		return 0, fault.Apart
	case several.Suspect:
		return g.confirm(deadline, reply.tokens, reply.Doubtful)
	case several.Granted:
		g[0].path.all.Apart.Worked()
		return 0, g.take(&reply)
	case several.Unknown:
		for _, a := range g {
			a.hold.SetMayArrive(true)
		}
	case several.Refused:
	}
	return max(0, min(reply.taken, len(g))-1), reply.failure(&p)
}

// tryAlone asks for a path as for any lock. If it is not free, the command may have found what an earlier call of this process
// has left: so a call that does not go on asks again by script.
func (a *attempt) tryAlone(deadline clock.Instant, goesOn bool) error {
	err := a.try(protocol.Queueing{Mode: protocol.ModeNone}, true, deadline)
	if err == nil && !a.won() && !goesOn {
		err = a.try(protocol.Queueing{Mode: protocol.ModeNone}, false, deadline)
	}
	if err == nil && !a.won() {
		return fault.Busy
	}
	return err
}

// split gives back what the script has obtained, since the paths seem to be on several servers. A path whose hold is where it
// belongs is released there like any other, since others may wait for it. Leave removes what cannot be released now.
//
// Only a reading that is answered in time, and lacks a hold, proves that there is a proxy. After a late or refused one, and
// while a slot of a cluster moves, only this call takes one path after another.
func (g slotGroup) split(r *groupReply) {
	p, missing := g[0].path, r.ReadBack.Missing
	if fault.CrossSlot(r.err) || len(missing) > 0 && !r.Late { // mutant: late reading is a proxy
		p.noteApart()
	}
	if r.err != nil {
		return
	}
	w := g[0].commandWait(p.Clock.Now())
	w.Obtains, w.Observer = false, nil
	there := make([]*attempt, 0, len(g))
	for i, a := range g {
		a.hold.SetMayArrive(true)
		if !slices.Contains(missing, i) {
			there = append(there, a)
		}
	}
	if len(missing) > 0 {
		c := p.Format.GiveBack(r.call, missing)
		p.all.Transport.Do(&w, &c) // if it fails, the keys stay there until their leases end, and keep no call out
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

func (r *groupReply) outcome() several.Outcome {
	return several.Reply{
		Taken: r.taken, Err: r.err, Few: r.ReplicaErr != nil, Late: r.Late,
		Astray: r.err == nil && !r.ReadBack.Sound() || fault.CrossSlot(r.err) || r.halfMoved(),
	}.Outcome()
}

// halfMoved reports whether the server has refused the script because the slot of its paths moves: commands about one path are
// served meanwhile, but a script only once all of its keys are at one node. The key of a free path is at neither.
func (r *groupReply) halfMoved() bool {
	return r.err != nil && fault.Answered(r.err) && fault.BetweenNodes(r.err)
}

// failure returns why the paths were not obtained.
func (r *groupReply) failure(p *transport.Wait) error {
	switch err := cmp.Or(r.err, r.ReplicaErr); {
	case r.Cut:
		return p.Explain(true, nil)
	case err == nil:
		return fault.Busy
	case r.err == nil && p.Ctx.Err() != nil:
		return fault.Explain(fault.Ended(p.Ctx), fault.Classify(err))
	default:
		return fault.Classify(err)
	}
}

// ask asks for all paths, and again if a late reply says that one is taken: that reply may come from a former master.
func (g slotGroup) ask(p *transport.Wait) (r groupReply) {
	bids := make([]protocol.Request, len(g))
	for i, a := range g {
		bids[i] = a.bid(protocol.Queueing{})
	}
	all := g[0].path.all
	c := g[0].path.Format.ObtainAll(bids)
	c.DropIfAbandoned = true
	c.Replicas, c.Wrote = all.Replicas, func(_ *protocol.Call, result rueidis.RedisResult) bool {
		_, taken, err := protocol.Tokens(result, len(bids))
		return err == nil && taken == 0
	}
	for first := true; ; first = false {
		r.Reply = all.Transport.Do(p, &c)
		if r.tokens, r.taken, r.err = protocol.Tokens(r.RedisResult, len(bids)); first {
			p.Since = r.Sent
		}
		r.call = c
		if !r.Late || r.err != nil || r.taken == 0 {
			return r
		}
		if !p.Again(all.Transport.Clock) {
			r.taken, r.err = 0, fault.Late
			return r
		}
	}
}

// take makes the holds live, and gives them to their locks. A reply that comes too late makes none live.
func (g slotGroup) take(r *groupReply) (err error) {
	for i, a := range g {
		a.hold.Draw(r.tokens[i])
		if a.hold.Grant(r.Sent, r.Came) {
			a.win(r.Sent)
		} else {
			err = fault.Classify(fault.Late)
			a.hold.SetMayArrive(true)
		}
	}
	return err
}

// confirm confirms grants whose reply came late, each as for a single lock.
func (g slotGroup) confirm(deadline clock.Instant, tokens []uint64, doubtful bool) (at int, err error) {
	for i, a := range g {
		a.hold.Draw(tokens[i])
	}
	_ = Each(g, func(a *attempt) error {
		a.failure = fault.Classify(a.confirmGrant(deadline, doubtful))
		return a.failure
	})
	if at = slices.IndexFunc(g, func(a *attempt) bool { return a.failure != nil }); at < 0 {
		return 0, nil
	}
	if ctx := g[0].ctx; ctx.Err() != nil {
		return at, fault.Explain(fault.Ended(ctx), g[at].failure)
	}
	return at, g[at].failure
}
