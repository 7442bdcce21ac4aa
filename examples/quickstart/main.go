// Command quickstart ships an order that no other process ships meanwhile.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/lockregistry/lockregistry"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	locks, err := lockregistry.Open(ctx, os.Getenv("REDIS_URL"), "orders") // such as redis://localhost:6379
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	return locks.Do(ctx, "42", ship)
}

// ship has the lock of order 42. Its context ends when the lease cannot be renewed in time, or a renewal finds the key gone.
func ship(ctx context.Context) error {
	if ctx.Err() != nil { // look before each write: another process may have the lock
		return context.Cause(ctx)
	}
	fmt.Println("shipped order 42")
	return nil
}
