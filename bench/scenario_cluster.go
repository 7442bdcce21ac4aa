package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const clusterNodes = 3

// singleServer is this library on the server of the other scenarios, with which the cluster is compared.
var singleServer = contender{name: "single server", role: floor}

// side is the cluster or the single server, with its load.
type side struct {
	contender
	addr   string
	client rueidis.Client
}

// The load: processes with a registry each, which all want the same paths, and hold each for a while.
const (
	loadProcesses = 4
	loadPaths     = 4
	loadSection   = 2 * time.Millisecond
)

// redissonFormat is the layout for Redisson's format in requests to a worker.
const redissonFormat = "redisson"

// clusterWake measures how soon a waiter gets a released lock, on a cluster and on a single server in turns, while other
// registries hand locks over.
func (s *suite) clusterWake() ([]*result, error) {
	nodes, err := redistest.RunCluster(s.binary, clusterNodes)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, n := range nodes {
			n.Stop()
		}
	}()
	sides := []side{{contender: singleServer, addr: s.addr}, {contender: thisLibrary, addr: nodes[0].Addr()}}
	var open []peer.Fields
	for i := range sides {
		d := &sides[i]
		if d.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{d.addr}, DisableCache: true}); err != nil {
			return nil, err
		}
		defer d.client.Close()
		open = append(open, peer.Fields{"registry": d.name, "contender": thisLibrary.name, "addr": d.addr},
			peer.Fields{"registry": d.inRedisson(), "contender": thisLibrary.name, "addr": d.addr, "layout": redissonFormat})
	}
	measured, err := s.fleet(2, open...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = measured.close() }()
	load, err := s.fleet(loadProcesses, open...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = load.close() }()

	const each = 25
	turnsEach, rounds := either(s, 6, 3), either(s, 5, 2)
	beside := fmt.Sprintf("“lockregistry” is a cluster of %d masters, “single server” this library on one. Meanwhile %d processes pass %d other locks of the "+
		"same servers on, with sections of %v. %d rounds of %d, in turns of %d in shuffled order, each on a path of its own.",
		clusterNodes, loadProcesses, loadPaths, loadSection, rounds, turnsEach*each, each)
	deleted := &result{
		scenario: "cluster-wake", title: "A cluster beside load: somebody deletes the key, and publishes nothing", floor: singleServer.name,
		how:     "From the moment at which DEL is sent to the moment at which lock returns. " + beside,
		metrics: []metric{handoffMedian, handoffTail, handoffs},
	}
	published := &result{
		scenario: "cluster-wake-published", title: "A cluster beside load: Redisson unlocks", floor: singleServer.name,
		how: "From the moment at which a script is sent that does what Redisson's does, DEL, and SPUBLISH on the cluster or PUBLISH on the single server, " +
			"to the moment at which lock returns. " + beside,
		metrics: deleted.metrics,
	}
	passed := &result{
		scenario: "cluster-wake-handoff", title: "A cluster beside load: handoff, 2 processes, one path", floor: singleServer.name,
		how:     "From before unlock to after lock in the other process. " + beside,
		metrics: deleted.metrics,
	}
	for round := range rounds + 1 {
		took := [3]map[string][]time.Duration{{}, {}, {}}
		err := turns(s, turnsEach, sides, func(turn int, d side) error {
			path := fmt.Sprintf("%d-%d", round, turn)
			return s.besideLoad(load, d, path, func() error {
				woken, err := s.wakes(measured[0], d.name, javas(d, "deleted-"+path), each)
				if err != nil {
					return err
				}
				told, err := s.wakes(measured[0], d.inRedisson(), redissons(d, "published-"+path), each)
				if err != nil {
					return err
				}
				more, err := relay{s, measured.parties(d.name), "relay-" + path, wakeSettling, 0, 1}.run(each, 2*time.Second)
				took[0][d.name] = append(took[0][d.name], woken...)
				took[1][d.name] = append(took[1][d.name], told...)
				took[2][d.name] = append(took[2][d.name], more...)
				return err
			})
		})
		if err != nil {
			return nil, err
		}
		for _, d := range sides {
			if round > 0 { // the first round only warms up
				deleted.record(d.contender, latencies(took[0][d.name]))
				published.record(d.contender, latencies(took[1][d.name]))
				passed.record(d.contender, latencies(took[2][d.name]))
			}
		}
	}
	for _, r := range []*result{deleted, published, passed} {
		r.inOrder()
	}
	return []*result{deleted, published, passed}, nil
}

