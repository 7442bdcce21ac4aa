package transport

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// A process whose calls sleep asks something twice a second. It goes on for two minutes, since others may wait for its locks,
// and then asks nothing.
func TestKeepAlive_WhileOthersWait(t *testing.T) {
	client := onMiniredis(t)
	said := client.Do(t.Context(), client.B().Ping().Build())
	synctest.Test(t, func(t *testing.T) {
		server := &speaker{Client: client}
		server.says.Store(&said)
		way := New(server)
		way.First.KeepAlive()
		<-time.After(3*time.Second + time.Millisecond)
		require.EqualValues(t, 6, server.asked.Load())
		way.First.EndKeepAlive()
		<-time.After(time.Hour)
		require.EqualValues(t, 6+240, server.asked.Load())
		way.First.Contended(way.Clock.Now())
		<-time.After(3*time.Second + time.Millisecond)
		require.EqualValues(t, 6+240+6, server.asked.Load())
		way.Close()
		<-time.After(time.Hour)
		require.EqualValues(t, 6+240+6, server.asked.Load())
	})
}

// A call begins to wait at a server that was silent. The server answers again, but has not been asked since. So it is asked at
// once. Until its next turn it would still count as silent, and a call that fails fast would fail.
func TestKeepAlive_AServerThatAnswersAgain(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(distantClient{client, &distant{}})
		s, now := way.First, way.Clock.Now
		ask := s.probes.ask
		s.probes.ask = nil // nobody answers
		s.foundSilent(now(), now())
		<-time.After(time.Second)
		s.probes.ask = ask
		began := now()
		require.True(t, s.Silent(clock.LongAgo))
		s.KeepAlive()
		<-time.After(s.Plus(belief.Tick))
		require.False(t, s.Silent(began))
		s.EndKeepAlive()
		way.Close()
		<-time.After(time.Hour)
	})
}

// A server is quiet if the newest answer, asked for since some time, has none of the scripts. No other answer counts: not one
// that is lost, late, refused or malformed, nor one from before the connection broke or the server was silent.
func TestKeepAlive_Quiet(t *testing.T) {
	client := onMiniredis(t)
	reply := func(script string) *rueidis.RedisResult {
		r := client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
		return &r
	}
	zeros := make([]string, len(protocol.Foreign()))
	for i := range zeros {
		zeros[i] = "0"
	}
	array := func(of []string) *rueidis.RedisResult { return reply("return {" + strings.Join(of, ",") + "}") }
	none, few := array(zeros), array(zeros[1:])
	with := func(place int) *rueidis.RedisResult {
		some := slices.Clone(zeros)
		some[place] = "1"
		return array(some)
	}
	begins := func() (*speaker, *Client, *Node) {
		server := &speaker{Client: client}
		server.says.Store(none)
		way := New(&spoken{client, map[string]rueidis.Client{"a:1": server}})
		way.remap(topology.Map{{Last: protocol.Slots - 1, Address: "a:1"}})
		return server, way, way.NodeAt("a:1")
	}
	breaksOnly := func(s *Node) { // and no other master is looked for, as where there is one address
		s.belief.Redirected(s.client.Clock.Now())
		s.belief.Inspected(s.belief.Inspecting())
	}
	for name, c := range map[string]struct {
		then  *rueidis.RedisResult // the next answer
		does  func(s *Node)
		again time.Duration // when it is asked the next time
		quiet bool
	}{
		"no script":                 {then: none, again: keepAliveEvery, quiet: true},
		"a script":                  {then: with(0), again: keepAliveEvery},
		"another one":               {then: with(len(zeros) - 1), again: keepAliveEvery},
		"not permitted":             {then: reply("return redis.error_reply('NOPERM no')"), again: belief.Again},
		"not known":                 {then: reply("return redis.error_reply('ERR unknown command')"), again: belief.Again},
		"loading":                   {then: reply("return redis.error_reply('LOADING it')"), again: keepAliveEvery},
		"a number":                  {then: reply("return 0"), again: keepAliveEvery},
		"too few":                   {then: few, again: keepAliveEvery},
		"the connection has broken": {then: none, does: breaksOnly, again: keepAliveEvery},
		"the server was silent":     {then: none, does: func(s *Node) { s.foundSilent(s.client.Clock.Now(), s.client.Clock.Now()) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, way, s := begins()
				begun := way.Clock.Now()
				require.False(t, s.Quiet(begun), "no answer yet")
				s.KeepAlive()
				defer way.Close()
				defer s.EndKeepAlive()
				<-time.After(keepAliveEvery + time.Millisecond)
				require.True(t, s.Quiet(begun))
				require.False(t, s.Quiet(way.Clock.Now()), "it was asked before")

				server.says.Store(c.then)
				<-time.After(keepAliveEvery)
				if c.does != nil {
					c.does(s)
				}
				require.Equal(t, c.quiet, s.Quiet(begun))

				server.says.Store(none)
				if c.again > keepAliveEvery {
					<-time.After(c.again - 2*keepAliveEvery)
					require.False(t, s.Quiet(begun), "not asked yet")
					<-time.After(2 * keepAliveEvery)
				}
				if c.again > 0 {
					<-time.After(keepAliveEvery)
					require.True(t, s.Quiet(begun), "the next one counts")
				}
			})
		})
	}
	t.Run("lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server, way, s := begins()
			s.KeepAlive()
			<-time.After(keepAliveEvery + time.Millisecond)
			require.True(t, s.Quiet(0))
			server.silent.Store(true)
			<-time.After(3 * time.Second)
			require.False(t, s.Quiet(0))
			server.silent.Store(false)
			<-time.After(belief.Old)
			s.EndKeepAlive()
			way.Close()
			<-time.After(time.Minute)
		})
	})
}

