package transport

import (
	"context"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// spoken is a cluster whose nodes say what a test wants, or nothing.
type spoken struct {
	rueidis.Client
	nodes map[string]rueidis.Client
}

func (c *spoken) Mode() rueidis.ClientMode         { return rueidis.ClientModeCluster }
func (c *spoken) Nodes() map[string]rueidis.Client { return c.nodes }

type speaker struct {
	rueidis.Client
	says   atomic.Pointer[rueidis.RedisResult]
	silent atomic.Bool
	asked  atomic.Int32
}

// DoMulti answers the first command. To HELLO, which asks for the role, it says nothing.
func (s *speaker) DoMulti(ctx context.Context, c ...rueidis.Completed) []rueidis.RedisResult {
	return []rueidis.RedisResult{s.Do(ctx, c[0]), rueidis.NewErrorResult(io.EOF)}
}

func (s *speaker) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	s.asked.Add(1)
	if s.silent.Load() {
		<-time.After(20 * time.Second)
		return rueidis.NewErrorResult(context.DeadlineExceeded)
	}
	return *s.says.Load()
}

// A way is trusted only if most of several nodes name its master just now. When no node answers, or none knows the master,
// commands follow the earlier answers, or the client, and late replies are not believed.
func TestRoutes_WhichWayIsTrusted(t *testing.T) {
	client := onMiniredis(t)
	eval := func(s string) *rueidis.RedisResult {
		r := client.Do(t.Context(), client.B().Eval().Script(s).Numkeys(0).Build())
		return &r
	}
	all, moved, none := eval("return {{0, 99, {'a', 1, 'i'}}, {100, 16383, {'b', 1, 'j'}}}"),
		eval("return {{0, 16383, {'b', 1, 'j'}}}"), eval("return {}")
	synctest.Test(t, func(t *testing.T) {
		a, b := &speaker{Client: client}, &speaker{Client: client}
		way := New(&spoken{client, map[string]rueidis.Client{"a:1": a, "b:1": b}})
		say := func(by *speaker, what *rueidis.RedisResult) {
			by.says.Store(what)
			by.silent.Store(what == nil)
		}
		master := func() topology.Owner {
			<-time.After(topology.FreshFor)
			return way.resolver.Master(7)
		}
		say(a, none)
		say(b, none)
		require.Equal(t, topology.Owner{}, master())
		to, owner, ok := way.resolver.Way(7)
		require.True(t, ok)
		require.False(t, owner.Trusted, "the client may lead to a master that is deposed")
		require.Equal(t, way.redis, to)
		require.Len(t, way.nodes(), 1)

		say(a, all)
		say(b, all)
		require.Equal(t, topology.Owner{Address: "a:1", Trusted: true}, master())
		require.Len(t, way.nodes(), 3, "one for each master")
		require.False(t, way.Leads(way.First))
		require.True(t, way.Leads(way.NodeAt("a:1")))

		say(b, none)
		require.Equal(t, topology.Owner{Address: "a:1"}, master(), "by its own word alone")

		way.NodeAt("a:1").foundSilent(way.Clock.Now(), way.Clock.Now())
		say(a, moved)
		say(b, moved)
		require.Equal(t, topology.Owner{Address: "b:1", Trusted: true}, master())
		require.True(t, way.NodeAt("b:1").IsSuspect(way.Clock.Now()), "the client may not know yet")
		require.Equal(t, "a:1", way.NodeAt("a:1").Address, "what is known of it is kept")

		say(a, nil)
		say(b, nil)
		owner = master()
		require.Equal(t, "b:1", owner.Address, "a map is not replaced by none")
		require.False(t, owner.Trusted)
		<-time.After(time.Minute)
	})
}

// If a master does not answer, and the nodes name a successor, commands for the successor must not follow the client, which may
// lead to the former master for long. So the nodes' answer makes both suspect, even in a process that has sent the former
// master nothing. A former master that answers has only lost slots.
func TestRoutes_TheSuccessorOfASilentMaster(t *testing.T) {
	client := onMiniredis(t)
	eval := func(s string) *rueidis.RedisResult {
		r := client.Do(t.Context(), client.B().Eval().Script(s).Numkeys(0).Build())
		return &r
	}
	before := eval("return {{0, 99, {'a', 1, 'i'}}, {100, 16383, {'b', 1, 'j'}}}")
	after := eval("return {{0, 98, {'a', 1, 'i'}}, {99, 16383, {'b', 1, 'j'}}}")
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := &speaker{Client: client}, &speaker{Client: client}
			way := New(&spoken{client, map[string]rueidis.Client{"a:1": a, "b:1": b}})
			ask := func(says *rueidis.RedisResult) {
				a.says.Store(says)
				b.says.Store(says)
				<-time.After(topology.FreshFor)
				way.resolver.Master(99)
			}
			ask(before)
			a.silent.Store(silent)
			ask(before)
			ask(before)
			require.False(t, way.NodeAt("a:1").IsSuspect(way.Clock.Now()), "others are asked about it, too")
			ask(after)
			require.Equal(t, silent, way.NodeAt("a:1").IsSuspect(way.Clock.Now()))
			require.Equal(t, silent, way.NodeAt("b:1").IsSuspect(way.Clock.Now()))
			<-time.After(time.Minute)
		})
	}
}

