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
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// The commands and messages of the queue are lost, late, doubled or crossed: nobody must believe in a hold that is another's,
// and nobody must wait for a lock that nobody holds. Process a waits behind a network that fails, process b holds the lock.

// provisional is the lease of a grant, see internal/protocol/lua/queue.lua.
const provisional = time.Second

func queueOf(path string) string { return prefix + ":{" + keyOf(path) + "}:waiters" }

// tickets returns the tickets in the queue, first to last.
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

// owns reports whether a process holds the key, according to the server.
func (s *stage) owns(p process) bool {
	s.Helper()
	return strings.HasPrefix(s.do("EVAL", holding, "1", keyOf(s.path)), idOf(p))
}

func (s *stage) isFree() bool {
	s.Helper()
	return s.do("EXISTS", keyOf(s.path)) == "0"
}

// another starts one more process with a good network.
func (s *stage) another() process {
	s.Helper()
	return start(s.T, s.system, single, s.server.Addr(), s.of)
}

// waiting is a call that waits for the lock.
type waiting struct {
	by     process
	ctx    context.Context
	cancel context.CancelFunc
	got    chan error
}

// asks starts such a call.
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

// tracks is linesUp for a process that, when it returns, is already told of changes of the key.
func (s *stage) tracks() *waiting {
	s.Helper()
	h := netfault.Hold(false)
	h.Release()
	s.proxy.Next(netfault.Match{Name: "PTTL"}, netfault.Fate{Held: h})
	w := s.linesUp(s.a)
	s.deliver(h)
	return w
}

// listens is tracks for a process that will not be told of the next change of the key, so that it relies on messages.
func (s *stage) listens() *waiting {
	s.Helper()
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "invalidate"}, netfault.Fate{Lost: true})
	return w
}

// blind hides from process a what its own looks find, which come at any time, until end is called. If a look was held back by
// then, end waits until the process has asked for a ticket again.
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

// Commands about a ticket: ask for one, and look at it.
var (
	ask  = netfault.Match{Name: "obtain", Asks: "enqueue"}
	look = netfault.Match{Name: "obtain", Asks: "check"}
)

// times returns how often process a has sent a command.
func (s *stage) times(m netfault.Match) int { return len(s.proxy.Seen(m)) }

const unopened = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return redis.call('ZADD', KEYS[1], 'XX', -now, 'open', -now, 'wide')`

// passes unlocks such that the lock goes to the first in the queue, not to a call without a ticket.
func (s *stage) passes(ctx context.Context, p process) {
	s.Helper()
	s.do("EVAL", unopened, "1", queueOf(s.path))
	s.unlocks(ctx, p)
}

// has checks that a waiting call gets the lock in time, and that its process really owns it.
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

// ends lets a waiting call get the lock, releases it, and checks that nothing stays behind.
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

// givesUp cancels a waiting call.
func (s *stage) givesUp(w *waiting) {
	s.Helper()
	w.cancel()
	s.is(arrives(s, "the end of a wait", w.got), context.Canceled)
}

// unbelieved checks that process a does not believe a message about a hold that it does not have. The process has reacted once
// it has sent one more command.
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

// tells publishes a message for process a, as scripts do, about the hold that another message named.
func (s *stage) tells(what, ms string, about netfault.Command) {
	s.Helper()
	number := strings.TrimPrefix(about.Value, idOf(s.a))
	s.do("PUBLISH", prefix+"-channel@"+strings.TrimSuffix(idOf(s.a), ":"), what+" "+number+" "+ms+" "+keyOf(s.path))
}

// granted returns the latest grant that process a was told of.
func (s *stage) granted() netfault.Command {
	s.Helper()
	var seen []netfault.Command
	s.await("a grant", func() bool {
		seen = s.proxy.Seen(netfault.Match{Name: "grant"})
		return len(seen) > 0
	})
	return seen[len(seen)-1]
}

// patient has a call wait for the wake-up connection even on a busy machine, instead of polling.
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

// askInVain is ask for a call that then gives up: nobody waits for the ticket.
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

// look breaks a look at the queue when nothing has happened there.
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

// lookAtHold breaks a look that would find the hold granted, after the message about the grant was lost.
func (b breakage) lookAtHold(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "grant"}, netfault.Fate{Lost: true})
	s.proxy.Next(look, b.fate)
	s.passes(holder, s.b)
	s.ends(w)
}

// leave breaks the removal of a ticket, which must not hold up the next one in the queue.
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

// message breaks the message about a grant.
func (b breakage) message(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	w := s.tracks()
	s.proxy.Next(netfault.Match{Name: "grant"}, b.fate)
	s.passes(holder, s.b)
	s.ends(w)
}

// messageTwice: a second message may be taken for that of another master, but then the hold is reported lost.
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
	case l := <-lost:
		if errors.Is(l.why, fault.LeaseOver.Err()) || errors.Is(l.why, fault.RenewedTooLate.Err()) {
			s.free() // the machine stood still for the second of the first lease
			return
		}
		s.violatedf("the message of the very grant is taken for that of another: %v", l.why)
	default:
	}
	s.unlocks(w.ctx, s.a)
	s.free()
}

// messageTooLate: the message arrives when the lease of the grant is over, and another process has the lock.
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

// messageOfOld: a message about an earlier attempt reaches a call that waits again, and that knows its ticket is in the queue.
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

// messageToNobody: a grant for a ticket that no call knows is released at once, not when its lease is over.
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

// messageCrossed: a grant arrives when the call has just ended, and the removal of its ticket has not reached the server.
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

// leaveCrosses: a ticket is granted the lock while its removal is on its way. The removal passes the lock on.
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

// leaveTwice: the removal of a ticket arrives a second time when the process waits again.
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

// grantToFrozen: a grant to a frozen process blocks the path for a provisional lease, and the process does not believe it
// later.
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

// grantPastDead: tickets of dead processes hold nobody up.
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

// grantOnce: a grant removes the ticket, so that the owner is not served again when it unlocks.
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

// grantLengthened: a granted hold soon gets its whole lease.
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

// look delays a look until a later hold.
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

// TestNothingStaysBlocked expects that, while calls wait, no path stays blocked for long once the faults have stopped, though
// leases are long and one process is still frozen. A grant that nobody took may block its path for a second, and commands that
// were under way when the faults stopped may take another one.
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

// crossroads is a few paths that several processes want all the time.
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

// fates decides what happens to the commands of one process while the weather is foul.
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

// forget removes the holds of a process that is frozen from now on: they may last for a whole lease.
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
