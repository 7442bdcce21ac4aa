package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// What stands in README.md. Change both together.
func Example_readme() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	if err := run(context.Background(), server.Addr()); err != nil {
		panic(err)
	}
	// Output:
	// shipped
	// shipped
	// shipped
}

func run(ctx context.Context, address string) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
	if err != nil {
		return err
	}
	defer client.Close()
	locks, err := lockregistry.New(client, "orders", lockregistry.WithExpiry(30*time.Second))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()

	if err = locks.Do(ctx, "42", ship); err != nil { // while nobody else holds 42, here or in another process
		return err
	}
	return errors.Join(acquire(ctx, locks), lock(ctx, locks))
}

func acquire(ctx context.Context, locks *lockregistry.Registry) error {
	hold, err := locks.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	err = ship(hold.Context(ctx))
	return errors.Join(err, hold.Release(ctx))
}

func lock(ctx context.Context, locks *lockregistry.Registry) error {
	lock := locks.Obtain("42")
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	err := ship(lock.Context(ctx))
	return errors.Join(err, lock.Unlock(ctx))
}

func ship(context.Context) error {
	fmt.Println("shipped")
	return nil
}
