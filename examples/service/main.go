// Command service is a service of which several instances run: HTTP handlers with a deadline, a nightly job, a singleton, a lock
// for each customer, two customers locked together, a read-write lock, metrics, and their tests.
//
//	REDIS_URL=redis://localhost:6379 go run . -listen localhost:8080
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

func main() {
	var c config
	flag.StringVar(&c.listen, "listen", "localhost:8080", "the address to serve")
	flag.DurationVar(&c.lease, "lease", 30*time.Second, "how long the locks of an instance that crashes stay locked")
	flag.DurationVar(&c.every, "every", 24*time.Hour, "how often the nightly job runs")
	flag.DurationVar(&c.patience, "patience", time.Second, "how long a request waits for a lock, or for Redis")
	flag.Parse()
	c.redis = os.Getenv("REDIS_URL")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, c)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

type config struct {
	redis, listen          string
	lease, every, patience time.Duration
}

// run serves until ctx ends. It stops the users of the locks first, then the registry, then the client.
func run(ctx context.Context, c config) error {
	option, err := rueidis.ParseURL(c.redis)
	if err != nil {
		return errors.New("REDIS_URL is not an address such as redis://localhost:6379") // err has the password in it
	}
	option.DisableCache = true
	client, err := rueidis.NewClient(option)
	if err != nil {
		return fmt.Errorf("cannot reach Redis: %w", err)
	}
	defer client.Close()
	metrics, handler := newMetrics()
	locks, err := lockregistry.New(client, "shop",
		lockregistry.WithLease(c.lease), lockregistry.WithCommandTimeout(c.patience),
		lockregistry.WithLogger(slog.Default()), lockregistry.WithObserver(metrics.Observer()))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }() // where the service does not start
	defer metrics.Watch("shop", locks.Stats)()
	slog.InfoContext(ctx, "started", "registry", locks.String()) // the values of its keys begin with its client id

	s := &Service{Locks: locks, Store: redisStore{client}, Metrics: handler, Patience: c.patience}
	s.Ready = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.patience)
		defer cancel()
		return client.Do(ctx, client.B().Ping().Build()).Error()
	}
	candidate, err := leader.New(locks, "dispatcher", s.Dispatch,
		leader.OnGranted(func(ctx context.Context) { slog.InfoContext(ctx, "leading") }),
		leader.OnRevoked(func(err error) { slog.Info("not leading", "error", err) }))
	if err != nil {
		return err
	}
	s.Leading = candidate.IsLeader

	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return serve(ctx, c.listen, s.Handler(), 3*c.patience) })
	all.Go(func() error { return s.Nightly(ctx, c.every) })
	all.Go(func() error {
		if err := candidate.Run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	err = all.Wait()
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.patience)
	defer cancel()
	return errors.Join(err, locks.Shutdown(late))
}

// serve serves until ctx ends, and then lets requests finish, each of which takes no longer than most.
func serve(ctx context.Context, address string, handler http.Handler, most time.Duration) error {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "serving", "address", socket.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(socket) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), most+time.Second)
	defer cancel()
	return server.Shutdown(late)
}
