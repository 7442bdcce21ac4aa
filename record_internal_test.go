package lockregistry

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Who finds that the record is being written does not wait, and it is written once more.
func TestARecordThatIsBeingWritten(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{miniredis.RunT(t).Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	var writes atomic.Int32
	under, answer := make(chan struct{}), make(chan struct{})
	r, err := New(stubClient{client, func(context.Context) rueidis.RedisResult {
		if writes.Add(1) == 1 {
			close(under)
		}
		<-answer
		return rueidis.NewErrorResult(fault.NoAnswer)
	}}, "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	first := make(chan struct{})
	go func() {
		defer close(first)
		r.recording.write(t.Context())
	}()
	<-under
	r.recording.write(t.Context())
	require.EqualValues(t, 1, writes.Load())
	r.recording.doubted.Store(true) // it is time
	close(answer)
	<-first
	require.EqualValues(t, 2, writes.Load())
}
