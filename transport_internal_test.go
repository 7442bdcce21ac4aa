package lockregistry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// lateClient answers when the context of a command ends, or a while after that.
type lateClient struct {
	rueidis.Client
	after time.Duration
}

func (c lateClient) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	<-ctx.Done()
	<-time.After(c.after)
	return rueidis.RedisResult{}
}

// An answer that comes at the moment at which nobody waits for it any more does not mean that the client ignores contexts.
func TestAnswersAtTheEndOfAContext(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	for after, deaf := range map[time.Duration]bool{0: false, time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			way := newTransport(lateClient{client, after})
			way.lanes[0].heard.Store(int64(way.clock.now()))
			way.lanes[0].answers.Store(manyAnswers)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			way.do(&patience{ctx: ctx, limit: time.Minute, late: time.Minute}, &call{key: "42"})
			require.Equal(t, deaf, way.deaf.Load())
		})
	}
}
