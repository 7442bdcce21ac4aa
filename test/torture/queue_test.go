package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// What becomes of the queue when its commands and messages are lost, late, doubled or crossed: nobody believes in a hold that
// is another's, and nobody waits for one that nobody has. Process a waits behind a network that fails, process b holds.

// provisional is the lease of a grant, see internal/protocol/lua/queue.lua.
const provisional = time.Second

func queueOf(path string) string { return prefix + ":{" + keyOf(path) + "}:waiters" }

// tickets are those in the queue, first things first.
func (s *stage) tickets() []string {
	s.Helper()
	return strings.Fields(s.do("ZRANGEBYSCORE", queueOf(s.path), "0", "+inf"))
}

func idOf(p process) string {
	return seam.Lockregistry.Parts(p.(libraryProcess).registry).Label.Registry + ":"
}

const holding = `
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'hash' then return redis.call('HKEYS', KEYS[1])[1] end
return kind == 'string' and redis.call('GET', KEYS[1]) or ''`

// owns tells whether a process has the key, by the server's word.
func (s *stage) owns(p process) bool {
	s.Helper()
	return strings.HasPrefix(s.do("EVAL", holding, "1", keyOf(s.path)), idOf(p))
}

func (s *stage) isFree() bool {
	s.Helper()
	return s.do("EXISTS", keyOf(s.path)) == "0"
}

// another is one more process with a good network.
func (s *stage) another() process {
	s.Helper()
	return start(s.T, s.system, single, s.server.Addr(), s.of)
}

// waiting is a call that waits.
type waiting struct {
	by     process
	ctx    context.Context
	cancel context.CancelFunc
	got    chan error
}

// asks starts a call that waits.
func (s *stage) asks(p process) *waiting {
	s.Helper()
	w := &waiting{by: p, got: make(chan error, 1)}
	w.ctx, w.cancel = context.WithCancel(s.owner())
	s.Cleanup(w.cancel)
	path := s.path
	go func() {
		_, err := p.lock(s.soon(w.ctx), path, -1, 0)
		w.got <- err
	}()
	return w
}

// linesUp starts a call that waits, and returns when it has its ticket.
func (s *stage) linesUp(p process) *waiting {
	s.Helper()
	w := s.asks(p)
	s.await("a ticket", func() bool { return s.hasTicket(p) })
	return w
}

func (s *stage) hasTicket(p process) bool {
	s.Helper()
	for _, t := range s.tickets() {
		if strings.HasPrefix(t, idOf(p)) {
			return true
		}
	}
	return false
}

// tracks is linesUp for a process that is told of changes of the key when it returns.
func (s *stage) tracks() *waiting {
	s.Helper()
	h := netfault.Hold(false)
	h.Release()
	s.proxy.Next(netfault.Match{Name: "PTTL"}, netfault.Fate{Held: h})
	w := s.linesUp(s.a)
	s.deliver(h)
	return w
}

// listens is tracks for a process that will not be told of the next change of the key: it relies on messages.
func (s *stage) listens() *waiting {
	s.Helper()
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "invalidate"}, netfault.Fate{Lost: true})
	return w
}

// blind has process a see nothing by looks of its own, which come when they like, until its end. If it has looked, it has asked
// anew then.
func (s *stage) blind() (end func()) {
	s.Helper()
	over := make(chan struct{})
	h := netfault.HoldUntil(over)
	s.proxy.All(look, netfault.Fate{Held: h})
	return sync.OnceFunc(func() {
		asked := s.times(ask)
		close(over)
		select {
		case <-h.Arrived():
			s.await("a ticket after a look", func() bool { return s.times(ask) > asked && s.hasTicket(s.a) })
		default:
		}
	})
}

// Commands about a ticket.
var (
	ask  = netfault.Match{Name: "obtain", Asks: "enqueue"}
	look = netfault.Match{Name: "obtain", Asks: "check"}
)

// times is how often process a has sent a command.
func (s *stage) times(m netfault.Match) int { return len(s.proxy.Seen(m)) }

