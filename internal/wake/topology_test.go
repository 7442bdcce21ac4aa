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
func TestTopologyIsAskedOfAllAtOnce(t *testing.T) {
	b := newBench(t)
	says := b.client.Do(t.Context(), b.client.B().Eval().Script("return {{0, 16383, {'a', 1, 'i'}}}").Numkeys(0).Build())
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all, want := map[string]rueidis.Client{}, askLimit
			for i := range 20 {
				all[strconv.Itoa(i)] = laterNode{b.client, time.Hour, says}
			}
			if answers {
				want = time.Second
				all["7"] = laterNode{b.client, want, says}
			}
			h := &hub{client: nodes{b.client, all}, ctx: t.Context()}
			h.places.waiters = map[*Waiter]struct{}{{slot: 7}: {}}
			begun := time.Now()
			best, known := h.topology()
			require.Equal(t, want, time.Since(begun))
			require.True(t, known)
			require.Equal(t, answers, best.Owner(7) == "a:1")
		})
	}
}
