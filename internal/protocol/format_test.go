package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const formatKey = "orders:42"

// formatTest has a server, and the calls that holds of two registries, a and b, make for a lock.
type formatTest struct {
	*testing.T
	*Format
	client rueidis.Client
	told   chan string // to b
}

// eachFormat runs a test with each format. A new format needs one more line here.
func eachFormat(t *testing.T, test func(f *formatTest)) {
	t.Helper()
	t.Parallel()
	server := redistest.Start(t)
	for _, d := range []*Description{spring, redisson, readers, writers, toy} {
		t.Run(d.name(), func(t *testing.T) {
			server.Command(t, "FLUSHALL")
			f := &formatTest{
				T: t, client: connectTo(t, server), told: make(chan string, 16),
				Format: newFormat(d, Config{Prefix: "orders", Publishes: true, Remove: func() string { return "UNLINK" }}),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done, listener := make(chan struct{}), connectTo(t, server)
			go func() {
				defer close(done)
				_ = listener.Receive(ctx, listener.B().Subscribe().Channel("orders-channel@b").Build(),
					func(m rueidis.PubSubMessage) {
						select {
						case f.told <- m.Message:
						case <-ctx.Done():
						}
					})
			}()
			t.Cleanup(func() { cancel(); <-done })
			require.Eventually(t, func() bool {
				return server.Command(t, "PUBLISH", "orders-channel@b", "begin") == "1"
			}, 10*time.Second, time.Millisecond)
			require.Equal(t, "begin", <-f.told)
			test(f)
		})
	}
}

func connectTo(t *testing.T, server *redistest.Server) rueidis.Client {
	t.Helper()
	return connectAs(t, server, "default")
}

func connectAs(t *testing.T, server *redistest.Server, user string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, Username: user, Password: "any", ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func (f *formatTest) request(value string, mode Mode) Request {
	return Request{
		Key: formatKey, Value: value, Lease: lease.NewTerm(time.Minute), Side: f.ticketSide(), Queueing: Queueing{Mode: mode},
	}
}

// ticketSide is the letter behind tickets.
func (f *formatTest) ticketSide() string {
	if f.format.Side == "" {
		return ""
	}
	return f.format.Side[:1]
}

func (f *formatTest) obtains(value string, mode Mode) Reply {
	f.Helper()
	c := f.Obtain(f.request(value, mode), false)
	reply, err := c.Decode(c.Send(f.Context(), f.client))
	require.NoError(f, err)
	return reply
}

func (f *formatTest) sends(c Call) int64 {
	f.Helper()
	n, err := Confirmed(c.Send(f.Context(), f.client))
	require.NoError(f, err)
	return n
}

func (f *formatTest) releases(value string, how Release) int64 {
	f.Helper()
	how.Key, how.Value, how.Queued = formatKey, value, true
	return f.sends(f.Release(how))
}

func (f *formatTest) holds(value string) int64 {
	f.Helper()
	return f.sends(f.Holds(formatKey, value))
}

// exclusive makes the lock a writer's for readers, so that they wait too.
func (f *formatTest) exclusive() *formatTest {
	other := *f
	if f.format == readers {
		other.Format = newFormat(writers, *f.Config)
	}
	return &other
}

func TestFormat(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		first := f.exclusive()
		require.True(f, first.obtains("a:1795278371204111", ModeNone).Granted)
		require.EqualValues(f, 1, first.holds("a:1795278371204111"))
		require.False(f, f.obtains("b:1795278371204111", ModeNone).Granted, "it is taken")
		require.EqualValues(f, -1, f.holds("b:1795278371204111"))
		require.EqualValues(f, 1, first.sends(first.Renew(formatKey, "a:1795278371204111", lease.NewTerm(time.Hour))))
		require.EqualValues(f, -1, f.sends(f.Renew(formatKey, "b:1795278371204111", lease.NewTerm(time.Hour))))

		reply := f.obtains("b:1795278371204112", ModeEnqueue)
		require.Equal(f, StateQueued, reply.State)
		require.Greater(f, reply.Left, 59*time.Minute, "it was renewed")
		require.Equal(f, StateQueued, f.obtains("b:1795278371204112", ModeCheck).State)
		require.Equal(f, stateMissing, f.obtains("b:1795278371204113", ModeCheck).State)

		for grants := 0; grants == 0; { // unless a window is open
			if n := first.releases("a:1795278371204111", Release{}); n == Contended && f.holds("b:1795278371204112") == 1 {
				grants++
			} else {
				require.True(f, first.obtains("a:1795278371204111", ModeNone).Granted)
			}
		}
		for told := ""; told == "" || told[0] != 'g'; {
			told = <-f.told
		}
		require.Equal(f, StateOwner, f.obtains("b:1795278371204112", ModeCheck).State)
		require.EqualValues(f, 1, f.releases("b:1795278371204112", Release{}))
		require.EqualValues(f, 0, f.holds("b:1795278371204112"))
		require.EqualValues(f, 0, f.releases("b:1795278371204112", Release{}), "it was released before")
	})
}

// A grant whose reply was lost is taken over by a later hold of its registry, and a late command of the earlier one is refused.
func TestFormat_LateCommands(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		first := f.exclusive()
		require.True(f, first.obtains("a:1795278371204111", ModeNone).Granted)
		require.True(f, f.obtains("a:1795278371204112", ModeNone).Granted)
		require.EqualValues(f, 1, f.holds("a:1795278371204112"))
		require.False(f, first.obtains("a:1795278371204111", ModeNone).Granted)
		require.LessOrEqual(f, first.releases("a:1795278371204111", Release{}), int64(0))
		require.EqualValues(f, 1, f.holds("a:1795278371204112"))
	})
}

