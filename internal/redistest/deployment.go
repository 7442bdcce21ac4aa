package redistest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The servers of the deployments below save their data: each write is passed to the operating system before its reply, so a
// server that is killed and revived still has it. With everysec, the default, a write waits while an fsync is under way.
var saving = []string{
	"--appendonly", "yes", "--appendfsync", "no",
	"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
}

// NodeTimeout is how long a node of a [Deployment] may fail to answer before it counts as down.
const NodeTimeout = 2 * time.Second

// Deployment is a Redis Cluster with replicas, or a master with replicas and their Sentinels. Its methods are for one
// goroutine at a time. Calls that wait fail the test after two minutes.
type Deployment struct {
	tb        testing.TB
	Servers   []*Server // masters and replicas, including killed and removed ones
	Sentinels []*Server // none in a cluster
	removed   []*Server
	args      []string // further arguments of each node of a cluster
}

// MasterSet is the name under which the Sentinels know the master.
const MasterSet = "main"

// StartReplicatedCluster starts a Redis Cluster in which each master has that many replicas. It returns once each node knows
// all others and each replica has the data of its master. The args are appended to the command line of each node.
func StartReplicatedCluster(tb testing.TB, masters, replicas int, args ...string) *Deployment {
	tb.Helper()
	d := &Deployment{tb: tb, args: args}
	for i := range masters * (1 + replicas) {
		s := d.node()
		s.Command(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			s.Command(tb, ownSlots(i, masters)...)
		}
	}
	for _, s := range d.Servers[1:] {
		d.Servers[0].Command(tb, append([]string{"CLUSTER", "MEET"}, hostPort(s)...)...)
	}
	d.await("that all nodes know each other", func() bool {
		for _, s := range d.Servers {
			if len(d.view(s)) != len(d.Servers) || strings.Contains(s.Command(tb, "CLUSTER", "NODES"), "handshake") {
				return false
			}
		}
		return true
	})
	for i, s := range d.Servers[masters:] {
		s.Command(tb, "CLUSTER", "REPLICATE", d.id(d.Servers[i%masters]))
	}
	d.AwaitHealthy()
	return d
}

func (d *Deployment) node() *Server {
	d.tb.Helper()
	s := Start(d.tb, append(append(slices.Clone(saving),
		"--cluster-enabled", "yes",
		"--cluster-announce-ip", "127.0.0.1",
		"--cluster-node-timeout", strconv.FormatInt(NodeTimeout.Milliseconds(), 10),
		"--cluster-allow-replica-migration", "no", // a replica stays with the master that the test gave it
	), d.args...)...)
	d.Servers = append(d.Servers, s)
	return s
}

// StartSentinels starts a master with replicas and Sentinels. It returns once each Sentinel knows all of them and each replica
// has the data. The arguments in more are appended to the command line of each server.
func StartSentinels(tb testing.TB, replicas, sentinels int, more ...string) *Deployment {
	tb.Helper()
	d := &Deployment{tb: tb}
	for i := range 1 + replicas {
		args := slices.Concat(saving, more)
		if i > 0 {
			args = append(append(args, "--replicaof"), hostPort(d.Servers[0])...)
		}
		d.Servers = append(d.Servers, Start(tb, args...))
	}
	d.AddSentinels(sentinels, more...)
	return d
}

// AddSentinels starts Sentinels that watch the first server, and returns once all know each other. More than half of the added
// ones must find the server down before one replaces it.
func (d *Deployment) AddSentinels(n int, args ...string) {
	d.tb.Helper()
	for range n {
		s := StartSentinel(d.tb, args...)
		d.Sentinels = append(d.Sentinels, s)
		quorum := strconv.Itoa(n/2 + 1)
		s.Command(d.tb, append(append([]string{"SENTINEL", "MONITOR", MasterSet}, hostPort(d.Servers[0])...), quorum)...)
		s.Command(d.tb, "SENTINEL", "SET", MasterSet,
			"down-after-milliseconds", strconv.FormatInt(NodeTimeout.Milliseconds(), 10), "failover-timeout", "6000")
	}
	d.AwaitHealthy()
}

