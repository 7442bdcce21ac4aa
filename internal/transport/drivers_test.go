package transport

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// office answers each command with what a server has said to its key before, once a test lets it.
type office struct {
	rueidis.Client
	replies map[string]rueidis.RedisResult
	one     func(key string)    // before a command that comes by itself is answered
	many    func(keys []string) // before those of a pipeline are

	mu   sync.Mutex
	kept []kept
}

// kept is a pipeline, as it was when it was sent.
type kept struct {
	commands []rueidis.Completed
	was      []rueidis.Completed
}

func (c *office) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] == "PING" { // after one was given up
		return rueidis.RedisResult{}
	}
	if b, isBound := ctx.(*bound); !isBound || b.judge == nil { // it was to go together with others, and there were none
		return c.DoMulti(ctx, command)[0]
	}
	key := command.Commands()[1]
	c.one(key)
	return c.replies[key]
}

func (c *office) DoMulti(_ context.Context, commands ...rueidis.Completed) (results []rueidis.RedisResult) {
	keys := make([]string, len(commands))
	for i, command := range commands {
		keys[i] = command.Commands()[1]
		results = append(results, c.replies[keys[i]])
	}
	c.mu.Lock()
	c.kept = append(c.kept, kept{commands, slices.Clone(commands)})
	c.mu.Unlock()
	c.many(keys)
	return results
}

// askingFor sends a command for a key, with a limit, and returns the reply.
type askingFor func(ctx context.Context, key int, limit time.Duration) (answer string, err error)

// shipping runs a test in fake time with a node on which commands may go together.
func shipping(t *testing.T, many int, test func(t *testing.T, way *Client, c *office, ask askingFor)) {
	t.Helper()
	client := onMiniredis(t)
	c := &office{Client: client, replies: map[string]rueidis.RedisResult{}, one: func(string) {}, many: func([]string) {}}
	for i := range many {
		key := strconv.Itoa(i)
		c.replies[key] = client.Do(t.Context(), client.B().Echo().Message(key).Build())
	}
	synctest.Test(t, func(t *testing.T) {
		way := ofNoDatabase(New(c))
		s := way.First
		s.heardNow()
		s.own.possible, s.plain = true, true
		test(t, way, c, func(ctx context.Context, i int, limit time.Duration) (string, error) {
			p := Wait{Ctx: ctx, Limit: limit}
			a := way.Do(&p, &protocol.Call{Key: strconv.Itoa(i)})
			return a.ToString()
		})
		require.Empty(t, s.bounds.used)
		for _, k := range c.kept {
			require.Equal(t, k.was, k.commands, "rueidis may still read what it was given")
			require.True(t, k.commands[0].IsPipe(), "it goes over the connections that all share")
		}
	})
}

// While many commands are under way they go in few pipelines, and each caller gets its own reply, even if there are more
// commands than callers may send directly. When only few are left they are sent directly again.
func TestQueue_ManyCommandsGoTogether(t *testing.T) {
	const many = 3 * mostDirect
	shipping(t, many, func(t *testing.T, way *Client, c *office, ask askingFor) {
		var alone, shipments, together, most atomic.Int32
		gate := make(chan struct{})
		c.one = func(string) {
			alone.Add(1)
			<-gate
		}
		c.many = func(keys []string) {
			shipments.Add(1)
			together.Add(int32(len(keys)))
			most.Store(max(most.Load(), int32(len(keys))))
			<-gate
		}
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				answer, err := ask(t.Context(), i, time.Minute)
				if err != nil || answer != strconv.Itoa(i) {
					t.Errorf("%d got %q, %v", i, answer, err)
				}
			})
		}
		synctest.Wait()
		require.LessOrEqual(t, shipments.Load(), int32(mostDrivers))
		close(gate)
		all.Wait()
		require.Less(t, alone.Load(), int32(2*queueFrom))
		require.Equal(t, int32(many), alone.Load()+together.Load())
		require.Less(t, shipments.Load(), int32(many/10))
		require.LessOrEqual(t, most.Load(), int32(mostAtOnce))
		synctest.Wait()
		require.Zero(t, way.First.queue.flying)
		require.Zero(t, way.First.queue.sending)
		for _, e := range way.First.queue.waiting[:cap(way.First.queue.waiting)] {
			require.Nil(t, e, "what was sent is kept no longer: it may refer to a whole registry")
		}

		before := alone.Load()
		for i := range 10 {
			_, err := ask(t.Context(), i, time.Minute)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, alone.Load(), before+9)
	})
}

