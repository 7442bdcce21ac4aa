package wake

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// nodes is a cluster whose nodes answer after so long.
type nodes struct {
	rueidis.Client
	all map[string]rueidis.Client
}

func (n nodes) Nodes() map[string]rueidis.Client { return n.all }

type laterNode struct {
	rueidis.Client
	after time.Duration
	reply rueidis.RedisResult
}

func (n laterNode) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	select {
	case <-time.After(n.after):
		return n.reply
	case <-ctx.Done():
		return rueidis.NewErrorResult(ctx.Err())
	}
}

// All nodes are asked at once: one that answers is waited for, and silent ones only for as long as one of them would be.
func TestCluster_TopologyIsAskedOfAllAtOnce(t *testing.T) {
	client := newBench(t).client
	says := client.Do(t.Context(), client.B().Eval().Script("return {{0, 16383, {'a', 1, 'i'}}}").Numkeys(0).Build())
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all, want := map[string]rueidis.Client{}, askLimit
			for i := range 20 {
				all[strconv.Itoa(i)] = laterNode{client, time.Hour, says}
			}
			if answers {
				want = time.Second
				all["7"] = laterNode{client, want, says}
			}
			h := &hub{client: nodes{client, all}, ctx: t.Context()}
			h.places.waiters = map[*Waiter]struct{}{{slot: 7}: {}}
			begun := time.Now()
			best := h.topology()
			require.Equal(t, want, time.Since(begun))
			require.Equal(t, answers, best.Owner(7) == "a:1")
		})
	}
}

// A server that refuses to answer does not hide what another one says. Where all refuse, nothing is known, and calls poll.
func TestTopologyOfAServerThatAnswers(t *testing.T) {
	client := newBench(t).client
	replies := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	refuses := replies("return redis.error_reply('NOPERM no permissions to run CLUSTER SLOTS')")
	says := replies("return {{0, 16383, {'a', 1, 'i'}}}")
	for _, second := range []rueidis.RedisResult{says, refuses} {
		synctest.Test(t, func(t *testing.T) {
			all := map[string]rueidis.Client{"1": laterNode{client, 0, refuses}, "2": laterNode{client, time.Second, second}}
			h := &hub{client: nodes{client, all}, ctx: t.Context()}
			h.places.waiters = map[*Waiter]struct{}{{slot: 7}: {}}
			best := h.topology()
			require.Equal(t, second.Error() == nil, best.Owner(7) == "a:1")
			require.Nil(t, h.route(nil))
		})
	}
}
