package topology

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// nodes is a cluster whose nodes answer after a given time.
type nodes struct {
	rueidis.Client
	all map[string]rueidis.Client
}

func (n nodes) Nodes() map[string]rueidis.Client { return n.all }

type laterNode struct {
	rueidis.Client
	after time.Duration
	reply func() rueidis.RedisResult
}

func (n laterNode) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	select {
	case <-time.After(n.after):
		return n.reply()
	case <-ctx.Done():
		return rueidis.NewErrorResult(ctx.Err())
	}
}

// replies are what a server replies to scripts.
func replies(t *testing.T) (client rueidis.Client, reply func(script string) func() rueidis.RedisResult) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client, func(script string) func() rueidis.RedisResult {
		said := client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
		return func() rueidis.RedisResult { return said }
	}
}

func resolver(ctx context.Context, client rueidis.Client) *Resolver {
	return NewResolver(ctx, client, clock.New(), func(Map) {}, func() time.Duration { return 0 })
}

// All nodes are asked at once. So several silent ones delay the answer no longer than one, and the answers of the others count.
func TestMasters_AreAskedOfAllAtOnce(t *testing.T) {
	client, reply := replies(t)
	says := reply("return {{0, 16383, {'a', 1, 'i'}}}")
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all := map[string]rueidis.Client{}
			for i := range 20 {
				all[strconv.Itoa(i)] = laterNode{client, time.Hour, says}
			}
			if answers {
				all["7"] = laterNode{client, answerWait / 2, says}
			}
			begun := time.Now()
			masters := resolver(t.Context(), nodes{client, all}).Masters(t.Context())
			require.Equal(t, answerWait, time.Since(begun))
			require.Equal(t, answers, masters.Owner(7) == "a:1")
		})
	}
}

// A node that refuses to answer does not hide what another one says. Where all refuse, nothing is known.
func TestMasters_WhereANodeRefuses(t *testing.T) {
	client, reply := replies(t)
	refuses := reply("return redis.error_reply('NOPERM no permissions to run CLUSTER SLOTS')")
	says := reply("return {{0, 16383, {'a', 1, 'i'}}}")
	for want, second := range map[string]func() rueidis.RedisResult{"a:1": says, "": refuses} {
		synctest.Test(t, func(t *testing.T) {
			all := map[string]rueidis.Client{"1": laterNode{client, 0, refuses}, "2": laterNode{client, answerWait / 2, second}}
			require.Equal(t, want, resolver(t.Context(), nodes{client, all}).Masters(t.Context()).Owner(7))
		})
	}
}

// The answer shows all changes before the call, even if a question was under way when it began. When no node answers any more,
// the last answer stands.
func TestMasters_AreNeverOlderThanTheCall(t *testing.T) {
	client, reply := replies(t)
	before, after := reply("return {{0, 16383, {'a', 1, 'i'}}}"), reply("return {{0, 16383, {'b', 1, 'i'}}}")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		all := map[string]rueidis.Client{"1": laterNode{client, answerWait / 2, func() rueidis.RedisResult {
			if time.Since(start) > answerWait/2 { // the question that is under way has its answer by then
				return after()
			}
			return before()
		}}}
		r := resolver(t.Context(), nodes{client, all})
		r.Refresh(0)
		<-time.After(answerWait / 4)
		begun := time.Now()
		require.Equal(t, "b:1", r.Masters(t.Context()).Owner(7))
		require.Equal(t, answerWait/4+answerWait/2, time.Since(begun))
		all["1"] = laterNode{client, time.Hour, after}
		require.Equal(t, "b:1", r.Masters(t.Context()).Owner(7))
	})
}

// A call for the masters ends with its context, even if a node hangs.
func TestMasters_AreNotWaitedForAnyLonger(t *testing.T) {
	client, reply := replies(t)
	says := reply("return {{0, 16383, {'a', 1, 'i'}}}")
	synctest.Test(t, func(t *testing.T) {
		r := resolver(t.Context(), nodes{client, map[string]rueidis.Client{"1": laterNode{client, time.Hour, says}}})
		ctx, cancel := context.WithTimeout(t.Context(), answerWait/4)
		defer cancel()
		begun := time.Now()
		require.Empty(t, r.Masters(ctx))
		require.Equal(t, answerWait/4, time.Since(begun))
	})
}

// The answers to a question that is under way may still name a master that has just redirected a command, or not answered.
// These answers are not trusted either.
func TestResolver_ForgetsWhatIsUnderWay(t *testing.T) {
	client, reply := replies(t)
	before, after := reply("return {{0, 16383, {'a', 1, 'i'}}}"), reply("return {{0, 16383, {'b', 1, 'i'}}}")
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		node := laterNode{client, answerWait / 2, func() rueidis.RedisResult {
			if asked++; asked > 1 {
				return after()
			}
			return before()
		}}
		r := resolver(t.Context(), nodes{client, map[string]rueidis.Client{"1": node}})
		r.Refresh(0)
		<-time.After(answerWait / 4)
		r.Forget()
		require.Equal(t, Owner{Address: "a:1"}, r.Master(7), "it is not trusted")
		<-time.After(AskPause)
		require.Equal(t, Owner{Address: "b:1", Trusted: true}, r.Master(7))
		require.Equal(t, 2, asked)
	})
}

// urgedNodes is a cluster whose client is urged to look at it again.
type urgedNodes struct {
	nodes
	urged *int
}

func (n urgedNodes) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	*n.urged++
	return rueidis.NewErrorResult(context.Canceled)
}

// A client that has known the masters by the names that the nodes give them is urged to learn new ones; no other client is.
func TestResolver_UrgesTheClientToLearnNewNames(t *testing.T) {
	client, reply := replies(t)
	says := reply("return {{0, 16383, {'a', 1, 'i'}}}")
	synctest.Test(t, func(t *testing.T) {
		node, urged := laterNode{client, 0, says}, 0
		all := map[string]rueidis.Client{"b:1": node}
		r := resolver(t.Context(), urgedNodes{nodes{client, all}, &urged})
		ask := func() int {
			r.Masters(t.Context())
			synctest.Wait()
			return urged
		}
		require.Equal(t, 0, ask(), "it knows nobody by these names")
		all["a:1"] = node
		require.Equal(t, 0, ask())
		delete(all, "a:1")
		require.Equal(t, 1, ask())
		all["a:1"] = node
		require.Equal(t, 1, ask())
	})
}
