package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
)

// directedFloor is the least that a directed handoff must do: waiters queue in Redis, and a release makes the first of
// them the owner and tells only its process. Nothing guards against a waiter that gives up or dies.
var directedFloor = contender{
	name:     "directed floor",
	role:     floor,
	settings: "SET NX, and an enqueue script when the path is taken, through a rueidis client with default options; the release script makes the first waiter of a list the owner and publishes on its process's own channel, listened to on a connection of its own; after such a release the next lock enqueues at once. No queue inside a process, no renewal, nothing for waiters that give up or die",
	// It differs from the floor only in how it waits.
	contended: true,
	open: func(o opening) (locks, error) {
		return openDirectedFloor(o)
	},
}

// A ticket is the value that the lock is to have, which also names the channel of its process. One script looks at the key and
// enqueues, and one script releases and grants: so no ticket is left behind after the key is gone.
const grantFirst = `local first = redis.call('LPOP', KEYS[2])
if first then
	redis.call('SET', KEYS[1], first, 'PX', ARGV[2])
	redis.call('PUBLISH', 'directed@' .. first, KEYS[1])
end
`

var (
	directedEnqueue = rueidis.NewLuaScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return -1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return redis.call('PTTL', KEYS[1])`)
	directedRelease = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
` + grantFirst + `if first then return 2 end
return redis.call('DEL', KEYS[1])`)
	// directedServe is for a lease that has ended without a release.
	directedServe = rueidis.NewLuaScript(`if redis.call('EXISTS', KEYS[1]) == 0 then
` + grantFirst + `end
return redis.call('PTTL', KEYS[1])`)
)

type directedLocks struct {
	client rueidis.Client
	shared bool // another owner closes the client
	id     string
	lease  int64              // in milliseconds
	cancel context.CancelFunc // ends the subscription
	ending sync.WaitGroup

	mu     sync.Mutex
	grants map[string]chan struct{} // by key
}

// openDirectedFloor returns once the server has confirmed the subscription: a grant can overtake the reply to enqueue.
func openDirectedFloor(o opening) (*directedLocks, error) {
	client, err := o.rueidis()
	if err != nil {
		return nil, err
	}
	lease := o.lease
	if lease == 0 {
		lease = defaultLease
	}
	d := &directedLocks{
		client: client, shared: o.client != nil, id: uuid.NewString(), lease: lease.Milliseconds(),
		grants: map[string]chan struct{}{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	confirmed, failed := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) {
		once.Do(func() { close(confirmed) })
	})
	receive, release := client.Receive, func() {}
	if !d.shared { // its own connection is a fifth faster; many registries share one client's
		var own rueidis.DedicatedClient
		own, release = client.Dedicate()
		receive = own.Receive
	}
	d.ending.Go(func() {
		defer release()
		failed <- receive(hooked, client.B().Subscribe().Channel("directed@"+d.id).Build(), func(m rueidis.PubSubMessage) {
			d.grant(m.Message) <- struct{}{}
		})
	})
	select {
	case <-confirmed:
		return d, nil
	case err := <-failed:
		d.close()
		return nil, errors.Join(errors.New("the directed floor could not subscribe"), err)
	}
}

// grant returns the channel on which the process's goroutine for the key learns that it is the owner. There is one such
// goroutine, with at most one ticket.
func (d *directedLocks) grant(key string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.grants[key]
	if g == nil {
		g = make(chan struct{}, 1)
		d.grants[key] = g
	}
	return g
}

func (d *directedLocks) session(path string) session {
	key := d.key(path)
	return &directedSession{d: d, keys: []string{key, key + ":waiters"}, args: []string{d.id, strconv.FormatInt(d.lease, 10)}, granted: d.grant(key)}
}

func (d *directedLocks) key(path string) string { return "directed:{" + path + "}" }

func (d *directedLocks) close() {
	d.cancel()
	if !d.shared {
		d.client.Close()
	}
	d.ending.Wait()
}

type directedSession struct {
	d          *directedLocks
	keys, args []string
	granted    chan struct{}
	handedOver bool // the last release made another waiter the owner
}

// lock leaves its ticket behind when ctx ends: the path is unusable after that.
func (s *directedSession) lock(ctx context.Context) error {
	if !s.handedOver {
		set := s.d.client.B().Set().Key(s.keys[0]).Value(s.d.id).Nx().PxMilliseconds(s.d.lease).Build()
		err := s.d.client.Do(ctx, set).Error()
		if err == nil || !rueidis.IsRedisNil(err) {
			return err
		}
	}
	left, err := directedEnqueue.Exec(ctx, s.d.client, s.keys, s.args).AsInt64()
	for err == nil && left != -1 {
		// One millisecond more than is left: Redis rounds it down.
		end := time.NewTimer(time.Duration(left+1) * time.Millisecond)
		select {
		case <-s.granted:
			end.Stop()
			return nil
		case <-ctx.Done():
			end.Stop()
			return ctx.Err()
		case <-end.C:
			// this may have made the session the owner: then the message says so
			left, err = directedServe.Exec(ctx, s.d.client, s.keys, s.args).AsInt64()
			left = max(left, 0)
		}
	}
	return err
}

func (s *directedSession) unlock(ctx context.Context) error {
	n, err := directedRelease.Exec(ctx, s.d.client, s.keys, s.args).AsInt64()
	s.handedOver = n == 2
	if err == nil && n == 0 {
		err = errFloorLost
	}
	return err
}
