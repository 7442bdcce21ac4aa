package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

var (
	handoffMedian = metric{name: "p50", unit: nanoseconds, compared: true}
	handoffTail   = metric{name: "p99", unit: nanoseconds, compared: true}
	handoffs      = metric{name: "handoffs", unit: count}

	sectionRate   = metric{name: "sections", unit: perSecond, higher: true, compared: true}
	passedOn      = metric{name: "to another process", unit: share, higher: true}
	leastShare    = metric{name: "least share", unit: share, higher: true}
	greatestShare = metric{name: "greatest share", unit: share}
	clientCPU     = metric{name: "client CPU", unit: nanoseconds}
)

// handoff has processes want the same path, one at a time: it shows how long a lock takes from one to the next when nothing
// else goes on. In rush all want it at once.
func (s *suite) handoff() ([]*result, error) {
	const most = 8
	workers, err := s.fleet(most, s.opensAll(contenders, 0)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	results := make([]*result, 0, 2)
	for _, n := range []int{2, most} {
		latency, err := s.handoffLatency(workers[:n])
		if err != nil {
			return nil, err
		}
		results = append(results, latency)
	}
	return results, nil
}

// party takes part in a relay: a process, or a client in one, that has opened a lock or semaphores.
type party struct {
	process
	registry string // the name under which it has opened them
	byID     bool   // Redisson's semaphores: a permit is released by its id
}

// parties are the processes of a fleet, each of which has opened a contender.
func (f fleet) parties(registry string) []party {
	all := make([]party, len(f))
	for i, p := range f {
		all[i] = party{process: p, registry: registry}
	}
	return all
}

// thread is a thread for this relay only: if it hangs, it must not block another relay.
func (p party) thread(path string) string { return p.registry + " " + path }

func (p party) lock(path string) *peer.Call {
	fields, what := peer.Fields{"registry": p.registry, "path": path}, doLock
	if p.byID {
		what, fields["lease"] = doEnter, peer.InMillis(defaultLease)
	}
	return p.Send(p.thread(path), what, fields)
}

// unlock releases what a reply to lock has granted.
func (p party) unlock(ctx context.Context, path string, held peer.Reply) (peer.Reply, error) {
	fields := peer.Fields{"registry": p.registry, "path": path}
	if !p.byID {
		return p.ask(ctx, p.thread(path), doUnlock, fields)
	}
	fields["permit"] = held.Fields["value"]
	reply, err := p.ask(ctx, p.thread(path), doLeave, fields)
	if err == nil && reply.Fields["value"] != "1" {
		err = errPermitLost
	}
	return reply, err
}

var errPermitLost = errors.New("the permit was lost")

// relay is a lock, or some permits, handed round among parties: some hold, the others wait.
type relay struct {
	s       *suite
	parties []party
	path    string
	settle  time.Duration // ample for a party to begin to wait
	poll    time.Duration // the contender's longest pause between two tries
	permits int           // how many hold at a time
}

// settling is longer than a waiter on this machine needs to try, subscribe and try again.
const settling = 3 * time.Millisecond

// stallLimit is longer than any peer pauses between two tries: a waiter that has not got a free lock by then sleeps.
const stallLimit = 3 * time.Second

var errStalled = errors.New("the path was free, and nobody who waited for it woke up")

// run hands the lock over up to most times or for limit, and returns how long each handoff took: from just before the unlock
// until the next process has the lock. The holder keeps the lock for a random part of the contender's poll interval; otherwise
// all releases would fall on the same moment between two tries.
func (r relay) run(most int, limit time.Duration) ([]time.Duration, error) {
	type taken struct {
		party int
		reply peer.Reply
		err   error
	}
	next := make(chan taken, len(r.parties))
	queue := func(i int) {
		call := r.parties[i].lock(r.path)
		go func() {
			reply, err := call.Wait(r.s.ctx)
			next <- taken{i, reply, err}
		}()
	}
	release := func(t taken) (peer.Reply, error) { return r.parties[t.party].unlock(r.s.ctx, r.path, t.reply) }
	for i := range r.parties {
		queue(i)
	}
	follow := func() (taken, error) {
		select {
		case t := <-next:
			return t, t.err
		case <-time.After(stallLimit):
			return taken{}, errStalled
		}
	}
	var took []time.Duration
	var holders []taken // the oldest first
	for range r.permits {
		t, err := follow()
		if err != nil {
			return nil, err
		}
		holders = append(holders, t)
	}
	pass := func() (took time.Duration, err error) {
		released, err := release(holders[0])
		if err != nil {
			return 0, err
		}
		now, err := follow()
		holders = append(holders[1:], now)
		return now.reply.End.Sub(released.Begin), err
	}
	for began := time.Now(); len(took) < most && time.Since(began) < limit; {
		time.Sleep(r.settle + rand.N(r.poll+1))
		first := holders[0].party
		passed, err := pass()
		if err != nil {
			return took, err
		}
		took = append(took, passed)
		queue(first)
	}
	for range len(r.parties) - r.permits {
		if _, err := pass(); err != nil {
			return took, err
		}
	}
	for _, last := range holders {
		if _, err := release(last); err != nil {
			return took, err
		}
	}
	return took, nil
}

// latencies are the values of one round of a relay.
func latencies(took []time.Duration) map[string]float64 {
	values := make([]float64, len(took))
	for i, d := range took {
		values[i] = float64(d.Nanoseconds())
	}
	return map[string]float64{
		handoffMedian.name: quantile(values, 0.5),
		handoffTail.name:   quantile(values, 0.99),
		handoffs.name:      float64(len(took)),
	}
}

// handoffLatency gives the contenders turns of a few handoffs within each round, because the kernel may place processes on
// cores in a lucky or an unlucky way for as long as a second. A contender that polls slowly has one long turn a round: where
// the processes run makes no difference to it.
func (s *suite) handoffLatency(workers fleet) (*result, error) {
	const each, slow = 12, 10 * time.Millisecond
	turnsEach, limit := either(s, 10, 5), either(s, 800*time.Millisecond, 400*time.Millisecond)
	rounds := either(s, 7, 3)
	stalled := map[string]int{}
	r := &result{
		scenario: fmt.Sprintf("handoff-%d", len(workers)),
		title:    fmt.Sprintf("Handoff, %d processes, one path", len(workers)),
		how: fmt.Sprintf("From the moment at which the holder calls unlock to the moment at which lock returns in the next process; "+
			"the others wait already. %d rounds of %d handoffs, in turns of %d in shuffled order; %v a round for who pauses for longer "+
			"than %v between tries. The p99 is the median of the rounds' p99, and the slowest where a round has few.",
			rounds, turnsEach*each, each, limit, slow),
		metrics: []metric{handoffMedian, handoffTail, handoffs},
	}
	round := func(n int) error {
		took := map[string][]time.Duration{}
		err := turns(s, turnsEach, contenders, func(turn int, c contender) error {
			most := each
			if c.poll > slow {
				if most = each * turnsEach; turn > 0 {
					return nil
				}
			}
			path := fmt.Sprintf("relay-%d-%d-%d", len(workers), n, turn)
			more, err := relay{s, workers.parties(c.name), path, settling, c.poll, 1}.run(most, limit)
			if errors.Is(err, errStalled) {
				stalled[c.name]++
				err = nil
			}
			took[c.name] = append(took[c.name], more...)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		})
		if n > 0 { // the first turn only warms up
			for _, c := range contenders {
				r.record(c, latencies(took[c.name]))
			}
		}
		return err
	}
	var err error
	for n := 0; n <= rounds && err == nil; n++ {
		err = round(n)
	}
	for name, n := range stalled {
		r.notes = append(r.notes, fmt.Sprintf("%s stopped in %d of %d turns: %v for %v. What it had done until then counts.",
			name, n, (rounds+1)*turnsEach, errStalled, stallLimit))
	}
	return r, err
}

// rush has one goroutine of each process lock and unlock as fast as it can, without and with work in the section.
func (s *suite) rush(processes int) ([]*result, error) {
	// Of the polling peers, the eager variants take part, which favours the peers.
	var inRush []contender
	for _, c := range contenders {
		if c.poll <= eagerRetry {
			inRush = append(inRush, c)
		}
	}
	workers, err := s.fleet(processes, s.opensAll(inRush, 0)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	for _, p := range workers {
		for _, c := range inRush {
			if _, err := p.ask(s.ctx, "warm up", doHold, peer.Fields{"registry": c.name, "path": "warm up"}); err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	empty, err := s.rushWith(workers, inRush, 0)
	if err != nil {
		return nil, err
	}
	worked, err := s.rushWith(workers, inRush, 2*time.Millisecond)
	return []*result{empty, worked}, err
}

func (s *suite) rushWith(workers fleet, of []contender, section time.Duration) (*result, error) {
	rounds, length := either(s, 10, 4), either(s, 500*time.Millisecond, 250*time.Millisecond)
	if section > 0 { // fewer and longer turns, or there would be too few sections for each process
		rounds, length = rounds/2, 4*length
	}
	r := &result{
		scenario: fmt.Sprintf("rush-%d", len(workers)),
		title:    fmt.Sprintf("%d processes lock and unlock one path as fast as they can", len(workers)),
		how: fmt.Sprintf("%d rounds of %v for each contender, in shuffled order. Empty sections, one goroutine in each process, which "+
			"comes back at once.", rounds, length),
		floor:   directedFloor.name,
		metrics: []metric{sectionRate, handoffMedian, handoffTail, passedOn, leastShare, greatestShare, serverCPU, clientCPU},
		notes: []string{
			"A flag in memory that the processes share showed that nobody was ever inside with another. p50 and p99 are of handoffs: " +
				"from before unlock to after lock in another process. “To another process” is " +
				"the part of sections before which another process had the lock: a contender that seldom lets others have it is quick, since the " +
				"next section needs no handoff. Shares are parts of an even share: 100 % is fair, 0 % was starved. " +
				"“Client CPU” is that of all the processes together, for each section.",
			"Calls get contexts like those of HTTP requests, which have no deadline and can be cancelled at any time. With contexts that " +
				"have a deadline, rueidis lets the floors' goroutines read their connections themselves, and does not look at a cancellation: " +
				"`go run . -only rush -deadlines` shows how much quicker they are then.",
		},
	}
	if section > 0 {
		r.scenario += "-busy"
		r.title += fmt.Sprintf(", with sections of %v", section)
		r.how = fmt.Sprintf("As before, but each section sleeps for %v. %d rounds of %v.", section, rounds, length)
		r.notes = nil
	}
	err := turns(s, rounds, of, func(round int, c contender) error {
		path := fmt.Sprintf("%s-%d", r.scenario, round)
		values, err := s.compete(workers, contention{registry: c.name, path: path, goroutines: 1, section: section, deadlines: s.deadlines}, length)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.record(c, values)
		return nil
	})
	r.inOrder()
	return r, err
}

// compete has all workers contend for a path at once.
func (s *suite) compete(workers fleet, c contention, length time.Duration) (map[string]float64, error) {
	place, file, err := newMeeting()
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(file) }()
	place.reset()
	ready := 30*time.Millisecond + time.Duration(len(workers))*2*time.Millisecond
	c.meeting, c.from = file, time.Now().Add(ready)
	c.to = c.from.Add(length)
	before, err := s.observer.load(s.ctx)
	if err != nil {
		return nil, err
	}
	calls := make([]*peer.Call, len(workers))
	for i, p := range workers {
		c.as = i
		calls[i] = p.Send("contend", doContend, c.fields())
	}
	time.Sleep(time.Until(c.to))
	after, err := s.observer.load(s.ctx)
	passed := place.passed.Load()
	var (
		all, cpu, lost float64
		took           []float64
	)
	counts := make([]float64, len(calls))
	for i, call := range calls {
		reply, failed := call.Wait(s.ctx)
		sections, err1 := strconv.ParseFloat(reply.Fields["sections"], 64)
		micros, err2 := strconv.ParseFloat(reply.Fields["cpu"], 64)
		gone, err3 := strconv.ParseFloat(reply.Fields["lost"], 64)
		waits, err4 := handoffTimesOf(reply.Fields["took"])
		if failed = errors.Join(failed, err1, err2, err3, err4); failed != nil {
			return nil, failed
		}
		took = append(took, waits...)
		counts[i] = sections
		all += sections
		lost += gone
		cpu += micros * 1e3
	}
	if err != nil {
		return nil, err
	}
	if all == 0 {
		return nil, fmt.Errorf("no section within %v", length)
	}
	load := s.observer.between(before, after)
	even := all / float64(len(calls))
	return map[string]float64{
		sectionRate.name:   all / length.Seconds(),
		handoffMedian.name: quantile(took, 0.5),
		handoffTail.name:   quantile(took, 0.99),
		passedOn.name:      float64(passed) / all,
		leastShare.name:    slices.Min(counts) / even,
		greatestShare.name: slices.Max(counts) / even,
		serverCPU.name:     load.cpu * 1e9 / all,
		clientCPU.name:     cpu / all,
		timePerOp.name:     float64(length.Nanoseconds()) / all,
		serverCalls.name:   load.commands() / all,
		readsLost.name:     lost,
		insideAtOnce.name:  float64(place.most.Load()),
	}, nil
}
