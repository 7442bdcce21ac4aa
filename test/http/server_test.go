package http_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/lockhttp"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Two HTTP servers on one Redis server serve one request at a time between them. While a third process has the lock they
// respond with 409.
func TestMiddleware_OnRealServers(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const requests = 20
		var inside, served atomic.Int32
		instance := func(wait time.Duration) string {
			m := lockhttp.Middleware{
				Locks:   w.Registry(),
				Path:    func(*http.Request) string { return "42" },
				Options: []lockregistry.LockOption{lockregistry.Wait(wait)},
			}
			server := httptest.NewServer(m.Handler(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
				assert.Equal(w, int32(1), inside.Add(1))
				served.Add(1)
				w.Do("EXISTS", "orders:42") // takes a while, in which a second request would arrive
				assert.NoError(w, r.Context().Err())
				inside.Add(-1)
				answer.WriteHeader(http.StatusCreated)
			})))
			w.Cleanup(server.Close)
			return server.URL
		}
		status := func(url string) int {
			request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, url, nil)
			if err != nil {
				w.Error(err)
				return 0
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				w.Error(err)
				return 0
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			return answer.StatusCode
		}
		var clients sync.WaitGroup
		for _, url := range []string{instance(time.Minute), instance(time.Minute)} {
			for range requests {
				clients.Go(func() { assert.Equal(w, http.StatusCreated, status(url)) })
			}
		}
		clients.Wait()
		require.Equal(w, int32(2*requests), served.Load())

		w.Lock(w.Registry().Obtain("42"))
		require.Equal(w, http.StatusConflict, status(instance(2*time.Second)))
		http.DefaultClient.CloseIdleConnections()
	})
}