// At a node of a cluster commands go together when fewer of them are under way than at a single server. They never do for a
// client that may want to see each command.
func TestNode_Gathers(t *testing.T) {
	moving(t, func(_ *movingCluster, way *Client) {
		s := way.First
		require.False(t, s.gather(1000), "a wrapper")
		s.plain = true
		require.False(t, s.gather(spreadFrom-1))
		require.True(t, s.gather(spreadFrom))
		require.True(t, s.gather(1), "until fewer are under way")
	})
	shipping(t, 1, func(t *testing.T, way *Client, c *office, _ askingFor) {
		require.False(t, way.First.gather(queueFrom-1))
		require.True(t, way.First.gather(queueFrom))

		// One that reads back has a pipeline of its own: in the queue it would only wait for a driver.
		format := protocol.NewSpring(protocol.Config{Prefix: "orders"})
		paths := []protocol.Request{{Key: "0"}, {Key: "1"}}
		for i := range paths {
			has(&paths[i].Lease)
		}
		several := format.ObtainAll(paths)
		c.many = func([]string) { require.Zero(t, way.First.queue.flying) }
		way.Do(&Wait{Ctx: t.Context(), Limit: time.Minute}, &several)
		require.Len(t, c.kept, 1)
		c.kept = nil
	})
}

// has sets a pointer to a zero value.
func has[T any](p **T) { *p = new(T) }

// Drivers that hang hold up only the callers whose commands they have taken, and these for no longer than their limits.
func TestQueue_SendersThatHang(t *testing.T) {
	const many, limit = 550, 5 * time.Second
	shipping(t, many, func(t *testing.T, _ *Client, c *office, ask askingFor) {
		silent, held := make(chan struct{}), make(chan struct{})
		c.one = func(string) { <-held }
		var shipments, hung atomic.Int32
		c.many = func(keys []string) {
			if shipments.Add(1) <= mostDrivers+1 {
				hung.Add(int32(len(keys)))
				<-silent
			}
		}
		var all sync.WaitGroup
		var answered, unanswered atomic.Int32
		begun := time.Now()
		for wave := range many / 50 { // otherwise the first sender takes all
			for i := range 50 {
				all.Go(func() {
					key := 50*wave + i
					if answer, err := ask(t.Context(), key, limit); err != nil {
						unanswered.Add(1)
						if took := time.Since(begun); took != limit {
							t.Errorf("%v after %v", err, took)
						}
					} else if answer != strconv.Itoa(key) {
						t.Errorf("%d got %q", key, answer)
					} else {
						answered.Add(1)
					}
				})
			}
			synctest.Wait()
		}
		require.Equal(t, int32(mostDrivers), shipments.Load())
		close(held)
		<-time.After(3 * roundEvery)
		synctest.Wait()
		require.NotZero(t, hung.Load())
		require.Equal(t, many-hung.Load(), answered.Load())
		all.Wait()
		require.Equal(t, hung.Load(), unanswered.Load())
		close(silent)
	})
}

// away makes all drivers of a queue hang.
func away(s *Node) *queue {
	q := s.queue
	q.flying, q.sending = queueFrom, mostDrivers
	q.on.Store(true)
	return q
}

// A command whose caller has given up is not sent.
func TestQueue_NobodyWaitsForTheCommand(t *testing.T) {
	shipping(t, 1, func(t *testing.T, way *Client, c *office, ask askingFor) {
		q := away(way.First)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := ask(ctx, 0, time.Second)
		require.ErrorIs(t, err, fault.NotSent, "so it need not be undone")
		require.Empty(t, q.waiting)
		q.mu.Lock()
		q.begin()
		q.mu.Unlock()
		synctest.Wait()
		require.Empty(t, c.kept)
	})
}

