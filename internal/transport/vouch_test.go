package transport

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/sentinel"
)

const former, heir = "10.0.0.1:6379", "10.0.0.2:6379"

// ofSentinel is a client for Sentinel whose servers are made up.
type ofSentinel struct {
	rueidis.Client
	master  atomic.Value            // the address that it uses
	answers func(over string) error // over: a dedicated connection to that address, or empty: its own
	pool    atomic.Bool             // its pool is exhausted
	refuses atomic.Bool             // the server refuses connections

	mu   sync.Mutex
	sent []string // to which address each command went
}

func (c *ofSentinel) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

func (c *ofSentinel) Nodes() map[string]rueidis.Client {
	return map[string]rueidis.Client{c.master.Load().(string): nil}
}

func (c *ofSentinel) Do(_ context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] == "PING" {
		return rueidis.RedisResult{}
	}
	return c.carry(c.master.Load().(string), "")
}

func (c *ofSentinel) carry(address, over string) rueidis.RedisResult {
	c.mu.Lock()
	c.sent = append(c.sent, address)
	c.mu.Unlock()
	if c.answers != nil {
		if err := c.answers(over); err != nil {
			return rueidis.NewErrorResult(err)
		}
	}
	return rueidis.RedisResult{}
}

func (c *ofSentinel) went() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.sent
	c.sent = nil
	return all
}

func (c *ofSentinel) Dedicate() (rueidis.DedicatedClient, func()) {
	if c.pool.Load() {
		<-time.After(time.Hour)
	}
	return dedicatedTo{nil, c, c.master.Load().(string)}, func() {}
}

type dedicatedTo struct {
	rueidis.DedicatedClient
	of      *ofSentinel
	address string
}

func (c dedicatedTo) B() rueidis.Builder { return c.of.B() }
func (dedicatedTo) Close()               {}

func (c dedicatedTo) Do(_ context.Context, command rueidis.Completed) rueidis.RedisResult {
	switch command.Commands()[0] {
	case "CLIENT":
		if c.of.refuses.Load() {
			return rueidis.NewErrorResult(syscall.ECONNREFUSED)
		}
		return rueidis.RedisResult{}
	case "PING": // before it is given back
		return rueidis.RedisResult{}
	}
	return c.of.carry(c.address, c.address)
}

func (c dedicatedTo) DoMulti(_ context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(all))
	for i := range results {
		results[i] = c.of.carry(c.address, c.address)
	}
	return results
}

// witnesses are Sentinels that say what a test wants.
type witnesses struct {
	doubt func()
	mu    sync.Mutex
	says  map[string]sentinel.Verdict
	asked int
	asks  func() // is called when they have answered, before that is known
}

func (w *witnesses) Begin(_ func() string, doubt func()) { w.doubt = doubt }
func (w *witnesses) Absent() []string                    { return []string{"10.0.0.9:26379"} }
func (w *witnesses) Against() []string                   { return []string{"10.0.0.8:26379"} }
func (w *witnesses) Close()                              {}

func (w *witnesses) Ask(address string, _, _ time.Duration) sentinel.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if w.asks != nil {
		defer w.asks()
	}
	return w.says[address]
}

func (w *witnesses) say(address string, v sentinel.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.says[address] = v
}

// vouched is a client whose Sentinels have said their first word, and from which it was heard now.
type vouched struct {
	*Client
	redis *ofSentinel
	*witnesses
	log   []string
	about [][]slog.Attr // of each line
}

// ofNoDatabase notes that the server does not say which database a client's connections use, so that it is not asked.
func ofNoDatabase(t *Client) *Client {
	t.pool.one = true
	t.pool.selected.Store(new(string))
	return t
}

func withVouched(t *testing.T, first sentinel.Verdict, test func(t *testing.T, v *vouched)) {
	t.Helper()
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis := &ofSentinel{Client: client}
		redis.master.Store(former)
		w := &witnesses{says: map[string]sentinel.Verdict{former: first}}
		v := &vouched{Client: ofNoDatabase(New(redis)), redis: redis, witnesses: w}
		v.First.heardNow()
		defer func() {
			v.Client.Close()
			<-time.After(2 * time.Hour) // timers, and those that wait for the pool
		}()
		v.LedBySentinel()
		<-v.Watch(v.witnesses, func(_ slog.Level, message string, about ...slog.Attr) {
			v.log, v.about = append(v.log, message), append(v.about, about)
			for _, one := range about {
				assert.Regexp(t, "^[a-z]+(_[a-z]+)*$", one.Key)
			}
		})
		test(t, v)
	})
}

