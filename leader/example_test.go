package leader_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

// newRegistry makes a registry on a Redis inside this program, so that the example runs anywhere, and what ends both. Your
// program has the URL of a server, such as redis://redis.example.com:6379.
func newRegistry() (registry *lockregistry.Registry, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	registry, err = lockregistry.Open(context.Background(), "redis://"+server.Addr(), "orders", lockregistry.WithClientID("node 7"))
	if err != nil {
		panic(err)
	}
	return registry, func() {
		_ = registry.Close()
		server.Close()
	}
}

// One node bills, the others stand by. A program's ctx is that of signal.NotifyContext, so that at SIGTERM it stops leading and
// another node takes over at once.
func Example() {
	registry, stop := newRegistry()
	defer stop()
	ctx, shutdown := context.WithCancel(context.Background())

	candidate, err := leader.New(registry, "billing",
		func(ctx context.Context) error {
			for n := 1; ; n++ {
				fmt.Println("bill", n)
				if n == 3 {
					shutdown() // the program gets SIGTERM
				}
				select {
				case <-ctx.Done(): // told to stop, or the lock is lost
					return nil
				case <-time.After(10 * time.Millisecond):
				}
			}
		},
		lockregistry.Lease(15*time.Second),
		leader.OnGranted(func(context.Context) { fmt.Println("leading") }),
		leader.OnRevoked(func(err error) { fmt.Println("not leading:", errors.Is(err, context.Canceled)) }),
	)
	if err != nil {
		panic(err)
	}
	err = candidate.Run(ctx)
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// leading
	// bill 1
	// bill 2
	// bill 3
	// not leading: true
	// stopped: true
}

// A lead that returns nil resigns: work that one node does once, such as a migration.
func ExampleNew_resign() {
	registry, stop := newRegistry()
	defer stop()

	candidate, err := leader.New(registry, "migration", func(context.Context) error {
		fmt.Println("migrating")
		return nil
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(candidate.Run(context.Background()))
	// Output:
	// migrating
	// <nil>
}

// Any process can ask who leads.
func ExampleCurrent() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	candidate, err := leader.New(registry, "billing", func(ctx context.Context) error {
		who, err := leader.Current(ctx, registry, "billing")
		fmt.Println(len(who) > 0, who[:len("node 7")], err)
		return nil
	})
	if err != nil {
		panic(err)
	}
	if err := candidate.Run(ctx); err != nil {
		panic(err)
	}
	who, err := leader.Current(ctx, registry, "billing")
	fmt.Printf("%q %v\n", who, err)
	// Output:
	// true node 7 <nil>
	// "" <nil>
}