// While the node is idle a command may hang. Then a driver hangs, and the caller waits no longer than its bound lasts. When the
// node is healthy again, callers send.
func TestQueue_CarriesWhatComesWhileIdle(t *testing.T) {
	const limit = 300 * time.Millisecond
	for name, c := range map[string]struct {
		grace, cancelled, took time.Duration
	}{
		"limit":           {took: limit},
		"context's end":   {cancelled: 150 * time.Millisecond, took: 150 * time.Millisecond},
		"end of a grace":  {cancelled: 150 * time.Millisecond, grace: 100 * time.Millisecond, took: 250 * time.Millisecond},
		"limit, no grace": {cancelled: 250 * time.Millisecond, grace: 100 * time.Millisecond, took: limit},
	} {
		t.Run(name, func(t *testing.T) {
			shipping(t, 3, func(t *testing.T, way *Client, o *office, ask askingFor) {
				var alone atomic.Int32
				o.one = func(string) { alone.Add(1) }
				silent := make(chan struct{})
				o.many = func(keys []string) {
					if keys[0] == "0" {
						<-silent
					}
				}
				<-time.After(belief.HealthyFor)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancelled > 0 {
					time.AfterFunc(c.cancelled, cancel)
				}
				begun := time.Now()
				a := way.Do(&Wait{Ctx: ctx, Limit: limit, Grace: c.grace}, &protocol.Call{Key: "0"})
				require.ErrorIs(t, a.Error(), fault.NoAnswer)
				require.Equal(t, c.took, time.Since(begun))

				<-time.After(belief.HealthyFor)
				for i := 1; i < 3; i++ {
					answer, err := ask(t.Context(), i, limit)
					require.NoError(t, err)
					require.Equal(t, strconv.Itoa(i), answer)
				}
				require.EqualValues(t, 1, alone.Load(), "the first reply has made the node healthy")
				require.Len(t, o.kept, 2)
				close(silent)
			})
		})
	}
}

// A server that is silent while the node is idle makes it suspect after as long as while it is healthy.
func TestQueue_SilentWhileIdle(t *testing.T) {
	shipping(t, 1, func(t *testing.T, way *Client, c *office, _ askingFor) {
		silent := make(chan struct{})
		c.many = func([]string) { <-silent }
		s := way.First
		for i := range 3 {
			s.belief.Sample(clock.Instant(i+1), clock.Instant(i+1))
		}
		<-time.After(belief.HealthyFor)
		done := make(chan Reply, 1)
		go func() { done <- way.Do(&Wait{Ctx: t.Context(), Limit: time.Minute}, &protocol.Call{Key: "0"}) }()
		<-time.After(belief.Silence - 1)
		synctest.Wait()
		require.False(t, s.IsSuspect(way.Clock.Now()))
		<-time.After(1)
		synctest.Wait()
		require.True(t, s.IsSuspect(way.Clock.Now()))
		require.Zero(t, s.queue.sending, "what comes later has another driver")
		require.Equal(t, 1, s.queue.lost)
		close(silent)
		a := <-done
		require.True(t, a.Late)
		<-time.After(time.Minute)
		synctest.Wait()
		require.Zero(t, s.queue.lost)
	})
}

// Until each connection has surely been made, a command may have to wait for one: a driver does.
func TestQueue_BeforeConnectionsAreMade(t *testing.T) {
	shipping(t, 1, func(t *testing.T, way *Client, c *office, ask askingFor) {
		way.First.act(way.First.belief.Broke(way.Clock.Now()), 0)
		_, err := ask(t.Context(), 0, time.Second)
		require.NoError(t, err)
		require.Len(t, c.kept, 1)
	})
}