// StartSentinel starts a Sentinel that knows no master yet, as [Start] starts a server.
func StartSentinel(tb testing.TB, args ...string) *Server {
	tb.Helper()
	path, err := find("")
	if err != nil {
		stop(tb, err)
	}
	s, err := run(&Server{binary: path, args: args, sentinel: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		s.judge(tb)
		s.Stop()
		givePort(s.port)
	})
	return s
}

func (d *Deployment) cluster() bool { return len(d.Sentinels) == 0 }

// Addresses returns the addresses that a client needs: of the nodes, or of the Sentinels.
func (d *Deployment) Addresses() (all []string) {
	for _, s := range d.Servers {
		if d.cluster() && !slices.Contains(d.removed, s) {
			all = append(all, s.Addr())
		}
	}
	for _, s := range d.Sentinels {
		all = append(all, s.Addr())
	}
	return all
}

func hostPort(s *Server) []string {
	host, port, _ := net.SplitHostPort(s.Addr())
	return []string{host, port}
}

// ask sends a command that changes nothing, again if need be: Sentinel cuts all connections of a server that it demotes.
func (d *Deployment) ask(s *Server, args ...string) string {
	d.tb.Helper()
	for {
		reply, err := s.Do(args...)
		if err == nil {
			return reply
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			d.tb.Fatalf("redistest: %s on %s: %v", strings.Join(args, " "), s.Addr(), err)
		}
	}
}

// await waits until a condition holds.
func (d *Deployment) await(what string, is func() bool) {
	d.tb.Helper()
	for deadline := time.Now().Add(clusterLimit); !is(); time.Sleep(clusterPause) {
		if time.Now().After(deadline) {
			var said strings.Builder
			for _, s := range slices.Concat(d.Servers, d.Sentinels) {
				if s.Running() {
					nodes, _ := s.Do("CLUSTER", "NODES")
					info, _ := s.Do("INFO", "replication")
					master, _ := s.Do("SENTINEL", "MASTERS")
					fmt.Fprintf(&said, "%s:\n%s\n%s\n%s\n", s.Addr(), nodes, info, master)
				}
			}
			d.tb.Fatalf("redistest: no deployment in %v in which it is so %s; the servers say:\n%s", clusterLimit, what, said.String())
		}
	}
}

// AwaitHealthy waits until all servers that are not removed are running and agree on masters and replicas, and each replica has
// the data of its master.
func (d *Deployment) AwaitHealthy() {
	d.tb.Helper()
	d.hurry("500")
	defer d.hurry("10000") // the default
	d.await("that all is well", func() bool {
		for _, s := range d.Servers {
			if !slices.Contains(d.removed, s) && (!s.Running() || !d.healthy(s)) {
				return false
			}
		}
		for _, s := range d.Sentinels {
			if !d.watches(s) {
				return false
			}
		}
		return d.agree()
	})
}

// agree reports whether all servers and Sentinels agree on the masters.
func (d *Deployment) agree() bool {
	said := map[string]bool{}
	for _, s := range d.Sentinels {
		said[d.ask(s, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterSet)] = true
	}
	for _, s := range d.Servers {
		switch {
		case slices.Contains(d.removed, s):
		case d.cluster():
			var roles []string
			for _, m := range d.view(s) {
				roles = append(roles, fmt.Sprint(m))
			}
			slices.Sort(roles)
			said[strings.Join(roles, "\n")] = true
		case strings.HasPrefix(d.ask(s, "ROLE"), "master\n"):
			said[strings.Join(hostPort(s), "\n")] = true
		}
	}
	return len(said) == 1
}

// hurry sets how often the Sentinels ask the servers about each other.
func (d *Deployment) hurry(milliseconds string) {
	for _, s := range d.Sentinels {
		if s.Running() {
			_, _ = s.Do("SENTINEL", "DEBUG", "INFO-PERIOD", milliseconds) // versions before 7 lack it, and take longer
		}
	}
}