// send sends a command, with patience for so long.
func (v *vouched) send(limit time.Duration) Reply {
	return v.Do(&Wait{Ctx: context.Background(), Limit: limit}, &protocol.Call{Key: "42"})
}

// A process that is idle while its master is deposed hears the Sentinels' doubt. From then on nothing is sent until they vouch:
// for the successor, once the client has changed to it, or for the same server, if it was not replaced.
func TestVouching_ADeposedMaster(t *testing.T) {
	for name, c := range map[string]struct {
		says    sentinel.Verdict
		changes bool
		to      string
	}{
		"replaced, and the client stays":  {says: sentinel.Replaced},
		"down, and the client stays":      {says: sentinel.Down},
		"replaced, and the client leaves": {sentinel.Replaced, true, heir},
		"not replaced":                    {says: sentinel.Vouched, to: former},
	} {
		t.Run(name, func(t *testing.T) {
			withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
				a := v.send(time.Second)
				require.NoError(t, a.Error())
				require.Equal(t, []string{former}, v.redis.went())
				before := v.Clock.Now()
				v.say(former, c.says)
				v.doubt()
				require.GreaterOrEqual(t, v.First.belief.SilentAt(), before, "replies to earlier commands are late")
				if c.changes {
					v.say(heir, sentinel.Vouched)
					time.AfterFunc(2*time.Second, func() { v.redis.master.Store(heir) })
				}
				a = v.send(5 * time.Second)
				if c.to == "" {
					require.ErrorIs(t, a.Error(), fault.NotSent)
					require.Empty(t, v.redis.went())
					return
				}
				require.NoError(t, a.Error())
				require.False(t, a.Late)
				require.Equal(t, []string{c.to}, v.redis.went())
				asked := v.asked
				require.NoError(t, v.send(time.Second).Error())
				require.Equal(t, asked, v.asked, "they have vouched")
			})
		})
	}
}

// A server that no Sentinel replaces is believed after a while, even if they do not vouch for it. The log says what locks wait
// for, and when the wait is over.
func TestVouching_ItIsWaitedForSoLong(t *testing.T) {
	const another = "no lock is granted for now: most Sentinels name the server as the master, but some name another"
	for verdict, says := range map[sentinel.Verdict]string{
		sentinel.Unknown:   "no lock is granted for now: most Sentinels do not say whether the server is the master",
		sentinel.Down:      "no lock is granted for now: the server answers, but the Sentinels consider it down",
		sentinel.Elected:   "no lock is granted for now: a Sentinel with votes to lead a failover does not answer",
		sentinel.Disputed:  another,
		sentinel.Contested: another,
	} {
		withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
			v.say(former, verdict)
			v.doubt()
			began := time.Now()
			require.NoError(t, v.send(time.Hour).Error())
			limit, _ := verdict.Longest()
			require.GreaterOrEqual(t, time.Since(began), limit)
			require.Less(t, time.Since(began), limit+time.Second)
			require.Equal(t, []string{says, "locks are granted again"}, v.log)
			<-time.After(2 * belief.Old)
			require.False(t, v.First.IsSuspect(v.Clock.Now()))
		})
	}
}

