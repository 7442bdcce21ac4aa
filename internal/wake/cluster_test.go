package wake

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// topologyLimit is how long waiters may poll after the topology has changed.
const topologyLimit = 12 * time.Second

// cluster is a bench on a cluster of three masters, and further servers that joined it.
type cluster struct {
	*bench
	nodes []*redistest.Server
}

func newCluster(t *testing.T, options ...func(o *rueidis.ClientOption)) *cluster {
	t.Helper()
	t.Parallel()
	c := &cluster{nodes: redistest.StartCluster(t, 3)}
	o := optionFor(c.nodes[0])
	for _, option := range options {
		option(&o)
	}
	client, err := rueidis.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	c.bench = &bench{T: t, server: c.nodes[0], client: client}
	return c
}

// join adds a server without slots.
func (c *cluster) join() *redistest.Server {
	c.Helper()
	s := redistest.Start(c, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	host, port, err := net.SplitHostPort(s.Addr())
	require.NoError(c, err)
	c.nodes[0].Command(c, "CLUSTER", "MEET", host, port)
	c.nodes = append(c.nodes, s)
	c.await("all know each other", func() bool {
		for _, n := range c.nodes {
			said := n.Command(c, "CLUSTER", "NODES")
			if strings.Count(said, " connected") != len(c.nodes) || strings.Contains(said, "handshake") {
				return false
			}
		}
		return strings.Contains(s.Command(c, "CLUSTER", "INFO"), "cluster_state:ok")
	})
	return s
}

func (c *cluster) slot(key string) string { return c.nodes[0].Command(c, "CLUSTER", "KEYSLOT", key) }

// owner is the master that has a key.
func (c *cluster) owner(key string) *redistest.Server {
	c.Helper()
	for _, n := range c.nodes {
		if _, err := n.Do("EXISTS", key); err == nil {
			return n
		}
	}
	c.Fatal("nobody has " + key)
	return nil
}

// move moves a slot, with one key if it has it, as resharding does.
func (c *cluster) move(key string, to *redistest.Server) {
	c.Helper()
	from, slot := c.owner(key), c.slot(key)
	fromID, toID := from.Command(c, "CLUSTER", "MYID"), to.Command(c, "CLUSTER", "MYID")
	to.Command(c, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Command(c, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, err := net.SplitHostPort(to.Addr())
	require.NoError(c, err)
	from.Command(c, "MIGRATE", host, port, key, "0", "5000")
	to.Command(c, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, n := range c.nodes {
		if said := n.Command(c, "CLUSTER", "MYID"); said != toID {
			_, _ = n.Do("CLUSTER", "SETSLOT", slot, "NODE", toID) // a server without slots may be a replica by now
		}
	}
}

// listensAt reports whether the client has a connection to a server that tracks the key or is subscribed to its channel.
func (c *cluster) listensAt(s *redistest.Server, o Options, key string) bool {
	c.Helper()
	if o.Track {
		return strings.Contains(s.Command(c, "INFO", "stats"), "tracking_total_keys:1")
	}
	return strings.HasSuffix(s.Command(c, "PUBSUB", "NUMSUB", "channel:"+key), "1")
}

// release removes a key and says so.
func (c *cluster) release(key string, s *redistest.Server) {
	c.Helper()
	s.Command(c, "DEL", key)
	s.Command(c, "PUBLISH", "channel:"+key, key)
}

// watches makes a waiter watch whenever it wakes, as a call does whose tries fail.
func (c *cluster) watches(w *Waiter, until func() bool) {
	c.Helper()
	start := time.Now()
	for !until() {
		if time.Since(start) > limit {
			c.Fatal("it does not listen there")
		}
		select {
		case <-w.Wakeup():
			w.Watch(c.Context(), limit)
		case <-time.After(time.Millisecond):
		}
	}
}

// There is one connection to each master that has a key for which a call waits, and none to other masters.
func TestCluster_Connections(t *testing.T) {
	// The client does not ask each second whether the server is there, which would be the last command of a connection.
	c := newCluster(t, func(o *rueidis.ClientOption) { o.Dialer.KeepAlive, o.ConnWriteTimeout = 24*time.Hour, 10*time.Second })
	extra := func() (n int) {
		for _, s := range c.nodes {
			for line := range strings.Lines(s.Command(t, "CLIENT", "LIST")) {
				if strings.Contains(line, "name=listens ") && strings.Contains(line, "cmd=pttl ") {
					n++
				}
			}
		}
		return n
	}
	l := c.listen(c.client, tracking)
	at := map[*redistest.Server]bool{}
	for i := 0; len(at) < len(c.nodes); i++ {
		key := strconv.Itoa(i)
		s := c.owner(key)
		at[s] = true
		s.Command(t, "SET", key, "taken")
		w := c.watched(l, key)
		require.Equal(t, len(at), extra())
		s.Command(t, "DEL", key)
		c.wakes(w)
	}
}

// waiters returns a waiter for each way to listen, for the same key.
func (c *cluster) waiters(key string) map[*Waiter]Options {
	c.Helper()
	waiters := map[*Waiter]Options{}
	for _, o := range []Options{tracking, subscribing} {
		waiters[c.watched(c.listen(c.client, o), key)] = o
	}
	return waiters
}

// follow waits until waiters listen at a server, and checks that they wake.
func (c *cluster) follow(waiters map[*Waiter]Options, key string, to *redistest.Server) {
	c.Helper()
	start := time.Now()
	for w, o := range waiters {
		c.watches(w, func() bool { return c.listensAt(to, o, key) })
	}
	took := time.Since(start)
	c.Log(took)
	require.Less(c, took, topologyLimit)
	for w := range waiters {
		w.Watch(c.Context(), limit)
		for len(w.Wakeup()) > 0 { // as a call does: a wake-up may say that the key is no longer watched
			<-w.Wakeup()
			w.Watch(c.Context(), limit)
		}
	}
	c.release(key, to) // not at the server that owner names: a former owner may not know yet that it has lost the key
	for w, o := range waiters {
		select {
		case <-w.Wakeup():
		case <-time.After(limit):
			c.Fatalf("it does not wake: %+v, listens %v, watched %+v", o, c.listensAt(to, o, key), w.Watch(c.Context(), limit))
		}
	}
}

func TestCluster_Reshard(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	from, to := c.owner(key), c.nodes[0]
	if to == from {
		to = c.nodes[1]
	}
	from.Command(t, "SET", key, "taken", "PX", "600000")
	waiters := c.waiters(key)
	c.move(key, to)
	c.follow(waiters, key, to)
}

func TestCluster_RemovedNode(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	stays, leaves := c.owner(key), c.join()
	c.move(key, leaves)
	leaves.Command(t, "SET", key, "taken")
	waiters := c.waiters(key)
	for _, o := range waiters {
		c.await("it listens at the server that leaves", func() bool { return c.listensAt(leaves, o, key) })
	}
	c.move(key, stays)
	id := leaves.Command(t, "CLUSTER", "MYID")
	c.nodes = c.nodes[:3]
	for _, n := range c.nodes {
		n.Command(t, "CLUSTER", "FORGET", id)
	}
	leaves.Command(t, "CLUSTER", "RESET")
	c.follow(waiters, key, stays)
	c.await("its connection is given up", func() bool {
		return !strings.Contains(leaves.Command(t, "CLIENT", "LIST"), "cmd=pttl") && !c.listensAt(leaves, subscribing, key)
	})
}

func TestCluster_Failover(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	master, replica := c.owner(key), c.join()
	replica.Command(t, "CLUSTER", "REPLICATE", master.Command(t, "CLUSTER", "MYID"))
	c.await("it replicates", func() bool {
		return strings.Contains(replica.Command(t, "INFO", "replication"), "master_link_status:up")
	})
	master.Command(t, "SET", key, "taken", "PX", "600000")
	c.await("the replica has the key", func() bool { return replica.Command(t, "DBSIZE") == "1" })
	waiters := c.waiters(key)
	replica.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
	c.await("it is the master", func() bool { return strings.Contains(replica.Command(t, "ROLE"), "master") })
	c.follow(waiters, key, replica)
}

// A message that is published in the slot of the key reaches a waiter whose channel is in it.
func TestCluster_PublishedInTheSlot(t *testing.T) {
	c := newCluster(t)
	l := c.listen(c.client, Options{Subscribe: true})
	for i := range 3 {
		key := strconv.Itoa(i)
		s := c.owner(key)
		w := l.Waiter(Wait{Key: key, Channel: "channel:{" + key + "}"})
		defer w.Close()
		c.await("watched", func() bool { return w.Watch(t.Context(), limit).Watched })
		for len(w.Wakeup()) > 0 {
			<-w.Wakeup()
		}
		s.Command(t, "SPUBLISH", "channel:{"+key+"}", "unlocked")
		c.wakes(w)
		w.Close()
		c.await("it is left", func() bool { return !strings.Contains(s.Command(t, "PUBSUB", "SHARDCHANNELS"), "{"+key+"}") })
	}
}

// says makes a script publish in the slot of a key, if there is a subscriber.
func (c *cluster) says(key, own, message string, s *redistest.Server) error {
	_, err := s.Do("EVAL", `
		if redis.call('PUBSUB', 'SHARDNUMSUB', ARGV[1])[2] < 1 then return redis.error_reply('nobody') end
		return redis.call('SPUBLISH', ARGV[1], ARGV[2])`, "1", key, own, message)
	return err
}

// arrives makes a waiter subscribe whenever it wakes, until a message that is published at a server arrives.
func (c *cluster) arrives(w *Waiter, m messages, to *redistest.Server) {
	c.Helper()
	start := time.Now()
	for proven := NotYet; ; {
		if proven == Proven && c.says(w.Key, w.Own, "message", to) == nil {
			break
		}
		select {
		case <-w.Wakeup():
			proven = w.Subscribe(c.Context(), limit)
			require.NotEqual(c, Deaf, proven)
		case <-time.After(limit):
			c.Fatal("it does not subscribe")
		}
	}
	c.Log(time.Since(start))
	require.Less(c, time.Since(start), topologyLimit)
	c.takes(m, w.Own+": message")
}

// own is a channel in the slot of a key.
func ownOf(key string) string { return "own@{" + key + "}" }

// A listener's own channels are subscribed to where the keys are, and nowhere else.
func TestHear_InACluster(t *testing.T) {
	c := newCluster(t)
	l, m := c.subscriber(c.client, either)
	at := map[*redistest.Server]int{}
	var waiters []*Waiter
	for i := 0; len(at) < len(c.nodes); i++ {
		key := strconv.Itoa(i)
		s := c.owner(key)
		at[s]++
		w := c.subscribed(l, Wait{Key: key, Own: ownOf(key)})
		waiters = append(waiters, w)
		require.Equal(t, Proven, l.Waiter(w.Wait).Subscribe(t.Context(), 0), "another call for the key")
		require.NoError(t, c.says(key, w.Own, "message", s))
		c.takes(m, w.Own+": message")
	}
	for s, n := range at {
		require.Len(t, strings.Fields(s.Command(t, "PUBSUB", "SHARDCHANNELS")), n)
		require.Empty(t, s.Command(t, "PUBSUB", "CHANNELS", "own*"))
		require.Contains(t, s.Command(t, "INFO", "commandstats"), "shardnumsub:calls="+strconv.Itoa(n+1)+",",
			"for each message, and one proof")
	}
	require.Empty(t, m)
	elsewhere := l.Waiter(Wait{Key: "0", Own: ownOf("1")})
	require.Equal(t, Deaf, elsewhere.Subscribe(t.Context(), limit), "no script can have both")
	for _, w := range waiters {
		w.Close()
	}
	l.Close()()
	for s := range at {
		c.await("they are left", func() bool { return s.Command(t, "PUBSUB", "SHARDCHANNELS") == "" })
	}
}

func TestOwnChannel_IsLeftInACluster(t *testing.T) {
	c := newCluster(t)
	l, m := c.subscriber(c.client, either)
	w := c.subscribed(l, Wait{Key: "key", Own: ownOf("key")})
	other := c.subscribed(l, Wait{Key: "a{key}", Own: ownOf("key") + "other"})
	s := c.owner("key")
	other.Close()
	c.await("left", func() bool { return s.Command(t, "PUBSUB", "SHARDCHANNELS") == w.Own })
	require.Equal(t, Proven, w.Subscribe(t.Context(), 0))
	require.NoError(t, c.says("key", w.Own, "message", s))
	c.takes(m, w.Own+": message")
	w.Close()
	c.await("left", func() bool { return s.Command(t, "PUBSUB", "SHARDCHANNELS") == "" })
	require.Empty(t, w.Wakeup())
	c.subscribed(l, w.Wait)

	r := newRunner(t.Context(), &l.hub.shared, newNode(new(sync.Mutex), s.Addr(), nil),
		func() rueidis.Client { return c.client.Nodes()[s.Addr()] })
	connection, err := r.dialer.dial()
	require.NoError(t, err)
	defer connection.end()
	var elsewhere []string // slots of which the server says that it does not have them
	for i := range 100 {
		elsewhere = append(elsewhere, ownOf(strconv.Itoa(i)))
	}
	for range 2 {
		require.NoError(t, connection.unsubscribe(nil, elsewhere))
	}
}

func TestHear_AfterAReshard(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	l, m := c.subscriber(c.client, either)
	w := c.subscribed(l, Wait{Key: key, Own: ownOf(key)})
	for range 3 { // there and back
		from, to := c.owner(key), c.nodes[0]
		if to == from {
			to = c.nodes[1]
		}
		for len(w.Wakeup()) > 0 {
			<-w.Wakeup()
		}
		c.move(key, to)
		c.arrives(w, m, to)
		require.Empty(t, from.Command(t, "PUBSUB", "SHARDCHANNELS"))
	}
}

// When a server ends a subscription, the waiters that rely on it wake at once, before the hub has learned which server has the
// slot.
func TestHear_AfterTheServerEndsASubscription(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	l, _ := c.subscriber(c.client, either)
	w := c.subscribed(l, Wait{Key: key, Own: ownOf(key)})
	l.hub.mu.Lock()
	n := l.hub.at[w]
	l.hub.mu.Unlock()
	ends := func(own string) {
		n.announced(c.number(n), rueidis.PubSubSubscription{Kind: "sunsubscribe", Channel: own})
	}
	ends(w.Own)
	c.wakes(w)
	c.subscribes(w)

	// The end of a subscription that is not confirmed yet does not count.
	s := c.owner(key)
	s.Freeze()
	defer s.Thaw()
	other := l.Waiter(Wait{Key: key, Own: ownOf("key") + "other"})
	defer other.Close()
	require.Equal(t, NotYet, other.Subscribe(t.Context(), time.Millisecond))
	ends(other.Own)
	c.sleeps(other)
	s.Thaw()
	c.wakes(other)
	require.Equal(t, Proven, other.Subscribe(t.Context(), 0))
}

func TestHear_AfterAFailover(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	master, replica := c.owner(key), c.join()
	replica.Command(t, "CLUSTER", "REPLICATE", master.Command(t, "CLUSTER", "MYID"))
	c.await("it replicates", func() bool {
		return strings.Contains(replica.Command(t, "INFO", "replication"), "master_link_status:up")
	})
	l, m := c.subscriber(c.client, either)
	w := c.subscribed(l, Wait{Key: key, Own: ownOf(key)})
	replica.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
	c.await("it is the master", func() bool { return strings.Contains(replica.Command(t, "ROLE"), "master") })
	c.arrives(w, m, replica)
}

// A listener is told of a server that leaves, and of the one that comes instead.
func TestNews_OfAServerThatLeaves(t *testing.T) {
	c := newCluster(t)
	const key = "key"
	stays, leaves := c.owner(key), c.join()
	c.move(key, leaves)
	news := make(chan Connection, 8)
	o := either
	o.Connection = func(n Connection) { news <- n }
	l, m := c.subscriber(c.client, o)
	w := c.subscribed(l, Wait{Key: key, Own: ownOf(key)})
	require.Equal(t, Connection{Node: leaves.Addr(), Up: true}, <-news)
	c.move(key, stays)
	id := leaves.Command(t, "CLUSTER", "MYID")
	c.nodes = c.nodes[:3]
	for _, n := range c.nodes {
		n.Command(t, "CLUSTER", "FORGET", id)
	}
	leaves.Command(t, "CLUSTER", "RESET")
	c.arrives(w, m, stays)
	told := map[Connection]bool{<-news: true, <-news: true}
	require.Equal(t, map[Connection]bool{
		{Node: leaves.Addr(), Err: errLeft}: true, {Node: stays.Addr(), Up: true}: true,
	}, told)
}

// If no server is known for a slot, and if servers have no channels in slots, nothing is proven.
func TestDeaf_InACluster(t *testing.T) {
	c := newCluster(t)
	for _, s := range c.nodes {
		s.Command(t, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-ssubscribe")
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{c.nodes[0].Addr()}, Username: "app", Password: "secret",
	})
	require.NoError(t, err)
	defer client.Close()
	l, _ := c.subscriber(client, either)
	for i := range 2 {
		w := l.Waiter(Wait{Key: "key", Own: ownOf("key") + strconv.Itoa(i)})
		c.deafens(w)
		w.Close()
	}
	require.Equal(t, 1, c.logged("way=queueing"))
}
