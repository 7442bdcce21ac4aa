package lockregistry_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockregistry/lockregistry"
)

// The code of README.md; package docs has a test that it stands here.
func Example_readme() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	ctx := context.Background()
	locks, err := lockregistry.Open(ctx, "redis://"+server.Addr(), "orders")
	if err != nil {
		panic(err)
	}
	defer func() { _ = locks.Close() }()
	if err := errors.Join(acquire(ctx, locks), lock(ctx, locks)); err != nil {
		panic(err)
	}
	// Output:
	// shipped
	// shipped
}

func acquire(ctx context.Context, locks *lockregistry.Registry) (err error) { // named, as the defer sets it
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