// farNode is a node that is far away.
type farNode struct {
	rueidis.Client
	says rueidis.RedisResult
	trip time.Duration
}

func (n farNode) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	<-time.After(n.trip)
	return n.says
}

// Nodes that are far away have the time for their answers.
func TestRoutes_NodesFarAwayAreWaitedFor(t *testing.T) {
	const trip = 900 * time.Millisecond
	client := onMiniredis(t)
	says := client.Do(t.Context(), client.B().Eval().Script("return {{0, 16383, {'a', 1, 'i'}}}").Numkeys(0).Build())
	synctest.Test(t, func(t *testing.T) {
		way := New(&spoken{client, map[string]rueidis.Client{"a:1": farNode{client, says, trip}}})
		for i := range 3 {
			sent := clock.Instant(i+1) * clock.Instant(time.Second)
			way.First.belief.Sample(sent, sent.Add(trip))
		}
		began := time.Now()
		require.Equal(t, topology.Owner{Address: "a:1", Trusted: true}, way.resolver.Master(7))
		require.Equal(t, trip, time.Since(began))
	})
}

// hangingCluster is a cluster that never answers commands, and whose nodes name the masters that a test wants.
type hangingCluster struct {
	spoken
	until chan struct{}
}

func (c *hangingCluster) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	select {
	case <-ctx.Done():
	case <-c.until:
	}
	return rueidis.NewErrorResult(fault.NoAnswer)
}

// movedAway runs a test in fake time with a cluster's client that knows its only master. After a call of moved the slots lead
// to another one.
func movedAway(t *testing.T, test func(t *testing.T, way *Client, moved func())) {
	t.Helper()
	client := onMiniredis(t)
	named := func(node string) *rueidis.RedisResult {
		script := "return {{0, 16383, {'" + node + "', 1, 'i'}}}"
		r := client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
		return &r
	}
	a, b := named("a"), named("b")
	synctest.Test(t, func(t *testing.T) {
		says := &speaker{Client: client}
		says.says.Store(a)
		c := &hangingCluster{spoken{client, map[string]rueidis.Client{"a:1": says, "b:1": says}}, make(chan struct{})}
		way := New(c)
		way.resolver.Master(7)
		way.NodeAt("a:1").heardNow()
		test(t, way, func() {
			says.says.Store(b)
			<-time.After(topology.FreshFor)
			way.resolver.Master(7)
			require.Equal(t, "b:1", way.Node("").Address)
		})
		close(c.until)
		<-time.After(time.Minute)
	})
}

// A command ends with its own limit even if no slot leads to its node any more.
func TestRoutes_ACommandToADroppedNodeEnds(t *testing.T) {
	movedAway(t, func(t *testing.T, way *Client, moved func()) {
		const limit = 5 * time.Second
		dropped := way.Node("")
		end, _, direct := dropped.enter(way.Clock.Now())
		require.True(t, direct)
		moved()
		require.False(t, way.Leads(dropped))
		begun := time.Now()
		dropped.bounds.begin(end, &Wait{Ctx: t.Context(), Limit: limit}, way.Clock.Now(), nil) // its caller has got the node before
		<-end.Done()
		require.Equal(t, limit, time.Since(begun))
		dropped.bounds.stop(end)
	})
}

// Close also closes nodes to which no slot leads any more, if they may still be in use.
func TestRoutes_DroppedNodesAreClosed(t *testing.T) {
	movedAway(t, func(t *testing.T, way *Client, moved func()) {
		dropped := way.Node("")
		moved()
		now := way.Clock.Now()
		dropped.foundSilent(now, now)
		way.Close()
		require.True(t, dropped.belief.Barred())
	})
}

// A node that is made while Close looks at the nodes, or later, is closed, too: its server is not asked anything for long.
func TestRoutes_ANodeThatIsMadeAfterClose(t *testing.T) {
	way := New(&spoken{onMiniredis(t), map[string]rueidis.Client{}})
	way.Close()
	way.remap(topology.Map{{First: 0, Last: protocol.Slots - 1, Address: "a:1"}})
	require.Equal(t, "a:1", way.Node("").Address)
	require.True(t, way.Node("").belief.Closed())
}

// Nodes that nobody uses any more are forgotten, however often a cluster's addresses change.
func TestRoutes_DroppedNodesAreForgotten(t *testing.T) {
	client := onMiniredis(t)
	way := New(&spoken{client, map[string]rueidis.Client{}})
	remap := func(n int) {
		way.remap(topology.Map{{First: 0, Last: protocol.Slots - 1, Address: "a:" + strconv.Itoa(n)}})
	}
	remap(0)
	for n := range 3 {
		way.NodeAt("a:" + strconv.Itoa(n)).bounds.run() // as a command does
		remap(n + 1)
	}
	require.True(t, redistest.Await(10*time.Second, func() bool {
		runtime.GC()
		return !slices.ContainsFunc(way.routes.Load().dropped, func(s weak.Pointer[Node]) bool { return !isGone(s) })
	}))
	remap(4)
	require.Len(t, way.routes.Load().dropped, 1)
	way.Close()
}
