package lockregistry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// prober sends commands of its own to the master of a lane, one after the other, for two purposes.
//
// A caller that has gone before its command was answered says nothing about the server. But a command that nobody waits for any
// more must be answered as one that somebody waits for, or a server that is frozen would not be noticed where all calls are
// short. Rueidis does not tell of it. So another command is sent, as if that were the one that was given up: see
// limit.silence.
//
// And when a lane becomes suspect, that may be because the way has become longer. What is sent on the detour tells nothing
// until there is one, for which it must be known how far the server is. So three round trips are measured over the client's
// own connections; their answers are of no other use, since they may come from a master that was deposed.
type prober struct {
	owed    atomic.Int64 // an instant: when a command was sent that was given up since the last probe; 0: there is none
	lessons atomic.Int32 // round trips that are yet to be measured
	busy    atomic.Bool  // a goroutine sends them
}

// probeLimit is how long one waits for its answer: longer than any way that is supported lets it take.
const probeLimit = lateAnswer + 6*farthest

// relearnEvery is the least time from the newest measurement to another one for calls that are not sent.
const relearnEvery = 100 * time.Millisecond

// probe has the server asked for a sign of life, because a command was given up that was sent at some time.
func (l *lane) probe(sent clock.Instant) {
	l.probes.owed.CompareAndSwap(0, int64(sent))
	l.runProber()
}

// learn has the way to the server measured.
func (l *lane) learn() {
	l.probes.lessons.Store(3)
	l.runProber()
}

// relearn has the way to the server measured anew, where what is known of it keeps calls from being sent: else nothing would show
// that it is short again, or always was, and three answers were late because the process had just started.
func (l *lane) relearn() {
	if clock.Instant(l.trips.came.Load()).Until(l.transport.clock.Now()) >= relearnEvery {
		l.learn()
	}
}

func (l *lane) runProber() {
	if l.nobodys() {
		return
	}
	if l.probes.busy.CompareAndSwap(false, true) {
		go l.probing()
	}
}

// probing is the goroutine that probes, until there is no need to. Who has found it busy has said before what is to be done:
// so it is seen here, or finds that it is not busy.
func (l *lane) probing() {
	p := &l.probes
	for {
		owed, lessons := clock.Instant(p.owed.Swap(0)), p.lessons.Load()
		if owed == 0 && lessons <= 0 {
			p.busy.Store(false)
			if p.owed.Load() == 0 && p.lessons.Load() <= 0 || !p.busy.CompareAndSwap(false, true) {
				return
			}
			continue
		}
		if lessons > 0 {
			p.lessons.Add(-1)
		}
		if !l.probeOnce(owed) {
			p.lessons.Store(0) // the next command that is given up, or late, begins anew
		}
	}
}

// probeOnce asks the server something and tells whether it has answered.
func (l *lane) probeOnce(owed clock.Instant) bool {
	now := l.transport.clock.Now()
	p := patience{ctx: context.Background(), limit: probeLimit, probe: now}
	if owed != 0 {
		p.probe = owed
	}
	return fault.Answered(l.ping(&p, true))
}

// ping asks the lane's server whether it is there, and takes in whether it is. Plain is over the client's own connections, also
// when the lane is wary.
func (l *lane) ping(p *patience, plain bool) error {
	e := l.apart(p, l.places, &sending{plain: plain, send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{way.Do(ctx, way.B().Ping().Build())}
	}})
	err := e.result(0).Error()
	l.judge(p, err, e.at(l.transport.clock.Now()))
	return err
}
