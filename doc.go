// Package lockregistry has locks for several processes, in Redis. It is a Go port of Spring Integration's RedisLockRegistry,
// and shares its locks with Java services on the same Redis.
//
// A [Registry], made by [Open] for a prefix, hands out one [Lock] per path. A lock has two halves. The local half is a
// reentrant, first-in-first-out mutex among the goroutines of this process; its waiters do not touch Redis. The
// other half is the key "prefix:path" in Redis, which keeps other processes out. It has a lease: when its holder
// crashes, the key expires.
//
//	registry, err := lockregistry.Open(ctx, "redis://localhost:6379", "orders")
//	...
//	defer registry.Close()
//	err = registry.Do(ctx, "42", func(ctx context.Context) error { return ship(ctx) })
//
// [Registry.Do] locks, runs a function, gives it a context that ends when the lock is lost, and unlocks. [Registry.Acquire]
// returns the lock as a value, a [Hold], for any goroutine to release. [Lock.Lock] and [Lock.Unlock] are for code that is
// ported from Java. All of them wait in the same queues, and exclude each other.
//
// A [Semaphore] of [Registry.Semaphore] lets several holds in at a time, across all processes.
//
// # Owners
//
// A [Hold] is an owner of its own, and cannot be locked again. A lock taken by Lock or Do belongs to the goroutine, or to the
// owner in the context, if [ContextWithOwner] made one. The owner may lock again and must unlock as often; Unlock by another
// owner returns [ErrNotOwner].
//
// # Leases
//
// A hold is valid only during its lease, less a margin for clock drift (1 % and a millisecond). The lease counts from before
// the command was sent that granted or renewed it. When that time is over the hold is lost, whether or not Redis can be
// reached: contexts of [Lock.Context] are cancelled with the cause [ErrLockLost], and Lock by the owner returns it.
//
// [Lock.Do], [DoValue], [Lock.Acquire], [Registry.AcquireAll] and [Registry.Once] know when the work ends, and renew the lease
// until then, each third of it. [Lease] and [WithLease] set its length: for how long a crash keeps others out. [AtMost]
// limits how long the work may take. Locks taken by [Lock.Lock] and [Lock.TryLock] are not renewed, as in Spring: use
// [WithRenewal] or [Lock.Renew], or a lease that is long enough.
//
// # Waiting
//
// One goroutine of a process waits on Redis for a path, the others queue behind it in order of arrival. The processes queue in
// Redis: a release makes the first one the owner and wakes no other. A waiter learns that Java has released the lock from the
// server itself (client-side caching), by messages on the channels that Spring and Redisson use, or by polling: the first of
// these that the server and the user's permissions allow. See [WithPolling].
//
// When a goroutine unlocks while others of the process wait, the lock may pass to the next one while the key stays, without a
// command to Redis, for as long as [WithHandoff] allows; after that other processes have their turn.
//
// # Formats
//
// A lock is a string with an expiry, as in Spring; with [WithRedissonLayout] it is a hash, as Redisson's RLock writes it. In
// either case [Registry.ReadWrite] returns read-write locks in the format of Redisson's RReadWriteLock: readers share, writers
// exclude all. A [Semaphore] has a format of its own, which Java does not know.
//
// # Errors
//
// Every error of a lock is a [*LockError] that names the operation and the key. Test for its reason with [errors.Is]:
// [ErrNotOwner], [ErrLockLost], [ErrTaken], [ErrUnavailable], [ErrClosed], [ErrCapacity], [ErrDeadlock],
// [ErrWrongType], [context.Canceled] and so on.
//
// # For operators
//
// Package inspect shows who holds the locks of a prefix and who waits for them, in all processes, and frees those whose
// holders are gone. Package observe has what a registry reports of itself.
package lockregistry