// A master may be frozen for longer than any doubt that ends with time. A process that is idle meanwhile does not believe the
// master when it resumes, whatever has raised the doubt, and whatever the Sentinels have said when they were asked.
func TestVouching_HoweverLongItWasFrozen(t *testing.T) {
	const frozen = 10 * time.Minute
	asks := func(v *vouched) {
		v.First.foundSilent(v.Clock.Now(), v.Clock.Now())
		v.send(time.Second)
		v.First.fresh.silent(v.Clock.Now()) // it greets nobody from now on
	}
	raised := map[string]func(v *vouched){
		"an event":               func(v *vouched) { v.doubt() },
		"a standstill":           func(v *vouched) { v.standStill(); <-time.After(2 * belief.BeatEvery) },
		"an answer when it asks": asks,
	}
	for name, raise := range raised {
		for _, says := range []sentinel.Verdict{sentinel.Replaced, sentinel.Down, sentinel.Disputed, sentinel.Unknown} {
			withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
				v.say(former, says)
				raise(v)
				v.redis.pool.Store(true) // a frozen server greets nobody
				<-time.After(frozen)
				v.redis.pool.Store(false)
				require.True(t, v.First.IsSuspect(v.Clock.Now()), "%s, %v", name, says)
				require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent, "%s, %v", name, says)
				require.Empty(t, v.redis.went())
				v.say(former, sentinel.Vouched)
				require.NoError(t, v.send(time.Second).Error(), name)
				<-time.After(belief.Old + time.Second)
				require.False(t, v.First.IsSuspect(v.Clock.Now()), "they vouch")
			})
		}
	}
	withVouched(t, sentinel.Replaced, func(t *testing.T, v *vouched) {
		<-time.After(frozen)
		require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent, "it began during the failover")
	})
}

// A silence that only one process has noticed passes with time, if the Sentinels do not object when they are asked.
func TestVouching_ASilenceOfThisProcess(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.First.foundSilent(v.Clock.Now(), v.Clock.Now())
		require.NoError(t, v.send(time.Second).Error())
		<-time.After(belief.Old)
		require.False(t, v.First.IsSuspect(v.Clock.Now()))
	})
}

// What the Sentinels say of a server that the client has left is no doubt about its successor.
func TestVouching_AServerThatWasLeft(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.say(former, sentinel.Replaced)
		v.say(heir, sentinel.Vouched)
		v.redis.master.Store(heir)
		require.NoError(t, v.send(time.Second).Error())
		v.First.vouch(&belief.Way{Address: former})
		require.False(t, v.First.belief.InDoubt())
	})
}

func TestVouching_ItIsReplaced(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.say(former, sentinel.Replaced)
		v.doubt()
		require.ErrorIs(t, v.send(25*time.Second).Error(), fault.NotSent)
		require.Equal(t, []string{"no lock is granted for now: the Sentinels are replacing the server, or disagree about it"}, v.log)
		require.Equal(t, [][]slog.Attr{{slog.String("server", former), slog.Any("name_another", v.Against())}}, v.about)
	})
}

// The client's last registry is closed while a command waits for the Sentinels. The command is not sent, and no driver goes on.
func TestVouching_ClosedWhileACommandWaits(t *testing.T) {
	withVouched(t, sentinel.Replaced, func(t *testing.T, v *vouched) {
		v.doubt()
		came := make(chan Reply, 1)
		go func() { came <- v.send(time.Minute) }()
		<-time.After(time.Second)
		synctest.Wait()
		require.Empty(t, v.redis.went())
		v.First.close()
		<-time.After(time.Second)
		synctest.Wait()
		require.Len(t, came, 1)
		require.ErrorIs(t, (<-came).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
		require.Zero(t, v.First.queue.seeking+v.First.queue.sending+v.First.queue.flying)
	})
}

// After the last registry of a suspect node is closed, nothing is obtained there, even if the node has been heard from.
// Removals are sent.
func TestVouching_AfterItWasClosed(t *testing.T) {
	withVouched(t, sentinel.Replaced, func(t *testing.T, v *vouched) {
		v.doubt()
		v.First.close()
		for range 2 {
			a := v.Do(&Wait{Ctx: context.Background(), Limit: time.Second}, &protocol.Call{Key: "42", DropIfAbandoned: true})
			require.ErrorIs(t, a.Error(), fault.NotSent)
			require.Empty(t, v.redis.went())
			require.NoError(t, v.send(time.Second).Error())
			require.Equal(t, []string{former}, v.redis.went())
			v.First.heardNow()
		}
	})
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.First.close()
		a := v.Do(&Wait{Ctx: context.Background(), Limit: time.Second}, &protocol.Call{Key: "42", DropIfAbandoned: true})
		require.NoError(t, a.Error(), "it was healthy")
	})
}

