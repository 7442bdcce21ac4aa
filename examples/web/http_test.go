package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/locktest"
)

// routers are those that the same tests are for. What ship returns is the status, and the error that Echo's handlers return.
var routers = map[string]func(locks *lockregistry.Registry, ship func(ctx context.Context, id string) (int, error)) http.Handler{
	"chi": func(locks *lockregistry.Registry, ship func(context.Context, string) (int, error)) http.Handler {
		return chiRoutes(locks, func(w http.ResponseWriter, r *http.Request) {
			status, err := ship(r.Context(), r.PathValue("id"))
			if err != nil {
				status = http.StatusTeapot
			}
			w.WriteHeader(status)
		})
	},
	"echo": func(locks *lockregistry.Registry, ship func(context.Context, string) (int, error)) http.Handler {
		return echoRoutes(locks, func(c echo.Context) error {
			status, err := ship(c.Request().Context(), c.Param("id"))
			if err != nil {
				return echo.NewHTTPError(http.StatusTeapot) // its error handler answers when the middleware has returned
			}
			return c.NoContent(status)
		})
	},
	"echo v5": func(locks *lockregistry.Registry, ship func(context.Context, string) (int, error)) http.Handler {
		return echoV5Routes(locks, func(c *echov5.Context) error {
			status, err := ship(c.Request().Context(), c.Param("id"))
			if err != nil {
				return echov5.NewHTTPError(http.StatusTeapot, "")
			}
			return c.NoContent(status)
		})
	},
}

// inRouters runs a test with each router. Post ships order 42 and returns the status.
func inRouters(
	t *testing.T, ship func(ctx context.Context, locks *locktest.Registry, id string) (int, error),
	test func(t *testing.T, locks *locktest.Registry, post func() int),
) {
	t.Helper()
	for name, router := range routers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := locktest.New(t)
				handler := router(locks.Registry, func(ctx context.Context, id string) (int, error) { return ship(ctx, locks, id) })
				test(t, locks, func() int {
					answer := httptest.NewRecorder()
					handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42/ship", nil))
					return answer.Code
				})
			})
		})
	}
}

func want(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: status %d, not %d", what, got, want)
	}
}

func created(context.Context, *locktest.Registry, string) (int, error) {
	return http.StatusCreated, nil
}

func TestHTTP_TheHandlerHasTheLock(t *testing.T) {
	inRouters(t, func(_ context.Context, locks *locktest.Registry, id string) (int, error) {
		if !locks.Obtain("order:" + id).IsHeld() {
			t.Error("the order is not locked")
		}
		return http.StatusCreated, nil
	}, func(t *testing.T, locks *locktest.Registry, post func() int) {
		want(t, "shipped", post(), http.StatusCreated)
		if locks.Obtain("order:42").IsHeld() {
			t.Error("the order is locked still")
		}
	})
}

func TestHTTP_Taken(t *testing.T) {
	inRouters(t, created, func(t *testing.T, locks *locktest.Registry, post func() int) {
		release := locks.HoldElsewhere("order:42", time.Minute)
		want(t, "another process ships it", post(), http.StatusConflict)
		release()
		want(t, "then it is free", post(), http.StatusCreated)
	})
}

func TestHTTP_RedisIsDown(t *testing.T) {
	inRouters(t, created, func(t *testing.T, locks *locktest.Registry, post func() int) {
		locks.Disconnect()
		want(t, "no Redis", post(), http.StatusServiceUnavailable)
		locks.Reconnect()
		want(t, "it is back", post(), http.StatusCreated)
	})
}

func TestHTTP_TheLockIsLost(t *testing.T) {
	inRouters(t, func(_ context.Context, locks *locktest.Registry, id string) (int, error) {
		locks.Lose("order:" + id)
		return http.StatusCreated, nil
	}, func(t *testing.T, _ *locktest.Registry, post func() int) {
		want(t, "lost before the answer", post(), http.StatusInternalServerError)
	})
}

// An error of the handler is answered as without the middleware, also where the router does it when the lock is released.
func TestHTTP_TheHandlerFails(t *testing.T) {
	inRouters(t, func(context.Context, *locktest.Registry, string) (int, error) {
		return 0, errors.New("no such order")
	}, func(t *testing.T, _ *locktest.Registry, post func() int) {
		want(t, "no such order", post(), http.StatusTeapot)
	})
}

// The lock is lost, and the handler fails for it: 500 stays, whatever the router answers to the error later.
func TestHTTP_TheHandlerFailsAsTheLockIsLost(t *testing.T) {
	inRouters(t, func(ctx context.Context, locks *locktest.Registry, id string) (int, error) {
		locks.Lose("order:" + id)
		return 0, context.Cause(ctx)
	}, func(t *testing.T, _ *locktest.Registry, post func() int) {
		want(t, "lost", post(), http.StatusInternalServerError)
	})
}
