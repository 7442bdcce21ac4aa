package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// embeddedRedis starts a Redis inside this program, so that the examples run anywhere. Your program has the URL of a server, such
// as redis://redis.example.com:6379.
func embeddedRedis() *miniredis.Miniredis {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	return server
}

// newRegistry makes a registry on an embedded Redis, and a function that ends both. Your program uses Open; its client stays
// until the last lock is unlocked, and some of these examples unlock none.
func newRegistry(opts ...lockregistry.Option) (registry *lockregistry.Registry, stop func()) {
	server := embeddedRedis()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true, // it would pass for a cluster of one
	})
	if err != nil {
		panic(err)
	}
	registry, err = lockregistry.New(client, "orders", opts...)
	if err != nil {
		panic(err)
	}
	return registry, func() {
		_ = registry.Close()
		client.Close()
		server.Close()
	}
}

// A registry hands out one lock per path. While one process holds it, all others that use the same prefix wait.
func Example() {
	server := embeddedRedis()
	defer server.Close()
	registry, err := lockregistry.Open(context.Background(), "redis://"+server.Addr(), "orders")
	if err != nil {
		panic(err)
	}
	defer func() { _ = registry.Close() }()

	err = registry.Do(context.Background(), "42", func(context.Context) error {
		fmt.Println("working on 42")
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// working on 42
	// error: <nil>
}

// Open connects to a server, and Close disconnects.
func ExampleOpen() {
	server, err := miniredis.Run() // your program has the address of a server
	if err != nil {
		panic(err)
	}
	defer server.Close()

	registry, err := lockregistry.Open(context.Background(), "redis://"+server.Addr(), "orders")
	if err != nil {
		panic(err)
	}
	defer func() { _ = registry.Close() }()

	err = registry.Do(context.Background(), "42", func(context.Context) error {
		fmt.Println("working on 42")
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// working on 42
	// error: <nil>
}

// Do locks, runs a function and unlocks, even when the function fails or panics.
func ExampleRegistry_Do() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	err := registry.Do(ctx, "42", func(ctx context.Context) error {
		fmt.Println("held:", registry.Obtain("42").IsHeld())
		return printInvoice(ctx) // ctx ends when the lock is lost: pass it on to whatever takes time
	})
	fmt.Println("error:", err)
	fmt.Println("held:", registry.Obtain("42").IsHeld())
	// Output:
	// held: true
	// error: out of paper
	// held: false
}

func printInvoice(context.Context) error { return errors.New("out of paper") }

// With Wait, Do gives up when somebody else holds the lock for that long.
func ExampleRegistry_Do_wait() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	other := lockregistry.ContextWithOwner(ctx)
	if err := registry.Obtain("42").Lock(other); err != nil {
		panic(err)
	}
	err := registry.Do(ctx, "42", func(context.Context) error {
		fmt.Println("never printed")
		return nil
	}, lockregistry.Wait(10*time.Millisecond))
	fmt.Println(errors.Is(err, lockregistry.ErrTaken))
	// Output: true
}

// DoValue is Do for a function that returns a value.
func ExampleDoValue() {
	registry, stop := newRegistry()
	defer stop()
	number, err := lockregistry.DoValue(context.Background(), registry.Obtain("invoices"), func(context.Context) (int, error) {
		return 43, nil // the next number, that nobody else may draw at the same time
	})
	fmt.Println(number, err)
	// Output: 43 <nil>
}

// Acquire is for work that does not fit into one function. The hold can be passed on; whoever has it releases it.
func ExampleRegistry_Acquire() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	hold, err := registry.Acquire(ctx, "42")
	if err != nil {
		panic(err)
	}
	done := make(chan error)
	go func() { // another goroutine does the work
		defer func() { done <- hold.Release(context.WithoutCancel(ctx)) }()
		fmt.Println("working with", hold, hold.Context(ctx).Err())
	}()
	fmt.Println("error:", <-done)
	fmt.Println("again:", errors.Is(hold.Release(ctx), lockregistry.ErrNotOwner))
	// Output:
	// working with Hold(orders:42, held) <nil>
	// error: <nil>
	// again: true
}

// With NoWait a call does not wait for anyone.
func ExampleNoWait() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	hold, err := registry.Acquire(ctx, "42", lockregistry.NoWait())
	if err != nil {
		panic(err)
	}
	defer func() { fmt.Println(hold.Release(context.WithoutCancel(ctx))) }()
	_, err = registry.Acquire(ctx, "42", lockregistry.NoWait())
	fmt.Println(errors.Is(err, lockregistry.ErrTaken))
	_, err = registry.Acquire(hold.Context(ctx), "42") // would wait for itself
	fmt.Println(errors.Is(err, lockregistry.ErrDeadlock))
	// Output:
	// true
	// true
	// <nil>
}

