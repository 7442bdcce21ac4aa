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

// bareFloor is what is left of a lock when everything but its two scripts is taken away: no ownership, no queue, no lease on
// the client's side, nothing to keep in step. What a library needs on top of that is the library's own cost.
var bareFloor = contender{
	name:     "floor",
	role:     floor,
	settings: "an obtain script and a compare-and-delete script, by EVALSHA, through a rueidis client with default options; where goroutines share a path a Go channel as mutex in front; where processes share a path the release script publishes and a subscriber runs the obtain script when woken",
	renews:   true,
	open: func(o opening) (locks, error) {
		return openFloor(o)
	},
	openReaders: func(o opening) (locks, error) {
		return openFloorReaders(o)
	},
}

var (
	floorObtain = rueidis.NewLuaScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return -1 end
return redis.call('PTTL', KEYS[1])`)
	floorRelease = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
	floorReleaseAndPublish = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then
	redis.call('DEL', KEYS[1])
	redis.call('PUBLISH', ARGV[2], '')
	return 1
end
return 0`)
	floorRenew = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`)
)

var errFloorLost = errors.New("the key was gone or another's at release")

type floorLocks struct {
	client  rueidis.Client
	shared  bool // another owner closes the client
	id      string
	lease   string
	queues  bool
	listens bool
	ctx     context.Context // ends the subscriptions and the renewal
	cancel  context.CancelFunc
	ending  sync.WaitGroup

	renews bool
	mu     sync.Mutex
	gates  map[string]*floorGate
	held   map[string]struct{}
}

// floorGate is one path's local half: at most one goroutine of the process is past turn, and its wake-ups are here.
type floorGate struct {
	turn chan struct{}
	wake chan struct{}
}

func openFloor(o opening) (*floorLocks, error) {
	client, err := o.rueidis()
	if err != nil {
		return nil, err
	}
	lease := o.lease
	if lease == 0 {
		lease = defaultLease
	}
	f := &floorLocks{
		client: client, shared: o.client != nil, id: uuid.NewString(), lease: strconv.FormatInt(lease.Milliseconds(), 10),
		queues: o.queues, listens: o.listens, renews: o.renew,
		gates: map[string]*floorGate{}, held: map[string]struct{}{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if o.renew {
		f.ending.Go(func() { f.renewAll(lease / 3) })
	}
	return f, nil
}

func (f *floorLocks) session(path string) session {
	key := f.key(path)
	if !f.queues && !f.listens {
		return &floorSession{f: f, keys: []string{key}, obtainArgs: []string{f.id, f.lease}, releaseArgs: []string{f.id}}
	}
	channel := key + ":released"
	return &floorWaitingSession{f: f, gate: f.gate(path, channel), keys: []string{key}, obtainArgs: []string{f.id, f.lease}, releaseArgs: []string{f.id, channel}}
}

func (f *floorLocks) gate(path, channel string) *floorGate {
	f.mu.Lock()
	g := f.gates[path]
	fresh := g == nil
	if fresh {
		g = &floorGate{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		f.gates[path] = g
	}
	f.mu.Unlock()
	if fresh && f.listens {
		f.listen(channel, g)
	}
	return g
}

// listen returns once the server has confirmed the subscription, so that no release is missed.
func (f *floorLocks) listen(channel string, g *floorGate) {
	confirmed := make(chan struct{})
	var once sync.Once
	ctx := rueidis.WithOnSubscriptionHook(f.ctx, func(rueidis.PubSubSubscription) {
		once.Do(func() { close(confirmed) })
	})
	f.ending.Go(func() {
		_ = f.client.Receive(ctx, f.client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
			select {
			case g.wake <- struct{}{}:
			default:
			}
		})
		once.Do(func() { close(confirmed) })
	})
	<-confirmed
}

func (f *floorLocks) key(path string) string { return "floor:" + path }

func (f *floorLocks) close() {
	f.cancel()
	if !f.shared {
		f.client.Close()
	}
	f.ending.Wait()
}

// renewAll renews all held locks, in pipelines of a thousand: the least that renewing can cost.
func (f *floorLocks) renewAll(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-ticker.C:
		}
		f.mu.Lock()
		batch := make([]rueidis.LuaExec, 0, len(f.held))
		for key := range f.held {
			batch = append(batch, rueidis.LuaExec{Keys: []string{key}, Args: []string{f.id, f.lease}})
		}
		f.mu.Unlock()
		for len(batch) > 0 {
			n := min(1000, len(batch))
			floorRenew.ExecMulti(f.ctx, f.client, batch[:n]...)
			batch = batch[n:]
		}
	}
}

func (f *floorLocks) hold(key string, on bool) {
	if !f.renews {
		return
	}
	f.mu.Lock()
	if on {
		f.held[key] = struct{}{}
	} else {
		delete(f.held, key)
	}
	f.mu.Unlock()
}

// floorSession never waits.
type floorSession struct {
	f                             *floorLocks
	keys, obtainArgs, releaseArgs []string
}

func (s *floorSession) lock(ctx context.Context) error {
	left, err := floorObtain.Exec(ctx, s.f.client, s.keys, s.obtainArgs).AsInt64()
	if err == nil && left != -1 {
		err = errors.New("the floor found a path taken where nobody else should use it")
	}
	if err == nil {
		s.f.hold(s.keys[0], true)
	}
	return err
}

func (s *floorSession) unlock(ctx context.Context) error {
	s.f.hold(s.keys[0], false)
	return floorRemoved(floorRelease.Exec(ctx, s.f.client, s.keys, s.releaseArgs))
}

// floorWaitingSession waits for goroutines of this process at the gate, then for other processes.
type floorWaitingSession struct {
	f                             *floorLocks
	gate                          *floorGate
	keys, obtainArgs, releaseArgs []string
}

func (s *floorWaitingSession) lock(ctx context.Context) error {
	s.gate.turn <- struct{}{}
	for {
		left, err := floorObtain.Exec(ctx, s.f.client, s.keys, s.obtainArgs).AsInt64()
		if err != nil {
			<-s.gate.turn
			return err
		}
		if left == -1 {
			return nil
		}
		// One millisecond more than is left: Redis rounds it down.
		end := time.NewTimer(time.Duration(left+1) * time.Millisecond)
		select {
		case <-s.gate.wake:
		case <-end.C:
		}
		end.Stop()
	}
}

func (s *floorWaitingSession) unlock(ctx context.Context) error {
	defer func() { <-s.gate.turn }()
	if !s.f.listens {
		return floorRemoved(floorRelease.Exec(ctx, s.f.client, s.keys, s.releaseArgs[:1]))
	}
	return floorRemoved(floorReleaseAndPublish.Exec(ctx, s.f.client, s.keys, s.releaseArgs))
}

func floorRemoved(reply rueidis.RedisResult) error {
	n, err := reply.AsInt64()
	if err == nil && n == 0 {
		err = errFloorLost
	}
	return err
}