// A reply is not believed if the client has left the server meanwhile, or the Sentinels have begun to doubt it.
func TestVouching_UnderWay(t *testing.T) {
	for name, happens := range map[string]func(v *vouched){
		"the client leaves":   func(v *vouched) { v.redis.master.Store(heir) },
		"the Sentinels doubt": func(v *vouched) { v.doubt() },
		"it stands still":     (*vouched).standStill,
		"nothing":             nil,
	} {
		withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
			v.doubt()
			v.redis.answers = func(string) error {
				<-time.After(time.Millisecond)
				if happens != nil {
					happens(v)
				}
				return nil
			}
			a := v.send(time.Minute)
			require.NoError(t, a.Error(), name)
			require.Equal(t, happens != nil, a.Late, name)
			require.Equal(t, []string{former}, v.redis.went(), name)
		})
	}
}

// Without Sentinels to ask, only the client's change to another server counts: a reply of the server that it has left is late.
func TestVouching_NobodyToAsk(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis := &ofSentinel{Client: client}
		redis.master.Store(former)
		way := ofNoDatabase(New(redis))
		way.First.belief.FoundSilent(0, way.Clock.Now())
		do := func() Reply {
			return way.Do(&Wait{Ctx: t.Context(), Limit: time.Minute}, &protocol.Call{Key: "42"})
		}
		require.False(t, do().Late)
		redis.answers = func(string) error { redis.master.Store(heir); return nil }
		require.True(t, do().Late)
		require.False(t, do().Late)
		require.Equal(t, []string{former, former, heir}, redis.went())
		<-time.After(time.Minute)
	})
}

// The client may go back to a former master, which no Sentinel publishes. A lock that it obtains there does not count; nor does
// one that it obtained from the other server, if the change is known only afterwards.
func TestVouching_TheClientChanges(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		obtain := func(limit time.Duration) Reply {
			return v.Do(&Wait{Ctx: context.Background(), Limit: limit, Obtains: true}, &protocol.Call{Key: "42"})
		}
		v.First.belief.Sample(0, clock.Instant(time.Millisecond))
		require.False(t, obtain(time.Second).Late)
		v.redis.master.Store(heir)
		v.say(heir, sentinel.Replaced)
		a := obtain(time.Second)
		require.NoError(t, a.Error())
		require.True(t, a.Late)
		require.Equal(t, []string{former, heir}, v.redis.went())
		require.ErrorIs(t, obtain(time.Second).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())

		v.say(heir, sentinel.Vouched)
		require.False(t, obtain(time.Second).Late)
		<-time.After(2 * belief.Old)
		require.False(t, obtain(time.Second).Late)
		v.redis.answers = func(string) error { v.redis.master.Store(former); return nil }
		require.True(t, obtain(time.Second).Late)
		require.True(t, v.First.belief.InDoubt())
		require.False(t, obtain(time.Second).Late, "they vouch")
	})
}

// While no fresh connection can be had, the client's own ones are not used either, until the Sentinels vouch for their server;
// and again after each doubt.
func TestVouching_OldConnections(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.redis.pool.Store(true)
		v.say(former, sentinel.Replaced)
		v.doubt()
		require.ErrorIs(t, v.send(poolWait+5*time.Second).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
		v.say(former, sentinel.Vouched)
		require.NoError(t, v.send(time.Second).Error())
		require.Equal(t, []string{former}, v.redis.went())
		v.say(former, sentinel.Replaced)
		v.doubt()
		require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
	})
}

// A process that begins during a failover sends nothing until the Sentinels have vouched. If no Sentinel answers, it does not
// wait for them.
func TestVouching_TheFirstWord(t *testing.T) {
	for first, suspect := range map[sentinel.Verdict]bool{
		sentinel.Vouched: false, sentinel.Unknown: false, sentinel.Down: true, sentinel.Replaced: true,
	} {
		withVouched(t, first, func(t *testing.T, v *vouched) {
			require.Equal(t, suspect, v.First.IsSuspect(v.Clock.Now()), first)
			if first == sentinel.Unknown {
				require.Equal(t, []string{"most Sentinels do not answer: until they do, a failover may go unnoticed"}, v.log)
			}
		})
	}
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis, w := &ofSentinel{Client: client}, &witnesses{says: map[string]sentinel.Verdict{former: sentinel.Vouched}}
		redis.master.Store(former)
		way := ofNoDatabase(New(redis))
		heard := way.Watch(&raised{w}, func(slog.Level, string, ...slog.Attr) {})
		<-heard
		require.True(t, way.First.IsSuspect(way.Clock.Now()), "a doubt that was raised meanwhile lasts")
		<-way.Watch(w, nil) // one is enough
		require.Nil(t, w.doubt)
		way.Close()
		require.False(t, way.First.IsSuspect(way.Clock.Now()))
		<-time.After(time.Minute)
	})
}

