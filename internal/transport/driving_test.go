package transport

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// drives is a queue that a test drives, without a node.
type drives struct {
	*queue
	judge     judge
	abandoned atomic.Int32
	node      bool // is suspect
	barred    bool
	chosen    int
	sent      []string
	meanwhile func()
}

// driving runs a test in fake time with a queue of so many drivers.
func driving(t *testing.T, drivers int, test func(t *testing.T, d *drives)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &drives{judge: judge{clock: clock.New(), act: func(belief.Acts, clock.Instant) {}}}
		d.queue = newQueue(queueFrom, given{
			now: d.judge.clock.Now, stands: func(r *road) bool { return r.suspect == d.node },
			barred:  func() bool { return d.barred },
			drivers: func() int { return drivers },
			watch:   func() {},
			choose: func(func() bool) (road, bool) {
				d.chosen++
				r := road{most: mostAtOnce, suspect: d.node}
				if d.meanwhile != nil {
					d.meanwhile()
				}
				return r, true
			},
			send: func(r *road, of []*entry) {
				for _, e := range of {
					d.sent = append(d.sent, e.key+" "+strconv.FormatBool(r.suspect))
					e.answer(rueidis.RedisResult{})
				}
			},
		})
		test(t, d)
		synctest.Wait()
		require.Zero(t, d.sending)
		require.Zero(t, d.lost)
		require.Zero(t, d.seeking)
		require.Zero(t, d.flying)
		require.Empty(t, d.waiting)
		require.Zero(t, d.abandoned.Load())
	})
}

// leaves queues a command that obtains.
func (d *drives) leaves(t *testing.T, key string) *entry {
	t.Helper()
	b := &bound{done: make(chan struct{}), judge: &d.judge}
	e := b.enter(task{key: key})
	e.abandoned = &d.abandoned
	b.begin(&Wait{Ctx: t.Context(), Limit: time.Second}, d.judge.clock.Now(), nil, false)
	t.Cleanup(func() { b.stop() })
	d.add(e)
	return e
}

// A node becomes suspect after a driver has chosen a road, and before it has taken anything. Then it chooses another road,
// since the first one may lead to a deposed master.
func TestQueue_RoadFromBefore(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		d.meanwhile = func() { d.node = true }
		e := d.leaves(t, "1")
		require.NoError(t, e.await().Error())
		require.Equal(t, []string{"1 true"}, d.sent)
		require.Equal(t, 2, d.chosen)
	})
}

// A suspect node is closed after a driver has chosen a road, and before it has taken anything. What waits is not sent over the
// road of healthy nodes, which may lead to a deposed master. Of later commands, only those that obtain are not sent.
func TestQueue_ClosedWithARoad(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		d.node = true
		d.meanwhile = func() {
			d.meanwhile = nil
			d.end(func() { d.node, d.barred = false, true })
		}
		require.ErrorIs(t, d.leaves(t, "1").await().Error(), fault.NotSent)
		require.ErrorIs(t, d.leaves(t, "2").await().Error(), fault.NotSent)
		b := &bound{done: make(chan struct{}), judge: &d.judge}
		removes := b.enter(task{key: "3"})
		b.begin(&Wait{Ctx: t.Context(), Limit: time.Second}, d.judge.clock.Now(), nil, false)
		defer b.stop()
		d.add(removes)
		require.NoError(t, removes.await().Error())
		require.Equal(t, []string{"3 false"}, d.sent)
	})
}

// A command counts as sent before the driver looks at the node. If the node becomes suspect just then, the reply is late.
func TestQueue_SentBeforeTheLook(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		var looked, taken clock.Instant
		send := d.given.send
		d.given.stands = func(*road) bool {
			<-time.After(time.Millisecond)
			looked = d.judge.clock.Now()
			return true
		}
		d.given.send = func(r *road, of []*entry) {
			taken = r.taken
			send(r, of)
		}
		require.NoError(t, d.leaves(t, "1").await().Error())
		require.Less(t, taken, looked)
	})
}

