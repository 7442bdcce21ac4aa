package transport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A command that waits for replicas takes longer than the way to the server: it is no sample of that. Else a lease would have to
// be long, and a lock would be refused that has a short one.
func TestRoundTrip_WaitingForReplicasIsNoSample(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	defer way.Close()
	p := Wait{Ctx: t.Context(), Limit: time.Minute}
	plain := protocol.Call{Script: protocol.NewScript("return redis.call('SET', KEYS[1], 1)"), Key: "42"}
	replicated := plain
	replicated.Replicas = &protocol.Replicas{N: 1, Timeout: 2 * WaitAtMost, Settled: func(error) {}}
	replicated.Wrote = func(*protocol.Call, rueidis.RedisResult) bool { return true }
	for range 5 { // sequential, and so long that each would be a sample
		a := way.Do(&p, &replicated)
		require.NoError(t, a.Error())
		require.Error(t, a.ReplicaErr, "there are no replicas")
		require.GreaterOrEqual(t, a.Sent.Until(a.Came), waitSlice)
	}
	require.Less(t, way.First.RoundTrip().Base, waitSlice)
	for range 32 {
		require.NoError(t, way.Do(&p, &plain).Error())
	}
	require.True(t, way.First.RoundTrip().Known)
	for range 5 {
		require.Error(t, way.Do(&p, &replicated).ReplicaErr)
	}
	require.Less(t, way.First.RoundTrip().Base, waitSlice)
}

// The time for which a command itself may wait at the server is added to what is late, and to what is silence.
func TestNode_WaitingForReplicasIsNotLate(t *testing.T) {
	way := New(onMiniredis(t))
	defer way.Close()
	s := way.First
	s.belief.WarmedUp()
	for i := range 3 {
		at := clock.Instant(i+1) * clock.Instant(time.Second)
		s.belief.Sample(at, at.Add(time.Millisecond))
	}
	trip := s.RoundTrip()
	require.Equal(t, RoundTrip{Base: time.Millisecond, Known: true}, trip)
	for _, lease := range []time.Duration{0, time.Minute, 300 * time.Millisecond} {
		for _, holds := range []time.Duration{0, WaitAtMost} {
			sent := way.Clock.Now()
			late := sent.Add(trip.Late(lease) + holds)
			p := Wait{Lease: lease, holds: holds}
			intime := exchange{sent: sent, came: late - 1, trip: trip}
			require.Equal(t, belief.Believed, s.believes(&p, nil, intime), "%v, %v", lease, holds)
			excused := exchange{sent: sent, came: late, trip: trip, excused: true}
			require.Equal(t, belief.Late, s.believes(&p, nil, excused), "%v, %v", lease, holds)
			a := belief.Alarm{Holds: holds}
			a.Set(&s.belief, sent)
			require.False(t, a.Ring(&s.belief, sent, sent.Add(trip.Silence()+holds-1)))
			require.True(t, a.Ring(&s.belief, sent, sent.Add(trip.Silence()+holds)))
		}
	}
	require.False(t, s.IsSuspect(way.Clock.Now()))
}

// As TestQueue_SentBeforeTheLook, for a write that replicas must have.
func TestReplicas_SentBeforeTheLook(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		way := New(client)
		var looked clock.Instant
		r := &replicator{client: way}
		s := &replicaSender{replicator: r, node: way.First, since: way.Clock.Now(), stands: func() bool {
			<-time.After(time.Millisecond)
			looked = way.Clock.Now()
			return true
		}}
		write := &replication{call: protocol.Call{Key: "42", Args: protocol.Args{"v", "1000"}, Replicas: &protocol.Replicas{N: 1}}}
		r.sender, r.queue = s, []*replication{write}
		commands, _ := s.take(client.B())
		require.Len(t, commands, 2)
		require.Less(t, write.reply.Sent, looked)
	})
}