const unopened = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return redis.call('ZADD', KEYS[1], 'XX', -now, 'open', -now, 'wide')`

// passes unlocks, and the lock goes to the first in the queue, not to those without a ticket.
func (s *stage) passes(ctx context.Context, p process) {
	s.Helper()
	s.do("EVAL", unopened, "1", queueOf(s.path))
	s.unlocks(ctx, p)
}

// has checks that a call that waits gets the lock in time, and that its process really owns it.
func (s *stage) has(w *waiting) (ok bool) {
	s.Helper()
	began := time.Now()
	if err := arrives(s, "the lock", w.got); err != nil {
		s.violatedf("the wait ended: %v", err)
		return false
	}
	if waited := time.Since(began); waited > allowance {
		s.violatedf("the lock was there after %v only", waited)
	}
	if !w.by.held(s.path) || !s.owns(w.by) {
		s.violatedf("the lock is not there: %v %v", w.by.held(s.path), s.owns(w.by))
	}
	return true
}

// ends gets the lock for a call that waits, gives it back, and checks that nothing stays behind.
func (s *stage) ends(w *waiting) {
	s.Helper()
	if s.has(w) {
		// What was granted for a moment may be lost when the network is silent for as long.
		if err := w.by.unlock(w.ctx, s.path); err != nil && !errors.Is(err, lockregistry.ErrLockLost) {
			s.fromNetwork(err)
		}
	}
	s.free()
	s.await("an empty queue", func() bool { return len(s.tickets()) == 0 })
}

// givesUp cancels a call that waits.
func (s *stage) givesUp(w *waiting) {
	s.Helper()
	w.cancel()
	s.is(arrives(s, "the end of a wait", w.got), context.Canceled)
}

// unbelieved checks that process a, which is told something about a hold that it does not have, does not believe it. It has
// reacted when it has sent one more command.
func (s *stage) unbelieved(reaction netfault.Match, tell func()) {
	s.Helper()
	check, before := s.unharmed(), s.times(reaction)
	tell()
	s.await("a reaction", func() bool { return s.a.held(s.path) || s.times(reaction) > before })
	if s.a.held(s.path) {
		s.violatedf("two processes hold the lock")
	}
	check()
}

// tells publishes a message for process a about the hold with the number of another message, as scripts do.
func (s *stage) tells(what, ms string, about netfault.Command) {
	s.Helper()
	number := strings.TrimPrefix(about.Value, idOf(s.a))
	s.do("PUBLISH", prefix+"-channel@"+strings.TrimSuffix(idOf(s.a), ":"), what+" "+number+" "+ms+" "+keyOf(s.path))
}

// granted is the latest grant that process a was told of.
func (s *stage) granted() netfault.Command {
	s.Helper()
	var seen []netfault.Command
	s.await("a grant", func() bool {
		seen = s.proxy.Seen(netfault.Match{Name: "grant"})
		return len(seen) > 0
	})
	return seen[len(seen)-1]
}

// patient are settings with which a call waits for the connection for wake-ups though the machine is busy, and does not poll.
var patient = settings{Poll: time.Second}

func queueScenes() (scenes []scene) {
	for _, b := range breakages {
		scenes = append(
			scenes,
			scene{name: "ask/" + b.name, play: b.ask},
			scene{name: "ask and give up/" + b.name, play: b.askInVain},
			scene{name: "look/" + b.name, play: b.look},
			scene{name: "look that finds the hold/" + b.name, play: b.lookAtHold},
			scene{name: "leave/" + b.name, play: b.leave},
		)
		if !b.fate.Cut.InRequest() {
			scenes = append(scenes, scene{name: "message/" + b.name, play: b.message})
		}
	}
	for i := range 8 {
		d := delay{cut: i&1 != 0, same: i&2 != 0, gone: i&4 != 0}
		scenes = append(
			scenes,
			scene{name: "late look/" + d.String(), play: d.look},
			scene{name: "late leave/" + d.String(), play: d.leave},
		)
	}
	return append(
		scenes,
		scene{name: "message/lost", play: breakage{fate: netfault.Fate{Lost: true}}.message},
		scene{name: "message/twice", play: messageTwice},
		scene{name: "message/once more when held", play: messageAgain},
		scene{name: "message/after the hold was found", play: messageAfterLook},
		scene{name: "message/later than its lease", of: patient, play: messageTooLate},
		scene{name: "message/of an attempt that is over", of: patient, play: messageOfOld},
		scene{name: "message/to nobody", play: messageToNobody},
		scene{name: "message/crosses the end of a wait", play: messageCrossed},
		scene{name: "leave/crosses a grant", play: leaveCrosses},
		scene{name: "leave/twice", play: leaveTwice},
		scene{name: "grant/to a process that is frozen", play: grantToFrozen},
		scene{name: "grant/past the dead", play: grantPastDead},
		scene{name: "grant/takes the ticket out", play: grantOnce},
		scene{name: "grant/is lengthened", play: grantLengthened},
	)
}

// ask breaks the command by which a call queues.
func (b breakage) ask(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	s.proxy.Next(ask, b.fate)
	w := s.asks(s.a)
	s.await("the next command", func() bool { return s.times(ask) > 1 || b.answered && s.times(ask) > 0 })
	s.await("a ticket", func() bool { return s.hasTicket(s.a) })
	s.passes(holder, s.b)
	s.ends(w)
}

// askInVain is ask for a call that gives up then: nobody waits for it.
func (b breakage) askInVain(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	s.proxy.Next(ask, b.fate)
	w := s.asks(s.a)
	s.await("the command", func() bool { return s.times(ask) > 0 })
	s.givesUp(w)
	s.await("an empty queue", func() bool { return len(s.tickets()) == 0 })
	s.unlocks(holder, s.b)
	s.free()
}

// look breaks a look at a queue in which nothing has happened.
func (b breakage) look(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	s.proxy.Next(look, b.fate)
	s.do("PEXPIRE", keyOf(s.path), "40000") // of which the server tells
	s.await("a look", func() bool { return s.times(look) > 0 })
	s.passes(holder, s.b)
	s.ends(w)
}

// lookAtHold breaks a look that finds the hold granted, since the message of that is lost.
func (b breakage) lookAtHold(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Lost: true})
	s.proxy.Next(look, b.fate)
	s.passes(holder, s.b)
	s.ends(w)
}

// leave breaks the removal of a ticket. The next one in the queue must not be held up by it.
func (b breakage) leave(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, c := s.linesUp(s.a), s.another()
	next := s.linesUp(c)
	s.proxy.Next(netfault.Match{Name: "release"}, b.fate)
	s.givesUp(w)
	s.await("the removal of the ticket", func() bool { return !s.hasTicket(s.a) })
	s.passes(holder, s.b)
	if !s.owns(c) {
		s.violatedf("the next one does not have the lock")
	}
	s.ends(next)
}

// message breaks that of a grant.
func (b breakage) message(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "grant"}, b.fate)
	s.passes(holder, s.b)
	s.ends(w)
}

// A second message may be taken for that of another master, but then the loss is announced.
func messageTwice(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Twice: true})
	s.passes(holder, s.b)
	if err := arrives(s, "the lock", w.got); err != nil {
		s.violatedf("the wait ended: %v", err)
	}
	if err := s.a.unlock(w.ctx, s.path); err != nil {
		s.is(err, lockregistry.ErrLockLost)
	}
	s.free()
}

func messageAgain(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	s.passes(holder, s.b)
	if !s.has(w) {
		return
	}
	lost := s.losing(w.ctx, s.a)
	s.tells("g", "1000", s.granted())
	require.ErrorIs(s, arrives(s, "the loss", lost).why, lockregistry.ErrLockLost)
	s.is(s.a.unlock(w.ctx, s.path), lockregistry.ErrLockLost)
	s.free()
}

func messageAfterLook(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	h := netfault.Hold(false)
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Held: h})
	s.passes(holder, s.b)
	if !s.has(w) {
		return
	}
	lost := s.losing(w.ctx, s.a)
	s.deliver(h)
	wait(poll)
	select {
	case <-lost:
		s.violatedf("the message of the very grant is taken for that of another")
	default:
	}
	s.unlocks(w.ctx, s.a)
	s.free()
}

// messageTooLate is when the lease of the grant is over, and another has the lock.
func messageTooLate(s *stage) {
	holder, next := s.owner(), s.owner()
	s.must(holder, s.b, 0)
	w, h, sees := s.listens(), netfault.Hold(false), s.blind()
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Held: h})
	s.passes(holder, s.b)
	arrives(s, "the grant", h.Arrived())
	s.await("the end of its lease", s.isFree)
	s.must(next, s.b, longer)
	sees()
	s.unbelieved(netfault.Match{Name: "obtain"}, func() { s.deliver(h) })
	s.await("a ticket", func() bool { return s.hasTicket(s.a) })
	s.passes(next, s.b)
	s.ends(w)
}

// messageOfOld is about an attempt that is over, to a call that waits anew and knows that its ticket is in the queue.
func messageOfOld(s *stage) {
	holder, next := s.owner(), s.owner()
	s.must(holder, s.b, 0)
	w, h, sees := s.listens(), netfault.Hold(false), s.blind()
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Held: h})
	s.passes(holder, s.b)
	arrives(s, "the grant", h.Arrived())
	s.await("the end of its lease", s.isFree)
	s.must(next, s.b, longer)
	sees()
	s.tells("n", "0", s.granted()) // has it look, and ask anew
	s.await("another ticket", func() bool { return s.hasTicket(s.a) })
	s.unbelieved(look, func() { s.deliver(h) })
	s.passes(next, s.b)
	s.ends(w)
}

// messageToNobody is about a ticket that no call knows: its hold is released at once, not when its lease is over.
func messageToNobody(s *stage) {
	for range 3 { // a busy machine may take its time
		holder := s.owner()
		s.must(holder, s.b, 0)
		w, c := s.linesUp(s.a), s.another() // so that the process is told of grants
		s.do("ZADD", queueOf(s.path), "1", idOf(s.a)+"99999|20000")
		next := s.linesUp(c)
		s.givesUp(w)
		s.await("the removal of the ticket", func() bool { return len(s.tickets()) == 2 })
		s.passes(holder, s.b)
		began := time.Now()
		err := arrives(s, "the lock", next.got)
		waited := time.Since(began)
		s.is(err, nil)
		s.unlocks(next.ctx, c)
		s.free()
		if waited < provisional*3/4 {
			return
		}
	}
	s.violatedf("the next one waits for the end of a lease that nobody has")
}

// messageCrossed comes when the call has just ended, and the removal of its ticket has not arrived.
func messageCrossed(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, c, h, leaving := s.linesUp(s.a), s.another(), netfault.Hold(false), netfault.Hold(false)
	next := s.linesUp(c)
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Held: h})
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: leaving, Cut: netfault.CutRequest(0)})
	s.givesUp(w)
	arrives(s, "the removal of the ticket", leaving.Arrived())
	s.passes(holder, s.b)
	arrives(s, "the grant", h.Arrived())
	s.deliver(h)
	leaving.Release()
	s.ends(next)
}

// leaveCrosses: the ticket is granted the lock when its removal is on its way. That passes the lock on.
func leaveCrosses(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, c, h, leaving := s.linesUp(s.a), s.another(), netfault.Hold(false), netfault.Hold(false)
	next := s.linesUp(c)
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Held: h})
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: leaving})
	s.givesUp(w)
	arrives(s, "the removal of the ticket", leaving.Arrived())
	s.passes(holder, s.b)
	if !s.owns(s.a) {
		s.violatedf("the first one does not have the lock")
	}
	s.deliver(leaving)
	if !s.owns(c) {
		s.violatedf("the lock was not passed on")
	}
	s.deliver(h)
	s.ends(next)
}

// leaveTwice: the removal of a ticket arrives once more, when the process waits again.
func leaveTwice(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	s.givesUp(w)
	s.await("the removal of the ticket", func() bool { return len(s.tickets()) == 0 })
	again := s.linesUp(s.a)
	s.do(s.proxy.Seen(netfault.Match{Name: "release"})[0].Args...)
	if !s.hasTicket(s.a) {
		s.violatedf("the ticket is gone")
	}
	s.passes(holder, s.b)
	s.ends(again)
}

// grantToFrozen: the path is blocked for a provisional lease, and the process that got it does not believe so later.
func grantToFrozen(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, c := s.linesUp(s.a), s.another()
	next := s.linesUp(c)
	s.proxy.Freeze()
	s.passes(holder, s.b)
	if !s.owns(s.a) {
		s.violatedf("the first one does not have the lock")
	}
	if !s.has(next) {
		return
	}
	check := s.unharmed()
	s.proxy.Thaw()
	s.await("another ticket", func() bool { return s.a.held(s.path) || s.hasTicket(s.a) })
	if s.a.held(s.path) {
		s.violatedf("two processes hold the lock")
	}
	check()
	s.passes(next.ctx, c)
	s.ends(w)
}

// grantPastDead: tickets of processes that are gone hold nobody up.
func grantPastDead(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	for _, dead := range []string{"a", "b", "c"} {
		s.do("ZADD", queueOf(s.path), "1", dead+":7|20000")
	}
	s.passes(holder, s.b)
	if !s.owns(s.a) {
		s.violatedf("the first one that lives does not have the lock")
	}
	s.ends(w)
}

// grantOnce: who has been granted the lock is not served once more when it unlocks.
func grantOnce(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	s.passes(holder, s.b)
	if s.hasTicket(s.a) {
		s.violatedf("the ticket is in the queue still")
	}
	s.ends(w)
}

// grantLengthened: a granted hold has its whole lease soon.
func grantLengthened(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.linesUp(s.a)
	s.passes(holder, s.b)
	if !s.has(w) {
		return
	}
	lost, short := s.losing(w.ctx, s.a), time.Now().Add(provisional)
	s.await("the end of the first lease", func() bool { return time.Now().After(short) })
	select {
	case <-lost:
		s.violatedf("the hold is lost with its first lease")
	default:
		if left := time.Until(s.expiry()); left < lease/2 {
			s.violatedf("the key lives for %v", left)
		}
	}
	s.unlocks(w.ctx, s.a)
	s.free()
}

// look delays one until a later hold.
func (d delay) look(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, h := s.tracks(), netfault.Hold(d.cut)
	s.proxy.Next(look, netfault.Fate{Held: h})
	s.do("PEXPIRE", keyOf(s.path), "40000") // of which the server tells
	arrives(s, "the look", h.Arrived())
	s.givesUp(w)
	s.proxy.CutAll()
	s.await("the removal of the ticket", func() bool { return len(s.tickets()) == 0 })
	s.unlocks(holder, s.b)
	d.next(s, h)
}

// leave delays the removal of a ticket until a later hold.
func (d delay) leave(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w, h := s.linesUp(s.a), netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: h})
	s.givesUp(w)
	arrives(s, "the removal of the ticket", h.Arrived())
	s.proxy.CutAll()
	s.unlocks(holder, s.b)
	d.next(s, h)
}

func TestQueueOutcomes(t *testing.T) {
	t.Parallel()
	performAll(t, queueScenes, library, redisson)
}

// While calls wait no path stays blocked for long once the weather has cleared, though leases are long and one process is
// frozen still: neither by a grant that nobody took nor by a ticket of a call that is over. Such a grant blocks its path for a
// second, and what is on its way or not answered when it clears takes as long.
func TestNothingStaysBlocked(t *testing.T) {
	const (
		rounds = 3
		foul   = 700 * time.Millisecond
		most   = 2*time.Second + 3*time.Second // three seconds for a busy machine
	)
	c := &crossroads{T: t, server: serve(t), began: time.Now()}
	first := firstSeed()
	t.Logf("repeat with -seed %d", first)
	random := rand.New(rand.NewPCG(first, 3))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, handoff := range []time.Duration{0, -1, 0, 20 * time.Millisecond} {
		proxy := listen(t, c.server.Addr())
		p := start(t, library, stormy, proxy.Addr(), settings{Lease: time.Minute, Poll: poll, Handoff: handoff})
		c.proxies, c.processes = append(c.proxies, proxy), append(c.processes, p)
		for range 6 {
			random := rand.New(rand.NewPCG(random.Uint64(), 0))
			running.Go(func() {
				for ctx.Err() == nil {
					c.cross(ctx, p, random)
				}
			})
		}
	}
	for range rounds {
		for _, p := range c.proxies {
			p.Decide(c.fates(rand.New(rand.NewPCG(random.Uint64(), 0))))
		}
		wait(foul)
		frozen := random.IntN(len(c.proxies))
		c.proxies[frozen].Freeze()
		c.forget(c.processes[frozen])
		wait(foul / 2)
		for _, p := range c.proxies {
			p.Decide(nil)
		}
		took := c.all(4 * most)
		t.Logf("all paths were granted within %v", took)
		require.Less(t, took, most, "a path is blocked")
		c.proxies[frozen].Thaw()
	}
	t.Logf("%d times somebody got a lock, %d grants in queues", c.times.Load(), c.grants.Load())
	require.Greater(t, c.grants.Load(), int64(rounds*len(c.last)))
}

// crossroads are some paths that several processes want all the time.
type crossroads struct {
	*testing.T
	server    *redistest.Server
	proxies   []*netfault.Proxy
	processes []process
	began     time.Time

	times, grants atomic.Int64
	last          [3]atomic.Int64 // when a path was granted, in nanoseconds since it began
}

// cross locks one of the paths and unlocks it.
func (c *crossroads) cross(ctx context.Context, p process, random *rand.Rand) {
	at := random.IntN(len(c.last))
	path, owner := strconv.Itoa(at), lockregistry.ContextWithOwner(context.Background())
	limit := time.Minute
	if random.IntN(2) == 0 { // so that some give up when they are granted the lock
		limit = time.Duration(random.Int64N(int64(2 * time.Second)))
	}
	limited, cancel := context.WithTimeout(owner, limit)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if ok, _ := p.lock(limited, path, -1, 0); !ok {
		return
	}
	c.times.Add(1)
	c.last[at].Store(int64(time.Since(c.began)))
	wait(time.Duration(random.Int64N(int64(4 * time.Millisecond))))
	_ = p.unlock(owner, path)
}

// fates are those of one process while the weather is foul.
func (c *crossroads) fates(random *rand.Rand) func(netfault.Command) netfault.Fate {
	soon := func() time.Duration { return time.Duration(random.Int64N(int64(provisional / 2))) }
	return func(command netfault.Command) (f netfault.Fate) {
		n := random.IntN(1000)
		if command.Name == "grant" {
			c.grants.Add(1)
			switch {
			case n < 30:
				f.Lost = true
			case n < 60:
				f.Held = netfault.Hold(false)
				time.AfterFunc(soon(), f.Held.Release)
			case n < 100:
				f.Twice = true
			}
			return f
		}
		switch {
		case command.Pushed:
		case n < 3:
			place := []int{0, netfault.End}[random.IntN(2)]
			f.Cut = []netfault.Cut{netfault.CutRequest(place), netfault.CutReply(place)}[random.IntN(2)]
		case n < 6:
			f.Held = netfault.Hold(random.IntN(2) == 0)
			time.AfterFunc(soon(), f.Held.Release)
		}
		return f
	}
}

// forget removes what a process holds that is frozen from now on: that may last for as long as its lease does.
func (c *crossroads) forget(p process) {
	for at := range c.last {
		key := keyOf(strconv.Itoa(at))
		if strings.HasPrefix(c.server.Command(c.T, "EVAL", holding, "1", key), idOf(p)) {
			c.server.Command(c.T, "DEL", key)
		}
	}
}

// all waits until each path has been granted, and returns how long that took, or the limit.
func (c *crossroads) all(limit time.Duration) time.Duration {
	since := time.Since(c.began)
	for at := range c.last {
		for c.last[at].Load() < int64(since) {
			if time.Since(c.began) > since+limit {
				return limit
			}
			wait(time.Millisecond)
		}
	}
	return time.Since(c.began) - since
}
