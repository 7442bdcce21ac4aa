package transport

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
)

// queues is a server of which a test says what tickets it has; it knows no scripts.
type queues struct {
	rueidis.Client
	nothing, one, refused rueidis.RedisResult
	asked                 atomic.Int32 // in all
	zscores               atomic.Int32
	refuses               atomic.Bool
	silent                atomic.Int32 // how many questions for tickets get no answer
	gone                  sync.Map     // the tickets that are
	asks                  atomic.Value // func(): runs before a ticket is said to be gone
}

func (q *queues) Do(_ context.Context, c rueidis.Completed) rueidis.RedisResult {
	q.asked.Add(1)
	if c.Commands()[0] != "ZSCORE" {
		return q.nothing
	}
	q.zscores.Add(1)
	if q.silent.Add(-1) >= 0 {
		return rueidis.NewErrorResult(context.DeadlineExceeded)
	}
	if q.refuses.Load() {
		return q.refused
	}
	if _, gone := q.gone.Load(c.Commands()[2]); gone {
		if asks, ok := q.asks.Load().(func()); ok {
			asks()
		}
		return q.nothing
	}
	return q.one
}

func (q *queues) DoMulti(ctx context.Context, c ...rueidis.Completed) []rueidis.RedisResult {
	return []rueidis.RedisResult{q.Do(ctx, c[0]), q.refused}
}

// sleeper is a call that waits.
type sleeper struct {
	ticket string
	looks  atomic.Int32
}

func (*sleeper) Queue() string { return "orders:{orders:42}:waiters" }
func (s *sleeper) Look()       { s.looks.Add(1) }

// Every third question is for a ticket, one after the other. A missing ticket makes its call look, several make all calls look,
// unless a message has granted the call's lock.
func TestTickets(t *testing.T) {
	client := onMiniredis(t)
	answer := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	nothing, one, refused := answer("return false"), answer("return '1'"), answer("return redis.error_reply('NOPERM no')")
	const round = verifyEach * keepAliveEvery
	begins := func(t *testing.T, n int) (server *queues, s *Node, calls []*sleeper, ends func()) {
		t.Helper()
		server = &queues{Client: client, nothing: nothing, one: one, refused: refused}
		way := New(server)
		s = way.First
		for i := range n {
			calls = append(calls, &sleeper{ticket: fmt.Sprint("ticket ", i)})
			s.KeepAlive()
			s.Expect(calls[i], calls[i].ticket, way.Clock.Now())
			<-time.After(time.Millisecond)
		}
		return server, s, calls, func() {
			for _, c := range calls {
				s.Expected(c)
				s.EndKeepAlive()
			}
			way.Close()
			<-time.After(time.Minute)
		}
	}
	looks := func(calls []*sleeper) (n int) {
		for _, c := range calls {
			n += int(c.looks.Load())
		}
		return n
	}
	for name, test := range map[string]func(t *testing.T){
		"at no cost": func(t *testing.T) {
			server, _, calls, ends := begins(t, 10)
			defer ends()
			<-time.After(10*round + time.Millisecond)
			require.EqualValues(t, 10*verifyEach, server.asked.Load())
			require.EqualValues(t, 10, server.zscores.Load())
			require.Zero(t, looks(calls))
		},
		"one is missing": func(t *testing.T) {
			server, _, calls, ends := begins(t, 10)
			defer ends()
			server.gone.Store(calls[7].ticket, true)
			<-time.After(10*round + time.Millisecond)
			require.Equal(t, 1, looks(calls))
			require.EqualValues(t, 1, calls[7].looks.Load(), "each has its turn")
		},
		"all are missing": func(t *testing.T) {
			server, _, calls, ends := begins(t, 10)
			defer ends()
			for _, c := range calls[:9] { // but for one whose call has looked since
				server.gone.Store(c.ticket, true)
			}
			<-time.After(round)
			require.Zero(t, looks(calls), "messages may be on their way")
			<-time.After(belief.Tick)
			require.Equal(t, 10, looks(calls))
			require.EqualValues(t, mostMissing, server.zscores.Load())
		},
		"they are granted": func(t *testing.T) {
			server, s, calls, ends := begins(t, 10)
			defer ends()
			for _, c := range calls[:5] { // as many locks change hands
				server.gone.Store(c.ticket, true)
			}
			<-time.After(round)
			s.Granted(calls[0])
			s.Expected(calls[0])
			<-time.After(belief.Tick)
			require.Equal(t, 2, looks(calls))
			require.EqualValues(t, 1, calls[2].looks.Load())
		},
		"it is granted before the reply": func(t *testing.T) {
			server, s, calls, ends := begins(t, 10)
			defer ends()
			for _, c := range calls[:3] {
				server.gone.Store(c.ticket, true)
			}
			server.asks.Store(func() {
				for _, c := range calls[:3] {
					s.Granted(c)
					s.Expected(c)
				}
			})
			<-time.After(round + belief.Tick)
			require.EqualValues(t, 2, server.zscores.Load(), "the next one is there")
			require.Zero(t, looks(calls))
		},
		"one looks by itself": func(t *testing.T) {
			server, s, calls, ends := begins(t, 10)
			defer ends()
			for _, c := range calls {
				server.gone.Store(c.ticket, true)
			}
			<-time.After(round)
			s.Expected(calls[0])
			s.Expect(calls[0], "another", s.client.Clock.Now())
			<-time.After(belief.Tick)
			require.Equal(t, 10, looks(calls), "its ticket was lost, too")
		},
		"the only one is missing": func(t *testing.T) {
			server, s, calls, ends := begins(t, 1)
			defer ends()
			server.gone.Store(calls[0].ticket, true)
			<-time.After(10 * round)
			require.Equal(t, 1, looks(calls), "until it sleeps again")
			require.EqualValues(t, 1, server.zscores.Load())
			s.Expect(calls[0], "another", s.client.Clock.Now())
			<-time.After(round)
			require.EqualValues(t, 2, server.zscores.Load())
		},
		"no answer": func(t *testing.T) {
			server, _, calls, ends := begins(t, 2)
			defer ends()
			for _, c := range calls {
				server.gone.Store(c.ticket, true)
			}
			server.silent.Store(1)
			<-time.After(round)
			require.EqualValues(t, 1, server.zscores.Load())
			<-time.After(keepAliveEvery + belief.Tick)
			require.Equal(t, 2, looks(calls), "it is asked again soon")
		},
		"no answer, again and again": func(t *testing.T) {
			server, _, _, ends := begins(t, 2)
			defer ends()
			server.silent.Store(100)
			const each = round + keepAliveEvery
			<-time.After(10 * each)
			require.EqualValues(t, 10*(verifyEach+1), server.asked.Load())
			require.EqualValues(t, 20, server.zscores.Load(), "and half of the time something else")
		},
		"refused": func(t *testing.T) {
			server, _, calls, ends := begins(t, 1)
			defer ends()
			server.refuses.Store(true)
			<-time.After(belief.Again)
			require.EqualValues(t, 1, server.zscores.Load())
			<-time.After(3 * round)
			require.EqualValues(t, 2, server.zscores.Load())
			require.Zero(t, looks(calls))
		},
		"no call waits": func(t *testing.T) {
			server, s, calls, ends := begins(t, 3)
			defer ends()
			for _, c := range calls {
				s.Expected(c)
			}
			<-time.After(10 * round)
			require.Zero(t, server.zscores.Load())
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}
