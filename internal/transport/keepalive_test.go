package transport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// A process whose calls sleep asks something twice a second, and nothing once they are awake.
func TestKeepAlive_WhileCallsWait(t *testing.T) {
	client := onMiniredis(t)
	said := client.Do(t.Context(), client.B().Ping().Build())
	synctest.Test(t, func(t *testing.T) {
		server := &speaker{Client: client}
		server.says.Store(&said)
		way := New(server)
		way.First.KeepAlive()
		<-time.After(3*time.Second + time.Millisecond)
		way.First.EndKeepAlive()
		<-time.After(time.Second)
		require.EqualValues(t, 6, server.asked.Load())
	})
}

// The shard of a node asks that node, whatever becomes of the slots of the calls that sleep
// there. A node that the client no longer knows is not asked for by asking another one, and the shard of slots that nobody has
// asks nothing.
func TestKeepAlive_AsksTheShardsOwnServer(t *testing.T) {
	client := onMiniredis(t)
	said := client.Do(t.Context(), client.B().Ping().Build())
	synctest.Test(t, func(t *testing.T) {
		a, b := &speaker{Client: client}, &speaker{Client: client}
		nodes := map[string]rueidis.Client{"a:1": a, "b:1": b}
		way := New(&spoken{client, nodes})
		for _, node := range []*speaker{a, b} {
			node.says.Store(&said)
		}
		asked := func(s *Shard) [2]int32 {
			ofA, ofB := a.asked.Load(), b.asked.Load()
			s.KeepAlive()
			<-time.After(2*time.Second + time.Millisecond)
			s.EndKeepAlive()
			<-time.After(time.Second)
			return [2]int32{a.asked.Load() - ofA, b.asked.Load() - ofB}
		}
		require.Zero(t, asked(way.First))

		way.remap(topology.Map{{Last: protocol.Slots - 1, Address: "a:1"}})
		ofA := way.ShardAt("a:1")
		way.remap(topology.Map{{Last: protocol.Slots - 1, Address: "b:1"}})
		require.Equal(t, [2]int32{4, 0}, asked(ofA))
		require.Equal(t, [2]int32{0, 4}, asked(way.ShardAt("b:1")))

		a.silent.Store(true)
		asked(ofA)
		require.True(t, ofA.IsSuspect(way.Clock.Now()), "its server is silent")
		require.False(t, way.ShardAt("b:1").IsSuspect(way.Clock.Now()))
		<-time.After(time.Minute)

		heard := ofA.heard.Load()
		delete(nodes, "a:1")
		require.Zero(t, asked(ofA))
		require.Equal(t, heard, ofA.heard.Load(), "another one's answer is none of its server's")
	})
}
