package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// role says what a contender is in the comparison.
type role int

const (
	floor   role = iota // the least that any lock on Redis must do
	rival               // a library that a Go team would pick instead
	subject             // this library
	local               // for comparison: works within one process, without Redis; no peer
)

// contender is one way to lock a path on Redis.
type contender struct {
	name     string
	role     role
	settings string // the options that were set, so that readers can judge whether the comparison is fair
	// contended is true for a variant that differs from its plain sibling only in how it waits. It takes no part where nobody
	// waits.
	contended bool
	// poll is the longest pause between two tries of a waiter; 0 if a release wakes waiters.
	poll time.Duration
	// renews is true if held locks are renewed without a call.
	renews bool
	// several is true when one call can lock several paths.
	several bool
	open    func(opening) (locks, error)
	// openReaders opens the read half of a read-write lock; nil when the contender has none.
	openReaders func(opening) (locks, error)
}

// opening has the parameters of a contender in a scenario.
type opening struct {
	addr  string
	lease time.Duration // 0: the contender's default
	// queues tells the floor that goroutines of this process want the same path, so that it puts a local mutex in front. The
	// libraries find that out by themselves.
	queues bool
	// listens tells the floor that other processes want the same path, so that it publishes on release and subscribes.
	listens bool
	renew   bool // renew held locks, for contenders that have to be asked
	// redisson asks this library for locks in Redisson's format.
	redisson bool
	permits  int           // of semaphores, which this library then opens instead of locks; 0: locks
	several  int           // paths of each session, locked with one call
	held     int           // how many locks will be held or cached at the same time; 0: few
	away     time.Duration // the round trip to the server; 0: as it is
	cluster  bool          // addr is a node of a cluster; some clients have to be told
	// client is shared with others of this process if the contender can do that; nil: it makes its own.
	client rueidis.Client
}

// rueidis is the shared client or a new one.
func (o opening) rueidis() (rueidis.Client, error) {
	if o.client != nil {
		return o.client, nil
	}
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.addr}, DialCtxFn: dialFrom(o.away)})
}

// locks is one process's connection to Redis through one contender.
type locks interface {
	// session returns a session on a path, for one goroutine only.
	session(path string) session
	// key is the key in Redis that exists while the path is held.
	key(path string) string
	close()
}

// session locks and unlocks one path for one goroutine.
type session interface {
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
}

// defaultLease is the lease of contenders without a default: this library's default.
const defaultLease = 60 * time.Second

// eagerRetry is the pause of the eager variants of the polling libraries: too short for production on a shared server, but it
// shows polling at its fastest.
const eagerRetry = time.Millisecond

// contenders in the order in which tables show them.
var contenders = []contender{
	bareFloor,
	directedFloor,
	rueidislockPeer,
	redsyncPeer,
	redsyncEagerPeer,
	redislockPeer,
	redislockEagerPeer,
	thisLibrary,
}

func contenderNamed(name string) (contender, error) {
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
	}
	return contender{}, fmt.Errorf("no contender is called %q", name)
}
