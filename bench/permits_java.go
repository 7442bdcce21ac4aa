package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// redissonPermits is RPermitExpirableSemaphore.
var redissonPermits = contender{name: "Redisson 4.7", role: rival}

// Requests that only the Java programs know, whose permits have ids.
const (
	doEnter = "enter"        // acquire a permit; the reply's field "value" is its id
	doLeave = "leave"        // release "permit"; the reply's field "value" says how many were there
	doBegin = "beginpermits" // set the number of a semaphore that has none
)

// javaClients are clients of Redisson. A JVM for each would be too many for one machine, so a few JVMs share them.
type javaClients struct {
	missing string // why there are none; empty: they are there
	jvms    fleet
	clients [][]party // by JVM
}

// clientJVMs is how many JVMs share the clients.
const clientJVMs = 2

// javaClients starts as many clients as the largest handoff has processes, and warms them up.
func (s *suite) javaClients() (all javaClients, err error) {
	project := peer.Java{Dir: filepath.Join("..", "test", "interop", "jvm")}
	if all.missing = s.noJava(project); all.missing != "" {
		s.say("Redisson is left out: %s", all.missing)
		return all, nil
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return all, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, all.close())
		}
	}()
	for i := range clientJVMs {
		started, err := project.Start(fmt.Sprintf("%s, %d", redissonPermits.name, i), peer.Redisson)
		if err != nil {
			return all, err
		}
		all.jvms = append(all.jvms, process{started})
	}
	most := slices.Max(permitProcesses)
	for i, jvm := range all.jvms {
		var own []party
		for n := range most / clientJVMs {
			p := party{process: jvm, registry: fmt.Sprintf("%s, %d, %d", redissonPermits.name, i, n), byID: true}
			if _, err := p.ask(s.ctx, "main", doOpen, peer.Fields{"registry": p.registry, "port": port, "prefix": "java"}); err != nil {
				return all, fmt.Errorf("open %s: %w", p.registry, err)
			}
			own = append(own, p)
		}
		all.clients = append(all.clients, own)
	}
	for _, own := range all.clients {
		warmed := giver{redissonPermits, own, 1}
		if _, err := s.permitTimes(warmed, "warm", 2000); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (r javaClients) close() error { return r.jvms.close() }

// parties returns n clients, taken from each JVM in turn.
func (r javaClients) parties(n int) (some []party) {
	for i := range n {
		some = append(some, r.clients[i%len(r.clients)][i/len(r.clients)])
	}
	return some
}

// how says how Redisson takes part.
func (r javaClients) how() string {
	if r.missing != "" {
		return " Redisson is left out: " + r.missing + "."
	}
	return fmt.Sprintf(" “%s” is RPermitExpirableSemaphore: in place of each process a client with connections of its own, all in %d "+
		"JVMs that run with the first compiler tier only.", redissonPermits.name, clientJVMs)
}

// begin sets the number of permits of a semaphore of Redisson, without which nobody gets one.
func (s *suite) begin(g giver, path string) error {
	first := g.parties[0]
	if !first.byID {
		return nil
	}
	fields := peer.Fields{"registry": first.registry, "path": path, "n": strconv.Itoa(g.permits)}
	_, err := first.ask(s.ctx, first.thread(path), doBegin, fields)
	return err
}

// permitTimes returns how long the first party took to acquire and release a permit of its own path, n times.
func (s *suite) permitTimes(g giver, path string, n int) ([]float64, error) {
	if err := s.begin(g, path); err != nil {
		return nil, err
	}
	first := g.parties[0]
	took := make([]float64, n)
	for i := range took {
		held, err := first.lock(path).Wait(s.ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
		released, err := first.unlock(s.ctx, path, held)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
		took[i] = float64((held.End.Sub(held.Begin) + released.End.Sub(released.Begin)).Nanoseconds())
	}
	return took, nil
}

// permitsOfOneThread measures how long it takes to acquire and release a permit that nobody else wants, compared with Redisson.
func (s *suite) permitsOfOneThread(java javaClients) (*result, error) {
	const each = 200
	rounds := either(s, 10, 4)
	r := &result{
		scenario: "permits-thread",
		title:    "A permit of four, one thread, beside Redisson",
		how: fmt.Sprintf("Processes that are driven over pipes. How long acquire takes and how long release takes, together: %d times a round, "+
			"the median. %d rounds, in shuffled order. Nobody waits.", each, rounds) + java.how(),
		floor: plainLock.name, metrics: []metric{javaTime},
	}
	workers, err := s.fleet(1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = workers.close() }()
	rows, err := s.givers(workers, 4, java)
	if err != nil {
		return nil, err
	}
	err = turns(s, rounds+1, rows, func(round int, g giver) error {
		took, err := s.permitTimes(g, "alone", each)
		if err == nil && round > 0 { // the first round warms up
			r.record(g.contender, map[string]float64{javaTime.name: median(took)})
		}
		return err
	})
	return r, err
}
