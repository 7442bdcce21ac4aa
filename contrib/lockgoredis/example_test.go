package lockgoredis_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
)

func ExampleOpen() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := charge(context.Background(), server.Addr()); err != nil {
		fmt.Println(err)
	}
	fmt.Println(server.Get("charged:42"))
	// Output: 1 <nil>
}

func charge(ctx context.Context, address string) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: address}) // the client that the service has
	defer func() { _ = rdb.Close() }()
	locks, err := lockgoredis.Open(ctx, rdb, "orders")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()

	return locks.Do(ctx, "42", func(ctx context.Context) error {
		return rdb.Incr(ctx, "charged:42").Err()
	})
}
