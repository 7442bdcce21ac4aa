package main

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// program stands in for a test where a program starts servers: a failure of the test ends run.
type program struct {
	testing.TB

	cleanups []func()
}

type failure string

func (p *program) Helper()                           {}
func (p *program) Cleanup(f func())                  { p.cleanups = append(p.cleanups, f) }
func (p *program) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }
func (p *program) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
func (p *program) Errorf(format string, args ...any) { p.Fatalf(format, args...) }

// run does something with servers, and then ends them.
func (p *program) run(do func() error) (err error) {
	defer func() {
		for _, f := range p.cleanups {
			f()
		}
		if failed, ok := recover().(failure); ok {
			err = errors.New(string(failed))
		}
	}()
	return do()
}

// fleetServers are the servers of a fleet.
type fleetServers struct {
	url       string
	data      []*redistest.Server // masters and replicas
	sentinels []*redistest.Server
	// fail makes a server fail, and returns when, and when another serves in its place.
	fail func() (failed, again time.Time)
}

const (
	onSingle   = "single"
	onSentinel = "sentinel"
	onCluster  = "cluster"
)

// deployments are where fleets run, with the names that pages give them.
var deployments = map[string]string{
	onSingle:   "One server",
	onSentinel: "A master, a replica and three Sentinels",
	onCluster:  "A cluster of three masters, a replica each",
}

// mostClients is how many connections a server may have: as many files as the system lets it open, less its own.
func mostClients() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 10_000
	}
	return int(min(files.Max, 100_000)) - 100 //nolint:gosec // at most 100 000
}

// startServers starts the servers of a deployment.
func startServers(p *program, deployment, binary string) *fleetServers {
	clients := []string{"--maxclients", strconv.Itoa(mostClients())}
	if deployment == onSingle {
		s := redistest.StartBinary(p, binary, clients...)
		return &fleetServers{
			url: "redis://" + s.Addr(), data: []*redistest.Server{s},
			fail: func() (failed, again time.Time) { failed = time.Now(); s.Restart(p); return failed, time.Now() },
		}
	}
	var d *redistest.Deployment
	query := url.Values{}
	if deployment == onSentinel {
		d = redistest.StartSentinels(p, 1, 3, clients...)
		query.Set("master_set", redistest.MasterSet)
	} else {
		d = redistest.StartReplicatedCluster(p, 3, 1, clients...)
	}
	all := d.Addresses()
	query["addr"] = all[1:]
	return &fleetServers{
		url: "redis://" + all[0] + "?" + query.Encode(), data: d.Servers, sentinels: d.Sentinels,
		fail: func() (failed, again time.Time) {
			key := thisLibrary.name + ":" + hotPath
			master := d.Master(key, nil)
			failed = time.Now()
			master.Kill()
			_, again = d.AwaitPromotion(key, master)
			return failed, again
		},
	}
}

// fleetLook is what a server says about itself.
type fleetLook struct {
	cpu                        float64 // seconds
	connections, memory        float64
	commands, pings            float64 // since the server started; those of scripts count, too
	made, refused, overflowing float64 // connections since the server started; overflowing: closed because they read too slowly
}

// aside are the commands that come from looking at the servers, the ones that servers send each other, and PINGs, which have a
// figure of their own.
var aside = []string{"info", "ping", "replconf", "psync", "role"}

// lookTries is how often a server is asked; each try takes up to 10 s.
const lookTries = 4

func lookAt(s *redistest.Server) (l fleetLook, err error) {
	var text string
	for range lookTries { // thousands of clients that connect at once fill the accept queue
		if text, err = s.Do("INFO", "all"); err == nil {
			break
		}
	}
	if err != nil {
		return l, err
	}
	fields := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if _, isCommand := strings.CutPrefix(name, "cmdstat_"); isCommand {
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			fields[name] = v
		}
	}
	l = fleetLook{
		cpu:         fields["used_cpu_sys"] + fields["used_cpu_user"],
		connections: fields["connected_clients"], memory: fields["used_memory"], pings: fields["cmdstat_ping"],
		made: fields["total_connections_received"], refused: fields["rejected_connections"],
		overflowing: fields["client_output_buffer_limit_disconnections"],
	}
	for name, calls := range fields {
		if strings.HasPrefix(name, "cmdstat_") {
			l.commands += calls
		}
	}
	for _, command := range aside {
		l.commands -= fields["cmdstat_"+command]
	}
	return l, nil
}

// look returns the figures of each running server; zero for others.
func look(all []*redistest.Server) ([]fleetLook, error) {
	looks := make([]fleetLook, len(all))
	for i, s := range all {
		if !s.Running() {
			continue
		}
		var err error
		if looks[i], err = lookAt(s); err != nil {
			return nil, err
		}
	}
	return looks, nil
}

func total(looks []fleetLook, of func(fleetLook) float64) (sum float64) {
	for _, l := range looks {
		sum += of(l)
	}
	return sum
}

// arrivals follows the connections that servers accept, look by look, until it is stopped.
type arrivals struct {
	at   []time.Time
	made []float64
	stop chan struct{}
	done chan struct{}
}

const arrivalPause = 50 * time.Millisecond

func watchArrivals(all []*redistest.Server) *arrivals {
	a := &arrivals{stop: make(chan struct{}), done: make(chan struct{})}
	before := make([]float64, len(all))
	for i, s := range all {
		if l, err := lookAt(s); err == nil {
			before[i] = l.made
		}
	}
	go func() {
		defer close(a.done)
		for sum := 0.0; ; {
			select {
			case <-a.stop:
				return
			case <-time.After(arrivalPause):
			}
			for i, s := range all {
				l, err := lookAt(s) // the look is a connection, too
				if err != nil {
					continue
				}
				if l.made < before[i] { // it has restarted
					before[i] = 0
				}
				sum += max(0, l.made-before[i]-1)
				before[i] = l.made
			}
			a.at, a.made = append(a.at, time.Now()), append(a.made, sum)
		}
	}()
	return a
}

// end returns how many connections were made, the most within a second, and how long it took from the first hundredth to the
// last.
func (a *arrivals) end() (all, most float64, took time.Duration) {
	close(a.stop)
	<-a.done
	if len(a.made) == 0 {
		return 0, 0, 0
	}
	all = a.made[len(a.made)-1]
	first, last, from := -1, 0, 0
	for i, made := range a.made {
		for a.at[i].Sub(a.at[from]) > time.Second {
			from++
		}
		most = max(most, made-a.made[from])
		if made >= all/100 && first < 0 {
			first = i
		}
		if made <= all*0.99 {
			last = i
		}
	}
	return all, most, max(0, a.at[last].Sub(a.at[first]))
}
