package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
)

// redis is a Redis inside this program, so that the examples run anywhere, and a client of it. Your program has a server of
// its own.
func redis() (*miniredis.Miniredis, rueidis.Client) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true, // it would pass for a cluster of one
	})
	if err != nil {
		panic(err)
	}
	return server, client
}

// newRegistry makes a registry on such a Redis, and what ends both.
func newRegistry(opts ...lockregistry.Option) (registry *lockregistry.Registry, stop func()) {
	server, client := redis()
	registry, err := lockregistry.New(client, "orders", opts...)
	if err != nil {
		panic(err)
	}
	return registry, func() {
		_ = registry.Close()
		client.Close()
		server.Close()
	}
}

// A service died with its lock. A program of operators needs no registry. It names the holder that it saw: by now it may be
// another one.
func ExampleInspector_ForceUnlockHolder() {
	server, client := redis()
	defer server.Close()
	defer client.Close()
	if err := server.Set("orders:42", "the dead service"); err != nil {
		panic(err)
	}

	locks, err := inspect.New(client, "orders")
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	err = locks.ForceUnlockHolder(ctx, "42", "another service")
	fmt.Println(errors.Is(err, lockregistry.ErrNotOwner))
	fmt.Println(locks.ForceUnlockHolder(ctx, "42", "the dead service"))
	found, err := locks.Inspect(ctx, "42")
	fmt.Println(found.HolderCount, err)
	// Output:
	// true
	// <nil>
	// 0 <nil>
}

// Who has the lock, and since when? For people, and for pages that show it.
func ExampleInspector_Inspect() {
	registry, stop := newRegistry(lockregistry.WithName("billing"))
	defer stop()

	ctx := context.Background()
	if err := registry.Obtain("42").Lock(ctx); err != nil {
		panic(err)
	}
	info, err := inspect.Of(registry).Inspect(ctx, "42")
	if err != nil {
		panic(err)
	}
	fmt.Println(info.Kind, info.Key, len(info.Waiters), "wait")
	for _, h := range info.Holders {
		fmt.Println(h.Label.Name, time.Since(h.Since) < time.Minute, h.Lease > 0)
	}
	// Output:
	// lock orders:42 0 wait
	// billing true true
}

// What is locked, whoever holds it.
func ExampleInspector_Locks() {
	registry, stop := newRegistry()
	defer stop()

	ctx := context.Background()
	if err := registry.Obtain("42").Lock(ctx); err != nil {
		panic(err)
	}
	if err := registry.ReadWrite("prices").Reader().Lock(ctx); err != nil {
		panic(err)
	}
	var paths []string
	for info, err := range inspect.Of(registry).Locks(ctx) {
		if err != nil {
			panic(err) // it is the last thing that the loop gets
		}
		paths = append(paths, info.Path+": "+string(info.Kind))
	}
	slices.Sort(paths)
	fmt.Println(paths)
	// Output: [42: lock prices: readwrite]
}
