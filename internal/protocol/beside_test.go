package protocol

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// While a slot moves, a lock without a queue is still released, and a free lock is still obtained by a try. But no queue and no
// fencing counter is begun: the one to be moved may be at the other node.
func TestBeside_SlotIsMovedAway(t *testing.T) {
	t.Parallel()
	m := newMovedAway(t)
	m.client = connectTo(t, m.node)
	for _, d := range []*Description{spring, redisson, writers} {
		config := Config{Prefix: "orders", Publishes: true, Cluster: true, Remove: func() string { return "UNLINK" }}
		m.Format = newFormat(d, config)
		m.node.Command(t, "DEL", formatKey, queueKey("orders", formatKey))
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

// The registry remembers a refusal for a minute.
func TestBeside_IsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBeside(clock.New())
		require.Empty(t, b.Refused())
		b.queues.note(b.clock, "NOPERM")
		f := NewSpring(Config{Prefix: "orders", Beside: b, Fencing: true, Remove: func() string { return "UNLINK" }})
		calls := func() []Call {
			request := Request{Key: formatKey, Value: "a:1", Lease: lease.NewTerm(time.Minute)}
			request.Mode = ModePoll
			polls := f.Obtain(request, false)
			request.Mode = ModeEnqueue
			looks := request
			looks.Mode = ModeCheck
			look := f.Obtain(looks, false)
			require.Contains(t, look.Keys(), formatQueue, "without its queue it would be another call")
			return []Call{polls, f.Obtain(request, false), f.Release(Release{Key: formatKey, Value: "a:1", Queued: true})}
		}
		for _, c := range calls() {
			require.Equal(t, []string{formatKey}, c.Keys())
			require.NotContains(t, c.given(), "orders", "no queue")
		}
		require.Contains(t, calls()[0].given(), f.Counter(formatKey), "the script draws from it in any case")
		require.Equal(t, calls()[0].Script, calls()[1].Script, "nothing waits in a queue")
		<-time.After(refusedFor)
		require.Empty(t, b.Refused())
		for _, c := range calls() {
			require.Contains(t, c.Keys(), formatQueue)
			require.NotContains(t, c.given(), f.Counter(formatKey))
		}
	})
}

// A refusal of the queue is distinguished from a refusal of the key of a reader's own lease. A script cannot do without that
// key alone, so the calls of readers then go without a queue, too.
func TestBeside_ReadersLease(t *testing.T) {
	t.Parallel()
	client := connectTo(t, redistest.Start(t))
	answer := func(t *testing.T, script, arg string) rueidis.RedisResult {
		t.Helper()
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Arg(arg).Build())
	}
	const proxys = "ERR some proxy says this"
	own := readersLease(formatKey, "a:1")
	for name, c := range map[string]struct {
		refused        []string // the first replies
		queues, leases bool     // what is known to be refused then
		then           []string // the keys of the next call
	}{
		"nothing":          {nil, false, false, []string{formatKey, own, formatQueue}},
		"the queue":        {[]string{proxys}, true, false, []string{formatKey, own}},
		"the lease":        {[]string{proxys, proxys}, false, true, []string{formatKey}},
		"the lock":         {[]string{proxys, proxys, proxys}, false, false, []string{formatKey, own, formatQueue}},
		"while slots move": {[]string{"TRYAGAIN some keys are elsewhere"}, false, false, []string{formatKey, own, formatQueue}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBeside(clock.New())
			config := Config{Prefix: "orders", Beside: b, Remove: func() string { return "UNLINK" }}
			f, plain := newFormat(readers, config), NewSpring(config)
			c1 := func() Call {
				return f.Obtain(Request{
					Key: formatKey, Value: "a:1", Lease: lease.NewTerm(time.Minute), Queueing: Queueing{Mode: ModeTry},
				}, false)
			}
			first, sent := c1(), 1
			for _, why := range c.refused {
				if first.Again(answer(t, "return redis.error_reply(ARGV[1])", why)) {
					sent++
				}
			}
			require.Equal(t, min(len(c.refused), 2)+1, sent)
			if len(c.refused) < sent {
				require.False(t, first.Again(answer(t, "return false", "")))
			}
			require.Equal(t, c.queues, b.Refused() != "")
			require.Equal(t, c.queues, plain.Unqueued() != "")
			require.Equal(t, c.queues || c.leases, f.Unqueued() != "")
			next := c1()
			require.Equal(t, c.then, next.Keys())
			command := next.Command(client.B(), false)
			require.Equal(t, c.then, command.Commands()[3:3+len(c.then)], "as they are sent")
		})
	}
}
