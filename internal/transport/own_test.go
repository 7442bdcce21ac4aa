package transport

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// Each command gets its own reply, or none, however many are given up at any moment.
func TestOwn_EachReplyIsThatOfItsCommand(t *testing.T) {
	source := "for i = 1, ARGV[2] do redis.call('EXISTS', KEYS[1]) end return ARGV[1]"
	echo := protocol.NewScript(source)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	defer way.Close()
	s := way.First
	own := map[*ownConn]bool{}
	var last, unanswered atomic.Int64
	one := func() {
		text := strconv.FormatInt(last.Add(1), 10)
		p := Wait{Ctx: context.Background(), Limit: 5 * time.Second}
		work := rand.IntN(20)
		if rand.IntN(100) == 0 {
			p.Limit, work = time.Duration(rand.Int64N(int64(2*time.Millisecond))), 2000
		}
		a := way.Do(&p, &protocol.Call{Script: echo, Key: "42", Args: protocol.Args{text, strconv.Itoa(work)}})
		said, err := a.ToString()
		switch {
		case err == nil:
			assert.Equal(t, text, said)
		case p.Limit < time.Second && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent)):
			unanswered.Add(1)
		default:
			assert.NoError(t, err)
		}
	}
	for deadline := time.Now().Add(time.Minute); len(own) < 10 && time.Now().Before(deadline) && !t.Failed(); {
		for range 300 {
			one()
			if w := s.own.conn.Load(); w != nil {
				own[w] = true
			}
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					one()
				}
			})
		}
		all.Wait()
	}
	require.GreaterOrEqual(t, len(own), 10, "each is closed with a command that is given up")
	require.Positive(t, unanswered.Load())
}

// A connection whose user panics, in a method of the caller's context, is closed, and in nobody's way.
func TestOwn_IsClosedAfterAPanic(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	defer way.Close()
	s := way.First
	c := protocol.Call{Script: protocol.NewScript("return 1"), Key: "42"}
	do := func(w *ownConn, p *Wait) (panicked any) {
		defer func() { panicked = recover() }()
		end, _ := s.bounds.take()
		a := Reply{Sent: way.Clock.Now()}
		s.doOwn(w, p, &c, end, &a)
		require.NoError(t, a.Error())
		return nil
	}
	for n, panicked := int32(1), any(true); panicked != nil; n++ {
		var w *ownConn
		require.Eventually(t, func() bool {
			way.Do(&Wait{Ctx: t.Context(), Limit: 5 * time.Second}, &c)
			w = s.own.conn.Load()
			return w != nil && w.take()
		}, time.Minute, time.Microsecond)
		left := new(atomic.Int32)
		left.Store(n)
		panicked = do(w, &Wait{Ctx: bomb{t.Context(), left, 0}, Limit: 5 * time.Second})
		require.Empty(t, s.bounds.used)
		if panicked != nil {
			require.NotSame(t, w, s.own.conn.Load())
			require.Eventually(t, func() bool {
				return w.Do(t.Context(), w.B().Ping().Build()).Error() != nil
			}, time.Minute, time.Millisecond)
		}
	}
}

// telling is a client whose server gives these replies, one after the other.
type telling struct {
	rueidis.Client
	answers []rueidis.RedisResult
}

func (c *telling) Do(context.Context, rueidis.Completed) (answer rueidis.RedisResult) {
	answer, c.answers = c.answers[0], c.answers[1:]
	return answer
}

// A server is asked until it has reported the database, or has refused to.
func TestClient_DatabaseIsAskedForOnce(t *testing.T) {
	client := onMiniredis(t)
	says := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	loading := "return redis.error_reply('LOADING it starts')"
	refused := `return redis.error_reply("ERR unknown subcommand 'INFO'. Try CLIENT HELP.")`
	way := New(&telling{client, []rueidis.RedisResult{says(loading), says("return 'id=7 db=3 x=1'")}})
	says3 := func(number string, known bool) {
		t.Helper()
		require.True(t, known)
		require.Equal(t, "3", number)
	}
	_, known := way.database(askLimit)
	require.False(t, known)
	says3(way.database(askLimit))
	says3(way.database(askLimit))
	way = New(&telling{client, []rueidis.RedisResult{says(refused)}})
	for range 2 {
		number, known := way.database(askLimit)
		require.True(t, known)
		require.Empty(t, number, "the server does not say")
	}
}