// The connections of a client that was given may be older than the freeze of a master that was deposed. So where no Sentinel
// answers, the first call waits until such a master is demoted.
func TestVouching_NoFirstWordAboutOldConnections(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis, w := &ofSentinel{Client: client}, &witnesses{says: map[string]sentinel.Verdict{}}
		redis.master.Store(former)
		v := &vouched{Client: ofNoDatabase(New(redis))}
		<-v.Watch(w, func(_ slog.Level, message string, _ ...slog.Attr) { v.log = append(v.log, message) })
		began := time.Now()
		require.NoError(t, v.send(time.Minute).Error())
		require.GreaterOrEqual(t, time.Since(began), sentinel.LongestDoubt)
		require.Less(t, time.Since(began), sentinel.LongestDoubt+time.Second)
		require.Equal(t, []string{
			"most Sentinels do not answer: until they do, a failover may go unnoticed",
			"no lock is granted for now: most Sentinels do not say whether the server is the master",
			"locks are granted again",
		}, v.log)
		v.Client.Close()
		<-time.After(time.Minute)
	})
}

// The Sentinels' first word about a server that the client has left meanwhile says nothing about its successor.
func TestVouching_TheFirstWordIsOfAnother(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis, w := &ofSentinel{Client: client}, &witnesses{says: map[string]sentinel.Verdict{former: sentinel.Vouched}}
		redis.master.Store(former)
		w.asks = func() { redis.master.Store(heir) }
		way := ofNoDatabase(New(redis))
		<-way.Watch(w, func(slog.Level, string, ...slog.Attr) {})
		require.True(t, way.First.IsSuspect(way.Clock.Now()))
		way.Close()
		<-time.After(time.Minute)
	})
}

// While the registry waits for the Sentinels' first word, calls ask, too. If they get no answer, that raises no new doubt: the
// first one ends with the wait.
func TestVouching_CallsBeforeTheFirstWord(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis := &ofSentinel{Client: client}
		redis.master.Store(former)
		v := &vouched{Client: ofNoDatabase(New(redis)), redis: redis}
		v.LedBySentinel()
		v.Watch(&slow{witnesses{says: map[string]sentinel.Verdict{}}}, func(slog.Level, string, ...slog.Attr) {})
		began := time.Now()
		require.NoError(t, v.send(time.Minute).Error())
		require.Less(t, time.Since(began), firstWord+time.Second)
		require.False(t, v.First.IsSuspect(v.Clock.Now()))
		v.Client.Close()
		<-time.After(time.Minute)
	})
}

// slow are Sentinels that do not answer.
type slow struct{ witnesses }

func (s *slow) Ask(_ string, limit, _ time.Duration) sentinel.Verdict {
	<-time.After(limit)
	return sentinel.Unknown
}

// A fresh connection from before the watch of a shared client is not trusted: it may lead to a master that was deposed.
func TestVouching_AConnectionFromBefore(t *testing.T) {
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis := &ofSentinel{Client: client}
		redis.master.Store(former)
		v := &vouched{Client: ofNoDatabase(New(redis)), redis: redis}
		v.First.foundSilent(v.Clock.Now(), v.Clock.Now())
		require.NoError(t, v.send(time.Second).Error())
		require.Equal(t, []string{former}, redis.went())
		w := &witnesses{says: map[string]sentinel.Verdict{former: sentinel.Replaced}}
		<-v.Watch(w, func(slog.Level, string, ...slog.Attr) {})
		require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent)
		require.Empty(t, redis.went())
		v.Client.Close()
		<-time.After(time.Minute)
	})
}

// raised are Sentinels that raise a doubt before they have answered.
type raised struct{ *witnesses }

func (r *raised) Begin(_ func() string, doubt func()) { time.AfterFunc(time.Millisecond, doubt) }

