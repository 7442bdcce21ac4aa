package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// storm is a server, some processes, each with a network of its own, and every fault between them, all at once.
type storm struct {
	*testing.T
	server  *redistest.Server
	proxies []*netfault.Proxy
	random  *rand.Rand

	faults    atomic.Int64 // commands that met a fault
	grants    atomic.Int64 // messages about grants in a queue
	poor      string       // why it tests too little; empty: it does not
	events    map[string]int
	restarted []span

	mu      sync.Mutex
	feigned []feigned
}

// feigned is a message about a grant that comes late or twice. The process may then report the hold as lost, since another
// master might have granted it once more.
type feigned struct {
	process int
	key     string
	when    span
}

// weather describes a storm.
type weather struct {
	system   system
	seed     uint64
	lasts    time.Duration
	restarts bool
	outside  int  // how many of the processes are operating-system processes
	mild     bool // most commands meet no fault, and there are few paths, so that queues are long; messages fare as in any storm
	fenced   bool // holds have fencing tokens, and some calls lock several paths
	dense    bool // few goroutines, even fewer paths, and many owners that stay too long
}

const (
	stormProcesses  = 4
	stormGoroutines = 20
	stormPaths      = 16
)

// blow runs a storm, and returns what was seen in it.
func blow(t *testing.T, w weather) ([]section, *storm) {
	t.Helper()
	s := &storm{T: t, server: redistest.Start(t), random: rand.New(rand.NewPCG(w.seed, 0)), events: map[string]int{}}
	counters := filepath.Join(t.TempDir(), "counters")
	var mu sync.Mutex
	var all []section
	var running sync.WaitGroup
	vain := 0
	goroutines, paths, slow := stormGoroutines, stormPaths, 5
	if w.dense {
		goroutines, paths, slow = stormGoroutines/4, stormPaths/8, 25
	}
	if w.mild {
		paths, slow = stormPaths/4, 2
	}
	for i, of := range s.processes(w.system.name == sharing.name) {
		p := listen(t, s.server.Addr())
		s.proxies = append(s.proxies, p)
		of.Fencing = w.fenced
		j := job{
			System: w.system.name, Addr: p.Addr(), Of: of, Number: i, Goroutines: goroutines, Paths: paths,
			Counters: counters, For: w.lasts, Seed: s.random.Uint64(), Slow: slow,
		}
		running.Go(func() {
			do := j.run
			if i < w.outside {
				do = j.runOutside
			}
			sections, denied, err := do()
			mu.Lock()
			defer mu.Unlock()
			all = append(all, sections...)
			vain += denied
			if err != nil {
				t.Error(err)
			}
		})
		p.Decide(s.fates(i, w.mild, of.Lease, rand.New(rand.NewPCG(s.random.Uint64(), 0))))
	}
	stop := make(chan struct{})
	go func() {
		running.Wait()
		close(stop)
	}()
	s.rage(stop, w)
	lost := 0
	excused := 0
	for i := range all {
		x := &all[i]
		if x.Lost {
			lost++
		}
		if x.Stolen && slices.ContainsFunc(s.feigned, x.excusedBy) {
			x.Stolen = false
			excused++
		}
	}
	few := int(w.lasts / time.Second)
	if w.fenced { // some calls hold several paths, and keep others waiting
		few = 0
	}
	t.Logf("seed %d: %d holds, of which %d were lost, %d of them by feigned grants, %d calls in vain, %d grants in queues, "+
		"%d commands came to grief, %v", w.seed, len(all), lost, excused, vain, s.grants.Load(), s.faults.Load(), s.events)
	switch {
	case (w.system.name == library.name || w.system.name == redisson.name) && s.grants.Load() <= int64(few):
		s.poor = "too few grants in queues"
	case w.system.name == permits.name: // see TestPermits_Storm
	case w.system.ours && len(all) <= few*20:
		s.poor = "too few holds for a history"
	case w.system.ours && lost == 0 && !w.mild && !w.fenced:
		s.poor = "no hold was lost"
	case s.faults.Load() == 0:
		s.poor = "no command came to grief"
	}
	return all, s
}

// excusedBy reports whether the message may have made the process report a loss.
func (s section) excusedBy(f feigned) bool {
	return f.process == s.Process && f.key == keyOf(strconv.Itoa(s.Path)) && s.during(f.when)
}

// processes returns settings that differ in everything that a process can choose.
func (s *storm) processes(watched bool) []settings {
	leases := []time.Duration{200 * time.Millisecond, 250 * time.Millisecond, 400 * time.Millisecond, time.Second}
	s.random.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	all := []settings{
		{Wakeup: "poll", Handoff: 0},
		{Wakeup: "auto", Handoff: -1},
		{Wakeup: "pubsub", Handoff: 0, Watched: watched},
		{Wakeup: "tracking", Handoff: 30 * time.Millisecond, Renewal: true},
	}
	for i := range all {
		all[i].Lease = leases[i%len(leases)]
		all[i].Poll = 10 * time.Millisecond
	}
	return all[:stormProcesses]
}

