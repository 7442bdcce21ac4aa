package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// The code of README.md; package docs has a test that it stands here.
func Example_readme() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	if err := run(context.Background(), server.Addr()); err != nil {
		panic(err)
	}
	if err := os.Setenv("REDIS_URL", "redis://"+server.Addr()); err != nil {
		panic(err)
	}
	if err := connect(); err != nil {
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
	locks, err := lockregistry.New(client, "orders")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	return locks.Do(ctx, "42", ship) // no other goroutine or process ships order 42 meanwhile
}

// connect is for a server that REDIS_URL names.
func connect() error {
	option, err := rueidis.ParseURL(os.Getenv("REDIS_URL")) // redis://user:password@host:6379/0
	if err != nil {
		return errors.New("REDIS_URL is not an address such as redis://host:6379") // err has the password in it
	}
	option.DisableCache = true
	client, err := rueidis.NewClient(option) // fails when no server answers
	if err != nil {
		return err
	}
	defer client.Close()
	locks, err := lockregistry.New(client, "orders")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	return errors.Join(acquire(context.Background(), locks), lock(context.Background(), locks))
}

func acquire(ctx context.Context, locks *lockregistry.Registry) (err error) {
	hold, err := locks.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	return ship(hold.Context(ctx))
}

func lock(ctx context.Context, locks *lockregistry.Registry) (err error) {
	lock := locks.Obtain("42")
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock(context.WithoutCancel(ctx))) }()
	return ship(lock.Context(ctx))
}

func ship(context.Context) error {
	fmt.Println("shipped")
	return nil
}
