package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// service stands for one process of a fleet: it has a client and a registry of its own and shares nothing with the others
// but the prefix and Redis.
type service struct {
	client   rueidis.Client
	registry *lockregistry.Registry
	think    func(ctx context.Context)
}

func newService(cfg config, connect func() (rueidis.Client, error)) (*service, error) {
	client, err := connect()
	if err != nil {
		return nil, err
	}
	registry, err := lockregistry.New(client, cfg.prefix)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &service{client: client, registry: registry, think: cfg.think}, nil
}

func (s *service) close() error {
	defer s.client.Close()
	return s.registry.Close()
}

// addOneLocked adds one to the counter under its lock and says how long it waited for the lock.
func (s *service) addOneLocked(ctx context.Context, c *counter) (waited time.Duration, err error) {
	lock := s.registry.Obtain(c.path)
	start := time.Now()
	if err := lock.Lock(ctx); err != nil {
		if ctx.Err() != nil {
			return 0, errStopped
		}
		return 0, err
	}
	waited = time.Since(start)

	// The context that the lock gives ends when the lock is lost: then nothing more is written.
	ctx, cancel := finishing(ctx)
	defer cancel()
	defer func() { err = errors.Join(err, lock.Unlock(context.WithoutCancel(ctx))) }()
	return waited, s.addOne(lock.Context(ctx), c)
}

func (s *service) addOneUnlocked(ctx context.Context, c *counter) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	return s.addOne(ctx, c)
}

// errStopped says that an update was given up before it began.
var errStopped = errors.New("stopped while waiting for the lock")

// finishing goes on after Ctrl-C, so that what has begun is finished and the books stay exact. It has an end nevertheless,
// for rueidis repeats a read on a lost connection as long as its context lives.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// addOne is the read-modify-write that goes wrong when two do it at once.
func (s *service) addOne(ctx context.Context, c *counter) error {
	value, err := s.client.Do(ctx, s.client.B().Get().Key(c.key).Build()).AsInt64()
	if err != nil {
		return fmt.Errorf("read %s: %w", c.key, err)
	}
	s.think(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("write %s: %w", c.key, context.Cause(ctx))
	}
	sum := strconv.FormatInt(value+1, 10)
	if err := s.client.Do(ctx, s.client.B().Set().Key(c.key).Value(sum).Ex(counterLife).Build()).Error(); err != nil {
		return fmt.Errorf("write %s: %w", c.key, err)
	}
	return nil
}

// counterLife is when a counter leaves Redis by itself, should the demo be killed before it can delete it.
const counterLife = time.Hour

// counter is a number in Redis and the lock that guards it.
type counter struct {
	path, key string
	final     int64 // what Redis held at the end

	mu    sync.Mutex
	waits []time.Duration // one for each update that Redis confirmed
}

func (c *counter) lost() int64 { return int64(len(c.waits)) - c.final }

// job is one run of the demo.
type job struct {
	config
	counters []*counter
	begun    atomic.Int64
	done     atomic.Int64
	checked  bool // the counters were read back
}

func newJob(cfg config) *job {
	j := &job{config: cfg}
	for i := range cfg.paths {
		path := fmt.Sprintf("account-%d", i+1)
		j.counters = append(j.counters, &counter{path: path, key: cfg.prefix + "-counter:" + path})
	}
	return j
}

func (j *job) lost() (n int64) {
	for _, c := range j.counters {
		n += c.lost()
	}
	return n
}

// run makes the updates, or as many as there are until ctx is done, and reads the counters back. It removes every key that
// it made.
func (j *job) run(ctx context.Context, connect func() (rueidis.Client, error)) (err error) {
	var services []*service
	defer func() {
		for _, s := range services {
			err = errors.Join(err, s.close())
		}
	}()
	for range j.services {
		s, err := newService(j.config, connect)
		if err != nil {
			return err
		}
		services = append(services, s)
	}

	books := services[0].client
	made, err := j.createCounters(ctx, books)
	defer func() { err = errors.Join(err, deleteCounters(ctx, books, made)) }()
	if err != nil {
		return err
	}
	err = j.update(ctx, services)
	return errors.Join(err, j.readCounters(ctx, books))
}

// update lets all goroutines of all services work until the updates are done. The first error stops everyone.
func (j *job) update(ctx context.Context, services []*service) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var failed error
	var once sync.Once
	var workers sync.WaitGroup
	for _, s := range services {
		for range j.goroutines {
			workers.Go(func() {
				if err := j.work(ctx, s); err != nil {
					once.Do(func() { failed = err })
					fail(err)
				}
			})
		}
	}
	workers.Wait()
	return failed
}

// work is one goroutine: it takes the next update until there is none.
func (j *job) work(ctx context.Context, s *service) error {
	for ctx.Err() == nil {
		n := j.begun.Add(1) - 1
		if n >= int64(j.updates) {
			return nil
		}
		c := j.counters[n%int64(len(j.counters))]
		var waited time.Duration
		var err error
		if j.noLock {
			err = s.addOneUnlocked(ctx, c)
		} else {
			waited, err = s.addOneLocked(ctx, c)
		}
		if errors.Is(err, errStopped) {
			return nil
		}
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.waits = append(c.waits, waited)
		c.mu.Unlock()
		j.done.Add(1)
	}
	return nil
}

// createCounters sets every counter to zero, but never one that is there already: it may belong to another demo.
func (j *job) createCounters(ctx context.Context, client rueidis.Client) (made []string, err error) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	for _, c := range j.counters {
		err := client.Do(ctx, client.B().Set().Key(c.key).Value("0").Nx().Ex(counterLife).Build()).Error()
		if rueidis.IsRedisNil(err) {
			return made, fmt.Errorf("key %s exists already: another demo with this -prefix is running or was killed; "+
				"choose another prefix, or delete the key", c.key)
		}
		if err != nil {
			return made, fmt.Errorf("create %s: %w", c.key, err)
		}
		made = append(made, c.key)
	}
	return made, nil
}

func (j *job) readCounters(ctx context.Context, client rueidis.Client) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	for _, c := range j.counters {
		value, err := client.Do(ctx, client.B().Get().Key(c.key).Build()).AsInt64()
		if err != nil {
			return fmt.Errorf("read %s: %w", c.key, err)
		}
		c.final = value
	}
	j.checked = true
	return nil
}

func deleteCounters(ctx context.Context, client rueidis.Client, keys []string) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	for _, key := range keys {
		if err := client.Do(ctx, client.B().Del().Key(key).Build()).Error(); err != nil {
			return fmt.Errorf("delete %s: %w", key, err)
		}
	}
	return nil
}
