package lockregistry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// clocks is that the clock of this process was compared with the server's. Redisson's permits end by the clock of their process,
// and what is over by that clock it takes from others, too: the processes of this machine have one clock.
type clocks struct{ compared atomic.Bool }

var serverClock = protocol.Load("server_clock")

// compare logs, once, that the server's clock is another one by a third of a lease or more. A call waits for that as for any
// command, but does not fail with it.
func (c *clocks) compare(ctx context.Context, l *Lock) {
	if l.check(ctx) != nil || ctx.Err() != nil || c.compared.Swap(true) {
		return
	}
	before := time.Now()
	micros, _, err := l.send(ctx, protocol.Call{Script: serverClock, Key: l.redis.Key})
	if err != nil {
		c.compared.Store(false)
		return
	}
	after := time.Now()
	server := time.UnixMicro(micros)
	ahead := server.Sub(after)
	if behind := before.Sub(server); behind > ahead {
		ahead = -behind
	}
	if limit := l.reg.lease.Length / 3; ahead >= limit || -ahead >= limit {
		l.reg.reports.dispatch.Log(slog.LevelWarn,
			"the server's clock is another one than that of this machine: Redisson's processes may take permits that are held",
			slog.String("key", l.redis.Key), slog.Duration("ahead", ahead.Round(time.Millisecond)))
	}
}