// When a node becomes suspect its drivers may hang. Later commands get other drivers. Those that hang end when they no longer
// do, and answer what they took.
func TestQueue_DriversThatHangAreWrittenOff(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		silent, send := make(chan struct{}), d.given.send
		d.given.send = func(r *road, of []*entry) {
			if !r.suspect {
				<-silent
			}
			send(r, of)
		}
		hangs := d.leaves(t, "1")
		synctest.Wait()
		d.leaves(t, "2")
		synctest.Wait()
		require.Empty(t, d.sent)
		d.node = true
		d.renew()
		synctest.Wait()
		require.Equal(t, []string{"2 true"}, d.sent)
		require.Equal(t, 1, d.lost)
		close(silent)
		require.NoError(t, hangs.await().Error())
	})
}

// Drivers are goroutines: however often the node becomes suspect, at most mostLost are written off.
func TestQueue_MostDriversAreWrittenOff(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		d.lost = mostLost
		silent, send := make(chan struct{}), d.given.send
		d.given.send = func(r *road, of []*entry) {
			<-silent
			send(r, of)
		}
		hangs := d.leaves(t, "1")
		synctest.Wait()
		d.renew()
		require.Equal(t, 1, d.sending)
		d.renew()
		require.Zero(t, mostLost-d.lost)
		close(silent)
		require.NoError(t, hangs.await().Error())
		d.lost -= mostLost
	})
}

// A driver that looks for a road when the node becomes suspect does not hang. It takes what waits, and no other driver is added.
func TestQueue_DriverThatLooksForARoad(t *testing.T) {
	driving(t, 4, func(t *testing.T, d *drives) {
		found := make(chan struct{})
		d.meanwhile = func() { <-found }
		d.node = true
		e := d.leaves(t, "1")
		synctest.Wait()
		for range 3 {
			d.renew()
			require.False(t, d.isEmpty())
			require.True(t, d.relieve(d.judge.clock.Now().Add(time.Second)))
		}
		synctest.Wait()
		require.Equal(t, 1, d.chosen)
		close(found)
		require.NoError(t, e.await().Error())
	})
}

// A command whose caller leaves before it is taken is not sent; one that was taken is counted until it is answered.
func TestQueue_WhoLeaves(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		found, answered, send := make(chan struct{}), make(chan struct{}), d.given.send
		d.meanwhile = func() { <-found }
		d.given.send = func(r *road, of []*entry) {
			<-answered
			send(r, of)
		}
		stays, leaves := d.leaves(t, "1"), d.leaves(t, "2")
		synctest.Wait()
		require.False(t, d.leave(leaves))
		close(found)
		synctest.Wait()
		require.Zero(t, d.abandoned.Load())
		require.True(t, d.leave(stays), "it may be executed yet")
		require.EqualValues(t, 1, d.abandoned.Load())
		close(answered)
		synctest.Wait()
		require.Equal(t, []string{"1 false"}, d.sent)
	})
}

// A caller whose time is over while a driver takes gets no reply, and its command is not sent.
func TestQueue_TimeIsOverWhileADriverLooks(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		found := make(chan struct{})
		d.meanwhile = func() { <-found }
		e := d.leaves(t, "1")
		require.ErrorIs(t, e.await().Error(), fault.NoAnswer)
		close(found)
		synctest.Wait()
		require.Empty(t, d.sent)
		require.False(t, d.leave(e))
	})
}

// A driver finds a command whose caller has just left, but has not told the queue yet.
func TestQueue_LeavesAsADriverTakes(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		found := make(chan struct{})
		d.meanwhile = func() { <-found }
		e, other := d.leaves(t, "1"), d.leaves(t, "2")
		require.True(t, e.end.stage.CompareAndSwap(waits, done))
		close(found)
		require.NoError(t, other.await().Error())
		require.Equal(t, []string{"2 false"}, d.sent)
	})
}

// A task that sends several commands shares no pipeline, and overtakes no other command.
func TestQueue_TasksByThemselves(t *testing.T) {
	driving(t, 1, func(t *testing.T, d *drives) {
		var together []int
		send := d.given.send
		d.given.send = func(r *road, of []*entry) {
			together = append(together, len(of))
			send(r, of)
		}
		found := make(chan struct{})
		d.meanwhile = func() { <-found }
		for i := range 7 {
			if e := d.leaves(t, strconv.Itoa(i)); i == 2 || i == 3 {
				e.send = func(context.Context, rueidis.CoreClient) []rueidis.RedisResult { return nil }
			}
		}
		close(found)
		synctest.Wait()
		require.Equal(t, []int{2, 1, 1, 3}, together)
		require.Len(t, d.sent, 7)
		require.Equal(t, "6 false", d.sent[6])
	})
}