// An obtaining command that was given up counts until its driver is done with it. One that was not sent does not count.
func TestQueue_CommandsThatAreAbandoned(t *testing.T) {
	shipping(t, 2, func(t *testing.T, way *Client, c *office, _ askingFor) {
		silent := make(chan struct{})
		c.many = func([]string) { <-silent }
		<-time.After(belief.HealthyFor)
		p := Wait{Ctx: t.Context(), Limit: 20 * time.Millisecond}
		a := way.Do(&p, &protocol.Call{Key: "0", DropIfAbandoned: true})
		require.ErrorIs(t, a.Error(), fault.NoAnswer)
		begun := time.Now()
		way.AwaitAbandoned(time.Second)
		require.Equal(t, time.Second, time.Since(begun), "it may yet be sent")

		s := way.First
		s.queue.sending = mostDrivers
		a = way.Do(&p, &protocol.Call{Key: "1", DropIfAbandoned: true})
		require.ErrorIs(t, a.Error(), fault.NotSent)
		require.EqualValues(t, 1, way.abandoned.Load())
		close(silent)
		synctest.Wait()
		begun = time.Now()
		way.AwaitAbandoned(time.Second)
		require.Zero(t, time.Since(begun))
	})
}

// A command costs no more memory while the node is idle, as it is for a program that calls seldom.
func TestClient_AllocationsWhileIdle(t *testing.T) { //nolint:paralleltest // what others allocate would count
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	defer way.Close()
	p, c := Wait{Ctx: t.Context(), Limit: time.Minute}, protocol.Call{Key: "42", Args: protocol.Args{"a:1", "1"}}
	idle := func() { // none has been heard since, and all connections are there
		way.First.belief.Broke(way.Clock.Now())
		way.First.belief.WarmedUp()
	}
	once := func() {
		idle()
		way.Do(&p, &c)
	}
	for range 64 {
		once()
	}
	least := testing.AllocsPerRun(200, once)
	for range 2 { // the best of three, since timers in the background allocate a little
		least = min(least, testing.AllocsPerRun(200, once))
	}
	require.LessOrEqual(t, least-testing.AllocsPerRun(200, idle), 1.0, "the command's reply")
}

// A reply that comes after its caller has left reaches no other caller.
func TestQueue_ReplyToOneWhoLeft(t *testing.T) {
	shipping(t, 20, func(t *testing.T, way *Client, c *office, ask askingFor) {
		silent := make(chan struct{})
		c.many = func(keys []string) {
			if keys[0] == "0" {
				<-silent
			}
		}
		<-time.After(belief.HealthyFor)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // before the silence is noticed
		defer cancel()
		_, err := ask(ctx, 0, time.Second)
		require.ErrorIs(t, err, fault.NoAnswer)
		var all sync.WaitGroup
		for i := range 19 {
			all.Go(func() {
				for range 3 {
					<-time.After(belief.HealthyFor)
					if i == 7 {
						go way.First.belief.Broke(way.Clock.Now())
					}
					answer, err := ask(t.Context(), i+1, time.Second)
					if err != nil || answer != strconv.Itoa(i+1) {
						t.Errorf("%d got %q, %v", i+1, answer, err)
					}
				}
			})
			if i == 3 {
				close(silent)
			}
		}
		all.Wait()
	})
}

// A limit that grows with the way does not begin anew with the other way.
func TestQueue_TheOtherWayHasTheSameLimit(t *testing.T) {
	shipping(t, 2, func(t *testing.T, way *Client, c *office, _ askingFor) {
		c.many = func([]string) { <-time.After(time.Minute) }
		s := way.First
		b := away(s)
		b.came = way.Clock.Now().Add(time.Hour) // so that none is added
		begun, done := time.Now(), make(chan error, 1)
		go func() {
			p := Wait{Ctx: t.Context(), Limit: time.Second, Near: time.Second}
			done <- way.Do(&p, &protocol.Call{Key: "1"}).Error()
		}()
		<-time.After(500 * time.Millisecond)
		synctest.Wait()
		require.Len(t, b.waiting, 1)
		b.renew()
		require.ErrorIs(t, <-done, fault.NoAnswer)
		require.LessOrEqual(t, time.Since(begun), time.Second+s.RoundTrip().Plus(0))
		<-time.After(time.Minute)
	})
}