// Several services start a job at about the same time, and only one should run it. It ends long before the slowest clock strikes.
func ExampleAtLeast() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	job := func(context.Context) error {
		fmt.Println("running")
		return nil
	}

	for range 3 {
		err := registry.Do(ctx, "nightly", job, lockregistry.NoWait(), lockregistry.AtLeast(time.Minute))
		fmt.Println("somebody else has run it:", errors.Is(err, lockregistry.ErrTaken))
	}
	// Output:
	// running
	// somebody else has run it: false
	// somebody else has run it: true
	// somebody else has run it: true
}

// Every node starts the job at midnight, by its own clock. One runs it.
func ExampleRegistry_Once() {
	registry, stop := newRegistry()
	defer stop()
	report := func(context.Context) error {
		fmt.Println("reporting")
		return nil
	}

	for range 3 { // nodes
		ran, err := registry.Once(context.Background(), "report", 24*time.Hour, report)
		fmt.Println(ran, err)
	}
	// Output:
	// reporting
	// true <nil>
	// false <nil>
	// false <nil>
}

// An observer learns how each call got its lock, and how long that took.
func ExampleWithObserver() {
	registry, stop := newRegistry(lockregistry.WithObserver(observe.Observer{
		Acquired: func(_ context.Context, a observe.Acquired) {
			fmt.Println(a.Op, a.Key, a.How, "waited:", a.Waited())
		},
		Released: func(_ context.Context, r observe.Released) {
			fmt.Println(r.How, "held for less than a minute:", r.Held < time.Minute)
		},
	}))
	defer stop()

	err := registry.Do(context.Background(), "42", func(context.Context) error { return nil })
	fmt.Println("error:", err)
	// Output:
	// do orders:42 free waited: false
	// released held for less than a minute: true
	// error: <nil>
}

// With RetryOnError, the next node runs a job that failed.
func ExampleRetryOnError() {
	registry, stop := newRegistry()
	defer stop()

	for _, node := range []string{"first", "second", "third"} {
		ran, err := registry.Once(context.Background(), "invoices", time.Hour, func(ctx context.Context) error {
			if node == "first" {
				return printInvoice(ctx)
			}
			return nil
		}, lockregistry.RetryOnError())
		fmt.Println(node, ran, err)
	}
	// Output:
	// first true out of paper
	// second true <nil>
	// third false <nil>
}

// A lock owned by a goroutine, as by a thread in Java: for code that is ported from there.
func ExampleLock_Lock() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	lock := registry.Obtain("42")
	if err := lock.Lock(ctx); err != nil {
		panic(err)
	}
	defer func() {
		if err := lock.Unlock(context.WithoutCancel(ctx)); err != nil {
			panic(err)
		}
	}()
	fmt.Println("working on", lock.Path(), "with", lock)
	// Output: working on 42 with Lock(orders:42, held)
}

// An owner that holds a lock may lock it again, and unlocks as often.
func ExampleLock_Lock_again() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	lock := registry.Obtain("42")

	_ = lock.Lock(ctx)
	_ = lock.Lock(ctx)
	_ = lock.Unlock(ctx) // no defer here, to look between the two
	fmt.Println("held:", lock.IsHeld())
	_ = lock.Unlock(ctx)
	fmt.Println("held:", lock.IsHeld())
	// Output:
	// held: true
	// held: false
}