// wakeSettling is ample for a process to begin to wait, even under load.
const wakeSettling = 10 * time.Millisecond

func (d side) inRedisson() string { return d.name + " in Redisson's format" }

// foreigner holds a path in the way that another library does.
type foreigner struct {
	path          string
	lock, release func(ctx context.Context) error
}

// javas returns one that deletes its key, and publishes nothing.
func javas(d side, path string) foreigner {
	key := thisLibrary.name + ":" + path
	return foreigner{
		path,
		func(ctx context.Context) error {
			return d.client.Do(ctx, d.client.B().Set().Key(key).Value("ad5f8a4e-6c0f-4ab2-8a55-9d0f6a1a7c11").PxMilliseconds(60000).Build()).Error()
		},
		func(ctx context.Context) error {
			return d.client.Do(ctx, d.client.B().Del().Key(key).Build()).Error()
		},
	}
}

// redissons returns one that does what the scripts of Redisson do.
func redissons(d side, path string) foreigner {
	key, channel, publish := thisLibrary.name+":"+path, "redisson_lock__channel:{"+thisLibrary.name+":"+path+"}", "PUBLISH"
	if d.client.Mode() == rueidis.ClientModeCluster {
		publish = "SPUBLISH"
	}
	eval := func(script string, args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			return d.client.Do(ctx, d.client.B().Eval().Script(script).Numkeys(2).Key(key, channel).Arg(args...).Build()).Error()
		}
	}
	return foreigner{
		path,
		eval(`redis.call('HINCRBY', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], 60000)`, "ad5f8a4e-6c0f-4ab2-8a55-9d0f6a1a7c11:1"),
		eval(`redis.call('DEL', KEYS[1]) return redis.call(ARGV[1], KEYS[2], '0')`, publish),
	}
}

// wakes makes a process wait n times for a path that another library holds.
func (s *suite) wakes(p process, registry string, holder foreigner, n int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, n)
	fields := peer.Fields{"registry": registry, "path": holder.path}
	for range n {
		if err := holder.lock(s.ctx); err != nil {
			return nil, err
		}
		call := p.Send(holder.path, doLock, fields)
		time.Sleep(wakeSettling)
		began := time.Now()
		if err := holder.release(s.ctx); err != nil {
			return nil, err
		}
		reply, err := call.Wait(s.ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, reply.End.Sub(began))
		if _, err := p.ask(s.ctx, holder.path, doUnlock, fields); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// besideLoad does something while the processes of the load fight for locks.
func (s *suite) besideLoad(load fleet, d side, name string, do func() error) error {
	const lead, most = 50 * time.Millisecond, 1500 * time.Millisecond
	from := time.Now().Add(lead)
	var calls []*peer.Call
	for i := range loadPaths {
		place, file, err := newMeeting()
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(file) }()
		place.reset()
		path := fmt.Sprintf("load-%s-%d", name, i)
		for as, p := range load {
			calls = append(calls, p.Send(path, doContend, contention{
				registry: d.name, path: path, goroutines: 1, from: from, to: from.Add(most), section: loadSection, as: as, meeting: file,
			}.fields()))
		}
	}
	time.Sleep(2 * lead)
	err := do()
	if over := time.Since(from.Add(most)); err == nil && over > 0 {
		err = fmt.Errorf("it took %v longer than the load", over)
	}
	return errors.Join(err, waitFor(s.ctx, calls))
}