// Commands that no driver has taken when the node becomes suspect go another way, until their bounds end.
func TestQueue_CommandsThatNobodyHasTaken(t *testing.T) {
	const ms = time.Millisecond
	for name, silent := range map[string]bool{"answered": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			shipping(t, 2, func(t *testing.T, way *Client, c *office, _ askingFor) {
				c.many = func([]string) {
					if silent {
						<-time.After(time.Minute)
					}
				}
				s := way.First
				b := away(s)
				b.came = way.Clock.Now().Add(time.Hour) // so that none is added
				begun := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					p := Wait{Ctx: ctx, Limit: 5 * time.Second, Grace: 100 * ms}
					a := way.Do(&p, &protocol.Call{Key: "1"})
					done <- a.Error()
				}()
				<-time.After(450 * ms)
				synctest.Wait()
				require.Len(t, b.waiting, 1)
				cancel()
				<-time.After(50 * ms)
				b.renew()
				err := <-done
				if silent {
					require.ErrorIs(t, err, fault.NoAnswer)
					require.Equal(t, 550*ms, time.Since(begun))
				} else {
					require.NoError(t, err)
				}
				<-time.After(time.Minute)
			})
		})
	}
}

// A caller that was kept from running after its bound began finds that the rounds have ended.
func TestQueue_WatchdogGoesOnWhileSomethingWaits(t *testing.T) {
	shipping(t, 1, func(t *testing.T, way *Client, _ *office, _ askingFor) {
		s := way.First
		b := away(s)
		end := s.bounds.next()
		e := end.enter(task{key: "0"})
		e.command = (&protocol.Call{Key: "0"}).Command(way.redis.B(), false).ToPipe()
		p := Wait{Ctx: t.Context(), Limit: 5 * time.Second}
		s.bounds.begin(end, &p, way.Clock.Now(), nil)
		<-time.After(2 * roundEvery)
		synctest.Wait()
		require.False(t, way.First.bounds.running.Load())
		begun := time.Now()
		b.add(e)
		require.NoError(t, e.await().Error())
		require.LessOrEqual(t, time.Since(begun), 2*roundEvery)
		s.bounds.stop(end)
	})
}

// A script that the server does not know is sent again through the queue, not by its caller: that might find no room on a
// connection.
func TestQueue_UnknownScript(t *testing.T) {
	client := onMiniredis(t)
	unknown := client.Do(t.Context(), client.B().Evalsha().Sha1("no such script").Numkeys(0).Build())
	require.True(t, protocol.NoScript(unknown.Error()))
	shipping(t, 1, func(t *testing.T, way *Client, c *office, _ askingFor) {
		script := protocol.NewScript("return 1")
		c.replies[script.SHA], c.replies[script.Source] = unknown, c.replies["0"]
		full := make(chan struct{})
		c.one = func(string) { <-full }
		<-time.After(belief.HealthyFor)
		begun := time.Now()
		a := way.Do(&Wait{Ctx: t.Context(), Limit: time.Second}, &protocol.Call{Script: script, Key: "0"})
		answer, err := a.ToString()
		require.NoError(t, err)
		require.Equal(t, "0", answer)
		require.Zero(t, time.Since(begun))
		require.Len(t, c.kept, 2)
		close(full)
	})
}

// While a connection is made for a command, that command's bound may end. All commands that wait for the connection get its
// error. Those whose own time is not over are sent again; a command that was not answered in its own time is not.
func TestQueue_AnothersDialIsGivenUp(t *testing.T) {
	for name, own := range map[string]bool{"another's": false, "its own": true} {
		t.Run(name, func(t *testing.T) {
			shipping(t, 1, func(t *testing.T, _ *Client, c *office, ask askingFor) {
				const limit = time.Second
				reply := c.replies["0"]
				failed, tries := rueidis.NewErrorResult(fault.NoAnswer), 0
				c.many = func([]string) {
					if own {
						<-time.After(2 * limit)
					}
					tries++
					c.replies["0"] = reply
				}
				c.replies["0"] = failed
				<-time.After(belief.HealthyFor)
				answer, err := ask(t.Context(), 0, limit)
				if own {
					require.ErrorIs(t, err, fault.NoAnswer)
					<-time.After(2 * limit)
					synctest.Wait()
					require.Equal(t, 1, tries)
					return
				}
				require.NoError(t, err)
				require.Equal(t, "0", answer)
				require.Equal(t, 2, tries)
			})
		})
	}
}
