// Command productcache shows a product service with a cache in Redis, guarded by locks. A product that is not cached is loaded
// once, however many callers ask for it. An update removes the old product from the cache first, in case it fails halfway. A
// product that does not exist is also cached, as missing. Products that were cached together do not expire together.
//
//	go run ./examples/productcache                                on a Redis embedded in this program
//	REDIS_URL=redis://host:6379 go run ./examples/productcache    on a real server
//
// service.go has the part that your own program would have.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

func main() {
	if err := run(context.Background(), os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "productcache:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	client, stop, err := connect(url)
	if err != nil {
		return err
	}
	defer stop()
	locks, err := lockregistry.New(client, "product-locks")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()

	const callers, hot, missing = 100, 42, 43
	store := newMemory(20*time.Millisecond, Product{ID: hot, Name: "teapot", Cents: 1999})
	service := &Service{redis: client, locks: locks, store: store}
	if err := client.Do(ctx, client.B().Del().Key(cacheKey(hot), cacheKey(missing)).Build()).Error(); err != nil {
		return fmt.Errorf("no answer from Redis: %w", err)
	}

	ask := func(id int64) (failed error) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for range callers {
			all.Go(func() {
				if _, err := service.Get(ctx, id); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = err
				}
			})
		}
		all.Wait()
		return failed
	}
	if err := ask(hot); err != nil {
		return err
	}
	fmt.Printf("%d callers asked for a product that was not cached: loaded %d time(s)\n", callers, store.loaded())

	before := store.loaded()
	if err := ask(missing); !errors.Is(err, ErrNoProduct) {
		return fmt.Errorf("a product that does not exist: %w", err)
	}
	fmt.Printf("%d callers asked for one that does not exist: loaded %d time(s)\n", callers, store.loaded()-before)

	if err := service.Put(ctx, Product{ID: hot, Name: "teapot", Cents: 1799}); err != nil {
		return err
	}
	p, err := service.Get(ctx, hot)
	if err != nil {
		return err
	}
	fmt.Printf("after an update the cache says: %s for %d.%02d\n", p.Name, p.Cents/100, p.Cents%100)
	return nil
}

// connect returns a client for a server, or for one that is embedded here when there is no URL.
func connect(url string) (client rueidis.Client, stop func(), err error) {
	if url != "" {
		option, err := rueidis.ParseURL(url)
		if err != nil {
			return nil, nil, errors.New("REDIS_URL is not an address such as redis://localhost:6379") // err has the password in it
		}
		option.DisableCache = true
		client, err = rueidis.NewClient(option)
		if err != nil {
			return nil, nil, fmt.Errorf("no connection to the server of REDIS_URL: %w", err)
		}
		return client, client.Close, nil
	}
	embedded, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	client, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{embedded.Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	if err != nil {
		embedded.Close()
		return nil, nil, err
	}
	return client, func() { client.Close(); embedded.Close() }, nil
}
