// Package gopeer is the Go counterpart of the Java programs: a process that locks with this library as another process tells it
// to.
package gopeer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// Commands returns the function that carries out requests.
func Commands() func(request peer.Fields) (peer.Fields, error) {
	return (&commands{registries: map[string]*registry{}}).run
}

// registry is a registry under test, with a separate connection to the data that the locks protect.
type registry struct {
	*lockregistry.Registry

	locking, plain rueidis.Client

	mu        sync.Mutex
	campaigns map[string]*campaign // by role
}

type commands struct {
	mu         sync.Mutex
	registries map[string]*registry
}

// run carries out a request on the goroutine that stands for the request's thread.
func (c *commands) run(request peer.Fields) (peer.Fields, error) {
	result, err := c.dispatch(context.Background(), request)
	return result, named(err)
}

func (c *commands) dispatch(ctx context.Context, request peer.Fields) (peer.Fields, error) {
	if request["do"] == "open" {
		return nil, c.open(request)
	}
	r, err := c.registry(request["registry"])
	if err != nil {
		return nil, err
	}
	if request["do"] == "close" {
		return nil, c.close(request["registry"], r)
	}
	lock, err := lockOf(r, request)
	if err != nil {
		return nil, err
	}
	switch request["do"] {
	case "lock":
		return nil, acquire(ctx, lock, request)
	case "fence":
		return fence(ctx, lock, request)
	case "trylock":
		return tryAcquire(ctx, lock, request)
	case "unlock":
		return nil, unlock(ctx, lock)
	case "renew":
		lease, _, err := request.Millis("lease")
		if err != nil {
			return nil, err
		}
		return nil, lock.Renew(ctx, lease)
	case "isheld":
		return peer.Fields{"value": strconv.FormatBool(lock.IsHeld())}, nil
	case "campaign", "leads", "giveup", "stop", "leader":
		return r.elect(ctx, request["do"], request["path"])
	case "hold":
		return hold(ctx, lock, request)
	case "count", "write", "verify":
		return sections(ctx, r, lock, request)
	case "share":
		return share(ctx, r, request)
	default:
		return nil, fmt.Errorf("no command is called %q", request["do"])
	}
}

func (c *commands) open(request peer.Fields) error {
	options, err := options(request)
	if err != nil {
		return err
	}
	address := rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + request["port"]}}
	r := &registry{campaigns: map[string]*campaign{}}
	if r.locking, err = rueidis.NewClient(address); err != nil {
		return err
	}
	if r.plain, err = rueidis.NewClient(address); err != nil {
		return err
	}
	if r.Registry, err = lockregistry.New(r.locking, request["prefix"], options...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registries[request["registry"]] = r
	return nil
}

func options(request peer.Fields) ([]lockregistry.Option, error) {
	var chosen []lockregistry.Option
	durations := map[string]func(time.Duration) lockregistry.Option{
		"lease": lockregistry.WithLease,
		"idle":  lockregistry.WithPollInterval,
	}
	for field, option := range durations {
		d, given, err := request.Millis(field)
		if err != nil {
			return nil, err
		}
		if given {
			chosen = append(chosen, option(d))
		}
	}
	if request["renewal"] == "true" {
		chosen = append(chosen, lockregistry.WithRenewal())
	}
	if request["oldchannel"] == "true" {
		chosen = append(chosen, lockregistry.WithOldChannel())
	}
	if request["fencing"] == "true" {
		chosen = append(chosen, lockregistry.WithFencing())
	}
	if name, given := request["layout"]; given {
		switch name {
		case "spring":
		case "redisson":
			chosen = append(chosen, lockregistry.WithRedissonLayout())
		default:
			return nil, fmt.Errorf("no layout is called %q", name)
		}
	}
	if name, given := request["wakeup"]; given {
		if !slices.Contains(wakeups, name) {
			return nil, fmt.Errorf("no wake-up is called %q", name)
		}
		chosen = append(chosen, seam.Lockregistry.Wakeup(name).(lockregistry.Option))
	}
	return chosen, nil
}

var wakeups = []string{"auto", "poll", "pubsub", "tracking"}

func (c *commands) registry(name string) (*registry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.registries[name]
	if r == nil {
		return nil, fmt.Errorf("no registry is called %q: open it first", name)
	}
	return r, nil
}