// A context bounds how long Lock waits, as it does everywhere in Go.
func ExampleLock_Lock_deadline() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	lock := registry.Obtain("42")
	if err := lock.Lock(lockregistry.ContextWithOwner(ctx)); err != nil { // somebody else
		panic(err)
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err := lock.Lock(ctx) // lockregistry: lock orders:42: context deadline exceeded: owner 1 of this process has it
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// TryLock does not wait for anyone, or, with Wait, no longer than that.
func ExampleLock_TryLock() {
	registry, stop := newRegistry()
	defer stop()
	lock := registry.Obtain("42")
	alice, bob := lockregistry.ContextWithOwner(context.Background()), lockregistry.ContextWithOwner(context.Background())

	ok, err := lock.TryLock(alice)
	fmt.Println("alice:", ok, err)
	ok, err = lock.TryLock(bob)
	fmt.Println("bob:", ok, err)

	time.AfterFunc(10*time.Millisecond, func() { _ = lock.Unlock(alice) })
	ok, err = lock.TryLock(bob, lockregistry.Wait(time.Minute))
	fmt.Println("bob:", ok, err)
	// Output:
	// alice: true <nil>
	// bob: false <nil>
	// bob: true <nil>
}

// The lease is how long a lock stays locked when its holder crashes, or works for longer than it should.
func ExampleLease() {
	server := embeddedRedis()
	defer server.Close()
	registry, err := lockregistry.Open(context.Background(), "redis://"+server.Addr(), "orders",
		lockregistry.WithLease(30*time.Second))
	if err != nil {
		panic(err)
	}
	defer func() { _ = registry.Close() }()

	ctx := context.Background()
	lease := func(path string) time.Duration {
		return server.TTL("orders:" + path).Round(10 * time.Second)
	}
	quick, slow := registry.Obtain("quick"), registry.Obtain("slow")
	_ = quick.Lock(ctx)
	defer func() { _ = quick.Unlock(context.WithoutCancel(ctx)) }()
	_ = slow.Lock(ctx, lockregistry.Lease(10*time.Minute))
	defer func() { _ = slow.Unlock(context.WithoutCancel(ctx)) }()
	fmt.Println(lease("quick"), lease("slow"))
	// Output: 30s 10m0s
}

// A lock belongs to the goroutine that locked it, unless the context carries an owner: then to whoever uses that context.
func ExampleContextWithOwner() {
	registry, stop := newRegistry()
	defer stop()
	lock := registry.Obtain("42")

	ctx := lockregistry.ContextWithOwner(context.Background())
	_ = lock.Lock(ctx)
	done := make(chan struct{})
	go func() { // the work goes on here
		defer close(done)
		defer func() { fmt.Println("with the owner:", lock.Unlock(context.WithoutCancel(ctx))) }()
		fmt.Println("without the owner:", errors.Is(lock.Unlock(context.Background()), lockregistry.ErrNotOwner))
	}()
	<-done
	// Output:
	// without the owner: true
	// with the owner: <nil>
}

// The context of a hold ends when the hold can no longer be guaranteed, before anybody else can have the lock.
func ExampleLock_Context() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	lock := registry.Obtain("42")
	if err := lock.Lock(ctx, lockregistry.Lease(time.Second)); err != nil {
		panic(err)
	}

	held := lock.Context(ctx)
	select {
	case <-time.After(time.Minute): // work that takes longer than the lease
		fmt.Println("done")
	case <-held.Done():
		fmt.Println(errors.Is(context.Cause(held), lockregistry.ErrLockLost))
	}
	// Output: true
}

// Renew sets a new lease, for work that takes longer than expected.
func ExampleLock_Renew() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	lock := registry.Obtain("42")

	fmt.Println(errors.Is(lock.Renew(ctx, time.Minute), lockregistry.ErrNotOwner))
	_ = lock.Lock(ctx)
	fmt.Println(lock.Renew(ctx, 10*time.Minute))
	// Output:
	// true
	// <nil>
}

