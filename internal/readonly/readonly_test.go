package readonly

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const own = "00000000-0000-0000-0000-000000000001"

func reader(t *testing.T) (*Reader, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return Bystander(client, "p", 5*time.Second), server
}

func TestReader_LocksOfMoreThanOneScript(t *testing.T) {
	r, server := reader(t)
	keys := make([]string, 2*Together+1)
	for i := range keys {
		keys[i] = fmt.Sprint("p:", i)
		require.NoError(t, server.Set(keys[i], fmt.Sprintf("id:%d", i)))
	}
	_, err := server.Lpush("p:list", "x")
	require.NoError(t, err)
	found, errs := r.Locks(t.Context(), slices.Concat(keys, []string{"p:list", "p:free"}))
	for i := range keys {
		require.NoError(t, errs[i])
		require.Equal(t, fmt.Sprintf("id:%d", i), found[i].Holders[0].Text)
	}
	require.ErrorIs(t, errs[len(keys)], fault.WrongType)
	require.NoError(t, errs[len(keys)+1])
	require.Empty(t, found[len(keys)+1].Holders)
}

// proxy refuses scripts with several keys, as one before several servers.
type proxy struct {
	rueidis.Client
	refused atomic.Int32
}

func (p *proxy) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(commands))
	for i, c := range commands {
		if c.Commands()[2] != "1" {
			p.refused.Add(1)
			no := `return redis.error_reply("CROSSSLOT Keys in request don't hash to the same slot")`
			c = p.B().Eval().Script(no).Numkeys(0).Build()
		}
		results[i] = p.Do(ctx, c)
	}
	return results
}

// Where a proxy refuses several keys each is asked for by itself. A registry that knows the proxy does so at once, until scripts
// for several keys have worked for a while.
func TestReader_BehindAProxy(t *testing.T) {
	r, server := reader(t)
	p := &proxy{Client: r.Client}
	r.Client, r.Transport, r.Apart = p, transport.New(p), &protocol.Apart{}
	names := make([]string, 3)
	for i := range names {
		names[i] = strconv.Itoa(i)
		require.NoError(t, server.Set(presence.Key("p", names[i]), fmt.Sprintf(`{"host":"h%d","pid":7}`, i)))
	}
	reads := func() (refused int32) {
		p.refused.Store(0)
		found := 0
		require.NoError(t, r.Records(t.Context(), names, func(i int, _ presence.Record, from presence.Identity) {
			require.Equal(t, fmt.Sprint("h", i), from.Host)
			found++
		}))
		require.Equal(t, len(names), found)
		return p.refused.Load()
	}
	require.Positive(t, reads())
	r.Apart.Note(r.Clock.Now())
	require.Zero(t, reads(), "it knows the proxy")
	r.Apart.Worked()
	require.Zero(t, reads(), "not for as long as it paused")
	r.Apart = &protocol.Apart{}
	r.Apart.Note(r.Clock.Now().Add(-time.Hour))
	require.Zero(t, reads(), "none has tried since")
	r.Apart.Worked()
	require.Positive(t, reads())
}

func TestReader_ACallThatHasEnded(t *testing.T) {
	r, _ := reader(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	_, errs := r.Locks(ctx, []string{"p:a"})
	require.ErrorIs(t, errs[0], context.Canceled)
	require.ErrorIs(t, r.Records(ctx, []string{"x"}, nil), context.Canceled)
}

func TestReader_Records(t *testing.T) {
	r, server := reader(t)
	long := string(make([]byte, presence.MostBytes+1))
	require.NoError(t, server.Set(presence.Key("p", "long"), long))
	var names []string
	require.NoError(t, r.Records(t.Context(), []string{"none", "long"}, func(i int, _ presence.Record, from presence.Identity) {
		names = append(names, fmt.Sprintf("%d:%t", i, from.Unread()))
	}))
	require.Equal(t, []string{"0:false", "1:true"}, names)
}

// Holders that are not named are reported as one unknown holder, so that nobody takes the named ones for all.
func TestReader_MoreHoldersThanAreNamed(t *testing.T) {
	for held, unknown := range map[int]int{mostNamed: 0, mostNamed + 1: 1} {
		r, server := reader(t)
		add := func(score float64, member string) {
			_, err := server.ZAdd("p:seat", score, member)
			require.NoError(t, err)
		}
		add(-1000, "permits")
		for i := range held {
			add(float64(time.Now().Add(time.Minute).UnixMilli()), fmt.Sprintf("%s:%d", own, 1_795_000_000_000_000+int64(i)))
		}
		holders, err := r.Holders(t.Context(), []string{"seat"})
		require.NoError(t, err)
		require.Len(t, holders[0], mostNamed+unknown)
		require.Len(t, slices.DeleteFunc(holders[0], func(registry string) bool { return registry == own }), unknown)
	}
}

func TestReader_Holders(t *testing.T) {
	r, server := reader(t)
	const other = "00000000-0000-0000-0000-000000000002"
	require.NoError(t, server.Set("p:a", own+":1"))
	require.NoError(t, server.Set("p:b", other+":1"))
	holders, err := r.Holders(t.Context(), []string{"b", "free", "a"})
	require.NoError(t, err)
	require.Equal(t, [][]string{{other}, nil, {own}}, holders)
}

// slow is a client whose answers take a while, whatever the context says.
type slow struct {
	rueidis.CoreClient

	asked func()
}

func (s slow) DoMulti(_ context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	answers := s.CoreClient.DoMulti(context.Background(), commands...)
	s.asked()
	<-time.After(20 * time.Millisecond) // a channel, or the client, would put what follows behind what the caller does
	return answers
}

// A question that was given up goes on, but touches nothing of its caller's. The race detector shows that.
func TestReader_AQuestionThatWasGivenUp(t *testing.T) {
	r, _ := reader(t)
	ctx, end := context.WithCancel(t.Context())
	const source = "return {}"
	sha, err := r.Client.Do(t.Context(), r.Client.B().ScriptLoad().Script(source).Build()).ToString()
	require.NoError(t, err)
	way := slow{r.Client, end}
	_, after, err := r.AtServer(ctx, r.Transport.First, way, &protocol.Script{Source: source, SHA: sha})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, after)
}
