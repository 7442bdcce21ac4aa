package web

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockregistry/lockregistry/locktest"
)

// queue delivers messages to workers, and counts.
type queue struct {
	deliver chan message

	mu           sync.Mutex
	deliveries   map[string]int // by key
	acknowledged map[string]int
}

func newQueue() *queue {
	return &queue{deliver: make(chan message), deliveries: map[string]int{}, acknowledged: map[string]int{}}
}

// delivery is a message of a queue.
type delivery struct {
	queue *queue
	key   string
}

func (d delivery) Key() string { return d.key }

func (d delivery) Ack(context.Context) error {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	d.queue.acknowledged[d.key]++
	return nil
}

func (d delivery) Later(ctx context.Context, after time.Duration) error {
	time.AfterFunc(after, func() { d.queue.send(ctx, d.key) })
	return nil
}

// send delivers a message as soon as there is a worker.
func (q *queue) send(ctx context.Context, key string) {
	select {
	case <-ctx.Done():
	case q.deliver <- delivery{q, key}:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.deliveries[key]++
	}
}

// seen are the numbers of deliveries and of acknowledgements.
func (q *queue) seen() (deliveries, acknowledged map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.deliveries), maps.Clone(q.acknowledged)
}

// inBubble runs a test with one worker. Send returns before the message is delivered.
func inBubble(
	t *testing.T, work func(locks *locktest.Registry, key string) error,
	test func(locks *locktest.Registry, q *queue, send func(key string)),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		locks, q := locktest.New(t), newQueue()
		c := &consumer{locks: locks.Registry, work: func(_ context.Context, m message) error { return work(locks, m.Key()) }}
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		workers.Go(func() { c.run(ctx, q.deliver) })
		test(locks, q, func(key string) { go q.send(ctx, key) })
		cancel()
		workers.Wait()
	})
}

func nothing(*locktest.Registry, string) error { return nil }

func equal(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %d, not %d", what, got, want)
	}
}

// A message whose key another consumer works for comes again, now and then. The worker does others meanwhile.
func TestConsumer_Taken(t *testing.T) {
	inBubble(t, nothing, func(locks *locktest.Registry, q *queue, send func(string)) {
		release := locks.HoldElsewhere("customer:alice", time.Hour)
		send("alice")
		<-time.After(time.Second)
		send("bob")
		<-time.After(time.Minute)
		deliveries, acknowledged := q.seen()
		equal(t, "of another key", acknowledged["bob"], 1)
		equal(t, "not acknowledged", acknowledged["alice"], 0)
		if n := deliveries["alice"]; n < 10 || n > 13 {
			t.Errorf("delivered %d times in a minute", n)
		}
		release()
		<-time.After(10 * time.Second)
		_, acknowledged = q.seen()
		equal(t, "acknowledged when the key is free", acknowledged["alice"], 1)
	})
}

// While Redis is down the worker takes a message a second, so that they do not use up their deliveries. None is lost.
func TestConsumer_RedisIsDown(t *testing.T) {
	inBubble(t, nothing, func(locks *locktest.Registry, q *queue, send func(string)) {
		const messages = 20
		locks.Disconnect()
		for i := range messages {
			send(strconv.Itoa(i))
		}
		<-time.After(30 * time.Second)
		deliveries, _ := q.seen()
		if n := sum(deliveries); n > 31 {
			t.Errorf("%d deliveries in half a minute", n)
		}
		locks.Reconnect()
		<-time.After(30 * time.Second)
		_, acknowledged := q.seen()
		equal(t, "keys that were acknowledged", len(acknowledged), messages)
		equal(t, "acknowledged", sum(acknowledged), messages)
	})
}

func sum(of map[string]int) (n int) {
	for _, m := range of {
		n += m
	}
	return n
}

// When the lock is lost during the work the message is not acknowledged, and comes again.
func TestConsumer_TheLockIsLost(t *testing.T) {
	works := 0
	inBubble(t, func(locks *locktest.Registry, key string) error {
		if works++; works == 1 {
			locks.Lose("customer:" + key)
		}
		return nil
	}, func(_ *locktest.Registry, q *queue, send func(string)) {
		send("alice")
		<-time.After(time.Second)
		_, acknowledged := q.seen()
		equal(t, "not acknowledged", acknowledged["alice"], 0)
		<-time.After(10 * time.Second)
		_, acknowledged = q.seen()
		equal(t, "acknowledged", acknowledged["alice"], 1)
		equal(t, "worked", works, 2)
	})
}

// What is acknowledged is done, also when nobody answers to the unlock.
func TestConsumer_RedisIsGoneAtTheEnd(t *testing.T) {
	inBubble(t, func(locks *locktest.Registry, _ string) error {
		locks.Disconnect()
		return nil
	}, func(locks *locktest.Registry, q *queue, send func(string)) {
		send("alice")
		<-time.After(time.Minute)
		deliveries, acknowledged := q.seen()
		equal(t, "deliveries", deliveries["alice"], 1)
		equal(t, "acknowledged", acknowledged["alice"], 1)
		locks.Reconnect()
	})
}

// A queue that is closed ends its workers.
func TestConsumer_TheQueueIsClosed(t *testing.T) {
	messages := make(chan message)
	close(messages)
	(&consumer{locks: locktest.New(t).Registry}).run(t.Context(), messages)
}