// A client without a wrapper is asked for its database while all is well. Once its server is silent nobody could tell, and no
// other connection could be used.
func TestClient_DatabaseIsAskedForEarly(t *testing.T) {
	way := New(onMiniredis(t))
	way.Do(&Wait{Ctx: t.Context(), Limit: time.Minute}, &protocol.Call{Key: "42", Args: protocol.Args{"a:1", "1"}})
	require.True(t, redistest.Await(10*time.Second, func() bool { return way.pool.selected.Load() != nil }))
}

// A proxy may end the connection at the question, and the application's commands share it: the question is asked three times.
func TestClient_DatabaseIsAskedForThreeTimesInTheBackground(t *testing.T) {
	withNode(t, func(t *testing.T, open func(func(context.Context) rueidis.RedisResult) *Client) {
		var asked atomic.Int32
		way := open(func(context.Context) rueidis.RedisResult {
			asked.Add(1)
			return rueidis.NewErrorResult(io.EOF)
		})
		for range 10 {
			way.learnDatabase()
			<-time.After(time.Second)
		}
		require.EqualValues(t, 3, asked.Load())
	})
}

// If the server refuses a connection, it has not refused the question: it is asked again.
func TestClient_DatabaseOfARefusedConnection(t *testing.T) {
	client := onMiniredis(t)
	says := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	for _, refusal := range []string{
		"WRONGPASS invalid username-password pair",
		"NOPERM User client has no permissions to run the 'hello' command",
		"ERR max number of clients reached",
	} {
		refused := says(`return redis.error_reply("` + refusal + `")`)
		way := New(&telling{client, []rueidis.RedisResult{refused, says("return 'id=7 db=3 x=1'")}})
		_, known := way.database(askLimit)
		require.False(t, known)
		number, known := way.database(askLimit)
		require.True(t, known)
		require.Equal(t, "3", number)
	}
}

// While the client's user may not choose its database, no connection is made, and rueidis gives that for each command.
func TestClient_DatabaseOfAUserThatMayNotSelect(t *testing.T) {
	server := redistest.Start(t)
	admin, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer admin.Close()
	user := func(may string) {
		t.Helper()
		set := admin.B().Arbitrary("ACL", "SETUSER", "x", "on", ">secret", "~*", "&*", "+@all", may).Build()
		require.NoError(t, admin.Do(t.Context(), set).Error())
	}
	user("+select")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, Username: "x", Password: "secret", SelectDB: 3,
		DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	user("-select")
	require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary("CLIENT", "KILL", "USER", "x").Build()).Error())
	require.True(t, redistest.Await(10*time.Second, func() bool { // the client notices that its connection is closed
		_, known := way.database(askLimit)
		require.False(t, known)
		return strings.Contains(client.Do(t.Context(), client.B().Ping().Build()).Error().Error(), "'select'")
	}))
	_, known := way.database(time.Minute)
	require.False(t, known)
	require.Nil(t, way.First.dials.dial(wanted{}))
	user("+select")
	var number string
	require.True(t, redistest.Await(10*time.Second, func() bool { // a connection may just be refused that was begun before
		number, known = way.database(time.Minute)
		return known
	}))
	require.Equal(t, "3", number)
}

// The library need not ask for the database of connections that it has made.
func TestClient_DatabaseOfASoleClientIsKnown(t *testing.T) {
	way := New(&telling{Client: onMiniredis(t)})
	way.Sole(7)
	number, known := way.database(askLimit)
	require.True(t, known)
	require.Equal(t, "7", number)
}

