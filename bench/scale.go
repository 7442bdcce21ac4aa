package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// fleetRun is a fleet on a deployment. Its figures make one column of a table.
type fleetRun struct {
	name       string // for -only; all begin with "fleet"
	deployment string
	contender  string
	processes  int // each of which is one member; 0: a few processes share the members
	members    int
	quick      bool // it belongs to a quick run, with fewer members
}

// fleetRuns in the order in which they run. A fleet of processes is cut to the memory that there is, one of registries to the
// connections that a server may have.
var fleetRuns = []fleetRun{
	{"fleet-single-processes", onSingle, thisLibrary.name, 300, 300, true},
	{"fleet-single-1000", onSingle, thisLibrary.name, 0, 1000, true},
	{"fleet-single-3000", onSingle, thisLibrary.name, 0, 3000, false},
	{"fleet-single-10000", onSingle, thisLibrary.name, 0, 10_000, false},
	{"fleet-single-rueidislock", onSingle, rueidislockPeer.name, 0, 1000, false},
	{"fleet-single-redisson", onSingle, redissonName, 0, 200, false},
	{"fleet-sentinel-processes", onSentinel, thisLibrary.name, 300, 300, false},
	{"fleet-sentinel-1000", onSentinel, thisLibrary.name, 0, 1000, true},
	{"fleet-sentinel-10000", onSentinel, thisLibrary.name, 0, 10_000, false},
	{"fleet-cluster-processes", onCluster, thisLibrary.name, 300, 300, false},
	{"fleet-cluster-1000", onCluster, thisLibrary.name, 0, 1000, true},
	{"fleet-cluster-10000", onCluster, thisLibrary.name, 0, 10_000, false},
}

const (
	quickProcesses, quickMembers = 50, 200
	membersOfProcess             = 500 // at most, if members share processes
	connectionsOfMember          = 2   // to one server, while it waits
)

// pace is how long the parts of a fleet's run take.
type pace struct {
	watch  time.Duration // how long the servers are watched
	storm  time.Duration
	settle func(members int) time.Duration // until all wait, and have had the first look at their tickets
}

var (
	thoroughPace = pace{20 * time.Second, 5 * time.Second, func(n int) time.Duration { return 4*time.Second + time.Duration(n)*time.Millisecond }}
	quickPace    = pace{time.Second, time.Second, func(n int) time.Duration { return 500*time.Millisecond + time.Duration(n)*time.Millisecond }}
)

// fleetWork is a fleet at work.
type fleetWork struct {
	fleetRun

	ctx     context.Context
	pace    pace
	servers *fleetServers
	workers fleet // the last one guards paths
	musters []muster
	before  []fleetLook // of the servers before there are members
	figures fleetFigures
}

// fleets runs the fleets whose names begin with only. It writes their figures into the repository at root, if there is one, and
// the page.
func fleets(ctx context.Context, only, binary, root string, quick bool, narration io.Writer) error {
	var failed []error
	ran := 0
	one := slices.ContainsFunc(fleetRuns, func(run fleetRun) bool { return run.name == only })
	for _, run := range fleetRuns {
		if one && run.name != only || !strings.HasPrefix(run.name, only) || quick && !run.quick {
			continue
		}
		ran++
		at := thoroughPace
		if quick {
			at = quickPace
			run.processes, run.members = min(run.processes, quickProcesses), min(run.members, quickMembers)
			if run.processes > 0 {
				run.members = run.processes
			}
		}
		fmt.Fprintf(narration, "%s %s\n", time.Now().Format(time.TimeOnly), run.name)
		figures, err := run.measure(ctx, at, binary, narration)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", run.name, err))
			fmt.Fprintln(narration, err)
			if ctx.Err() != nil || len(figures) == 0 {
				break
			}
			figures = append(figures, fleetFigure{"the fleet", "it failed", err.Error()})
		}
		fmt.Printf("\n%s\n\n", run.name)
		figures.grid().print(os.Stdout)
		if root != "" {
			failed = append(failed, figures.keep(filepath.Join(root, "bench", "results"), run))
		}
	}
	if ran == 0 {
		failed = append(failed, fmt.Errorf("no fleet begins with %q", only))
	}
	if root != "" {
		failed = append(failed, writeFleets(root))
	}
	return errors.Join(failed...)
}

