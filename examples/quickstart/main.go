// Command quickstart ships an order that no other process ships at the same time.
package main

import (
	"context"
	"errors"
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
	locks, err := lockregistry.Open(ctx, os.Getenv("REDIS_URL"), "orders")
	if err != nil {
		return err
	}
	return errors.Join(locks.Do(ctx, "42", ship), locks.Close())
}

// ship runs under the lock. Its context ends before the key can expire.
func ship(ctx context.Context) error {
	fmt.Println("shipped order 42")
	return context.Cause(ctx)
}
