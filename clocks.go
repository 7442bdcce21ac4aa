package lockregistry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// clocks compares the clock of this process with the server's, once. Redisson's permits end by the clock of their process, and
// Redisson takes out other permits by that clock, too. The Java processes of this machine have the same clock.
//
// No call waits for that.
type clocks struct {
	asked    atomic.Bool  // the server is asked, or was
	apart    atomic.Int64 // how far the server's clock is ahead, or behind if negative; 0: not known
	shortest atomic.Int64 // the shortest lease in use that was found; 0: none
	warned   atomic.Bool

	mu     sync.Mutex // guards closed, and the beginning of work
	closed bool
	work   sync.WaitGroup
}

var serverClock = protocol.Load("server_clock")

// uses notes the lease of a hold. It asks the server for its clock if nobody has, and logs, once, that the clocks differ by a
// third of the shortest lease or more.
func (c *clocks) uses(r *Registry, key string, length time.Duration) {
	if c.warned.Load() {
		return
	}
	for least := c.shortest.Load(); least == 0 || int64(length) < least; least = c.shortest.Load() {
		if c.shortest.CompareAndSwap(least, int64(length)) {
			c.warn(r, key)
			break
		}
	}
	if c.asked.Load() || c.asked.Swap(true) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Go(func() { c.compare(r, key) })
	}
}

// compare asks the server. After a failure that may pass, the next hold asks again.
func (c *clocks) compare(r *Registry, key string) {
	before := time.Now()
	micros, _, err := r.permits.of(key).anchor.send(context.Background(), protocol.Call{Script: serverClock, Key: key})
	after := time.Now()
	if err != nil {
		c.asked.Store(!fault.Transient(err))
		return
	}
	server := time.UnixMicro(micros)
	apart := server.Sub(after)
	if behind := before.Sub(server); behind > apart {
		apart = -behind
	}
	c.apart.Store(int64(apart))
	c.warn(r, key)
}

func (c *clocks) warn(r *Registry, key string) {
	apart, limit := time.Duration(c.apart.Load()), time.Duration(c.shortest.Load())/3
	if max(apart, -apart) < limit || apart == 0 || c.warned.Swap(true) {
		return
	}
	r.reports.dispatch.Log(slog.LevelWarn,
		"the server's clock is another one than that of this machine: Redisson's processes may take permits that are held",
		slog.String("key", key), slog.Duration("ahead", apart.Round(time.Millisecond)))
}

// close prevents further questions. Then work ends soon.
func (c *clocks) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