// partsOfPeers are the parts that a fleet of a peer runs. A release of rueidislock wakes all waiters of the path: a fleet on
// one path does not finish within minutes.
var partsOfPeers = []string{"open", "idle", "failover"}

// measure runs a fleet through all its parts.
func (run fleetRun) measure(ctx context.Context, at pace, binary string, narration io.Writer) (figures fleetFigures, err error) {
	p := &program{}
	err = p.run(func() error {
		w := &fleetWork{fleetRun: run, ctx: ctx, pace: at, servers: startServers(p, run.deployment, binary)}
		if run.contender == redissonName {
			err := w.redissons()
			figures = w.figures
			return err
		}
		if err := w.cut(); err != nil {
			return err
		}
		defer func() { _ = w.workers.kill() }()
		for _, part := range []struct {
			name string
			do   func() error
		}{
			{"open", w.open}, {"idle", w.idle}, {"one path", w.onePath}, {"own paths", w.ownPaths}, {"storm", w.storm},
			{"failover", w.failover}, {"after FLUSHALL", w.afterFlush},
		} {
			if run.contender != thisLibrary.name && !slices.Contains(partsOfPeers, part.name) {
				continue
			}
			fmt.Fprintf(narration, "%s   %s\n", time.Now().Format(time.TimeOnly), part.name)
			err := part.do()
			figures = w.figures
			if err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
		return nil
	})
	return figures, err
}

// kill kills all workers at once: they have nothing to save.
func (f fleet) kill() error {
	errs := make([]error, 0, len(f))
	for _, p := range f {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// cut makes the fleet as large as this machine can bear, and starts its workers, without members.
func (w *fleetWork) cut() error {
	if w.processes == 0 {
		w.members = min(w.members, mostClients()/connectionsOfMember-w.members/500)
	} else {
		bytes, err := w.memoryOfOne()
		if err != nil {
			return err
		}
		w.processes = min(w.processes, int(freeMemory()/2/bytes))
		w.members = w.processes
		w.add("the fleet", "memory of a process", byteCount, float64(bytes))
	}
	workers, each := w.processes, 1
	if w.processes == 0 {
		workers = (w.members + membersOfProcess - 1) / membersOfProcess
		each = membersOfProcess
	}
	w.add("the fleet", "processes", whole, float64(workers))
	w.add("the fleet", "registries", whole, float64(w.members))
	for first := 0; first < w.members; first += each {
		w.musters = append(w.musters, muster{w.contender, w.servers.url, min(each, w.members-first), first, w.processes == 0})
	}
	for i := range len(w.musters) + 1 {
		p, err := startWorker(fmt.Sprintf("worker %d", i))
		if err != nil {
			return errors.Join(err, w.workers.kill())
		}
		w.workers = append(w.workers, p)
	}
	return nil
}

// memoryOfOne returns how much memory a process with one member shares with no other.
func (w *fleetWork) memoryOfOne() (int64, error) {
	p, err := startWorker("a worker to weigh")
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	if _, err := p.ask(w.ctx, "main", doEnlist, peer.Fields{"members": peer.Pack(muster{w.contender, w.servers.url, 1, 0, false})}); err != nil {
		return 0, err
	}
	reply, err := p.ask(w.ctx, "main", doMemory, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(reply.Fields["bytes"], 10, 64)
}

// freeMemory returns how much memory of the machine is available.
func freeMemory() (bytes int64) {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "MemAvailable:" {
			kilobytes, _ := strconv.ParseInt(words[1], 10, 64)
			return kilobytes << 10
		}
	}
	return 1 << 30
}

// fleetLimit is ample for what a whole fleet does at once.
const fleetLimit = 5 * time.Minute

// order sends a request to all workers that have members, and returns their replies.
func (w *fleetWork) order(what string, fields func(i int) peer.Fields) ([]peer.Fields, error) {
	ctx, cancel := context.WithTimeout(w.ctx, fleetLimit)
	defer cancel()
	calls := make([]*peer.Call, len(w.musters))
	for i := range w.musters {
		calls[i] = w.workers[i].Send("main", what, fields(i))
	}
	replies, errs := make([]peer.Fields, len(calls)), make([]error, len(calls))
	for i, call := range calls {
		var reply peer.Reply
		reply, errs[i] = call.Wait(ctx)
		replies[i] = reply.Fields
	}
	for _, err := range errs { // one is enough
		if err != nil {
			return nil, err
		}
	}
	return replies, nil
}

func (w *fleetWork) open() (err error) {
	if w.before, err = look(w.servers.data); err != nil {
		return err
	}
	began := time.Now()
	_, err = w.order(doEnlist, func(i int) peer.Fields { return peer.Fields{"members": peer.Pack(w.musters[i])} })
	w.add("the fleet", "all opened, and had a lock, after", nanoseconds, float64(time.Since(began)))
	return err
}

// watch records what the servers do while nothing happens.
func (w *fleetWork) watch(part string) error {
	time.Sleep(w.pace.settle(w.members))
	before, err := look(w.servers.data)
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(w.pace.watch)
	after, err := look(w.servers.data)
	if err != nil {
		return err
	}
	seconds, n := time.Since(began).Seconds(), float64(w.members)
	since := func(of func(fleetLook) float64, from []fleetLook) float64 { return total(after, of) - total(from, of) }
	connections := since(func(l fleetLook) float64 { return l.connections }, w.before)
	w.add(part, "connections for each", count, connections/n)
	w.add(part, "server memory for each connection", byteCount, since(func(l fleetLook) float64 { return l.memory }, w.before)/connections)
	w.add(part, "commands", perSecond, since(func(l fleetLook) float64 { return l.commands }, before)/seconds)
	w.add(part, "PINGs of clients", perSecond, since(func(l fleetLook) float64 { return l.pings }, before)/seconds)
	w.busiest(part, before, after, seconds)
	return nil
}

// busiest records the CPU time of the server that used most of it.
func (w *fleetWork) busiest(part string, before, after []fleetLook, seconds float64) {
	most := 0.0
	for i := range after {
		most = max(most, after[i].cpu-before[i].cpu)
	}
	w.add(part, "CPU of the busiest server", share, most/seconds)
}

func (w *fleetWork) idle() error {
	if err := w.watch("idle"); err != nil {
		return err
	}
	most := 0.0
	for _, s := range w.servers.sentinels {
		l, err := lookAt(s)
		if err != nil {
			return err
		}
		most = max(most, l.connections)
	}
	if most > 0 {
		w.add("idle", "connections of a Sentinel for each", count, most/float64(w.members))
	}
	return nil
}

// guard has the last worker hold the paths that members will want.
func (w *fleetWork) guard(path string) error {
	all := muster{Contender: w.contender, URL: w.servers.url, Members: w.members}
	ctx, cancel := context.WithTimeout(w.ctx, fleetLimit)
	defer cancel()
	_, err := w.workers[len(w.workers)-1].Do(ctx, "main", doGuard, peer.Fields{"members": peer.Pack(all), "path": path})
	return err
}

func (w *fleetWork) free() error {
	_, err := w.workers[len(w.workers)-1].ask(w.ctx, "main", doFree, nil)
	return err
}

// try has all members lock a path once.
func (w *fleetWork) try(path string, at time.Time) error {
	micros := strconv.FormatInt(at.UnixMicro(), 10)
	_, err := w.order(doTry, func(int) peer.Fields { return peer.Fields{"path": path, "at": micros} })
	return err
}

// served records how long after an event the members got their paths.
func (w *fleetWork) served(part string, since time.Time) error {
	replies, err := w.order(doServed, func(int) peer.Fields { return nil })
	if err != nil {
		return err
	}
	var after []float64
	failed, never := 0, 0
	for _, reply := range replies {
		var at []int64
		if err := peer.Unpack(reply["at"], &at); err != nil {
			return err
		}
		for _, micros := range at {
			if micros == 0 {
				never++
				continue
			}
			after = append(after, max(0, float64(time.UnixMicro(micros).Sub(since))))
		}
		n, _ := strconv.Atoi(reply["errors"])
		failed += n
	}
	if len(after) == 0 {
		return fmt.Errorf("nobody was served within %v", trialLimit)
	}
	w.add(part, "one is served after", nanoseconds, slices.Min(after))
	w.add(part, "half are served after", nanoseconds, median(after))
	w.add(part, "99 % are served after", nanoseconds, quantile(after, 0.99))
	w.add(part, "all are served after", nanoseconds, slices.Max(after))
	if never > 0 {
		w.add(part, fmt.Sprintf("not served within %v", trialLimit), whole, float64(never))
	}
	if failed > 0 {
		w.add(part, "calls that failed", whole, float64(failed))
	}
	return nil
}