// fates decides what happens to the commands of one process.
func (s *storm) fates(process int, mild bool, lease time.Duration, random *rand.Rand) func(netfault.Command) netfault.Fate {
	places := []netfault.Cut{
		netfault.CutRequest(0), netfault.CutRequest(1), netfault.CutRequest(-1), netfault.CutRequest(netfault.End),
		netfault.CutReply(0), netfault.CutReply(1), netfault.CutReply(-1), netfault.CutReply(netfault.End),
	}
	some := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) }
	soon := func(most time.Duration) time.Duration { // more often short than long
		f := random.Float64()
		return time.Duration(f * f * f * float64(most))
	}
	feign := func(c netfault.Command, delay time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := now()
		s.feigned = append(s.feigned, feigned{process, c.Key, span{at, at + int64(delay+time.Second)}})
	}
	return func(c netfault.Command) (f netfault.Fate) {
		about := c.Key != "" && !c.Pushed
		told := c.Name == "grant" || c.Name == "next" || c.Name == "gone"
		if c.Name == "grant" {
			s.grants.Add(1)
		}
		n := random.IntN(1000)
		if mild && !told && random.IntN(10) > 0 {
			n = 1000
		}
		bad := true
		switch {
		case told && n < 50:
			f.Lost = true
		case told && n < 100:
			f.Twice = true
			feign(c, 0)
		case told && n < 200:
			f.Held = netfault.Hold(random.IntN(8) == 0)
			late := soon(2 * provisional)
			time.AfterFunc(late, f.Held.Release)
			feign(c, late)
		case n < 8:
			f.Cut = places[random.IntN(len(places))]
		case n < 10:
			f.Mute = true
		case n < 30 && about: // under way for longer than its sender waits, most often
			f.Held = netfault.Hold(random.IntN(4) > 0)
			time.AfterFunc(soon(lease*3/2), f.Held.Release)
		case n < 40:
			f.Linger = soon(lease)
		case n < 50:
			f.Delay = soon(lease / 2)
		case n < 200 && c.Name == "obtain": // an honest process counts this time against the lease
			f.Linger = some(40 * time.Millisecond)
		case n < 140 && !c.Pushed:
			f.Delay, f.Linger = some(4*time.Millisecond), some(4*time.Millisecond)
		default:
			bad = false
		}
		if bad {
			s.faults.Add(1)
		}
		return f
	}
}

// rage harms the server and the network as a whole, not single commands, until stop.
func (s *storm) rage(stop <-chan struct{}, w weather) {
	some := func(most time.Duration) time.Duration { return time.Duration(s.random.Int64N(int64(most))) }
	sleep := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-stop:
			return false
		}
	}
	anyone := func() *netfault.Proxy { return s.proxies[s.random.IntN(len(s.proxies))] }
	queue := func() string { return queueOf(strconv.Itoa(s.random.IntN(stormPaths))) }
	kinds := []struct {
		name string
		do   func()
	}{
		{"clients killed", func() { _, _ = s.server.Do("CLIENT", "KILL", "TYPE", "normal") }},
		{"subscribers killed", func() { _, _ = s.server.Do("CLIENT", "KILL", "TYPE", "pubsub") }},
		{"scripts flushed", func() { _, _ = s.server.Do("SCRIPT", "FLUSH") }},
		{"server frozen", func() { s.server.Freeze(); sleep(some(200 * time.Millisecond)); s.server.Thaw() }},
		{"network frozen", func() { p := anyone(); p.Freeze(); sleep(some(300 * time.Millisecond)); p.Thaw() }},
		{"connections cut", func() { anyone().CutAll() }},
		{"all connections cut", func() {
			for _, p := range s.proxies {
				p.CutAll()
			}
		}},
		{"process frozen", func() { p := anyone(); p.Freeze(); time.AfterFunc(some(2*provisional), p.Thaw) }},
		{"queue deleted", func() { _, _ = s.server.Do("DEL", queue()) }},
		{"queue expired", func() { _, _ = s.server.Do("PEXPIRE", queue(), "1") }},
		{"something else in a queue's place", func() { _, _ = s.server.Do("SET", queue(), "something", "PX", "200") }},
		{"server restarted", func() {
			at := span{from: now()}
			s.server.Restart(s.T)
			at.to = now()
			s.restarted = append(s.restarted, at)
		}},
	}
	if !w.restarts {
		kinds = kinds[:len(kinds)-1]
	}
	pause := 600 * time.Millisecond
	if w.mild {
		pause *= 2
	}
	for sleep(some(pause)) {
		kind := kinds[s.random.IntN(len(kinds))]
		s.events[kind.name]++
		kind.do()
	}
}

// runOutside runs the job in an operating-system process of its own.
func (j job) runOutside() ([]section, int, error) {
	child, err := peer.Again(fmt.Sprintf("process %d", j.Number))
	if err != nil {
		return nil, 0, err
	}
	reply, err := child.Do(context.Background(), "main", "job", peer.Fields{"job": peer.Pack(j)})
	if err := errors.Join(err, child.Close()); err != nil {
		return nil, 0, err
	}
	var r report
	err = peer.Unpack(reply.Fields["report"], &r)
	return r.Sections, r.Vain, err
}