func (d *Deployment) healthy(s *Server) bool {
	replication := d.ask(s, "INFO", "replication")
	if field(replication, "role") == "slave" && field(replication, "master_link_status") != "up" {
		return false
	}
	if !d.cluster() {
		return field(replication, "role") == "slave" || field(replication, "connected_slaves") == strconv.Itoa(len(d.Servers)-1)
	}
	known := d.ask(s, "CLUSTER", "SLOTS")
	if slices.ContainsFunc(d.Servers, func(o *Server) bool {
		return !slices.Contains(d.removed, o) && !d.empty(o) && !strings.Contains(known, strings.Join(hostPort(o), "\n"))
	}) {
		return false // clients do not learn of a replica before it has data
	}
	nodes, info := d.ask(s, "CLUSTER", "NODES"), d.ask(s, "CLUSTER", "INFO")
	return !strings.Contains(nodes, "fail") && !strings.Contains(nodes, "disconnected") &&
		field(info, "cluster_state") == "ok" && field(info, "cluster_slots_ok") == strconv.Itoa(clusterSlots) &&
		len(d.view(s)) == len(d.Servers)-len(d.removed)
}

// empty reports whether a node of a cluster is a master without slots, which clients do not learn about.
func (d *Deployment) empty(s *Server) bool {
	for _, m := range d.view(s) {
		if m.address == s.Addr() {
			return m.master == "" && len(m.slots) == 0
		}
	}
	return true
}

// watches reports whether a Sentinel knows all servers and Sentinels, and sees none of them down.
func (d *Deployment) watches(s *Server) bool {
	master := d.ask(s, "SENTINEL", "MASTER", MasterSet)
	replicas := d.ask(s, "SENTINEL", "REPLICAS", MasterSet)
	is := func(name, value string) bool { return strings.Contains(master, "\n"+name+"\n"+value+"\n") }
	return is("flags", "master") && is("num-slaves", strconv.Itoa(len(d.Servers)-1)) &&
		is("num-other-sentinels", strconv.Itoa(len(d.Sentinels)-1)) &&
		strings.Count(replicas, "\nflags\nslave\n") == len(d.Servers)-1 &&
		strings.Count(replicas, "\nmaster-link-status\nok\n") == len(d.Servers)-1
}

func (d *Deployment) id(s *Server) string {
	return strings.TrimSpace(d.ask(s, "CLUSTER", "MYID"))
}

func (d *Deployment) at(address string) *Server {
	i := slices.IndexFunc(d.Servers, func(s *Server) bool { return s.Addr() == address })
	if i < 0 {
		d.tb.Fatalf("redistest: no server at %s", address)
	}
	return d.Servers[i]
}

// witness returns a server, other than but, that answers.
func (d *Deployment) witness(but *Server) *Server {
	for _, s := range slices.Concat(d.Sentinels, d.Servers) {
		if s != but && s.Running() && !s.Frozen() && !slices.Contains(d.removed, s) {
			return s
		}
	}
	d.tb.Fatal("redistest: no server answers")
	return nil
}

// Master returns the server that has a key, according to a server other than but, which may be nil.
func (d *Deployment) Master(key string, but *Server) *Server {
	d.tb.Helper()
	witness := d.witness(but)
	if !d.cluster() {
		reply := strings.Split(d.ask(witness, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterSet), "\n")
		return d.at(net.JoinHostPort(reply[0], reply[1]))
	}
	slot := d.Slot(key)
	for _, m := range d.view(witness) {
		for _, s := range m.slots {
			if first, last, ok := slotRange(s); ok && first <= slot && slot <= last && !m.failed {
				return d.at(m.address)
			}
		}
	}
	return nil // it has failed, and has no successor yet
}

// Slot returns the slot of a key in a cluster.
func (d *Deployment) Slot(key string) int {
	n, err := strconv.Atoi(d.ask(d.witness(nil), "CLUSTER", "KEYSLOT", key))
	if err != nil {
		d.tb.Fatal(err)
	}
	return n
}

// Replicas returns the replicas of a master.
func (d *Deployment) Replicas(of *Server) (all []*Server) {
	for _, s := range d.Servers {
		if s == of || !s.Running() || s.Frozen() || slices.Contains(d.removed, s) {
			continue
		}
		replication := d.ask(s, "INFO", "replication")
		if field(replication, "role") == "slave" && "127.0.0.1:"+field(replication, "master_port") == of.Addr() {
			all = append(all, s)
		}
	}
	return all
}

