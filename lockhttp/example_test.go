package lockhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/lockhttp"
)

func routes(locks *lockregistry.Registry, shipOrder http.Handler) *http.ServeMux {
	ship := lockhttp.Middleware{
		Locks:   locks,
		Path:    func(r *http.Request) string { return "order:" + r.PathValue("id") },
		Options: []lockregistry.LockOption{lockregistry.Wait(time.Second)},
		Failed:  func(r *http.Request, err error) { slog.ErrorContext(r.Context(), "no lock", "error", err) },
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/ship", ship.Handler(shipOrder))
	return mux
}

// In the whole fleet one request at a time ships an order. Another one waits for a second, then its client gets 409.
func ExampleMiddleware() {
	redis, err := miniredis.Run() // a Redis inside this program, so that the example runs anywhere
	if err != nil {
		panic(err)
	}
	defer redis.Close()
	locks, err := lockregistry.Open(context.Background(), "redis://"+redis.Addr(), "orders")
	if err != nil {
		panic(err)
	}
	defer func() { _ = locks.Close() }()

	mux := routes(locks, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// r.Context() ends when the lock is lost.
		_, _ = fmt.Fprint(w, "shipped ", r.PathValue("id"))
	}))
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/orders/42/ship", nil))
	fmt.Println(answer.Code, answer.Body)
	// Output: 200 shipped 42
}