// proxy ends the connection at a command.
type proxy struct {
	speaker
	at    atomic.Pointer[string]
	ended atomic.Int32 // at SCRIPT
	how   atomic.Pointer[error]
}

func (p *proxy) DoMulti(ctx context.Context, c ...rueidis.Completed) []rueidis.RedisResult {
	return []rueidis.RedisResult{p.Do(ctx, c[0]), rueidis.NewErrorResult(io.EOF)}
}

func (p *proxy) Do(ctx context.Context, c rueidis.Completed) rueidis.RedisResult {
	if at := p.at.Load(); at != nil && strings.HasPrefix(c.Commands()[0], *at) {
		if c.Commands()[0] == "SCRIPT" {
			p.ended.Add(1)
		}
		if how := p.how.Load(); how != nil {
			return rueidis.NewErrorResult(*how)
		}
		return rueidis.NewErrorResult(io.EOF)
	}
	return p.speaker.Do(ctx, c)
}

// A question that ends the connection twice, while PING does not, is not asked again for an hour. An outage does not count.
func TestKeepAlive_AProxyEndsTheConnection(t *testing.T) {
	client := onMiniredis(t)
	said := client.Do(t.Context(), client.B().Ping().Build())
	script, all := "SCRIPT", ""
	synctest.Test(t, func(t *testing.T) {
		server := &proxy{speaker: speaker{Client: client}}
		server.says.Store(&said)
		way := New(server)
		way.First.KeepAlive()
		ends := func(at *string, lasts time.Duration) int32 {
			server.at.Store(at)
			server.ended.Store(0)
			<-time.After(lasts)
			return server.ended.Load()
		}
		require.Zero(t, ends(nil, keepAliveEvery+time.Millisecond))
		require.EqualValues(t, 1, ends(&script, keepAliveEvery))
		require.Zero(t, ends(nil, keepAliveEvery))
		require.Greater(t, ends(&all, time.Minute), int32(100))
		require.Zero(t, ends(nil, keepAliveEvery))
		for _, late := range []error{fault.NoAnswer, fault.NotSent} { // as where the server is busy, or this process
			server.how.Store(&late)
			require.Greater(t, ends(&script, time.Minute), int32(50), late)
		}
		server.how.Store(nil)
		for range 3 { // not in a row: an outage comes between
			require.EqualValues(t, 1, ends(&script, keepAliveEvery))
			require.EqualValues(t, 1, ends(&all, keepAliveEvery))
		}
		require.EqualValues(t, 2, ends(&script, belief.MostAgain-time.Second))
		require.EqualValues(t, 2, ends(&script, belief.MostAgain))
		way.First.EndKeepAlive()
		way.Close()
	})
}

