package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/lockhttp"
)

// lockCalls runs each handler under the lock on the path that a function returns for the request. An empty path needs no lock.
func lockCalls(locks *lockregistry.Registry, path func(request any) string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		name := path(request)
		if name == "" {
			return handler(ctx, request)
		}
		hold, err := locks.Acquire(ctx, name, lockregistry.Wait(time.Second))
		if err != nil {
			slog.ErrorContext(ctx, "no lock", "method", call.FullMethod, "error", err)
			return nil, status.Error(code(err), "no lock") // the error's own text names the key and the server
		}
		defer func() {
			released := hold.Release(context.WithoutCancel(ctx))
			if released != nil {
				slog.ErrorContext(ctx, "after the call", "method", call.FullMethod, "error", released)
			}
			if errors.Is(released, lockregistry.ErrLockLost) {
				reply, err = nil, status.Error(code(released), "the lock was lost")
			}
		}()
		return handler(hold.Context(ctx), request)
	}
}

// code returns the status for an error, as lockhttp.Status does for HTTP.
func code(err error) codes.Code {
	switch lockhttp.Status(err) {
	case http.StatusConflict:
		return codes.Aborted
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	default:
		return codes.Internal
	}
}
