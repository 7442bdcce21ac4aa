package protocol

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// movedAway is a node of a cluster from which the lock's slot is moving to another node.
type movedAway struct {
	*formatTest
	node *redistest.Server
	slot string
	to   string
}

func newMovedAway(t *testing.T) *movedAway {
	t.Helper()
	nodes := redistest.StartCluster(t, 2)
	i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", formatKey); return err == nil })
	from, to := nodes[i], nodes[1-i]
	slot := from.Command(t, "CLUSTER", "KEYSLOT", formatKey)
	to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))

	const channel = "orders-channel@{orders:42}b"
	m := &movedAway{&formatTest{T: t, told: make(chan string, 1024)}, from, slot, to.Command(t, "CLUSTER", "MYID")}
	ctx, cancel := context.WithCancel(t.Context())
	done, listener := make(chan struct{}), connectTo(t, from)
	go func() {
		defer close(done)
		_ = listener.Receive(ctx, listener.B().Ssubscribe().Channel(channel).Build(),
			func(message rueidis.PubSubMessage) { m.told <- message.Message })
	}()
	t.Cleanup(func() { cancel(); <-done })
	require.Eventually(t, func() bool {
		return strings.Contains(from.Command(t, "PUBSUB", "SHARDNUMSUB", channel), "1")
	}, 10*time.Second, time.Millisecond)
	return m
}

// awaited sets up a lock that a has and b waits for. Window is how long ago the newest window was.
func (m *movedAway) awaited(window time.Duration) (now int64) {
	m.Helper()
	queue := queueKey("orders", formatKey)
	m.node.Command(m.T, "DEL", formatKey, queue)
	require.True(m, m.obtains("a:1795278371204111", ModeNone).Granted)
	require.Equal(m, StateQueued, m.obtains("b:1795278371204112", ModeEnqueue).State)
	if m.format == spring { // as a call that looks after its ticket has it
		m.node.Command(m.T, "SET", formatKey, "a:1795278371204111+", "PX", "60000")
	}
	now = time.Now().UnixMilli()
	m.node.Command(m.T, "ZADD", queue,
		strconv.FormatInt(window.Milliseconds()-now, 10), "open", strconv.FormatInt(-now, 10), "wide")
	return now
}

// leaves makes a release the lock while the slot is moving. It reports whether the key is there afterwards.
func (m *movedAway) leaves(how Release, want int) bool {
	m.Helper()
	m.node.Command(m.T, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.to)
	require.EqualValues(m, want, m.releases("a:1795278371204111", how), m.format.name())
	m.node.Command(m.T, "CLUSTER", "SETSLOT", m.slot, "STABLE")
	return m.node.Command(m.T, "EXISTS", formatKey) == "1"
}

// A node that moves a slot away creates no key of that slot, not even one that the same script has removed. So a release adds the
// next holder before it removes the old one. Readers are not granted a lock there, since each needs a key of its own.
func TestFormat_SlotIsMovedAway(t *testing.T) {
	t.Parallel()
	m := newMovedAway(t)
	m.node.Command(t, "ACL", "SETUSER", "silent", "on", "nopass", "~*", "+@all", "resetchannels")
	client, silent := connectTo(t, m.node), connectAs(t, m.node, "silent")
	for _, d := range []*Description{spring, redisson, writers} {
		m.client = client
		m.Format = newFormat(d, Config{
			Prefix: "orders", Publishes: true, Cluster: true, Remove: func() string { return "UNLINK" },
		})
		for _, brief := range []bool{false, true} {
			for granted := false; !granted; { // unless a window has opened meanwhile
				m.awaited(0)
				granted = m.leaves(Release{Leads: !brief}, Contended)
			}
			require.EqualValues(t, 1, m.holds("b:1795278371204112"), d.name())
			require.EqualValues(t, -1, m.holds("a:1795278371204111"), d.name())
			message := <-m.told
			for !strings.HasPrefix(message, "g ") {
				message = <-m.told
			}
			require.Contains(t, message, "g 1795278371204112 1000 ", d.name())
		}

		// A release that removes the key, and may tell nobody then, is one all the same.
		m.awaited(200 * time.Millisecond)
		m.client = silent
		require.False(t, m.leaves(Release{}, NoQueue), d.name())
	}
}