// AwaitPromotion waits until another server says that it is now the master of a key, in place of a master that has failed. It
// returns that server, and when it said so.
func (d *Deployment) AwaitPromotion(key string, of *Server) (promoted *Server, at time.Time) {
	d.tb.Helper()
	return d.awaitPromotion(key, of, func() {})
}

func (d *Deployment) awaitPromotion(key string, of *Server, urge func()) (promoted *Server, at time.Time) {
	d.tb.Helper()
	slot := 0
	if d.cluster() {
		slot = d.Slot(key)
	}
	d.await("that another than "+of.Addr()+" is the master", func() bool {
		urge()
		for _, s := range d.Servers {
			if s != of && s.Running() && !s.Frozen() && d.leads(s, slot) {
				promoted, at = s, time.Now()
				return true
			}
		}
		return false
	})
	if d.cluster() {
		return promoted, at
	}
	d.await("that the Sentinels name it", func() bool { return d.Master(key, of) == promoted })
	return promoted, time.Now()
}

// leads reports whether a server says that it is the master; in a cluster, of a slot.
func (d *Deployment) leads(s *Server, slot int) bool {
	if !strings.HasPrefix(d.ask(s, "ROLE"), "master\n") {
		return false
	}
	if !d.cluster() {
		return true
	}
	id := d.id(s)
	return slices.ContainsFunc(d.view(s), func(m member) bool { return m.id == id && m.has(slot) })
}

// Settle pauses writes on a master for a moment, and returns once all replicas have everything that the master has
// acknowledged. A caller that kills the master before the returned time loses no write.
func (d *Deployment) Settle(master *Server, moment time.Duration) (until time.Time) {
	d.tb.Helper()
	replicas := d.Replicas(master)
	offset := func(s *Server, name string) int {
		n, err := strconv.Atoi(field(d.ask(s, "INFO"), name))
		if err != nil {
			d.tb.Fatal(err)
		}
		return n
	}
	settled := func() bool {
		began := time.Now()
		until = began.Add(moment)
		master.Command(d.tb, "CLIENT", "PAUSE", strconv.FormatInt(moment.Milliseconds(), 10), "WRITE")
		all := offset(master, "master_repl_offset")
		return Await(moment/2, func() bool {
			return !slices.ContainsFunc(replicas, func(s *Server) bool { return offset(s, "slave_repl_offset") < all })
		}) && time.Since(began) < moment/2 // otherwise the pause may be over
	}
	if !Await(startLimit, settled) {
		d.tb.Fatalf("redistest: the replicas of %s do not keep up", master.Addr())
	}
	return until
}

// FreezeSettled freezes a master whose replicas have everything that it has acknowledged, see Settle. The pause of its writes
// goes on for up to a second, even after Thaw. It returns the time just before the freeze.
func (d *Deployment) FreezeSettled(master *Server) (at time.Time) {
	d.tb.Helper()
	for {
		until := d.Settle(master, time.Second)
		at = time.Now()
		master.Freeze()
		if time.Now().Before(until) {
			return at
		}
		master.Thaw() // the machine is so busy that the pause had ended before the freeze
	}
}

// Failover makes a replica replace its master. In a cluster the master waits for the replica (CLUSTER FAILOVER); with Sentinel
// it does not (SENTINEL FAILOVER, which chooses the replica). It returns the new master, and when it became one.
func (d *Deployment) Failover(key string) (promoted *Server, at time.Time) {
	d.tb.Helper()
	old := d.Master(key, nil)
	asked, command := d.Sentinels, []string{"SENTINEL", "FAILOVER", MasterSet}
	if d.cluster() {
		asked, command = d.Replicas(old), []string{"CLUSTER", "FAILOVER"}
	}
	again := time.Now()
	return d.awaitPromotion(key, old, func() {
		if !time.Now().Before(again) { // on a busy machine a failover is refused, or given up after 5 s, silently
			_, _ = asked[0].Do(command...)
			again = time.Now().Add(6 * time.Second)
		}
	})
}
