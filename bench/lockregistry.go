package main

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// thisLibrary is measured with defaults: every option, and the client's options.
var thisLibrary = contender{
	name:     "lockregistry",
	role:     subject,
	settings: "this library with default options, on a rueidis client with default options; the lease, renewal and the capacity of the cache are set only where a scenario is about them",
	renews:   true,
	several:  true,
	open: func(o opening) (locks, error) {
		return openRegistry(o)
	},
	openReaders: func(o opening) (locks, error) {
		r, err := openRegistry(o)
		return registryReaders{r}, err
	},
}

type registryLocks struct {
	client   rueidis.Client
	shared   bool // another owner closes the client
	registry *lockregistry.Registry
	permits  int // of semaphores, of which each hold has one; 0: they are plain locks
	several  int // paths of each session; 0: one
}

func openRegistry(o opening) (registryLocks, error) {
	client, err := o.rueidis()
	if err != nil {
		return registryLocks{}, err
	}
	var options []lockregistry.Option
	if o.lease != 0 {
		options = append(options, lockregistry.WithLease(o.lease))
	}
	if o.renew {
		options = append(options, lockregistry.WithRenewal())
	}
	if o.redisson {
		options = append(options, lockregistry.WithRedissonLayout())
	}
	registry, err := lockregistry.New(client, "lockregistry", options...)
	if err != nil {
		if o.client == nil {
			client.Close()
		}
		return registryLocks{}, err
	}
	if o.held != 0 {
		_ = registry.SetCapacity(o.held) // it is positive
	}
	return registryLocks{client, o.client != nil, registry, o.permits, o.several}, nil
}

func (l registryLocks) session(path string) session {
	if l.permits > 0 {
		return &permitSession{semaphore: l.registry.Semaphore("permits/"+path, l.permits)} // a lock may use the path itself
	}
	if l.several > 0 {
		return &severalSession{registry: l.registry, paths: pathsBelow(path, l.several)}
	}
	return &registrySession{registry: l.registry, path: path}
}

func (registryLocks) key(path string) string { return "lockregistry:" + path }

func (l registryLocks) close() {
	_ = l.registry.Close()
	if !l.shared {
		l.client.Close()
	}
}

// registrySession obtains the lock anew for each section, as the peers look theirs up by name, so it pays for the cache.
type registrySession struct {
	registry *lockregistry.Registry
	path     string
	held     *lockregistry.Lock
}

func (s *registrySession) lock(ctx context.Context) error {
	s.held = s.registry.Obtain(s.path)
	return s.held.Lock(ctx)
}

func (s *registrySession) unlock(ctx context.Context) error { return s.held.Unlock(ctx) }

// permitSession keeps its semaphore, which is not looked up by name.
type permitSession struct {
	semaphore *lockregistry.Semaphore
	held      *lockregistry.Hold
}

func (s *permitSession) lock(ctx context.Context) (err error) {
	s.held, err = s.semaphore.Acquire(ctx)
	return err
}

func (s *permitSession) unlock(ctx context.Context) error { return s.held.Release(ctx) }

// registryReaders are the read halves of read-write locks.
type registryReaders struct{ registryLocks }

func (l registryReaders) session(path string) session { return readerSession{l.registry, path} }

func (registryReaders) key(path string) string { return "lockregistry:" + path }

type readerSession struct {
	registry *lockregistry.Registry
	path     string
}

func (s readerSession) lock(ctx context.Context) error {
	return s.registry.ReadWrite(s.path).Reader().Lock(ctx)
}

func (s readerSession) unlock(ctx context.Context) error {
	return s.registry.ReadWrite(s.path).Reader().Unlock(ctx)
}