// A server that is out of memory grants no lock, as with Redisson's own scripts, and nothing stays. It still releases one.
func TestFormat_OutOfMemory(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		memory := func(limit string) {
			set := f.client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", limit).Build()
			require.NoError(f, f.client.Do(f.Context(), set).Error())
		}
		memory("1")
		for _, f.Fencing = range []bool{f.format != readers, false} { // they draw no tokens
			for _, mode := range []Mode{ModePoll, ModeNone} {
				c := f.Obtain(f.request("a:1795278371204111", mode), false)
				_, err := c.Decode(c.Send(f.Context(), f.client))
				require.ErrorContains(f, err, "OOM", mode)
			}
		}
		if f.format.Side == "" {
			c := f.ObtainAll([]Request{f.request("a:1795278371204111", ModeNone)})
			require.ErrorContains(f, c.Send(f.Context(), f.client).Error(), "OOM")
		}
		memory("0")
		require.EqualValues(f, 0, f.holds("a:1795278371204111"))

		require.True(f, f.obtains("a:1795278371204111", ModeNone).Granted)
		memory("1")
		require.EqualValues(f, 1, f.releases("a:1795278371204111", Release{}))
		memory("0")
	})
}

// A call that leaves removes its own tickets, and no others.
func TestFormat_Leaving(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		ticket := func(value string) string { return f.request(value, ModeNone).Ticket() }
		const abandoned, newest = "b:1795278371204112", "b:1795278371204114"
		for _, leaving := range [][]string{
			{ticket(newest)}, {ticket(abandoned), ticket(newest)}, {ticket("b:1795278371204110"), ticket(abandoned), ticket(newest)},
		} {
			first := f.exclusive()
			require.True(f, first.obtains("a:1795278371204111", ModeNone).Granted)
			require.Equal(f, StateQueued, f.obtains("b:1795278371204111", ModeEnqueue).State)
			require.Equal(f, StateQueued, f.obtains(newest, ModeEnqueue).State)
			require.EqualValues(f, -1, f.releases(newest, Release{Leaving: leaving}))
			require.Equal(f, stateMissing, f.obtains(newest, ModeCheck).State)
			require.Equal(f, StateQueued, f.obtains("b:1795278371204111", ModeCheck).State, "another call's")
			require.EqualValues(f, -1, f.releases("b:1795278371204111", Release{Leaving: []string{ticket("b:1795278371204111")}}))
			require.EqualValues(f, 1, first.releases("a:1795278371204111", Release{}))
		}
	})
}

func TestFormat_Fence(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format == readers { // they draw none
			return
		}
		f.Fencing = true
		token := f.obtains("a:1795278371204111", ModeNone).Token
		require.Positive(f, token)
		require.Greater(f, f.sends(f.Fence(formatKey, "a:1795278371204111", lease.NewTerm(time.Minute))), int64(token))
	})
}

// Plain locks can also be obtained together, unless one of them is taken, and a release can keep them taken.
func TestFormat_Plain(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format.Side != "" {
			require.Panics(f, func() { f.ObtainAll([]Request{f.request("a:1795278371204111", ModeNone)}) })
			return
		}
		both := []Request{f.request("a:1795278371204111", ModeNone), f.request("a:1795278371204111", ModeNone)}
		both[1].Key = "orders:43"
		c := f.ObtainAll(both)
		tokens, err := c.Send(f.Context(), f.client).AsIntSlice()
		require.NoError(f, err)
		require.Equal(f, []int64{0, 0}, tokens)

		require.EqualValues(f, 1, f.releases("a:1795278371204111", Release{Keep: time.Minute}))
		require.False(f, f.obtains("a:1795278371204112", ModeNone).Granted, "it stays taken")
		both[0].Value, both[1].Value = "b:1795278371204115", "b:1795278371204115"
		c = f.ObtainAll(both)
		taken, err := c.Send(f.Context(), f.client).AsInt64()
		require.NoError(f, err)
		require.EqualValues(f, 1, taken)
	})
}

// If a cluster can have no queue for a key, because of the key's braces, no call looks for one.
func TestFormat_ATraceWhereThereIsNoQueue(t *testing.T) {
	clustered := Config{Prefix: "orders", Cluster: true}
	for key, queues := range map[string]bool{"orders:42": true, "orders:a}b": false} {
		require.Equal(t, queues, queueKey("orders", key) != "")
		for name, f := range map[string]*Format{"spring": NewSpring(clustered), "writer": NewWrite(clustered)} {
			t.Run(name+" "+key, func(t *testing.T) {
				asks := func(m Mode) []string {
					r := Request{Key: key, Value: "a:1", Lease: lease.NewTerm(time.Minute), Queueing: Queueing{Mode: m}}
					c := f.Obtain(r, false)
					return append(c.Keys(), c.given()...)
				}
				for _, mode := range []Mode{ModePoll, ModeSeen, ModeTry} {
					if queues {
						require.NotEqual(t, asks(ModeNone), asks(mode))
					} else {
						require.Equal(t, asks(ModeNone), asks(mode))
					}
				}
			})
		}
	}
}
