package web

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/locktest"
)

// checks is a service, here that of health checks since grpc brings it, whose answer is a function.
type checks struct {
	health.UnimplementedHealthServer

	answer func(ctx context.Context) error
}

func (c *checks) Check(ctx context.Context, _ *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	return &health.HealthCheckResponse{Status: health.HealthCheckResponse_SERVING}, c.answer(ctx)
}

// serve starts a server whose calls lock the path that their request names, and returns what calls it about order 42.
func serve(t *testing.T, locks *lockregistry.Registry, answer func(ctx context.Context) error) func(path string) error {
	t.Helper()
	socket := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnaryInterceptor(lockCalls(locks, func(request any) string {
		return request.(*health.HealthCheckRequest).GetService()
	})))
	health.RegisterHealthServer(server, &checks{answer: answer})
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	client, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return func(path string) error {
		reply, err := health.NewHealthClient(client).Check(t.Context(), &health.HealthCheckRequest{Service: path})
		if err == nil && reply.GetStatus() != health.HealthCheckResponse_SERVING {
			t.Error("the reply is not that of the handler")
		}
		return err
	}
}

func TestGRPC(t *testing.T) {
	const path = "order:42"
	elsewhere := func(locks *locktest.Registry) { locks.HoldElsewhere(path, time.Minute) }
	for name, c := range map[string]struct {
		path   string
		before func(locks *locktest.Registry)
		answer func(ctx context.Context, locks *locktest.Registry) error
		want   codes.Code
	}{
		"locked": {path: path, answer: func(_ context.Context, locks *locktest.Registry) error {
			if !locks.Obtain(path).IsHeld() {
				return status.Error(codes.FailedPrecondition, "not locked")
			}
			return nil
		}, want: codes.OK},
		"without a path":      {path: "", before: elsewhere, want: codes.OK},
		"another has it":      {path: path, before: elsewhere, want: codes.Aborted},
		"Redis is down":       {path: path, before: (*locktest.Registry).Disconnect, want: codes.Unavailable},
		"the registry closed": {path: path, before: func(locks *locktest.Registry) { _ = locks.Close() }, want: codes.Unavailable},
		"lost": {path: path, answer: func(_ context.Context, locks *locktest.Registry) error {
			locks.Lose(path)
			return nil
		}, want: codes.Internal},
		"lost, and the handler says unavailable": {path: path, answer: func(ctx context.Context, locks *locktest.Registry) error {
			locks.Lose(path)
			return status.Error(codes.Unavailable, context.Cause(ctx).Error())
		}, want: codes.Internal},
		"no answer to the release: the work is done": {path: path, answer: func(_ context.Context, locks *locktest.Registry) error {
			locks.Disconnect()
			return nil
		}, want: codes.OK},
		"the handler's own status": {path: path, answer: func(context.Context, *locktest.Registry) error {
			return status.Error(codes.NotFound, "no such order")
		}, want: codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := locktest.New(t)
				call := serve(t, locks.Registry, func(ctx context.Context) error {
					if c.answer == nil {
						return nil
					}
					return c.answer(ctx, locks)
				})
				if c.before != nil {
					c.before(locks)
				}
				if err := call(c.path); status.Code(err) != c.want {
					t.Errorf("%v, not %v", err, c.want)
				}
			})
		})
	}
}

// The text of a lock's error names keys and servers, which are none of a client's business.
func TestGRPC_TellsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		call := serve(t, locks.Registry, func(context.Context) error { return nil })
		locks.HoldElsewhere("order:42", time.Minute)
		if text := status.Convert(call("order:42")).Message(); text != "no lock" {
			t.Error(text)
		}
	})
}
