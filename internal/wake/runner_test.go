package wake

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/topology"
)

// idle is a client of a cluster whose nodes are not known. Nothing may be sent to it, or on its connections: that would panic.
type idle struct{ rueidis.Client }

func (*idle) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }

func (*idle) Nodes() map[string]rueidis.Client { return nil }

func (*idle) Dedicate() (rueidis.DedicatedClient, func()) { return idleConnection{}, func() {} }

type idleConnection struct{ rueidis.DedicatedClient }

func (idleConnection) SetPubSubHooks(rueidis.PubSubHooks) <-chan error { return nil }

func (idleConnection) SetOnInvalidations(func([]rueidis.RedisMessage)) <-chan error { return nil }

// While no call waits, the runner does not look whether Sentinel has named another master. When a call waits, it looks before
// it sends anything to the former master, which may be frozen.
func TestServe_DoesNothingWhileNoCallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &ofSentinel{Client: new(idle), master: "first"}
		u := &user{closed: make(chan struct{})}
		var mu sync.Mutex
		n := newNode(&mu, "", map[*user]struct{}{u: {}})
		r := newRunner(t.Context(), &shared{}, n, nil)
		taken := make(chan *connection, 1)
		r.dialer.dedicate(client, 1, taken)
		c := <-taken
		require.True(t, n.begin(1, c.cancel))
		ended := make(chan error, 1)
		go func() { ended <- r.serve(c) }()
		w := &Waiter{Wait: Wait{Key: "key"}, user: u, wakeup: newSignal()}
		after := func(event func()) (asked int) {
			mu.Lock()
			event()
			mu.Unlock()
			before := client.change("first")
			<-time.After(time.Minute)
			return client.change("first") - before
		}

		none := func() {}
		require.Zero(t, after(none))
		waits := func() {
			n.add(w)
			n.wakeup.wake()
		}
		require.InDelta(t, time.Minute/topology.SwitchEvery, after(waits), 2)
		after(func() { n.remove(w) })
		require.Zero(t, after(none))

		client.change("second")
		mu.Lock()
		n.add(w)
		require.True(t, n.watch(w))
		mu.Unlock()
		require.ErrorIs(t, <-ended, errDeposed)
	})
}

// breaking is a client that answers every command, and whose connections break after the time that it is sent.
type breaking struct {
	idle

	lives chan time.Duration
}

func (*breaking) B() rueidis.Builder { return rueidis.Builder{} }

func (*breaking) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	return rueidis.RedisResult{}
}

func (b *breaking) Dedicate() (rueidis.DedicatedClient, func()) {
	lost := make(chan error, 1)
	time.AfterFunc(<-b.lives, func() { lost <- io.EOF })
	return &breakingConnection{lost: lost}, func() {}
}

type breakingConnection struct {
	idleConnection

	lost chan error
}

func (c *breakingConnection) SetOnInvalidations(func([]rueidis.RedisMessage)) <-chan error {
	return c.lost
}

func (*breakingConnection) Close() {}

func (*breakingConnection) B() rueidis.Builder { return rueidis.Builder{} }

func (*breakingConnection) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	return rueidis.RedisResult{}
}

// The pauses between connections that break grow, until one has lasted.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &breaking{lives: make(chan time.Duration)}
		u := &user{closed: make(chan struct{})}
		u.Subscribe, u.Log = true, func(slog.Level, string, ...slog.Attr) {}
		n := newNode(new(sync.Mutex), "", map[*user]struct{}{u: {}})
		n.add(&Waiter{Wait: Wait{Key: "key"}, user: u, wakeup: newSignal()})
		r := newRunner(t.Context(), &shared{}, n, func() rueidis.Client { return client })
		r.tasks.Go(r.run)
		client.lives <- lasting - 1
		lost := time.Now().Add(lasting - 1)
		pauses := []int{50, 100, 200, 400, 800, 1600, 3000, 3000, 50}
		for i, ms := range pauses {
			life := lasting - 1
			if i == len(pauses)-2 {
				life = lasting
			}
			client.lives <- life
			want := time.Duration(ms) * time.Millisecond
			require.InDelta(t, want, time.Since(lost), float64(want)/4)
			lost = time.Now().Add(life)
		}
	})
}

// Which node of a cluster has which keys is asked only while calls wait.
func TestFollow_EndsWhileNoCallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l := Listen(new(idle), Options{Slots: func(context.Context) topology.Map {
			asked++
			return nil
		}})
		defer func() { l.Close()() }()
		for range 2 {
			w := l.Waiter(Wait{Key: "key"})
			w.Watch(t.Context(), limit)
			<-time.After(time.Minute)
			synctest.Wait()
			require.InDelta(t, time.Minute/askEvery, asked, 2)
			w.Close()
			ended := make(chan struct{})
			go func() {
				l.hub.tasks.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				require.Fail(t, "it goes on")
			}
			asked = 0
		}
	})
}