func (r *raised) Ask(address string, limit, rest time.Duration) sentinel.Verdict {
	<-time.After(2 * time.Millisecond)
	return r.witnesses.Ask(address, limit, rest)
}

// A process that stood still has heard no events. Its first command notices that, before a timer can.
func TestVouching_AfterAStandstill(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		const running = 10 * time.Second
		<-time.After(running)
		require.False(t, v.First.IsSuspect(v.Clock.Now()), "it runs")
		v.say(former, sentinel.Replaced)
		v.standStill()
		require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
	})
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.standStill()
		<-time.After(2 * belief.BeatEvery)
		require.True(t, v.First.IsSuspect(v.Clock.Now()), "the timer finds it out, too")
	})
}

// standStill is a stop of the process, as it shows in the beats.
func (v *vouched) standStill() {
	v.First.belief.Beat(v.Clock.Now().Add(-belief.BeatEvery - belief.Pause))
}

// A process that stands still between the Sentinels' answers and their use does not use them, whichever goroutine goes on first.
func TestVouching_AStandstillAfterTheAnswers(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.doubt()
		v.asks = func() {
			<-time.After(time.Millisecond) // otherwise time stands still, too, while connection after connection is made
			v.standStill()
			v.says[former] = sentinel.Replaced
		}
		require.ErrorIs(t, v.send(100*time.Millisecond).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
	})
	client := onMiniredis(t)
	synctest.Test(t, func(t *testing.T) {
		redis, w := &ofSentinel{Client: client}, &witnesses{says: map[string]sentinel.Verdict{former: sentinel.Vouched}}
		redis.master.Store(former)
		v := &vouched{Client: ofNoDatabase(New(redis))}
		w.asks = v.standStill
		<-v.Watch(w, func(slog.Level, string, ...slog.Attr) {})
		require.True(t, v.First.IsSuspect(v.Clock.Now()), "it is the first word")
		v.Client.Close()
		<-time.After(time.Minute)
	})
}

// A connection that is made anew may lead to a master that was deposed while the process was cut off, also from the Sentinels.
func TestVouching_AfterABreak(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		breaks := true
		v.redis.answers = func(string) error {
			if breaks {
				breaks = false
				return io.EOF
			}
			return nil
		}
		require.ErrorIs(t, v.send(time.Second).Error(), io.EOF)
		v.say(former, sentinel.Replaced)
		v.redis.went()
		require.ErrorIs(t, v.send(time.Second).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
	})
}

// If a command had no reply that was sent before the fresh connection was made, that says nothing about the connection.
func TestVouching_AnOlderSilence(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.doubt()
		doubted := v.Clock.Now()
		<-time.After(time.Millisecond)
		require.NoError(t, v.send(time.Second).Error())
		<-time.After(time.Millisecond)
		v.First.foundSilent(doubted, v.Clock.Now())
		a := v.send(time.Second)
		require.NoError(t, a.Error())
		require.False(t, a.Late)
	})
}

// A write that replicas must have is not sent to a server in doubt either, and does not count if a doubt is raised meanwhile.
func TestVouching_Replicated(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		replicated := func() Reply {
			return v.Do(&Wait{Ctx: context.Background(), Limit: 5 * time.Second}, &protocol.Call{
				Key: "42", Replicas: &protocol.Replicas{N: 1, Timeout: 5 * time.Second, Settled: func(error) {}},
				Wrote: func(*protocol.Call, rueidis.RedisResult) bool { return false },
			})
		}
		v.say(former, sentinel.Replaced)
		v.doubt()
		require.ErrorIs(t, replicated().Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
		v.say(former, sentinel.Vouched)
		a := replicated()
		require.NoError(t, a.Error())
		require.False(t, a.Late)
		require.NotEmpty(t, v.redis.went())
		v.redis.answers = func(string) error {
			<-time.After(time.Millisecond)
			v.doubt()
			return nil
		}
		require.True(t, replicated().Late)
	})
}

