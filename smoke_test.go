package lockregistry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

func TestSmoke(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:7777"}})
	require.NoError(t, err)
	defer client.Close()
	var wg sync.WaitGroup
	inside := 0
	start := time.Now()
	var n int
	for i := 0; i < 8; i++ {
		r, err := lockregistry.New(client, "p")
		require.NoError(t, err)
		defer r.Close()
		wg.Add(1)
		go func() {
			defer wg.Done()
			l := r.Obtain("x")
			for time.Since(start) < 3*time.Second {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				if err := l.Lock(ctx); err != nil {
					t.Error(err)
				}
				cancel()
				inside++
				if inside != 1 {
					t.Error("two")
				}
				n++
				inside--
				if err := l.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	t.Log(n, time.Since(start))
}
