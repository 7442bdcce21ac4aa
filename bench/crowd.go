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

	"github.com/lockregistry/lockregistry/internal/peer"
)

// crowd is a contender that a worker has opened many times: registries that want the same paths, with a goroutine for each
// registry and path. A goroutine that gets a lock keeps it until the crowd is told to pass it on. The crowd ends with its
// process.
type crowd struct {
	locked chan time.Time // when a goroutine got a lock, if that was asked for

	passed atomic.Int64 // locks passed on so far
	failed atomic.Pointer[error]

	mu   sync.Mutex
	pass chan struct{} // closed while locks may be passed on
}

// crowding describes the crowd that a worker gathers.
type crowding struct {
	contender         string
	addr              string
	lease             time.Duration
	renew             bool // renew the leases of held locks
	registries, paths int
	prefix            string // of the paths
	permits           int    // of semaphores instead of locks; 0: none
}

func (c crowding) fields() peer.Fields {
	return peer.Fields{
		"contender": c.contender, "addr": c.addr, "lease": peer.InMillis(c.lease), "renew": strconv.FormatBool(c.renew),
		"registries": strconv.Itoa(c.registries), "paths": strconv.Itoa(c.paths), "prefix": c.prefix,
		"permits": strconv.Itoa(c.permits),
	}
}

func crowdingOf(f peer.Fields) (c crowding, err error) {
	c = crowding{contender: f["contender"], addr: f["addr"], prefix: f["prefix"]}
	var errs [5]error
	c.lease, _, errs[0] = f.Millis("lease")
	c.registries, errs[1] = strconv.Atoi(f["registries"])
	c.paths, errs[2] = strconv.Atoi(f["paths"])
	c.permits, errs[3] = strconv.Atoi(f["permits"])
	c.renew, errs[4] = strconv.ParseBool(f["renew"])
	return c, errors.Join(errs[:]...)
}

// gather returns once every goroutine of the crowd is about to lock.
func gather(request peer.Fields) (*crowd, error) {
	want, err := crowdingOf(request)
	if err != nil {
		return nil, err
	}
	c, err := contenderNamed(want.contender)
	if err != nil {
		return nil, err
	}
	o := opening{addr: want.addr, lease: want.lease, renew: want.renew, listens: true, permits: want.permits}
	if c.role != rival { // the peers cannot share a client, or do not listen on it
		if o.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{want.addr}}); err != nil {
			return nil, err
		}
	}
	all := &crowd{locked: make(chan time.Time, 1), pass: make(chan struct{})}
	var about sync.WaitGroup
	for range want.registries {
		ls, err := c.open(o)
		if err != nil {
			return nil, err
		}
		for _, path := range pathNames(want.paths) {
			held := ls.session(want.prefix + path)
			about.Add(1)
			go func() {
				about.Done()
				if err := all.take(held); err != nil {
					all.failed.Store(&err)
				}
			}()
		}
	}
	about.Wait()
	return all, nil
}

func (c *crowd) take(held session) error {
	for {
		if err := held.lock(context.Background()); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		select {
		case c.locked <- time.Now():
		default:
		}
		c.mu.Lock()
		pass := c.pass
		c.mu.Unlock()
		<-pass
		if err := held.unlock(context.Background()); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		c.passed.Add(1)
	}
}

// run carries out a request to the crowd.
func (c *crowd) run(request peer.Fields) (peer.Fields, error) {
	switch request["do"] {
	case doFirst:
		return peer.Fields{"at": strconv.FormatInt((<-c.locked).UnixMicro(), 10)}, nil
	case doPass:
		begin, err1 := request.Time("begin")
		from, err2 := request.Time("from")
		to, err3 := request.Time("to")
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		time.Sleep(time.Until(begin))
		close(c.pass)
		time.Sleep(time.Until(from))
		before := c.passed.Load()
		time.Sleep(time.Until(to))
		c.mu.Lock()
		c.pass = make(chan struct{})
		c.mu.Unlock()
		if failed := c.failed.Load(); failed != nil {
			return nil, *failed
		}
		return peer.Fields{"sections": strconv.FormatInt(c.passed.Load()-before, 10)}, nil
	default:
		return nil, fmt.Errorf("a crowd does nothing that is called %q", request["do"])
	}
}

// crowd gathers registries of a contender on one path or many, spread over the workers.
func (f fleet) crowd(ctx context.Context, want crowding) error {
	calls := make([]*peer.Call, len(f))
	left := want.registries
	for i, p := range f {
		mine := want
		mine.registries = left / (len(f) - i)
		left -= mine.registries
		calls[i] = p.Send("main", doGather, mine.fields())
	}
	return waitFor(ctx, calls)
}

func waitFor(ctx context.Context, calls []*peer.Call) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := make([]error, len(calls))
	for i, call := range calls {
		_, errs[i] = call.Wait(ctx)
	}
	return errors.Join(errs...)
}