// A connection that does not fit is not left in the pool of a client that nobody else uses. So the next connection is dialled.
func TestDialer_TheNextOneIsDialled(t *testing.T) {
	for _, sole := range []bool{true, false} {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true, ForceSingleClient: true,
		})
		require.NoError(t, err)
		defer client.Close()
		way := New(client)
		way.Sole(0)
		way.pool.sole.Store(sole)
		pooled, back := client.Dedicate()
		id, err := pooled.Do(t.Context(), client.B().ClientId().Build()).AsInt64()
		require.NoError(t, err)
		require.NoError(t, pooled.Do(t.Context(), client.B().Arbitrary("SELECT", "5").Build()).Error())
		back()
		conn := way.First.dials.dial(wanted{})
		require.NotNil(t, conn)
		require.True(t, conn.told)
		defer conn.Close()
		list := client.B().Arbitrary("CLIENT", "LIST", "ID", strconv.FormatInt(id, 10)).Build().Pin()
		require.True(t, redistest.Await(10*time.Second, func() bool {
			info, err := client.Do(t.Context(), list).ToString()
			require.NoError(t, err)
			return strings.Contains(info, "id=") != sole
		}))
	}
}

// loading is a client whose shared connection does not report its database yet.
type loading struct {
	rueidis.Client
	over atomic.Bool
}

func (c *loading) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if !c.over.Load() && command.Commands()[0] == "CLIENT" {
		return rueidis.NewErrorResult(fault.NoAnswer)
	}
	return c.Client.Do(ctx, command)
}

// The application may have selected another database on a connection of the pool that is only a moment old. While the database
// of the shared connections is not known, no such connection is taken: a lock there would exclude nobody.
func TestDialer_WhileTheDatabaseIsNotKnown(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	defer client.Close()
	select5 := func() (pooled rueidis.DedicatedClient, back func()) {
		pooled, back = client.Dedicate()
		require.NoError(t, pooled.Do(t.Context(), client.B().Arbitrary("SELECT", "5").Build()).Error())
		return pooled, back
	}
	_, back := select5()
	back()

	c := &loading{Client: client}
	way := New(c)
	one := protocol.Replicas{N: 1, Timeout: time.Second, Settled: func(error) {}}
	replicated := func(key string) error {
		call := protocol.Call{
			Key: key, Args: protocol.Args{"v", "60000"}, Replicas: &one,
			Wrote: func(*protocol.Call, rueidis.RedisResult) bool { return true },
		}
		return way.Do(&Wait{Ctx: t.Context(), Limit: time.Minute}, &call).Error()
	}
	require.Nil(t, way.First.dials.dial(wanted{}))
	require.ErrorIs(t, replicated("1"), fault.NotSent)

	c.over.Store(true)
	conn := way.First.dials.dial(wanted{})
	require.NotNil(t, conn)
	info, err := conn.Do(t.Context(), client.B().Arbitrary("CLIENT", "INFO").Build()).ToString()
	require.NoError(t, err)
	require.Equal(t, "0", databaseIn(info))
	conn.Close()
	require.NoError(t, replicated("2"))
	written, err := client.Do(t.Context(), client.B().Exists().Key("1", "2").Build()).AsInt64()
	require.NoError(t, err)
	require.EqualValues(t, 1, written)
	pooled, back := select5()
	defer back()
	others, err := pooled.Do(t.Context(), client.B().Dbsize().Build()).AsInt64()
	require.NoError(t, err)
	require.Zero(t, others)
}

// A server may refuse a connection by a reply, as while it does not take the client's password. Such a connection does not
// count as one that works.
func TestDialer_TheServerRefusesConnections(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	defer client.Close()
	way := New(client)
	_, known := way.database(time.Minute)
	require.True(t, known)
	password := func(is string) {
		t.Helper()
		set := client.B().ConfigSet().ParameterValue().ParameterValue("requirepass", is).Build()
		require.NoError(t, client.Do(t.Context(), set).Error())
	}
	password("another")
	require.Nil(t, way.First.dials.dial(wanted{}))
	password("")
	conn := way.First.dials.dial(wanted{})
	require.NotNil(t, conn)
	require.NoError(t, conn.Do(t.Context(), client.B().Ping().Build()).Error())
	conn.Close()
}