// A Node of a cluster asks its own server, wherever the slots of the calls that sleep there have moved. If the client no longer
// knows that server, no other one is asked in its place. The first Node, whose slots have no known master, asks nothing.
func TestKeepAlive_AsksTheNodesOwnServer(t *testing.T) {
	client := onMiniredis(t)
	said := client.Do(t.Context(), client.B().Ping().Build())
	synctest.Test(t, func(t *testing.T) {
		a, b := &speaker{Client: client}, &speaker{Client: client}
		nodes := map[string]rueidis.Client{"a:1": a, "b:1": b}
		way := New(&spoken{client, nodes})
		for _, node := range []*speaker{a, b} {
			node.says.Store(&said)
		}
		asked := func(s *Node) [2]int32 {
			ofA, ofB := a.asked.Load(), b.asked.Load()
			s.KeepAlive()
			<-time.After(2*time.Second + time.Millisecond)
			s.EndKeepAlive()
			s.keepAlive.until.Store(0)
			<-time.After(time.Second)
			return [2]int32{a.asked.Load() - ofA, b.asked.Load() - ofB}
		}
		require.Zero(t, asked(way.First))

		way.remap(topology.Map{{Last: protocol.Slots - 1, Address: "a:1"}})
		ofA := way.NodeAt("a:1")
		way.remap(topology.Map{{Last: protocol.Slots - 1, Address: "b:1"}})
		require.Equal(t, [2]int32{4, 0}, asked(ofA))
		require.Equal(t, [2]int32{0, 4}, asked(way.NodeAt("b:1")))

		a.silent.Store(true)
		asked(ofA)
		require.True(t, ofA.IsSuspect(way.Clock.Now()), "its server is silent")
		require.False(t, way.NodeAt("b:1").IsSuspect(way.Clock.Now()))
		<-time.After(time.Minute)

		heard := ofA.LastReply()
		delete(nodes, "a:1")
		require.Zero(t, asked(ofA))
		require.Equal(t, heard, ofA.LastReply(), "another one's answer is none of its server's")
	})
}

// guarded is a server that refuses the user all but PING and HELLO.
type guarded struct {
	rueidis.Client
	refused, pong rueidis.RedisResult
	hello         atomic.Pointer[rueidis.RedisResult]
	greeted       atomic.Int32
}

func (g *guarded) Do(_ context.Context, c rueidis.Completed) rueidis.RedisResult {
	switch c.Commands()[0] {
	case "PING":
		return g.pong
	case "HELLO":
		g.greeted.Add(1)
		return *g.hello.Load()
	default:
		return g.refused
	}
}

func (g *guarded) DoMulti(ctx context.Context, c ...rueidis.Completed) (all []rueidis.RedisResult) {
	for _, one := range c {
		all = append(all, g.Do(ctx, one))
	}
	return all
}

func (g *guarded) Dedicate() (rueidis.DedicatedClient, func()) { return guardedWire{nil, g}, func() {} }

type guardedWire struct {
	rueidis.DedicatedClient
	of *guarded
}

func (w guardedWire) B() rueidis.Builder { return w.of.B() }
func (guardedWire) Close()               {}

func (w guardedWire) Do(ctx context.Context, c rueidis.Completed) rueidis.RedisResult {
	return w.of.Do(ctx, c)
}

func (w guardedWire) DoMulti(ctx context.Context, c ...rueidis.Completed) []rueidis.RedisResult {
	return w.of.DoMulti(ctx, c...)
}

// Behind one address, a master that became a replica is found even if the user has no permission for the question that goes
// along, and even though the server answers. A server that closes the connection at HELLO is not asked any more.
func TestKeepAlive_ADemotionWhereQuestionsAreRefused(t *testing.T) {
	client := onMiniredis(t)
	says := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	master, replica := says("return {'role', 'master', 'id', 7}"), says("return {'role', 'replica', 'id', 7}")
	refused := says(`return redis.error_reply("NOPERM User x has no permissions to run the 'client|info' command")`)
	pong, gone := says("return 'PONG'"), rueidis.NewErrorResult(io.EOF)
	begins := func(hello *rueidis.RedisResult) (*guarded, *Client) {
		server := &guarded{Client: client, refused: refused, pong: pong}
		server.hello.Store(hello)
		way := New(server)
		way.First.KeepAlive()
		way.First.Expect(&sleeper{}, "a ticket", 0)
		return server, way
	}
	synctest.Test(t, func(t *testing.T) {
		server, way := begins(&master)
		<-time.After(3 * time.Hour)
		require.False(t, way.First.IsSuspect(way.Clock.Now()))
		server.hello.Store(&replica)
		for range 10 { // other calls are answered
			way.First.belief.Judge(belief.Exchange{Sent: way.Clock.Now(), Came: way.Clock.Now()})
			<-time.After(keepAliveEvery / 5)
		}
		require.True(t, way.First.IsSuspect(way.Clock.Now()), "within a second")
		way.First.EndKeepAlive()
		way.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		server, way := begins(&gone)
		<-time.After(time.Hour - time.Second)
		require.EqualValues(t, 2, server.greeted.Load())
		way.First.EndKeepAlive()
		way.Close()
		<-time.After(time.Hour)
	})
}