func (c *commands) close(name string, r *registry) error {
	c.mu.Lock()
	delete(c.registries, name)
	c.mu.Unlock()
	err := r.Close()
	r.locking.Close()
	r.plain.Close()
	return err
}

func lockOf(r *registry, request peer.Fields) (*lockregistry.Lock, error) {
	return ofKind(r, request["path"], request["kind"])
}

func ofKind(r *registry, path, kind string) (*lockregistry.Lock, error) {
	switch kind {
	case "", "plain", "fenced":
		return r.Obtain(path), nil
	case "read":
		return r.ReadWrite(path).Reader(), nil
	case "write":
		return r.ReadWrite(path).Writer(), nil
	default:
		return nil, fmt.Errorf("no lock is of kind %q", kind)
	}
}

func acquire(ctx context.Context, lock *lockregistry.Lock, request peer.Fields) error {
	chosen, err := lockOptions(request)
	if err != nil {
		return err
	}
	return answer(func() error { return lock.Lock(ctx, chosen...) })
}

// answer repeats a call that locks, if the reply was late.
func answer(call func() error) error {
	const patience = 20 * time.Second
	began, err := time.Now(), call()
	for late(err) && time.Since(began) < patience {
		err = call()
	}
	return err
}

// late reports whether a call failed because a reply was late, as on a busy machine.
func late(err error) bool {
	return errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent) || errors.Is(err, fault.Late)
}

// unlock unlocks. A late reply is no failure: the key is removed all the same.
func unlock(ctx context.Context, lock *lockregistry.Lock) error {
	if err := lock.Unlock(ctx); !late(err) {
		return err
	}
	return nil
}

// fence locks; the reply has the fencing token.
func fence(ctx context.Context, lock *lockregistry.Lock, request peer.Fields) (peer.Fields, error) {
	if err := acquire(ctx, lock, request); err != nil {
		return nil, err
	}
	token, _ := lockregistry.TokenFrom(lock.Context(ctx))
	return peer.Fields{"value": strconv.FormatUint(token, 10)}, nil
}

func lockOptions(request peer.Fields) (chosen []lockregistry.LockOption, err error) {
	for field, option := range map[string]func(time.Duration) lockregistry.LockOption{
		"lease":   func(d time.Duration) lockregistry.LockOption { return lockregistry.Lease(d) },
		"wait":    func(d time.Duration) lockregistry.LockOption { return lockregistry.Wait(d) },
		"atleast": lockregistry.AtLeast,
	} {
		d, given, err := request.Millis(field)
		if err != nil {
			return nil, err
		}
		if given {
			chosen = append(chosen, option(d))
		}
	}
	return chosen, nil
}

// hold holds the lock for a while; the reply says from when to when.
func hold(ctx context.Context, lock *lockregistry.Lock, request peer.Fields) (peer.Fields, error) {
	d, _, err := request.Millis("for")
	if err != nil {
		return nil, err
	}
	if err := acquire(ctx, lock, request); err != nil {
		return nil, err
	}
	locked := peer.Now()
	<-time.After(d)
	unlocking := peer.Now()
	return peer.Fields{"locked": locked, "unlocking": unlocking}, unlock(ctx, lock)
}

func tryAcquire(ctx context.Context, lock *lockregistry.Lock, request peer.Fields) (peer.Fields, error) {
	chosen, err := lockOptions(request)
	if err != nil {
		return nil, err
	}
	locked := false
	err = answer(func() (err error) {
		locked, err = lock.TryLock(ctx, chosen...)
		return err
	})
	return peer.Fields{"value": strconv.FormatBool(locked)}, err
}

// named gives an error the name by which a test can tell it apart.
func named(err error) error {
	for name, known := range map[string]error{
		"ErrNotOwner":  lockregistry.ErrNotOwner,
		"ErrLockLost":  lockregistry.ErrLockLost,
		"ErrTaken":     lockregistry.ErrTaken,
		"ErrClosed":    lockregistry.ErrClosed,
		"ErrCapacity":  lockregistry.ErrCapacity,
		"ErrDeadlock":  lockregistry.ErrDeadlock,
		"ErrWrongType": lockregistry.ErrWrongType,
	} {
		if errors.Is(err, known) {
			return &peer.RemoteError{Class: name, Message: err.Error()}
		}
	}
	return err
}
