// Package lockregistry is a lock registry on Redis: a Go port of Spring Integration's RedisLockRegistry that shares
// its locks with Java services on the same Redis.
//
// A [Registry], made by [New] for a prefix, hands out one [Lock] per path. A lock has two halves. The local half is a
// reentrant, first-in-first-out mutex among the goroutines of this process; who waits for it does not touch Redis. The
// other half is the key "prefix:path" in Redis, which keeps other processes out. It has a lease: when its holder
// crashes, the key expires.
//
//	registry, err := lockregistry.New(client, "orders")
//	...
//	lock := registry.Obtain("42")
//	if err := lock.Lock(ctx); err != nil {
//		return err
//	}
//	defer lock.Unlock(ctx)
//
// [Registry.Do] does the same around a function, and gives it a context that ends when the lock is lost.
//
// # Owners
//
// A lock belongs to the goroutine that locked it, or, when the context carries one made by [NewOwner], to that owner.
// The owner may lock again and must unlock as often; Unlock by anybody else returns [ErrNotOwner].
//
// # Leases
//
// A hold is only as good as its lease. It is valid from the moment before the command that granted or renewed it was
// sent, for the length of the lease less a margin for clock drift (1 % and a millisecond). When that time is over the
// hold is lost, whether or not Redis can be reached: the contexts that [Lock.Context] made are cancelled with the cause
// [ErrLockLost], and Lock by the owner returns it. Use [TTL], [WithExpiry], [Lock.Renew] or [WithRenewal] to make the
// lease long enough for the work.
//
// # Errors
//
// Every error of a lock is a [*LockError] that names the operation and the key; use [errors.Is] with [ErrNotOwner],
// [ErrLockLost], [ErrTimeout], [ErrClosed], [ErrCapacity], [context.Canceled] and so on to see what happened.
package lockregistry