// As TestVouching_AfterItWasClosed, for writes that replicas must have.
func TestVouching_ReplicatedAfterItWasClosed(t *testing.T) {
	withVouched(t, sentinel.Replaced, func(t *testing.T, v *vouched) {
		replicated := func(obtains bool) Reply {
			return v.Do(&Wait{Ctx: context.Background(), Limit: time.Second}, &protocol.Call{
				Key: "42", Replicas: &protocol.Replicas{N: 1, Timeout: time.Second, Settled: func(error) {}}, DropIfAbandoned: obtains,
				Wrote: func(*protocol.Call, rueidis.RedisResult) bool { return false },
			})
		}
		v.Sole(0) // it does not ask for the database
		v.doubt()
		v.First.close()
		require.ErrorIs(t, replicated(true).Error(), fault.NotSent)
		require.Empty(t, v.redis.went())
		require.NoError(t, replicated(false).Error())
		require.NotEmpty(t, v.redis.went())
	})
}

// A connection for such writes may have been made since the server became suspect. Once it is silent, too, it takes no more
// writes.
func TestVouching_ReplicatedOverASilentConnection(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		v.doubt()
		require.NoError(t, v.send(time.Second).Error()) // they vouch
		v.redis.answers = func(over string) error {
			if over != "" {
				<-time.After(time.Minute)
			}
			return nil
		}
		begins := func() *replicaSender {
			go v.Do(&Wait{Ctx: context.Background(), Limit: time.Second}, &protocol.Call{
				Key: "42", Replicas: &protocol.Replicas{N: 1, Timeout: time.Second, Settled: func(error) {}},
			})
			<-time.After(time.Millisecond)
			synctest.Wait()
			v.replicators.mu.Lock()
			defer v.replicators.mu.Unlock()
			return v.replicators.of[""].sender
		}
		first := begins()
		require.Same(t, first, begins())
		v.First.belief.FoundSilent(v.Clock.Now(), v.Clock.Now())
		require.NotSame(t, first, begins())
	})
}

// The log says that locks are granted again only when they are: not while the server for which the Sentinels vouch refuses
// connections, nor if the client left it, or a new doubt was raised, while they were asked.
func TestVouching_LocksGoOn(t *testing.T) {
	const goOn = "locks are granted again"
	for name, still := range map[string]func(v *vouched){
		"it refuses connections": func(v *vouched) {
			v.redis.refuses.Store(true)
			v.First.fresh.silent(v.Clock.Now())
			v.say(former, sentinel.Vouched)
			v.send(time.Second)
			v.redis.refuses.Store(false)
		},
		"it was left": func(v *vouched) {
			v.say(former, sentinel.Vouched)
			v.redis.master.Store(heir)
			v.First.vouch(&belief.Way{Address: former, Greeted: v.Clock.Now()})
			v.redis.master.Store(former)
		},
		"it is doubted anew": func(v *vouched) {
			v.say(former, sentinel.Vouched)
			v.asks = func() {
				v.asks = nil
				v.First.belief.Doubted(v.Clock.Now() + 1)
			}
			v.First.vouch(&belief.Way{Address: former, Greeted: v.Clock.Now()})
			<-time.After(time.Millisecond)
		},
	} {
		withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
			v.say(former, sentinel.Replaced)
			v.doubt()
			require.Error(t, v.send(5*time.Second).Error())
			require.Len(t, v.log, 1)
			<-time.After(time.Second) // nobody asks any more for the call that has ended
			still(v)
			synctest.Wait()
			require.NotContains(t, v.log, goOn, name)
			require.NoError(t, v.send(5*time.Second).Error())
			synctest.Wait()
			require.Equal(t, goOn, v.log[1], name)
		})
	}
}

// The Sentinels are asked even while the master refuses connections. The one that the client follows may be the last to tell it
// of the successor, and the answers show that.
func TestVouching_TheServerRefusesConnections(t *testing.T) {
	withVouched(t, sentinel.Vouched, func(t *testing.T, v *vouched) {
		asked := func() int {
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.asked
		}
		v.redis.refuses.Store(true)
		v.say(former, sentinel.Replaced)
		v.First.foundSilent(v.Clock.Now(), v.Clock.Now())
		before := asked()
		require.ErrorIs(t, v.send(5*time.Second).Error(), fault.NotSent)
		require.Greater(t, asked(), before+5)
		require.Empty(t, v.redis.went())
		v.redis.refuses.Store(false)
		v.redis.master.Store(heir)
		v.say(heir, sentinel.Vouched)
		require.NoError(t, v.send(time.Second).Error())
		require.Equal(t, []string{heir}, v.redis.went())
	})
}