// With renewal a lease may be short, so that others do not wait for long when a holder crashes, and work may be long.
func ExampleWithRenewal() {
	registry, stop := newRegistry(lockregistry.WithRenewal(), lockregistry.WithLease(5*time.Second))
	defer stop()
	err := registry.Do(context.Background(), "42", func(ctx context.Context) error {
		select {
		case <-time.After(6 * time.Second): // work that takes longer than the lease
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	fmt.Println(err)
	// Output: <nil>
}

// A lock counts once that many replicas have it: all that may be promoted. If they are missing, or do not answer in time,
// nobody gets the lock. This embedded server has none.
func ExampleWithReplicas() {
	registry, stop := newRegistry(lockregistry.WithReplicas(2, 50*time.Millisecond))
	defer stop()

	locked, err := registry.Obtain("42").TryLock(context.Background())
	fmt.Println(locked, errors.Is(err, lockregistry.ErrUnavailable))
	// Output: false true
}

// A registry keeps the most recently obtained locks, and all that are in use.
func ExampleRegistry_SetCapacity() {
	registry, stop := newRegistry()
	defer stop()
	if err := registry.SetCapacity(2); err != nil {
		panic(err)
	}
	ctx := context.Background()

	for _, path := range []string{"a", "b", "c", "d"} {
		registry.Obtain(path)
	}
	fmt.Println("kept:", registry.Stats().Locks)

	_ = registry.Obtain("a").Lock(ctx)
	_ = registry.Obtain("b").Lock(ctx)
	err := registry.Obtain("c").Lock(ctx)
	fmt.Println("all in use:", errors.Is(err, lockregistry.ErrCapacity))
	_ = registry.SetCapacity(3)
	fmt.Println("room for one more:", registry.Obtain("c").Lock(ctx))
	// Output:
	// kept: 2
	// all in use: true
	// room for one more: <nil>
}

// Locks that nobody has used for a while can be dropped, to free their memory.
func ExampleRegistry_ExpireUnusedOlderThan() {
	registry, stop := newRegistry()
	defer stop()
	registry.Obtain("a")
	registry.Obtain("b")
	fmt.Println(registry.ExpireUnusedOlderThan(time.Hour), registry.Stats().Locks)
	fmt.Println(registry.ExpireUnusedOlderThan(0), registry.Stats().Locks)
	// Output:
	// 0 2
	// 2 0
}

// Stats is for health checks and metrics: expvar.Publish("locks", expvar.Func(func() any { return registry.Stats() })).
func ExampleRegistry_Stats() {
	registry, stop := newRegistry()
	defer stop()
	hold, err := registry.Acquire(context.Background(), "42")
	if err != nil {
		panic(err)
	}
	stats := registry.Stats()
	fmt.Println("held:", stats.Holds, "waiting:", stats.Waiters, "to be removed:", stats.Removals)
	for _, node := range stats.Nodes {
		fmt.Println("has answered:", !node.LastAnswer.IsZero(), "renewals fail:", !node.RenewalsFailing.IsZero())
	}
	_ = hold.Release(context.Background()) // no defer here, to look at what is left
	fmt.Println("held:", registry.Stats().Holds)
	// Output:
	// held: 1 waiting: 0 to be removed: 0
	// has answered: true renewals fail: false
	// held: 0
}

// Every error says what failed on which key, and wraps the reason.
func ExampleLockError() {
	registry, stop := newRegistry()
	defer stop()
	err := registry.Obtain("42").Unlock(context.Background())
	var failed *lockregistry.LockError
	if errors.As(err, &failed) {
		fmt.Println(failed.Op, failed.Key, errors.Is(err, lockregistry.ErrNotOwner))
	}
	// Output: unlock orders:42 true
}

func ExampleWithFencing() {
	registry, stop := newRegistry(lockregistry.WithFencing())
	defer stop()
	ctx := context.Background()

	var newest uint64 // what the protected resource keeps beside the data
	write := func(ctx context.Context) error {
		token, _ := lockregistry.TokenFrom(ctx)
		if token < newest {
			return errors.New("somebody else has had the lock since")
		}
		newest = token
		return nil
	}
	late, err := registry.Acquire(ctx, "42") // and then this process is stopped for a minute
	if err != nil {
		panic(err)
	}
	if err := inspect.Of(registry).ForceUnlock(ctx, "42"); err != nil {
		panic(err)
	}
	fmt.Println(registry.Do(ctx, "42", write))
	fmt.Println(write(late.Context(ctx)))
	// Output:
	// <nil>
	// somebody else has had the lock since
}

// Two accounts are locked for a transfer, whichever of them is named first.
func ExampleRegistry_AcquireAll() {
	registry, stop := newRegistry()
	defer stop()
	ctx := context.Background()

	hold, err := registry.AcquireAll(ctx, []string{"bob", "alice"})
	if err != nil {
		panic(err)
	}
	defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
	fmt.Println(hold.Paths())
	_, err = registry.AcquireAll(ctx, []string{"alice", "carol"}, lockregistry.NoWait())
	fmt.Println(errors.Is(err, lockregistry.ErrTaken))
	// Output:
	// [bob alice]
	// true
}
