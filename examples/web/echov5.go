package web

import (
	"github.com/labstack/echo/v5"

	"github.com/lockregistry/lockregistry"
)

// echoV5Routes is echoRoutes for Echo v5.
func echoV5Routes(locks *lockregistry.Registry, ship echo.HandlerFunc) *echo.Echo {
	router := echo.New()
	router.POST("/orders/:id/ship", ship, pathValuesV5, echo.WrapMiddleware(lockOrder(locks)))
	return router
}

// pathValuesV5 is pathValues for Echo v5.
func pathValuesV5(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		for _, p := range c.PathValues() {
			c.Request().SetPathValue(p.Name, p.Value)
		}
		return next(c)
	}
}
