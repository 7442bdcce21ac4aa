package protocol

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// While a slot moves, a lock that has no queue is released all the same, and one that is free for a try is obtained; but no queue
// is begun, and no fencing counter: what is to be moved may be at the other node.
func TestBeside_SlotIsMovedAway(t *testing.T) {
	t.Parallel()
	m := newMovedAway(t)
	m.client = connectTo(t, m.node)
	for _, d := range []*Description{spring, redisson, writers} {
		config := Config{Prefix: "orders", Publishes: true, Cluster: true, Remove: func() string { return "UNLINK" }}
		m.Format = newFormat(d, config)
		m.node.Command(t, "DEL", formatKey, QueueKey("orders", formatKey))
		require.True(t, m.obtains("a:1795278371204111", ModeNone).Granted)
		m.node.Command(t, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.to)
		for _, mode := range []Mode{ModeEnqueue, ModePoll, ModeSeen} {
			c := m.Obtain(m.request("b:1795278371204112", mode), false)
			require.ErrorContains(t, c.Send(t.Context(), m.client).Error(), "TRYAGAIN", "%s of %s", mode, d.name())
		}
		config.Fencing = true
		fenced := newFormat(d, config)
		c := fenced.Fence(formatKey, "a:1795278371204111", lease.NewTerm(time.Minute))
		require.ErrorContains(t, c.Send(t.Context(), m.client).Error(), "TRYAGAIN", d.name())
		require.EqualValues(t, 1, m.releases("a:1795278371204111", Release{Queued: true}), d.name())
		m.node.Command(t, "CLUSTER", "SETSLOT", m.slot, "STABLE")
		require.Equal(t, "0", m.node.Command(t, "EXISTS", formatKey), d.name())
	}
}

// What is refused is known for a minute.
func TestBeside_IsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBeside(clock.New())
		require.Empty(t, b.Refused())
		b.refuse("NOPERM")
		f := NewSpring(Config{Prefix: "orders", Beside: b, Fencing: true, Remove: func() string { return "UNLINK" }})
		calls := func() []Call {
			request := Request{Key: formatKey, Value: "a:1", Lease: lease.NewTerm(time.Minute)}
			request.Mode = ModePoll
			polls := f.Obtain(request, false)
			request.Mode = ModeEnqueue
			return []Call{polls, f.Obtain(request, false), f.Release(Release{Key: formatKey, Value: "a:1", Queued: true})}
		}
		for _, c := range calls() {
			require.Equal(t, []string{formatKey}, c.Keys())
			require.NotContains(t, c.Given(), "orders", "no queue")
		}
		require.Contains(t, calls()[0].Given(), f.Counter(formatKey), "the script draws from it in any case")
		require.Equal(t, calls()[0].Script, calls()[1].Script, "nothing waits in a queue")
		<-time.After(refusedFor)
		require.Empty(t, b.Refused())
		for _, c := range calls() {
			require.Contains(t, c.Keys(), formatQueue)
			require.NotContains(t, c.Given(), f.Counter(formatKey))
		}
	})
}
