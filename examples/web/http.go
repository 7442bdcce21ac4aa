// Package web has the recipes that need more than the standard library and the library itself: a router, gRPC, a queue, a
// database. Each file stands alone, to be copied.
package web

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/lockhttp"
)

// lockOrder is the middleware of all routers: one request at a time works on an order, in all processes.
func lockOrder(locks *lockregistry.Registry) func(http.Handler) http.Handler {
	return lockhttp.Middleware{
		Locks:   locks,
		Path:    func(r *http.Request) string { return "order:" + r.PathValue("id") },
		Options: []lockregistry.LockOption{lockregistry.Wait(time.Second)},
		Failed:  func(r *http.Request, err error) { slog.ErrorContext(r.Context(), "no lock", "error", err) },
	}.Handler
}

// chiRoutes adds the lock with With, not Use: middleware added with Use runs before chi knows the id.
func chiRoutes(locks *lockregistry.Registry, ship http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(lockOrder(locks)).Post("/orders/{id}/ship", ship)
	return router
}

// echoRoutes uses the same middleware through Echo's own adapter. Middleware runs in the order listed.
func echoRoutes(locks *lockregistry.Registry, ship echo.HandlerFunc) *echo.Echo {
	router := echo.New()
	router.POST("/orders/:id/ship", ship, pathValues, echo.WrapMiddleware(lockOrder(locks)))
	return router
}

// pathValues copies Echo's parameters to the request, where Path of lockOrder looks for them.
func pathValues(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		for _, name := range c.ParamNames() {
			c.Request().SetPathValue(name, c.Param(name))
		}
		return next(c)
	}
}
